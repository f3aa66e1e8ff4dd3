"""A cache with tables for each group of layers: the same attention, and pages that leave (S5, S32)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError, OutOfFrames, PageFault
from pagedref.grouped_cache import GroupedKVCache, groups_of
from pagedref.kv_cache import PagedKVCache

HEADS, DIM = 2, 3

windows = st.lists(st.sampled_from([None, 1, 2, 3, 5]), min_size=1, max_size=6)


@given(windows)
def test_every_layer_has_one_place_in_a_group_of_its_window(own: list[int | None]) -> None:
    groups, places = groups_of(own)
    assert len(set(places)) == len(own) == len(groups) * groups[0].num_layers
    assert [groups[group].window for group, _ in places] == own
    assert len({group.name for group in groups}) == len(groups)


def run(cache: Any, own: list[int | None], chunks: list[list[int]], seed: int) -> list[Any]:
    """Append and attend in steps of two sequences; return all outputs, and fork the first in the middle."""
    rng = np.random.default_rng(seed)
    sequences = [cache.add(), cache.add()]
    outs = []
    for number, counts in enumerate(chunks):
        if number == len(chunks) // 2:
            sequences[1] = cache.fork(sequences[0])
        step = cache.begin(sequences, counts)
        for layer, window in enumerate(own):
            k, v, q = rng.standard_normal((3, sum(counts), HEADS, DIM), dtype=np.float32)
            cache.append(step, k, v, layer=layer)
            options = {} if window is None else {"window": window}
            outs.append(cache.attend(step, q, layer=layer, **options).out)
        cache.commit(step)
        cache.audit()
    return outs


@given(windows, st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), max_size=6), st.integers(1, 4))
def test_attention_is_that_of_one_table(own: list[int | None], chunks: list[list[int]], page_size: int) -> None:
    """To the bit, in poisoned pools: no page that is still seen has left."""
    spec = CacheSpec(len(own), HEADS, DIM, page_size)
    plain = run(PagedKVCache(spec, 200, poison=True), own, chunks, 7)
    grouped = GroupedKVCache(spec, 400, own, poison=True)
    for one, other in zip(run(grouped, own, chunks, 7), plain, strict=True):
        assert np.array_equal(one, other)


def test_pages_leave_the_groups_whose_window_has_passed() -> None:
    """32 tokens in pages of 2, windows of 4: 16 pages of the one group, 3 at most of the other."""
    cache = GroupedKVCache(CacheSpec(2, 1, 1, page_size=2), 40, [4, None])
    a = cache.add()
    for _ in range(32):
        step = cache.begin([a], [1])
        for layer in range(2):
            cache.append(step, *np.ones((2, 1, 1, 1), np.float32), layer=layer)
        cache.commit(step)
        assert (cache.block_table([a], layer=0) >= 0).sum() <= 3
    assert (cache.block_table([a], layer=1) >= 0).sum() == 16
    report = cache.memory_report(max_model_len=64)
    assert report.bytes_held == report.frames_held * cache.spec.bytes_per_frame // 2
    assert report.bytes_contiguous == 64 * cache.spec.bytes_per_token
    assert cache.gather(a, layer=1)[0].shape == (32, 1, 1)
    with pytest.raises(PageFault):
        cache.gather(a, layer=0)
    cache.free([a])
    assert cache.manager.num_free == 40


def test_refusals_change_nothing() -> None:
    spec = CacheSpec(2, 1, 1, page_size=2)
    with pytest.raises(ContractError, match="windows do not fit the spec, got 1, need one for each of 2 layers"):
        GroupedKVCache(spec, 4, [None])
    cache = GroupedKVCache(spec, 4, [None, 2])
    a = cache.add()
    with pytest.raises(OutOfFrames, match="in 2 groups"):
        cache.begin([a], [5])
    step = cache.begin([a], [4])
    for layer in (2, -1):
        with pytest.raises(ContractError, match="layer is out of range"):
            cache.append(step, *np.ones((2, 4, 1, 1), np.float32), layer=layer)
        with pytest.raises(ContractError, match="layer is out of range"):
            cache.arrays(layer)
    cache.abort(step)
    assert cache.manager.num_free == 4
    for refused in (cache.save, cache.restore):
        with pytest.raises(ContractError, match="groups of layers"):
            refused(a, "file")
