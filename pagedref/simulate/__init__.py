"""Memory policies on request traces: what paging buys, on published traffic and on one's own.

`open_trace` reads a trace and `Synthetic` draws one; `replay` runs it through memory and scheduler under a `Scenario`,
`sweep` does so for many; `hit_rates` and `lru_curve` look at prefix hits alone; `cache_cost` says what a token costs.
"""

from __future__ import annotations

from pagedref.simulate._synthetic import Synthetic
from pagedref.simulate.hits import HitCounts, hit_rates, lru_curve, page_uses
from pagedref.simulate.replay import Replay, replay
from pagedref.simulate.report import Summary, as_csv, as_json, as_table
from pagedref.simulate.scenario import Scenario
from pagedref.simulate.service import UNIT, Service
from pagedref.simulate.size import CacheCost, cache_cost
from pagedref.simulate.sweep import Job, jobs_of, sweep
from pagedref.simulate.trace import Request, Trace, open_trace

__all__ = [
    "UNIT",
    "CacheCost",
    "HitCounts",
    "Job",
    "Replay",
    "Request",
    "Scenario",
    "Service",
    "Summary",
    "Synthetic",
    "Trace",
    "as_csv",
    "as_json",
    "as_table",
    "cache_cost",
    "hit_rates",
    "jobs_of",
    "lru_curve",
    "open_trace",
    "page_uses",
    "replay",
    "sweep",
]
