"""Cascade: a prefix that many queries share is attended once for all of them, and the parts are merged (S10).

Every level is one call of the ordinary operation over its own pages; what a level contributes is a state, and states
form a monoid. Nothing here touches a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.attention._by_level import LevelOperations, attend_latent_levels, attend_levels
from pagedref.attention._level_checks import checked_batch, signed_as, whole_number
from pagedref.attention.decode import Window
from pagedref.attention.levels import CascadeLevel, split_levels
from pagedref.attention.mla import mla_prefill
from pagedref.attention.prefill import paged_prefill
from pagedref.attention.state import AttentionState, add_sinks, combine

__all__ = ["cascade_attention", "cascade_mla", "split_kv"]

Array = npt.NDArray[Any]

_NUMPY = LevelOperations("numpy", paged_prefill, mla_prefill, combine, add_sinks)


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
    q : array (num_tokens, num_qo_heads, head_dim) of a floating type
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

    Notes
    -----
    Mutates: nothing. Agreement: BOUND, with one merge more for each level but the first. A level whose rows do not all
    see the same keys, and not those of the causal rule either, takes a mask of rows times keys. Twin:
    ``pagedref_cuda.cascade_attention``.

    References
    ----------
    J. Juravsky et al., Hydragen, arXiv 2402.05099, 2024, section 3. Z. Ye et al., Cascade Inference, 2024.

    Examples
    --------
    Two queries share a page of two keys with value 3, and have one own key each, with values 0 and 9.

    >>> k_cache, v_cache = np.zeros((3, 2, 1, 1)), np.array([[3.0, 3.0], [0.0, 0.0], [9.0, 9.0]]).reshape(3, 2, 1, 1)
    >>> row = np.array
    >>> prefix = CascadeLevel(row([0, 2]), row([0, 1]), row([0]), row([2]))
    >>> suffixes = CascadeLevel(row([0, 1, 2]), row([0, 1, 2]), row([1, 2]), row([1, 1]))
    >>> cascade_attention(np.ones((2, 1, 1)), k_cache, v_cache, [prefix, suffixes]).out.ravel().round(9).tolist()
    [2.0, 5.0]
    """
    bounds = {"causal": causal, "window": window, "attention_chunk": attention_chunk}
    given = {"sm_scale": sm_scale, "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks}
    return attend_levels(_NUMPY, q, k_cache, v_cache, levels, bounds, given, stored)


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
        As in :func:`cascade_attention`.
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

    Notes
    -----
    Mutates: nothing. Agreement: BOUND, with one merge more for each level but the first. Twin:
    ``pagedref_cuda.cascade_mla``.

    Examples
    --------
    >>> ckv_cache, kpe_cache = np.array([[[3.0]], [[0.0]], [[9.0]]]), np.zeros((3, 1, 1))
    >>> row, one = np.array, np.ones((2, 1, 1))
    >>> prefix = CascadeLevel(row([0, 2]), row([0, 1]), row([0]), row([1]))
    >>> suffixes = CascadeLevel(row([0, 1, 2]), row([0, 1, 2]), row([1, 2]), row([1, 1]))
    >>> cascade_mla(one, one, ckv_cache, kpe_cache, [prefix, suffixes], sm_scale=0.0).out.ravel().round(9).tolist()
    [1.5, 6.0]
    """
    bounds = {"causal": causal, "window": window, "attention_chunk": attention_chunk}
    given = {"sm_scale": sm_scale, "softcap": softcap, "sinks": sinks}
    return attend_latent_levels(_NUMPY, (q_nope, q_pe), (ckv_cache, kpe_cache), levels, bounds, given, stored)


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
        As in :func:`cascade_attention`.

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

    Notes
    -----
    Mutates: nothing. Agreement: BOUND. Twin: ``pagedref_cuda.split_kv``.

    Examples
    --------
    >>> cache = np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1, 1)
    >>> row, q = np.array, np.zeros((1, 1, 1))
    >>> pages = cache, cache, row([0, 3]), row([2, 1, 0]), row([1])
    >>> split_kv(q, row([0, 1]), *pages, pages_per_part=2).out.ravel().tolist()
    [2.0]
    """
    flat = CascadeLevel(qo_indptr, kv_indptr, kv_indices, kv_last_page_len)
    if getattr(k_cache, "ndim", 0) != 4:
        validate.fail("split_kv", "k_cache", "has the wrong number of dimensions", np.shape(k_cache), "4 dimensions")
    pages_per_part = whole_number("split_kv", "pages_per_part", pages_per_part, most=None)
    num_tokens = len(q) if getattr(q, "ndim", 0) == 3 else None  # anything else is refused below
    checked_batch("split_kv", flat, k_cache.shape[1], num_tokens=num_tokens, num_frames=k_cache.shape[0])
    levels = split_levels(flat, page_size=k_cache.shape[1], pages_per_part=pages_per_part)
    with signed_as("split_kv", "cascade_attention"):
        return cascade_attention(q, k_cache, v_cache, levels, **keywords)
