"""The oracle against a second derivation: plain Python loops over absolute positions, key by key."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.attention import dense_attention
from pagedref.attention.bounds import Arithmetic
from pagedref.conformance import assert_bound
from pagedref.errors import ContractError


def visible(query: int, key: int, keywords: dict[str, Any]) -> bool:
    """Say from absolute positions whether a query sees a key (S3-S5, S14)."""
    causal = keywords.get("causal")
    if causal is None:
        causal = keywords.get("mask") is None
    if causal and key > query:
        return False
    window = keywords.get("window")
    if isinstance(window, int) and abs(query - key) >= window:
        return False
    if isinstance(window, tuple):
        left, right = window
        if left is not None and query - key > left:
            return False
        if right is not None and key - query > right:
            return False
    chunk = keywords.get("attention_chunk")
    return chunk is None or math.floor(query / chunk) == math.floor(key / chunk)


def by_hand(q: Any, k: Any, v: Any, **keywords: Any) -> tuple[Any, Any]:
    """Take the formula with nothing but loops and the math module."""
    q_len, num_qo_heads, head_dim = q.shape
    kv_len, num_kv_heads, v_head_dim = v.shape
    out = np.zeros((q_len, num_qo_heads, v_head_dim))
    lse = np.full((q_len, num_qo_heads), -math.inf)
    for row in range(q_len):
        position = kv_len - q_len + row
        for head in range(num_qo_heads):
            kv_head = head // (num_qo_heads // num_kv_heads)
            scores: dict[int, float] = {}
            for key in range(kv_len):
                if not visible(position, key, keywords):
                    continue
                if keywords.get("mask") is not None and not keywords["mask"][row, key]:
                    continue
                dot = math.fsum(float(q[row, head, d]) * float(k[key, kv_head, d]) for d in range(head_dim))
                score = dot * keywords.get("sm_scale", 1 / math.sqrt(head_dim))
                if keywords.get("softcap") is not None:
                    score = keywords["softcap"] * math.tanh(score / keywords["softcap"])
                if keywords.get("alibi_slopes") is not None:
                    score += float(keywords["alibi_slopes"][head]) * (key - position)
                scores[key] = score
            sink = -math.inf if keywords.get("sinks") is None else float(keywords["sinks"][head])
            top = max([*scores.values(), sink], default=-math.inf)
            if top == -math.inf:
                continue
            total = math.fsum([*(math.exp(score - top) for score in scores.values()), math.exp(sink - top)])
            lse[row, head] = top + math.log(total)
            for d in range(v_head_dim):
                terms = (math.exp(score - top) * float(v[key, kv_head, d]) for key, score in scores.items())
                out[row, head, d] = math.fsum(terms) / total
    return out, lse


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, Any, Any, dict[str, Any]]:
    q_len, kv_len = draw(st.integers(0, 5)), draw(st.integers(0, 9))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    head_dim, v_head_dim = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    q = rng.standard_normal((q_len, kv_heads * group, head_dim))
    k, v = rng.standard_normal((kv_len, kv_heads, head_dim)), rng.standard_normal((kv_len, kv_heads, v_head_dim))
    side = st.one_of(st.none(), st.integers(0, 6))
    options = {
        "causal": st.booleans(),
        "mask": st.just(rng.random((q_len, kv_len)) < 0.6),
        "window": st.one_of(st.integers(1, 10), st.tuples(side, side)),
        "attention_chunk": st.integers(1, 5),
        "softcap": st.sampled_from([0.3, 2.0]),
        "alibi_slopes": st.just(rng.random(kv_heads * group)),
        "sinks": st.just(rng.standard_normal(kv_heads * group)),
        "sm_scale": st.sampled_from([0.0, 0.7, -1.0]),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(options))))
    return q, k, v, {name: draw(options[name]) for name in sorted(chosen)}


@settings(deadline=None, max_examples=300)
@given(problem=problems())
def test_oracle_agrees_with_the_formula(problem: tuple[Any, Any, Any, dict[str, Any]]) -> None:
    q, k, v, keywords = problem
    state = dense_attention(q, k, v, with_bound=True, arithmetic=Arithmetic(dtype="float64"), **keywords)
    out, lse = by_hand(q, k, v, **keywords)
    assert_bound(out, state.out, state.out_bound, "output")
    assert_bound(lse, state.lse, state.lse_bound, "lse")


@pytest.mark.parametrize(
    ("q_len", "kv_len", "expected"), [(2, 5, ["11110", "11111"]), (5, 2, ["00", "00", "00", "10", "11"])]
)
def test_causal_is_aligned_bottom_right(q_len: int, kv_len: int, expected: list[str]) -> None:
    """P12: the weight of each key shows in an output whose values are the unit vectors."""
    q, k = np.zeros((q_len, 1, 1)), np.zeros((kv_len, 1, 1))
    out = dense_attention(q, k, np.eye(kv_len)[:, None, :]).out[:, 0]
    assert ["".join(str(int(weight > 0)) for weight in row) for row in out] == expected


@pytest.mark.parametrize("scale", [0, 1, 88, 200, 700])
def test_softcap_is_safe(scale: float) -> None:
    """P23, S2: the capped score of one key is its lse."""
    q, k = np.full((1, 1, 1), float(scale)), np.full((1, 1, 1), 2.0)
    lse = dense_attention(q, k, k, sm_scale=1.0, softcap=2.0).lse
    assert lse[0, 0] == 2 * math.tanh(scale)


def test_sink_counts_once() -> None:
    """P25: scores 0 and 0, values 1 and 3, sink 0."""
    q, k, v = np.zeros((1, 1, 1)), np.zeros((2, 1, 1)), np.array([1.0, 3.0]).reshape(2, 1, 1)
    state = dense_attention(q, k, v, sinks=np.zeros(1))
    assert round(float(state.out[0, 0, 0]), 12) == round(4 / 3, 12)
    assert round(float(state.lse[0, 0]), 12) == round(math.log(3), 12)


@settings(deadline=None, max_examples=100)
@given(problem=problems())
def test_weights(problem: tuple[Any, Any, Any, dict[str, Any]]) -> None:
    """Weights times values are the output; invisible keys have exactly 0; what is missing to 1 is the sink's."""
    q, k, v, keywords = problem
    state = dense_attention(q, k, v, with_weights=True, **keywords)
    assert state.weights is not None and state.weights.shape == (len(q), q.shape[1], len(k))
    assert dense_attention(q, k, v, **keywords).weights is None
    values = np.repeat(v, q.shape[1] // v.shape[1], axis=1)
    bound = dense_attention(q, k, v, with_bound=True, arithmetic=Arithmetic(dtype="float64"), **keywords)
    assert_bound(np.einsum("qhk,khd->qhd", state.weights, values), state.out, bound.out_bound, "weights times values")
    for row, position in enumerate(range(len(k) - len(q), len(k))):
        for key in range(len(k)):
            mask = keywords.get("mask")
            seen = visible(position, key, keywords) and (mask is None or mask[row, key])
            assert seen or (state.weights[row, :, key] == 0).all()
    with np.errstate(invalid="ignore"):
        sink = np.exp(keywords.get("sinks", np.full(q.shape[1], -np.inf)) - state.lse)
    live = np.isfinite(state.lse)
    assert np.abs((state.weights.sum(axis=2) + sink)[live] - 1).max(initial=0) < 1e-13
    part = state.rows(1, 3)
    assert part.weights is not None and part.out_bound is None
    assert np.array_equal(part.weights, state.weights[1:3]) and np.array_equal(part.lse, state.lse[1:3])


def test_bound_of_more_rounding_is_larger() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 1, 4)) for n in (1, 50, 50))
    narrow = dense_attention(q, k, v, with_bound=True)
    wide = dense_attention(q, k, v, with_bound=True, arithmetic=Arithmetic(dtype="float64"))
    few = dense_attention(q, k, v, with_bound=True, arithmetic=Arithmetic(rescales=1))
    assert narrow.out_bound is not None and wide.out_bound is not None and few.out_bound is not None
    assert (wide.out_bound < narrow.out_bound).all()
    assert (few.out_bound < narrow.out_bound).all()
    assert narrow.out_bound.max() < 1e-3, "a bound that large would hide a wrong kernel"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": np.zeros((1, 3, 2))}, ["3 / 2", "S12"]),
        ({"q": np.zeros((1, 2))}, ["q has the wrong number of dimensions"]),
        ({"v": np.zeros((4, 2, 2))}, ["does not fit"]),
        ({"mask": np.ones((2, 2), bool)}, ["mask"]),
        ({"softcap": -1}, ["softcap", "S2"]),
    ],
)
def test_refusals(change: dict[str, Any], words: list[str]) -> None:
    given_arrays = {"q": np.zeros((1, 2, 2)), "k": np.zeros((3, 2, 2)), "v": np.zeros((3, 2, 2)), **change}
    with pytest.raises(ContractError) as error:
        dense_attention(**given_arrays)
    assert all(word in str(error.value) for word in words)
