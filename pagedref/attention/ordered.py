"""Attention whose every operation is fixed by absolute position alone: the same bits in any batch, page size or split.

Floating-point addition is not associative, so a result depends on how a sum is cut. Here it is cut by position and
nothing else: along the aligned binary tree of :mod:`pagedref.attention.tree`. All operations are those of float32,
rounded one by one: multiplication, addition, subtraction, division, comparison, and our own ``exp``, ``log`` and
``tanh`` (:mod:`pagedref.attention.elementary`). For one query and one head, in this order:

1. each number of the query becomes ``number * high + number * low``, with ``high = float32(sm_scale)`` and
   ``low = float32(sm_scale - high)``: one float32 alone would be off by up to 6e-8 of every score;
2. score of a key: products ``query * key``, added by :func:`~pagedref.attention.tree.tree_products` over `head_dim`;
3. softcap: ``cap * tanh(score / cap)``;
4. ALiBi, with ``d = float32(key position - query position)``: ``(score + low * d) + high * d``, where ``high`` is the
   slope without its last 12 bits and ``low = slope - high``, so that neither product is rounded up to 4096 positions;
5. in a tile of 32 positions, with -inf for keys that are not seen: ``top = max``, ``weight = exp(score - top)``, their
   tree sum, and for each number of the values the tree sum of ``weight * value``;
6. tiles are merged along the tree (:func:`~pagedref.attention.tree.merge`);
7. the sink is one more state ``(sink, 1, 0)``, merged from the right;
8. ``out = values / total`` and ``lse = top + log(total)`` (:func:`~pagedref.attention.elementary.ordered_lse`); a row
   of weight 0 is ``(0, -inf)``, a zero is +0, and a NaN is the one with bits 0x7FC00000.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.addressing import page_of
from pagedref.attention import parallel
from pagedref.attention.decode import Window
from pagedref.attention.elementary import ordered_lse
from pagedref.attention.ordered_rows import OrderedRows
from pagedref.attention.state import AttentionState
from pagedref.attention.tree import TILE, Forest, Partial, aligned_nodes, merge
from pagedref.call import AttentionCall, attention_call
from pagedref.kv_format import KVFormat

__all__ = ["borders", "ordered_attention", "ordered_decode", "ordered_prefill"]

Array = npt.NDArray[Any]
Splits = int | Sequence[int] | npt.NDArray[Any] | None

_PRODUCTS = 1 << 19  # float32 numbers in the largest temporary array: two MiB stay near a core
_INFINITY, _NAN = np.float32(np.inf), np.float32(np.nan)
_ZERO = np.float32(0)
_FAR = 2**62  # beyond every position


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


def borders(function: str, splits: Splits, first_tile: int, stop_tile: int) -> list[int]:
    """Return the tiles at which the parts begin, and the end of the last one.

    Parameters
    ----------
    function : str
        Operation, for error texts.
    splits : int, sequence or array of int, or None
        As in :func:`ordered_decode`.
    first_tile, stop_tile : int
        Tiles to be cut.

    Returns
    -------
    list of int
        Ascending, from `first_tile` to `stop_tile`.

    Raises
    ------
    ContractError
        `splits` is no way to cut a sequence.

    Examples
    --------
    >>> borders("ordered_decode", 3, 2, 9), borders("ordered_decode", [64, 100], 0, 9)
    ([2, 4, 6, 9], [0, 2, 3, 9])
    """
    if splits is None:
        return [first_tile, stop_tile]
    rule = "a number of parts >= 1, or ascending positions >= 0"
    if isinstance(splits, int | np.integer) and not isinstance(splits, bool) and splits >= 1:
        tiles = stop_tile - first_tile
        parts = min(int(splits), max(tiles, 1))  # more parts than tiles would be empty ones
        return [first_tile + tiles * part // parts for part in range(parts + 1)]
    given: Any = splits.tolist() if isinstance(splits, np.ndarray) and splits.dtype.kind in "iu" else splits
    whole = isinstance(given, list | tuple | range) and all(
        isinstance(position, int | np.integer) and not isinstance(position, bool) and position >= 0
        for position in given
    )
    inner = [int(page_of(min(int(position), _FAR), TILE)) for position in given] if whole else []
    if not whole or inner != sorted(inner):
        validate.fail(function, "splits", "cuts no sequence", " ".join(repr(splits).split())[:80], rule)
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
    splits : int, sequence or array of int, optional
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
    borders(function, splits, 0, 1)
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
            view = OrderedRows(call, sequence, first_row, stop_row, q[own])
            fitting = _PRODUCTS // ((stop_row - first_row) * per_row)
            largest = 1 << max(fitting.bit_length() - 1, 0)  # tiles in one step, a power of two
            whole = Forest()
            for start, stop in pairwise(borders(function, splits, view.first_tile, view.stop_tile)):
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
    splits : int, sequence or array of int, optional
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
    and on nothing else, to the bit: not on page size, frames, neighbours, chunks, splits, threads or processor. Twin:
    ``pagedref_cuda.ordered_decode``.

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
        ``out`` (num_tokens, num_qo_heads, v_head_dim) in the type of `q`; ``lse`` (num_tokens, num_qo_heads), float32.

    Raises
    ------
    ContractError
        An argument breaks the contract, or `splits` is no way to cut a sequence.
    PageFault
        A page with a visible key is unmapped.

    Notes
    -----
    Mutates: nothing. Agreement: ORDERED. A row has the bits that :func:`ordered_decode` gives it when it is the last.
    Twin: ``pagedref_cuda.ordered_prefill``.
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
