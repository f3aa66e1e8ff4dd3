"""Mutants of visibility, sentinels, empty rows, modifiers and sinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as reference
from pagedref.attention import AttentionState
from pagedref.conformance.mutants._base import Attend, Mutant, Naive, both, mutant
from pagedref.options import AttentionOptions

__all__ = ["MUTANTS"]

Array = npt.NDArray[Any]


def _top_left(q: Array, qo_indptr: Array, *pages: Array, causal: bool | None = None, **keywords: Any) -> AttentionState:
    mask = keywords.get("mask")
    if causal is True or (mask is None and causal is None):
        k_cache, _, kv_indptr, _, last = pages
        counts = np.diff(kv_indptr)
        lengths = np.where(counts > 0, (counts - 1) * k_cache.shape[1] + last, 0)
        shapes = zip(np.diff(qo_indptr), lengths, strict=True)
        triangles = [np.tri(rows, keys, dtype=bool) for rows, keys in shapes]
        joined = triangles if mask is None else [part & other for part, other in zip(mask, triangles, strict=True)]
        keywords["mask"], causal = joined, False
    return reference.paged_prefill(q, qo_indptr, *pages, causal=causal, **keywords)


def _wide_window(*arrays: Array, window: Any = None, **keywords: Any) -> AttentionState:
    return reference.paged_prefill(*arrays, window=window + 1 if isinstance(window, int) else window, **keywords)


class _FiniteSentinel(Naive):
    def modify(self, options: AttentionOptions, scores: Array, distance: Array, seen: Array) -> Array:
        scores = super().modify(options, scores, distance, seen)
        return np.where(seen, scores, -10_000.0)

    def row(
        self, options: AttentionOptions, query: Array, keys: Array, values: Array, position: int, seen: Array
    ) -> tuple[Array, Array]:
        hidden = ~seen[:, None, None] & ~np.isfinite(values)
        return super().row(options, query, keys, np.where(hidden, 0, values), position, seen)


class _MaximumFromSentinel(Naive):
    def top(self, scores: Array) -> Array:
        return np.maximum(super().top(scores), -50_000.0)


class _MeanForEmptyRows(Naive):
    def empty(self, values: Array, sinks: Array | None, shape: tuple[int, int]) -> tuple[Array, Array]:
        if not len(values) or sinks is not None:
            return super().empty(values, sinks, shape)
        return values.mean(axis=0), np.full(shape[0], np.log(len(values)))


class _NanForEmptyRows(Naive):
    def empty(self, values: Array, sinks: Array | None, shape: tuple[int, int]) -> tuple[Array, Array]:
        if not len(values):
            return super().empty(values, sinks, shape)
        return np.full(shape, np.nan), np.full(shape[0], np.nan)


class _PlusInfinityForEmpty(Naive):
    def empty(self, values: Array, sinks: Array | None, shape: tuple[int, int]) -> tuple[Array, Array]:
        out, lse = super().empty(values, sinks, shape)
        return out, np.full(shape[0], np.inf) if not len(values) and sinks is None else lse


class _RollsEarly(Naive):
    def sees(self, options: AttentionOptions, position: int, kv_len: int) -> npt.NDArray[np.bool_]:
        seen = super().sees(options, position, kv_len)
        if self.decode and options.window_left is not None and kv_len > options.window_left:
            seen[max(position - options.window_left, 0)] = False
        return seen


class _CapAfterMask(Naive):
    def modify(self, options: AttentionOptions, scores: Array, distance: Array, seen: Array) -> Array:
        final = super().modify(options, scores, distance, seen)
        return final if options.softcap is None else np.where(seen, final, -options.softcap)


class _CapAfterBias(Naive):
    def modify(self, options: AttentionOptions, scores: Array, distance: Array, seen: Array) -> Array:
        if options.alibi_slopes is not None:
            scores = scores + options.alibi_slopes[:, None] * distance
        if options.softcap is not None:
            scores = options.softcap * np.tanh(scores / options.softcap)
        return np.where(seen, scores, -np.inf)


class _SinkInEverySplit(Naive):
    def sink_weight(self, weight: Array, count: int) -> Array:
        return weight * (2 if count > 1 else 1)


class _SinkLostWhenEmpty(Naive):
    def empty(self, values: Array, sinks: Array | None, shape: tuple[int, int]) -> tuple[Array, Array]:
        return super().empty(values, None, shape)


def _flipped_bias(attend: Attend) -> Attend:
    def wrong(*arrays: Array, alibi_slopes: Array | None = None, **keywords: Any) -> AttentionState:
        return attend(*arrays, alibi_slopes=None if alibi_slopes is None else -alibi_slopes, **keywords)

    return wrong


def _geometric_slopes(num_heads: int) -> npt.NDArray[np.float64]:
    return np.asarray(2.0 ** (-8.0 * np.arange(1, num_heads + 1) / num_heads))


MUTANTS: dict[str, Mutant] = {
    "mask_top_left": mutant(
        "the causal mask is aligned at the first key",
        also=("P08", "P13", "P17", "P23"),
        paged_prefill=_top_left,
    ),
    "finite_sentinel": mutant("a hidden score is -10,000", **_FiniteSentinel().operations()),
    "maximum_from_sentinel": mutant("the running maximum starts at -50,000", **_MaximumFromSentinel().operations()),
    "mean_for_empty_rows": mutant(
        "a row without keys has the mean of V", also=("P12",), **_MeanForEmptyRows().operations()
    ),
    "nan_for_empty_rows": mutant(
        "a row without keys is -inf minus -inf", also=("P12",), **_NanForEmptyRows().operations()
    ),
    "plus_infinity_for_empty": mutant(
        "a sequence without keys has lse +inf", also=("P25",), **_PlusInfinityForEmpty().operations()
    ),
    "window_one_too_wide": mutant(
        "window=W is W keys to the left of the own", also=("P08",), paged_prefill=_wide_window
    ),
    "window_rolls_early": mutant("a full window has lost its first key", **_RollsEarly().operations()),
    "softcap_after_mask": mutant("the cap makes a hidden score -cap", also=("P08",), **_CapAfterMask().operations()),
    "softcap_after_bias": mutant("the bias is capped with the score", **_CapAfterBias().operations()),
    "geometric_slopes": mutant("slopes are 2**(-8 i / n) for every n", alibi_slopes=_geometric_slopes),
    "bias_sign_flipped": mutant("far keys are favoured", also=("P23",), **both(_flipped_bias)),
    "sink_in_every_split": mutant("each of two splits counts the sink", **_SinkInEverySplit().operations()),
    "sink_lost_in_empty_split": mutant("without keys the sink is forgotten", **_SinkLostWhenEmpty().operations()),
}
"""By name."""
