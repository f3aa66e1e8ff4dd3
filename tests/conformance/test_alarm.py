"""The ratio alarm: it hears what the bound cannot see, and does not accuse another order of summation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pagedref.attention as fast
from pagedref.attention import AttentionState
from pagedref.attention.textbook import textbook_prefill
from pagedref.conformance.alarm import ALARM, error_ratio, long_reductions, one_ulp_per_step

CASES = {"many keys": {"length": 700, "count": 3}, "long dot products": {"length": 64, "head_dim": 256, "count": 2}}


def double(q: Any, *arrays: Any, **keywords: Any) -> AttentionState:
    """Accumulate in float64."""
    out, lse = fast.paged_prefill(q.astype(np.float64), *arrays, **keywords)
    return AttentionState(out.astype(np.float32), lse.astype(np.float32))


def reordered(order: str) -> Any:
    """Attend to the keys in another order; one row sees all of them."""

    def attend(q: Any, rows: Any, k_cache: Any, v_cache: Any, *csr: Any) -> AttentionState:
        keys, values = fast.gather_kv(k_cache, v_cache, *csr)
        count = len(keys)
        at = np.arange(count)[::-1] if order == "backwards" else np.random.default_rng(0).permutation(count)
        pages = keys[at][None].copy(), values[at][None].copy(), np.array([0, 1]), np.array([0]), np.array([count])
        return fast.paged_prefill(q, rows, *pages, causal=False)

    return attend


def one_after_the_other(q: Any, rows: Any, k_cache: Any, v_cache: Any, *csr: Any) -> AttentionState:
    """Add key by key in float32, without any tile."""
    keys, values = fast.gather_kv(k_cache, v_cache, *csr)
    scores = np.einsum("hd,khd->hk", q[0], keys) * np.float32(1 / np.sqrt(q.shape[2]))
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total, mean = np.zeros(len(scores), np.float32), np.zeros((len(scores), values.shape[2]), np.float32)
    for weight, value in zip(weights.T, values, strict=True):
        total += weight
        mean += weight[:, None] * value
    return AttentionState((mean / total[:, None])[None], (top[:, 0] + np.log(total))[None])


RIGHT = {
    "fast path": fast.paged_prefill,
    "textbook": textbook_prefill,
    "float64 accumulation": double,
    "backwards": reordered("backwards"),
    "shuffled": reordered("shuffled"),
    "one after the other": one_after_the_other,
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("name", RIGHT)
def test_another_correct_backend_is_not_accused(name: str, kind: str) -> None:
    ratio = error_ratio(SimpleNamespace(paged_prefill=RIGHT[name]), long_reductions(**CASES[kind]))
    assert ratio.fraction <= 1 and not ratio.rings and ratio.elements > 0, ratio
    assert max(ratio.out, ratio.lse) < ALARM / 2, "far from the alarm"


@pytest.mark.parametrize("kind", CASES)
def test_one_ulp_per_step_is_heard_and_not_seen(kind: str) -> None:
    ratio = error_ratio(SimpleNamespace(paged_prefill=one_ulp_per_step), long_reductions(**CASES[kind]))
    assert ratio.fraction <= 1, "the bound would have seen it"
    assert ratio.rings and min(ratio.out, ratio.lse) > 2 * ALARM, ratio


def test_accumulating_wider_shows_as_a_small_ratio() -> None:
    ratio = error_ratio(SimpleNamespace(paged_prefill=double), long_reductions(**CASES["many keys"]))
    assert ratio.out < 0.5


def test_the_backend_under_test_does_not_ring(backend: Any, backend_name: str) -> None:
    size = {"length": 700, "count": 3} if backend_name == "numpy" else {"length": 60, "head_dim": 4, "count": 2}
    ratio = error_ratio(backend, long_reductions(**size))
    assert ratio.fraction <= 1 and not ratio.rings, ratio
