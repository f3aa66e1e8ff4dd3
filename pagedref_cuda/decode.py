"""Decode on the device: one query token per sequence attends to all keys of its own sequence."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import cuda

from pagedref.attention.rotary import Rotary, check_rotary
from pagedref.attention.state import AttentionState
from pagedref.kv_format import KVFormat
from pagedref_cuda import _runtime
from pagedref_cuda._batch import batch, launch_rows
from pagedref_cuda._numbers import NUMBERS, Numbers
from pagedref_cuda._result import RESULT, Result
from pagedref_cuda._runtime import kernel
from pagedref_cuda._storage import STORED, Stored
from pagedref_cuda.fast import try_decode
from pagedref_cuda.rotary import ROTATION, Rotation
from pagedref_cuda.tiles import PAGES, RULES, Pages, Rules, attend_row, refused

__all__ = ["paged_decode"]

Array = npt.NDArray[Any]
Window = int | tuple[int | None, int | None] | None


@kernel((NUMBERS, STORED, STORED, "int64", "int64", "int64", ROTATION, PAGES, RULES, RESULT))
def paged_decode_1(
    q: Numbers,
    keys: Stored,
    values: Stored,
    num_qo_heads: int,
    group_size: int,
    head_dim: int,
    rotation: Rotation,
    pages: Pages,
    rules: Rules,
    result: Result,
) -> None:
    """Attend with the query of one sequence and one head.

    Launch: a thread owns one (sequence, query head). Reads: its query, the visible keys and values of its sequence.
    Writes: its row of `result`, which also holds the running mean. Barriers: none. Rung: 1, the reference line by line.
    """
    item = cuda.grid(1)
    if item >= pages.kv_lens.shape[0] * num_qo_heads:
        return
    if refused(pages.flag):
        return
    sequence = item // num_qo_heads
    head = item % num_qo_heads
    attend_row(sequence, sequence, head, q, keys, values, group_size, head_dim, rotation, pages, rules, result)


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
    rotary: Rotary | None = None,
    kv_format: KVFormat | str | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
) -> AttentionState:
    """Attend with one query token per sequence, the last of its sequence.

    The query of a sequence sits at position ``kv_len - 1`` (S3), so its own key and value are in the cache already.

    Parameters
    ----------
    q : array (num_seqs, num_qo_heads, head_dim) of float32, float16 or bfloat16
        Queries.
    k_cache : array (num_frames, page_size, num_kv_heads, head_dim) of a storage type but float64
        Keys; any strides (S23).
    v_cache : array (num_frames, page_size, num_kv_heads, v_head_dim) of a storage type but float64
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
    rotary : Rotary, optional
        The cache stores keys unrotated: each is turned by its own position as it is read; `q` comes in rotated.
    kv_format, k_scale, v_scale, k_zero, v_zero : optional
        The stored form of the caches, as in ``append_kv`` (S15-S18); by default what their type says.

    Returns
    -------
    AttentionState
        ``out`` (num_seqs, num_qo_heads, v_head_dim) and ``lse`` (num_seqs, num_qo_heads), natural log (S9), in
        float32; ``out`` has the type of `q`. A sequence without keys has ``(0, -inf)`` (S8).

    Raises
    ------
    ContractError
        An argument breaks the contract.
    PageFault
        A page with a visible key is unmapped.
    BackendUnavailable
        Nothing here can run kernels.

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
    given = batch("paged_decode", arrays, keywords)
    call = given.call
    if rotary is not None:
        check_rotary("paged_decode", rotary, call.dims["head_dim"])
    state = try_decode(call, q, k_cache, v_cache, rotary, given.pages if given.deferred else None)
    if state is None:
        return launch_rows(paged_decode_1, given, q, k_cache, v_cache, rotary)
    given.finish()
    return state
