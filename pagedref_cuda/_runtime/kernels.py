"""How kernels and the functions they call are declared, and how kernels are launched."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

from pagedref_cuda._runtime.detect import SIMULATOR, ensure_available

Function = TypeVar("Function", bound=Callable[..., Any])

# The simulator starts a Python thread for each CUDA thread: small blocks there, whole warps on a GPU.
_THREADS = 32 if SIMULATOR else 128


@dataclass(frozen=True)
class Kernel:
    """A kernel in which each thread owns one item of a one-dimensional grid.

    Parameters
    ----------
    function : callable
        The plain Python function; its first line guards ``item >= number of items``.
    signatures : tuple of tuple of str
        Argument types that are compiled ahead by the tests, such as ``("float32[:, :]", "int64")``. On a GPU, Numba
        compiles for the types of each call.
    """

    function: Callable[..., None]
    signatures: tuple[tuple[str, ...], ...]

    @cached_property
    def _dispatcher(self) -> Any:
        return cuda.jit(self.function)

    def launch(self, num_items: int, *arguments: Any) -> None:
        """Run one thread per item; no item, no launch.

        Parameters
        ----------
        num_items : int
            Threads that have work.
        *arguments
            What the kernel takes; arrays as :mod:`pagedref_cuda._runtime.transfer` gives them.

        Raises
        ------
        BackendUnavailable
            Nothing here can run kernels.
        """
        ensure_available()
        if num_items == 0:
            return
        blocks = -(-num_items // _THREADS)
        threads = -(-num_items // blocks) if SIMULATOR else _THREADS  # an idle thread costs the simulator as much
        with warnings.catch_warnings():
            # No word about a small grid; and NumPy, which computes in the simulator, is as silent on NaN as a GPU is.
            warnings.simplefilter("ignore", RuntimeWarning if SIMULATOR else NumbaPerformanceWarning)
            self._dispatcher[blocks, threads](*arguments)


KERNELS: dict[str, Kernel] = {}
"""Every kernel by name; the tests compile each of them."""


def kernel(*signatures: tuple[str, ...]) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a kernel and enter it into :data:`KERNELS`.

    Parameters
    ----------
    *signatures : tuple of str
        Argument types to compile for in the tests; see :class:`Kernel`.

    Returns
    -------
    callable
        A decorator that gives a :class:`Kernel`.
    """

    def declare(function: Callable[..., None]) -> Kernel:
        declared = KERNELS[function.__name__] = Kernel(function, signatures)
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
