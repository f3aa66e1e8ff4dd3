"""Plans that move pages between the pool and a slower tier: in order, with owned sources (S33).

A plan is decided at once and carried out later, perhaps by an engine that copies while it computes. Until it is
declared done its source keeps its owner, so nobody can overwrite what is still to be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory.stores import ArrayFrames, FrameStore, HostStore, PageStore
from pagedref.ragged import int_array

__all__ = ["ArrayFrames", "FrameStore", "HostStore", "PageStore", "SwapPlan", "SwapQueue", "carry_out"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
Direction: TypeAlias = Literal["out", "in"]

CHUNK_BYTES = 16 << 20
"""Most bytes that are on the way at once, beyond one page."""


@dataclass(frozen=True, eq=False)
class SwapPlan:
    """Pages to move, in order.

    Attributes
    ----------
    direction : {"out", "in"}
        From frames to slots, or from slots to frames.
    frames : int64 array (n,)
        Frames of the pool.
    slots : int64 array (n,)
        The slot of each.
    """

    direction: Direction
    frames: Int64Array
    slots: Int64Array

    def __len__(self) -> int:
        return int(self.frames.size)


class SwapQueue:
    """Keep the plans that are not done, oldest first, and what they own (S33).

    Notes
    -----
    Plans are carried out in the order in which they were issued, so a plan may read what an earlier one writes: a page
    that is still on its way out can already be called back. What a pending plan reads or writes must not be written by
    a later one: that frame or slot was given away too early, and is refused.

    Examples
    --------
    >>> queue = SwapQueue()
    >>> out = queue.issue("out", frames=[3, 1], slots=[0, 1])
    >>> back = queue.issue("in", frames=[2], slots=[0])     # reads a slot that is still being written: in order
    >>> queue.frames().tolist(), queue.slots().tolist()
    ([1, 2, 3], [0, 1])
    >>> queue.issue("in", frames=[3], slots=[1])
    Traceback (most recent call last):
    pagedref.errors.ContractError: issue: frames are in use by a plan that is not done, got 3, need others
    >>> queue.done(out)
    >>> queue.frames().tolist()
    [2]
    """

    def __init__(self) -> None:
        self._plans: list[SwapPlan] = []

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def pending(self) -> tuple[SwapPlan, ...]:
        """Plans that are not done, oldest first."""
        return tuple(self._plans)

    def issue(self, direction: Direction, frames: Any, slots: Any) -> SwapPlan:
        """Decide a move.

        Parameters
        ----------
        direction : {"out", "in"}
            "out" reads frames and writes slots, "in" reads slots and writes frames.
        frames, slots : integer arrays (n,)
            Written ones each named once.

        Returns
        -------
        SwapPlan
            To be carried out, and then declared `done`.

        Raises
        ------
        ContractError
            The arrays do not fit, or a destination belongs to a plan that is not done; nothing was changed.
        """
        if direction not in ("out", "in"):
            raise ContractError(f"issue: direction is unknown, got {direction!r}, need 'out' or 'in'")
        places = {
            "frames": int_array("issue", "frames", frames, low=0).astype(np.int64),
            "slots": int_array("issue", "slots", slots, low=0).astype(np.int64),
        }
        if places["frames"].size != places["slots"].size:
            sizes = f"{places['slots'].size}, need {places['frames'].size}"
            raise ContractError(f"issue: slots have the wrong length, got {sizes}")
        written = "slots" if direction == "out" else "frames"
        target = places[written]
        if np.unique(target).size < target.size:
            raise ContractError(f"issue: {written} are written twice, got {target.tolist()}, need each once")
        busy = np.intersect1d(target, self.slots() if direction == "out" else self.frames())
        if busy.size:
            text = f"issue: {written} are in use by a plan that is not done, got {busy[0]}, need others"
            raise ContractError(text)
        plan = SwapPlan(direction, places["frames"], places["slots"])
        self._plans.append(plan)
        return plan

    def done(self, plan: SwapPlan) -> None:
        """Declare that the oldest plan was carried out: its owner may now give its source away.

        Parameters
        ----------
        plan : SwapPlan
            The oldest that is pending.

        Raises
        ------
        ContractError
            It is not: it is done already, or an earlier one is not.
        """
        if not self._plans or self._plans[0] is not plan:
            raise ContractError(f"done: plan is out of turn, got {self._place(plan)}, need the oldest pending plan")
        del self._plans[0]

    def cancel(self, plan: SwapPlan) -> None:
        """Forget the youngest plan, which was not carried out or failed: its source is as it was.

        Parameters
        ----------
        plan : SwapPlan
            The youngest that is pending, since others may read what it would have written.

        Raises
        ------
        ContractError
            It is not.
        """
        if not self._plans or self._plans[-1] is not plan:
            raise ContractError(f"cancel: plan is out of turn, got {self._place(plan)}, need the youngest pending plan")
        del self._plans[-1]

    def frames(self) -> Int64Array:
        """Return the frames that pending plans read or write: they must not be given away.

        Returns
        -------
        int64 array
            Ascending, each once.
        """
        return self._union([plan.frames for plan in self._plans])

    def slots(self) -> Int64Array:
        """Return the slots that pending plans read or write.

        Returns
        -------
        int64 array
            Ascending, each once.
        """
        return self._union([plan.slots for plan in self._plans])

    def _union(self, parts: list[Int64Array]) -> Int64Array:
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))

    def _place(self, plan: SwapPlan) -> str:
        for place, pending in enumerate(self._plans):
            if pending is plan:
                return f"number {place} of {len(self._plans)}"
        return "one that is not pending"


def carry_out(plan: SwapPlan, frames: FrameStore, store: PageStore) -> npt.NDArray[np.bool_]:
    """Copy the pages of a plan now; the caller declares it done.

    Parameters
    ----------
    plan : SwapPlan
        The oldest that is pending.
    frames : FrameStore
        The pool.
    store : PageStore
        The slower tier; its pages have the size of the frames.

    Returns
    -------
    bool array (n,)
        Which pages arrived. On the way out all; on the way in those that the store still holds intact: the others are
        misses, to be computed again, and their frames are not written.

    Raises
    ------
    ContractError
        Pages and frames differ in size, or a number is out of range.
    OSError
        A disk refused to write. Sources are as they were: the plan can be carried out again, or cancelled.

    Mutates
    -------
    The destination.

    Examples
    --------
    >>> pool = np.arange(4, dtype=np.float32).reshape(4, 1)
    >>> frames, store = ArrayFrames({"k": pool}), HostStore(2, bytes_per_page=4)
    >>> carry_out(SwapPlan("out", np.array([3]), store.alloc(1)), frames, store).tolist()
    [True]
    >>> carry_out(SwapPlan("in", np.array([0]), np.array([0])), frames, store).tolist()
    [True]
    >>> pool.ravel().tolist()
    [3.0, 1.0, 2.0, 3.0]
    """
    size = frames.bytes_per_frame
    if store.bytes_per_page != size:
        raise ContractError(f"carry_out: store does not fit the pool, got {store.bytes_per_page} bytes, need {size}")
    good = np.ones(len(plan), np.bool_)
    step = max(1, CHUNK_BYTES // size)
    for start in range(0, len(plan), step):
        part = slice(start, start + step)
        if plan.direction == "out":
            store.write(plan.slots[part], frames.read(plan.frames[part]))
        else:
            pages, good[part] = store.read(plan.slots[part])
            frames.write(plan.frames[part][good[part]], pages[good[part]])
    return good
