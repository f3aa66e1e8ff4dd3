"""Host arrays to the device and back.

In the simulator the host's arrays are the device's, strides included. On a GPU a host array is copied, without its
gaps, and what a kernel wrote is copied back; an array with ``__cuda_array_interface__`` is used where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref_cuda._runtime.detect import SIMULATOR
from pagedref_cuda._runtime.simulated import SimulatedArray

DIRECT = SIMULATOR
"""Whether kernels take host arrays as they are; a test turns it off to walk the route of a GPU in the simulator."""


def _on_device(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__")


def readable(array: Any) -> Any:
    """Return an array that kernels can read.

    Parameters
    ----------
    array : array
        On the host or on the device.

    Returns
    -------
    array
        The same numbers; shares memory with `array` in the simulator and where `array` lies on the device.
    """
    if _on_device(array):
        return cuda.as_cuda_array(array)
    return SimulatedArray(np.asarray(array)) if DIRECT else cuda.to_device(np.ascontiguousarray(array))


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
    """Return an array that kernels can write, not initialised.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : dtype
        Its type.

    Returns
    -------
    array
        On the device.
    """
    return SimulatedArray(np.empty(shape, dtype)) if DIRECT else cuda.device_array(shape, np.dtype(dtype))


def to_host(array: Any) -> npt.NDArray[Any]:
    """Return what a kernel wrote as a NumPy array.

    Parameters
    ----------
    array : array
        From :func:`empty`.

    Returns
    -------
    array
        On the host.
    """
    if isinstance(array, SimulatedArray):
        return array.array
    host: npt.NDArray[Any] = array.copy_to_host()
    return host


@contextmanager
def written(*arrays: Any) -> Iterator[list[Any]]:
    """Lend arrays to kernels that write into them; at the end the host's arrays hold the result.

    Parameters
    ----------
    *arrays : array
        On the host (any strides) or on the device.

    Yields
    ------
    list of array
        What to pass to the kernels, in the same order.
    """
    lent = [readable(array) for array in arrays]
    yield lent
    for array, copy in zip(arrays, lent, strict=True):
        if not _on_device(array) and not isinstance(copy, SimulatedArray):
            array[...] = copy.copy_to_host()
