"""Intervals of visible keys and visible pages, against the rules key by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.call import AttentionCall
from pagedref.errors import ContractError
from pagedref.options import AttentionOptions, attention_options
from tests.spec.test_dense import visible

side = st.one_of(st.none(), st.integers(0, 6))


@given(
    positions=st.lists(st.integers(-9, 12), min_size=1, max_size=4),
    kv_len=st.integers(0, 12),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 9), st.tuples(side, side)),
    chunk=st.one_of(st.none(), st.integers(1, 5)),
)
def test_intervals_are_the_rules(positions: list[int], kv_len: int, causal: bool, window: Any, chunk: Any) -> None:
    options = attention_options("f", 4, np.float32, causal=causal, window=window, attention_chunk=chunk)
    start, stop = options.intervals(np.array(positions), kv_len)
    keywords = {"causal": causal, "window": window, "attention_chunk": chunk}
    for row, position in enumerate(positions):
        seen = [key for key in range(kv_len) if visible(position, key, keywords)]
        assert list(range(start[row], stop[row])) == seen


@given(
    q_len=st.integers(1, 5),
    kv_len=st.integers(0, 20),
    page_size=st.integers(1, 6),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 9)),
    chunk=st.one_of(st.none(), st.integers(1, 5)),
    seed=st.one_of(st.none(), st.integers(0, 99)),
)
def test_visible_pages_hold_a_visible_key(
    q_len: int, kv_len: int, page_size: int, causal: bool, window: Any, chunk: Any, seed: int | None
) -> None:
    """S21: exactly the pages in which some row sees a key."""
    pages = -(-kv_len // page_size)
    mask = None if seed is None else np.random.default_rng(seed).random((q_len, kv_len)) < 0.3
    call = AttentionCall(
        attention_options("f", 4, np.float32, causal=causal, window=window, attention_chunk=chunk),
        {"page_size": page_size},
        1,
        np.array([0, q_len]),
        np.array([0, pages]),
        np.arange(pages),
        np.array([kv_len]),
        [] if mask is None else [mask],
    )
    keywords = {"causal": causal, "window": window, "attention_chunk": chunk}
    expected = {
        key // page_size
        for row in range(q_len)
        for key in range(kv_len)
        if visible(kv_len - q_len + row, key, keywords) and (mask is None or mask[row, key])
    }
    assert call.visible_pages(0).tolist() == sorted(expected)


def test_default_scale_and_types() -> None:
    options = attention_options("f", 16, np.float32, causal=True, alibi_slopes=np.ones(2), sinks=np.full(2, -np.inf))
    assert options.sm_scale == 0.25
    assert options.alibi_slopes is not None and options.alibi_slopes.dtype == np.float32
    assert AttentionOptions(1.0, True).reaches_back and not AttentionOptions(1.0, True, window_left=3).reaches_back


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"window": True}, ["window", "S5"]),
        ({"window": 2.0}, ["window", "is not an integer", "S5"]),
        ({"window": (1, -1)}, ["window", "S5"]),
        ({"attention_chunk": -2}, ["attention_chunk", "is too small", "S5"]),
        ({"softcap": "1"}, ["softcap", "is not a number", "S2"]),
        ({"sm_scale": float("nan")}, ["sm_scale", "S1"]),
        ({"sinks": np.array([np.nan])}, ["sinks", "head 0", "S11"]),
    ],
)
def test_refusals(keywords: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ContractError) as error:
        attention_options("f", 4, np.float32, causal=True, **keywords)
    assert all(word in str(error.value) for word in ["f:", *words])
