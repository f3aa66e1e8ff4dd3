"""Slips: one operator of attention replaced by a wrong one, and what it is called.

The list serves twice. As a backend each slip is a mutant, and the suite has to kill it; as a reference it is a
hypothesis, and a backend whose numbers are those of a slip, and not the right ones, has made it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

import pagedref.attention as reference
from pagedref.conformance import _spoil as spoil
from pagedref.conformance.steps import Steps
from pagedref.contract import OPERATIONS

__all__ = ["SLIPS", "Slip"]

_LN2 = float(np.log(2))


@dataclass(frozen=True)
class Slip:
    """A declared mistake.

    Attributes
    ----------
    name : str
        One word.
    text : str
        What a diagnosis says.
    rule : str
        The rule that it breaks.
    changes : dict
        The fields of :class:`~pagedref.conformance.steps.Steps` that are replaced.
    dialect : bool
        Whether a public system means it so: a convention, to be converted at the border.
    """

    name: str
    text: str
    rule: str
    changes: dict[str, Any]
    dialect: bool = False

    @property
    def steps(self) -> Steps:
        """The semantics with this mistake."""
        return replace(Steps(), **self.changes)

    @property
    def backend(self) -> SimpleNamespace:
        """All operations of the contract, attention with this mistake."""
        right = {name: getattr(reference, name) for name in OPERATIONS}
        return SimpleNamespace(**{**right, **self.steps.operations()})


SLIPS: tuple[Slip, ...] = (
    # results
    Slip("lse_base_2", "lse is base 2: ratio 1.442695 on all rows", "S9",
         {"after": spoil.on_lse(lambda out, lse, case: lse / _LN2)}, True),
    Slip("lse_base_10", "lse is base 10: ratio 0.434294 on all rows", "S9",
         {"after": spoil.on_lse(lambda out, lse, case: lse / np.log(10))}),
    Slip("lse_heads_first", "lse is [heads, tokens]", "S9", {"after": spoil.on_lse(spoil.heads_first)}, True),
    Slip("lse_base_2_heads_first", "lse is base 2 and [heads, tokens]", "S9",
         {"after": spoil.on_lse(lambda out, lse, case: lse.T / _LN2)}, True),
    Slip("lse_plus_infinity", "lse is +inf for rows that see no key", "S8",
         {"after": spoil.on_lse(lambda out, lse, case: np.where(np.isneginf(lse), np.inf, lse))}, True),
    Slip("lse_zero_for_empty", "lse is 0 for rows that see no key", "S8",
         {"after": spoil.on_lse(lambda out, lse, case: np.where(np.isneginf(lse), 0, lse))}),
    Slip("lse_is_the_sum", "lse is the sum of exp, the logarithm is missing", "S9",
         {"after": spoil.on_lse(lambda out, lse, case: np.exp(lse))}),
    Slip("lse_is_the_maximum", "lse is the largest score, the logarithm of the sum is missing", "S9",
         {"lse": lambda top, total: top}),
    Slip("lse_without_maximum", "lse is the logarithm of the sum, the largest score is not added back", "S9",
         {"lse": lambda top, total: np.log(total)}),
    Slip("lse_negated", "lse has the wrong sign", "S9", {"after": spoil.on_lse(lambda out, lse, case: -lse)}),
    Slip("not_normalised", "the output is not divided by the sum of weights", "S1", {"after": spoil.not_normalised}),
    Slip("mean_for_empty", "mean of V for rows that see no key, and lse of the number of keys", "S8",
         {"empty": spoil.mean_of_values}),
    Slip("mean_for_empty_lse", "mean of V for rows that see no key (lse is -inf)", "S8",
         {"empty": lambda v, n: (v.mean(axis=0), -np.inf) if n else None}),
    Slip("mean_for_empty_low", "mean of V for rows that see no key: a finite number stands for minus infinity", "S8",
         {"hidden": lambda cap: -1e30}),
    Slip("nan_for_empty", "NaN for rows that see no key: -inf minus -inf", "S8",
         {"empty": lambda v, n: (np.nan, np.nan)}),
    Slip("nan_for_hidden", "NaN for rows that see none of their keys: -inf minus -inf", "S8",
         {"empty": lambda v, n: (np.nan, np.nan) if n else None}),
    Slip("lse_plus_infinity_without_keys", "lse is +inf for sequences without keys", "S8",
         {"empty": lambda v, n: None if n else (0, np.inf)}, True),
    Slip("nan_output_for_empty", "NaN output for rows that see no key: 0 / 0", "S8",
         {"empty": lambda v, n: (np.nan, -np.inf)}),
    # exponentials and running sums
    Slip("exp_base_2", "softmax is base 2: log2(e) is missing before exp2", "S1",
         {"exp": np.exp2, "lse": lambda top, total: top + np.log2(total)}),
    Slip("exp_base_2_lse", "softmax is base 2, lse its natural logarithm", "S1",
         {"exp": np.exp2, "lse": lambda top, total: top * _LN2 + np.log(total)}),
    Slip("total_not_rescaled", "the running sum is not rescaled when a page brings a new maximum", "S1",
         {"tile": lambda page_size: page_size, "rescale_total": False}),
    Slip("mean_not_rescaled", "the running output is not rescaled when a page brings a new maximum", "S1",
         {"tile": lambda page_size: page_size, "rescale_mean": False}),
    Slip("nothing_rescaled", "running sums are not rescaled when a page brings a new maximum", "S1",
         {"tile": lambda page_size: page_size, "rescale_mean": False, "rescale_total": False}),
    Slip("total_not_rescaled_key", "the running sum is not rescaled when a key brings a new maximum", "S1",
         {"tile": lambda page_size: 1, "rescale_total": False}),
    Slip("mean_not_rescaled_key", "the running output is not rescaled when a key brings a new maximum", "S1",
         {"tile": lambda page_size: 1, "rescale_mean": False}),
    Slip("maximum_from_0", "the running maximum starts at 0 (weights underflow below)", "S7",
         {"top": lambda top: np.maximum(top, 0)}),
    Slip("maximum_from_sentinel", "the running maximum starts at a finite number far below 0", "S7",
         {"top": lambda top: np.maximum(top, -50_000.0)}),
    Slip("finite_sentinel", "a finite number (-10,000) stands for the score of a hidden key", "S7",
         {"hidden": lambda cap: -1e4}),
    Slip("finite_sentinel_guarded", "a finite number (-10,000) stands for the score of a hidden key; empty rows are "
         "right", "S7", {"hidden": lambda cap: -1e4, "empty": lambda v, n: (0, -np.inf)}),
    Slip("hidden_is_0", "hidden keys have score 0 and keep their weight", "S7", {"hidden": lambda cap: 0.0}),
    Slip("tail_times_0", "0 x NaN from the tail: values behind the last token are multiplied by weight 0", "S7",
         {"tail": "v"}),
    Slip("tail_times_0_kv", "0 x NaN from the tail: keys and values behind the last token are multiplied by 0", "S7",
         {"tail": "kv"}),
    # scale
    Slip("scale_missing", "sm_scale is missing: scores are q.k", "S1", {"scale": lambda s, given, d, v: 1.0}),
    Slip("scale_default_missing", "sm_scale is 1 where none is given", "S1",
         {"scale": lambda s, given, d, v: s if given else 1.0}),
    Slip("scale_twice", "sm_scale is applied twice", "S1", {"scale": lambda s, given, d, v: s * s}),
    Slip("scale_divided", "scores are divided by sm_scale", "S1",
         {"scale": lambda s, given, d, v: 1 / s if s else np.inf}),
    Slip("scale_ignored", "a given sm_scale is ignored", "S1", {"scale": lambda s, given, d, v: d**-0.5}),
    Slip("scale_0_is_default", "an sm_scale of 0 is taken as not given", "S1",
         {"scale": lambda s, given, d, v: d**-0.5 if s == 0 else s}),
    Slip("scale_and_default", "a given sm_scale is multiplied by 1/sqrt(head_dim)", "S1",
         {"scale": lambda s, given, d, v: s * d**-0.5 if given else s}),
    Slip("scale_of_v", "sm_scale is taken from the head_dim of v", "S1",
         {"scale": lambda s, given, d, v: s if given else v**-0.5}),
    Slip("scale_not_rooted", "sm_scale is 1/head_dim, the root is missing", "S1",
         {"scale": lambda s, given, d, v: s if given else 1 / d}),
    # caps and biases
    Slip("softcap_ignored", "softcap is ignored", "S2", {"cap": lambda s, c: s}),
    Slip("softcap_not_multiplied", "softcap: tanh(s / cap) is not multiplied by cap", "S2",
         {"cap": lambda s, c: np.tanh(s / c)}),
    Slip("softcap_not_divided", "softcap: cap * tanh(s), s is not divided by cap", "S2",
         {"cap": lambda s, c: c * np.tanh(s)}),
    Slip("softcap_clips", "softcap clips instead of bending", "S2", {"cap": lambda s, c: np.clip(s, -c, c)}),
    Slip("softcap_after_mask", "softcap after mask: hidden keys have score -cap", "S1",
         {"order": ("scale", "mask", "cap", "bias")}),
    Slip("softcap_masks", "softcap after mask: hidden keys have score -cap, without bias", "S1",
         {"hidden": lambda cap: -np.inf if cap is None else -cap}),
    Slip("softcap_after_bias", "softcap after ALiBi: the bias is capped too", "S1",
         {"order": ("scale", "bias", "cap", "mask")}),
    Slip("softcap_before_scale", "softcap before sm_scale", "S1", {"order": ("cap", "scale", "bias", "mask")}),
    Slip("alibi_sign", "ALiBi sign: far keys are favoured", "S6", {"bias": lambda m, k, p, n: m * (p - k)}),
    Slip("alibi_absolute", "ALiBi takes the absolute distance", "S6", {"bias": lambda m, k, p, n: m * np.abs(k - p)}),
    Slip("alibi_negative_absolute", "ALiBi takes minus the absolute distance", "S6",
         {"bias": lambda m, k, p, n: -m * np.abs(k - p)}),
    Slip("alibi_from_key_0", "ALiBi offset: the bias counts from key 0, lse is shifted", "S6",
         {"bias": lambda m, k, p, n: m * k}),
    Slip("alibi_from_the_end", "ALiBi offset: distances are taken from the last key, not from the query", "S6",
         {"bias": lambda m, k, p, n: m * (k - (n - 1)) + 0 * p}),
    Slip("alibi_one_more", "ALiBi offset: distances are one too large", "S6",
         {"bias": lambda m, k, p, n: m * (k - p - 1)}),
    Slip("alibi_ignored", "ALiBi slopes are ignored", "S6", {"bias": lambda m, k, p, n: 0 * m * k}),
    Slip("alibi_scaled", "ALiBi bias is multiplied by sm_scale", "S1", {"order": ("bias", "scale", "cap", "mask")}),
    # visibility
    Slip("causal_strict", "causal off by one: a query does not see its own key", "S4",
         {"causal": lambda d, limit: d < 0}),
    Slip("causal_one_more", "causal off by one: a query sees the key after its own", "S4",
         {"causal": lambda d, limit: d <= 1}),
    Slip("causal_ignored", "causal is ignored: every query sees every key", "S4",
         {"causal": lambda d, limit: np.ones(d.shape, bool)}),
    Slip("top_left", "mask aligned top-left: query positions count from 0", "S3",
         {"position": lambda row, q, n: row}),
    Slip("causal_top_left", "mask aligned top-left: the causal rule counts rows from 0", "S4",
         {"causal": lambda d, limit: d <= -limit}),
    Slip("mask_top_left", "mask aligned top-left: window and ALiBi too (decode is right)", "S3",
         {"position": lambda row, q, n: row if q > 1 else n - q + row}),
    Slip("positions_one_more", "query positions are one too large", "S3",
         {"position": lambda row, q, n: n - q + row + 1}),
    Slip("positions_from_rows", "query positions clamp at 0 where there are more queries than keys", "S3",
         {"position": lambda row, q, n: np.maximum(n - q, 0) + row}),
    Slip("window_one_more", "window counts one key more", "S5", {"left": lambda d, limit: d >= -limit - 1}, True),
    Slip("window_count_one_more", "window counts one key more (a count; a pair is right)", "S5",
         {"before": spoil.other_window(1)}, True),
    Slip("window_count_one_less", "window counts one key less (a count; a pair is right)", "S5",
         {"before": spoil.other_window(-1)}),
    Slip("window_one_less", "window counts one key less", "S5", {"left": lambda d, limit: d > -limit}),
    Slip("window_ignored", "window is ignored on the left", "S5",
         {"left": lambda d, limit: np.ones(d.shape, bool)}),
    Slip("window_right_one_more", "window counts one key more on the right", "S5",
         {"right": lambda d, limit: d <= limit + 1}),
    Slip("window_right_one_less", "window counts one key less on the right", "S5",
         {"right": lambda d, limit: d < limit}),
    Slip("window_right_ignored", "window is ignored on the right", "S5",
         {"right": lambda d, limit: np.ones(d.shape, bool)}),
    Slip("chunk_ignored", "attention_chunk is ignored", "S5",
         {"chunk": lambda k, p, c: np.ones(np.broadcast(k, p).shape, bool)}),
    Slip("chunk_slides", "attention_chunk slides like a window", "S5",
         {"chunk": lambda k, p, c: (k > p - c) & (k < p + c)}),
    Slip("chunk_one_more", "attention_chunk is one key longer", "S5",
         {"chunk": lambda k, p, c: k // (c + 1) == p // (c + 1)}),
    Slip("chunk_from_the_end", "attention_chunk is cut by truncation, not by floor, or one position late", "S5",
         {"chunk": lambda k, p, c: (k + 1) // c == (p + 1) // c}),
    Slip("mask_ignored", "the custom mask is ignored", "S14", {"mask": lambda mask, others: others}),
    Slip("mask_inverted", "the custom mask is inverted: True hides", "S14",
         {"mask": lambda mask, others: ~mask & others}),
    Slip("mask_alone", "the custom mask replaces causal, window and chunk", "S14",
         {"mask": lambda mask, others: mask}),
    Slip("mask_or", "the custom mask is joined by OR", "S14", {"mask": lambda mask, others: mask | others}),
    Slip("mask_column_major", "the custom mask is read column by column", "S14", {"mask": spoil.mask_by_columns}),
    # sinks
    Slip("sink_ignored", "sinks are ignored", "S11", {"sink_count": lambda seen, page: 0 * seen}),
    Slip("sink_per_page", "sink once per split: every page counts it", "S11",
         {"sink_count": lambda seen, page: np.maximum(-(-seen // page), 1)}),
    Slip("sink_twice", "sink once per split: it is counted twice", "S11",
         {"sink_count": lambda seen, page: np.where(seen > 1, 2, 1)}),
    Slip("sink_lost_when_empty", "the sink is lost in a row that sees no key", "S11",
         {"sink_count": lambda seen, page: np.where(seen == 0, 0, 1)}),
    Slip("sink_base_2", "log2 sink: the logit is taken to base 2", "S11", {"sink": lambda x, scale: x * _LN2}, True),
    Slip("sink_over_ln_2", "log2 sink: the logit is multiplied by log2(e) once too often", "S11",
         {"sink": lambda x, scale: x / _LN2}),
    Slip("sink_scaled", "sinks are multiplied by sm_scale", "S11", {"sink": lambda x, scale: x * scale}),
    Slip("sink_is_a_weight", "sinks are weights, exp is missing", "S11",
         {"sink": lambda x, scale: np.log(np.maximum(x, 1e-300))}),
    # heads
    Slip("kv_head_by_modulo", "kv head by modulo: h % num_kv_heads", "S12", {"kv_head": lambda h, g, n: h % n}),
    Slip("kv_head_0", "every query head reads kv head 0", "S12", {"kv_head": lambda h, g, n: 0 * h}),
    Slip("kv_head_by_count", "kv head is h // num_kv_heads", "S12",
         {"kv_head": lambda h, g, n: np.minimum(h // n, n - 1)}),
    Slip("kv_heads_backwards", "kv heads are taken backwards", "S12", {"kv_head": lambda h, g, n: n - 1 - h // g}),
    Slip("keys_as_values", "keys are averaged in place of values", "S1",
         {"values": lambda k, v: k if k.shape == v.shape else v}),
    # addresses
    Slip("last_page_full", "last page taken as full", "S20", {"live": lambda last, page: page}),
    Slip("last_page_one_more", "one position too many of the last page is read", "S20",
         {"live": lambda last, page: min(last + 1, page)}),
    Slip("last_page_one_less", "the last key is not read: kv_len one too small", "S20",
         {"live": lambda last, page: last - 1}),
    Slip("last_page_modulo", "a full last page is taken as empty: kv_len % page_size", "S20",
         {"live": lambda last, page: last % page}),
    Slip("last_page_dropped", "the last page is not read", "S20", {"live": lambda last, page: 0}),
    Slip("table_rows_swapped", "page table rows swapped: sequences read each other's pages", "S19",
         {"before": spoil.other_rows(lambda at, count: count - 1 - at)}),
    Slip("table_row_0", "every sequence reads the pages of the first", "S19",
         {"before": spoil.other_rows(lambda at, count: 0)}),
    Slip("indptr_one_more", "indptr off by one: pages are read one entry too far", "S19",
         {"before": spoil.shifted_table(1)}),
    Slip("indptr_one_less", "indptr off by one: pages are read one entry too early", "S19",
         {"before": spoil.shifted_table(-1)}),
    Slip("batch_stride_of_one", "batch stride of one token: sequence b starts at entry b of the table", "S19",
         {"before": spoil.one_token_apart}),
    Slip("pages_backwards", "the pages of a sequence are taken backwards", "S19", {"before": spoil.pages_backwards}),
    Slip("table_ignored", "the page table is ignored: pages are taken to lie in order", "S19",
         {"before": spoil.frames_in_order}),
    Slip("layout_hnd", "the cache is read as HND where it is NHD", "S23", {"before": spoil.heads_before_slots}, True),
    # stored numbers
    Slip("stored_scale_ignored", "cache scales are not applied", "S18",
         {"before": spoil.scales(lambda s, case: {name: np.ones_like(x) for name, x in s.items()})}),
    Slip("stored_scale_twice", "cache scales are applied twice", "S18",
         {"before": spoil.scales(lambda s, case: {name: x * x for name, x in s.items()})}),
    Slip("stored_scale_divided", "numbers are divided by the cache scales", "S18",
         {"before": spoil.scales(lambda s, case: {name: 1 / x for name, x in s.items()})}),
    Slip("stored_scale_of_k_only", "the scale of v is not applied", "S18",
         {"before": spoil.scales(lambda s, case: {n: np.ones_like(x) if n == "v_scale" else x for n, x in s.items()})}),
    Slip("stored_scale_of_v_only", "the scale of k is not applied", "S18",
         {"before": spoil.scales(lambda s, case: {n: np.ones_like(x) if n == "k_scale" else x for n, x in s.items()})}),
    Slip("stored_scales_exchanged", "the scales of k and v are exchanged", "S18",
         {"before": spoil.scales(spoil.exchanged_scales)}),
    Slip("stored_scale_of_head_0", "all kv heads take the scale of head 0", "S17",
         {"before": spoil.scales(spoil.scale_of_head_0)}),
    Slip("zero_point_ignored", "zero points are not subtracted", "S16", {"before": spoil.without_zero_points}),
    Slip("nibbles_swapped", "int4 nibble order: the high nibble is taken first", "S16",
         {"before": spoil.nibbles_swapped}),
)  # fmt: skip
"""Attention slips by what they concern; the first that fits is named."""
