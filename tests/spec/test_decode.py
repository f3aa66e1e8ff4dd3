"""``paged_decode`` in NumPy: long and ragged batches, other types, nothing mutated."""

from __future__ import annotations

import numpy as np
import pytest

from pagedref.attention import paged_decode
from pagedref.conformance import assert_exact, assert_state, make_case, oracle


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_ragged_batch(dtype: str) -> None:
    """Several tiles: 16 to 3,000 tokens, page size 16 and 100, four heads a group."""
    for page_size in (16, 100):
        case = make_case(
            1, [1] * 4, [16, 3000, 257, 1025], page_size=page_size, group_size=4, head_dim=64, dtype=dtype
        )
        assert_state(paged_decode(case.q, *case.pages), oracle(case), f"page size {page_size}")


def test_float64_queries_over_a_float32_cache() -> None:
    """S15: the accumulator has the type of the queries."""
    case = make_case(2, [1, 1], [9, 4])
    wide = case.using()
    state = paged_decode(case.q.astype(np.float64), *wide.pages)
    assert state.out.dtype == state.lse.dtype == np.float64
    exact = oracle(make_case(2, [1, 1], [9, 4]))
    assert np.abs(state.out - exact.out).max() < 1e-12 < np.abs(paged_decode(case.q, *case.pages).out - exact.out).max()


def test_nothing_is_mutated() -> None:
    case = make_case(3, [1, 1], [9, 4], softcap=2.0, alibi_slopes=np.ones(4, np.float32), sinks=np.zeros(4, np.float32))
    arrays = [case.q, *case.pages, case.keywords["alibi_slopes"], case.keywords["sinks"]]
    before = [array.copy() for array in arrays]
    paged_decode(case.q, *case.pages, **case.keywords)
    for array, copy in zip(arrays, before, strict=True):
        assert_exact(array, copy)


def test_pages_of_the_size_of_a_sequence_and_of_one_token() -> None:
    expected = oracle(make_case(4, [1], [70]))
    for page_size in (1, 7, 70, 4096):
        case = make_case(4, [1], [70], page_size=page_size)
        assert_state(paged_decode(case.q, *case.pages), expected, f"page size {page_size}")
