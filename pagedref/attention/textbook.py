"""Paged attention as a textbook would write it: one loop for each word of the definition.

It computes what :func:`pagedref.attention.paged_prefill` computes, key by key, and is there to be read and to be
compared with: translate a position, take the score, keep a running maximum, weigh the value. The fast path in
:mod:`pagedref.attention.tiles` is the same algorithm with a tile of keys in the place of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import offset_of, page_of
from pagedref.attention.decode import Window
from pagedref.attention.quantize import dequantize
from pagedref.attention.rotary import Rotary
from pagedref.attention.state import AttentionState, add_sinks
from pagedref.attention.variants import score_modifiers
from pagedref.call import AttentionCall, attention_call
from pagedref.numerics import accumulator

__all__ = ["textbook_decode", "textbook_prefill"]

Array = npt.NDArray[Any]


def textbook_prefill(
    q: Array,
    qo_indptr: Array,
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    *,
    causal: bool | None = None,
    mask: Any = None,
    sm_scale: float | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    rotary: Rotary | None = None,
    **stored: Any,
) -> AttentionState:
    """Attend key by key, with the arguments of ``paged_prefill``.

    Parameters
    ----------
    q, qo_indptr, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len
        As in ``paged_prefill``.
    causal, mask, sm_scale, window, attention_chunk, softcap, alibi_slopes, sinks, rotary
        As in ``paged_prefill``.
    **stored
        ``kv_format``, ``k_scale``, ``v_scale``, ``k_zero``, ``v_zero``, as in ``append_kv``.

    Returns
    -------
    AttentionState
        As ``paged_prefill``.

    Raises
    ------
    ContractError
        An argument breaks the contract.
    PageFault
        A page with a visible key is unmapped.

    Notes
    -----
    Mutates: nothing. Agreement: BOUND; sums run over keys in order of position.

    References
    ----------
    M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018, algorithm 3.

    Examples
    --------
    >>> q = np.ones((2, 1, 1)); k_cache = np.zeros((1, 2, 1, 1)); v_cache = np.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    >>> pages = np.array([0, 1]), np.array([0]), np.array([2])
    >>> textbook_prefill(q, np.array([0, 2]), k_cache, v_cache, *pages).out.ravel().tolist()
    [1.0, 2.0]
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
        **stored,
    }
    call = attention_call("paged_prefill", "numpy", arrays, keywords)
    dtype = accumulator(q.dtype)
    out = np.zeros((*q.shape[:2], call.dims["v_head_dim"]), dtype)
    lse = np.full(q.shape[:2], -np.inf, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for sequence in range(call.dims["num_seqs"]):
            for row in range(int(call.qo_indptr[sequence]), int(call.qo_indptr[sequence + 1])):
                _attend_row(call, sequence, row, q, k_cache, v_cache, rotary, out, lse)
    state = add_sinks(AttentionState(out, lse), call.options.sinks)
    return AttentionState(state.out.astype(q.dtype), state.lse)


def _attend_row(
    call: AttentionCall,
    sequence: int,
    row: int,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    rotary: Rotary | None,
    out: Array,
    lse: Array,
) -> None:
    """Attend with one query row: all of its heads, one key after the other."""
    kv_len, page_size = int(call.kv_lens[sequence]), call.dims["page_size"]
    index = row - int(call.qo_indptr[sequence])
    position = call.positions(sequence)[index : index + 1]  # (1,)
    start, stop = call.options.intervals(position, kv_len)
    modifiers = score_modifiers(call.options, q.shape[1])
    query = q[row].astype(out.dtype) * out.dtype.type(call.options.sm_scale)  # (num_qo_heads, head_dim)
    top, total = lse[row].copy(), np.zeros_like(lse[row])  # (num_qo_heads,)
    mean = np.zeros_like(out[row])  # (num_qo_heads, v_head_dim)
    for key_position in range(int(start[0]), int(stop[0])):
        if call.masks and not call.masks[sequence][index, key_position]:
            continue  # selection: what a hidden key holds is never touched (S7)
        frame = call.kv_indices[call.kv_indptr[sequence] + page_of(key_position, page_size)]
        offset = offset_of(key_position, page_size)
        key, value = (
            np.repeat(_read(cache, side, frame, offset), call.group_size, axis=0)  # (num_qo_heads, dim): S12
            for cache, side in ((k_cache, call.keys), (v_cache, call.values))
        )
        if rotary is not None:
            key = rotary.apply(key[None], np.array([key_position]))[0]
        score = (query * key).sum(axis=-1, dtype=out.dtype)  # (num_qo_heads,)
        for modify in modifiers:
            modify(score.reshape(-1, 1, 1, 1), position, np.array([key_position]))
        new_top = np.maximum(top, score)
        shift = np.where(np.isneginf(new_top), 0, new_top)
        weight, rescale = np.exp(score - shift), np.exp(top - shift)
        total = total * rescale + weight
        mean = mean * rescale[:, None] + weight[:, None] * value
        top = new_top
    live = total != 0
    out[row][live] = mean[live] / total[live, None]
    lse[row][live] = top[live] + np.log(total[live])


def _read(cache: Array, side: Any, frame: Any, offset: Any) -> Array:
    """Read one token of a cache: (num_kv_heads, dim)."""
    scale, zero = (
        None if x is None else x if x.ndim < 2 else x[frame] if x.ndim == 2 else x[frame, offset]
        for x in (side.scale, side.zero)
    )
    return dequantize(np.ascontiguousarray(cache[frame, offset]), side.form, scale, zero)


def textbook_decode(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    **keywords: Any,
) -> AttentionState:
    """Attend with one query token per sequence: a prefill in which every sequence has one row.

    Parameters
    ----------
    q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len
        As in ``paged_decode``.
    **keywords
        As in ``paged_decode``.

    Returns
    -------
    AttentionState
        As ``paged_decode``.
    """
    rows = np.arange(len(q) + 1)
    return textbook_prefill(q, rows, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, causal=True, **keywords)
