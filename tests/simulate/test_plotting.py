"""Figures are drawn, for every kind of result, and say at once when matplotlib is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pagedref.errors import BackendUnavailable
from pagedref.plotting import simulation
from pagedref.simulate import Request, Scenario, Summary, hit_rates, jobs_of, replay, sweep

TRACE = [Request(n * 10**7, 20 + n % 9, 10, (1, n)) for n in range(60)]


def test_without_matplotlib_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BackendUnavailable, match="plotting: matplotlib is missing"):
        simulation.draw_waste([Summary(policy="paged")], tmp_path)


def test_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scenario = Scenario(slots=256, max_len=64)
    runs = sweep(jobs_of(TRACE, scenario, policy=["paged", "contiguous-max", "contiguous-pow2"]))
    names = [Path(path).name for path in simulation.draw_runs(runs, tmp_path)]
    assert names == ["waste.png", "concurrency.png"]
    sizes = sweep(jobs_of(TRACE, scenario, page_size=[1, 4, 16, 64], slots=[128, 256]))
    assert "page_size.png" in [Path(path).name for path in simulation.draw_runs(sizes, tmp_path)]
    strips = [
        replay(TRACE, Scenario(slots=256, max_len=64, policy=policy, frame_map=True))
        for policy in ("paged", "contiguous-max")
    ]
    simulation.draw_frames(strips, tmp_path)
    summaries = []
    for capacity in (2, 8, 30):
        counts = hit_rates(TRACE, 16, capacity, "fifo")
        summaries.append(Summary(eviction="fifo", slots=16 * capacity, token_hit_rate=counts.token_hit_rate))
    simulation.draw_hits(TRACE, 16, summaries, "request", tmp_path)
    for name in ("waste", "concurrency", "page_size", "frames", "hit_rate"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_frames_of_contiguous_memory_show_what_is_empty() -> None:
    run = replay(
        [Request(0, 8, 4)], Scenario(slots=64, policy="contiguous-max", max_len=32, page_size=4, frame_map=True)
    )
    assert run.frames[0].tolist() == [0, 0, *[1] * 6, *[-1] * 8], "8 stored, 24 reserved, 32 free"
