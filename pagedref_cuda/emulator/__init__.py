"""A GPU in NumPy: runs PTX, the compiled form of a kernel, without a GPU, and checks what it does.

:class:`Module` takes PTX text (what NVVM, Numba, nvcc or NVRTC emit) and launches kernels on NumPy arrays, vectorised
over the threads of many blocks. It needs NumPy and ml_dtypes only; :func:`pagedref_cuda.emulate` compiles a
kernel with Numba first.

The parts, from the text to the launch: ``parser`` (text to ``syntax``), ``program`` (calls inlined, symbols resolved),
``instructions`` (the table of all families: ``integer_arithmetic``, ``float_arithmetic``, ``bits``, ``comparison``,
``conversion``, ``movement``, ``atomics``, ``synchronisation``, ``tensor_cores``, ``printing``), which turn an
instruction into a function of the machine. The machine is a chain of classes, each with one idea: ``threads`` (groups
and registers), ``counting``, ``global_memory``, ``races``, ``shared_memory``, ``access``, ``barriers``, ``machine``
(the scheduler). ``rounding`` has the exact arithmetic.

A register is a NumPy array of bit patterns over the threads of a batch, or of one element while all agree. A group of
threads runs together until it diverges; the group with the smallest program counter goes first, and groups wait for
each other at barriers and operations of a warp.
"""

from __future__ import annotations

from pagedref_cuda.emulator.errors import (
    AsyncHazard,
    BarrierError,
    EmulatorError,
    MemoryFault,
    PtxSyntaxError,
    RaceError,
    StepLimit,
    Trap,
    UninitialisedRead,
    Unsupported,
)
from pagedref_cuda.emulator.launch import Module
from pagedref_cuda.emulator.memory import Memory
from pagedref_cuda.emulator.stats import Stats

__all__ = [
    "AsyncHazard",
    "BarrierError",
    "EmulatorError",
    "Memory",
    "MemoryFault",
    "Module",
    "PtxSyntaxError",
    "RaceError",
    "Stats",
    "StepLimit",
    "Trap",
    "UninitialisedRead",
    "Unsupported",
]
