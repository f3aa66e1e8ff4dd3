"""Arrays as Numba's simulator hands them to kernels, stricter and lighter than its own.

The simulator would copy every array at every launch and refuse those with gaps, and in it a negative index wraps
around silently, which on a GPU need not happen: a kernel that uses slot -1 must not look right here.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

__all__ = ["SimulatedArray"]


class SimulatedArray:
    """A host array seen from a simulated kernel: elements by non-negative indices, and its shape.

    Parameters
    ----------
    array : array
        Used where it lies, any strides.

    Examples
    --------
    >>> import numpy as np
    >>> SimulatedArray(np.arange(3))[-1]
    Traceback (most recent call last):
    ...
    IndexError: negative index -1 in a kernel
    """

    __slots__ = ("array", "shape")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.shape = array.shape

    def __getitem__(self, index: Any) -> Any:
        if (index if self.array.ndim == 1 else min(index)) < 0:
            raise IndexError(f"negative index {index} in a kernel")
        return self.array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if (index if self.array.ndim == 1 else min(index)) < 0:
            raise IndexError(f"negative index {index} in a kernel")
        self.array[index] = value
