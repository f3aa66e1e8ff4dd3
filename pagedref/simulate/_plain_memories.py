"""Two memories that need no page table: contiguous runs, and frames that are counted and not named."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages
from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory.contiguous import Space, slots_to_reserve
from pagedref.scheduling import Admission, Ticket
from pagedref.simulate._books import FAR, Books, Load, load_of

__all__ = ["ContiguousMemory", "CountedMemory"]


class ContiguousMemory(Books):
    """Reserve one run of slots for each row at admission; it never grows and never moves.

    Parameters
    ----------
    space : Space
        Where runs lie.
    rule : {"max", "pow2", "oracle"}
        How long they are (`slots_to_reserve`).
    max_len : int
        The longest request there may be.
    page_size : int
        Slots of a cell of `owners`.
    """

    def __init__(self, space: Space, rule: str, max_len: int, page_size: int = 1) -> None:
        super().__init__(space.num_slots)
        self.space, self.rule, self.max_len, self.page_size = space, rule, max_len, page_size

    @property
    def capacity(self) -> int:
        """Slots of the pool."""
        return self.num_slots

    def _size(self, load: Load) -> int:
        """Return the slots that a row reserves, before rounding."""
        return slots_to_reserve(self.rule, load.request.prompt_len, load.request.output_len, self.max_len)

    def largest(self, ticket: Ticket) -> int:
        """Return the slots of all its rows."""
        return ticket.rows * self.space.size_of(self._size(load_of(ticket)))

    def refuse(self, ticket: Ticket) -> None:
        """Refuse what an empty pool could not hold."""
        most = self.space.num_runs(self._size(load_of(ticket)))
        if ticket.rows > most:
            text = f"got {ticket.rows} runs of {self._size(load_of(ticket))} slots, need at most {most}"
            raise ContractError(f"add: request can never fit, {text} (S34)")

    def admit(self, ticket: Ticket, budget: int) -> Admission | None:
        """Take a run for each row."""
        load = load_of(ticket)
        size = self._size(load)
        try:
            for _ in range(ticket.rows):
                load.runs.append(self.space.alloc(size))
        except OutOfFrames:
            for start in load.runs:
                self.space.free(start)
            load.runs = []
            return None
        self.set(load, ticket.rows, self.space.size_of(size), 0)
        self.held = self.space.num_allocated
        self.refill()
        return Admission(0, load.request.prompt_len + ticket.produced)

    def grow(self, ticket: Ticket, count: int) -> bool:
        """Say yes: it is all there."""
        return True

    def room(self, ticket: Ticket) -> int:
        """Say that it never asks again."""
        return FAR

    def release(self, ticket: Ticket) -> None:
        """Give the runs back."""
        load = self.sync(ticket)
        for start in load.runs:
            self.space.free(start)
        self.drop(load)
        self.held = self.space.num_allocated

    def owners(self, loads: list[tuple[Load, int]]) -> npt.NDArray[np.int32]:
        """Return who holds each stretch of `page_size` slots, as its first slot says (see `Books.owners`)."""
        size = self.page_size
        found = np.full(-(-self.num_slots // size), -1, np.int32)
        for load, stored in loads:
            for start in load.runs:
                found[-(-start // size) : -(-(start + load.mapped) // size)] = 2 * load.number + 1
                found[-(-start // size) : -(-(start + stored) // size)] = 2 * load.number
        return found


class CountedMemory(Books):
    """Count frames: where nothing is shared, it does not matter which frame is whose.

    The special path for paged memory without sharing, windows and tiers; a property test shows that it decides and
    counts as `ManagedMemory` does.

    Parameters
    ----------
    num_frames, page_size : int
        The pool.
    watermark : int
        Frames that an admission leaves.
    """

    def __init__(self, num_frames: int, page_size: int, watermark: int = 0) -> None:
        super().__init__(num_frames * page_size)
        self.page_size = page_size
        self.num_available = num_frames
        self.capacity = num_frames - watermark
        self.watermark = watermark

    def largest(self, ticket: Ticket) -> int:
        """Return the pages of all rows at the end."""
        return ticket.rows * int(num_pages(load_of(ticket).final_len, self.page_size))

    def refuse(self, ticket: Ticket) -> None:
        """Refuse what an empty pool could not hold (S34)."""
        if self.largest(ticket) > self.capacity:
            text = f"got {self.largest(ticket)} pages, need at most {self.capacity}"
            raise ContractError(f"add: request can never fit, {text} (S34)")

    def admit(self, ticket: Ticket, budget: int) -> Admission | None:
        """Take frames for what is read now."""
        load = load_of(ticket)
        todo = load.request.prompt_len + ticket.produced
        pages = -(-min(todo, budget) // self.page_size)
        if ticket.rows * pages + self.watermark > self.num_available:
            return None
        self._take(ticket.rows * pages)
        self.set(load, ticket.rows, pages * self.page_size, 0)
        self.refill()
        return Admission(0, todo)

    def grow(self, ticket: Ticket, count: int) -> bool:
        """Take the frames that it lacks."""
        load = self.sync(ticket)
        per_row = 1 if ticket.state == "decode" else count
        pages = -(-(load.stored + per_row) // self.page_size) - load.mapped // self.page_size
        if load.rows * pages > self.num_available:
            return False
        if pages > 0:
            self._take(load.rows * pages)
            self.set(load, load.rows, load.mapped + pages * self.page_size, load.stored)
        load.after = load.stored + per_row
        return True

    def room(self, ticket: Ticket) -> int:
        """Return the free slots of its last page."""
        load = load_of(ticket)
        return load.mapped - load.after

    def release(self, ticket: Ticket) -> None:
        """Give the frames back."""
        load = self.sync(ticket)
        self._take(-load.rows * (load.mapped // self.page_size))
        self.drop(load)

    def _take(self, frames: int) -> None:
        """Take frames, or give them back."""
        self.num_available -= frames
        self.held += frames * self.page_size
