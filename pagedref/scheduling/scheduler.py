"""The scheduler: which requests are in the next step, and who has to leave for it (S34).

One step, always in this order::

    schedule()   (a) decoding requests whose room is used up ask for more, the oldest first; then prompts that are half
                     read take pieces of what the decoding rows leave of the budget. Where the memory says no, the last
                     in order is preempted, until it says yes or the asking one is itself the last.
                 (b) if nobody was: from the head of the queue, those who were swapped out among them, while rows,
                     budget and memory allow; the first that does not fit stops it, so nobody is overtaken for ever.
    carry out    (c) the owner computes the step.
    done()       (d) a prompt that is read has its first output, whoever decodes one more; who is through leaves.

Bookkeeping costs what changes, not what runs: a decoding request is touched only when it enters a new page. `quiet`
says for how many steps nobody will be touched at all, and `skip` passes them at once.
"""

from __future__ import annotations

from bisect import insort
from heapq import heappop
from math import inf

from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory._numbers import whole_number
from pagedref.scheduling._books import Books
from pagedref.scheduling._calendar import FAR
from pagedref.scheduling._plan import Plan
from pagedref.scheduling.decisions import choose_victim, order_of, prompt_chunks
from pagedref.scheduling.ticket import Ticket

__all__ = ["Plan", "Scheduler"]


