"""The one idea of the fast path: walk the pages of a sequence in tiles that fit the cache of a core, with a running
softmax, so that keys and values are read from memory once and the whole cache is never gathered.

For each tile: scores, new maximum, weights, and the three running quantities rescaled (Milakov and Gimelshein 2018,
algorithm 3). A row is held as ``(num_kv_heads, rows * group_size, ...)``: all queries that share a kv head are one
matrix, so a group costs one read of its keys.
"""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention import parallel
from pagedref.attention.reader import Reader, TileReader, scratch_bytes
from pagedref.attention.rotary import Rotary
from pagedref.attention.state import AttentionState, add_sinks
from pagedref.attention.variants import score_modifiers
from pagedref.attention.view import RowView
from pagedref.call import AttentionCall
from pagedref.numerics import accumulator

__all__ = ["attend", "attend_rows", "rows_per_tile", "tokens_per_tile"]

Array = npt.NDArray[Any]

_TILE_BYTES = 1 << 20
_MAX_TILE_TOKENS = 1024
_SCORE_BYTES = 1 << 22


def tokens_per_tile(num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Return how many tokens make a tile: about one MiB of keys, a matter of geometry alone.

    Parameters
    ----------
    num_kv_heads, head_dim : int
        Heads, and the larger of the two head dimensions.
    itemsize : int
        Bytes of a number.

    Returns
    -------
    int
        16 to 1024.

    Examples
    --------
    >>> tokens_per_tile(8, 128, 4), tokens_per_tile(3, 64, 4)
    (256, 1024)
    """
    fitting = _TILE_BYTES // max(num_kv_heads * head_dim * itemsize, 1)
    return max(16, min(_MAX_TILE_TOKENS, fitting))


def rows_per_tile(num_qo_heads: int, tile_tokens: int, itemsize: int) -> int:
    """Return how many query rows are attended together: about four MiB of scores.

    Parameters
    ----------
    num_qo_heads, tile_tokens : int
        Scores of one row and one tile.
    itemsize : int
        Bytes of a score.

    Returns
    -------
    int
        1 or more.

    Examples
    --------
    >>> rows_per_tile(32, 256, 4)
    128
    """
    return max(1, _SCORE_BYTES // (num_qo_heads * tile_tokens * itemsize))


def _weighted_values(weights: Array, values: Array, hidden: Array | None) -> Array:
    """Return ``weights @ values`` in which an invisible key contributes nothing, whatever it holds (S7).

    Parameters
    ----------
    weights : array (num_kv_heads, rows, keys)
        0 where the key is invisible.
    values : array (num_kv_heads, keys, v_head_dim)
        Live values.
    hidden : array (rows, keys) of bool or None
        None if all rows see all keys.
    """
    product: Array = np.matmul(weights, values)
    if hidden is None or np.isfinite(product).all():
        return product
    # 0 * NaN is NaN: take the keys with such values out of the product and add them to the rows that see them.
    odd = np.flatnonzero(~np.isfinite(values).all(axis=(0, 2)))
    clean = values.copy()
    clean[:, odd] = 0
    product = np.matmul(weights, clean)
    for key in odd:
        rows = np.flatnonzero(~hidden[:, key])
        product[:, rows] += weights[:, rows, key, None] * values[:, None, key]
    return product


def _scores(queries: Array, keys: Array) -> Array:
    """Return ``queries @ keys`` of each kv head: (num_kv_heads, rows, keys), C-contiguous.

    A matrix library that is fast for small and for large products can be four times slower in between (few rows, many
    keys); there the product is taken the other way round.

    Parameters
    ----------
    queries : array (num_kv_heads, rows, head_dim)
        Scaled queries.
    keys : array (keys, num_kv_heads, head_dim)
        A tile.
    """
    rows = queries.shape[1]
    if rows >= 64 or rows * len(keys) <= 1024:
        scores: Array = np.matmul(queries, keys.transpose(1, 2, 0))
        return scores
    flipped = np.matmul(keys.transpose(1, 0, 2), np.ascontiguousarray(queries.transpose(0, 2, 1)))
    return np.ascontiguousarray(flipped.transpose(0, 2, 1))


def attend_rows(
    call: AttentionCall,
    sequence: int,
    first_row: int,
    stop_row: int,
    query: Array,
    readers: tuple[Reader, Reader],
    tile_pages: int,
    rotary: Rotary | None = None,
) -> AttentionState:
    """Attend with some query rows of one sequence.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    sequence, first_row, stop_row : int
        The sequence and its rows.
    query : array (rows, num_qo_heads, head_dim)
        Those rows.
    readers : pair of Reader
        Keys and values.
    tile_pages : int
        Pages in a tile.
    rotary : Rotary, optional
        Turns keys that are stored unrotated.

    Returns
    -------
    AttentionState
        Of the rows, in the accumulator type.

    Notes
    -----
    Sums run over the keys of a tile as the matrix product orders them, then over tiles in order of position. Tiles
    begin at the first visible page, so the result depends on this sequence alone.
    """
    dims, group = call.dims, call.group_size
    num_kv_heads, rows = dims["num_kv_heads"], stop_row - first_row
    dtype = accumulator(query.dtype)
    lowest = np.finfo(dtype).min  # stands for the maximum of nothing: exp(-inf - lowest) is 0, not NaN
    view = RowView(call, sequence, first_row, stop_row)
    frames = call.kv_indices[call.kv_indptr[sequence] + view.pages]
    modifiers = score_modifiers(call.options, num_kv_heads)

    sides = call.keys.whole, call.values.whole
    grouped = query.reshape(rows, num_kv_heads, group, -1).transpose(1, 0, 2, 3)  # (num_kv_heads, rows, group, dim)
    scaled = np.multiply(grouped, dtype.type(call.options.sm_scale), dtype=dtype, order="C")
    scaled = scaled.reshape(num_kv_heads, rows * group, -1)  # (num_kv_heads, rows * group, head_dim)
    top = np.full((num_kv_heads, rows * group, 1), lowest, dtype)
    total = np.zeros_like(top)
    mean = np.zeros((num_kv_heads, rows * group, dims["v_head_dim"]), dtype)
    for first in range(0, len(frames), tile_pages):
        tile = frames[first : first + tile_pages]
        live = view.live_tokens(first, first + len(tile))
        keys, key_scale = readers[0].read(tile, live)
        if rotary is not None:
            keys = rotary.apply(keys, view.key_positions(first, live))
        scores = _scores(scaled, keys)  # (num_kv_heads, rows * group, live)
        if sides[0] is not None:
            scores *= sides[0].reshape(-1, 1, 1)  # one factor of all keys of a head
        elif key_scale is not None:
            scores *= key_scale.T[:, None]
        for modify in modifiers:
            by_row = scores.reshape(num_kv_heads, rows, group, live)
            modify(by_row, view.positions, view.key_positions(first, live))
        seen = view.seen(first, live)
        hidden = None
        if seen is not None:
            hidden = ~np.repeat(seen, group, axis=0)  # (rows * group, live)
            np.copyto(scores, -np.inf, where=hidden)
        new_top = np.maximum.reduce(scores, axis=-1, keepdims=True, initial=lowest)
        if first:
            new_top = np.maximum(top, new_top)
        np.subtract(scores, new_top, out=scores)
        weights = np.exp(scores, out=scores)
        if hidden is not None:
            np.copyto(weights, 0, where=hidden)  # a NaN maximum stays with the rows that see it
        tile_total = np.add.reduce(weights, axis=-1, keepdims=True)
        values, value_scale = readers[1].read(tile, live)
        if value_scale is not None:
            weights *= value_scale.T[:, None]
            if hidden is not None:
                np.copyto(weights, 0, where=hidden)
        product = _weighted_values(weights, values.transpose(1, 0, 2), hidden)
        if first:
            rescale = np.exp(top - new_top)
            total = total * rescale + tile_total
            mean = mean * rescale + product
        else:
            total, mean = tile_total, product
        top = new_top
    if sides[1] is not None:
        mean *= sides[1].reshape(-1, 1, 1)
    lse = top + np.log(total)  # -inf where total is 0
    out = np.divide(mean, total, out=np.zeros_like(mean), where=total != 0)
    out = out.reshape(num_kv_heads, rows, group, -1).transpose(1, 0, 2, 3).reshape(rows, num_kv_heads * group, -1)
    lse = lse.reshape(num_kv_heads, rows, group).transpose(1, 0, 2).reshape(rows, num_kv_heads * group)
    return add_sinks(AttentionState(out, lse), call.options.sinks)


_local = threading.local()


def _scratch(size: int) -> Array:
    """Return a buffer of this thread, at least `size` bytes long, aligned to a cache line."""
    buffer: Array | None = getattr(_local, "buffer", None)
    if buffer is None or buffer.size < size:
        raw = np.empty(size + 64, np.uint8)
        shift = -raw.ctypes.data % 64
        buffer = _local.buffer = raw[shift : shift + size]
    return buffer


def attend(
    call: AttentionCall, q: Array, k_cache: Array, v_cache: Array, rotary: Rotary | None = None
) -> AttentionState:
    """Attend with all rows of a checked call; decode and prefill differ only in the rows.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    q : array (tokens, num_qo_heads, head_dim)
        Queries, sequence after sequence.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        The pool.
    rotary : Rotary, optional
        Turns keys that are stored unrotated.

    Returns
    -------
    AttentionState
        ``out`` in the type of `q`, ``lse`` in the accumulator type.
    """
    dims = call.dims
    dtype = accumulator(q.dtype)
    itemsize = dtype.itemsize  # a tile is what is multiplied, however it is stored
    width = max(dims["head_dim"], dims["v_head_dim"])
    tile_tokens = tokens_per_tile(dims["num_kv_heads"], width, itemsize)
    tile_pages = max(1, tile_tokens // dims["page_size"])
    rows = rows_per_tile(dims["num_qo_heads"], tile_pages * dims["page_size"], itemsize)
    size = scratch_bytes((k_cache, v_cache), (call.keys, call.values), tile_pages)
    out = np.empty((q.shape[0], dims["num_qo_heads"], dims["v_head_dim"]), q.dtype)
    lse = np.empty(q.shape[:2], dtype)

    pieces: list[tuple[int, int, int]] = []
    sizes: list[int] = []
    bytes_per_token = dims["num_kv_heads"] * (dims["head_dim"] + dims["v_head_dim"]) * itemsize  # once read
    starts = call.qo_indptr.tolist()
    for sequence, (begin, end) in enumerate(pairwise(starts)):
        for first in range(0, end - begin, rows):
            pieces.append((sequence, first, min(first + rows, end - begin)))
            sizes.append(int(call.kv_lens[sequence]) * bytes_per_token)

    def work(piece: int) -> None:
        sequence, first, stop = pieces[piece]
        scratch = _scratch(size)
        readers = (
            TileReader(k_cache, call.keys, dtype, scratch),
            TileReader(v_cache, call.values, dtype, scratch),
        )
        begin = int(call.qo_indptr[sequence])
        query = q[begin + first : begin + stop]
        with np.errstate(all="ignore"):  # a thread has its own
            state = attend_rows(call, sequence, first, stop, query, readers, tile_pages, rotary)
        out[begin + first : begin + stop] = state.out
        lse[begin + first : begin + stop] = state.lse

    parallel.for_each(work, sizes)
    return AttentionState(out, lse)
