"""Streams of a GPU: on which an operation runs, what waits for what, and when the host looks.

An operation runs on the stream of its first device array; what it copies there and what it makes there belongs to that
stream. Other streams whose arrays it touches are ordered before and after it by events, which the host does not wait
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

__all__ = ["ON_STREAM", "copied", "handle_of", "named_stream", "ordered", "settle", "stream_here", "watch_event"]

ON_STREAM: ContextVar[int | None] = ContextVar("pagedref_cuda_stream_of_results", default=None)
"""Handle of the stream of the running operation; None where no input is a device array."""

Complain = Callable[[npt.NDArray[Any]], None]
_WATCHED: list[tuple[Any, npt.NDArray[np.int32], Complain]] = []
_SEATS: list[npt.NDArray[np.int32]] = []
"""Pinned memory of one flag each, that waits for the next one."""


@cache
def named_stream(handle: int | None) -> Any:
    """Return the stream of a handle; with numba's 0 a copy would wait for it.

    Parameters
    ----------
    handle : int or None
        0 and None are the default stream.

    Returns
    -------
    stream
        Numba's.
    """
    return cuda.external_stream(handle) if handle else cuda.default_stream()


def handle_of(stream: Any) -> int:
    """Return the handle of a stream.

    Parameters
    ----------
    stream : stream or int
        Numba's; 0 is the default stream.

    Returns
    -------
    int
    """
    return int(stream.handle) if stream else 0


def stream_here() -> Any:
    """Return the stream of the running operation: that of its first device array.

    Returns
    -------
    stream
        Numba's.
    """
    return named_stream(ON_STREAM.get())


def copied(array: Any) -> npt.NDArray[Any]:
    """Copy an array from the device when its stream is done with it, and look at the flags of what came before.

    Parameters
    ----------
    array : array
        Numba's.

    Returns
    -------
    array
        On the host.
    """
    stream = named_stream(handle_of(array.stream))
    host: npt.NDArray[Any] = array.copy_to_host(stream=stream)
    stream.synchronize()  # such a copy may return before it is made
    settle()
    return host


def _handles(arguments: Any) -> Iterator[int]:
    """Give the streams of device arrays, also of those inside tuples; empty ones have none."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _handles(argument)
        elif hasattr(argument, "__cuda_ndarray__") and argument.size:
            yield handle_of(argument.stream)


def _after(stream: Any, other: Any) -> None:
    """Let a stream wait for what another one has been given so far."""
    event = cuda.event(timing=False)
    event.record(other)
    event.wait(stream)


@contextmanager
def ordered(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Choose the stream of a launch, after the others that its arrays belong to, and those after it.

    Parameters
    ----------
    arguments : tuple
        Of the launch; numba's arrays, and tuples of them.

    Yields
    ------
    stream
        That of the running operation, else the first that an array names.
    """
    handles = dict.fromkeys(_handles(arguments))
    here = ON_STREAM.get()
    if here is None:
        here = next((handle for handle in handles if handle), 0)
    stream = named_stream(here)
    others = [named_stream(handle) for handle in handles if handle != here]
    for other in others:
        _after(stream, other)
    yield stream
    for other in others:
        _after(other, stream)


def watch_event(flag: Any, complain: Complain) -> None:
    """Look at a flag when the kernels so far are done: at a later call, or when a result is copied to the host.

    Parameters
    ----------
    flag : array (1,) of int32
        Numba's.
    complain : callable
        Gets the flag as a NumPy array; raises if it says so.
    """
    stream, done = stream_here(), cuda.event(timing=False)
    host = _SEATS.pop() if _SEATS else cuda.pinned_array(1, np.int32)
    flag.copy_to_host(host, stream=stream)  # now, so that looking later waits for nothing that comes after
    done.record(stream)
    _WATCHED.append((done, host, complain))
    settle(wait=False)


def settle(*, wait: bool = True) -> None:
    """Look at all flags that are watched.

    Parameters
    ----------
    wait : bool
        Whether for kernels that are not done yet; else their flags stay watched.
    """
    while _WATCHED and (wait or _WATCHED[0][0].query()):
        done, host, complain = _WATCHED.pop(0)
        done.synchronize()
        raised = np.array(host)
        _SEATS.append(host)
        complain(raised)
