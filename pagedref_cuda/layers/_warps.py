"""What the lanes of a warp and the warps of a thread block find together: sums, and the largest with its column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref_cuda._runtime import device_function

__all__ = ["NO_COLUMN", "block_best", "warp_sum"]

Array = npt.NDArray[Any]

NO_COLUMN = np.int32(2**31 - 1)
"""Behind every column."""

_ALL = 0xFFFFFFFF
_LANES = 32


@device_function
def warp_sum(x: np.float32) -> np.float32:
    """Return the sum over the lanes of a warp, in every lane, always in the same order."""
    x += cuda.shfl_xor_sync(_ALL, x, 16)
    x += cuda.shfl_xor_sync(_ALL, x, 8)
    x += cuda.shfl_xor_sync(_ALL, x, 4)
    x += cuda.shfl_xor_sync(_ALL, x, 2)
    x += cuda.shfl_xor_sync(_ALL, x, 1)
    return x


@device_function
def _warp_best(value: np.float32, column: np.int32) -> tuple[np.float32, np.int32]:
    """Return the largest value over the lanes of a warp and its column, the first of equals."""
    step = 16
    while step > 0:
        other = cuda.shfl_xor_sync(_ALL, value, step)
        there = cuda.shfl_xor_sync(_ALL, column, step)
        if other > value or (other == value and there < column):
            value = other
            column = there
        step //= 2
    return value, column


@device_function
def block_best(value: np.float32, column: np.int32, values: Array, columns: Array) -> tuple[np.float32, np.int32]:
    """Return the largest value of a thread block and its column, the first of equals, in every thread.

    `values` and `columns` are shared, with room for 32 warps; two barriers, the first one before they are written.
    """
    value, column = _warp_best(value, column)
    cuda.syncthreads()
    warp = cuda.threadIdx.x // _LANES
    if cuda.threadIdx.x % _LANES == 0:
        values[warp] = value
        columns[warp] = column
    cuda.syncthreads()
    value = values[0]
    column = columns[0]
    for i in range(1, cuda.blockDim.x // _LANES):
        if values[i] > value or (values[i] == value and columns[i] < column):
            value = values[i]
            column = columns[i]
    return value, column
