"""``paged_prefill`` in NumPy: long prompts over several tiles of rows and keys, masks, chunks."""

from __future__ import annotations

import numpy as np
import pytest

from pagedref.attention import paged_prefill
from pagedref.conformance import assert_exact, assert_state, make_case, oracle


@pytest.mark.parametrize("keywords", [{}, {"window": 100}, {"attention_chunk": 64}, {"causal": False}])
def test_long_prompt(keywords: dict[str, object]) -> None:
    case = make_case(1, [300, 2], [700, 40], page_size=16, num_kv_heads=3, group_size=3, head_dim=64, **keywords)
    assert_state(paged_prefill(case.q, case.qo_indptr, *case.pages, **keywords), oracle(case))


def test_tree_of_drafts() -> None:
    """S3, S14: slots in order, ancestors by mask; the row of a path equals that path attended alone."""
    parents = [-1, 0, 0, 1]  # four drafted tokens behind a context of 5
    mask = np.zeros((4, 9), bool)
    mask[:, :5] = True
    for token, parent in enumerate(parents):
        mask[token] |= mask[parent] if parent >= 0 else False
        mask[token, 5 + token] = True
    case = make_case(2, [4], [9], mask=[mask])
    flat = paged_prefill(case.q, case.qo_indptr, *case.pages, mask=mask.ravel())
    assert_state(flat, oracle(case))
    listed = paged_prefill(case.q, case.qo_indptr, *case.pages, mask=[mask])
    assert_exact(flat.out, listed.out)


def test_a_mask_of_nothing_and_of_everything() -> None:
    case = make_case(3, [2], [6])
    none = paged_prefill(case.q, case.qo_indptr, *case.pages, mask=[np.zeros((2, 6), bool)])
    assert (none.out == 0).all() and np.isneginf(none.lse).all()
    everything = paged_prefill(case.q, case.qo_indptr, *case.pages, mask=[np.ones((2, 6), bool)])
    assert_state(everything, oracle(case.using(causal=False)))


def test_pages_hidden_by_a_mask_may_be_holes() -> None:
    """S21: only pages with a visible key are read."""
    mask = np.zeros((1, 12), bool)
    mask[0, [0, 1, 9]] = True  # page 1 of three holds no visible key
    case = make_case(4, [1], [12], mask=[mask])
    holed = case.kv_indices.copy()
    holed[1] = -1
    state = paged_prefill(case.q, case.qo_indptr, *case.pages[:3], holed, case.pages[4], mask=[mask])
    assert_state(state, oracle(case))
