"""Deliberately wrong backends, one for each fault; the checks must catch every one.

Each mutant is the NumPy backend with one operation replaced by a version that has the fault of a public report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as reference
from pagedref.attention import AttentionState
from pagedref.contract import OPERATIONS

__all__ = ["MUTANTS", "Mutant"]

Array = npt.NDArray[Any]
Attend = Callable[..., AttentionState]


@dataclass(frozen=True)
class Mutant:
    """A wrong backend.

    Attributes
    ----------
    fault : str
        What is wrong, in one line.
    backend : SimpleNamespace
        All operations of the contract, one of them wrong.
    """

    fault: str
    backend: SimpleNamespace


def _replace(fault: str, **operations: Any) -> Mutant:
    """Return the reference with some operations replaced."""
    names = {name: getattr(reference, name) for name in OPERATIONS}
    return Mutant(fault, SimpleNamespace(**{**names, **operations}))


def _both(change: Callable[[Attend], Attend]) -> dict[str, Attend]:
    """Apply a change to decode and prefill."""
    return {"paged_decode": change(reference.paged_decode), "paged_prefill": change(reference.paged_prefill)}


def _full_last_page(attend: Attend) -> Attend:
    def wrong(*arrays: Array, **keywords: Any) -> AttentionState:
        *rest, last = arrays
        page_size = rest[-4].shape[1]
        return attend(*rest, np.where(last > 0, np.minimum(last + 1, page_size), 0).astype(last.dtype), **keywords)

    return wrong


def _base_two(attend: Attend) -> Attend:
    def wrong(*arrays: Array, **keywords: Any) -> AttentionState:
        state = attend(*arrays, **keywords)
        return AttentionState(state.out, (state.lse / np.log(2)).astype(state.lse.dtype))

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


def _top_left(q: Array, qo_indptr: Array, *pages: Array, causal: bool | None = None, **keywords: Any) -> AttentionState:
    if keywords.get("mask") is None and causal is not False:
        k_cache, _, kv_indptr, _, last = pages
        counts = np.diff(kv_indptr)
        lengths = np.where(counts > 0, (counts - 1) * k_cache.shape[1] + last, 0)
        shapes = zip(np.diff(qo_indptr), lengths, strict=True)
        keywords["mask"], causal = [np.tri(rows, keys, dtype=bool) for rows, keys in shapes], False
    return reference.paged_prefill(q, qo_indptr, *pages, causal=causal, **keywords)


def _last_slot(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **keywords: Any) -> None:
    reference.append_kv(k, v, k_cache, v_cache, slot_mapping, **keywords)
    page_size = k_cache.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):  # floor arithmetic: -1 is page -1, offset page_size - 1
        k_cache[slot // page_size, slot % page_size] = k[row]
        v_cache[slot // page_size, slot % page_size] = v[row]


def _no_shift(out: Array, lse: Array, *, out_state: AttentionState | None = None) -> AttentionState:
    with np.errstate(all="ignore"):
        weights = np.exp(lse)
        total = weights.sum(axis=0)
        mean = (weights[..., None] * out).sum(axis=0) / np.where(total == 0, 1, total)[..., None]
        state = AttentionState(mean.astype(out.dtype), np.log(total).astype(lse.dtype))
    if out_state is not None:
        out_state.out[...], out_state.lse[...] = state
    return state


def _stale_copy(arrays: Any, src: Array, dst: Array) -> None:
    reference.copy_frames(arrays[:1], src, dst)  # the first layer's keys alone


def _wrap(index: Array, row: int, count: int) -> Array:
    """Take ``index * row`` in 32 bits, as a narrow address would be, and bring it back into a pool of `count`."""
    narrow = (index.astype(np.int64) * row).astype(np.int32).astype(np.int64)
    return np.where((index >= 0) & (narrow < 0), (narrow // row) % count, index)


def _narrow_append(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **keywords: Any) -> None:
    slots = _wrap(slot_mapping, int(np.prod(k_cache.shape[2:])), k_cache.shape[0] * k_cache.shape[1])
    reference.append_kv(k, v, k_cache, v_cache, slots, **keywords)


def _narrow_gather(k_cache: Array, v_cache: Array, kv_indptr: Array, kv_indices: Array, last: Array) -> Any:
    frames = _wrap(kv_indices, int(np.prod(k_cache.shape[1:])), k_cache.shape[0])
    return reference.gather_kv(k_cache, v_cache, kv_indptr, frames, last)


def _zero_times_nan(attend: Attend) -> Attend:
    def wrong(*arrays: Array, **keywords: Any) -> AttentionState:
        state = attend(*arrays, **keywords)
        _, v_cache, kv_indptr, kv_indices, _ = arrays[-5:]
        rows = np.diff(arrays[1]) if attend is reference.paged_prefill else np.ones(len(kv_indptr) - 1, int)
        out, group = state.out.copy(), state.out.shape[1] // v_cache.shape[2]
        owners = np.repeat(np.arange(len(rows)), rows)
        for row, owner in enumerate(owners):  # whole pages are multiplied, what is not live with weight 0
            frames = kv_indices[kv_indptr[owner] : kv_indptr[owner + 1]]
            with np.errstate(invalid="ignore"):
                dead = (0 * v_cache[frames[frames >= 0]]).sum(axis=(0, 1))
            out[row] += np.repeat(dead, group, axis=0)
        return AttentionState(out, state.lse)

    return wrong


MUTANTS: dict[str, Mutant] = {
    "last_page_one_longer": _replace("one slot beyond the last token is read", **_both(_full_last_page)),
    "lse_in_base_two": _replace("lse is the logarithm to base 2", **_both(_base_two)),
    "scale_missing": _replace("sm_scale is 1 where 1/sqrt(head_dim) is meant", **_both(_no_scale)),
    "kv_head_by_modulo": _replace("query head h reads kv head h % num_kv_heads", **_both(_modulo_heads)),
    "mask_top_left": _replace("the causal mask is aligned at the first key", paged_prefill=_top_left),
    "slot_minus_one": _replace("slot -1 writes the last slot of the pool", append_kv=_last_slot),
    "merge_without_shift": _replace("exp(lse) is taken without subtracting the maximum", merge_states=_no_shift),
    "stale_frame_after_copy": _replace("copy on write leaves old contents in some arrays", copy_frames=_stale_copy),
    "slots_in_32_bits": _replace(
        "slot arithmetic wraps at 2**31", append_kv=_narrow_append, gather_kv=_narrow_gather
    ),
    "zero_times_nan": _replace("dead slots are multiplied by weight 0", **_both(_zero_times_nan)),
}
"""All mutants by name."""
