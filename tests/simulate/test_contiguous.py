"""What paging replaced: runs of slots against a map of the pool, and the account of every slot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory.contiguous import RESERVATIONS, Waste, make_space, slots_to_reserve


def free_runs(used: list[bool]) -> list[tuple[int, int]]:
    """List the free runs of a map of slots."""
    runs, start = [], None
    for at, taken in enumerate([*used, True]):
        if not taken and start is None:
            start = at
        if taken and start is not None:
            runs.append((start, at - start))
            start = None
    return runs


def expected_start(placement: str, used: list[bool], size: int) -> int | None:
    """Say where a run goes, from the map alone."""
    fitting = [(start, length) for start, length in free_runs(used) if length >= size]
    if placement == "bestfit":
        fitting.sort(key=lambda run: run[1])
    return fitting[0][0] if fitting else None


@pytest.mark.parametrize("placement", ["firstfit", "bestfit"])
@given(data=st.data())
def test_fits_against_a_map(placement: str, data: Any) -> None:
    total = data.draw(st.integers(1, 60))
    space, used, runs = make_space(placement, total), [False] * total, {}
    for _ in range(data.draw(st.integers(0, 40))):
        if runs and data.draw(st.booleans()):
            start = data.draw(st.sampled_from(sorted(runs)))
            size = runs.pop(start)
            used[start : start + size] = [False] * size
            space.free(start)
        else:
            size = data.draw(st.integers(1, total))
            where = expected_start(placement, used, size)
            if where is None:
                with pytest.raises(OutOfFrames):
                    space.alloc(size)
                continue
            assert space.alloc(size) == where
            used[where : where + size] = [True] * size
            runs[where] = size
        assert space.holes() == free_runs(used)
        assert space.num_allocated == sum(used)


@given(data=st.data())
def test_buddies(data: Any) -> None:
    """Runs are aligned, do not meet, and all come together again; the smallest free run is halved."""
    total = data.draw(st.integers(1, 200))
    space, used, runs = make_space("buddy", total), [False] * total, {}
    whole = space.holes()
    assert sum(size for _, size in whole) == total
    for _ in range(data.draw(st.integers(0, 40))):
        if runs and data.draw(st.booleans()):
            start = data.draw(st.sampled_from(sorted(runs)))
            size = runs.pop(start)
            used[start : start + size] = [False] * size
            space.free(start)
        else:
            size = data.draw(st.integers(1, total))
            rounded = space.size_of(size)
            fitting = sorted((length, start) for start, length in space.holes() if length >= rounded)
            if not fitting:
                with pytest.raises(OutOfFrames):
                    space.alloc(size)
                continue
            start = space.alloc(size)
            assert start == fitting[0][1] and start % rounded == 0 and size <= rounded < 2 * size
            assert not any(used[start : start + rounded])
            used[start : start + rounded] = [True] * rounded
            runs[start] = rounded
        assert space.num_allocated == sum(used) == total - sum(size for _, size in space.holes())
    for start in runs:
        space.free(start)
    assert space.holes() == whole


@pytest.mark.parametrize("placement", ["firstfit", "bestfit", "buddy"])
@given(total=st.integers(1, 100), size=st.integers(1, 100))
def test_how_many_runs_an_empty_space_holds(placement: str, total: int, size: int) -> None:
    space, count = make_space(placement, total), 0
    while True:
        try:
            space.alloc(size)
        except OutOfFrames:
            break
        count += 1
    assert count == make_space(placement, total).num_runs(size)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 500))
def test_reservations(prompt: int, output: int, more: int) -> None:
    longest = prompt + output + more
    most, pow2, oracle = (slots_to_reserve(rule, prompt, output, longest) for rule in RESERVATIONS)
    assert oracle == prompt + output - 1 < pow2 <= most == longest
    power = pow2 - prompt
    assert pow2 == longest or (power & (power - 1) == 0 and power >= output and power < 2 * output)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_four_kinds_sum_to_the_pool(stored: int, more: int, extra: int, free: int) -> None:
    allocated, final = stored + more, stored + extra
    waste = Waste.of_request(stored, allocated, final, allocated + free)
    assert sum(waste) == allocated + free and min(waste) >= 0
    assert waste.reserved == min(more, extra)


def test_refusals() -> None:
    space = make_space("firstfit", 8)
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ContractError, match="alloc: size is wrong"):
            space.alloc(wrong)  # type: ignore[arg-type]
    start = space.alloc(8)
    space.free(start)
    for made in (space, make_space("buddy", 8)):
        with pytest.raises(CorruptionError, match="free: start begins no run, got 0"):
            made.free(0)
    with pytest.raises(ContractError, match="make_space: placement is unknown, got 'worstfit'"):
        make_space("worstfit", 8)
    with pytest.raises(ContractError, match="slots_to_reserve: rule is unknown"):
        slots_to_reserve("half", 1, 1, 8)
    with pytest.raises(ContractError, match=r"too long, got 8 \+ 1 tokens, need at most 8"):
        slots_to_reserve("max", 8, 1, 8)
