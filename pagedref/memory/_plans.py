"""What the manager hands out: copies to make, and how to take a reservation back (S26, S27)."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["CopyPlan", "Reservation", "last_holders"]

Int64Array: TypeAlias = npt.NDArray[np.int64]


class CopyPlan(NamedTuple):
    """Frames to copy before anything else happens: whole frames, every array of the cache alike (S27).

    Attributes
    ----------
    src : int64 array (n,)
        Frames to read; one may be the source of several copies.
    dst : int64 array (n,)
        Frames to write, all different, none of them a source.
    """

    src: Int64Array
    dst: Int64Array


def last_holders(frames: Int64Array, holders: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which of several writers may write a shared frame in place (S27).

    Writers take their turn in the order given: each but the last holder of a frame gets a copy and lets go of it.

    Parameters
    ----------
    frames : int64 array (n,)
        The shared frame that each writer is about to write.
    holders : integer array (n,)
        Reference count of each of these frames now.

    Returns
    -------
    bool array (n,)
        True for the last writer of a frame whose holders all write.

    Examples
    --------
    Frame 5 has two holders and both write; frame 7 has two, of whom one writes; frame 9 has only one left.

    >>> last_holders(np.array([5, 7, 5, 9]), np.array([2, 2, 2, 1])).tolist()
    [False, False, True, True]
    """
    _, inverse, writers = np.unique(frames, return_inverse=True, return_counts=True)
    last = np.zeros(writers.size, dtype=np.int64)
    last[inverse] = np.arange(frames.size)  # of a frame named twice, the last mention wins
    alone = np.zeros(frames.size, dtype=np.bool_)
    alone[last] = writers == holders[last]
    return alone


class Reservation(NamedTuple):
    """What one reservation changed, kept until the next change so that it can be taken back.

    Attributes
    ----------
    plan : CopyPlan
        What the caller got.
    rows : int64 array (num_seqs,)
        Tables.
    end, num_pages : int64 arrays (num_seqs,)
        Tokens and pages of each before.
    written : int64 array
        Where the entries of shared pages that are now private lie: row and page.
    entries : uint64 array
        What they were.
    frames : int64 array
        All frames that were taken, in the order in which they came.
    """

    plan: CopyPlan
    rows: Int64Array
    end: Int64Array
    num_pages: Int64Array
    written: tuple[Int64Array, Int64Array]
    entries: npt.NDArray[np.uint64]
    frames: Int64Array
