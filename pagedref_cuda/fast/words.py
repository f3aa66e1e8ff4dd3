"""Arrays as the fast kernels see them: one flat array of 32-bit words, and strides counted in words.

A cache may be a view into a larger pool (S23). Where its strides are whole 16-byte pieces, kernels use it where it
lies; a host array that is laid out otherwise is copied first, so that the layout changes no bit of a result (L9).
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref_cuda import _runtime

__all__ = ["CacheWords", "cache_words", "flat_words", "result_words"]

Array = npt.NDArray[Any]
_PIECE = 16


class CacheWords(NamedTuple):
    """A cache as words.

    Attributes
    ----------
    words : array of uint32
        From the first number of the cache to the last one.
    frame, slot, head : int
        Distance of frames, offsets and kv heads, in words.
    """

    words: Any
    frame: int
    slot: int
    head: int


class _Window:
    """Device memory under another shape, as ``__cuda_array_interface__`` says it."""

    def __init__(self, array: Any, words: int) -> None:
        given = array.__cuda_array_interface__
        self.owner = array
        self.__cuda_array_interface__ = {
            **given,
            "shape": (words,),
            "strides": None,
            "typestr": "<u4",
            "descr": [("", "<u4")],
            "mask": None,
        }


def _fits(array: Any, strides: tuple[int, ...]) -> bool:
    """Tell whether rows lie without gaps and begin at whole pieces."""
    ends = strides[-1] == array.dtype.itemsize or array.shape[-1] == 1
    whole = all(stride % _PIECE == 0 and stride >= 0 for stride in strides[:-1])
    return bool(ends and whole and array.shape[-1] * array.dtype.itemsize % _PIECE == 0)


def cache_words(cache: Any) -> CacheWords | None:
    """Return a cache as words.

    Parameters
    ----------
    cache : array (num_frames, page_size, num_kv_heads, dim)
        On the host or on the device; a row is a multiple of 16 bytes.

    Returns
    -------
    CacheWords or None
        None for an array on the device whose strides are no whole pieces: kernels that read number by number take it.
    """
    on_device = hasattr(cache, "__cuda_array_interface__")
    if on_device:
        given = cache.__cuda_array_interface__
        strides = given.get("strides") or _without_gaps(cache)
        if not _fits(cache, strides) or given["data"][0] % _PIECE:
            return None
    else:
        cache = np.asarray(cache)
        if cache.size == 0 or not _fits(cache, cache.strides):
            cache = np.ascontiguousarray(cache)
        strides = cache.strides
    spans = zip(cache.shape, strides, strict=True)
    words = sum((size - 1) * stride for size, stride in spans if size) + cache.dtype.itemsize
    words = words // 4 if cache.size else 0
    if on_device:
        flat = _runtime.readable(_Window(cache, words))
    else:
        base = cache.view(np.uint8) if cache.flags.c_contiguous else cache.view(f"u{cache.dtype.itemsize}")
        view = np.lib.stride_tricks.as_strided(base, (words * 4 // base.itemsize,), (base.itemsize,), writeable=False)
        flat = _runtime.readable(view.view(np.uint32))
    return CacheWords(flat, *(stride // 4 for stride in strides[:3]))


def _without_gaps(array: Any) -> tuple[int, ...]:
    return tuple(array.dtype.itemsize * prod(array.shape[axis + 1 :]) for axis in range(len(array.shape)))


def flat_words(array: Any) -> Any | None:
    """Return an array without gaps as words.

    Parameters
    ----------
    array : array
        On the host or on the device; an even number of bytes that makes whole words.

    Returns
    -------
    array of uint32 or None
        None for an array on the device that has gaps or does not begin at a whole piece.
    """
    if hasattr(array, "__cuda_array_interface__"):
        given = array.__cuda_array_interface__
        if given.get("strides") not in (None, _without_gaps(array)) or given["data"][0] % _PIECE:
            return None
        return _runtime.readable(_Window(array, prod(array.shape) * array.dtype.itemsize // 4))
    return _runtime.readable(np.ascontiguousarray(array).reshape(-1).view(np.uint32))


def result_words(shape: tuple[int, ...], itemsize: int) -> Any:
    """Return room for a result as words, not initialised.

    Parameters
    ----------
    shape : tuple of int
        Of the result.
    itemsize : int
        Bytes of a number.

    Returns
    -------
    array of uint32
        On the device.
    """
    return _runtime.empty((prod(shape) * itemsize // 4,), np.uint32)
