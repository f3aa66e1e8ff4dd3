"""Arrays on their way to kernels and back.

On the emulator and in the simulator the host's arrays are the device's, strides included. On a GPU a host array is
copied, without its gaps, and what a kernel wrote is copied back, both on the stream of the operation; an array with
``__cuda_array_interface__`` is used where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref_cuda._runtime.detect import SIMULATOR, mode
from pagedref_cuda._runtime.device_arrays import DeviceArray, adopt, keeps_on_device, kept
from pagedref_cuda._runtime.room import LARGEST, room
from pagedref_cuda._runtime.simulated import SimulatedArray
from pagedref_cuda._runtime.streams import copied, named_stream, stream_here, watch_event


def _on_device(array: Any) -> bool:
    return not isinstance(array, np.ndarray) and hasattr(array, "__cuda_array_interface__")


def _direct() -> bool:
    """Tell whether kernels take host arrays as they are."""
    return mode() != "gpu"


def _lent(array: npt.NDArray[Any]) -> Any:
    """Return a host array as kernels take it where there is no GPU."""
    return SimulatedArray(array) if SIMULATOR else array


def readable(array: Any) -> Any:
    """Return an array that kernels can read.

    Parameters
    ----------
    array : array
        On the host or on the device.

    Returns
    -------
    array
        The same numbers; shares memory with `array` where there is no GPU, and where `array` lies on the device.
    """
    if _on_device(array) and mode() != "gpu":
        array = adopt(array)
    if isinstance(array, DeviceArray):
        return _lent(array.argument()) if _direct() else array.argument()
    if _on_device(array):
        return cuda.as_cuda_array(array, sync=False)
    return _lent(np.asarray(array)) if _direct() else _sent(array)


def _sent(array: Any) -> Any:
    """Copy a host array to the device, on the stream of the operation; only for a large one it is waited for."""
    stream = stream_here()
    array = np.asarray(array)
    small = array.nbytes <= LARGEST
    # A small one is copied first: memory of the caller may be pinned, and is then read later.
    host = np.array(array, order="C") if small else np.ascontiguousarray(array)
    target = room(host.shape, host.dtype)
    target.copy_to_device(host, stream=stream)
    if not small:
        stream.synchronize()
    return target


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
    if _direct():
        return _lent(np.empty(shape, dtype))
    return room(shape, np.dtype(dtype))


def fetch(array: Any) -> npt.NDArray[Any]:
    """Return what a kernel wrote as a NumPy array.

    Parameters
    ----------
    array : array
        From :func:`empty` or :func:`readable`.

    Returns
    -------
    array
        On the host.
    """
    if isinstance(array, SimulatedArray):
        return array.array
    if isinstance(array, np.ndarray | DeviceArray):
        return np.asarray(array)
    return copied(array)


def to_host(array: Any) -> Any:
    """Return what a kernel wrote as the caller gets it: on the host, or on the device if an input was there.

    Parameters
    ----------
    array : array
        From :func:`empty`.

    Returns
    -------
    array
        NumPy's, or a DeviceArray.
    """
    return kept(array.array if isinstance(array, SimulatedArray) else array) if keeps_on_device() else fetch(array)


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
        on_host = isinstance(array, np.ndarray)
        if on_host and not isinstance(copy, SimulatedArray | np.ndarray):
            array[...] = copied(copy)


def watch(flag: Any, complain: Callable[[npt.NDArray[Any]], None]) -> None:
    """Look at a flag that kernels set, without waiting for them.

    Where there is no GPU that is now. On a GPU it is when the kernels so far are done: at a later call, or when a
    result is copied to the host.

    Parameters
    ----------
    flag : array
        From :func:`empty` or :func:`readable`.
    complain : callable
        Gets the flag as a NumPy array; raises if it says so.
    """
    if _direct():
        complain(fetch(flag))
        return
    watch_event(flag, complain)


def pinned(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return host memory that a GPU copies from and to without the processor; plain memory where there is none.

    Parameters
    ----------
    num_bytes : int
        How much.

    Returns
    -------
    array (num_bytes,) of uint8
        Not initialised.
    """
    memory: npt.NDArray[np.uint8] = (
        cuda.pinned_array(num_bytes, np.uint8) if mode() == "gpu" else np.empty(num_bytes, np.uint8)
    )
    return memory


def move_pinned(pairs: list[tuple[DeviceArray, npt.NDArray[Any]]], *, back: bool) -> None:
    """Copy between parts of device arrays and parts of pinned memory: all are queued, then waited for.

    Parameters
    ----------
    pairs : list of (DeviceArray, array)
        Of one form, without gaps.
    back : bool
        From the device to the host.
    """
    waiting: dict[int, Any] = {}
    for part, host in pairs:
        if mode() != "gpu":
            (host if back else part.shadow)[...] = part.shadow if back else host
            continue
        array = part.argument()
        stream = waiting.setdefault(part.stream_handle, named_stream(part.stream_handle))
        if back:
            array.copy_to_host(host, stream=stream)
        else:
            array.copy_to_device(host, stream=stream)
    for stream in waiting.values():
        stream.synchronize()
