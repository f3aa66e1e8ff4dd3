"""Replay a trace through memory and scheduler: who runs when, what the slots hold, what it costs.

The same :mod:`pagedref.scheduling` that the engine asks decides here, over the same :mod:`pagedref.memory`: contiguous
spaces, or a `KVManager`. Nothing is computed, so a step is worth its consequences only, and its duration is what a
`Service` says. Steps in which nothing is decided are passed in one go (`Scheduler.quiet`): the cost grows with requests
and pages, not with tokens times requests. Passing one by one gives the same, to the integer; so do the special path
for frames that nobody shares (`CountedMemory`) and the manager. Both are property tests.

**What a step counts.** Its requests store their new tokens, then the slots are counted (`Waste`, definitions in
:mod:`pagedref.memory.contiguous`); the counts are summed over steps. Requests of k outputs of D store P + k tokens in
their next step, and P + D - 1 at the end. A request is waiting from its arrival to its (last) admission.

The trace is read as a stream, twice: once for the requests that come in, a few of which wait in the scheduler's queue,
and once to count those that have arrived. What is needed is memory for what runs, however long the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory.contiguous import Waste
from pagedref.scheduling import Scheduler, Ticket
from pagedref.simulate._books import Load, load_of
from pagedref.simulate._managed_memory import ManagedMemory
from pagedref.simulate._measures import FEW, POINTS, Quantiles, Series
from pagedref.simulate.report import Summary
from pagedref.simulate.scenario import Scenario, make_memory
from pagedref.simulate.trace import Request

__all__ = ["Replay", "replay"]

COLUMNS = ("time", "running", "waiting", "token_states", "reserved", "internal", "external", "hit_rate")
QUEUE = 8  # requests that wait in the scheduler's queue; the others wait in the trace


@dataclass(frozen=True)
class Replay:
    """The result of a run.

    Attributes
    ----------
    scenario : Scenario
        What was asked.
    summary : Summary
        Numbers.
    series : Series
        Points over time: seconds, requests that run and wait, slots by kind, and the part of the prompt tokens so far
        that was found.
    frames : list of int array (num_frames,)
        With `Scenario.frame_map`, for each point: twice the number of the request that holds each frame (or stretch of
        `page_size` slots), one more where it has stored nothing yet; -1 for none, -2 for a cached page.
    """

    scenario: Scenario
    summary: Summary
    series: Series
    frames: list[npt.NDArray[np.int32]]


def replay(
    trace: Iterable[Request],
    scenario: Scenario,
    *,
    progress: Callable[[int], None] | None = None,
    by_step: Callable[[int, Waste], None] | None = None,
    jump: bool = True,
) -> Replay:
    """Replay a trace under a scenario.

    Parameters
    ----------
    trace : iterable of Request
        That can be iterated twice, in order of arrival.
    scenario : Scenario
        Memory, limits and service.
    progress : callable, optional
        Called now and then with the number of requests that are through.
    by_step : callable, optional
        Called for each step with the requests that run and what the slots hold; then every step is passed by itself.
    jump : bool
        Whether quiet steps are passed in one go.

    Returns
    -------
    Replay

    Raises
    ------
    ContractError
        The scenario does not fit the trace (no names of pages, for instance), or the trace is wrong.

    Examples
    --------
    Two requests of 3 + 2 tokens in 8 slots, a page of 4 each; the third waits:

    >>> trace = [Request(0, 3, 2)] * 3
    >>> summary = replay(trace, Scenario(slots=8, page_size=4)).summary
    >>> summary.steps, summary.mean_running, summary.token_states, summary.external
    (4, 1.5, 21, 8)
    """
    if iter(trace) is trace:
        raise ContractError("replay: trace can be read only once, got an iterator, need a list or a Trace")
    run = _Run(trace, scenario, progress)
    while run.begin_step():
        run.finish_step(by_step)
        if jump and by_step is None:
            run.pass_quiet_steps()
    return run.result()


class _Run:
    """One replay on its way."""

    def __init__(self, trace: Iterable[Request], scenario: Scenario, progress: Callable[[int], None] | None) -> None:
        self.scenario, self.service = scenario, scenario.service
        self.memory = make_memory(scenario)
        self.scheduler = Scheduler(self.memory, scenario.limits)
        self.memory.refill = self.feed
        self.progress = progress
        self.incoming: Iterator[Request] = iter(trace)
        self.next: Request | None = next(self.incoming, None)
        self.counted: Iterator[Request] = iter(trace)
        self.counting: Request | None = next(self.counted, None)
        self.now = self.last_arrival = 0
        self.came = self.arrived = self.refused = self.admitted = self.ended = 0
        self.steps = self.running_sum = self.rows_sum = self.most_running = 0
        self.waste_sums = [0, 0, 0, 0]
        self.computed = self.outputs = self.recomputed = self.recomputes = self.swaps = 0
        self.asked = self.hit_tokens = self.asked_pages = self.hit_pages = 0
        self.hit_parts = 0.0
        self.saved, self.named = 0, 0
        self.queued, self.first_token, self.latency = Quantiles(), Quantiles(), Quantiles()
        self.series = Series(COLUMNS, FEW if scenario.frame_map else POINTS)

    def feed(self) -> None:
        """Put requests that have come into the scheduler's queue, while that is short."""
        while self.next is not None and self.next.arrival <= self.now and self.scheduler.num_waiting < QUEUE:
            request = self.next
            if request.arrival < self.last_arrival:
                text = f"got {request.arrival} after {self.last_arrival}, need arrivals in order"
                raise ContractError(f"replay: trace is out of order, {text}")
            self.last_arrival = request.arrival
            self.next = next(self.incoming, None)
            ticket = Ticket(Load(request, self.came), rows=self.scenario.rows, outputs=request.output_len)
            self.came += 1
            try:
                self.scheduler.add(ticket)
            except ContractError:
                self.refused += 1

    def begin_step(self) -> bool:
        """Decide the next step; False if there is none."""
        self.feed()
        while not self.scheduler.num_running and not self.scheduler.num_waiting:
            if self.next is None:
                return False
            self.now = max(self.now, self.next.arrival)
            self.feed()
        self.plan = self.scheduler.schedule()
        if self.scenario.until == "drained" or self.scheduler.num_waiting:
            return True
        return self.next is not None and self.next.arrival <= self.now

    def finish_step(self, by_step: Callable[[int, Waste], None] | None) -> None:
        """Carry the step out, and count it."""
        plan, memory, scheduler = self.plan, self.memory, self.scheduler
        for ticket in plan.admitted:
            self._admitted(ticket)
        swaps = sum(how == "swap" for _, how in plan.preempted)
        self.swaps += swaps
        self.recomputes += len(plan.preempted) - swaps
        computed = plan.decode_rows
        for ticket, count in plan.prefill:
            memory.read(ticket, count)
            computed += count * load_of(ticket).rows
            if ticket.preemptions and ticket.state == "prefill":
                self.recomputed += count
        memory.decoded(plan.decode_rows)
        self.computed += computed
        self._count(1, plan.decode_rows, computed)
        moved = memory.moved
        if moved[0] or moved[1]:
            self.now += self.service.moving(moved[0], moved[1], self.scenario.bytes_per_token)
            moved[:] = [0, 0]
        if by_step is not None:
            by_step(scheduler.num_running, memory.waste())
        fresh = [ticket for ticket, count in plan.prefill if count == ticket.todo and not ticket.produced]
        if self.series.wants():
            self._sample()
        for ticket in fresh:
            self.first_token.add(self.now - load_of(ticket).request.arrival)
        for ticket in scheduler.done():
            self.ended += 1
            self.outputs += ticket.rows * load_of(ticket).request.output_len
            self.latency.add(self.now - load_of(ticket).request.arrival)
            if self.progress is not None and not self.ended & 63:
                self.progress(self.ended + self.refused)

    def pass_quiet_steps(self) -> None:
        """Pass the steps in which nothing happens, up to the next arrival that could be taken in."""
        quiet = self.scheduler.quiet()
        rows = self.scheduler.num_rows
        if quiet < 1 or not rows:
            return
        if self.next is not None and not self.scheduler.num_waiting:
            quiet = self._steps_until(self.next.arrival - self.now, rows, quiet)
        if quiet > 0:
            self.scheduler.skip(quiet)
            self.memory.decoded(rows, quiet)
            self.computed += rows * quiet
            self._count(quiet, rows, rows)

    def _steps_until(self, time: int, rows: int, most: int) -> int:
        """Return the first number of quiet steps that take at least some time, at most `most`."""
        low, high = 0, 1
        while high < most and self._time(high, rows) < time:
            low, high = high, 2 * high
        high = min(high, most)
        while low < high:
            middle = (low + high) // 2
            if self._time(middle, rows) < time:
                low = middle + 1
            else:
                high = middle
        return high

    def _time(self, steps: int, rows: int) -> int:
        """Return the duration of coming quiet steps."""
        memory, more = self.memory, rows - self.memory.fading
        cached = memory.stored - memory.dead + more  # in the first of them
        return steps * self.service.duration(rows, cached) + self.service.cached * more * (steps * (steps - 1) // 2)

    def _count(self, steps: int, rows: int, computed: int) -> None:
        """Add up steps that have just passed; the books stand after the last one."""
        memory, service = self.memory, self.service
        ago = steps * (steps - 1) // 2  # the sum over these steps of how long ago each was
        states, reserved, internal, external = memory.waste()
        sums = self.waste_sums
        fading = memory.fading
        sums[0] += steps * states - (rows - fading) * ago
        sums[1] += steps * reserved + rows * ago
        sums[2] += steps * internal - fading * ago
        sums[3] += steps * external
        cached = steps * (memory.stored - memory.dead) - (rows - fading) * ago
        self.now += steps * (service.step + service.token * computed) + service.cached * cached
        self.steps += steps
        running = self.scheduler.num_running
        self.running_sum += steps * running
        self.rows_sum += steps * self.scheduler.num_rows
        self.most_running = max(self.most_running, running)
        if isinstance(memory, ManagedMemory):
            saved, named = memory.shared_pages()
            self.saved += steps * saved
            self.named += steps * named

    def _admitted(self, ticket: Ticket) -> None:
        """Count what an admission found and how long it took."""
        if ticket.preemptions:
            return
        request = load_of(ticket).request
        self.admitted += 1
        self.queued.add(self.now - request.arrival)
        page_size = self.scenario.page_size
        self.asked += request.prompt_len
        self.hit_tokens += ticket.hit
        self.asked_pages += -(-request.prompt_len // page_size)
        self.hit_pages += ticket.hit // page_size
        self.hit_parts += ticket.hit / request.prompt_len

    def _sample(self) -> None:
        """Keep a point of the time series."""
        while self.counting is not None and self.counting.arrival <= self.now:
            self.counting = next(self.counted, None)
            self.arrived += 1
        running = self.scheduler.num_running
        waiting = max(0, self.arrived - self.refused - self.ended - running)
        rate = self.hit_tokens / self.asked if self.asked else 0.0
        frames = self._frames() if self.scenario.frame_map else None
        self.series.add((self.now / 1e9, running, waiting, *self.memory.waste(), rate), frames)

    def _frames(self) -> npt.NDArray[np.int32]:
        """Return who holds each frame, or each slot of a contiguous space."""
        loads = []
        for ticket in self.scheduler.running:
            load, decodes = load_of(ticket), ticket.state == "decode"
            loads.append((load, load.request.prompt_len + self.scheduler.produced(ticket) if decodes else load.stored))
        return self.memory.owners(loads)

    def result(self) -> Replay:
        """Return what was found."""
        if not self.series.points or self.series.points[-1][0] * 1e9 < self.now:
            self._sample()
        if self.progress is not None:
            self.progress(self.ended + self.refused)
        frames: list[Any] = self.series.extra if self.scenario.frame_map else []
        return Replay(self.scenario, self._summary(), self.series, frames)

    def _summary(self) -> Summary:
        """Put the numbers together."""
        scenario, steps, seconds = self.scenario, max(self.steps, 1), self.now / 1e9
        slots = max(sum(self.waste_sums), 1)
        shares = [part / slots for part in self.waste_sums]
        evicted = self.memory.manager.prefix_stats.evicted if isinstance(self.memory, ManagedMemory) else 0
        has_names = self.memory.names_per is not None if isinstance(self.memory, ManagedMemory) else False
        return Summary(
            policy=scenario.policy, page_size=scenario.page_size, slots=self.memory.num_slots,
            eviction=scenario.eviction if has_names else "", samples=scenario.samples, beams=scenario.beams,
            preemption=scenario.limits.preemption, window=scenario.window, watermark=scenario.watermark,
            token_budget=scenario.limits.token_budget, max_running=scenario.limits.max_running,
            requests=self.came, refused=self.refused, completed=self.ended, steps=self.steps, makespan=seconds,
            token_state_share=shares[0], reserved_share=shares[1], internal_share=shares[2], external_share=shares[3],
            token_states=self.waste_sums[0], reserved=self.waste_sums[1], internal=self.waste_sums[2],
            external=self.waste_sums[3],
            mean_running=self.running_sum / steps, mean_rows=self.rows_sum / steps, most_running=self.most_running,
            queue_mean=self.queued.mean, queue_p50=self.queued.at(0.5), queue_p99=self.queued.at(0.99),
            first_token_mean=self.first_token.mean, first_token_p99=self.first_token.at(0.99),
            latency_mean=self.latency.mean, latency_p99=self.latency.at(0.99),
            requests_per_second=self.ended / seconds if seconds else 0.0,
            output_tokens_per_second=self.outputs / seconds if seconds else 0.0,
            computed_tokens=self.computed, recomputed_tokens=self.recomputed,
            page_hit_rate=self.hit_pages / self.asked_pages if has_names and self.asked_pages else None,
            token_hit_rate=self.hit_tokens / self.asked if has_names and self.asked else None,
            request_mean_hit_rate=self.hit_parts / self.admitted if has_names and self.admitted else None,
            evictions=evicted, preemptions=self.recomputes + self.swaps, swaps=self.swaps,
            swapped_pages=self.memory.swapped_pages, copied_pages=self.memory.copied_pages,
            shared_share=self.saved / self.named if self.named else 0.0,
        )  # fmt: skip
