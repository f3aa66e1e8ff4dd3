"""Prefix hits: one pass for LRU at all capacities, the memory manager itself, and the best that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.memory import KVManager
from pagedref.simulate import Request, hit_rates, lru_curve, page_uses
from pagedref.simulate._wavelet import count_below
from pagedref.simulate.hits import lru_depths
from pagedref.simulate.policies import CACHES


@st.composite
def traces(draw: Any, *, chains: bool = True) -> list[Request]:
    """Draw requests whose pages are prefixes, or (not `chains`) any different numbers."""
    found = []
    for _ in range(draw(st.integers(1, 14))):
        if chains:
            path = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
            pages = tuple(int("1" + "".join(map(str, path[: n + 1])), 3) for n in range(len(path)))
        else:
            pages = tuple(draw(st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True)))
        short = draw(st.integers(0, 3))
        found.append(Request(0, 4 * len(pages) - short, 1, pages))
    return found


@given(st.data())
def test_the_wavelet_matrix_counts(data: Any) -> None:
    numbers = data.draw(st.lists(st.integers(0, 40), max_size=40))
    questions = data.draw(st.lists(st.tuples(st.integers(0, len(numbers)), st.integers(0, 45)), max_size=20))
    firsts, bounds = np.array(questions, np.int64).reshape(-1, 2).T
    got = count_below(np.array(numbers, np.int64), firsts, bounds).tolist()
    assert got == [sum(number < bound for number in numbers[:first]) for first, bound in questions]


@pytest.mark.parametrize("order", ["request", "access"])
@given(chains=st.booleans(), data=st.data(), warmup=st.integers(0, 3))
def test_one_pass_is_every_capacity(order: Any, chains: bool, data: Any, warmup: int) -> None:
    trace = data.draw(traces(chains=chains))
    warmup = min(warmup, len(trace) - 1)
    capacities = [1, 2, 3, 5, 8, 13, 60]
    curve = lru_curve(page_uses(trace, 4), capacities, order=order, warmup=warmup)
    alone = [hit_rates(trace, 4, capacity, order=order, warmup=warmup) for capacity in capacities]
    for one, other in zip(curve, alone, strict=True):
        assert round(one.request_mean_hit_rate, 12) == round(other.request_mean_hit_rate, 12)  # summed in another order
        assert vars(one) | {"request_mean_hit_rate": 0} == vars(other) | {"request_mean_hit_rate": 0}
    assert [one.page_hits for one in curve] == sorted(one.page_hits for one in curve), "more room, more hits"


@given(traces(), st.integers(6, 20))
@settings(max_examples=50)
def test_the_memory_manager_hits_the_same(trace: list[Request], capacity: int) -> None:
    """One request at a time through a `KVManager`: whole pages only, so prompts are cut to them here."""
    trace = [request._replace(prompt_len=4 * len(request.pages)) for request in trace]
    manager = KVManager(capacity, 4)
    hits = 0
    for request in trace:
        admitted = manager.admit(np.repeat(request.pages, 4), recompute_last=False)
        hits += admitted.hit.num_tokens
        manager.commit(admitted.seq_id, manager.reserved(admitted.seq_id))
        manager.free(admitted.seq_id)
    manager.audit()
    assert hits == hit_rates(trace, 4, capacity).token_hits


@given(traces(), st.integers(1, 12))
def test_the_optimum_bounds_every_policy(trace: list[Request], capacity: int) -> None:
    for order in ("request", "access"):
        counts = {name: hit_rates(trace, 4, capacity, name, order=order) for name in CACHES}
        bound = hit_rates(trace, 4, capacity, "belady", order="access").object_hits
        assert all(one.object_hits <= bound for name, one in counts.items() if order == "access")
        assert all(one.page_hits <= one.object_hits for one in counts.values())
    best = hit_rates(trace, 4, capacity, "belady", order="request")
    everything = hit_rates(trace, 4, 1000, "belady")
    assert best.page_hits <= everything.page_hits == hit_rates(trace, 4, 1000).page_hits


def test_depths_by_hand() -> None:
    trace = [Request(0, 8, 1, (1, 2)), Request(0, 8, 1, (1, 3)), Request(0, 8, 1, (1, 2))]
    uses = page_uses(trace, 4)
    assert lru_depths(uses).tolist() == [6, 6, 0, 6, 0, 2]
    assert lru_depths(uses, "access").tolist() == [6, 6, 1, 6, 1, 2]


def test_refusals() -> None:
    trace = [Request(0, 8, 1, (1, 2))]
    with pytest.raises(ContractError, match="hit_rates: pages do not fit the prompt, got 2 for 8 tokens of request 0"):
        page_uses(trace, 16)
    with pytest.raises(ContractError, match="hit_rates: order is unknown"):
        hit_rates(trace, 4, 1, order="both")  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="trace is too short, got no request after 1"):
        hit_rates(trace, 4, 1, warmup=1)
    with pytest.raises(ContractError, match="lru_curve: capacities is wrong, got 0"):
        lru_curve(page_uses(trace, 4), [0])
