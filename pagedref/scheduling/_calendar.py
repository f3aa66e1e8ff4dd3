"""What happens in which step: tickets by step number, the next step found at once."""

from __future__ import annotations

from heapq import heappop, heappush

from pagedref.scheduling.ticket import Ticket

__all__ = ["FAR", "Calendar"]

FAR = 2**62
"""A step that never comes."""


class Calendar:
    """Hold tickets by step. Entries are not taken back: whoever reads one checks that its ticket still means it."""

    def __init__(self) -> None:
        self._steps: list[int] = []  # a heap of those that have an entry
        self._entries: dict[int, list[Ticket]] = {}

    def enter(self, step: int, ticket: Ticket) -> None:
        """Note a ticket under a step; steps that never come are not noted."""
        if step >= FAR:
            return
        if step in self._entries:
            self._entries[step].append(ticket)
        else:
            self._entries[step] = [ticket]
            heappush(self._steps, step)

    def first(self) -> int:
        """Return the earliest step with an entry, FAR if there is none."""
        return self._steps[0] if self._steps else FAR

    def pop(self, step: int) -> list[Ticket]:
        """Take out what is noted under a step."""
        while self._steps and self._steps[0] <= step:
            heappop(self._steps)
        return self._entries.pop(step, [])