class Scheduler(Books):
    """Decide who runs, over a memory that answers yes or no.

    Parameters
    ----------
    memory : Memory
        Whoever knows the frames; see that protocol.
    limits : Limits
        Budget, rows and the kind of preemption.

    Notes
    -----
    Every admitted request ends, if whoever runs it ends it: the oldest of the highest class is never preempted while
    others run, and no other is admitted before a waiting one of its class. Use it from one thread.

    Examples
    --------
    A memory of four tokens in which nothing is shared:

    >>> from pagedref.scheduling import Admission
    >>> class Tokens:
    ...     capacity = left = 4
    ...     def largest(self, ticket): return ticket.request + ticket.outputs - 1
    ...     def refuse(self, ticket): pass
    ...     def admit(self, ticket, budget):
    ...         todo = ticket.request + ticket.produced
    ...         return Admission(0, todo) if self.grow(ticket, min(todo, budget)) else None
    ...     def grow(self, ticket, count):
    ...         fits = count <= self.left
    ...         self.left -= count if fits else 0
    ...         return fits
    ...     def room(self, ticket): return 0
    ...     def release(self, ticket): self.left += ticket.request + ticket.produced - 1
    >>> scheduler = Scheduler(Tokens())
    >>> scheduler.add(Ticket(2, outputs=2))     # a prompt of two tokens, two outputs
    >>> scheduler.add(Ticket(1, outputs=2))
    >>> for _ in range(3):
    ...     plan = scheduler.schedule()
    ...     print(plan.decode_rows, plan.prefill, plan.preempted, scheduler.done())
    0 [(Ticket(2, decode), 2), (Ticket(1, decode), 1)] [] []
    1 [] [(Ticket(1, waiting), 'recompute')] [Ticket(2, ended)]
    0 [(Ticket(1, ended), 2)] [] [Ticket(1, ended)]
    """

    def add(self, ticket: Ticket) -> None:
        """Put a request into the queue, or refuse it at once (S34).

        Parameters
        ----------
        ticket : Ticket
            A new one.

        Raises
        ------
        ContractError
            It can never fit, has more rows than may run, or was added before; nothing was changed.
        """
        if ticket.arrival >= 0:
            raise ContractError(f"add: ticket was added before, got {ticket!r}, need a new one")
        most = self.limits.max_running
        if most is not None and ticket.rows > most:
            text = f"got {ticket.rows}, need at most max_running = {most}"
            raise ContractError(f"add: rows of the request can never run at once, {text} (S34)")
        self.memory.refuse(ticket)
        ticket.arrival = self._arrivals
        self._arrivals += 1
        self._enqueue(ticket)

    def schedule(self) -> Plan:
        """Decide the next step.

        Returns
        -------
        Plan
            To be carried out, and then declared `done`.

        Raises
        ------
        OutOfFrames
            Nothing runs and the head of the queue does not fit, so somebody else holds the frames; nothing was
            changed.
        ContractError
            The step before it is not done.
        """
        if self._plan is not None:
            raise ContractError(f"schedule: step {self.step} is not done, got another call, need done() first")
        plan = Plan(self.step, 0, [], [], [], [])
        self._woken = []
        due = [ticket for ticket in self._wakes.pop(self.step) if ticket.wake == self.step]
        for ticket in sorted(due, key=order_of) if len(due) > 1 else due:
            if ticket.wake == self.step and self._secure(ticket, ticket.rows, plan):  # else it went, or was named twice
                ticket.wake = -1
                self._woken.append(ticket)
        budget: float = inf if self.limits.token_budget is None else self.limits.token_budget
        if self._reading:
            chunks = prompt_chunks([ticket.todo for ticket in self._reading], budget - self._decode_rows)
            for ticket, count in zip(list(self._reading), chunks, strict=True):
                if count and ticket.state == "prefill" and self._secure(ticket, count, plan):
                    plan.prefill.append((ticket, count))
        if plan.preempted:  # who went may have been granted something before
            plan.prefill[:] = [(ticket, count) for ticket, count in plan.prefill if ticket.state == "prefill"]
            self._woken = [ticket for ticket in self._woken if ticket.state == "decode"]
        elif self._num_waiting:
            self._admit(plan, budget - self._decode_rows - sum(count for _, count in plan.prefill))
        self._unsettled = bool(plan.preempted or self._reading)
        self._plan = plan._replace(decode_rows=self._decode_rows)
        return self._plan

    def done(self) -> list[Ticket]:
        """Declare the planned step carried out.

        Returns
        -------
        list of Ticket
            Those that have all their `outputs` now; their memory is released.

        Raises
        ------
        ContractError
            No step is planned.
        """
        if self._plan is None:
            raise ContractError(f"done: no step is planned, got a call in step {self.step}, need schedule() first")
        plan, self._plan = self._plan, None
        ending = self._ends.pop(self.step)
        self.step += 1
        for ticket, count in plan.prefill:
            if ticket.state != "prefill":
                continue
            ticket.todo -= count
            if ticket.todo == 0:
                self._reading.remove(ticket)
                self._decode(ticket, ticket.produced + 1)
                if ticket.end == self.step - 1:
                    ending.append(ticket)
                else:
                    self._look_again(ticket)
        for ticket in self._woken:
            if ticket.state == "decode" and ticket.wake < self.step:
                self._look_again(ticket)
        ended = [ticket for ticket in ending if ticket.state == "decode" and ticket.end == self.step - 1]
        for ticket in sorted(ended, key=order_of):
            self.finish(ticket)
        return ended

    def retouch(self, ticket: Ticket, rows: int) -> None:
        """Hear that the rows of a request or their pages changed: a fork, the end of a row.

        Parameters
        ----------
        ticket : Ticket
            One that has not ended. If it decodes, it asks for memory again in the next step.
        rows : int
            Its rows from now on, >= 1 and no more than it was added with.
        """
        rows = whole_number("retouch", "rows", rows, low=1)
        if ticket.state in ("prefill", "decode"):
            self._num_rows += rows - ticket.rows
        if ticket.state == "decode":
            self._decode_rows += rows - ticket.rows
            ticket.wake = self.step
            self._wakes.enter(self.step, ticket)
        ticket.rows = rows
        self._unsettled = True

    def reread(self, ticket: Ticket, todo: int) -> None:
        """Hear that a decoding request has tokens to compute again before its rows can decode.

        Several rows that were preempted share their prompt when it is read again; what each had produced comes after.

        Parameters
        ----------
        ticket : Ticket
            One that decodes.
        todo : int
            Tokens of all its rows together, >= 1.

        Raises
        ------
        ContractError
            It does not decode.
        """
        todo = whole_number("reread", "todo", todo, low=1)
        if ticket.state != "decode":
            raise ContractError(f"reread: ticket does not decode, got {ticket!r}, need one that does")
        ticket.produced = self.produced(ticket) - 1  # its next output comes at the end of the reading
        self._decode_rows -= ticket.rows
        ticket.wake = ticket.end = -1
        ticket.state, ticket.todo = "prefill", todo
        insort(self._reading, ticket, key=order_of)
        self._unsettled = True

    def finish(self, ticket: Ticket) -> None:
        """End a request in whatever state it is, and let its memory go; one that has ended stays as it is.

        Parameters
        ----------
        ticket : Ticket
            One that was added.
        """
        if ticket.state == "ended":
            return
        waited = ticket.state in ("waiting", "swapped")
        if not waited:
            self._leave(ticket)
        if ticket.state != "waiting":
            self.memory.release(ticket)
        ticket.state = "ended"
        if waited:
            self._dequeue()
        self._unsettled = True

    def _secure(self, ticket: Ticket, count: int, plan: Plan) -> bool:
        """Get room for a running ticket, whoever must go for it; False if it is itself the one."""
        ticket.produced = self.produced(ticket)
        while not self.memory.grow(ticket, count):
            victim = choose_victim(self._running) or ticket  # alone, and frames are missing: others hold them
            self._preempt(victim, plan)
            if victim is ticket:
                return False
        return True

    def _preempt(self, ticket: Ticket, plan: Plan) -> None:
        """Take a running ticket's memory and put it back into the queue."""
        self._leave(ticket)
        ticket.preemptions += 1
        swapped = self.limits.preemption == "swap" and self.memory.swap_out(ticket)
        if not swapped:
            self.memory.release(ticket)
        ticket.state = "swapped" if swapped else "waiting"
        plan.preempted.append((ticket, "swap" if swapped else "recompute"))
        self._enqueue(ticket)

    def _admit(self, plan: Plan, budget: float) -> None:
        """Take from the head of the queue while it fits."""
        most = inf if self.limits.max_running is None else self.limits.max_running
        while self._num_waiting and budget >= 1:
            ticket = self._queue[0][-1]
            if ticket.state == "ended":
                heappop(self._queue)
                continue
            if self._num_rows + ticket.rows > most:
                return
            count = self._enter(ticket, budget, plan)
            if count == 0:
                if not self._running:
                    raise self._stuck(ticket)
                return
            heappop(self._queue)
            self._num_waiting -= 1
            self._num_rows += ticket.rows
            insort(self._running, ticket, key=order_of)
            budget -= count

    def _enter(self, ticket: Ticket, budget: float, plan: Plan) -> int:
        """Ask the memory to take a ticket in; return its tokens in this step, 0 if it does not fit."""
        if ticket.state == "swapped":
            count = int(min(ticket.todo or ticket.rows, budget))
            if count < ticket.rows or not self.memory.swap_in(ticket, count):
                return 0
            plan.swapped_in.append(ticket)
            if ticket.todo == 0:
                self._decode(ticket, ticket.produced)
                self._woken.append(ticket)
                return count
        else:
            promise = self.memory.largest(ticket) if self.limits.preemption == "none" else 0
            if promise and self._promised + promise > self.memory.capacity:
                return 0
            found = self.memory.admit(ticket, int(min(budget, FAR)))
            if found is None:
                return 0
            ticket.hit, ticket.todo, ticket.promise = found.hit, found.todo, promise
            self._promised += promise
            plan.admitted.append(ticket)
            count = int(min(found.todo, budget))
        ticket.state = "prefill"
        insort(self._reading, ticket, key=order_of)
        plan.prefill.append((ticket, count))
        return count

    def _stuck(self, ticket: Ticket) -> OutOfFrames:
        """Say that a request which fits alone does not: somebody who is not scheduled here holds frames."""
        most, capacity = self.memory.largest(ticket), self.memory.capacity
        text = f"got {ticket!r} of at most {most}, need those of {capacity} that others hold (S34)"
        return OutOfFrames(f"schedule: frames are missing though nothing runs, {text}", needed=most, available=0)
