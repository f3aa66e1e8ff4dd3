"""Who holds which frame of the pool: a stack of free frames and one reference count per frame (S25, S26).

All state is three int32 arrays of one entry per frame, 12 bytes a frame: the counts, the stack, and a scratch row.
Every operation costs O(1) per frame that it names, whatever the size of the pool, and is vectorised over them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.ragged import int_array

__all__ = ["FrameAllocator"]

MAX_FRAMES = 2**31 - 1  # frames are int32 in the interchange forms
ONE = np.int32(1)  # of the dtype of the counts: ufunc.at is fifty times slower when it has to cast


class FrameAllocator:
    """Hand out frames, count their holders, and take them back (S25).

    Parameters
    ----------
    num_frames : int
        Size of the pool, in ``[1, 2**31 - 1]``.
    frame_order : integer array (num_frames,), optional
        A permutation of all frames: the order in which fresh frames are handed out, by default 0, 1, 2, ...

    Notes
    -----
    The free frames form a stack: what was freed last is handed out first, and fresh frames follow in `frame_order`.
    So ``free(frames[::-1])`` right after ``frames = alloc(n)`` restores every bit of the allocator, and tests that pass
    a random `frame_order` show that no result rests on where a page lies (L1). Used from one thread.

    Every check comes before the first change (S26).

    Examples
    --------
    >>> allocator = FrameAllocator(4)
    >>> frames = allocator.alloc(3)
    >>> frames.tolist(), allocator.num_free
    ([0, 1, 2], 1)
    >>> allocator.share([1])
    >>> allocator.free([0, 1]).tolist(), allocator.refcount.tolist()
    ([0], [0, 1, 1, 0])
    """

    def __init__(self, num_frames: int, *, frame_order: Any = None) -> None:
        count = num_frames
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= MAX_FRAMES:
            need = f"an integer in [1, {MAX_FRAMES}]"
            raise ContractError(f"FrameAllocator: num_frames is out of range, got {num_frames!r}, need {need}")
        self._num_frames = int(num_frames)
        self._stack = np.arange(self._num_frames - 1, -1, -1, dtype=np.int32)  # top of the stack at the end
        if frame_order is not None:
            order = int_array("FrameAllocator", "frame_order", frame_order, low=0, high=self._num_frames - 1)
            if order.size != self._num_frames or np.bincount(order, minlength=1).max() != 1:
                raise ContractError(
                    f"FrameAllocator: frame_order is no permutation, got {order.size} frames, "
                    f"need each of the {self._num_frames} frames once"
                )
            self._stack[:] = order[::-1]
        self._top = self._num_frames  # number of free frames
        self._refcount = np.zeros(self._num_frames, dtype=np.int32)
        self._scratch = np.zeros(self._num_frames, dtype=np.int32)

    def __repr__(self) -> str:
        return f"FrameAllocator(num_frames={self.num_frames}, free={self.num_free}, held={self.num_held})"

    @property
    def num_frames(self) -> int:
        """Frames of the pool."""
        return self._num_frames

    @property
    def num_free(self) -> int:
        """Frames that nobody holds and that keep no content."""
        return self._top

    @property
    def num_held(self) -> int:
        """Frames with at least one holder."""
        return self._num_frames - self._top

    @property
    def num_cached(self) -> int:
        """Frames without a holder whose content is kept; none, as long as there is no prefix cache."""
        return 0

    @property
    def refcount(self) -> npt.NDArray[np.int32]:
        """Holders of every frame: a read-only view, int32 (num_frames,)."""
        view = self._refcount.view()
        view.flags.writeable = False
        return view

    def alloc(self, n: int) -> npt.NDArray[np.int64]:
        """Take frames out of the free list, each with a count of 1 (S26).

        Parameters
        ----------
        n : int
            Frames wanted, >= 0.

        Returns
        -------
        int64 array (n,)
            The frames: those freed last come first, then fresh ones.

        Raises
        ------
        OutOfFrames
            Fewer than `n` frames are free; nothing was taken.
        ContractError
            `n` is negative or no integer.

        Mutates
        -------
        The free list and the counts.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
            raise ContractError(f"alloc: n is wrong, got {n!r}, need an integer >= 0")
        count = int(n)
        if count > self._top:
            text = f"alloc: n is more than is free, got {count}, need at most {self._top} (of {self._num_frames})"
            raise OutOfFrames(text, needed=count, available=self._top)
        start = self._top - count
        frames = self._stack[start : self._top][::-1].astype(np.int64)  # (n,)
        self._refcount[frames] = 1
        self._top = start
        return frames

    def share(self, frames: Any) -> None:
        """Add one holder to each frame; a frame named twice gets two.

        Parameters
        ----------
        frames : integer array (n,)
            Frames with a count of at least 1.

        Raises
        ------
        CorruptionError
            A frame that nobody holds, or none of the pool.

        Mutates
        -------
        The counts.
        """
        index = self._checked("share", frames)
        if index.size and self._refcount[index].min() < 1:
            self._refuse("share", index, self._refcount[index])
        np.add.at(self._refcount, index, ONE)

    def free(self, frames: Any) -> npt.NDArray[np.int64]:
        """Take one holder away from each frame; a frame named twice loses two (S25).

        Parameters
        ----------
        frames : integer array (n,)
            Frames with at least as many holders as they are named here. A sequence gives its frames back tail first
            (S31); the last one named is the first one to be handed out again.

        Returns
        -------
        int64 array
            The frames whose last holder went, in the order given (of one named twice, the last mention counts).

        Raises
        ------
        CorruptionError
            A double free (more mentions than holders) or a frame that is none of the pool; nothing was changed.

        Mutates
        -------
        The counts and the free list.
        """
        index = self._checked("free", frames)
        np.subtract.at(self._refcount, index, ONE)
        left = self._refcount[index]
        if left.size == 0 or left.min() > 0:
            return np.empty(0, dtype=np.int64)
        if left.min() < 0:
            np.add.at(self._refcount, index, ONE)
            self._refuse("free", index, left)
        released: npt.NDArray[np.int64] = index[left == 0]
        order = np.arange(released.size, dtype=np.int32)
        self._scratch[released] = order  # the last mention of a frame wins
        released = released[self._scratch[released] == order]
        self._stack[self._top : self._top + released.size] = released
        self._top += int(released.size)
        return released

    def audit(self) -> None:
        """Prove that free and held frames are exactly what the counts say (S25).

        Raises
        ------
        CorruptionError
            Lists everything that is wrong.
        """
        if found := self.problems():
            raise CorruptionError("audit: the frames do not balance: " + "; ".join(found))

    def problems(self) -> list[str]:
        """List what contradicts S25 in the books of the allocator.

        Returns
        -------
        list of str
            One line for each kind of fault; empty when all is well.
        """
        found = []
        free = self._stack[: self._top]
        if not 0 <= self._top <= self._num_frames:
            found.append(f"the free list has {self._top} entries in a pool of {self._num_frames}")
        if free.size and (free.min() < 0 or free.max() >= self._num_frames):
            return [*found, "the free list names frames that are none of the pool"]
        mentions = np.bincount(free, minlength=self._num_frames)
        for what, wrong in (
            ("are in the free list more than once", mentions > 1),
            ("have a count below zero", self._refcount < 0),
            ("are free and held at once", (mentions > 0) & (self._refcount > 0)),
            ("are lost: neither free nor held", (mentions == 0) & (self._refcount == 0)),
        ):
            if wrong.any():
                found.append(f"frames {np.flatnonzero(wrong)[:10].tolist()} {what}")
        held = int(np.count_nonzero(self._refcount > 0))
        if self.num_free + held + self.num_cached != self._num_frames:
            found.append(f"{self.num_free} free + {held} held + {self.num_cached} cached != {self._num_frames} frames")
        return found

    def _checked(self, function: str, frames: Any) -> npt.NDArray[np.int64]:
        """Return the frames as indices; one outside the pool is corruption."""
        index: npt.NDArray[np.int64] = int_array(function, "frames", frames).astype(np.int64, copy=False)
        if index.size and (int(index.min()) < 0 or int(index.max()) >= self._num_frames):
            outside = index[(index < 0) | (index >= self._num_frames)]
            raise CorruptionError(
                f"{function}: frames are none of the pool, got {outside[0]}, need [0, {self._num_frames})"
            )
        return index

    def _refuse(self, function: str, index: npt.NDArray[np.int64], left: npt.NDArray[np.int32]) -> NoReturn:
        """Raise for the first frame that has too few holders."""
        need = "a holder" if function == "share" else "one holder for each mention (double free)"
        frame = int(index[int(np.argmin(left))])
        holders = int(self._refcount[frame])
        raise CorruptionError(f"{function}: frame {frame} has too few holders, got {holders}, need {need}")
