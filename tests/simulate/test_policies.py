"""Caches of page names: each against a naive one, and none better than the one that knows the future."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.simulate.policies import CACHES, Belady, make_cache

STREAMS = st.lists(st.integers(0, 9), max_size=60)


def naive(name: str, capacity: int, stream: list[int]) -> list[bool]:
    """Follow the rule of a policy over lists, slowly."""
    inside: list[int] = []
    used: dict[int, int] = {}
    since: dict[int, int] = {}  # when it got its present count
    hits = []
    for now, page in enumerate(stream):
        hit = page in inside
        hits.append(hit)
        if not hit and len(inside) == capacity:
            if name == "lfu":
                victim = min(inside, key=lambda one: (used[one], since[one]))
            elif name == "clock":
                while used[inside[0]]:
                    used[inside[0]] = 0
                    inside.append(inside.pop(0))
                victim = inside[0]
            else:
                victim = inside[0]
            inside.remove(victim)
            del used[victim]
        if hit and name == "lru":
            inside.remove(page)
            inside.append(page)
        if not hit:
            inside.append(page)
            used[page] = 0
        else:
            used[page] = 1 if name == "clock" else used[page] + 1
        since[page] = now
    return hits


@pytest.mark.parametrize("name", ["lru", "fifo", "lfu", "clock"])
@given(stream=STREAMS, capacity=st.integers(1, 6))
def test_simple_policies_against_naive_ones(name: str, stream: list[int], capacity: int) -> None:
    cache = make_cache(name, capacity)
    assert [cache.access(page) for page in stream] == naive(name, capacity, stream)


def best(stream: list[int], capacity: int) -> int:
    """Return the most hits that any cache can have that takes in every page, by trying everything."""
    states = {frozenset[int](): 0}
    for page in stream:
        after: dict[frozenset[int], int] = {}
        for state, hits in states.items():
            if page in state:
                choices, hits = [state], hits + 1
            elif len(state) < capacity:
                choices = [state | {page}]
            else:
                choices = [state - {victim} | {page} for victim in state]
            for choice in choices:
                after[choice] = max(after.get(choice, 0), hits)
        states = after
    return max(states.values())


@given(st.lists(st.integers(0, 5), max_size=18), st.integers(1, 3))
def test_belady_is_the_best_there_is(stream: list[int], capacity: int) -> None:
    cache = Belady(capacity, stream)
    assert sum(cache.access(page) for page in stream) == best(stream, capacity)


@pytest.mark.parametrize("name", sorted(CACHES))
@given(stream=STREAMS, capacity=st.integers(1, 8))
def test_no_policy_beats_belady_or_its_capacity(name: str, stream: list[int], capacity: int) -> None:
    cache, future = make_cache(name, capacity), Belady(capacity, stream)
    hits, inside = 0, set[int]()
    for page in stream:
        assert (page in cache) == (page in inside)
        hit = cache.access(page)
        assert hit == (page in inside), "what hits was there"
        hits += hit
        inside = {one for one in range(10) if one in cache}
        assert page in inside and len(cache) == len(inside) <= capacity
    assert hits <= sum(future.access(page) for page in stream)


def test_s3fifo_remembers_names() -> None:
    cache: Any = make_cache("s3fifo", 10)  # a small queue of one
    for page in range(10):
        cache.access(page)  # the first fills the small queue, the others go to the main one
    cache.access(99)
    assert 99 in cache and len(cache) == 10
    gone = next(page for page in range(10) if page not in cache)
    assert not cache.access(gone) and gone in cache


def test_arc_keeps_what_comes_again_through_a_scan() -> None:
    cache = make_cache("arc", 4)
    for page in (1, 2, 1, 2, *range(100, 120)):
        cache.access(page)
    assert 1 in cache and 2 in cache
    lru = make_cache("lru", 4)
    for page in (1, 2, 1, 2, *range(100, 120)):
        lru.access(page)
    assert 1 not in lru


def test_refusals() -> None:
    with pytest.raises(ContractError, match="make_cache: policy is unknown, got 'mru', need one of lru"):
        make_cache("mru", 3)
    with pytest.raises(ContractError, match="make_cache: capacity is wrong, got 0"):
        make_cache("lru", 0)
    assert len(make_cache(lambda capacity: make_cache("fifo", capacity + 1), 3)) == 0
