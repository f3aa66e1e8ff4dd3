"""Decode on the device: one query token per sequence attends to all keys of its own sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref.attention.state import AttentionState
from pagedref.call import attention_call
from pagedref_cuda import _runtime
from pagedref_cuda._device import interval
from pagedref_cuda._runtime import kernel
from pagedref_cuda.tiles import attend_row, flags, per_head

__all__ = ["paged_decode"]

Array = npt.NDArray[Any]
Window = int | tuple[int | None, int | None] | None


@kernel(
    (
        *("float32[:, :, :]", "float32[:, :, :, :]", "float32[:, :, :, :]", "int64[:]", "int64[:]", "int64[:]"),
        *("int64", "int64", "int64", "int64", "float32", "float32", "float32[:]", "float32[:]", "uint8[:]"),
        *("float32[:, :, :]", "float32[:, :]"),
    )
)
def paged_decode_1(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_lens: Array,
    causal: int,
    window_left: int,
    window_right: int,
    attention_chunk: int,
    sm_scale: np.float32,
    softcap: np.float32,
    alibi_slopes: Array,
    sinks: Array,
    no_mask: Array,
    out: Array,
    lse: Array,
) -> None:
    """Attend with the query of one sequence and one head.

    Launch: a thread owns one (sequence, query head). Reads: its query, the visible keys and values of its sequence.
    Writes: its row of `out`, which also holds the running mean, and of `lse`. Barriers: none. Rung: 1, the reference
    line by line.
    """
    item = cuda.grid(1)
    num_qo_heads = q.shape[1]
    if item >= q.shape[0] * num_qo_heads:
        return
    sequence = item // num_qo_heads
    head = item % num_qo_heads
    kv_len = kv_lens[sequence]
    position = kv_len - 1  # S3
    start, stop = interval(position, kv_len, causal, window_left, window_right, attention_chunk)
    attend_row(
        sequence,
        head,
        position,
        start,
        stop,
        q,
        k_cache,
        v_cache,
        kv_indices,
        kv_indptr[sequence],
        no_mask,
        0,
        sm_scale,
        softcap,
        alibi_slopes,
        sinks,
        out,
        lse,
    )


def paged_decode(
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
    rotary: object = None,
    kv_format: object = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
) -> AttentionState:
    """Attend with one query token per sequence, the last of its sequence.

    The query of a sequence sits at position ``kv_len - 1`` (S3), so its own key and value are in the cache already.

    Parameters
    ----------
    q : array (num_seqs, num_qo_heads, head_dim) of float32
        Queries.
    k_cache : array (num_frames, page_size, num_kv_heads, head_dim) of float32
        Keys; any strides (S23).
    v_cache : array (num_frames, page_size, num_kv_heads, v_head_dim) of float32
        Values.
    kv_indptr : array (num_seqs + 1,) of int32 or int64
        Where the pages of each sequence start in `kv_indices`.
    kv_indices : array (num_pages,) of int32 or int64
        Frame of each page; -1 is unmapped, legal where no key is visible (S21).
    kv_last_page_len : array (num_seqs,) of int32 or int64
        Live positions of the last page, ``1 .. page_size``; 0 exactly without pages (S20).
    sm_scale : float, optional
        Factor on q.k; by default ``1 / sqrt(head_dim)`` (S1).
    window : int or pair, optional
        Keys that are visible, the own position included; or counts ``(left, right)`` beside it (S5).
    attention_chunk : int, optional
        Only keys of the same chunk of positions (S5).
    softcap : float, optional
        ``softcap * tanh(score / softcap)``, > 0 (S2).
    alibi_slopes : array (num_qo_heads,) of float32, optional
        Bias ``slope * (key position - query position)`` (S6).
    sinks : array (num_qo_heads,) of float32, optional
        One more logit per head, without a value (S11).
    rotary, kv_format, k_scale, v_scale, k_zero, v_zero : optional
        Scales of a quantised cache; not built yet, must be None.

    Returns
    -------
    AttentionState
        ``out`` (num_seqs, num_qo_heads, v_head_dim) and ``lse`` (num_seqs, num_qo_heads), natural log (S9), in
        float32. A sequence without keys has ``(0, -inf)`` (S8).

    Raises
    ------
    ContractError
        An argument breaks the contract.
    PageFault
        A page with a visible key is unmapped.
    BackendUnavailable
        There is neither a GPU nor the simulator.

    Notes
    -----
    Mutates: nothing. Agreement: BOUND. Sums run over the keys in order of position. Invisible keys are never touched
    (S7). Twin: ``pagedref.attention.paged_decode``.
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
        "rotary": rotary,
        "kv_format": kv_format,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "k_zero": k_zero,
        "v_zero": v_zero,
    }
    call = attention_call("paged_decode", "cuda", arrays, keywords)
    num_seqs, num_qo_heads = call.dims["num_seqs"], call.dims["num_qo_heads"]
    out = _runtime.empty((num_seqs, num_qo_heads, call.dims["v_head_dim"]), np.float32)
    lse = _runtime.empty((num_seqs, num_qo_heads), np.float32)
    if num_seqs:
        read = (q, k_cache, v_cache, call.kv_indptr, call.kv_indices, call.kv_lens)
        paged_decode_1.launch(
            num_seqs * num_qo_heads,
            *map(_runtime.readable, read),
            *flags(call),
            *per_head(call),
            _runtime.readable(np.empty(0, np.uint8)),
            out,
            lse,
        )
    return AttentionState(_runtime.to_host(out), _runtime.to_host(lse))
