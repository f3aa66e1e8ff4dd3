"""Arrays of other libraries in, arrays of the same out: torch, CuPy, whatever has an interface."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from pagedref_cuda._runtime.device_arrays import FLOATS, DeviceArray, adopt
from pagedref_cuda._runtime.streams import ON_STREAM

__all__ = ["in_kind"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _everywhere(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each item of a list or (named) tuple."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_everywhere(change, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_everywhere(change, item) for item in value)
    return change(value)


def _to_torch(array: Any) -> Any:
    """Return an array of ours as a torch tensor that shares its memory."""
    torch = sys.modules["torch"]
    name = array.dtype.name
    if name in FLOATS:
        array = array.view(np.int16 if array.dtype.itemsize == 2 else np.uint8)
    tensor = torch.as_tensor(array, device="cuda") if isinstance(array, DeviceArray) else torch.from_numpy(array)
    return tensor.view(getattr(torch, name)) if name in FLOATS else tensor


def _kind(array: Any) -> str:
    """Name the library that an array is of."""
    return type(array).__module__.split(".")[0]


def _give_back(kind: str) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        if isinstance(value, DeviceArray) and value.given is not None:
            return value.given
        if not isinstance(value, np.ndarray | DeviceArray):
            return value
        if kind == "torch":
            return _to_torch(value)
        if kind == "cupy" and isinstance(value, DeviceArray):
            return sys.modules["cupy"].asarray(value)
        return value

    return change


def in_kind(operation: Function) -> Function:
    """Let an operation take arrays of other libraries, and return arrays of the same.

    Parameters
    ----------
    operation : callable
        Takes and returns NumPy arrays and device arrays.

    Returns
    -------
    callable
        With the same signature. Where the first array of another library lies on the device, so do the results.
    """

    @wraps(operation)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        foreign: list[Any] = []

        def take(value: Any) -> Any:
            ours = adopt(value)
            if ours is not value or isinstance(ours, DeviceArray):
                foreign.append((value, ours))
            return ours

        arguments = tuple(_everywhere(take, value) for value in arguments)
        keywords = {name: _everywhere(take, value) for name, value in keywords.items()}
        if not foreign:
            return operation(*arguments, **keywords)
        on_device = [(value, ours) for value, ours in foreign if isinstance(ours, DeviceArray)]
        token = ON_STREAM.set(on_device[0][1].stream_handle if on_device else None)
        try:
            result = operation(*arguments, **keywords)
        finally:
            ON_STREAM.reset(token)
        return _everywhere(_give_back(_kind((on_device or foreign)[0][0])), result)

    return wrapped  # type: ignore[return-value]
