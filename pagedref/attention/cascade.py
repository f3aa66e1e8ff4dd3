"""Cascade: a prefix that many queries share is attended once for all of them, and the parts are merged (S10).

Every level is one call of the ordinary operation over its own pages; what a level contributes is a state, and states
form a monoid. Nothing here touches a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.attention._level_checks import CheckedBatch, checked_batch, signed_as, whole_number
from pagedref.attention.decode import Window
from pagedref.attention.levels import CascadeLevel, Segment, checked_levels, segments, split_levels
from pagedref.attention.mla import mla_prefill
from pagedref.attention.prefill import paged_prefill
from pagedref.attention.state import AttentionState, add_sinks, combine
from pagedref.call import attention_call
from pagedref.mla_call import mla_call
from pagedref.numerics import accumulator
from pagedref.options import AttentionOptions

__all__ = ["cascade_attention", "cascade_mla", "split_kv"]

Array = npt.NDArray[Any]
Attend = Callable[[CheckedBatch, dict[str, Any]], AttentionState]


def _visibility(level: Sequence[Segment]) -> dict[str, Any]:
    """Say in keywords of one call which keys the rows of a level see, without a mask where none is needed."""
    starts = [part.start for part in level if part.keys]
    stops = [(part.stop, part.keys, np.clip(part.local + 1, 0, part.keys)) for part in level if part.keys]
    if not any(start.any() for start in starts):
        if all((stop == keys).all() for stop, keys, _ in stops):
            return {"causal": False}
        if all((stop == causal).all() for stop, _, causal in stops):
            return {"causal": True}
    return {"causal": False, "mask": [part.mask() for part in level]}


def _merged(levels: Sequence[CheckedBatch], rules: AttentionOptions, dtype: Any, attend: Attend) -> AttentionState:
    """Attend level by level, merge, and count the sinks once (S11)."""
    whole: AttentionState | None = None
    for level, parts in zip(levels, segments(levels, rules), strict=True):
        state = attend(level, _visibility(parts))
        lse = state.lse
        if rules.alibi_slopes is not None:  # a bias linear in distance: another origin is a number added to the row
            shift = np.concatenate([np.zeros(0), *(part.first - part.positions + part.local for part in parts)])
            lse = lse + shift[:, None].astype(lse.dtype) * rules.alibi_slopes.astype(lse.dtype)
        state = AttentionState(state.out, lse)
        # one after the other: an empty part is the identity to the bit, however many a longer neighbour brings
        whole = state if whole is None else combine(np.stack([whole.out, state.out]), np.stack([whole.lse, lse]))
    assert whole is not None
    merged = add_sinks(whole, rules.sinks)
    return AttentionState(merged.out.astype(dtype, copy=False), merged.lse)


_NO_PAGES = np.zeros(0, np.int64)
_NOTHING = {
    "qo_indptr": np.zeros(1, np.int64),
    "kv_indptr": np.zeros(1, np.int64),
    "kv_indices": _NO_PAGES,
    "kv_last_page_len": _NO_PAGES,
}


def _no_rows(q: Any) -> Any:
    """Return the queries of a batch of no sequences, to check their form."""
    return q[:0] if isinstance(q, np.ndarray) and q.ndim else q


def _storage_only(function: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a keyword of the flat form that would not mean the same by level, such as a mask or a rotation."""
    for name in given:
        if name not in known:
            validate.fail(function, name, "is no keyword of a cascade", type(given[name]).__name__, " or ".join(known))


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
    see the same keys, and not those of the causal rule either, takes a mask of rows times keys.

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
    name = "cascade_attention"
    _storage_only(name, stored, ("kv_format", "k_scale", "v_scale", "k_zero", "v_zero"))
    arrays = {"k_cache": k_cache, "v_cache": v_cache, "alibi_slopes": alibi_slopes, "sinks": sinks, **_NOTHING}
    keywords: dict[str, Any] = {"sm_scale": sm_scale, "softcap": softcap, **stored}
    bounds = {"causal": causal, "window": window, "attention_chunk": attention_chunk}
    with signed_as(name, "paged_prefill"):  # everything but the levels
        call = attention_call("paged_prefill", "numpy", {"q": _no_rows(q), **arrays}, {**keywords, **bounds})
    checked = checked_levels(name, levels, k_cache.shape[1], num_tokens=len(q), num_frames=k_cache.shape[0])
    wide = q.astype(accumulator(q.dtype), copy=False)  # states are rounded to the type of q once, at the end

    def attend(level: CheckedBatch, visible: dict[str, Any]) -> AttentionState:
        given = {"alibi_slopes": alibi_slopes, **keywords, **visible}
        with signed_as(name, "paged_prefill"):
            return paged_prefill(wide, level.qo_indptr, k_cache, v_cache, *level[1:4], **given)

    return _merged(checked, call.options, q.dtype, attend)


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
    Mutates: nothing. Agreement: BOUND, with one merge more for each level but the first.

    Examples
    --------
    >>> ckv_cache, kpe_cache = np.array([[[3.0]], [[0.0]], [[9.0]]]), np.zeros((3, 1, 1))
    >>> row, one = np.array, np.ones((2, 1, 1))
    >>> prefix = CascadeLevel(row([0, 2]), row([0, 1]), row([0]), row([1]))
    >>> suffixes = CascadeLevel(row([0, 1, 2]), row([0, 1, 2]), row([1, 2]), row([1, 1]))
    >>> cascade_mla(one, one, ckv_cache, kpe_cache, [prefix, suffixes], sm_scale=0.0).out.ravel().round(9).tolist()
    [1.5, 6.0]
    """
    name = "cascade_mla"
    parts = [f"{side}_{part}" for side in ("ckv", "kpe") for part in ("format", "scale", "zero")]
    _storage_only(name, stored, parts)
    if np.shape(q_pe)[:1] != np.shape(q_nope)[:1]:
        validate.fail(name, "q_pe", "has the wrong shape", np.shape(q_pe), f"as many rows as q_nope {np.shape(q_nope)}")
    queries = {"q_nope": _no_rows(q_nope), "q_pe": _no_rows(q_pe)}
    arrays = {"ckv_cache": ckv_cache, "kpe_cache": kpe_cache, "sinks": sinks, **_NOTHING}
    keywords: dict[str, Any] = {"sm_scale": sm_scale, "softcap": softcap, **stored}
    bounds = {"causal": causal, "window": window, "attention_chunk": attention_chunk}
    with signed_as(name, "mla_prefill"):  # everything but the levels
        rules = mla_call("mla_prefill", "numpy", {**queries, **arrays}, {**keywords, **bounds}).call.options
    checked = checked_levels(name, levels, ckv_cache.shape[1], num_tokens=len(q_nope), num_frames=ckv_cache.shape[0])
    dtype = accumulator(q_nope.dtype)
    wide = q_nope.astype(dtype, copy=False), q_pe.astype(dtype, copy=False)

    def attend(level: CheckedBatch, visible: dict[str, Any]) -> AttentionState:
        given = {**keywords, **visible}
        with signed_as(name, "mla_prefill"):
            return mla_prefill(*wide, level.qo_indptr, ckv_cache, kpe_cache, *level[1:4], **given)

    return _merged(checked, rules, q_nope.dtype, attend)


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
    """Attend to the pages of each sequence in parts, apart, and merge (split-KV, S10): a cascade with the same rows in
    every level.

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
    Mutates: nothing. Agreement: BOUND.

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
