"""Append, gather and copy on the NumPy backend, beyond what the conformance suite asks of every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.attention import append_kv, copy_frames, gather_kv
from pagedref.conformance import assert_exact
from pagedref.errors import ContractError

PAGE = 3


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(0, 20), data=st.data())
def test_what_is_appended_is_gathered(seed: int, length: int, data: st.DataObject) -> None:
    """In any order of writes, the slots of a random table give back the tokens in order of position."""
    rng = np.random.default_rng(seed)
    pages = -(-length // PAGE)
    frames = rng.permutation(pages + 2)[:pages]
    slots = np.array([frames[t // PAGE] * PAGE + t % PAGE for t in range(length)], np.int64)
    keys, values = (rng.standard_normal((length, 2, dim)).astype(np.float32) for dim in (4, 3))
    k_cache, v_cache = (np.full((pages + 2, PAGE, 2, dim), np.nan, np.float32) for dim in (4, 3))
    order = np.array(data.draw(st.permutations(range(length))), int)
    cut = length // 2
    for part in (order[:cut], order[cut:]):
        append_kv(keys[part], values[part], k_cache, v_cache, slots[part])
    last = np.array([(length - 1) % PAGE + 1 if length else 0])
    read = gather_kv(k_cache, v_cache, np.array([0, pages]), frames, last)
    assert_exact(read[0], keys)
    assert_exact(read[1], values)


def test_a_narrower_cache_rounds_once() -> None:
    pool = np.zeros((1, 1, 1, 1), np.float32)
    append_kv(np.full((1, 1, 1), 1 + 2.0**-24), np.full((1, 1, 1), 0.1), pool, pool.copy(), np.array([0]))
    assert pool.item() == 1.0, "halfway goes to even"


@pytest.mark.parametrize("strided", [False, True])
def test_copies_within_each_array(strided: bool) -> None:
    rng = np.random.default_rng(0)
    pools: list[Any] = [rng.standard_normal((5, 4)), rng.integers(0, 9, (5, 2, 2)).astype(np.int8)]
    if strided:
        pools = [np.repeat(pool, 2, axis=0)[::2] for pool in pools]
    before = [pool.copy() for pool in pools]
    copy_frames(pools, np.array([0, 0, 3], np.int32), np.array([4, 1, 2], np.int32))
    for pool, old in zip(pools, before, strict=True):
        assert_exact(pool, old[[0, 0, 3, 3, 0]])


def test_nothing_is_copied_when_one_array_is_too_short() -> None:
    """S26: the second array has no such frame, so the first is not touched either."""
    first, second = np.arange(4.0), np.arange(2.0)
    with pytest.raises(ContractError, match=r"arrays\[1\]"):
        copy_frames([first, second], np.array([0]), np.array([3]))
    assert first.tolist() == [0, 1, 2, 3]
