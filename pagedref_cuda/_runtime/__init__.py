"""The only place that touches Numba's internals: what runs kernels, how they are declared, compiled and launched.

Three things can run them: a GPU, the emulator of compiled kernels, Numba's simulator
(:mod:`pagedref_cuda._runtime.detect`). Where there is none of them, nothing runs.
"""

from __future__ import annotations

# First: it may set what numba reads when it is imported.
from pagedref_cuda._runtime.detect import SIMULATOR, compute_capability, device, ensure_available, mode  # isort: skip
from pagedref_cuda._runtime.checks import Counts, counting, emulator_options
from pagedref_cuda._runtime.compiler import CompileOptions, compile_ptx
from pagedref_cuda._runtime.device_arrays import DeviceArray, to_device
from pagedref_cuda._runtime.emulation import emulate
from pagedref_cuda._runtime.kernels import KERNELS, Kernel, device_function, kernel, multiply_rounded
from pagedref_cuda._runtime.kinds import in_kind
from pagedref_cuda._runtime.linker import link, link_report
from pagedref_cuda._runtime.streams import settle
from pagedref_cuda._runtime.transfer import (
    empty,
    fetch,
    move_pinned,
    pinned,
    readable,
    to_host,
    watch,
    written,
)

__all__ = [
    "KERNELS",
    "SIMULATOR",
    "CompileOptions",
    "Counts",
    "DeviceArray",
    "Kernel",
    "compile_ptx",
    "compute_capability",
    "counting",
    "device",
    "device_function",
    "empty",
    "emulate",
    "emulator_options",
    "ensure_available",
    "fetch",
    "in_kind",
    "kernel",
    "link",
    "link_report",
    "mode",
    "move_pinned",
    "multiply_rounded",
    "pinned",
    "readable",
    "settle",
    "to_device",
    "to_host",
    "watch",
    "written",
]
