"""Policies that rank frames: first in, first out; hits; priority with time to live. The protocol is in `eviction`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.ragged import int_array

__all__ = ["FIFO", "LFU", "Priority"]

Int64Array: TypeAlias = npt.NDArray[np.int64]

FIRST_BATCH = 64  # victims ranked ahead
NEVER = 2**62


class _Ranked:
    """Give up the frame of the lowest rank; the base of policies that are no queue.

    A page never has a lower rank than a page below it that has entered: ranks are raised along the chain. Victims are
    ranked ahead in batches, so that one costs a sort divided by the batch.
    """

    def __init__(self, num_frames: int) -> None:
        self._inside = np.zeros(num_frames, dtype=np.bool_)
        self._rank = np.zeros(num_frames, dtype=np.int64)
        self._floor = np.zeros(num_frames, dtype=np.int64)  # the highest rank of a page below that has entered
        self._order = np.zeros(num_frames, dtype=np.int64)  # among equal ranks, who entered first
        self._entries = 0
        self._size = 0
        self._ahead: list[int] = []  # victims ranked ahead, the first to go at the end

    def __len__(self) -> int:
        return self._size

    def own_ranks(self, frames: Int64Array) -> Int64Array:
        """Return the ranks that frames have by themselves when they enter: low goes first."""
        raise AssertionError("a ranking policy says what a rank is")

    def enter(self, frames: Int64Array, above: Int64Array) -> None:
        """Take in frames at their ranks (see `EvictionPolicy`)."""
        lowest = NEVER
        for frame, parent, own in zip(frames.tolist(), above.tolist(), self.own_ranks(frames).tolist()):
            rank = max(own, int(self._floor[frame]))
            self._rank[frame] = rank
            lowest = min(lowest, rank)
            if parent >= 0 and self._floor[parent] < rank:
                self._floor[parent] = rank
        if self._ahead and lowest < self._rank[self._ahead[0]]:
            self._ahead = []  # a newcomer goes before some that were ranked ahead
        self._inside[frames] = True
        self._order[frames] = np.arange(self._entries, self._entries + frames.size)
        self._entries += int(frames.size)
        self._size += int(frames.size)

    def leave(self, frames: Int64Array) -> None:
        """Let go of frames (see `EvictionPolicy`)."""
        self._inside[frames] = False
        self._size -= int(frames.size)
        self._ahead = []

    def victims(self, n: int) -> Int64Array:
        """Choose the lowest ranks (see `EvictionPolicy`)."""
        n = whole_number("victims", "n", n, high=self._size)
        chosen: list[int] = []
        while len(chosen) < n:
            if not self._ahead:
                inside = np.flatnonzero(self._inside)
                order = np.lexsort((self._order[inside], self._rank[inside]))
                self._ahead = inside[order[: max(n, FIRST_BATCH)]][::-1].tolist()
            chosen.append(self._ahead.pop())
            self._inside[chosen[-1]] = False
        frames = np.array(chosen, dtype=np.int64)
        self._floor[frames] = 0
        self._size -= n
        return frames

    def hit(self, frames: Int64Array) -> None:
        """Ignore hits (see `EvictionPolicy`)."""

    def frames(self) -> Int64Array:
        """Return all frames inside (see `EvictionPolicy`)."""
        return np.flatnonzero(self._inside)


class FIFO(_Ranked):
    """Give up what entered first, whatever was hit since; but never a page before the pages below it.

    Parameters
    ----------
    num_frames : int
        Size of the pool.

    Examples
    --------
    >>> policy, alone = FIFO(8), np.array([-1])
    >>> for frame in (5, 6):
    ...     policy.enter(np.array([frame]), alone)
    >>> policy.leave(np.array([5]))             # a hit
    >>> policy.enter(np.array([5]), alone)
    >>> policy.victims(2).tolist()              # LRU: [6, 5]
    [5, 6]
    """

    def __init__(self, num_frames: int) -> None:
        super().__init__(num_frames)
        self._birth = np.full(num_frames, -1, dtype=np.int64)
        self._births = 0

    def own_ranks(self, frames: Int64Array) -> Int64Array:
        """Return when each entered for the first time."""
        new = frames[self._birth[frames] < 0]
        self._birth[new] = np.arange(self._births, self._births + new.size)
        self._births += int(new.size)
        return self._birth[frames]

    def victims(self, n: int) -> Int64Array:
        """Choose the oldest (see `EvictionPolicy`)."""
        frames = super().victims(n)
        self._birth[frames] = -1
        return frames


class LFU(_Ranked):
    """Give up what was hit least often, among equals what lost its last holder longest ago.

    A page above another counts as hit at least as often. Counts begin anew when a page is given up.

    Parameters
    ----------
    num_frames : int
        Size of the pool.

    Examples
    --------
    >>> policy, alone = LFU(8), np.array([-1])
    >>> policy.hit(np.array([5]))
    >>> for frame in (5, 6):
    ...     policy.enter(np.array([frame]), alone)
    >>> policy.victims(2).tolist()
    [6, 5]
    """

    def __init__(self, num_frames: int) -> None:
        super().__init__(num_frames)
        self._hits = np.zeros(num_frames, dtype=np.int64)

    def own_ranks(self, frames: Int64Array) -> Int64Array:
        """Return how often each was hit."""
        return self._hits[frames]

    def hit(self, frames: Int64Array) -> None:
        """Count hits (see `EvictionPolicy`)."""
        self._hits[frames] += 1

    def victims(self, n: int) -> Int64Array:
        """Choose the least often hit (see `EvictionPolicy`)."""
        frames = super().victims(n)
        self._hits[frames] = 0
        return frames


class Priority(_Ranked):
    """Give up expired pages, then those of low priority, among equals what lost its last holder longest ago.

    `grade` says what pages are worth; a frame that nobody graded has priority 0 and does not expire. A page above
    another is worth at least as much.

    Parameters
    ----------
    num_frames : int
        Size of the pool.
    clock : callable, optional
        Returns the time now as a number that never falls, in the unit of `grade`'s `ttl`; by default the number of
        frames that have entered so far.

    Examples
    --------
    >>> policy, alone = Priority(8), np.array([-1])
    >>> policy.grade(np.array([5]), priority=1)
    >>> for frame in (5, 6):
    ...     policy.enter(np.array([frame]), alone)
    >>> policy.victims(2).tolist()
    [6, 5]
    """

    def __init__(self, num_frames: int, *, clock: Callable[[], float] | None = None) -> None:
        super().__init__(num_frames)
        self._clock = clock
        self._priority = np.zeros(num_frames, dtype=np.int64)
        self._deadline = np.full(num_frames, np.inf)
        self._deadline_floor = np.full(num_frames, -np.inf)

    def grade(self, frames: Any, *, priority: int = 0, ttl: float | None = None) -> None:
        """Say what pages are worth from the next time they enter on.

        Parameters
        ----------
        frames : integer array (n,)
            Frames.
        priority : int
            In ``[-2**15, 2**15)``; high is kept longer.
        ttl : float, optional
            Time from now on after which they are given up first; by default they do not expire.

        Raises
        ------
        ContractError
            A frame or a priority out of range, or a time that is none.
        """
        whole = isinstance(priority, int | np.integer) and not isinstance(priority, bool)
        if not whole or not -(2**15) <= priority < 2**15:
            raise ContractError(f"grade: priority is out of range, got {priority!r}, need [-2**15, 2**15)")
        real = isinstance(ttl, int | float | np.integer | np.floating) and not isinstance(ttl, bool)
        if ttl is not None and (not real or np.isnan(ttl)):
            raise ContractError(f"grade: ttl is no time, got {ttl!r}, need a number or None")
        index = int_array("grade", "frames", frames, low=0, high=self._priority.size - 1)
        self._priority[index] = priority
        self._deadline[index] = np.inf if ttl is None else self._now() + ttl

    def own_ranks(self, frames: Int64Array) -> Int64Array:
        """Return the priority, and among equals the order of entry."""
        return (self._priority[frames] << 46) + np.arange(self._entries, self._entries + frames.size) + (1 << 61)

    def enter(self, frames: Int64Array, above: Int64Array) -> None:
        """Take in frames, and raise deadlines along the chain (see `EvictionPolicy`)."""
        for frame, parent in zip(frames.tolist(), above.tolist()):
            self._deadline[frame] = deadline = max(self._deadline[frame], self._deadline_floor[frame])
            if parent >= 0:
                self._deadline_floor[parent] = max(self._deadline_floor[parent], deadline)
        super().enter(frames, above)

    def victims(self, n: int) -> Int64Array:
        """Choose the expired, then the lowest ranks (see `EvictionPolicy`)."""
        n = whole_number("victims", "n", n, high=self._size)
        inside = np.flatnonzero(self._inside & (self._deadline <= self._now()))
        expired = inside[np.lexsort((self._rank[inside], self._deadline[inside]))][:n]
        self.leave(expired)
        frames = np.concatenate([expired, super().victims(n - int(expired.size))])
        self._floor[frames], self._priority[frames] = 0, 0
        self._deadline[frames], self._deadline_floor[frames] = np.inf, -np.inf
        return frames

    def _now(self) -> float:
        """Return the time."""
        return float(self._entries) if self._clock is None else self._clock()
