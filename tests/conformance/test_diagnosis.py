"""Mistakes are named from the numbers; another correct backend is never accused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pagedref.attention as fast
from pagedref.attention import AttentionState
from pagedref.attention.textbook import textbook_decode, textbook_prefill
from pagedref.conformance import MUTANTS, diagnose, run
from pagedref.conformance.judged import is_not_offered
from pagedref.conformance.mutants._base import Naive
from pagedref.conformance.slips import SLIPS
from pagedref.conformance.steps import Steps
from pagedref.contract import OPERATIONS

RIGHT = {name: getattr(fast, name) for name in OPERATIONS}
BY_NAME = {slip.name: slip for slip in SLIPS}


@pytest.fixture(autouse=True)
def once(backend_name: str) -> None:
    if backend_name != "numpy":
        pytest.skip("no question to the backend under test: NumPy's run has asked it")


def backend_of(**operations: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**RIGHT, **operations})


def wide(operation: str) -> Any:
    """Compute in float64 and round once."""

    def attend(q: Any, *arrays: Any, **keywords: Any) -> AttentionState:
        out, lse = getattr(fast, operation)(q.astype(np.float64), *arrays, **keywords)
        return AttentionState(out.astype(q.dtype), lse.astype(np.float32))

    return attend


def in_other_frames(operation: str) -> Any:
    """Copy the pool to other frames first."""

    def attend(*arrays: Any, **keywords: Any) -> AttentionState:
        *rest, k_cache, v_cache, indptr, indices, last = arrays
        if k_cache.size > 1 << 20:  # a pool larger than memory stays where it is
            return getattr(fast, operation)(*arrays, **keywords)
        order = np.random.default_rng(0).permutation(len(k_cache))
        pools = [np.empty_like(x) for x in (k_cache, v_cache)]
        for pool, x in zip(pools, (k_cache, v_cache), strict=True):
            pool[order] = x
        stored = {}
        for name, x in keywords.items():
            if name.endswith(("_scale", "_zero")) and isinstance(x, np.ndarray) and x.ndim >= 2:
                stored[name] = np.empty_like(x)
                stored[name][order] = x
        table = np.where(indices >= 0, order[indices], indices).astype(indices.dtype)
        return getattr(fast, operation)(*rest, *pools, indptr, table, last, **{**keywords, **stored})

    return attend


def both(make: Any) -> dict[str, Any]:
    return {operation: make(operation) for operation in ("paged_decode", "paged_prefill")}


CORRECT = {
    "fast path": backend_of(),
    "textbook": backend_of(paged_decode=textbook_decode, paged_prefill=textbook_prefill),
    "float64 accumulation": backend_of(**both(wide)),
    "other frames": backend_of(**both(in_other_frames)),
    "row by row": backend_of(**Naive().operations()),
    "named steps": backend_of(**Steps().operations()),
    "a key at a time": backend_of(**replace(Steps(), tile=lambda page_size: 1).operations()),
    "decode alone": SimpleNamespace(paged_decode=fast.paged_decode),
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_backend_is_not_accused(name: str) -> None:
    found = diagnose(CORRECT[name])
    assert not found.named and not found.unexplained
    verdict = run(CORRECT[name], name)
    assert verdict.ok and not verdict.named and not verdict.hints, verdict.text()


def in_half(operation: str) -> Any:
    """Keep the result in float16: no more than one rounding of those that its bound grants."""

    def attend(q: Any, *arrays: Any, **keywords: Any) -> AttentionState:
        state = getattr(fast, operation)(q, *arrays, **keywords)
        return AttentionState(*(part.astype(np.float16).astype(part.dtype) for part in state))

    return attend


def test_float16_is_a_class_of_its_own() -> None:
    half = backend_of(**both(in_half))
    found = diagnose(half)
    assert [named.names for named in found.named] == [("float16_arithmetic",)]
    half.arithmetic = "float16"
    verdict = run(half, "half")
    assert verdict.ok and not verdict.named, verdict.text()
    assert any("float16" in note for note in verdict.notes)


# What the mutants written by hand, with other code than the hypotheses, are recognised as.
RECOGNISED = {
    "mask_top_left": "causal_top_left",
    "finite_sentinel": "finite_sentinel_guarded",
    "maximum_from_sentinel": "maximum_from_sentinel",
    "mean_for_empty_rows": "mean_for_empty",
    "nan_for_empty_rows": "nan_for_hidden",
    "plus_infinity_for_empty": "lse_plus_infinity_without_keys",
    "window_one_too_wide": "window_count_one_more",
    "window_rolls_early": "window_one_less",
    "softcap_after_mask": "softcap_masks",
    "softcap_after_bias": "softcap_after_bias",
    "bias_sign_flipped": "alibi_sign",
    "sink_in_every_split": "sink_twice",
    "sink_lost_in_empty_split": "sink_lost_when_empty",
    "lse_in_base_two": "lse_base_2",
    "merge_in_base_two": "merge_base_2",
    "merge_of_nothing_is_nan": "merge_nan_for_empty",
    "merge_without_shift": "merge_unshifted",
    "scale_missing": "scale_default_missing",
    "kv_head_by_modulo": "kv_head_by_modulo",
    "last_page_one_longer": "last_page_one_more",
    "zero_times_nan": "tail_times_0",
    "slot_minus_one": "slot_minus_1_writes",
    "stale_frame_after_copy": "copy_first_array",
    "cast_without_clamp": "no_saturation_plain",
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_other_code_with_the_same_mistake_is_recognised(name: str) -> None:
    assert [named.names for named in diagnose(MUTANTS[name].backend).named] == [(RECOGNISED[name],)]


@pytest.mark.parametrize(
    "first, second",
    [
        ("lse_base_2", "window_one_more"),  # both are conventions of one public library
        ("lse_heads_first", "window_one_more"),
        ("kv_head_by_modulo", "scale_twice"),
        ("last_page_full", "softcap_ignored"),
    ],
)
def test_two_mistakes_at_once(first: str, second: str) -> None:
    steps = replace(BY_NAME[first].steps, **BY_NAME[second].changes)
    found = diagnose(backend_of(**steps.operations()))
    assert {slip for named in found.named for slip in named.names} == {first, second}
    assert not found.unexplained


def test_one_operation_alone_may_be_wrong() -> None:
    found = diagnose(backend_of(paged_decode=BY_NAME["lse_base_2"].backend.paged_decode))
    assert [(named.names, named.operations) for named in found.named] == [(("lse_base_2",), ("paged_decode",))]


def test_an_unknown_mistake_is_not_given_a_name() -> None:
    def attend(*arrays: Any, **keywords: Any) -> AttentionState:
        state = fast.paged_decode(*arrays, **keywords)
        return AttentionState(state.out + np.float32(0.125), state.lse)

    found = diagnose(backend_of(paged_decode=attend))
    assert not found.named and len(found.unexplained) > 20


def test_an_error_is_told_with_the_function() -> None:
    def attend(*arrays: Any, **keywords: Any) -> AttentionState:
        raise IndexError("list index out of range")

    found = diagnose(backend_of(paged_prefill=attend), offered=is_not_offered)
    texts = {found.replies[name].error for name in found.unexplained}
    assert texts == {"paged_prefill raised IndexError: list index out of range"}
