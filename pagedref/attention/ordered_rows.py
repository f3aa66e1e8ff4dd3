"""Query rows in ordered arithmetic: what they make of a run of tiles, from scores to a node of the tree.

The steps 1 to 6 of :mod:`pagedref.attention.ordered`, on all rows and heads at once. Only tokens that are live, and
visible to one of the rows, are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages, offset_of, page_of
from pagedref.attention.elementary import ordered_exp, ordered_tanh
from pagedref.attention.quantize import dequantize
from pagedref.attention.tree import TILE, Partial, merge_tiles, tree_products, tree_sum
from pagedref.call import AttentionCall
from pagedref.storage import Storage

__all__ = ["OrderedRows"]

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]

_INFINITY, _ZERO = np.float32(np.inf), np.float32(0)
_HIGH_BITS = np.int32(-4096)


def _two_parts(number: float) -> tuple[np.float32, np.float32]:
    """Return a number as the sum of two float32."""
    with np.errstate(over="ignore"):
        high = np.float32(number)
    return high, np.float32(number - float(high)) if np.isfinite(high) else _ZERO


def _by_dim(tokens: Float32) -> Float32:
    """Return tokens (TILE, tiles, num_kv_heads, dim) as (dim, num_kv_heads, TILE * tiles), the keys side by side."""
    *_, heads, dim = tokens.shape
    flat = tokens.reshape(-1, heads, dim)
    if heads * dim < 256:
        return np.ascontiguousarray(flat.transpose(2, 1, 0))
    columns: Float32 = np.empty((heads, dim, len(flat) + 16), np.float32)[:, :, : len(flat)]  # 16: no power of two
    for key, token in enumerate(flat):  # three times as fast as one transposition
        columns[:, :, key] = token
    return columns.transpose(1, 0, 2)


class OrderedRows:
    """Some query rows of one sequence, and how they see a run of tiles.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    sequence, first_row, stop_row : int
        A sequence and some of its query rows.
    query : array (rows, num_qo_heads, head_dim)
        Those rows.

    Attributes
    ----------
    first_tile, stop_tile : int
        Tiles in which one of the rows may see a key.
    """

    def __init__(self, call: AttentionCall, sequence: int, first_row: int, stop_row: int, query: Array) -> None:
        dims, options = call.dims, call.options
        self._call, self._sequence, self._slice = call, sequence, slice(first_row, stop_row)
        self._kv_len = int(call.kv_lens[sequence])
        self._rows, self._heads = stop_row - first_row, dims["num_kv_heads"]
        query, (high, low) = query.astype(np.float32, copy=False), _two_parts(options.sm_scale)
        scaled: Any = query * high + query * low
        grouped: Float32 = scaled.reshape(self._rows, self._heads, call.group_size, dims["head_dim"])
        by_dim = grouped.transpose(3, 1, 0, 2).reshape(dims["head_dim"], self._heads, -1, 1)
        self._scaled: Float32 = np.ascontiguousarray(by_dim)  # (head_dim, num_kv_heads, rows * group, 1)
        self._positions = call.positions(sequence)[first_row:stop_row]
        self._start, self._stop = options.intervals(self._positions, self._kv_len)
        live = self._start < self._stop
        pages = call.visible_pages(sequence, first_row, stop_row)
        self._visible = np.zeros(int(num_pages(self._kv_len, dims["page_size"])), bool)
        self._visible[pages] = True
        self.first_tile = int(page_of(self._start[live].min(), TILE)) if live.any() else 0
        self.stop_tile = int(num_pages(self._stop[live].max(), TILE)) if live.any() else 0

    def _read(self, cache: Array, storage: Storage, keys: IndexArray, readable: Flags) -> Float32:
        """Return the tokens at positions `keys` (TILE, tiles), 0 where there is none that a row may see."""
        page_size = self._call.dims["page_size"]
        live = keys[readable]
        frames = self._call.kv_indices[self._call.kv_indptr[self._sequence] + page_of(live, page_size)]
        offsets = offset_of(live, page_size)
        found = cache[frames, offsets]  # (live, num_kv_heads, dim)
        if storage.form.dtype != np.float32 or not storage.plain:
            scale, zero = (
                part if part is None or part.ndim < 2 else part[frames] if part.ndim == 2 else part[frames, offsets]
                for part in (storage.scale, storage.zero)
            )
            found = dequantize(found, storage.form, scale, zero).astype(np.float32, copy=False)
        if readable.all():
            every: Float32 = found.reshape(*keys.shape, *found.shape[1:])
            return every
        tokens = np.zeros((*keys.shape, *found.shape[1:]), np.float32)  # (TILE, tiles, num_kv_heads, dim)
        tokens[readable] = found
        return tokens

    def _modify(self, scores: Float32, keys: IndexArray) -> Float32:
        """Apply softcap and bias to scores (num_kv_heads, rows, group, TILE * tiles)."""
        options = self._call.options
        if options.softcap is not None and np.isfinite(cap := np.float32(options.softcap)):
            scores = cap * ordered_tanh(scores / cap)
        if options.alibi_slopes is not None:
            slopes = options.alibi_slopes.astype(np.float32).reshape(self._heads, 1, -1, 1)
            high: Any = (slopes.view(np.int32) & _HIGH_BITS).view(np.float32)
            distance = (keys.reshape(-1) - self._positions[:, None]).astype(np.float32)[None, :, None, :]
            scores = (scores + (slopes - high) * distance) + high * distance
        return scores

    def _seen(self, keys: IndexArray) -> Flags:
        """Return who sees which key: (rows, TILE * tiles)."""
        flat = keys.reshape(-1)
        seen: Flags = (flat >= self._start[:, None]) & (flat < self._stop[:, None])
        if self._call.masks:
            mask = self._call.masks[self._sequence][self._slice]
            seen &= mask[:, np.minimum(flat, self._kv_len - 1)]
        return seen

    def node(self, k_cache: Array, v_cache: Array, first: int, count: int) -> Partial:
        """Return the node of the tree that covers the tiles ``first .. first + count - 1``.

        Parameters
        ----------
        k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
            The pool.
        first, count : int
            `count` is a power of two that divides `first`.

        Returns
        -------
        Partial
            Of shape (num_kv_heads, rows * group_size).
        """
        keys = TILE * (first + np.arange(count)) + np.arange(TILE)[:, None]  # (TILE, tiles)
        pages = page_of(np.minimum(keys, self._kv_len - 1), self._call.dims["page_size"])
        readable = (keys < self._kv_len) & self._visible[pages]
        tokens = self._read(k_cache, self._call.keys, keys, readable)
        scores = tree_products(self._scaled, _by_dim(tokens)[:, :, None, :])  # (num_kv_heads, rows * group, keys)
        group = self._call.group_size
        scores = self._modify(scores.reshape(self._heads, self._rows, group, -1), keys)
        seen = self._seen(keys)
        if not seen.all():
            scores = np.where(seen[None, :, None, :], scores, -_INFINITY)
        scores = scores.reshape(self._heads, -1, TILE, count)  # (num_kv_heads, rows * group, TILE, tiles)
        top = scores.max(axis=2)
        weights = ordered_exp(scores - np.where(np.isneginf(top), _ZERO, top)[:, :, None])
        weights = np.ascontiguousarray(weights.transpose(2, 3, 0, 1))  # (TILE, tiles, num_kv_heads, rows * group)
        tokens = self._read(v_cache, self._call.values, keys, readable)
        values = tokens[:, :, :, None]  # (TILE, tiles, num_kv_heads, 1, v_head_dim)
        if seen.all() or np.isfinite(values).all():
            products = tree_products(weights[..., None], values)
        else:  # a hidden key contributes nothing, whatever it holds (S7)
            lanes = np.repeat(seen, group, axis=0).T.reshape(TILE, count, 1, -1, 1)
            products = tree_sum(np.where(lanes, weights[..., None] * values, _ZERO))
        return merge_tiles(Partial(np.ascontiguousarray(top.transpose(2, 0, 1)), tree_sum(weights), products))
