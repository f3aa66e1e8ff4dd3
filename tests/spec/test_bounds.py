"""Error bounds: never exceeded by float32, and not so loose that they say nothing."""

from __future__ import annotations

import numpy as np

from pagedref.attention import dense_attention, paged_decode
from pagedref.attention.bounds import Arithmetic
from pagedref.conformance import bound_fraction, make_case, oracle


def test_never_exceeded_and_reached_in_part() -> None:
    """Over a thousand cases of two keys the largest error is a good part of the bound, and none is beyond it."""
    worst = 0.0
    for seed in range(250):
        case = make_case(seed, [1] * 4, [2, 2, 2, 2], head_dim=2, spread=3.0)
        expected = oracle(case)
        state = paged_decode(case.q, *case.pages)
        worst = max(worst, bound_fraction(state.out, expected.out, expected.out_bound))
        worst = max(worst, bound_fraction(state.lse, expected.lse, expected.lse_bound))
    assert 0.01 < worst <= 1.0


def test_float64_against_exact_rationals() -> None:
    """Scores that are exact: two keys of score 0 and ln 3 in float64."""
    q, k = np.ones((1, 1, 1)), np.array([0.0, np.log(3)]).reshape(2, 1, 1)
    v = np.array([0.0, 1.0]).reshape(2, 1, 1)
    state = dense_attention(q, k, v, with_bound=True, arithmetic=Arithmetic("float64"))
    assert state.out_bound is not None and state.lse_bound is not None
    assert abs(state.out.item() - 0.75) <= state.out_bound.item() < 1e-13
    assert abs(state.lse.item() - np.log(4)) <= state.lse_bound.item() < 1e-13


def test_an_injected_error_is_seen() -> None:
    """One score off by a thousandth exceeds the bound."""
    case = make_case(1, [1], [40])
    expected = oracle(case)
    keys = case.k_cache.copy()
    keys[case.kv_indices[0], 0] *= 1.01
    wrong = paged_decode(case.q, keys, *case.pages[1:])
    assert bound_fraction(wrong.out, expected.out, expected.out_bound) > 1


def test_infinite_and_nan_results_have_no_tolerance() -> None:
    k = np.array([np.inf, 0.0]).reshape(2, 1, 1)
    state = dense_attention(np.ones((1, 1, 1)), k, np.ones((2, 1, 1)), with_bound=True)
    assert np.isnan(state.out).all() and state.out_bound is not None and state.out_bound.item() == 0
    assert bound_fraction(np.array([1.0]), np.array([np.nan]), np.array([0.0])) == np.inf
    assert bound_fraction(np.array([np.inf]), np.array([-np.inf]), np.array([9.0])) == np.inf
