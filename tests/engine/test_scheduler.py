"""The scheduler: nobody starves, nothing is lost, and jumping over quiet steps changes no event (S34)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory.pressure import Claim, choose_victims
from pagedref.scheduling import Limits, Plan, Scheduler, Ticket, choose_victim, order_of, prompt_chunks
from tests.engine.counting_memory import CountingMemory, Want

NAMES = ("prefill", "admitted", "swapped_in", "preempted")


@dataclass(frozen=True)
class Scene:
    """A workload: when each request comes, what it wants, and over which memory."""

    frames: int
    page_size: int
    watermark: int
    host: int
    limits: Limits
    wants: tuple[tuple[int, Want, int, int], ...]  # step of arrival, request, class, rows

    def scheduler(self) -> Scheduler:
        memory = CountingMemory(self.frames, self.page_size, self.watermark, self.host)
        return Scheduler(memory, self.limits)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    most = draw(st.none() | st.integers(2, 6))
    budget = draw(st.none() | st.integers(most or 2, 16))
    limits = Limits(budget, most, draw(st.sampled_from(["recompute", "swap", "none"])))
    count = draw(st.integers(1, 9))
    wants = []
    for name in range(count):
        want = Want(name, draw(st.integers(1, 20)), draw(st.integers(1, 14)))
        wants.append((draw(st.integers(0, 30)), want, draw(st.integers(-1, 1)), draw(st.sampled_from([1, 1, 1, 2]))))
    return Scene(
        frames=draw(st.integers(4, 24)),
        page_size=draw(st.integers(1, 5)),
        watermark=draw(st.integers(0, 3)),
        host=draw(st.integers(0, 12)),
        limits=limits,
        wants=tuple(sorted(wants, key=lambda want: want[0])),
    )


def names(part: list[Any]) -> list[Any]:
    """Say whom a part of a plan means."""
    return [(x[0].request.name, x[1]) if isinstance(x, tuple) else x.request.name for x in part]


def told(plan: Plan, ended: list[Ticket]) -> tuple[Any, ...]:
    """Return what happened in a step; empty parts where nothing did."""
    return (plan.decode_rows, *(names(getattr(plan, name)) for name in NAMES), names(ended))


def replay(scene: Scene, *, jump: bool) -> tuple[list[tuple[int, Any]], list[int]]:
    """Run a workload to its end: the steps in which something happened, and who was refused."""
    scheduler, waiting = scene.scheduler(), list(scene.wants)
    log: list[tuple[int, Any]] = []
    refused = []
    rows = -1
    while waiting or scheduler.num_running or scheduler.num_waiting:
        while waiting and waiting[0][0] <= scheduler.step:
            _, want, priority, count = waiting.pop(0)
            try:
                scheduler.add(Ticket(want, priority=priority, rows=count, outputs=want.outputs))
            except ContractError:
                refused.append(want.name)
        if jump and (most := scheduler.quiet()):
            until = waiting[0][0] - scheduler.step if waiting else most
            if not waiting and not scheduler.num_running:
                break  # the last one was refused
            scheduler.skip(min(most, until))
            if waiting and waiting[0][0] <= scheduler.step:
                continue
        step, plan = scheduler.step, scheduler.schedule()
        entry = told(plan, scheduler.done())
        if entry[0] != rows or any(entry[1:]):
            log.append((step, entry))
        rows = entry[0]
        assert step < 10_000
    memory = scheduler.memory
    assert isinstance(memory, CountingMemory)
    assert memory.free == memory.num_frames and not memory.away
    return log, refused


@given(scenes())
def test_jumping_over_quiet_steps_changes_no_event(scene: Scene) -> None:
    assert replay(scene, jump=False) == replay(scene, jump=True)


@given(scenes())
def test_everybody_ends_with_all_outputs_or_is_refused_at_once(scene: Scene) -> None:
    log, refused = replay(scene, jump=False)
    ended = [name for _, entry in log for name in entry[-1]]
    assert sorted(ended + refused) == list(range(len(scene.wants)))
    scheduler = scene.scheduler()
    most = scene.limits.max_running
    for _, want, _, rows in scene.wants:
        ticket = Ticket(want, rows=rows)
        never = scheduler.memory.largest(ticket) > scene.frames - scene.watermark
        assert (want.name in refused) == (never or (most is not None and rows > most))


@given(scenes())
def test_every_token_is_read_once_for_each_admission(scene: Scene) -> None:
    """The pieces of a prompt add up to what is asked for, and no step holds more than the budget (P16, P52)."""
    log, _ = replay(scene, jump=False)
    budget = scene.limits.token_budget
    wants = {want.name: want for _, want, _, _ in scene.wants}
    read = dict.fromkeys(wants, 0)
    expected = dict.fromkeys(wants, 0)
    done = dict.fromkeys(wants, 0)
    for step, (rows, prefill, admitted, _, preempted, ended) in log:
        if budget is not None:
            assert rows + sum(count for _, count in prefill) <= budget
        for name, how in preempted:
            if how == "recompute":
                expected[name] -= expected[name] - read[name]
        for name, count in prefill:
            read[name] += count
        for name in ended:
            done[name] += 1
        assert step >= 0 and len(admitted) == len(set(admitted))
    for name, ends in done.items():
        if ends:
            assert ends == 1 and read[name] >= wants[name].prompt


@given(scenes())
def test_a_class_is_served_in_order_of_arrival(scene: Scene) -> None:
    """Nobody is admitted for the first time before an older one of his class, or after a newer one of a higher."""
    scheduler, waiting = scene.scheduler(), list(scene.wants)
    seen: set[int] = set()
    while waiting or scheduler.num_running or scheduler.num_waiting:
        while waiting and waiting[0][0] <= scheduler.step:
            _, want, priority, count = waiting.pop(0)
            try:
                scheduler.add(Ticket(want, priority=priority, rows=count, outputs=want.outputs))
            except ContractError:
                continue
        queue = scheduler.waiting
        safe = scheduler.running[:1]
        plan = scheduler.schedule()
        taken = [*plan.admitted, *plan.swapped_in]
        assert sorted(taken, key=order_of) == queue[: len(taken)]
        assert not (plan.preempted and taken)
        assert not [ticket for ticket, _ in plan.preempted if ticket in safe]
        seen.update(ticket.request.name for ticket in scheduler.running)
        scheduler.done()


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 9)), min_size=1, max_size=8))
def test_the_victim_is_that_of_the_memory(classes: list[tuple[int, int]]) -> None:
    """`choose_victim` and `memory.pressure.choose_victims` are one rule."""
    tickets = []
    for arrival, (priority, _) in enumerate(classes):
        ticket = Ticket(arrival, priority=priority)
        ticket.arrival = arrival
        tickets.append(ticket)
    running = sorted(tickets, key=order_of)
    claims = [Claim(t.request, t.priority, t.arrival, frames) for t, (_, frames) in zip(tickets, classes, strict=True)]
    victim = choose_victim(running)
    assert choose_victims(claims, 1)[:1] == ([] if victim is None else [victim.request])


@given(st.lists(st.integers(1, 50), max_size=8), st.integers(0, 200))
def test_chunks_use_the_budget_in_order(todos: list[int], budget: int) -> None:
    chunks = prompt_chunks(todos, budget)
    assert sum(chunks) == min(sum(todos), budget)
    waits = [at for at, (chunk, todo) in enumerate(zip(chunks, todos, strict=True)) if chunk < todo]
    assert not any(chunks[at] for at in waits[1:])


def test_what_can_never_fit_is_refused_and_the_next_one_served() -> None:
    """P53: 4 pages of 4; a request of 20 tokens, then one of 4. 16 tokens and one output just fit."""
    scheduler = Scheduler(CountingMemory(4, 4))
    with pytest.raises(ContractError, match=r"got 5 pages \(20 \+ 1 tokens\), need at most 4"):
        scheduler.add(Ticket(Want(0, 20, 1), outputs=1))
    with pytest.raises(ContractError, match="can never fit"):
        scheduler.add(Ticket(Want(1, 16, 2), outputs=2))
    scheduler.add(Ticket(Want(2, 16, 1), outputs=1))
    scheduler.add(Ticket(Want(3, 4, 1), outputs=1))
    assert names(scheduler.schedule().admitted) == [2]
    assert names(scheduler.done()) == [2]
    assert names(scheduler.schedule().admitted) == [3]


def test_outputs_count_once_over_a_preemption() -> None:
    """P58: the history is prompt and outputs so far; outputs are counted once."""
    scheduler = Scheduler(CountingMemory(4, 2))
    old, new = Ticket(Want(0, 3, 5), outputs=5), Ticket(Want(1, 3, 4), outputs=4)
    scheduler.add(old)
    scheduler.add(new)
    outputs = 0
    todos = []
    while scheduler.num_running or scheduler.num_waiting:
        plan = scheduler.schedule()
        todos += [ticket.todo for ticket in plan.admitted if ticket is new]
        before = scheduler.produced(new)
        scheduler.done()
        outputs += scheduler.produced(new) - before
    assert new.preemptions == 1
    assert todos == [3, 3 + 2]
    assert outputs == new.produced == 4


def test_frames_that_others_hold_are_no_deadlock() -> None:
    """A caller who takes frames behind the scheduler's back is told, and may give them back."""
    memory = CountingMemory(4, 4)
    scheduler = Scheduler(memory)
    stranger = Ticket(Want(9, 1, 1))
    memory.frames[stranger] = 2
    scheduler.add(Ticket(Want(0, 12, 1), outputs=1))
    with pytest.raises(OutOfFrames, match="that others hold"):
        scheduler.schedule()
    memory.frames[stranger] = 1
    scheduler.schedule()
    assert len(scheduler.done()) == 1


