"""Score modifiers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pagedref.attention.variants import alibi_slopes, score_modifiers
from pagedref.options import AttentionOptions


def test_published_slopes() -> None:
    """P24: 8, 6 and 12 heads."""
    assert (1 / alibi_slopes(8)).tolist() == [2, 4, 8, 16, 32, 64, 128, 256]
    assert (1 / alibi_slopes(6)).tolist() == [4, 16, 64, 256, 2, 8]
    assert alibi_slopes(12)[8:].round(5).tolist() == [0.70711, 0.35355, 0.17678, 0.08839]
    assert alibi_slopes(1).tolist() == [2.0**-8]


def test_order_is_cap_then_bias() -> None:
    """S1: the bias is not capped."""
    options = AttentionOptions(1.0, True, softcap=1.0, alibi_slopes=np.array([10.0]))
    scores = np.zeros((1, 1, 1, 2))
    for modify in score_modifiers(options, 1):
        modify(scores, np.array([5]), np.array([4, 5]))
    assert scores.ravel().tolist() == [-10.0, 0.0]


@pytest.mark.parametrize("ratio", [0, 1, 88, 200, 700])
def test_softcap_never_overflows(ratio: float) -> None:
    for dtype in (np.float32, np.float64):
        scores = np.full((1, 1, 1, 1), ratio * 2.0, dtype)
        for modify in score_modifiers(AttentionOptions(1.0, True, softcap=2.0), 1):
            modify(scores, np.zeros(1), np.zeros(1))
        assert scores.dtype == dtype and abs(float(scores.item()) - 2 * math.tanh(ratio)) <= 2 * np.finfo(dtype).eps
