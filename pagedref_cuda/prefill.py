"""Prefill on the device: several query tokens per sequence, the last of it; prompts, chunks, trees, decode too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref.attention.state import AttentionState
from pagedref.call import AttentionCall, attention_call
from pagedref_cuda import _runtime
from pagedref_cuda._device import interval
from pagedref_cuda._runtime import kernel
from pagedref_cuda.decode import Window
from pagedref_cuda.tiles import attend_row, flags, per_head

__all__ = ["paged_prefill"]

Array = npt.NDArray[Any]


@kernel(
    (
        *("float32[:, :, :]", "int64[:]", "int64[:]", "float32[:, :, :, :]", "float32[:, :, :, :]"),
        *("int64[:]", "int64[:]", "int64[:]", "uint8[:]", "int64[:]"),
        *("int64", "int64", "int64", "int64", "float32", "float32", "float32[:]", "float32[:]"),
        *("float32[:, :, :]", "float32[:, :]"),
    )
)
def paged_prefill_1(
    q: Array,
    owner: Array,
    qo_indptr: Array,
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_lens: Array,
    mask: Array,
    first_pairs: Array,
    causal: int,
    window_left: int,
    window_right: int,
    attention_chunk: int,
    sm_scale: np.float32,
    softcap: np.float32,
    alibi_slopes: Array,
    sinks: Array,
    out: Array,
    lse: Array,
) -> None:
    """Attend with one query row and one head.

    Launch: a thread owns one (row, query head); `owner` is the sequence of each row, `first_pairs` where the mask of
    each sequence starts in `mask`, which is empty without one. Reads: its query, the visible keys and values of its
    sequence. Writes: its row of `out`, which also holds the running mean, and of `lse`. Barriers: none. Rung: 1, the
    reference line by line.
    """
    item = cuda.grid(1)
    num_qo_heads = q.shape[1]
    if item >= q.shape[0] * num_qo_heads:
        return
    row = item // num_qo_heads
    head = item % num_qo_heads
    sequence = owner[row]
    q_len = qo_indptr[sequence + 1] - qo_indptr[sequence]
    kv_len = kv_lens[sequence]
    row_in_sequence = row - qo_indptr[sequence]
    position = kv_len - q_len + row_in_sequence  # S3
    start, stop = interval(position, kv_len, causal, window_left, window_right, attention_chunk)
    attend_row(
        row,
        head,
        position,
        start,
        stop,
        q,
        k_cache,
        v_cache,
        kv_indices,
        kv_indptr[sequence],
        mask,
        first_pairs[sequence] + row_in_sequence * kv_len,
        sm_scale,
        softcap,
        alibi_slopes,
        sinks,
        out,
        lse,
    )


def _flat_mask(call: AttentionCall) -> tuple[Array, Array]:
    """Return the masks of all sequences in one array, and where each starts; empty without masks (S14)."""
    q_lens = np.diff(call.qo_indptr)
    pairs = q_lens * call.kv_lens
    parts = [part.reshape(-1) for part in call.masks]
    mask = np.concatenate(parts).view(np.uint8) if parts else np.empty(0, np.uint8)
    return mask, np.cumsum(pairs) - pairs


def paged_prefill(
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
    rotary: object = None,
    kv_format: object = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
) -> AttentionState:
    """Attend with any number of query tokens per sequence, the last ones of it.

    Row i of a sequence with ``q_len`` rows sits at position ``kv_len - q_len + i`` (S3): its own key and value, and
    those of the rows before it, are in the cache already.

    Parameters
    ----------
    q : array (num_tokens, num_qo_heads, head_dim) of float32
        Queries, sequence after sequence.
    qo_indptr : array (num_seqs + 1,) of int32 or int64
        Where the rows of each sequence start in `q`; a sequence may have none.
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
    causal : bool, optional
        Key position <= query position (S4); by default true unless a mask is given (S14).
    mask : array of bool or list of arrays (q_len, kv_len) of bool, optional
        True = visible; all sequences in one flat array, row-major, or one array for each (S14).
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
        ``out`` (num_tokens, num_qo_heads, v_head_dim) and ``lse`` (num_tokens, num_qo_heads), natural log (S9), in
        float32. A row that sees no key has ``(0, -inf)`` (S8).

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
    Mutates: nothing. Agreement: BOUND. Sums run over the keys in order of position, so the last row of a sequence
    equals ``paged_decode`` to the bit (L11). Twin: ``pagedref.attention.paged_prefill``.
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
        "rotary": rotary,
        "kv_format": kv_format,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "k_zero": k_zero,
        "v_zero": v_zero,
    }
    call = attention_call("paged_prefill", "cuda", arrays, keywords)
    num_tokens, num_qo_heads = call.dims["num_tokens"], call.dims["num_qo_heads"]
    out = _runtime.empty((num_tokens, num_qo_heads, call.dims["v_head_dim"]), np.float32)
    lse = _runtime.empty((num_tokens, num_qo_heads), np.float32)
    if num_tokens:
        owner = np.repeat(np.arange(call.dims["num_seqs"], dtype=np.int64), np.diff(call.qo_indptr))
        pages = (call.kv_indptr, call.kv_indices, call.kv_lens)
        read = (q, owner, call.qo_indptr, k_cache, v_cache, *pages, *_flat_mask(call))
        paged_prefill_1.launch(
            num_tokens * num_qo_heads, *map(_runtime.readable, read), *flags(call), *per_head(call), out, lse
        )
    return AttentionState(_runtime.to_host(out), _runtime.to_host(lse))
