"""Mutants of lse and merging, of scales and of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention import AttentionState, mla
from pagedref.conformance.mutants._base import Attend, Mutant, both, mutant

__all__ = ["MUTANTS"]

Array = npt.NDArray[Any]


def _base_two(attend: Attend) -> Attend:
    def wrong(*arrays: Array, **keywords: Any) -> AttentionState:
        state = attend(*arrays, **keywords)
        return AttentionState(state.out, (state.lse / np.log(2)).astype(state.lse.dtype))

    return wrong


def _merge(
    weigh: Callable[[Array, Array], Array], logarithm: Callable[[Array], Array], guard: bool, shifted: bool = True
) -> Attend:
    """Return a merge with another function for weights or logarithm, with or without a guard against nothing."""

    def wrong(out: Array, lse: Array, *, out_state: AttentionState | None = None) -> AttentionState:
        with np.errstate(all="ignore"):
            top = lse.max(axis=0, initial=-np.inf) if shifted else np.zeros(lse.shape[1:], lse.dtype)
            shift = np.where(np.isneginf(top), 0, top) if guard else top
            weights = weigh(lse, shift)
            total = weights.sum(axis=0)
            parts = np.where(weights[..., None] == 0, -0.0, weights[..., None] * out)
            mean = parts.sum(axis=0, initial=-0.0) / np.where(guard & (total == 0), 1, total)[..., None]
            mean = np.where((guard & (total == 0))[..., None], 0, mean)
            state = AttentionState(mean.astype(out.dtype), (shift + logarithm(total)).astype(lse.dtype))
        if out_state is None:
            return state
        out_state.out[...], out_state.lse[...] = state
        return out_state

    return wrong


def _no_scale(attend: Attend) -> Attend:
    def wrong(*arrays: Array, sm_scale: float | None = None, **keywords: Any) -> AttentionState:
        return attend(*arrays, sm_scale=1.0 if sm_scale is None else sm_scale, **keywords)

    return wrong


def _modulo_heads(attend: Attend) -> Attend:
    def wrong(q: Array, *arrays: Array, **keywords: Any) -> AttentionState:
        num_kv_heads = arrays[-5].shape[2]
        heads = np.argsort(np.arange(q.shape[1]) % num_kv_heads, kind="stable")
        for name in ("alibi_slopes", "sinks"):
            if keywords.get(name) is not None:
                keywords[name] = keywords[name][heads]
        state = attend(q[:, heads], *arrays, **keywords)
        back = np.argsort(heads)
        return AttentionState(state.out[:, back], state.lse[:, back])

    return wrong


def _rounded_heads(attend: Attend) -> Attend:
    def wrong(q: Array, *arrays: Array, **keywords: Any) -> AttentionState:
        *rows, k_cache, v_cache, indptr, indices, last = arrays
        group, rest = divmod(q.shape[1], k_cache.shape[2])
        if not rest:
            return attend(q, *arrays, **keywords)
        kv_heads = k_cache.shape[2] if group else q.shape[1]
        served = kv_heads * max(group, 1)
        caches = k_cache[:, :, :kv_heads], v_cache[:, :, :kv_heads]
        state = attend(q[:, :served], *rows, *caches, indptr, indices, last, **keywords)
        out, lse = np.zeros((*q.shape[:2], v_cache.shape[3]), q.dtype), np.zeros(q.shape[:2], state.lse.dtype)
        out[:, :served], lse[:, :served] = state  # the heads behind are never written
        return AttentionState(out, lse)

    return wrong


def _scale_from_rank(attend: Attend) -> Attend:
    def wrong(q_nope: Array, q_pe: Array, *arrays: Array, **keywords: Any) -> AttentionState:
        keywords["sm_scale"] = 1 / np.sqrt(q_nope.shape[-1] + q_pe.shape[-1])
        return attend(q_nope, q_pe, *arrays, **keywords)

    return wrong


def _latent_tail(attend: Attend) -> Attend:
    def wrong(*arrays: Array, **keywords: Any) -> AttentionState:
        state = attend(*arrays, **keywords)
        ckv_cache, _, indptr, indices, _ = arrays[-5:]
        pages = ckv_cache[indices[: indptr[-1]]]  # whole pages are multiplied, what is not live with weight 0
        with np.errstate(invalid="ignore"):
            return AttentionState(state.out + (0 * pages).sum(axis=(0, 1)), state.lse)

    return wrong



def _exp(lse: Array, shift: Array) -> Array:
    return np.asarray(np.exp(lse - shift))


def _exp2(lse: Array, shift: Array) -> Array:
    return np.asarray(np.exp2(lse - shift))


MUTANTS: dict[str, Mutant] = {
    "lse_in_base_two": mutant("lse is the logarithm to base 2", broad=True, **both(_base_two)),
    "merge_in_base_two": mutant(
        "a natural lse is merged as one of base 2",
        also=("P25",),
        merge_states=_merge(_exp2, np.log2, guard=True),
    ),
    "merge_of_nothing_is_nan": mutant(
        "the maximum of nothing is subtracted from nothing", merge_states=_merge(_exp, np.log, guard=False)
    ),
    "merge_without_shift": mutant(
        "exp(lse) is taken without subtracting the maximum",
        also=("P09",),
        merge_states=_merge(_exp, np.log, guard=True, shifted=False),
    ),
    "scale_missing": mutant("sm_scale is 1 where 1/sqrt(head_dim) is meant", broad=True, **both(_no_scale)),
    "kv_head_by_modulo": mutant(
        "query head h reads kv head h % num_kv_heads", also=("P08", "P12", "P25"), **both(_modulo_heads)
    ),
    "heads_rounded_down": mutant("the group size is rounded down", **both(_rounded_heads)),
    "mla_scale_from_rank": mutant(
        "the scale of MLA is 1/sqrt(rank + rope)",
        mla_decode=_scale_from_rank(mla.mla_decode),
        mla_prefill=_scale_from_rank(mla.mla_prefill),
    ),
    "mla_tail_times_zero": mutant(
        "latents behind the last token are multiplied by 0",
        also=("P28",),
        mla_decode=_latent_tail(mla.mla_decode),
        mla_prefill=_latent_tail(mla.mla_prefill),
    ),
}
"""By name."""

