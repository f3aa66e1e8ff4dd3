"""Measure rivals in turn, so that whatever else the machine does meets all of them alike."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any


@dataclass
class Row:
    """One comparison: the seconds of each side, and the ratio that has a target.

    `ratio` is the median over rounds of (rival's seconds / ours), so above 1 we are the faster one. A target above 0 is
    the least ratio, one below 0 stands for the largest (a stored form of our own against plain float32).
    """

    name: str
    unit: str
    amount: float
    seconds: dict[str, list[float]] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)

    def rate(self, side: str) -> float:
        """Median rate of a side, in units per second (or milliseconds where the unit is ms)."""
        median = statistics.median(self.seconds[side])
        return median * 1e3 if self.unit == "ms" else self.amount / median

    def ratio(self, side: str, ours: str = "ours") -> float:
        """Median over rounds of how many times as fast as `side` we are."""
        pairs = zip(self.seconds[side], self.seconds[ours], strict=True)
        return statistics.median(theirs / mine for theirs, mine in pairs)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        ratios = {side: self.ratio(side) for side in self.seconds if side != "ours"}
        return {**asdict(self), "ratios": ratios}


def in_turn(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Run all sides once per round, the order rotating; return the seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for name in names:
        sides[name]()  # warm
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.perf_counter()
            sides[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def surroundings() -> dict[str, str]:
    """Describe what the numbers were measured on: processor and versions, no names."""
    found = {"python": platform.python_version(), "system": platform.system(), "processors": str(os.cpu_count())}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found["processor"] = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        found["processor"] = platform.machine()
    for package in ("numpy", "torch", "transformers", "threadpoolctl"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    if hasattr(os, "getloadavg"):
        found["load before"] = f"{os.getloadavg()[0]:.2f}"
    return found
