"""Replays: accounts that balance, steps passed at once as one by one, published rules followed to the integer."""

from __future__ import annotations

import tracemalloc
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.memory.contiguous import Waste
from pagedref.scheduling import Limits
from pagedref.simulate import UNIT, Request, Scenario, replay
from pagedref.simulate import scenario as scenario_module
from pagedref.simulate._managed_memory import ManagedMemory
from tests.simulate.random_traces import PAGE, requests, scenarios


def managed(scenario: Scenario) -> Scenario:
    """Return the scenario with the manager in place of counted frames."""
    return replace(scenario, frame_map=True)


def same(a: Any, b: Any) -> None:
    """Compare two results, the points of the series aside (they are taken at other moments)."""
    assert a.summary == b.summary


@given(requests(), scenarios())
def test_jumping_is_stepping(trace: list[Request], scenario: Scenario) -> None:
    same(replay(trace, scenario), replay(trace, scenario, jump=False))


@given(requests(), scenarios(policies=["paged"]), st.integers(1, 3), st.integers(0, 1))
def test_counted_frames_are_managed_frames(
    trace: list[Request], scenario: Scenario, samples: int, watermark: int
) -> None:
    scenario = replace(scenario, samples=min(samples, scenario.limits.max_running or 3), watermark=watermark)
    counted, named = replay(trace, scenario), replay(trace, managed(scenario))
    assert not isinstance(scenario_module.make_memory(scenario), ManagedMemory)
    same(counted, named)


@given(
    requests(named=True),
    scenarios(policies=["paged"], limits=Limits(token_budget=16)),
    st.sampled_from(["lru", "fifo", "lfu", "clock", "s3fifo", "arc"]),
    st.booleans(),
    st.sampled_from([None, 3, 6]),
    st.sampled_from([(1, 1), (3, 1), (1, 3)]),
)
@settings(max_examples=60)
def test_sharing_windows_rows_jump_too(
    trace: list[Request], scenario: Scenario, eviction: str, named: bool, window: int | None, rows: tuple[int, int]
) -> None:
    scenario = replace(
        scenario, sharing=True, eviction=eviction, names_per=PAGE if named else None, window=window,
        samples=rows[0], beams=rows[1],
        limits=replace(scenario.limits, preemption="recompute"),
    )  # fmt: skip
    counted: list[Waste] = []
    stepped = replay(trace, scenario, by_step=lambda running, waste: counted.append(waste))
    assert all(min(waste) >= 0 and sum(waste) == stepped.summary.slots for waste in counted), counted
    same(replay(trace, scenario), stepped)
    assert stepped.summary.completed + stepped.summary.refused <= len(trace)
    if scenario.until == "drained":
        assert stepped.summary.completed + stepped.summary.refused == len(trace)


@given(requests(), scenarios(policies=["paged"]), st.sampled_from([None, 5]), st.integers(1, 2), st.booleans())
@settings(max_examples=60)
def test_swapping_jumps_too(
    trace: list[Request], scenario: Scenario, window: int | None, samples: int, sharing: bool
) -> None:
    limits = replace(scenario.limits, preemption="swap")
    scenario = replace(
        scenario, limits=limits, host_slots=20, disk_slots=40, window=window, samples=samples, sharing=sharing
    )
    stepped = replay(trace, scenario, jump=False)
    same(replay(trace, scenario), stepped)
    if stepped.summary.swaps:
        assert stepped.summary.swapped_pages > 0


@given(requests(), scenarios())
def test_every_slot_is_counted_once(trace: list[Request], scenario: Scenario) -> None:
    rows: list[tuple[int, Waste]] = []
    summary = replay(trace, scenario, by_step=lambda running, waste: rows.append((running, waste))).summary
    assert all(sum(waste) == summary.slots and min(waste) >= 0 for _, waste in rows)
    assert [sum(waste[kind] for _, waste in rows) for kind in range(4)] == [
        summary.token_states, summary.reserved, summary.internal, summary.external,
    ]  # fmt: skip
    assert summary.steps == len(rows)
    if rows:
        assert summary.mean_running == sum(running for running, _ in rows) / len(rows)
        assert summary.token_state_share == summary.token_states / (summary.slots * len(rows))


