"""Cascade on the device: a prefix that many queries share is attended once for all of them (S10).

Which level holds what, and what a row sees of it, is decided by the reference; the operations are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.attention._by_level import LevelOperations, attend_latent_levels, attend_levels
from pagedref.attention._level_checks import checked_batch, signed_as, whole_number
from pagedref.attention.levels import CascadeLevel, split_levels
from pagedref.attention.state import AttentionState
from pagedref_cuda import _runtime
from pagedref_cuda.decode import Window
from pagedref_cuda.mla import mla_prefill
from pagedref_cuda.prefill import paged_prefill
from pagedref_cuda.state import merge_states

__all__ = ["cascade_attention", "cascade_mla", "split_kv"]

Array = npt.NDArray[Any]


def _add_sinks(state: AttentionState, sinks: Array | None) -> AttentionState:
    """Merge in one logit per head that has no value: one more state (S11)."""
    if sinks is None:
        return state
    sink_lse = np.broadcast_to(sinks.astype(state.lse.dtype), state.lse.shape)
    return merge_states(np.stack([state.out, np.zeros_like(state.out)]), np.stack([state.lse, sink_lse]))


_OPERATIONS = LevelOperations("cuda", paged_prefill, mla_prefill, merge_states, _add_sinks)


def cascade_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    levels: Sequence[CascadeLevel],
    *,
    causal: bool | None = None,
    sm_scale: float | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    **stored: Any,
) -> AttentionState:
    """Attend level by level and merge: shared pages are read once for all rows that see them (S10).

    A row's keys are those of its segment in each level, outermost first, as if they were one sequence; the row stands
    at its end (S3). Unlike in a page table, a segment may end in a page that is not full.

    Parameters
    ----------
    q : array (num_tokens, num_qo_heads, head_dim) of float32, float16 or bfloat16
        Queries, in the order of the last level's segments.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        The pool.
    levels : sequence of CascadeLevel
        Outermost first; the borders of rows of each level are among those of the next. See
        :func:`pagedref.attention.cascade_levels`.
    causal : bool, optional
        Key position <= query position (S4); true by default.
    sm_scale, window, attention_chunk, softcap, alibi_slopes, sinks
        As in ``paged_prefill``; they mean the same as in the flat form, and a sink counts once (S11).
    **stored
        Keywords of a quantised cache, as in ``paged_prefill``.

    Returns
    -------
    AttentionState
        ``out`` (num_tokens, num_qo_heads, v_head_dim) in the type of `q`; ``lse`` (num_tokens, num_qo_heads).

    Raises
    ------
    ContractError
        The levels are not nested, or an argument breaks the contract.
    PageFault
        A page with a visible key is unmapped.
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: nothing. Agreement: BOUND. Twin: ``pagedref.attention.cascade_attention``.
    """
    _runtime.ensure_available()
    bounds = {"causal": causal, "window": window, "attention_chunk": attention_chunk}
    given = {"sm_scale": sm_scale, "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks}
    return attend_levels(_OPERATIONS, q, k_cache, v_cache, levels, bounds, given, stored)


def cascade_mla(
    q_nope: Array,
    q_pe: Array,
    ckv_cache: Array,
    kpe_cache: Array,
    levels: Sequence[CascadeLevel],
    *,
    sm_scale: float | None = None,
    causal: bool | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    **stored: Any,
) -> AttentionState:
    """Attend over latent pages level by level and merge (S10, S13).

    Parameters
    ----------
    q_nope, q_pe, ckv_cache, kpe_cache, sm_scale, window, attention_chunk, softcap, sinks
        As in ``mla_prefill``.
    levels : sequence of CascadeLevel
        As in ``cascade_attention``.
    causal : bool, optional
        Key position <= query position (S4); true by default.
    **stored
        Keywords of quantised caches, as in ``mla_prefill``.

    Returns
    -------
    AttentionState
        ``out`` (num_tokens, num_qo_heads, rank) in the type of `q_nope`; ``lse`` (num_tokens, num_qo_heads).

    Raises
    ------
    ContractError
        The levels are not nested, or an argument breaks the contract.
    PageFault
        A page with a visible key is unmapped.
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: nothing. Agreement: BOUND. Twin: ``pagedref.attention.cascade_mla``.
    """
    _runtime.ensure_available()
    bounds = {"causal": causal, "window": window, "attention_chunk": attention_chunk}
    given = {"sm_scale": sm_scale, "softcap": softcap, "sinks": sinks}
    return attend_latent_levels(_OPERATIONS, (q_nope, q_pe), (ckv_cache, kpe_cache), levels, bounds, given, stored)


def split_kv(
    q: Array,
    qo_indptr: Array,
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    *,
    pages_per_part: int,
    **keywords: Any,
) -> AttentionState:
    """Attend to the pages of each sequence in parts, apart, and merge (split-KV, S10).

    It is a cascade with the same rows in every level.

    Parameters
    ----------
    q, qo_indptr, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len
        As in ``paged_prefill``; for decode, `qo_indptr` counts one row a sequence.
    pages_per_part : int
        Pages in a part, >= 1. The cuts of a sequence depend on its own length alone, so a neighbour changes no bit
        (L2, P73).
    **keywords
        As in ``cascade_attention``.

    Returns
    -------
    AttentionState
        As of ``paged_prefill``.

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
    Mutates: nothing. Agreement: BOUND. Twin: ``pagedref.attention.split_kv``.
    """
    _runtime.ensure_available()
    flat = CascadeLevel(qo_indptr, kv_indptr, kv_indices, kv_last_page_len)
    if getattr(k_cache, "ndim", 0) != 4:
        validate.fail("split_kv", "k_cache", "has the wrong number of dimensions", np.shape(k_cache), "4 dimensions")
    pages_per_part = whole_number("split_kv", "pages_per_part", pages_per_part, most=None)
    num_tokens = len(q) if getattr(q, "ndim", 0) == 3 else None  # anything else is refused below
    checked_batch("split_kv", flat, k_cache.shape[1], num_tokens=num_tokens, num_frames=k_cache.shape[0])
    levels = split_levels(flat, page_size=k_cache.shape[1], pages_per_part=pages_per_part)
    with signed_as("split_kv", "cascade_attention"):
        return cascade_attention(q, k_cache, v_cache, levels, **keywords)
