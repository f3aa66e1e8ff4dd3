"""Arrays on their way to kernels and back.

On the emulator and in the simulator the host's arrays are the device's, strides included. On a GPU a host array is
copied, without its gaps, and what a kernel wrote is copied back; an array with ``__cuda_array_interface__`` is used
where it lies, on its own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref_cuda._runtime.detect import SIMULATOR, mode
from pagedref_cuda._runtime.device_arrays import DeviceArray, adopt, keeps_on_device, kept, stream_here
from pagedref_cuda._runtime.simulated import SimulatedArray

DIRECT = True
"""Whether kernels without a GPU take host arrays as they are; a test turns it off to walk the route of a GPU in the
simulator."""


def _on_device(array: Any) -> bool:
    return not isinstance(array, np.ndarray) and hasattr(array, "__cuda_array_interface__")


def _direct() -> bool:
    return DIRECT and (SIMULATOR or mode() == "emulator")


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
    return _lent(np.asarray(array)) if _direct() else cuda.to_device(np.ascontiguousarray(array))


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
    return _lent(np.empty(shape, dtype)) if _direct() else cuda.device_array(shape, np.dtype(dtype))


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
    host: npt.NDArray[Any] = array.copy_to_host()
    settle()
    return host


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
            array[...] = copy.copy_to_host()


_WATCHED: list[tuple[Any, Any, Callable[[npt.NDArray[Any]], None]]] = []


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
    done = cuda.event()
    done.record(stream_here())
    _WATCHED.append((done, flag, complain))
    settle(wait=False)


def settle(*, wait: bool = True) -> None:
    """Look at all flags that are watched.

    Parameters
    ----------
    wait : bool
        Whether for kernels that are not done yet; else their flags stay watched.
    """
    while _WATCHED and (wait or _WATCHED[0][0].query()):
        done, flag, complain = _WATCHED.pop(0)
        done.synchronize()
        complain(flag.copy_to_host())


def stream_of(arguments: tuple[Any, ...]) -> Any:
    """Return the stream that a launch belongs on: that of the operation's inputs, else of the first argument with one.

    Parameters
    ----------
    arguments : tuple
        Of a launch.

    Returns
    -------
    stream or int
        0 is the default stream. Other streams that the arguments name are waited for.
    """
    arrays = [array for array in arguments if hasattr(array, "__cuda_array_interface__")]
    named = [array.stream for array in arrays if getattr(array, "stream", 0)]
    stream = stream_here() or (named[0] if named else 0)
    if not stream:
        return 0
    for other in named:
        if int(other) != int(stream):
            other.synchronize()
    if len(named) < len(arrays):
        cuda.default_stream().synchronize()  # copies from the host were made there
    return stream
