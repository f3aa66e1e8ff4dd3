"""A memory that only counts: what a scheduler is tested against, with every promise of the protocol checked."""

from __future__ import annotations

from dataclasses import dataclass

from pagedref.memory.pressure import largest_need, refuse_if_never
from pagedref.scheduling import Admission, Ticket


@dataclass(frozen=True)
class Want:
    """A request: a prompt, and outputs of each row."""

    name: int
    prompt: int
    outputs: int


class CountingMemory:
    """Frames as numbers. Rows share the whole pages of the prompt; `host` frames wait in the slower tier."""

    def __init__(self, num_frames: int, page_size: int, watermark: int = 0, host: int = 0) -> None:
        self.num_frames, self.page_size, self.watermark, self.host = num_frames, page_size, watermark, host
        self.capacity = num_frames - watermark
        self.frames: dict[Ticket, int] = {}
        self.stored: dict[Ticket, int] = {}
        self.away: dict[Ticket, int] = {}

    @property
    def free(self) -> int:
        return self.num_frames - sum(self.frames.values())

    def pages(self, ticket: Ticket, tokens: int) -> int:
        """Frames of a request whose rows have `tokens` each."""
        all_pages = -(-tokens // self.page_size)
        shared: int = min(ticket.request.prompt // self.page_size, all_pages)
        return shared + ticket.rows * (all_pages - shared)

    def largest(self, ticket: Ticket) -> int:
        if ticket.rows == 1:
            return largest_need(ticket.request.prompt, ticket.request.outputs, self.page_size)
        return self.pages(ticket, ticket.request.prompt + ticket.request.outputs - 1)

    def refuse(self, ticket: Ticket) -> None:
        if ticket.rows == 1:
            want = ticket.request
            refuse_if_never(want.prompt, want.outputs, self.page_size, self.num_frames, self.watermark)
        else:
            refuse_if_never(self.largest(ticket) * self.page_size, 1, self.page_size, self.num_frames, self.watermark)

    def admit(self, ticket: Ticket, budget: int) -> Admission | None:
        assert ticket not in self.frames and ticket not in self.away and budget >= 1
        todo = ticket.request.prompt + ticket.produced
        count = min(todo, budget)
        if self.pages(ticket, count) + self.watermark > self.free:
            return None
        self.frames[ticket], self.stored[ticket] = self.pages(ticket, count), count
        return Admission(0, todo)

    def grow(self, ticket: Ticket, count: int) -> bool:
        if ticket.state == "decode":
            assert count == ticket.rows
            stored = ticket.request.prompt + ticket.produced
        else:
            stored = self.stored[ticket] + count
        need = self.pages(ticket, stored) - self.frames[ticket]
        if need > self.free:
            return False
        self.frames[ticket] += need
        self.stored[ticket] = stored
        return True

    def room(self, ticket: Ticket) -> int:
        assert self.stored[ticket] == ticket.request.prompt + ticket.produced - 1
        return -self.stored[ticket] % self.page_size

    def release(self, ticket: Ticket) -> None:
        if ticket in self.away:
            del self.away[ticket]
        else:
            del self.frames[ticket], self.stored[ticket]

    def swap_out(self, ticket: Ticket) -> bool:
        frames = self.frames[ticket]
        if ticket.rows > 1 or frames + sum(self.away.values()) > self.host:
            return False
        self.away[ticket] = frames
        del self.frames[ticket]
        return True

    def swap_in(self, ticket: Ticket, count: int) -> bool:
        stored = ticket.request.prompt + ticket.produced if ticket.todo == 0 else self.stored[ticket] + count
        need = self.pages(ticket, stored)
        if need + self.watermark > self.free:
            return False
        del self.away[ticket]
        self.frames[ticket], self.stored[ticket] = need, stored
        return True