def by_the_book(trace: list[Request], slots: int, page_size: int) -> list[list[int]]:
    """Count paged memory step by step, naively: the rules of the golden README, section 4."""
    frames, queue = slots // page_size, deque((number, 0) for number in range(len(trace)))
    running: list[list[int]] = []  # request, k, pages
    rows = []
    while True:
        preempted = False
        for entry in list(running):
            number, k, pages = entry
            if entry not in running:
                continue
            need = -(-(trace[number].prompt_len + k) // page_size) - pages
            while need > frames and entry in running:
                victim = running.pop()
                frames += victim[2]
                queue.appendleft((victim[0], victim[1]))
                preempted = True
            if entry in running:
                frames -= need
                entry[2] += need
        while queue and not preempted:
            number, k = queue[0]
            need = -(-(trace[number].prompt_len + k) // page_size)
            if need > frames:
                break
            queue.popleft()
            frames -= need
            running.append([number, k, need])
        if not queue:
            return rows
        states = reserved = internal = 0
        for number, k, pages in running:
            final = trace[number].prompt_len + trace[number].output_len - 1
            stored = trace[number].prompt_len + k
            states += stored
            reserved += min(pages * page_size, final) - stored
            internal += pages * page_size - min(pages * page_size, final)
        rows.append([len(running), states, reserved, internal, frames * page_size])
        for entry in list(running):
            entry[1] += 1
            if entry[1] == trace[entry[0]].output_len:
                frames += entry[2]
                running.remove(entry)


@given(
    st.lists(st.builds(Request, st.just(0), st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=15),
    st.integers(1, 9),
    st.integers(36, 90),
)
def test_paged_memory_by_the_book(trace: list[Request], page_size: int, slots: int) -> None:
    slots -= slots % page_size
    trace = [one for one in trace if -(-(one.prompt_len + one.output_len - 1) // page_size) <= slots // page_size]
    if not trace:
        return
    rows: list[list[int]] = []
    scenario = Scenario(slots=slots, page_size=page_size, service=UNIT, until="saturated")
    replay(trace, scenario, by_step=lambda running, waste: rows.append([running, *waste]))
    assert rows == by_the_book(trace, slots, page_size)


def test_the_text_example() -> None:
    """100 tokens in room for 4,000: 97.5 % waste; in pages of 16 under 11 %."""
    trace = [Request(0, 1, 100)]
    last: list[Waste] = []
    replay(
        trace,
        Scenario(slots=4000, policy="contiguous-max", max_len=4000, service=UNIT),
        by_step=lambda _, w: last.append(w),
    )
    assert last[-1] == Waste(100, 0, 3900, 0) and 1 - last[-1].token_states / sum(last[-1]) == 0.975
    paged: list[Waste] = []
    replay(trace, Scenario(slots=112, service=UNIT), by_step=lambda _, w: paged.append(w))
    held = sum(paged[-1]) - paged[-1].external
    assert held == 112 and 1 - paged[-1].token_states / held < 0.11


def test_prefixes_hit_and_time_passes() -> None:
    first, second = Request(0, 12, 2, (1, 2, 3)), Request(60 * 10**9, 12, 2, (1, 2, 9))
    shared = Scenario(slots=64, page_size=4, sharing=True, names_per=4, service=UNIT)
    summary = replay([first, second], shared).summary
    assert (summary.token_hit_rate, summary.page_hit_rate) == (8 / 24, 2 / 6)
    assert summary.request_mean_hit_rate == (0 + 8 / 12) / 2
    assert summary.makespan == 62 and summary.steps == 4 and summary.computed_tokens == 12 + 4 + 2
    assert replay([first, second], replace(shared, sharing=False)).summary.token_hit_rate is None
    same_again = replay([first, first._replace(arrival=60 * 10**9)], shared).summary
    assert same_again.token_hit_rate == 8 / 24, "the last token is computed, floored to whole pages (S29)"


def test_rows_share_their_prompt() -> None:
    trace = [Request(0, 8, 5)]
    alone = replay(trace, Scenario(slots=64, page_size=4, samples=3)).summary
    shared = replay(trace, Scenario(slots=64, page_size=4, samples=3, sharing=True)).summary
    assert alone.shared_share == 0 and shared.shared_share > 0.3
    assert alone.computed_tokens == 3 * 8 + 3 * 4 and shared.computed_tokens == 8 + 3 * 4
    beams = replay(trace, Scenario(slots=64, page_size=4, beams=3, sharing=True)).summary
    assert beams.shared_share >= shared.shared_share
    assert replay(trace, Scenario(slots=64, page_size=4, beams=3, sharing=True)).summary == beams, "drawn from a seed"


def test_a_window_keeps_a_request_small() -> None:
    trace = [Request(0, 4, 100)]
    whole = replay(trace, Scenario(slots=128, page_size=4, service=UNIT)).summary
    narrow = replay(trace, Scenario(slots=128, page_size=4, window=8, service=UNIT)).summary
    assert whole.token_states == sum(range(4, 104))
    assert narrow.token_states == sum(min(n, 8) for n in range(4, 104))
    assert narrow.external > whole.external


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 12), st.integers(1, 7))
def test_a_page_goes_when_its_last_token_leaves_the_window(
    prompt: int, output: int, window: int, page_size: int
) -> None:
    rows: list[Waste] = []
    scenario = Scenario(slots=70 * page_size, page_size=page_size, window=window, service=UNIT)
    replay([Request(0, prompt, output)], scenario, by_step=lambda _, waste: rows.append(waste))
    for length, waste in enumerate(rows, prompt):
        behind = max(0, length - window) // page_size if length > prompt else 0  # pages; a prompt is read at once
        held = (-(-length // page_size) - behind) * page_size
        assert sum(waste) - waste.external == held, length
        assert waste.token_states == min(length, window)


def test_what_can_never_fit_is_refused_and_counted() -> None:
    trace = [Request(0, 100, 5), Request(0, 4, 4)]
    for policy in ("paged", "contiguous-max", "contiguous-oracle-buddy"):
        summary = replay(trace, Scenario(slots=64, policy=policy, max_len=64)).summary
        assert (summary.requests, summary.refused, summary.completed) == (2, 1, 1)


def test_refusals() -> None:
    with pytest.raises(ContractError, match="replay: trace can be read only once"):
        replay(iter([Request(0, 1, 1)]), Scenario(slots=16))
    with pytest.raises(ContractError, match="replay: trace is out of order"):
        replay([Request(5, 1, 1), Request(4, 1, 1)], Scenario(slots=16))
    with pytest.raises(ContractError, match="replay: pages of request 0 are too few, got 0 for 3 tokens"):
        replay([Request(0, 3, 1)], Scenario(slots=16, page_size=2, sharing=True, names_per=2))


class Long:
    """A trace that is nowhere in memory."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return (Request(n * 10**7, 20 + n % 7, 5 + n % 11, (n, n + 1)) for n in range(self.count))


@pytest.mark.parametrize("policy", ["paged", "contiguous-pow2"])
def test_memory_does_not_grow_with_the_trace(policy: str) -> None:
    """Also where the machine cannot keep up and ever more requests wait: they wait in the trace."""
    peaks = []
    for count in (4000, 9000):
        tracemalloc.start()
        replay(Long(count), Scenario(slots=512, policy=policy, max_len=64))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks


def test_work_is_linear_in_the_trace() -> None:
    """Counted, not timed: calls into the memory."""
    import cProfile
    import pstats

    counts = []
    for count in (200, 400, 800):
        profile = cProfile.Profile()
        profile.runcall(replay, Long(count), Scenario(slots=512))
        counts.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    assert counts[2] - counts[1] < 2.2 * (counts[1] - counts[0]), counts


def test_the_series_is_bounded_and_the_frames_are_told() -> None:
    result = replay(Long(900), Scenario(slots=512, page_size=4, frame_map=True))
    assert len(result.series.points) <= 512 and len(result.frames) == len(result.series.points)
    assert all(frames.size == 128 for frames in result.frames)
    assert max(frames.max() for frames in result.frames) < 2 * 900
    times = result.series.column("time")
    assert times == sorted(times) and times[-1] == result.summary.makespan
