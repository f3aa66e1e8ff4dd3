"""Reading the pages of a cache, a tile at a time: gathered, widened and ready to be multiplied."""

from __future__ import annotations

from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pagedref.attention.quantize import rescaled, widen
from pagedref.storage import Storage

__all__ = ["Reader", "TileReader", "scratch_bytes"]

Array = npt.NDArray[Any]


def _as_frames(cache: Array) -> tuple[Array, int] | None:
    """Return a contiguous view in which frame f is entry ``f * step``, if the strides allow one (S23).

    All layers in one buffer, or K beside V, make a frame axis whose stride is a whole number of pages; NumPy's ``take``
    would copy such a cache as a whole.
    """
    if cache.flags.c_contiguous:
        return cache, 1
    page = cache[0]
    stride = cache.strides[0]
    if not page.flags.c_contiguous or page.nbytes == 0 or stride <= 0 or stride % page.nbytes:
        return None
    step = stride // page.nbytes
    shape = ((cache.shape[0] - 1) * step + 1, *cache.shape[1:])
    words = cache.view(f"u{cache.itemsize}")  # `as_strided` does not know every type
    view = np.lib.stride_tricks.as_strided(words, shape, (page.nbytes, *cache.strides[1:]), writeable=False)
    return view.view(cache.dtype), step


class Reader(Protocol):
    """What a walk over pages needs of keys or values; :class:`TileReader` is the usual one."""

    def read(self, frames: Array, stop: int) -> tuple[Array, Array | None]:
        """Return the first `stop` tokens of some frames, (stop, num_kv_heads, dim), and a factor of each or None."""
        ...


class TileReader:
    """Read the pages of one cache, a tile at a time, into a buffer that stays in the cache of a core.

    Parameters
    ----------
    cache : array (num_frames, page_size, num_kv_heads, dim)
        Keys or values; any strides.
    storage : Storage
        The stored form.
    dtype : dtype
        Accumulator type.
    scratch : array of bytes
        At least :func:`scratch_bytes` long; keys and values may share it, one after the other.
    """

    def __init__(self, cache: Array, storage: Storage, dtype: np.dtype[Any], scratch: Array) -> None:
        self._cache = cache
        self._storage = storage
        self._dtype = dtype
        self._scratch = scratch
        self._buffer: Array | None = None
        self._frames = _as_frames(cache)
        form = storage.form
        self._narrow = form.dtype != dtype and form.kind not in ("float32", "float64")
        self._zeroed = storage.zero is not None or form.granularity == "group"

    def read(self, frames: Array, stop: int) -> tuple[Array, Array | None]:
        """Return the first `stop` tokens of the pages that lie in `frames`, one page after the other.

        Parameters
        ----------
        frames : array (pages,) of int64
            All mapped.
        stop : int
            Live tokens of these pages; what lies behind is copied but never computed with.

        Returns
        -------
        tokens : array (stop, num_kv_heads, dim)
            In the accumulator type; valid until the next read into the same buffer.
        scale : array (stop, num_kv_heads) of float32 or None
            One factor of each token, where a scale covers a frame or a slot; what covers more is left to the caller.
        """
        buffer = self._gather(frames)
        if self._narrow:
            half = len(self._scratch) // 2
            count = buffer.size * (2 if self._storage.form.kind == "int4" else 1)
            wide = self._scratch[half : half + 4 * count].view(np.float32).reshape(*buffer.shape[:-1], -1)
            buffer = widen(buffer, self._storage.form, wide)
        if self._zeroed:
            buffer = rescaled(buffer, self._storage.form, *self._storage.of_frames(frames))
        tokens = buffer.reshape(-1, *buffer.shape[2:])[:stop]  # (stop, num_kv_heads, dim)
        scale = self._storage.of_tokens(frames, buffer.shape[1])[:stop] if self._storage.by_token else None
        return tokens.astype(self._dtype, copy=False), scale

    def _gather(self, frames: Array) -> Array:
        """Copy frames side by side, as they are stored."""
        if self._buffer is None or len(self._buffer) != len(frames):  # the last tile alone is shorter
            shape = (len(frames), *self._cache.shape[1:])
            size = prod(shape) * self._cache.itemsize
            self._buffer = self._scratch[:size].view(self._cache.dtype).reshape(shape)
        buffer = self._buffer
        if self._frames is not None:
            view, step = self._frames
            view.take(frames * step if step != 1 else frames, axis=0, out=buffer, mode="clip")  # clip: no hidden copy
        else:
            for page, frame in enumerate(frames):
                buffer[page] = self._cache[frame]
        return buffer


def scratch_bytes(caches: tuple[Array, Array], sides: tuple[Storage, Storage], tile_pages: int) -> int:
    """Return the bytes of buffer that a tile takes: as stored, and again in float32 where that is wider.

    Parameters
    ----------
    caches : pair of arrays
        Keys and values.
    sides : pair of Storage
        Their stored forms.
    tile_pages : int
        Pages in a tile.

    Returns
    -------
    int
    """
    most = 0
    for cache, side in zip(caches, sides, strict=True):
        numbers = tile_pages * prod(cache.shape[1:])
        if side.form.kind in ("float32", "float64"):
            most = max(most, numbers * cache.itemsize)
        else:
            most = max(most, 2 * 4 * numbers * (2 if side.form.kind == "int4" else 1))
    return most
