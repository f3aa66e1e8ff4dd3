"""Prefill on the device: several query tokens per sequence, the last of it; prompts, chunks, trees, decode too."""

from __future__ import annotations

from collections.abc import Sequence
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
from pagedref_cuda.decode import Window
from pagedref_cuda.fast import try_prefill
from pagedref_cuda.rotary import ROTATION, Rotation
from pagedref_cuda.tiles import PAGES, RULES, Pages, Rules, attend_row, refused

__all__ = ["paged_prefill"]

Array = npt.NDArray[Any]


@kernel((NUMBERS, "int64[:]", STORED, STORED, "int64", "int64", "int64", ROTATION, PAGES, RULES, RESULT))
def paged_prefill_1(
    q: Numbers,
    owner: Array,
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
    """Attend with one query row and one head.

    Launch: a thread owns one (row, query head); `owner` is the sequence of each row. Reads: its query, the visible keys
    and values of its sequence. Writes: its row of `result`, which also holds the running mean. Barriers: none. Rung: 1,
    the reference line by line.
    """
    item = cuda.grid(1)
    if item >= owner.shape[0] * num_qo_heads:
        return
    if refused(pages.flag):
        return
    row = item // num_qo_heads
    head = item % num_qo_heads
    attend_row(owner[row], row, head, q, keys, values, group_size, head_dim, rotation, pages, rules, result)


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
    rotary: Rotary | None = None,
    kv_format: KVFormat | str | None = None,
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
    q : array (num_tokens, num_qo_heads, head_dim) of float32, float16 or bfloat16
        Queries, sequence after sequence.
    qo_indptr : array (num_seqs + 1,) of int32 or int64
        Where the rows of each sequence start in `q`; a sequence may have none.
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
    rotary : Rotary, optional
        The cache stores keys unrotated: each is turned by its own position as it is read; `q` comes in rotated.
    kv_format, k_scale, v_scale, k_zero, v_zero : optional
        The stored form of the caches, as in ``append_kv`` (S15-S18); by default what their type says.

    Returns
    -------
    AttentionState
        ``out`` (num_tokens, num_qo_heads, v_head_dim) and ``lse`` (num_tokens, num_qo_heads), natural log (S9), in
        float32; ``out`` has the type of `q`. A row that sees no key has ``(0, -inf)`` (S8).

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
    given = batch("paged_prefill", arrays, keywords)
    call = given.call
    if rotary is not None:
        check_rotary("paged_prefill", rotary, call.dims["head_dim"])
    state = None if given.deferred else try_prefill(call, q, k_cache, v_cache, rotary)
    if state is not None:
        return state
    return launch_rows(paged_prefill_1, given, q, k_cache, v_cache, rotary, given.owner)
