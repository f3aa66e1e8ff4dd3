"""Policies that remember what has gone: S3-FIFO and ARC. See `eviction` for the protocol.

Frames come again with other content, so these policies must hear what a frame holds: `named` tells them when its page
is published. A name is a number of 64 bits that stands for the page and all before it; two pages of one name, which
chance allows, cost a wrong guess of the policy and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.memory._numbers import whole_number

__all__ = ["ARC", "S3FIFO"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
Names: TypeAlias = "OrderedDict[int, None]"

FIRST, SECOND = 0, 1  # the two queues: small and main, or used once and used again


class _TwoQueues:
    """Keep frames in two queues and names of those that have gone; the base of both policies.

    Only leaves go: a frame with a page below it inside waits behind the others of its queue.
    """

    def __init__(self, num_frames: int) -> None:
        self._num_frames = num_frames
        self._queues: tuple[Names, Names] = (OrderedDict(), OrderedDict())
        self._gone: tuple[Names, Names] = (OrderedDict(), OrderedDict())
        self._place = np.zeros(num_frames, dtype=np.int8)  # the queue that a frame belongs to
        self._name = np.zeros(num_frames, dtype=np.uint64)
        self._above = np.full(num_frames, -1, dtype=np.int64)
        self._below = np.zeros(num_frames, dtype=np.int32)  # pages inside that are below

    def __len__(self) -> int:
        return len(self._queues[FIRST]) + len(self._queues[SECOND])

    def named(self, frames: Int64Array, names: npt.NDArray[np.uint64]) -> None:
        """Hear what frames hold from now on (see `NamingPolicy`)."""
        self._name[frames] = names
        for frame, name in zip(frames.tolist(), names.tolist()):
            self._place[frame] = self._place_of(frame, name)

    def _place_of(self, frame: int, name: int) -> int:
        """Say to which queue new content belongs."""
        raise AssertionError("a policy says where a page begins")

    def enter(self, frames: Int64Array, above: Int64Array) -> None:
        """Take in frames, to the back of their queues (see `EvictionPolicy`)."""
        self._above[frames] = above
        np.add.at(self._below, above[above >= 0], np.int32(1))
        for frame, place in zip(frames.tolist(), self._place[frames].tolist()):
            self._queues[place][frame] = None

    def leave(self, frames: Int64Array) -> None:
        """Let go of frames (see `EvictionPolicy`)."""
        above = self._above[frames]
        np.subtract.at(self._below, above[above >= 0], np.int32(1))
        for frame, place in zip(frames.tolist(), self._place[frames].tolist()):
            del self._queues[place][frame]

    def victims(self, n: int) -> Int64Array:
        """Choose frames one after the other (see `EvictionPolicy`)."""
        chosen = []
        for _ in range(whole_number("victims", "n", n, high=len(self))):
            frame = self._victim()
            chosen.append(frame)
            gone = self._gone[self._place[frame]]
            gone[int(self._name[frame])] = None
            if len(gone) > self._num_frames:
                gone.popitem(last=False)
            self.leave(np.array([frame]))
        return np.array(chosen, dtype=np.int64)

    def _victim(self) -> int:
        """Choose one frame inside."""
        raise AssertionError("a policy says who goes")

    def _first_leaf(self, place: int) -> int:
        """Return the first leaf of a queue, -1 if there is none; what stands before it goes to the back."""
        queue = self._queues[place]
        for _ in range(len(queue)):
            frame = next(iter(queue))
            if not self._below[frame]:
                return frame
            queue.move_to_end(frame)
        return -1

    def frames(self) -> Int64Array:
        """Return all frames inside (see `EvictionPolicy`)."""
        return np.array([*self._queues[FIRST], *self._queues[SECOND]], dtype=np.int64)


class S3FIFO(_TwoQueues):
    """Give up early what comes once: a small queue before a main one.

    New content waits in the small queue, a tenth of what is inside; what two hits found there moves to the main one.
    Content whose name left the small queue not long ago comes back to the main one. There a page goes round once for
    each hit, three times at most.

    Parameters
    ----------
    num_frames : int
        Size of the pool.

    Examples
    --------
    >>> policy, alone = S3FIFO(8), np.array([-1])
    >>> for frame in (5, 6):
    ...     policy.enter(np.array([frame]), alone)
    >>> policy.hit(np.array([5])); policy.hit(np.array([5]))
    >>> policy.victims(2).tolist()
    [6, 5]
    """

    MOST, TO_MOVE = 3, 2

    def __init__(self, num_frames: int) -> None:
        super().__init__(num_frames)
        self._hits = np.zeros(num_frames, dtype=np.int64)

    def _place_of(self, frame: int, name: int) -> int:
        self._hits[frame] = 0
        if name not in self._gone[FIRST]:
            return FIRST
        del self._gone[FIRST][name]
        return SECOND

    def hit(self, frames: Int64Array) -> None:
        """Count hits (see `EvictionPolicy`)."""
        self._hits[frames] = np.minimum(self._hits[frames] + 1, self.MOST)

    def _victim(self) -> int:
        small, main = self._queues
        while True:
            frame = self._first_leaf(FIRST) if 10 * len(small) > len(self) or not main else -1
            if frame >= 0 and self._hits[frame] < self.TO_MOVE:
                return frame
            if frame >= 0:
                del small[frame]
                main[frame] = None
                self._place[frame], self._hits[frame] = SECOND, 0
                continue
            frame = self._first_leaf(SECOND)
            if frame < 0:
                return self._first_leaf(FIRST)
            if not self._hits[frame]:
                return frame
            self._hits[frame] -= 1
            main.move_to_end(frame)


class ARC(_TwoQueues):
    """Balance what was used once against what was hit, by names of both that come again.

    Both are kept as `LRU` keeps them. When content comes whose name went from the one, that one may grow.

    Parameters
    ----------
    num_frames : int
        Size of the pool.

    Examples
    --------
    >>> policy, alone = ARC(8), np.array([-1])
    >>> policy.hit(np.array([5]))
    >>> for frame in (5, 6):
    ...     policy.enter(np.array([frame]), alone)
    >>> policy.victims(2).tolist()
    [6, 5]
    """

    def __init__(self, num_frames: int) -> None:
        super().__init__(num_frames)
        self._target = 0.0  # frames that were used once

    def _place_of(self, frame: int, name: int) -> int:
        once_gone, again_gone = self._gone
        if name in once_gone:
            self._target = min(self._num_frames, self._target + max(len(again_gone) / len(once_gone), 1.0))
            del once_gone[name]
            return SECOND
        if name in again_gone:
            self._target = max(0.0, self._target - max(len(once_gone) / len(again_gone), 1.0))
            del again_gone[name]
            return SECOND
        return FIRST

    def hit(self, frames: Int64Array) -> None:
        """Note that frames were used again (see `EvictionPolicy`)."""
        once, again = self._queues
        for frame in frames.tolist():
            if frame in once:
                del once[frame]
                again[frame] = None
        self._place[frames] = SECOND

    def _victim(self) -> int:
        once = self._queues[FIRST]
        order = (FIRST, SECOND) if len(once) > self._target else (SECOND, FIRST)
        return next(frame for place in order if (frame := self._first_leaf(place)) >= 0)
