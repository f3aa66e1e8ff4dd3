"""Ordered attention on the device: the bits of NumPy, in any batch, page size or split.

The definition is in :mod:`pagedref.attention.ordered`. A thread takes one part of the keys of a row and a head; another
kernel joins the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages
from pagedref.attention.ordered import borders
from pagedref.attention.state import AttentionState
from pagedref.kv_format import KVFormat
from pagedref_cuda import _runtime
from pagedref_cuda._batch import Batch, batch
from pagedref_cuda._numbers import numbers
from pagedref_cuda._result import result, result_arrays
from pagedref_cuda._storage import stored
from pagedref_cuda.decode import Window
from pagedref_cuda.ordered_rows import Shape, ordered_join_1, ordered_part_1
from pagedref_cuda.tiles import rules
from pagedref_cuda.tree import TILE, Forest

__all__ = ["ordered_decode", "ordered_prefill"]

Array = npt.NDArray[Any]
Splits = int | Sequence[int] | npt.NDArray[Any] | None

_FAR = 2**62  # beyond every tile
_SCRATCH = 1 << 24  # float32 numbers that one launch may use to work with


def _forest(threads: int, depth: int, v_head_dim: int) -> Forest:
    """Return room for the nodes of the tree, `depth` of each thread."""
    return Forest(
        _runtime.empty((threads, depth), np.int64), _runtime.empty((threads, depth, 2 + v_head_dim), np.float32)
    )


def _cuts(function: str, splits: Splits, most_tiles: int) -> tuple[int, Array]:
    """Return the number of parts, and the tiles at which all but the first begin where they are given."""
    if splits is None or isinstance(splits, int | np.integer):
        return len(borders(function, splits, 0, most_tiles)) - 1, np.empty(0, np.int64)
    inner = borders(function, splits, 0, _FAR)[1:-1]
    return len(inner) + 1, np.array(inner, np.int64)


def _attend(function: str, given: Batch, q: Array, k_cache: Array, v_cache: Array, splits: Splits) -> AttentionState:
    """Attend with all rows of a checked call, as many at a time as there is room to work for."""
    call = given.call
    dims, num_qo_heads = call.dims, call.dims["num_qo_heads"]
    head_dim, v_head_dim = dims["head_dim"], dims["v_head_dim"]
    tiles = int(num_pages(given.most_keys, TILE))
    parts, cuts = _cuts(function, splits, max(tiles, 1))
    depth = 2 * tiles.bit_length() + 2  # at most two nodes of each height wait
    width = head_dim + TILE + max(head_dim, TILE)
    slopes = call.options.alibi_slopes
    written = result(q.dtype, len(q), num_qo_heads, v_head_dim)
    read = (
        numbers(q),
        given.owner,
        stored(k_cache, call.keys, head_dim),
        stored(v_cache, call.values, v_head_dim),
    )
    listed, keywords, lent = given.pages, rules(call.options, num_qo_heads), _runtime.readable(cuts)
    low = np.float32(call.options.sm_scale - float(np.float32(call.options.sm_scale)))
    room = num_qo_heads * ((parts + 1) * depth * (4 + v_head_dim) + parts * width)  # of one row
    step = max(1, _SCRATCH // room)
    for first in range(0, len(q), step):
        rows = min(step, len(q) - first)
        shape = Shape(first, rows, num_qo_heads, call.group_size, head_dim, parts, low, int(slopes is not None))
        threads = rows * num_qo_heads
        work = _runtime.empty((threads * parts, width), np.float32)
        forest, whole = _forest(threads * parts, depth, v_head_dim), _forest(threads, depth, v_head_dim)
        counts = _runtime.empty((threads * parts,), np.int64)
        ordered_part_1.launch(threads * parts, *read, shape, lent, listed, keywords, work, forest, counts)
        ordered_join_1.launch(threads, shape, keywords, listed.flag, forest, counts, whole, written)
    given.finish()
    return AttentionState(*result_arrays(written, q.dtype))


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
        As in ``paged_decode``, of every storage type but float64; what is stored is read as float32 (S16).
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
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: nothing. Agreement: ORDERED: the bits of NumPy. Twin: ``pagedref.attention.ordered_decode``.
    """
    _runtime.ensure_available()
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
    given = batch("ordered_decode", arrays, keywords)
    return _attend("ordered_decode", given, q, k_cache, v_cache, splits)


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
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: nothing. Agreement: ORDERED: the bits of NumPy. Twin: ``pagedref.attention.ordered_prefill``.
    """
    _runtime.ensure_available()
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
    given = batch("ordered_prefill", arrays, keywords)
    return _attend("ordered_prefill", given, q, k_cache, v_cache, splits)
