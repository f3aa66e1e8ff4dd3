"""Who holds which frame of the pool: free frames, reference counts, and cached frames that may be given up (S25, S26).

::

    free  --alloc-->  held, count 1, 2, ...  --free-->  free
                         |          ^
                       keep       revive
                         |          |
                         +-free->  cached  --alloc, nothing else being free-->  held (evicted)

A frame whose content is kept becomes cached in place of free when its last holder goes. State is arrays alone, at most
22 bytes a frame, and every operation costs O(1) per frame that it names, whatever the size of the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory._frame_audit import frame_problems, refuse_holders
from pagedref.memory._numbers import whole_number
from pagedref.memory.eviction import EvictionPolicy, make_policy
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
        A permutation: the order in which fresh frames are handed out, by default 0, 1, 2, ...
    policy : str, callable or EvictionPolicy
        Which cached frame is given up first (see `eviction`).
    on_evict : callable, optional
        Called with the cached frames (int64 array) that `alloc` is about to give up, before they are handed out.

    Notes
    -----
    The free frames form a stack: what was freed last is handed out first, and fresh frames follow in `frame_order`.
    So ``free(frames[::-1])`` right after ``frames = alloc(n)`` restores every bit of the allocator, and tests that pass
    a random `frame_order` show that no result rests on where a page lies (L1). Used from one
    thread; every check comes before the first change (S26).

    Examples
    --------
    >>> allocator = FrameAllocator(4)
    >>> allocator.alloc(3).tolist(), allocator.num_free
    ([0, 1, 2], 1)
    >>> allocator.share([1])
    >>> allocator.free([0, 1]).tolist(), allocator.refcount.tolist()
    ([0], [0, 1, 1, 0])
    """

    def __init__(
        self,
        num_frames: int,
        *,
        frame_order: Any = None,
        policy: Any = "lru",
        on_evict: Callable[[npt.NDArray[np.int64]], None] | None = None,
    ) -> None:
        whole = isinstance(num_frames, int | np.integer) and not isinstance(num_frames, bool)
        if not whole or not 1 <= num_frames <= MAX_FRAMES:
            rule = f"need an integer in [1, {MAX_FRAMES}]"
            raise ContractError(f"FrameAllocator: num_frames is out of range, got {num_frames!r}, {rule}")
        self._num_frames = int(num_frames)
        self._stack = np.arange(self._num_frames - 1, -1, -1, dtype=np.int32)  # top of the stack at the end
        if frame_order is not None:
            order = int_array("FrameAllocator", "frame_order", frame_order, low=0, high=self._num_frames - 1)
            if order.size != self._num_frames or np.bincount(order, minlength=1).max() != 1:
                text = f"got {order.size} frames, need each of the {self._num_frames} frames once"
                raise ContractError(f"FrameAllocator: frame_order is no permutation, {text}")
            self._stack[:] = order[::-1]
        self._top = self._num_frames  # number of free frames
        self._refcount = np.zeros(self._num_frames, dtype=np.int32)
        self._scratch = np.zeros(self._num_frames, dtype=np.int32)
        self._kept = np.zeros(self._num_frames, dtype=np.bool_)
        self.policy: EvictionPolicy = make_policy(policy, self._num_frames)
        self._tell_names: Any = getattr(self.policy, "named", None)
        self.wants_names = self._tell_names is not None  # whether `keep` is to be told what frames hold
        self._on_evict = on_evict

    def __repr__(self) -> str:
        cached = f", cached={self.num_cached}" if self.num_cached else ""
        return f"FrameAllocator(num_frames={self.num_frames}, free={self.num_free}, held={self.num_held}{cached})"

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
        return self._num_frames - self.num_available

    @property
    def num_cached(self) -> int:
        """Frames without a holder whose content is kept."""
        return len(self.policy)

    @property
    def num_available(self) -> int:
        """Frames that `alloc` can hand out: free, and cached ones, which are given up."""
        return self._top + len(self.policy)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of the allocator, its policy aside."""
        return sum(x.nbytes for x in (self._stack, self._refcount, self._scratch, self._kept))

    @property
    def refcount(self) -> npt.NDArray[np.int32]:
        """Holders of every frame: a read-only view, int32 (num_frames,)."""
        view = self._refcount.view()
        view.flags.writeable = False
        return view

    @property
    def occupied(self) -> npt.NDArray[np.bool_]:
        """Frames that are held or cached, bool (num_frames,)."""
        return (self._refcount > 0) | self._kept

    def alloc(self, n: int) -> npt.NDArray[np.int64]:
        """Take free frames, each with a count of 1; when none is left, cached ones, as the policy has it (S26, S31).

        Parameters
        ----------
        n : int
            Frames wanted, >= 0.

        Returns
        -------
        int64 array (n,)
            The frames: those freed last come first, then fresh ones, then cached ones that are given up.

        Raises
        ------
        OutOfFrames
            Fewer than `n` frames are free or cached; nothing was taken.

        Mutates
        -------
        The free list and the counts; cached frames that are given up lose their content.
        """
        count = whole_number("alloc", "n", n)
        if count > self.num_available:
            available = self.num_available
            text = f"alloc: n is more than is free, got {count}, need at most {available} (of {self._num_frames})"
            raise OutOfFrames(text, needed=count, available=available)
        start = max(self._top - count, 0)
        frames = self._stack[start : self._top][::-1].astype(np.int64)  # (n,)
        if frames.size < count:
            frames = np.concatenate([frames, self._victims(count - frames.size)])
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
            refuse_holders("share", index, self._refcount[index], self._refcount)
        np.add.at(self._refcount, index, ONE)

    def revive(self, frames: Any) -> None:
        """Add one holder to each of some frames that are held or cached, because a prefix hit found them (S30).

        Parameters
        ----------
        frames : integer array (n,)
            Kept frames, each named once; one that is neither held nor cached is a CorruptionError.
        """
        index = self._checked("revive", frames)
        counts = self._refcount[index]
        cached = index[counts == 0]
        if cached.size:
            kept = self._kept[cached]
            if np.count_nonzero(kept) < kept.size:
                lost = cached[~kept]
                refuse_holders("revive", lost, self._refcount[lost], self._refcount)
            self.policy.leave(cached)
        self.policy.hit(index)
        self._refcount[index] = counts + ONE

    def num_cached_of(self, frames: npt.NDArray[np.int64]) -> int:
        """Return how many of some kept frames have no holder."""
        return frames.size - int(np.count_nonzero(self._refcount[frames]))

    def keep(self, frames: Any, names: npt.NDArray[np.uint64] | None = None) -> None:
        """Mark held frames, so that they become cached in place of free when their last holder goes.

        Parameters
        ----------
        frames : integer array (n,)
            Held frames.
        names : uint64 array (n,), optional
            What they hold, if `wants_names` (see `NamingPolicy`).
        """
        index = self._checked("keep", frames)
        self._kept[index] = True
        if names is not None:
            self._tell_names(index, names)

    def forget(self, frames: Any) -> None:
        """Take the marks back; those that are cached become free.

        Parameters
        ----------
        frames : integer array (n,)
            Kept frames, each named once.
        """
        index = self._checked("forget", frames)
        cached = index[self._kept[index] & (self._refcount[index] == 0)]
        self._kept[index] = False
        self.policy.leave(cached)
        self._push(cached)

    def give_up(self, n: int) -> npt.NDArray[np.int64]:
        """Make cached frames free, as the policy has it.

        Parameters
        ----------
        n : int
            How many, at most `num_cached`.

        Returns
        -------
        int64 array (n,)
        """
        frames = self._victims(whole_number("give_up", "n", n, high=self.num_cached))
        self._push(frames)
        return frames

    def free(self, frames: Any, above: Any = None) -> npt.NDArray[np.int64]:
        """Take one holder away from each frame; a frame named twice loses two (S25).

        Parameters
        ----------
        frames : integer array (n,)
            Frames with at least as many holders as they are named here. A sequence gives its frames back tail first
            (S31); the last one named is the first one to be handed out again.
        above : integer array (n,), optional
            The frame of the page before each in its sequence, -1 for none: what the policy is told of cached frames.

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
        single = index.size > 0 and int(self._refcount[index].max()) == 1
        np.subtract.at(self._refcount, index, ONE)
        left = self._refcount[index]
        if left.size == 0 or left.min() > 0:
            return np.empty(0, dtype=np.int64)
        if left.min() < 0:
            np.add.at(self._refcount, index, ONE)
            refuse_holders("free", index, left, self._refcount)
        last = slice(None) if single else self._last_mentions(index, left)
        released: npt.NDArray[np.int64] = index[last]
        kept = self._kept[released]
        if kept.any():
            before = np.full(index.size, -1, dtype=np.int64) if above is None else np.asarray(above, dtype=np.int64)
            self.policy.enter(released[kept], before[last][kept])
            self._push(released[~kept])
        else:
            self._push(released)
        return released.copy()

    def _last_mentions(self, index: npt.NDArray[np.int64], left: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return where frames that have no holder left are mentioned for the last time."""
        gone = np.flatnonzero(left == 0)
        order = np.arange(gone.size, dtype=np.int32)
        self._scratch[index[gone]] = order  # the last mention of a frame wins
        last: npt.NDArray[np.int64] = gone[self._scratch[index[gone]] == order]
        return last

    def _victims(self, n: int) -> npt.NDArray[np.int64]:
        """Take cached frames away from the policy; whoever knows their content is told."""
        frames = self.policy.victims(n)
        self._kept[frames] = False
        if self._on_evict is not None and frames.size:
            self._on_evict(frames)
        return frames

    def _push(self, frames: npt.NDArray[np.int64]) -> None:
        """Put frames on the stack of free ones."""
        self._stack[self._top : self._top + frames.size] = frames
        self._top += int(frames.size)

    def audit(self) -> None:
        """Prove that free, held and cached frames are what the counts say, or raise CorruptionError (S25)."""
        if found := self.problems():
            raise CorruptionError("audit: the frames do not balance: " + "; ".join(found))

    def problems(self) -> list[str]:
        """Return a line for each kind of fault that contradicts S25; none when all is well."""
        return frame_problems(self)

    def _checked(self, function: str, frames: Any) -> npt.NDArray[np.int64]:
        """Return the frames as indices; one outside the pool is corruption."""
        index: npt.NDArray[np.int64] = int_array(function, "frames", frames).astype(np.int64, copy=False)
        if index.size and int(index.view(np.uint64).max()) >= self._num_frames:  # below zero is beyond the end, too
            outside = index[(index < 0) | (index >= self._num_frames)]
            raise CorruptionError(
                f"{function}: frames are none of the pool, got {outside[0]}, need [0, {self._num_frames})"
            )
        return index
