"""A queue of frames as a linked list flattened into an array: push, pop and removal from the middle, vectorised.

A place of the array belongs to a frame as long as the frame says so (``place[frame]``): removing a frame from the
middle only takes its word back, and whoever passes over the place later skips it. So n frames are pushed, popped or
removed by a few array operations, at a cost per frame that does not depend on the pool.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.memory._numbers import whole_number

__all__ = ["FrameQueue"]

Int64Array: TypeAlias = npt.NDArray[np.int64]

FIRST_ROOM = 64
NOWHERE = -1


class FrameQueue:
    """Hold distinct frames in order.

    Parameters
    ----------
    num_frames : int
        Size of the pool.

    Notes
    -----
    4 bytes a frame for its place, and at most 5 a frame for the queue itself.
    """

    def __init__(self, num_frames: int) -> None:
        self._num_frames = num_frames
        places = np.int32 if num_frames < 2**30 else np.int64
        self._place: npt.NDArray[Any] = np.full(num_frames, NOWHERE, dtype=places)
        self._queue = np.empty(FIRST_ROOM, dtype=np.int32)
        self._head = self._tail = self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self._place.nbytes + self._queue.nbytes

    def holds(self, frame: int) -> bool:
        """Tell whether a frame is in the queue.

        Parameters
        ----------
        frame : int
            A frame.

        Returns
        -------
        bool
        """
        return bool(self._place[frame] >= 0)

    def push(self, frames: Int64Array) -> None:
        """Append frames at the back.

        Parameters
        ----------
        frames : int64 array (n,)
            Frames, not in the queue, each named once.
        """
        n = frames.size
        if self._tail + n > self._queue.size:
            self._make_room(n)
        stop = self._tail + n
        self._queue[self._tail : stop] = frames
        self._place[frames] = np.arange(self._tail, stop)
        self._tail = stop
        self._size += n

    def push_front(self, frames: Int64Array) -> None:
        """Put back, to the front and in order, the last frames that `pop` has just returned.

        Parameters
        ----------
        frames : int64 array (n,)
            Frames.
        """
        start = self._head - frames.size
        self._queue[start : self._head] = frames
        self._place[frames] = np.arange(start, self._head)
        self._head = start
        self._size += int(frames.size)

    def remove(self, frames: Int64Array) -> None:
        """Take frames out, wherever they are.

        Parameters
        ----------
        frames : int64 array (n,)
            Frames in the queue, each named once.
        """
        self._place[frames] = NOWHERE
        self._size -= int(frames.size)

    def pop(self, n: int) -> Int64Array:
        """Take the first frames out.

        Parameters
        ----------
        n : int
            How many, at most as many as there are.

        Returns
        -------
        int64 array (n,)
            In order.
        """
        found: list[npt.NDArray[np.int32]] = []
        missing = n = whole_number("pop", "n", n, high=self._size)
        while missing:
            part = self._queue[self._head : min(self._head + 2 * missing + 8, self._tail)]
            at = np.flatnonzero(self._place[part] == np.arange(self._head, self._head + part.size))[:missing]
            found.append(part[at])
            missing -= int(at.size)
            self._head += int(at[-1]) + 1 if not missing else int(part.size)
        frames: Int64Array = np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)
        self.remove(frames)
        return frames

    def frames(self) -> Int64Array:
        """Return all frames, in order.

        Returns
        -------
        int64 array
        """
        part = self._queue[self._head : self._tail]
        frames: Int64Array = part[self._place[part] == np.arange(self._head, self._tail)].astype(np.int64)
        return frames

    def _make_room(self, n: int) -> None:
        """Close the gaps, in a larger array where less than a fifth would be free."""
        left = self.frames()
        need = left.size + n
        if 5 * need > 4 * self._queue.size:
            room = max(FIRST_ROOM, min(2 * need, self._num_frames + self._num_frames // 4), need)
            self._queue = np.empty(room, dtype=np.int32)
        self._queue[: left.size] = left
        self._place[left] = np.arange(left.size)
        self._head, self._tail = 0, int(left.size)
