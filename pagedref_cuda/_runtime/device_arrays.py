"""Arrays of other libraries, and arrays that stay on the device: taken without a copy, given back in kind.

A :class:`DeviceArray` knows where its numbers lie, and how; what it does with that (views, slices) NumPy does, on an
array that points at the same address and is never read. Without a GPU the device's memory is the host's, so that the
same code is walked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref.errors import ContractError
from pagedref_cuda._runtime.detect import mode
from pagedref_cuda._runtime.streams import ON_STREAM, copied, ordered

__all__ = ["FLOATS", "DeviceArray", "adopt", "keeps_on_device", "kept", "to_device"]

Function = TypeVar("Function", bound=Callable[..., Any])

EMULATED = "pagedref_emulator"
"""Key of an interface whose pointer is a host's, for use where there is no GPU."""

_LEGACY_STREAM = 1
_HOST_DEVICES = (1, 3, 11)  # of DLPack: memory of the host, also where it is pinned for CUDA or ROCm
_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}
FLOATS: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


class _Interface:
    """Lets NumPy make an array of an address; nothing is read."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


class DeviceArray:
    """An array in the device's memory, seen from the host: shape, type, strides, views, slices, copies; no arithmetic.

    Parameters
    ----------
    shadow : array
        NumPy array at the same address; never read where there is a GPU.
    owner : object
        Keeps the memory alive.
    stream : int
        Handle of the stream that the numbers are ready on; 0 is the default one.
    given : object, optional
        What the caller passed, if this is all of it.

    Examples
    --------
    >>> import pagedref_cuda
    >>> x = pagedref_cuda.to_device(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    >>> x.shape, x[1].shape, np.asarray(x[1])
    ((2, 3), (3,), array([3., 4., 5.], dtype=float32))
    """

    __slots__ = ("given", "owner", "shadow", "stream_handle")

    def __init__(self, shadow: npt.NDArray[Any], owner: Any, stream: int = 0, given: Any = None) -> None:
        self.shadow = shadow
        self.owner = owner
        self.stream_handle = stream
        self.given = given

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "strides", "ndim", "size", "itemsize", "nbytes", "flags"):
            return getattr(self.shadow, name)
        raise AttributeError(f"DeviceArray has no {name}")

    def __len__(self) -> int:
        return len(self.shadow)

    def __getitem__(self, index: Any) -> DeviceArray:
        parts = index if isinstance(index, tuple) else (index,)
        if not all(part is None or part is ... or isinstance(part, int | np.integer | slice) for part in parts):
            raise ContractError(
                f"DeviceArray: index is not basic, got {index!r}, need integers and slices (they share memory)"
            )
        full = parts if any(part is ... for part in parts) else (*parts, ...)  # an array also where all axes are taken
        return DeviceArray(self.shadow[full], self.owner, self.stream_handle)

    def __setitem__(self, index: Any, value: Any) -> None:
        part = self[index]
        if mode() != "gpu":
            part.shadow[...] = value.shadow if isinstance(value, DeviceArray) else value
            return
        target = part.argument()
        if not isinstance(value, DeviceArray):
            value = np.broadcast_to(np.asarray(value, part.dtype), part.shape)
        if part.ndim and not part.flags.c_contiguous:  # the driver copies what has no gaps
            for i in range(part.shape[0]):
                part[i] = value[i]
            return
        source = value.argument() if isinstance(value, DeviceArray) else np.array(value, order="C").view(target.dtype)
        with ordered((target, source)) as stream:
            target.copy_to_device(source, stream=stream)

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Return the same bytes as another type."""
        return DeviceArray(self.shadow.view(dtype), self.owner, self.stream_handle)

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return the same numbers in another shape; a copy is refused."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        try:
            moved = self.shadow.reshape(wanted, copy=False)
        except ValueError as error:
            raise ContractError(
                f"DeviceArray: reshape needs a copy, got shape {self.shadow.shape} with strides {self.shadow.strides}, "
                f"need one that can be seen as {wanted}"
            ) from error
        return DeviceArray(moved, self.owner, self.stream_handle)

    def astype(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a NumPy copy on the host, of this type; how indices are checked before a launch."""
        return np.asarray(self).astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        shadow = self.shadow
        words = shadow.dtype if shadow.dtype.isbuiltin == 1 else _WORDS[shadow.itemsize]
        interface = {
            "shape": shadow.shape,
            "strides": shadow.strides,
            "typestr": words.str,
            "data": (shadow.__array_interface__["data"][0] if shadow.size else 0, not shadow.flags.writeable),
            "version": 3,
            "stream": self.stream_handle or _LEGACY_STREAM,
        }
        return interface if mode() == "gpu" else {**interface, EMULATED: True}

    def argument(self) -> Any:
        """Return what a kernel takes: numba's device array, or NumPy's where there is no GPU."""
        if mode() != "gpu":
            return self.shadow
        interface = {**self.__cuda_array_interface__, "stream": self.stream_handle or None}
        return cuda.from_cuda_array_interface(interface, owner=self, sync=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if mode() != "gpu":
            host = self.shadow.copy()
        elif min(self.strides, default=0) < 0:  # the driver copies upwards only
            turned = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in self.strides)
            host = np.asarray(self[turned])[turned]
        else:
            host = copied(self.argument()).view(self.shadow.dtype)
        return host if dtype is None else host.astype(dtype)


def to_device(array: npt.ArrayLike) -> DeviceArray:
    """Copy an array to the device, where operations read it without a further copy and leave their results.

    Parameters
    ----------
    array : array
        On the host.

    Returns
    -------
    DeviceArray
        Has ``__cuda_array_interface__``; ``numpy.asarray`` copies it back.
    """
    host = np.array(array, order="C")
    if mode() != "gpu":
        return DeviceArray(host, host)
    words = host if host.dtype.isbuiltin == 1 else host.view(_WORDS[host.itemsize])
    copied = cuda.to_device(words)
    return _of_interface(copied, copied.__cuda_array_interface__, host.dtype, 0)


def _of_interface(given: Any, interface: dict[str, Any], dtype: np.dtype[Any] | None, stream: int) -> DeviceArray:
    """Return an array at the address that an interface names, as `dtype` if it says less than that."""
    pointer, readonly = interface["data"]
    fields = {key: interface.get(key) for key in ("shape", "strides", "typestr")}
    shadow = np.asarray(_Interface({**fields, "data": (pointer or 256, readonly), "version": 3}))
    return DeviceArray(shadow if dtype is None else shadow.view(dtype), given, stream, given)


def _name_of_torch_type(array: Any) -> str:
    """Return the name of the type of a torch tensor; empty for anything else."""
    torch = sys.modules.get("torch")
    return str(array.dtype).removeprefix("torch.") if torch and isinstance(array, torch.Tensor) else ""


def adopt(array: Any) -> Any:
    """Return an array of another library as one of ours, without a copy; anything else as it is.

    Parameters
    ----------
    array : object
        Has ``__cuda_array_interface__`` (torch, CuPy, Numba), or ``__dlpack__`` and lies on the host.

    Returns
    -------
    object
        DeviceArray, NumPy array, or what was given.

    Raises
    ------
    ContractError
        It lies on a GPU, but kernels run elsewhere.
    """
    if isinstance(array, np.ndarray | DeviceArray | int | float | str | np.generic | type(None)):
        return array
    name = _name_of_torch_type(array)
    dtype, words, stream = None, array, 0
    if name:
        torch = sys.modules["torch"]
        words = array.detach()
        if name in FLOATS:
            dtype = FLOATS[name]
            words = words.view(torch.int16 if dtype.itemsize == 2 else torch.uint8)
        if array.is_cuda:
            stream = torch.cuda.current_stream(array.device).cuda_stream or _LEGACY_STREAM
    interface = getattr(words, "__cuda_array_interface__", None)
    if interface is not None:
        if mode() != "gpu" and not interface.get(EMULATED):
            raise ContractError(
                f"pagedref_cuda: an array lies on a GPU, got a {type(array).__name__} while the {mode()} runs, "
                "need host arrays or PAGEDREF_CUDA=gpu"
            )
        return _of_interface(array, interface, dtype, stream or interface.get("stream") or 0)
    if hasattr(words, "__dlpack__"):
        if words.__dlpack_device__()[0] not in _HOST_DEVICES:
            raise ContractError(
                f"pagedref_cuda: an array on a device cannot be taken by DLPack, got a {type(array).__name__}, "
                "need one with __cuda_array_interface__"
            )
        host = np.from_dlpack(words)
        return host if dtype is None else host.view(dtype)
    return array


def keeps_on_device() -> bool:
    """Tell whether results of the running operation stay on the device.

    Returns
    -------
    bool
        True where an input was a device array.
    """
    return ON_STREAM.get() is not None


def kept(array: Any) -> DeviceArray:
    """Return what a kernel wrote as an array that stays on the device.

    Parameters
    ----------
    array : array
        NumPy's where there is no GPU, else numba's.

    Returns
    -------
    DeviceArray
        On the stream of the operation's inputs.
    """
    stream = ON_STREAM.get() or 0
    if isinstance(array, np.ndarray):
        return DeviceArray(array, array, stream)
    result = _of_interface(array, array.__cuda_array_interface__, None, stream)
    result.given = None
    return result
