"""Room on a GPU that is used again: giving memory back to the driver waits for all that runs.

What an operation needs for itself comes from here, and goes back when nothing on the host names it any more. It is
handed out again on the same stream only, where the next use comes after the last one.
"""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
from numba import cuda

from pagedref_cuda._runtime.streams import handle_of, stream_here

__all__ = ["LARGEST", "room"]

LARGEST = 16 << 20
"""Bytes; larger arrays come from the driver and go back to it."""
_SMALLEST = 512

_FREE: dict[tuple[int, int, int], list[Any]] = defaultdict(list)
"""By device, stream and size."""


class _Lease:
    """Memory that goes back to the free list with the last array that names it."""

    def __init__(self, key: tuple[int, int, int]) -> None:
        self.home = _FREE[key]
        try:
            self.memory = self.home.pop()
        except IndexError:
            self.memory = _new(key[2])

    def __del__(self) -> None:
        memory = getattr(self, "memory", None)
        if memory is not None:
            self.home.append(memory)


def _new(size: int) -> Any:
    """Return memory from the driver; what lies free here is given up first if there is none."""
    driver: Any = import_module("numba.cuda.cudadrv.driver")
    try:
        return cuda.device_array(size, np.uint8)
    except driver.CudaAPIError:
        for waiting in _FREE.values():
            waiting.clear()
        cuda.current_context().deallocations.clear()
        return cuda.device_array(size, np.uint8)


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return an array on the stream of the running operation, not initialised.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : dtype
        Its type.

    Returns
    -------
    array
        Numba's.
    """
    stream = stream_here()
    plain = stream if handle_of(stream) else 0
    num_bytes = prod(shape) * dtype.itemsize
    if not 0 < num_bytes <= LARGEST:
        return cuda.device_array(shape, dtype, stream=plain)
    driver: Any = import_module("numba.cuda.cudadrv.driver")
    context = cuda.current_context()
    size = max(_SMALLEST, 1 << (num_bytes - 1).bit_length())
    lease = _Lease((context.device.id, handle_of(stream), size))
    pointer = driver.binding.CUdeviceptr(lease.memory.device_ctypes_pointer.value)
    data = driver.MemoryPointer(context, pointer, size=num_bytes, owner=lease)
    array: Any = import_module("numba.cuda.cudadrv.devicearray").DeviceNDArray
    return array(shape, _strides(shape, dtype.itemsize), dtype, stream=plain, gpu_data=data)


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of an array without gaps."""
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))
