"""How kernels and the functions they call are declared, and how kernels are launched."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numba import cuda

from pagedref_cuda._runtime import emulation, gpu
from pagedref_cuda._runtime.compiler import CompileOptions
from pagedref_cuda._runtime.detect import SIMULATOR, mode
from pagedref_cuda._runtime.streams import ordered

Function = TypeVar("Function", bound=Callable[..., Any])
Size = int | tuple[int, ...]

# The simulator starts a Python thread for each CUDA thread: small blocks there, whole warps elsewhere.
_THREADS = 32 if SIMULATOR else 128


@dataclass(frozen=True)
class Kernel:
    """A kernel, how it is compiled, and the types it is compiled for.

    Parameters
    ----------
    function : callable
        The plain Python function.
    signatures : tuple of tuple
        Argument types, such as ``("float32[:, :]", "int64")``; a named tuple is a pair of its class and the types of
        its fields. The tests compile each; a launch takes the first that fits its arguments.
    options : CompileOptions
        Contraction, launch bounds, registers.
    blocks_meet : bool
        Blocks of one launch pass values to each other (by atomics and flags): the emulator keeps all of them in one
        batch and looks for no races between blocks.
    """

    function: Callable[..., None]
    signatures: tuple[tuple[Any, ...], ...] = ()
    options: CompileOptions = field(default_factory=CompileOptions)
    blocks_meet: bool = False

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @cached_property
    def _simulated(self) -> Any:
        return cuda.jit(self.function)

    def launch(self, num_items: int, *arguments: Any) -> None:
        """Run one thread per item, in blocks of 128; no item, no launch.

        Parameters
        ----------
        num_items : int
            Threads that have work; the kernel begins with ``if cuda.grid(1) >= number of items: return``.
        *arguments
            What the kernel takes; arrays as :mod:`pagedref_cuda._runtime.transfer` gives them.

        Raises
        ------
        BackendUnavailable
            Nothing here can run kernels.
        """
        blocks = -(-num_items // _THREADS)
        if SIMULATOR and blocks:
            self.launch_grid(blocks, -(-num_items // blocks), *arguments)  # an idle thread costs it as much
        else:
            self.launch_grid(blocks, _THREADS, *arguments)

    def launch_grid(self, grid: Size, block: Size, *arguments: Any, shared_bytes: int = 0) -> None:
        """Run a grid of blocks; an empty grid is no launch.

        Parameters
        ----------
        grid, block : int or tuple of up to 3 int
            Blocks of the grid and threads of a block, x first. y and z of a grid are at most 65,535.
        *arguments
            What the kernel takes; arrays as :mod:`pagedref_cuda._runtime.transfer` gives them. It runs on the stream of
            the operation, else of the first array that has one; the streams of other arrays wait for each other.
        shared_bytes : int
            Dynamic shared memory of a block (``cuda.shared.array(0, dtype)``).

        Raises
        ------
        BackendUnavailable
            Nothing here can run kernels.
        """
        where = mode()
        blocks, threads = (tuple(map(int, size)) if isinstance(size, tuple) else (int(size),) for size in (grid, block))
        if 0 in blocks:
            return
        if where == "emulator":
            emulation.launch(self, blocks, threads, arguments, shared_bytes)
        elif where == "gpu":
            with ordered(arguments) as stream:
                gpu.launch(self, blocks, threads, arguments, int(shared_bytes), stream)
        else:
            with warnings.catch_warnings():  # NumPy, which computes there, is as silent on NaN as a GPU is
                warnings.simplefilter("ignore", RuntimeWarning)
                self._simulated[blocks, threads, 0, shared_bytes](*arguments)


KERNELS: dict[str, Kernel] = {}
"""Every kernel by name; the tests compile each of them."""


def kernel(
    *signatures: tuple[Any, ...],
    fma: bool = True,
    fastmath: bool = False,
    launch_bounds: int | tuple[int, int] | None = None,
    max_registers: int | None = None,
    blocks_meet: bool = False,
) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a kernel and enter it into :data:`KERNELS`.

    Parameters
    ----------
    *signatures : tuple
        Argument types to compile for; see :class:`Kernel`.
    fma : bool
        Whether ``a * b + c`` may be one rounding. False: the same bits as NumPy in the same order.
    fastmath : bool
        Approximate division and roots, no subnormals; implies `fma`.
    launch_bounds : int or pair of int, optional
        Most threads of a block, and fewest blocks per multiprocessor that the registers must leave room for.
    max_registers : int, optional
        Most registers of a thread.
    blocks_meet : bool
        Blocks of one launch pass values to each other; see :class:`Kernel`.

    Returns
    -------
    callable
        A decorator that gives a :class:`Kernel`.
    """
    options = CompileOptions(fma=fma, fastmath=fastmath, launch_bounds=launch_bounds, max_registers=max_registers)

    def declare(function: Callable[..., None]) -> Kernel:
        declared = KERNELS[function.__name__] = Kernel(function, signatures, options, blocks_meet)
        return declared

    return declare


def device_function(function: Function) -> Function:
    """Make a plain function callable from kernels; in the simulator it stays what it is.

    Parameters
    ----------
    function : callable
        Uses scalars, arrays and other device functions only.

    Returns
    -------
    callable
        The same for the reader and for mypy.
    """
    if SIMULATOR:
        return function
    compiled: Function = cuda.jit(device=True)(function)
    return compiled


if SIMULATOR:

    def multiply_rounded(a: np.float32, b: np.float32) -> np.float32:
        """Return the float32 product, rounded before anything is added to it."""
        return a * b

else:
    from numba.cuda import libdevice

    # A compiler fuses a * b + c into one rounding, and then a * b + c * d depends on which product comes first.
    multiply_rounded = libdevice.fmul_rn
