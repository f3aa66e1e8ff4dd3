"""A sweep on a cluster: the recipe of the documentation, on two local processes (``tox -e dask``)."""

from __future__ import annotations

import pytest

from pagedref.simulate import Scenario, Synthetic, jobs_of, sweep


def test_dask_runs_the_same() -> None:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed: tox -e dask")
    trace = Synthetic(requests=60, prompt_mean=40, output_mean=30, max_len=256, seed=3)
    scenario = Scenario(slots=2048, max_len=256)
    jobs = jobs_of(trace, scenario, policy=["paged", "contiguous-max"], page_size=[1, 16])
    seen: list[int] = []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        there = sweep(jobs, client.get_executor(), progress=lambda done, total: seen.append(done))
    assert [run.summary for run in there] == [run.summary for run in sweep(jobs)]
    assert seen == [1, 2, 3, 4]
