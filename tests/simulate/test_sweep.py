"""Sweeps: every combination, in order, the same on every executor."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from pagedref.errors import ContractError
from pagedref.simulate import Scenario, Synthetic, jobs_of, sweep

TRACE = Synthetic(requests=30, prompt_mean=20, output_mean=10, max_len=64, seed=2)
JOBS = jobs_of(TRACE, Scenario(slots=256, max_len=64), policy=["paged", "contiguous-max"], page_size=[1, 8])


@pytest.mark.parametrize(
    "make", [lambda: ThreadPoolExecutor(2), lambda: ProcessPoolExecutor(2)], ids=["threads", "processes"]
)
def test_any_executor_gives_the_same(make: Any) -> None:
    here = sweep(JOBS)
    seen: list[tuple[int, int]] = []
    with make() as executor:
        there = sweep(JOBS, executor, progress=lambda done, total: seen.append((done, total)))
    assert [run.summary for run in there] == [run.summary for run in here]
    assert [run.scenario for run in here] == [job.scenario for job in JOBS]
    assert seen == [(count, len(JOBS)) for count in range(1, len(JOBS) + 1)]


class Late(Executor):
    """Runs nothing: what was submitted can still be cancelled."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if not self.futures:
            future.set_exception(ContractError("the first fails"))
        self.futures.append(future)
        return future


def test_the_rest_is_cancelled_when_one_fails() -> None:
    executor = Late()
    with pytest.raises(ContractError, match="the first fails"):
        sweep(JOBS, executor)
    assert all(future.cancelled() for future in executor.futures[1:])


def test_combinations() -> None:
    assert [(job.scenario.policy, job.scenario.page_size) for job in JOBS] == [
        ("paged", 1), ("paged", 8), ("contiguous-max-firstfit", 1), ("contiguous-max-firstfit", 8),
    ]  # fmt: skip
    with pytest.raises(ContractError, match="jobs_of: values name no field, got 'pagesize'"):
        jobs_of(TRACE, Scenario(slots=64), pagesize=[1])
