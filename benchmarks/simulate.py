"""The simulator by itself: ``python -m benchmarks.simulate TRACES``; ours beside the figures of public simulators.

TRACES is the folder with the public traces (Mooncake conversation, Azure conversation); without it only what needs no
file is measured. The figures of others are those of one loaded two-core machine (Python 3.11, one process): compare
orders of magnitude, or run both sides together. Processor time is printed, which other processes disturb least.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from pagedref.scheduling import Limits
from pagedref.simulate import Request, Scenario, Synthetic, hit_rates, lru_curve, open_trace, page_uses, replay

MOONCAKE, AZURE = "mooncake_conversation_trace.jsonl", "azure_llm_2023_conv.csv"
CAPACITIES = [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000]
POLICIES = ["paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle"]


def taken(call: Callable[[], object], rounds: int = 3) -> float:
    """Return the median processor time of a call, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return float(np.median(times))


def row(what: str, ours: float, target: str = "", others: str = "") -> None:
    print(f"{what:<62}{ours:>9.3f}  {target:<24}{others}")


def hits(path: Path) -> None:
    trace = list(open_trace(path, page_size=512))
    parse = taken(lambda: list(open_trace(path, page_size=512)))
    row("parse the JSONL, every line checked", parse, "", "0.067 parse alone")
    uses = page_uses(trace, 512)

    def all_at_once() -> None:
        lru_curve(page_uses(trace, 512), CAPACITIES)

    row(
        f"LRU at 7 capacities, {uses.pages.size:,} uses, one pass", taken(all_at_once), "0.49, 0.3 x 0.85",
        "kvcache-simulator 0.85 for one (Python), 0.49 for 7 x 3 (C++)",
    )  # fmt: skip
    others = {"lru": "0.162 libcachesim", "fifo": "0.154 libcachesim", "s3fifo": "0.368 libcachesim", "belady": "0.238"}
    for policy in ("lru", "fifo", "lfu", "clock", "s3fifo", "arc", "belady"):
        seconds = taken(lambda policy=policy: hit_rates(trace, 512, 20_000, policy))
        row(f"{policy} at 20,000 pages, one replay", seconds, "", others.get(policy, ""))


def whole(path: Path) -> None:
    trace = open_trace(path)
    longest = max(request.prompt_len + request.output_len for request in trace)
    total = 0.0
    for policy in POLICIES:
        scenario = Scenario(slots=15_728, policy=policy, max_len=longest, limits=Limits(token_budget=2048))
        seconds = taken(lambda scenario=scenario: replay(trace, scenario), 1)
        total += seconds
        row(f"Azure conversation, {policy}", seconds)
    row("Azure conversation, four policies", total, "30")


def growth() -> None:
    base = 0.0
    for factor in (1, 2, 4):
        trace: Iterable[Request] = Synthetic(requests=2000 * factor, rate=3.0, seed=1)
        seconds = taken(lambda trace=trace: replay(trace, Scenario(slots=15_728)))
        base = base or seconds
        tracemalloc.start()
        replay(trace, Scenario(slots=15_728))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        row(f"{2000 * factor:,} drawn requests", seconds, f"{seconds / base:.2f} x", f"{peak / 1e6:.2f} MB at most")


def main() -> None:
    print(f"{'what (processor time, s)':<62}{'ours':>9}  {'at most':<24}others")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if folder is not None:
        hits(folder / MOONCAKE)
        whole(folder / AZURE)
    growth()


if __name__ == "__main__":
    main()