def test_calls_out_of_turn_are_refused() -> None:
    scheduler = Scheduler(CountingMemory(4, 4))
    ticket = Ticket(Want(0, 4, 4), outputs=4)
    scheduler.add(ticket)
    with pytest.raises(ContractError, match="added before"):
        scheduler.add(ticket)
    with pytest.raises(ContractError, match="no step is planned"):
        scheduler.done()
    scheduler.schedule()
    with pytest.raises(ContractError, match="is not done"):
        scheduler.schedule()
    scheduler.done()
    with pytest.raises(ContractError, match="more than is quiet"):
        scheduler.skip(1)
    with pytest.raises(ContractError, match="can never run at once"):
        Scheduler(CountingMemory(4, 4), Limits(max_running=1)).add(Ticket(Want(0, 1, 1), rows=2))


@pytest.mark.parametrize(
    "options", [{"token_budget": 0}, {"max_running": 0}, {"token_budget": 2, "max_running": 3}, {"preemption": "x"}]
)
def test_limits_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="Limits: "):
        Limits(**options)


@pytest.mark.parametrize("options", [{"rows": 0}, {"priority": 1.5}, {"outputs": 0}, {"rows": True}])
def test_tickets_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="Ticket: "):
        Ticket("request", **options)


class Life(RuleBasedStateMachine):
    """Requests come, go and change their rows in any order; the books and the memory agree after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = CountingMemory(12, 3, watermark=1, host=6)
        self.scheduler = Scheduler(self.memory, Limits(8, 5, "swap"))
        self.tickets: list[Ticket] = []

    @rule(prompt=st.integers(1, 12), outputs=st.integers(1, 9), priority=st.integers(0, 1), rows=st.integers(1, 2))
    def add(self, prompt: int, outputs: int, priority: int, rows: int) -> None:
        ticket = Ticket(Want(len(self.tickets), prompt, outputs), priority=priority, rows=rows, outputs=outputs)
        if self.memory.largest(ticket) <= self.memory.capacity:
            self.scheduler.add(ticket)
            self.tickets.append(ticket)
        else:
            with pytest.raises(ContractError):
                self.scheduler.add(ticket)

    @rule()
    def step(self) -> None:
        plan = self.scheduler.schedule()
        assert plan.decode_rows == sum(ticket.rows for ticket in self.scheduler.decoding)
        self.scheduler.done()

    @rule(at=st.integers(0, 99))
    @precondition(lambda self: self.tickets)
    def finish(self, at: int) -> None:
        self.scheduler.finish(self.tickets.pop(at % len(self.tickets)))

    @rule(n=st.integers(0, 5))
    def skip(self, n: int) -> None:
        self.scheduler.skip(min(n, self.scheduler.quiet()))

    @rule(at=st.integers(0, 99))
    @precondition(lambda self: any(t.rows == 2 and t.state == "waiting" for t in self.tickets))
    def lose_a_row(self, at: int) -> None:
        pairs = [ticket for ticket in self.tickets if ticket.rows == 2 and ticket.state == "waiting"]
        self.scheduler.retouch(pairs[at % len(pairs)], 1)

    @invariant()
    def books_agree(self) -> None:
        scheduler, memory = self.scheduler, self.memory
        assert memory.free >= 0 and sum(memory.away.values()) <= memory.host
        assert set(memory.frames) == set(scheduler.running)
        assert set(memory.away) == {ticket for ticket in scheduler.waiting if ticket.state == "swapped"}
        assert scheduler.num_rows == sum(ticket.rows for ticket in scheduler.running) <= 5
        assert scheduler.num_waiting == len(scheduler.waiting)
        live = {ticket for ticket in self.tickets if ticket.state != "ended"}
        assert live == {*scheduler.running, *scheduler.waiting}
        assert all(scheduler.produced(t) == t.outputs for t in self.tickets if t.state == "ended")

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.scheduler.num_running and not self.scheduler.num_waiting:
                break
            self.scheduler.schedule()
            self.scheduler.done()
        assert all(self.scheduler.produced(ticket) == ticket.outputs for ticket in self.tickets)
        assert self.memory.free == self.memory.num_frames


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 1)), max_size=40))
def test_who_leaves_the_queue_is_forgotten(moves: list[tuple[bool, int]]) -> None:
    """However many come and go behind somebody who runs for ever; those who stay keep their order."""
    scheduler = Scheduler(CountingMemory(4, 4, 0), Limits(max_running=1))
    scheduler.add(Ticket(Want(-1, 1, 8), priority=2))
    scheduler.schedule()
    scheduler.done()
    waiting: list[Ticket] = []
    for name, (comes, priority) in enumerate(moves):
        if comes or not waiting:
            waiting.append(Ticket(Want(name, 1, 8), priority=priority))
            scheduler.add(waiting[-1])
        else:
            scheduler.finish(waiting.pop(name * 7 % len(waiting)))
        assert scheduler.num_waiting == len(waiting)
        assert scheduler.waiting == sorted(waiting, key=order_of)
        assert len(scheduler._queue) <= 2 * len(waiting) + 1
