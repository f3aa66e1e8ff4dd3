"""Merging states: the monoid, beyond what the conformance suite asks of every backend."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.attention import AttentionState, dense_attention, merge_states
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.state import add_sinks
from pagedref.conformance import assert_bound, assert_exact
from pagedref.errors import ContractError


@given(seed=st.integers(0, 2**32 - 1), cuts=st.sets(st.integers(0, 12), max_size=4), one_by_one=st.booleans())
def test_any_partition_gives_the_whole(seed: int, cuts: set[int], one_by_one: bool) -> None:
    """L5: parts of the keys, some of them empty, merged at once or one after the other."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n, 2, 3)) for n in (2, 12, 12))
    whole = dense_attention(q, k, v, causal=False, with_bound=True, arithmetic=Arithmetic("float64", merges=6))
    edges = [0, *sorted(cuts), 12]
    parts = [dense_attention(q, k[a:b], v[a:b], causal=False) for a, b in pairwise(edges)]
    states = [(part.out, part.lse) for part in parts]

    def pair(left: Any, right: Any) -> Any:
        return tuple(merge_states(np.stack([left[0], right[0]]), np.stack([left[1], right[1]])))

    together = [np.stack(part) for part in zip(*states, strict=True)]
    out, lse = reduce(pair, states) if one_by_one else merge_states(*together)
    assert_bound(out, whole.out, whole.out_bound, "output")
    assert_bound(lse, whole.lse, whole.lse_bound, "lse")


def test_base_two_lse_would_show() -> None:
    """P30: three keys of score 0 and value 0, one of value 1; a log2 lse gives 0.17 instead of 0.25."""
    out, lse = np.array([0.0, 1.0]).reshape(2, 1, 1, 1), np.log([3.0, 1.0]).reshape(2, 1, 1)
    assert round(float(merge_states(out, lse).out[0, 0, 0]), 12) == 0.25
    assert round(float(merge_states(out, lse / np.log(2)).out[0, 0, 0]), 5) == 0.17009


def test_output_of_an_empty_state_is_never_used() -> None:
    out, lse = np.array([np.nan, 2.0]).reshape(2, 1, 1, 1), np.array([-np.inf, 0.5]).reshape(2, 1, 1)
    assert_exact(merge_states(out, lse).out, out[1])


def test_sinks() -> None:
    """S11: no sink changes no bit; a row without keys keeps 0 and takes the sink as lse; a huge sink is no overflow."""
    state = AttentionState(np.array([[[3.0], [0.0]]], np.float32), np.array([[1.0, -np.inf]], np.float32))
    same = add_sinks(state, np.full(2, -np.inf, np.float32))
    assert_exact(same.out, state.out)
    assert_exact(same.lse, state.lse)
    sunk = add_sinks(state, np.array([3e4, 2.0], np.float32))
    assert sunk.out.ravel().tolist() == [0.0, 0.0]
    assert sunk.lse.ravel().tolist() == [3e4, 2.0]


def test_out_state_must_fit() -> None:
    out, lse = np.zeros((2, 3, 1, 4)), np.zeros((2, 3, 1))
    with pytest.raises(ContractError, match=r"out_state\.lse has the wrong shape"):
        merge_states(out, lse, out_state=AttentionState(np.zeros((3, 1, 4)), np.zeros((2, 1))))
