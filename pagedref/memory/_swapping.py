"""Sequences that leave the pool for a slower tier and come back, in two steps: decided, and declared done (S33)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagedref.addressing import num_pages
from pagedref.errors import ContractError, OutOfFrames, PageFault
from pagedref.memory._entries import AWAY, PRESENT, WRITABLE, frames_of, pack
from pagedref.memory._numbers import any_array, whole_number
from pagedref.memory._residency import Residency
from pagedref.memory._views import MAX_TOKENS, Int64Array
from pagedref.memory.events import Swapped
from pagedref.memory.swap import PageStore, SwapPlan, SwapQueue

__all__ = ["Swapping"]


@dataclass
class Away:
    """Pages of a sequence that are in a slower tier, or on their way."""

    store: PageStore
    pages: Int64Array
    slots: Int64Array
    plan: SwapPlan | None  # the plan that is not done, if there is one


class Swapping(Residency):
    """Move sequences out of the pool and back; see `KVManager`.

    Parameters
    ----------
    num_frames, page_size, **options
        Of `PrefixSharing`.

    Attributes
    ----------
    swaps : SwapQueue
        Plans that are not done.
    pager : callable or None
        Called with the id of a swapped sequence that is touched; it brings the sequence back. Without one, touching
        is a PageFault.
    """

    def __init__(self, num_frames: int, page_size: int, **options: Any) -> None:
        super().__init__(num_frames, page_size, **options)
        self.swaps = SwapQueue()
        self.pager: Callable[[int], None] | None = None
        self._away: dict[int, Away] = {}

    def is_swapped(self, seq_id: int) -> bool:
        """Tell whether a sequence is in a slower tier, or on its way.

        Parameters
        ----------
        seq_id : int
            A live sequence.

        Returns
        -------
        bool
        """
        return int(self._sequences.rows("is_swapped", [seq_id])[0]) in self._away

    def swap_out(self, seq_id: int, store: PageStore) -> SwapPlan:
        """Decide to move all pages of a sequence to a slower tier (S33).

        Until the plan is declared done by `swap_done` the frames stay owned; meanwhile the sequence is not touched.

        Parameters
        ----------
        seq_id : int
            A live sequence, without reserved tokens and pins, in the pool.
        store : PageStore
            Where to; it gives the slots.

        Returns
        -------
        SwapPlan
            To be carried out (`carry_out`), then declared done or cancelled.

        Raises
        ------
        ContractError
            The sequence has reserved tokens or pins.
        OutOfFrames
            The store is full; nothing was changed.
        """
        row = int(self._present_rows("swap_out", [seq_id])[0])
        if ahead := int(self._sequences.end[row] - self._sequences.length[row]):
            raise ContractError(f"swap_out: seq_id {seq_id} has reserved tokens, got {ahead}, need 0")
        if self.is_pinned(seq_id):
            raise ContractError(f"swap_out: seq_id {seq_id} is pinned, got pinned pages, need none")
        if not hasattr(store, "alloc"):
            raise ContractError(f"swap_out: store is none, got {type(store).__name__}, need a PageStore")
        named = frames_of(self._tables.entries[row, : self._tables.num_pages[row]])
        pages = np.flatnonzero(named >= 0)
        slots = store.alloc(int(pages.size))
        plan = self.swaps.issue("out", named[pages], slots)
        self._away[row] = Away(store, pages, slots, plan)
        self._changed(np.array([row]))
        return plan

    def swap_in(self, seq_id: int, *, num_tokens: int = 0) -> SwapPlan:
        """Decide to bring a sequence back, into new frames (S33).

        Parameters
        ----------
        seq_id : int
            A sequence that is swapped out.
        num_tokens : int
            Tokens that it will reserve at once: it comes back only if there is room for them, too.

        Returns
        -------
        SwapPlan
            To be carried out, then declared done or cancelled.

        Raises
        ------
        OutOfFrames
            Its pages, and those of the tokens, need more frames than are available; nothing was changed.
        ContractError
            It is not swapped out.
        """
        row = int(self._sequences.rows("swap_in", [seq_id])[0])
        away = self._away.get(row)
        if away is None or away.plan is not None:
            state = "the pool" if away is None else "a pending plan"
            raise ContractError(f"swap_in: seq_id {seq_id} is not swapped out, got one in {state}, need one in a store")
        num_tokens = whole_number("swap_in", "num_tokens", num_tokens, high=MAX_TOKENS)
        length = self._sequences.length[row]
        more = int(num_pages(length + num_tokens, self._page_size) - num_pages(length, self._page_size))
        needed, available = int(away.pages.size) + more, self.num_available
        if needed > available:
            raise OutOfFrames(
                f"swap_in: seq_id {seq_id} needs more frames than are free, got {needed}, need at most {available}",
                needed=needed,
                available=available,
            )
        away.plan = self.swaps.issue("in", self._frames.alloc(int(away.pages.size)), away.slots)
        self._last = None
        return away.plan

    def swap_done(self, plan: SwapPlan, good: Any = None) -> int:
        """Declare a plan carried out: the source is free now, and the destination is what counts.

        Parameters
        ----------
        plan : SwapPlan
            The oldest that is pending.
        good : bool array (n,), optional
            Which pages arrived (the result of `carry_out`); by default all. A page that did not come back intact is a
            miss: the sequence ends before the first one, and is to be computed from there.

        Returns
        -------
        int
            Live tokens of the sequence now.

        Raises
        ------
        ContractError
            Another plan is older, or `good` has the wrong form; nothing was changed.
        """
        row, away = self._moving(plan)
        if good is not None:
            good = any_array("swap_done", "good", good)
            if good.dtype != np.bool_ or good.shape != (len(plan),):
                got, need = f"{good.dtype} {good.shape}", f"bool ({len(plan)},)"
                raise ContractError(f"swap_done: good has the wrong form, got {got}, need {need}")
        self.swaps.done(plan)
        away.plan = None
        entries = self._tables.entries[row]
        if plan.direction == "out":
            above = self._tables.above(self._tables.index(np.full(away.pages.size, row), away.pages))
            entries[away.pages] = AWAY
            self._frames.free(plan.frames[::-1], above[::-1])
        else:
            entries[away.pages] = pack(plan.frames, PRESENT | WRITABLE)
            away.store.free(away.slots)
            del self._away[row]
        self._changed(np.array([row]))
        seq_id = int(self._sequences.seq_id[row])
        if self.on_event is not None:
            out = plan.direction == "out"
            self.on_event(Swapped(seq_id, out, tuple(away.pages.tolist()), tuple(plan.frames.tolist())))
        if good is not None and plan.direction == "in" and not np.all(good):
            first = int(away.pages[int(np.argmin(good))])
            self.truncate(seq_id, min(first * self._page_size, int(self._sequences.length[row])))
        return int(self._sequences.length[row])

    def swap_cancel(self, plan: SwapPlan) -> None:
        """Take back the youngest plan, which failed or is not wanted: everything is as it was before it.

        Parameters
        ----------
        plan : SwapPlan
            The youngest that is pending.
        """
        row, away = self._moving(plan)
        self.swaps.cancel(plan)
        away.plan = None
        if plan.direction == "out":
            away.store.free(away.slots)
            del self._away[row]
        else:
            self._frames.free(plan.frames[::-1])

    def _moving(self, plan: SwapPlan) -> tuple[int, Away]:
        """Return the row that a plan moves."""
        for row, away in self._away.items():
            if away.plan is plan:
                return row, away
        raise ContractError("swap: plan is unknown, got one of no sequence, need one that is pending")

    def _forget_away(self, rows: Int64Array) -> None:
        """Give up the slots of swapped sequences that are freed; none of them is on its way."""
        for row in rows.tolist():
            away = self._away.get(row)
            if away is not None and away.plan is not None:
                seq_id = self._sequences.seq_id[row]
                raise ContractError(f"free: sequence {seq_id} is on its way, got a pending plan, need none")
        for row in rows.tolist():
            away = self._away.pop(row, None)
            if away is not None:
                away.store.free(away.slots)

    def _present_rows(self, function: str, seq_ids: Any, *, unique: bool = True) -> Int64Array:
        """Return the rows of sequences that are in the pool, called back if there is a pager."""
        rows = self._sequences.rows(function, seq_ids, unique=unique)
        if self._away:
            for row in rows.tolist():
                self._call_back(function, row)
        return rows

    def _call_back(self, function: str, row: int) -> None:
        """Bring a sequence back through the pager, or say that it is not there."""
        away = self._away.get(row)
        seq_id = int(self._sequences.seq_id[row])
        if away is not None and away.plan is None and self.pager is not None:
            self.pager(seq_id)
            away = self._away.get(row)
        if away is not None:
            state = "on its way" if away.plan is not None else "swapped out"
            raise PageFault(f"{function}: sequence {seq_id} is {state}, got no frames, need a sequence in the pool")

    def _problems(self) -> list[str]:
        """List what an audit finds."""
        found = super()._problems()
        for row, away in self._away.items():
            entries = self._tables.entries[row, away.pages]
            out = away.plan is None or away.plan.direction == "in"
            if (entries.size and (entries == AWAY).all() != out) or self._sequences.seq_id[row] < 0:
                found.append(f"row {row} is swapped out and its table says otherwise")
        swapped = {int(row) for row in np.flatnonzero((self._tables.entries == AWAY).any(axis=1))}
        if lost := sorted(swapped - set(self._away)):
            found.append(f"rows {lost} have swapped pages and no slots for them")
        return found

    def _held_for_moves(self) -> Int64Array:
        """Return frames that wait for pages on their way in."""
        frames = [plan.frames for plan in self.swaps.pending if plan.direction == "in"]
        return np.concatenate([np.empty(0, dtype=np.int64), *frames])
