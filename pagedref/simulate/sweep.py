"""Many replays side by side, on any executor.

Each run is one `Job`: a trace (a description of it, not its requests), a scenario, and nothing else, so it can be sent
to another process or machine. `sweep` takes any `concurrent.futures.Executor`; without one the runs follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pagedref.errors import ContractError
from pagedref.simulate.replay import Replay, replay
from pagedref.simulate.scenario import Scenario
from pagedref.simulate.trace import Request

__all__ = ["Job", "jobs_of", "sweep"]


@dataclass(frozen=True)
class Job:
    """One run.

    Parameters
    ----------
    trace : iterable of Request
        A `Trace`, a `Synthetic` or a list; can be pickled, if the executor is to send it.
    scenario : Scenario
        The assumptions.
    """

    trace: Iterable[Request]
    scenario: Scenario

    def __call__(self, progress: Callable[[int], None] | None = None) -> Replay:
        """Run it (see `replay`)."""
        return replay(self.trace, self.scenario, progress=progress)


def jobs_of(trace: Iterable[Request], scenario: Scenario, **values: Sequence[Any]) -> list[Job]:
    """Return one job for each combination of values.

    Parameters
    ----------
    trace : iterable of Request
        What is replayed.
    scenario : Scenario
        What does not vary.
    **values : sequence
        Fields of `Scenario` that vary, each with its values.

    Returns
    -------
    list of Job
        The last field varies fastest.

    Examples
    --------
    >>> jobs = jobs_of([], Scenario(slots=64), policy=["paged", "contiguous-max"], page_size=[4, 8], max_len=[32])
    >>> [(job.scenario.policy, job.scenario.page_size) for job in jobs][:3]
    [('paged', 4), ('paged', 8), ('contiguous-max-firstfit', 4)]
    """
    unknown = [name for name in values if name not in Scenario.__dataclass_fields__]
    if unknown:
        names = ", ".join(Scenario.__dataclass_fields__)
        raise ContractError(f"jobs_of: values name no field, got {unknown[0]!r}, need one of {names}")
    return [
        Job(trace, replace(scenario, **dict(zip(values, chosen, strict=True)))) for chosen in product(*values.values())
    ]


def sweep(
    jobs: Sequence[Job], executor: Executor | None = None, *, progress: Callable[[int, int], None] | None = None
) -> list[Replay]:
    """Run jobs.

    Parameters
    ----------
    jobs : sequence of Job
        What to run.
    executor : Executor, optional
        Where: processes, a cluster's executor, or (by default) here, one after the other.
    progress : callable, optional
        Called with the runs that are through and how many there are.

    Returns
    -------
    list of Replay
        In the order of the jobs, whatever the executor.

    Raises
    ------
    ContractError
        Of the first job that failed; those that have not begun are cancelled.

    Examples
    --------
    >>> trace = [Request(0, 30, 10)] * 8
    >>> runs = sweep(jobs_of(trace, Scenario(slots=128), page_size=[1, 16, 64]))
    >>> [round(run.summary.token_state_share, 2) for run in runs]
    [0.72, 0.63, 0.54]
    """
    if executor is None:
        done = []
        for job in jobs:
            done.append(job())
            if progress is not None:
                progress(len(done), len(jobs))
        return done
    futures = [executor.submit(job) for job in jobs]
    try:
        for count, future in enumerate(as_completed(futures), 1):
            future.result()
            if progress is not None:
                progress(count, len(jobs))
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
