"""The books of a scheduler: who runs, who waits, and what happens when; kept up as things change."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappush

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.scheduling._calendar import FAR, Calendar
from pagedref.scheduling._plan import Plan
from pagedref.scheduling.decisions import Limits, order_of
from pagedref.scheduling.ticket import Memory, Ticket

__all__ = ["Books"]


class Books:
    """Hold the state of a scheduler and pass quiet time; see `Scheduler`.

    Parameters
    ----------
    memory, limits
        See `Scheduler`.
    """

    def __init__(self, memory: Memory, limits: Limits | None = None) -> None:
        self.memory = memory
        self.limits = Limits() if limits is None else limits
        self.step = 0
        self._arrivals = 0
        self._running: list[Ticket] = []  # in order
        self._reading: list[Ticket] = []  # those whose prompt is half read, in order
        self._queue: list[tuple[int, int, Ticket]] = []  # a heap; who ended meanwhile is still in it
        self._num_waiting = self._num_rows = self._decode_rows = self._promised = 0
        self._wakes, self._ends = Calendar(), Calendar()
        self._plan: Plan | None = None
        self._woken: list[Ticket] = []
        self._unsettled = True  # whether the next step may decide something that no calendar names

    def __repr__(self) -> str:
        return f"Scheduler(step {self.step}: {self.num_running} running, {self.num_waiting} waiting)"

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self._running)

    @property
    def num_rows(self) -> int:
        """Rows of the running requests, those whose prompt is being read included."""
        return self._num_rows

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, those swapped out included."""
        return self._num_waiting

    @property
    def is_planned(self) -> bool:
        """Whether a step is decided and not done."""
        return self._plan is not None

    @property
    def running(self) -> list[Ticket]:
        """Who holds memory, in order: a copy."""
        return list(self._running)

    @property
    def decoding(self) -> list[Ticket]:
        """Who decodes in the planned step, in order: a new list."""
        return [ticket for ticket in self._running if ticket.state == "decode"]

    @property
    def waiting(self) -> list[Ticket]:
        """Who is in the queue, in order: a new list."""
        return [ticket for *_, ticket in sorted(self._queue) if ticket.state != "ended"]

    def produced(self, ticket: Ticket) -> int:
        """Return the outputs of each row of a ticket so far."""
        return self.step - ticket.base if ticket.state == "decode" else ticket.produced

    def quiet(self) -> int:
        """Return how many further steps pass in which the same rows decode and nothing is decided.

        Returns
        -------
        int
            0 where a prompt is half read, somebody asks for memory or ends in the next step, or something has just
            changed; a very large number where nothing will happen at all.
        """
        if self._unsettled or self._plan is not None:
            return 0
        return min(self._wakes.first(), self._ends.first(), FAR) - self.step

    def skip(self, n: int) -> None:
        """Pass steps at once, as if each had been scheduled, carried out and done.

        Parameters
        ----------
        n : int
            At most `quiet()`.

        Raises
        ------
        ContractError
            More.
        """
        n = whole_number("skip", "n", n)
        if n > self.quiet():
            raise ContractError(f"skip: n is more than is quiet, got {n}, need at most {self.quiet()}")
        self.step += n

    def _enqueue(self, ticket: Ticket) -> None:
        heappush(self._queue, (*order_of(ticket), ticket))
        self._num_waiting += 1
        self._unsettled = True

    def _dequeue(self) -> None:
        """Count that one of the queue has ended; it stays there until as many have ended as wait."""
        self._num_waiting -= 1
        if len(self._queue) > 2 * self._num_waiting:
            self._queue = [entry for entry in self._queue if entry[-1].state != "ended"]
            heapify(self._queue)

    def _leave(self, ticket: Ticket) -> None:
        """Take a ticket out of everything that runs."""
        ticket.produced = self.produced(ticket)
        del self._running[bisect_left(self._running, order_of(ticket), key=order_of)]
        if ticket.state == "decode":
            self._decode_rows -= ticket.rows
            ticket.todo = 0
        else:
            self._reading.remove(ticket)
        self._num_rows -= ticket.rows
        self._promised -= ticket.promise
        ticket.promise = 0
        ticket.wake = ticket.end = -1

    def _decode(self, ticket: Ticket, produced: int) -> None:
        """Let a ticket decode from the coming step on, with `produced` outputs before it."""
        ticket.state = "decode"
        ticket.base = self.step - produced
        self._decode_rows += ticket.rows
        if ticket.outputs is not None:
            ticket.end = ticket.base + ticket.outputs - 1
            if ticket.end >= self.step:
                self._ends.enter(ticket.end, ticket)

    def _look_again(self, ticket: Ticket) -> None:
        """Find out when a decoding ticket asks for memory next."""
        ticket.produced = self.produced(ticket)
        ticket.wake = self.step + self.memory.room(ticket)
        self._wakes.enter(ticket.wake, ticket)
