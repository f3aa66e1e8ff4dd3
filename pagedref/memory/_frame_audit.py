"""Prove that free, held and cached frames are exactly what the counts say (S25), and refuse who would break it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from pagedref.errors import CorruptionError

if TYPE_CHECKING:
    from pagedref.memory.frames import FrameAllocator

__all__ = ["frame_problems", "refuse_holders"]


def frame_problems(frames: FrameAllocator) -> list[str]:
    """List what contradicts S25 in the books of an allocator.

    Parameters
    ----------
    frames : FrameAllocator
        The allocator.

    Returns
    -------
    list of str
        One line for each kind of fault; empty when all is well.
    """
    found = []
    free = frames._stack[: frames._top]
    if not 0 <= frames._top <= frames._num_frames:
        found.append(f"the free list has {frames._top} entries in a pool of {frames._num_frames}")
    if free.size and (free.min() < 0 or free.max() >= frames._num_frames):
        return [*found, "the free list names frames that are none of the pool"]
    cached = frames.policy.frames()
    if cached.size != len(frames.policy) or np.unique(cached).size != cached.size:
        found.append(f"the policy counts {len(frames.policy)} cached frames and names {cached.tolist()[:10]}")
    mentions = np.bincount(free, minlength=frames._num_frames)
    waiting = np.zeros(frames._num_frames, dtype=np.bool_)
    waiting[cached] = True
    for what, wrong in (
        ("are cached and free or held at once", waiting & ((mentions > 0) | (frames._refcount > 0))),
        ("are cached but not kept", waiting & ~frames._kept),
        ("are kept and free at once", frames._kept & (mentions > 0)),
        ("are in the free list more than once", mentions > 1),
        ("have a count below zero", frames._refcount < 0),
        ("are free and held at once", (mentions > 0) & (frames._refcount > 0)),
        ("are lost: neither free nor held", (mentions == 0) & (frames._refcount == 0) & ~waiting),
    ):
        if wrong.any():
            found.append(f"frames {np.flatnonzero(wrong)[:10].tolist()} {what}")
    held = int(np.count_nonzero(frames._refcount > 0))
    if frames.num_free + held + frames.num_cached != frames._num_frames:
        total = f"{frames.num_free} free + {held} held + {frames.num_cached} cached"
        found.append(f"{total} != {frames._num_frames} frames")
    return found


def refuse_holders(
    function: str, index: npt.NDArray[np.int64], left: npt.NDArray[np.int32], refcount: npt.NDArray[np.int32]
) -> NoReturn:
    """Raise for the first frame that has too few holders.

    Parameters
    ----------
    function : str
        What the error text names.
    index, left : arrays (n,)
        Frames, and the holders that each would be left with.
    refcount : int32 array (num_frames,)
        Holders of every frame.
    """
    need = "a holder" if function == "share" else "one holder for each mention (double free)"
    frame = int(index[int(np.argmin(left))])
    holders = int(refcount[frame])
    raise CorruptionError(f"{function}: frame {frame} has too few holders, got {holders}, need {need}")
