"""Which cached frame is given up first (S31): one small protocol, and seven policies.

A frame enters a policy when its last holder goes while its content is kept for prefix hits, and leaves it when a hit
revives it or when it is given up. A policy knows frames only: no keys, no tokens, no sequences.

==============  =======================================================  ============================================
policy          gives up first                                           a prefix hit
==============  =======================================================  ============================================
`LRU`           what lost its last holder longest ago                    moves a page to the back
`FIFO`          what entered first                                       moves nothing
`LFU`           what was hit least often, then as `LRU`                  counts
`Clock`         what the hand meets with its accessed bit off            sets the bit: one more round
`S3FIFO`        what came once and is not hit in a small first queue     counts: another round in the main queue
`ARC`           of what was used once, or of what was hit, the oldest    moves a page to those that were hit
`Priority`      expired pages, then low priority, then as `LRU`          as `LRU`
==============  =======================================================  ============================================

**Deepest first.** Frames enter tail first, and each comes with the frame *above* it, the page before it in its
sequence. Every policy here gives up a page before the page above it, so that a chain is eaten from its end: a page
whose head is gone could never be hit again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory._ghosted import ARC, S3FIFO
from pagedref.memory._numbers import whole_number
from pagedref.memory._queue import FrameQueue
from pagedref.memory._ranked import FIFO, LFU, Priority

__all__ = [
    "ARC", "FIFO", "LFU", "LRU", "S3FIFO", "Clock", "EvictionPolicy", "NamingPolicy", "Priority", "make_policy",
]  # fmt: skip

Int64Array: TypeAlias = npt.NDArray[np.int64]


@runtime_checkable
class EvictionPolicy(Protocol):
    """What the pool asks of a policy; all methods are vectorised over frames.

    The pool calls `leave` and `victims` only for frames that have entered and are still inside.
    """

    def __len__(self) -> int:
        """Return the number of frames inside."""
        ...

    def enter(self, frames: Int64Array, above: Int64Array) -> None:
        """Take in frames that lost their last holder, in the order given.

        Parameters
        ----------
        frames : int64 array (n,)
            Frames, not inside, each named once; tail first within a sequence.
        above : int64 array (n,)
            The frame of the page before each in its sequence, -1 for a first page or one after a hole. It is inside,
            enters in this same call, or still has a holder.
        """
        ...

    def leave(self, frames: Int64Array) -> None:
        """Let go of frames that a hit revives.

        Parameters
        ----------
        frames : int64 array (n,)
            Frames inside, each named once.
        """
        ...

    def victims(self, n: int) -> Int64Array:
        """Choose frames to give up, and let go of them.

        Parameters
        ----------
        n : int
            How many, at most as many as are inside.

        Returns
        -------
        int64 array (n,)
            In the order in which they go; a page before the page above it.
        """
        ...

    def hit(self, frames: Int64Array) -> None:
        """Hear that a prefix hit found these frames, inside or held.

        Parameters
        ----------
        frames : int64 array (n,)
            Frames, each named once.
        """
        ...

    def frames(self) -> Int64Array:
        """Return all frames inside, in any order; for audits.

        Returns
        -------
        int64 array
        """
        ...


@runtime_checkable
class NamingPolicy(EvictionPolicy, Protocol):
    """A policy that also wants to know what a frame holds, because it remembers what has gone."""

    def named(self, frames: Int64Array, names: npt.NDArray[np.uint64]) -> None:
        """Hear what frames hold from now on; they are held, and not inside.

        Parameters
        ----------
        frames : int64 array (n,)
            Frames, each named once.
        names : uint64 array (n,)
            Numbers that stand for the page and all before it, equal for equal content.
        """
        ...


class LRU:
    """Give up what lost its last holder longest ago; the default (S31).

    Pages enter tail first, so the deepest page of a chain goes first without further care: a child never outlives the
    moment at which its parent enters.

    Parameters
    ----------
    num_frames : int
        Size of the pool.

    Examples
    --------
    >>> policy = LRU(8)
    >>> policy.enter(np.array([2, 1, 0]), np.array([1, 0, -1]))    # a chain 0, 1, 2
    >>> policy.leave(np.array([1]))
    >>> policy.victims(1).tolist(), len(policy)
    ([2], 1)
    """

    def __init__(self, num_frames: int) -> None:
        self._queue = FrameQueue(num_frames)

    def __len__(self) -> int:
        return len(self._queue)

    def enter(self, frames: Int64Array, above: Int64Array) -> None:
        """Take in frames, to the back of the queue (see `EvictionPolicy`)."""
        self._queue.push(frames)

    def leave(self, frames: Int64Array) -> None:
        """Let go of frames (see `EvictionPolicy`)."""
        self._queue.remove(frames)

    def victims(self, n: int) -> Int64Array:
        """Choose the front of the queue (see `EvictionPolicy`)."""
        return self._queue.pop(n)

    def hit(self, frames: Int64Array) -> None:
        """Ignore hits: what is hit is held, and enters anew (see `EvictionPolicy`)."""

    def frames(self) -> Int64Array:
        """Return all frames inside (see `EvictionPolicy`)."""
        return self._queue.frames()


class Clock:
    """Go round the cached frames with a hand; a set accessed bit buys one more round.

    A prefix hit sets the bit. A page that the hand passes over takes its bit to the back, and pages above it follow it
    there, so that a chain is still eaten from its end.

    Parameters
    ----------
    num_frames : int
        Size of the pool.

    Examples
    --------
    >>> policy = Clock(8)
    >>> policy.hit(np.array([5]))
    >>> policy.enter(np.array([5, 6]), np.array([-1, -1]))
    >>> policy.victims(2).tolist()
    [6, 5]
    """

    def __init__(self, num_frames: int) -> None:
        self._queue = FrameQueue(num_frames)
        self._accessed = np.zeros(num_frames, dtype=np.bool_)
        self._above = np.full(num_frames, -1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._queue)

    def enter(self, frames: Int64Array, above: Int64Array) -> None:
        """Take in frames, behind the hand (see `EvictionPolicy`)."""
        self._queue.push(frames)
        self._above[frames] = above

    def leave(self, frames: Int64Array) -> None:
        """Let go of frames (see `EvictionPolicy`)."""
        self._queue.remove(frames)

    def victims(self, n: int) -> Int64Array:
        """Choose what the hand meets with its bit off (see `EvictionPolicy`)."""
        n = whole_number("victims", "n", n, high=len(self))
        chosen: list[int] = []
        while len(chosen) < n:
            met = self._queue.pop(n - len(chosen))
            spared = np.flatnonzero(self._accessed[met])
            stop = int(spared[0]) if spared.size else met.size
            chosen += met[:stop].tolist()
            if spared.size:
                self._accessed[met[stop]] = False
                self._queue.push_front(met[stop + 1 :])
                self._to_the_back(int(met[stop]))
        return np.array(chosen, dtype=np.int64)

    def _to_the_back(self, frame: int) -> None:
        """Move a page behind the hand, and all pages above it that are inside behind it."""
        chain = [frame]
        while (frame := int(self._above[frame])) >= 0 and self._queue.holds(frame):
            chain.append(frame)
        moved = np.array(chain, dtype=np.int64)
        self._queue.remove(moved[1:])
        self._queue.push(moved)

    def hit(self, frames: Int64Array) -> None:
        """Set the accessed bits (see `EvictionPolicy`)."""
        self._accessed[frames] = True

    def frames(self) -> Int64Array:
        """Return all frames inside (see `EvictionPolicy`)."""
        return self._queue.frames()


POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {
    "lru": LRU, "fifo": FIFO, "lfu": LFU, "clock": Clock, "s3fifo": S3FIFO, "arc": ARC,
    "priority": Priority,
}  # fmt: skip


def make_policy(policy: Any, num_frames: int) -> EvictionPolicy:
    """Return a policy for a pool.

    Parameters
    ----------
    policy : str, callable or EvictionPolicy
        A name (``lru``, ``fifo``, ``lfu``, ``clock``, ``s3fifo``, ``arc``, ``priority``); a function of the size of the
        pool; or a policy itself, empty and made for a pool of that size.
    num_frames : int
        Size of the pool.

    Returns
    -------
    EvictionPolicy

    Raises
    ------
    ContractError
        There is no policy of that name, or the object lacks a method.

    Examples
    --------
    >>> type(make_policy("fifo", 8)).__name__
    'FIFO'
    """
    made = policy
    if isinstance(policy, str):
        if policy not in POLICIES:
            names = ", ".join(POLICIES)
            raise ContractError(f"make_policy: policy is unknown, got {policy!r}, need one of {names}, or an object")
        made = POLICIES[policy](num_frames)
    elif callable(policy):
        made = policy(num_frames)
    if not isinstance(made, EvictionPolicy):
        raise ContractError(f"make_policy: policy lacks a method, got {made!r}, need an EvictionPolicy")
    return made
