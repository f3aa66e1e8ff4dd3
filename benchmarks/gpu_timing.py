"""Time on a GPU: events around launches that are queued behind a flush of the L2 cache; counts on the emulator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import pagedref_cuda
from pagedref_cuda import _runtime

Launches = list[tuple[Any, Any, Any, tuple[Any, ...], int]]


@contextmanager
def recorded() -> Iterator[Launches]:
    """Collect every launch inside, with its arguments, so that it can be repeated without the host's share."""
    launches: Launches = []
    original = _runtime.Kernel.launch_grid

    def launch_grid(self: Any, grid: Any, block: Any, *arguments: Any, shared_bytes: int = 0) -> None:
        if 0 not in (grid if isinstance(grid, tuple) else (grid,)):
            launches.append((self, grid, block, arguments, shared_bytes))
        original(self, grid, block, *arguments, shared_bytes=shared_bytes)

    _runtime.Kernel.launch_grid = launch_grid  # type: ignore[method-assign]
    try:
        yield launches
    finally:
        _runtime.Kernel.launch_grid = original  # type: ignore[method-assign]


def repeat(launches: Launches) -> None:
    """Launch again what was recorded."""
    for kernel, grid, block, arguments, shared_bytes in launches:
        kernel.launch_grid(grid, block, *arguments, shared_bytes=shared_bytes)


class Clock:
    """Time work on the default stream of a GPU, the L2 cache cold."""

    def __init__(self) -> None:
        from numba import cuda

        self._cuda = cuda
        device = cuda.get_current_device()
        self.l2_bytes = int(getattr(device, "L2_CACHE_SIZE", 0)) or 64 << 20
        numbers = max(4 * self.l2_bytes, 256 << 20) // 4
        self._scratch = cuda.device_array(numbers, np.uint32)
        self._ones = cuda.device_array(numbers, np.uint32)
        self._flush_seconds = 0.0
        self._flush_seconds = statistics.median(self.events(self._flush, 5, flushes=0))

    def _flush(self) -> None:
        self._scratch.copy_to_device(self._ones)

    def events(self, work: Callable[[], object], rounds: int, *, flushes: int = 1, seconds: float = 1e9) -> list[float]:
        """Return the seconds of each round, by events; the host is ahead of the device by as many flushes."""
        cuda = self._cuda
        found: list[float] = []
        end = time.perf_counter() + seconds
        while len(found) < rounds and (not found or time.perf_counter() < end):
            first, last = cuda.event(), cuda.event()
            for _ in range(flushes):
                self._flush()
            first.record()
            work()
            last.record()
            last.synchronize()
            found.append(first.elapsed_time(last) / 1e3)
        return found

    def seconds(self, work: Callable[[], object], budget: float = 0.6) -> dict[str, Any]:
        """Return median and spread of `work`, with enough flushes before it that its launches wait in the queue."""
        work()
        self._cuda.synchronize()
        start = time.perf_counter()
        work()
        queued = time.perf_counter() - start
        self._cuda.synchronize()
        flushes = 1 + int(2 * queued / max(self._flush_seconds, 1e-5))
        found = sorted(self.events(work, 40, flushes=min(flushes, 64), seconds=budget))
        return {"median": statistics.median(found), "best": found[0], "rounds": len(found)}

    def call_seconds(self, call: Callable[[], object], budget: float = 0.3) -> float:
        """Return the median time of a whole call, the host's share and waiting included."""
        found: list[float] = []
        end = time.perf_counter() + budget
        while len(found) < 10 and (not found or time.perf_counter() < end):
            start = time.perf_counter()
            call()
            self._cuda.synchronize()
            found.append(time.perf_counter() - start)
        return statistics.median(found)

    def copy_bandwidth(self) -> float:
        """Return bytes per second of a device copy, read and written, of 1 GiB (less on a small device)."""
        cuda = self._cuda
        free = cuda.current_context().get_memory_info().free
        numbers: int = min(1 << 30, free // 4) // 4
        source, target = cuda.device_array(numbers, np.uint32), cuda.device_array(numbers, np.uint32)
        seconds = statistics.median(self.events(lambda: target.copy_to_device(source), 10))
        return 2 * 4 * numbers / seconds


def counts_of(launches: Launches) -> dict[str, int]:
    """Repeat launches on the emulator and return what they did."""
    with pagedref_cuda.counting() as counts:
        repeat(launches)
    stats = [one for launched in counts.values() for one in launched]
    return {
        "launches": len(stats),
        "warp_instructions": sum(int(one.warp_instructions) for one in stats),
        "bytes_read": sum(int(one.global_bytes("ld")) for one in stats),
        "sectors": sum(int(one.sectors) for one in stats),
    }
