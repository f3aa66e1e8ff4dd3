"""A cascade with the operations of any backend: what every level sees, and how the levels are merged (S10).

Every level is one call of the ordinary operation over its own pages; what a level contributes is a state, and states
form a monoid. Nothing here touches a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.attention._level_checks import CheckedBatch, signed_as
from pagedref.attention.levels import CascadeLevel, Segment, checked_levels, segments
from pagedref.attention.state import AttentionState
from pagedref.call import attention_call
from pagedref.mla_call import mla_call
from pagedref.numerics import accumulator
from pagedref.options import AttentionOptions

__all__ = ["LevelOperations", "attend_latent_levels", "attend_levels"]

Array = npt.NDArray[Any]
Attend = Callable[[CheckedBatch, dict[str, Any]], AttentionState]


@dataclass(frozen=True)
class LevelOperations:
    """What a cascade calls: the operations of one backend.

    Attributes
    ----------
    backend : str
        Its name in the contract.
    paged_prefill, mla_prefill : callable
        Attend with the pages of a level.
    combine : callable
        Merge states along the first axis: ``(out, lse) -> AttentionState``.
    add_sinks : callable
        Merge in one logit per head: ``(state, sinks or None) -> AttentionState``.
    """

    backend: str
    paged_prefill: Callable[..., AttentionState]
    mla_prefill: Callable[..., AttentionState]
    combine: Callable[[Array, Array], AttentionState]
    add_sinks: Callable[[AttentionState, Array | None], AttentionState]


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


def _merged(
    operations: LevelOperations, levels: Sequence[CheckedBatch], rules: AttentionOptions, dtype: Any, attend: Attend
) -> AttentionState:
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
        if whole is not None:
            state = operations.combine(np.stack([whole.out, state.out]), np.stack([whole.lse, lse]))
        whole = state
    assert whole is not None
    merged = operations.add_sinks(whole, rules.sinks)
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


def attend_levels(
    operations: LevelOperations,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    levels: Sequence[CascadeLevel],
    bounds: Mapping[str, Any],
    given: Mapping[str, Any],
    stored: Mapping[str, Any],
) -> AttentionState:
    """Attend level by level with the operations of a backend: what ``cascade_attention`` does on each.

    Parameters
    ----------
    operations : LevelOperations
        Of the backend.
    q, k_cache, v_cache, levels
        As in ``cascade_attention``.
    bounds : mapping
        ``causal``, ``window`` and ``attention_chunk``: they reach across levels.
    given : mapping
        ``sm_scale``, ``softcap``, ``alibi_slopes`` and ``sinks``.
    stored : mapping
        Keywords of a quantised cache.

    Returns
    -------
    AttentionState
        As ``cascade_attention``.

    Raises
    ------
    ContractError, PageFault
        As ``cascade_attention``.
    """
    name = "cascade_attention"
    alibi_slopes, sinks = given["alibi_slopes"], given["sinks"]
    _storage_only(name, stored, ("kv_format", "k_scale", "v_scale", "k_zero", "v_zero"))
    arrays = {"k_cache": k_cache, "v_cache": v_cache, "alibi_slopes": alibi_slopes, "sinks": sinks, **_NOTHING}
    keywords: dict[str, Any] = {"sm_scale": given["sm_scale"], "softcap": given["softcap"], **stored}
    with signed_as(name, "paged_prefill"):  # everything but the levels
        call = attention_call("paged_prefill", operations.backend, {"q": _no_rows(q), **arrays}, {**keywords, **bounds})
    checked = checked_levels(name, levels, k_cache.shape[1], num_tokens=len(q), num_frames=k_cache.shape[0])
    wide = q.astype(accumulator(q.dtype), copy=False)  # states are rounded to the type of q once, at the end

    def attend(level: CheckedBatch, visible: dict[str, Any]) -> AttentionState:
        with signed_as(name, "paged_prefill"):
            return operations.paged_prefill(
                wide, level.qo_indptr, k_cache, v_cache, *level[1:4], alibi_slopes=alibi_slopes, **keywords, **visible
            )

    return _merged(operations, checked, call.options, q.dtype, attend)


def attend_latent_levels(
    operations: LevelOperations,
    queries: tuple[Array, Array],
    caches: tuple[Array, Array],
    levels: Sequence[CascadeLevel],
    bounds: Mapping[str, Any],
    given: Mapping[str, Any],
    stored: Mapping[str, Any],
) -> AttentionState:
    """Attend over latent pages level by level with the operations of a backend.

    Parameters
    ----------
    operations, levels, bounds, given, stored
        As in :func:`attend_levels`; there are no slopes.
    queries, caches : pairs of arrays
        ``q_nope`` and ``q_pe``, ``ckv_cache`` and ``kpe_cache``, as in ``cascade_mla``.

    Returns
    -------
    AttentionState
        As ``cascade_mla``.

    Raises
    ------
    ContractError, PageFault
        As ``cascade_mla``.
    """
    name = "cascade_mla"
    (q_nope, q_pe), (ckv_cache, kpe_cache) = queries, caches
    parts = [f"{side}_{part}" for side in ("ckv", "kpe") for part in ("format", "scale", "zero")]
    _storage_only(name, stored, parts)
    if np.shape(q_pe)[:1] != np.shape(q_nope)[:1]:
        validate.fail(name, "q_pe", "has the wrong shape", np.shape(q_pe), f"as many rows as q_nope {np.shape(q_nope)}")
    arrays = {"q_nope": _no_rows(q_nope), "q_pe": _no_rows(q_pe), "ckv_cache": ckv_cache, "kpe_cache": kpe_cache}
    arrays |= {"sinks": given["sinks"], **_NOTHING}
    keywords: dict[str, Any] = {"sm_scale": given["sm_scale"], "softcap": given["softcap"], **stored}
    with signed_as(name, "mla_prefill"):  # everything but the levels
        rules = mla_call("mla_prefill", operations.backend, arrays, {**keywords, **bounds}).call.options
    checked = checked_levels(name, levels, ckv_cache.shape[1], num_tokens=len(q_nope), num_frames=ckv_cache.shape[0])
    dtype = accumulator(q_nope.dtype)
    wide = q_nope.astype(dtype, copy=False), q_pe.astype(dtype, copy=False)

    def attend(level: CheckedBatch, visible: dict[str, Any]) -> AttentionState:
        with signed_as(name, "mla_prefill"):
            return operations.mla_prefill(
                *wide, level.qo_indptr, ckv_cache, kpe_cache, *level[1:4], **keywords, **visible
            )

    return _merged(operations, checked, rules, q_nope.dtype, attend)
