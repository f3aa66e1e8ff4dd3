"""What the emulator checks while it runs a kernel, and what it counted.

Bounds, alignment, and writes to read-only arrays are always checked. ``PAGEDREF_CUDA_CHECKS`` sets the rest:

``all``
    reads of what was never written, races in shared memory and races between blocks; counts of memory traffic.
``default``
    the same without the two race detectors.
``none``
    nothing more, no counts of traffic: the fastest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pagedref.errors import BackendUnavailable
from pagedref_cuda.emulator import Stats

__all__ = ["Counts", "counting", "current_options", "emulator_options", "record"]

_LEVELS: dict[str, dict[str, Any]] = {
    "all": {"strict": True, "races": True, "global_races": True, "traffic": True},
    "default": {"strict": True, "races": False, "global_races": False, "traffic": True},
    "none": {"strict": False, "races": False, "global_races": False, "traffic": False},
}

_chosen: ContextVar[dict[str, Any] | None] = ContextVar("pagedref_cuda_emulator_options", default=None)
_counts: ContextVar[Counts | None] = ContextVar("pagedref_cuda_counts", default=None)


def current_options() -> dict[str, Any]:
    """Return the options that the next launch on the emulator uses.

    Returns
    -------
    dict
        Keywords of :func:`emulator_options`.

    Raises
    ------
    BackendUnavailable
        ``PAGEDREF_CUDA_CHECKS`` names no level.
    """
    level = os.environ.get("PAGEDREF_CUDA_CHECKS", "").strip().lower() or "default"
    if level not in _LEVELS:
        raise BackendUnavailable(
            f"pagedref_cuda: PAGEDREF_CUDA_CHECKS is unknown, got {level!r}, need all, default or none"
        )
    return {"batch_threads": 16384, **_LEVELS[level], **(_chosen.get() or {})}


@contextmanager
def emulator_options(**options: Any) -> Iterator[None]:
    """Choose what the emulator checks, for the launches inside.

    Parameters
    ----------
    strict : bool
        Reads of shared bytes or registers that nothing has written, copies that were not waited for, exited threads
        at a barrier.
    races : bool
        Two threads touch one shared byte with no barrier between, at least one writes.
    global_races : bool
        Two blocks touch one global byte in one launch, at least one writes.
    traffic : bool
        Count sectors and bank conflicts.
    batch_threads : int
        How many threads are computed together.

    Yields
    ------
    None

    Raises
    ------
    TypeError
        An option has another name.
    """
    unknown = set(options) - {*_LEVELS["all"], "batch_threads"}
    if unknown:
        raise TypeError(f"emulator_options: {sorted(unknown)[0]} is not an option")
    token = _chosen.set({**(_chosen.get() or {}), **options})
    try:
        yield
    finally:
        _chosen.reset(token)


class Counts(dict[str, list[Stats]]):
    """What was counted: by name of the kernel, one :class:`~pagedref_cuda.emulator.Stats` for each launch."""

    def total(self, name: str) -> Stats:
        """Return the sum over all launches of one kernel.

        Parameters
        ----------
        name : str
            Name of the kernel.

        Returns
        -------
        Stats
            Counts by instruction, added up; of launches of one compilation.
        """
        whole = Stats()
        for stats in self[name]:
            whole.add(stats)
        return whole


@contextmanager
def counting() -> Iterator[Counts]:
    """Collect the counts of every launch inside; on a GPU and in the simulator there are none.

    Yields
    ------
    Counts
        Fills up while kernels run.
    """
    counts = Counts()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


def record(name: str, stats: Stats) -> None:
    """Enter the counts of one launch where they are collected.

    Parameters
    ----------
    name : str
        Name of the kernel.
    stats : Stats
        Its counts.
    """
    counts = _counts.get()
    if counts is not None:
        counts.setdefault(name, []).append(stats)
