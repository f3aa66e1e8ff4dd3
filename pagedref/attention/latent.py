"""The walk over latent pages: one tile holds ``[ckv | kpe]`` of its tokens, and its first columns are the values.

The walk itself is that of :mod:`pagedref.attention.tiles`; here is only what it reads. A tile is copied once from the
cache, widened on the way, and serves as keys and, without another copy, as values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import frame_of_slot, offset_of_slot
from pagedref.attention import parallel
from pagedref.attention.quantize import dequantize
from pagedref.attention.state import AttentionState
from pagedref.attention.tiles import attend_rows, rows_per_tile, tokens_per_tile
from pagedref.mla_call import LatentCall
from pagedref.numerics import accumulator
from pagedref.storage import Storage

__all__ = ["LatentReader", "ValueReader", "attend_latent"]

Array = npt.NDArray[Any]


class LatentReader:
    """Read tiles of keys ``[ckv | kpe]`` from two caches into one buffer.

    Parameters
    ----------
    latent : LatentCall
        The checked call: how the caches are stored, and whether `frames` are slots.
    ckv_cache : array (num_frames, page_size, rank)
        Latents; any strides.
    kpe_cache : array (num_frames, page_size, rope_dim)
        Rotated keys; any strides.
    dtype : dtype
        Accumulator type.
    """

    def __init__(self, latent: LatentCall, ckv_cache: Array, kpe_cache: Array, dtype: np.dtype[Any]) -> None:
        self._sides = (ckv_cache, latent.ckv), (kpe_cache, latent.kpe)
        self._by_token = latent.by_token
        self.tile: Array = np.empty((0, 1, latent.call.dims["head_dim"]), dtype)

    def read(self, frames: Array, stop: int) -> tuple[Array, None]:
        """Return the keys of the first `stop` tokens of some frames (or slots).

        Parameters
        ----------
        frames : array (pages,) of int64
            Frames, or slots where tokens are read one by one; all mapped.
        stop : int
            Live tokens; what lies behind is copied but never computed with.

        Returns
        -------
        array (stop, 1, rank + rope_dim), None
            Valid until the next read; scales are in the numbers already.
        """
        tokens = len(frames) * (1 if self._by_token else self._sides[0][0].shape[1])
        if len(self.tile) < tokens:
            self.tile = np.empty((tokens, *self.tile.shape[1:]), self.tile.dtype)
        first = 0
        for cache, storage in self._sides:
            numbers = self._numbers(cache, storage, frames)  # (pages, tokens of each, 1, dim)
            dim = numbers.shape[-1]
            self.tile[:tokens, :, first : first + dim] = numbers.reshape(tokens, 1, dim)
            first += dim
        return self.tile[:stop], None

    def _numbers(self, cache: Array, storage: Storage, frames: Array) -> Array:
        """Return the numbers of some frames or slots: (pages, tokens of each, 1, dim)."""
        if not self._by_token:
            return dequantize(np.asarray(cache[frames])[:, :, None], storage.form, *storage.of_frames(frames))
        owners, offsets = (part(frames, cache.shape[1]) for part in (frame_of_slot, offset_of_slot))
        scale, zero = (_of_slots(part, owners, offsets) for part in (storage.scale, storage.zero))
        return dequantize(np.asarray(cache[owners, offsets])[:, None, None], storage.form, scale, zero)


def _of_slots(part: Array | None, frames: Array, offsets: Array) -> Array | None:
    """Return scales or zero points of some slots, to broadcast against (slots, 1, 1)."""
    if part is None or part.ndim < 2:
        return part
    return np.asarray(part[frames] if part.ndim == 2 else part[frames, offsets])[:, None]


class ValueReader:
    """Give the values of the tile whose keys were read last: its first columns.

    Parameters
    ----------
    keys : LatentReader
        Where the tile lies.
    rank : int
        Columns that are values.
    """

    def __init__(self, keys: LatentReader, rank: int) -> None:
        self._keys, self._rank = keys, rank

    def read(self, frames: Array, stop: int) -> tuple[Array, None]:
        """Return the values of the first `stop` tokens of the tile.

        Parameters
        ----------
        frames, stop
            The same as in the read of the keys just before.

        Returns
        -------
        array (stop, 1, rank), None
            A view.
        """
        return self._keys.tile[:stop, :, : self._rank], None


def attend_latent(latent: LatentCall, q_nope: Array, q_pe: Array, ckv_cache: Array, kpe_cache: Array) -> AttentionState:
    """Attend with all rows of a checked call.

    Parameters
    ----------
    latent : LatentCall
        The checked call.
    q_nope : array (tokens, num_qo_heads, rank)
        Absorbed queries.
    q_pe : array (tokens, num_qo_heads, rope_dim)
        Rotated queries.
    ckv_cache, kpe_cache : arrays (num_frames, page_size, dim)
        The pool.

    Returns
    -------
    AttentionState
        ``out`` (tokens, num_qo_heads, rank) in the type of `q_nope`, ``lse`` in the accumulator type.
    """
    call = latent.call
    dims, dtype = call.dims, accumulator(q_nope.dtype)
    query = np.concatenate([q_nope, q_pe], axis=-1).astype(dtype, copy=False)  # (tokens, heads, rank + rope_dim)
    tile_tokens = tokens_per_tile(1, dims["head_dim"], dtype.itemsize)
    tile_pages = max(1, tile_tokens // dims["page_size"])
    rows = rows_per_tile(dims["num_qo_heads"], tile_pages * dims["page_size"], dtype.itemsize)
    out = np.empty(q_nope.shape, q_nope.dtype)
    lse = np.empty(q_nope.shape[:2], dtype)

    pieces: list[tuple[int, int, int]] = []
    sizes: list[int] = []
    for sequence, (begin, end) in enumerate(pairwise(call.qo_indptr.tolist())):
        for first in range(0, end - begin, rows):
            pieces.append((sequence, first, min(first + rows, end - begin)))
            sizes.append(int(call.kv_lens[sequence]) * dims["head_dim"] * dtype.itemsize)

    def work(piece: int) -> None:
        sequence, first, stop = pieces[piece]
        keys = LatentReader(latent, ckv_cache, kpe_cache, dtype)
        readers = keys, ValueReader(keys, dims["rank"])
        begin = int(call.qo_indptr[sequence])
        with np.errstate(all="ignore"):  # a thread has its own
            state = attend_rows(call, sequence, first, stop, query[begin + first : begin + stop], readers, tile_pages)
        out[begin + first : begin + stop] = state.out
        lse[begin + first : begin + stop] = state.lse

    parallel.for_each(work, sizes)
    return AttentionState(out, lse)
