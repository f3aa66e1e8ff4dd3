"""Attention whose every operation is fixed by absolute position alone: the same bits in any batch, page size or split.

Floating-point addition is not associative, so a result depends on how a sum is cut. Here it is cut by position and
nothing else: along the aligned binary tree of :mod:`pagedref.attention.tree`. All operations are those of float32,
rounded one by one: multiplication, addition, subtraction, division, comparison, and our own ``exp``, ``log`` and
``tanh`` (:mod:`pagedref.attention.elementary`). For one query and one head, in this order:

1. each number of the query becomes ``number * high + number * low``, with ``high = float32(sm_scale)`` and
   ``low = float32(sm_scale - high)``: one float32 alone would be off by up to 6e-8 of every score;
2. score of a key: products ``query * key``, added by :func:`~pagedref.attention.tree.tree_products` over `head_dim`;
3. softcap: ``cap * tanh(score / cap)``; 4. ALiBi: ``score + slope * float32(key position - query position)``;
5. in a tile of 32 positions, with -inf for keys that are not seen: ``top = max``, ``weight = exp(score - top)``, their
   tree sum, and for each number of the values the tree sum of ``weight * value``;
6. tiles are merged along the tree (:func:`~pagedref.attention.tree.merge`);
7. the sink is one more state ``(sink, 1, 0)``, merged from the right;
8. ``out = values / total``, ``lse = ordered_lse(top, total)``, which is ``top + log(total)``; a row of weight 0 is ``(0, -inf)``, a zero is +0, and a NaN is
   the one with bits 0x7FC00000.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.addressing import num_pages, offset_of, page_of
from pagedref.attention import parallel
from pagedref.attention.decode import Window
from pagedref.attention.elementary import ordered_exp, ordered_lse, ordered_tanh
from pagedref.attention.quantize import dequantize
from pagedref.attention.state import AttentionState
from pagedref.attention.tree import TILE, Forest, Partial, aligned_nodes, merge, merge_tiles, tree_products, tree_sum
from pagedref.call import AttentionCall, attention_call
from pagedref.kv_format import KVFormat
from pagedref.storage import Storage

__all__ = ["ordered_attention", "ordered_decode", "ordered_prefill"]

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Splits = int | Sequence[int] | None

_PRODUCTS = 1 << 19  # float32 numbers in the largest temporary array: two MiB stay near a core
_INFINITY, _NAN = np.float32(np.inf), np.float32(np.nan)
_ZERO = np.float32(0)


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


class _Rows:
    """Some query rows of one sequence, and how they see a run of tiles."""

    def __init__(self, call: AttentionCall, sequence: int, first_row: int, stop_row: int, query: Array) -> None:
        dims, options = call.dims, call.options
        self._call, self._sequence, self._slice = call, sequence, slice(first_row, stop_row)
        self._kv_len = int(call.kv_lens[sequence])
        self._rows, self._heads = stop_row - first_row, dims["num_kv_heads"]
        query, (high, low) = query.astype(np.float32, copy=False), _two_parts(options.sm_scale)
        scaled = query * high + query * low
        grouped = scaled.reshape(self._rows, self._heads, call.group_size, -1)  # (rows, num_kv_heads, group, head_dim)
        by_dim = grouped.transpose(3, 1, 0, 2).reshape(dims["head_dim"], self._heads, -1, 1)
        self._scaled = np.ascontiguousarray(by_dim)  # (head_dim, num_kv_heads, rows * group, 1)
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
            return found.reshape(*keys.shape, *found.shape[1:])
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
            distance = (keys.reshape(-1) - self._positions[:, None]).astype(np.float32)  # (rows, TILE * tiles)
            scores = scores + slopes * distance[None, :, None, :]
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
        """Return the node of the tree that covers the tiles ``first .. first + count - 1``."""
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
        values = self._read(v_cache, self._call.values, keys, readable)[:, :, :, None]  # (TILE, tiles, num_kv_heads, 1, v_head_dim)
        if seen.all() or np.isfinite(values).all():
            products = tree_products(weights[..., None], values)
        else:  # a hidden key contributes nothing, whatever it holds (S7)
            lanes = np.repeat(seen, group, axis=0).T.reshape(TILE, count, 1, -1, 1)
            products = tree_sum(np.where(lanes, weights[..., None] * values, _ZERO))
        return merge_tiles(Partial(np.ascontiguousarray(top.transpose(2, 0, 1)), tree_sum(weights), products))


def _finish(call: AttentionCall, root: Partial | None, rows: int) -> AttentionState:
    """Merge the sinks, divide, take the logarithm, and bring the axes into the order of the result."""
    heads, group, v_head_dim = call.dims["num_kv_heads"], call.group_size, call.dims["v_head_dim"]
    if root is None:
        top = np.full((heads, rows * group), -_INFINITY)
        root = Partial(top, np.zeros_like(top), np.zeros((*top.shape, v_head_dim), np.float32))
    empty = root.total == 0  # scores of -inf have no weight, whatever their values hold
    root = root._replace(values=np.where(empty[..., None], _ZERO, root.values))
    if call.options.sinks is not None:
        sinks = np.repeat(call.options.sinks.astype(np.float32).reshape(heads, 1, group), rows, axis=1)
        sinks = sinks.reshape(heads, -1)  # (num_kv_heads, rows * group)
        root = merge(root, Partial(sinks, np.ones_like(sinks), np.zeros_like(root.values)))
    total = np.where(root.total == 0, np.float32(1), root.total)
    out = root.values / total[..., None] + _ZERO  # +0 for -0
    lse = ordered_lse(root.top, root.total)
    out, lse = np.where(np.isnan(out), _NAN, out), np.where(np.isnan(lse), _NAN, lse)
    out = out.reshape(heads, rows, group, v_head_dim).transpose(1, 0, 2, 3).reshape(rows, -1, v_head_dim)
    return AttentionState(out, lse.reshape(heads, rows, group).transpose(1, 0, 2).reshape(rows, -1))


def _borders(function: str, splits: Splits, first_tile: int, stop_tile: int) -> list[int]:
    """Return the tiles at which the parts begin, and the end of the last one."""
    if splits is None:
        return [first_tile, stop_tile]
    if isinstance(splits, int | np.integer) and not isinstance(splits, bool):
        if splits < 1:
            validate.fail(function, "splits", "is too small", splits, "at least one part")
        tiles = stop_tile - first_tile
        return [first_tile + tiles * part // int(splits) for part in range(int(splits) + 1)]
    inner = [int(page_of(position, TILE)) for position in splits] if isinstance(splits, Sequence) else None
    if inner is None or inner != sorted(inner) or (inner and inner[0] < 0):
        rule = "a number of parts, or ascending positions >= 0"
        validate.fail(function, "splits", "cuts no sequence", repr(splits), rule)
    return [first_tile, *(min(max(tile, first_tile), stop_tile) for tile in inner), stop_tile]


def ordered_attention(
    function: str, call: AttentionCall, q: Array, k_cache: Array, v_cache: Array, *, splits: Splits = None
) -> AttentionState:
    """Attend in ordered arithmetic with all rows of a checked call; decode and prefill differ only in the rows.

    Parameters
    ----------
    function : str
        Operation, for error texts.
    call : AttentionCall
        The checked call.
    q : array (tokens, num_qo_heads, head_dim)
        Queries, sequence after sequence.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        The pool.
    splits : int or sequence of int, optional
        As in :func:`ordered_decode`.

    Returns
    -------
    AttentionState
        ``out`` in the type of `q`, ``lse`` in float32.

    Raises
    ------
    ContractError
        `splits` is no way to cut a sequence.
    """
    dims = call.dims
    _borders(function, splits, 0, 1)
    per_row = dims["num_qo_heads"] * TILE * max(dims["head_dim"], dims["v_head_dim"]) // 2  # products of one tile
    rows = max(1, _PRODUCTS // per_row)
    out = np.empty((q.shape[0], dims["num_qo_heads"], dims["v_head_dim"]), q.dtype)
    lse = np.empty(q.shape[:2], np.float32)
    pieces: list[tuple[int, int, int]] = []
    for sequence, (begin, end) in enumerate(pairwise(call.qo_indptr.tolist())):
        pieces += [(sequence, first, min(first + rows, end - begin)) for first in range(0, end - begin, rows)]

    def work(piece: int) -> None:
        sequence, first_row, stop_row = pieces[piece]
        own = slice(int(call.qo_indptr[sequence]) + first_row, int(call.qo_indptr[sequence]) + stop_row)
        with np.errstate(all="ignore"):  # a thread has its own
            view = _Rows(call, sequence, first_row, stop_row, q[own])
            fitting = _PRODUCTS // ((stop_row - first_row) * per_row)
            largest = 1 << max(fitting.bit_length() - 1, 0)  # tiles in one step, a power of two
            whole = Forest()
            for start, stop in pairwise(_borders(function, splits, view.first_tile, view.stop_tile)):
                part = Forest(start if splits is not None else 0)  # computed as if on a machine of its own
                for first, count in aligned_nodes(start, stop, largest):
                    part.add(first, view.node(k_cache, v_cache, first, count))
                part.close(stop)
                for first, node in part.nodes:
                    whole.add(first, node)
            out[own], lse[own] = _finish(call, whole.root(), stop_row - first_row)

    products = [int(call.kv_lens[sequence]) * (stop - first) * per_row // 4 for sequence, first, stop in pieces]
    parallel.for_each(work, products)
    return AttentionState(out, lse)


def ordered_decode(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    *,
    sm_scale: float | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    kv_format: KVFormat | str | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
    splits: Splits = None,
) -> AttentionState:
    """Attend with one query token per sequence in ordered arithmetic (S1-S12, L1-L6 and L10 to the bit).

    Parameters
    ----------
    q : array (num_seqs, num_qo_heads, head_dim) of float32, float16 or bfloat16
        Queries.
    k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len
        As in ``paged_decode``, of every storage type; what is stored is read as float32 (S16).
    sm_scale, window, attention_chunk, softcap, alibi_slopes, sinks, kv_format, k_scale, v_scale, k_zero, v_zero
        As in ``paged_decode``.
    splits : int or sequence of int, optional
        Compute each sequence in this many parts, or in parts that begin at these positions (rounded down to a multiple
        of 32), each for itself, and join them. Changes no bit of the result.

    Returns
    -------
    AttentionState
        ``out`` (num_seqs, num_qo_heads, v_head_dim) in the type of `q`; ``lse`` (num_seqs, num_qo_heads) in float32.

    Raises
    ------
    ContractError
        An argument breaks the contract, or `splits` is no way to cut a sequence.
    PageFault
        A page with a visible key is unmapped.

    Notes
    -----
    Mutates: nothing. Agreement: ORDERED. A row depends on its query and on the keys that it sees, at their positions,
    and on nothing else, to the bit: not on page size, frames, neighbours, chunks, splits, threads or processor.

    References
    ----------
    N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.1 (pairwise summation).

    Examples
    --------
    >>> q = np.ones((1, 1, 2), np.float32); k_cache = np.zeros((1, 2, 1, 2), np.float32)
    >>> v_cache = np.float32([[1, 2], [3, 6]]).reshape(1, 2, 1, 2)
    >>> state = ordered_decode(q, k_cache, v_cache, np.array([0, 1]), np.array([0]), np.array([2]))
    >>> state.out.ravel().tolist(), round(float(np.exp(state.lse[0, 0])), 6)
    ([2.0, 4.0], 2.0)
    """
    arrays = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
    }
    keywords = {
        "sm_scale": sm_scale,
        "window": window,
        "attention_chunk": attention_chunk,
        "softcap": softcap,
        "kv_format": kv_format,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "k_zero": k_zero,
        "v_zero": v_zero,
    }
    call = attention_call("ordered_decode", "numpy", arrays, keywords)
    return ordered_attention("ordered_decode", call, np.asarray(q), k_cache, v_cache, splits=splits)


def ordered_prefill(
    q: Array,
    qo_indptr: Array,
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    *,
    causal: bool | None = None,
    mask: Array | Sequence[Array] | None = None,
    sm_scale: float | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    kv_format: KVFormat | str | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
    splits: Splits = None,
) -> AttentionState:
    """Attend with any number of query tokens per sequence in ordered arithmetic (S1-S12, S14; L4 and L11 to the bit).

    Parameters
    ----------
    q : array (num_tokens, num_qo_heads, head_dim) of float32, float16 or bfloat16
        Queries, sequence after sequence.
    qo_indptr, causal, mask
        As in ``paged_prefill``.
    k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, splits
        As in :func:`ordered_decode`.
    sm_scale, window, attention_chunk, softcap, alibi_slopes, sinks, kv_format, k_scale, v_scale, k_zero, v_zero
        As in ``paged_prefill``.

    Returns
    -------
    AttentionState
        ``out`` (num_tokens, num_qo_heads, v_head_dim) in the type of `q`; ``lse`` (num_tokens, num_qo_heads) in float32.

    Raises
    ------
    ContractError
        An argument breaks the contract, or `splits` is no way to cut a sequence.
    PageFault
        A page with a visible key is unmapped.

    Notes
    -----
    Mutates: nothing. Agreement: ORDERED. A row has the bits that :func:`ordered_decode` gives it when it is the last.
    """
    arrays = {
        "q": q,
        "qo_indptr": qo_indptr,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
    }
    keywords = {
        "causal": causal,
        "mask": mask,
        "sm_scale": sm_scale,
        "window": window,
        "attention_chunk": attention_chunk,
        "softcap": softcap,
        "kv_format": kv_format,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "k_zero": k_zero,
        "v_zero": v_zero,
    }
    call = attention_call("ordered_prefill", "numpy", arrays, keywords)
    return ordered_attention("ordered_prefill", call, np.asarray(q), k_cache, v_cache, splits=splits)
