"""An engine under random requests, aborts and steps against each request alone, with every kind of preemption."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedref.engine import Completion, Delta, Engine, EngineConfig
from pagedref.errors import ContractError
from pagedref.models.draft import Speculation
from pagedref.models.sampling import SamplingParams
from pagedref.scheduling import Plan, Scheduler, Ticket
from tests.engine.counting_memory import CountingMemory, Want
from tests.engine.fake_model import VOCAB, FakeModel, Windows, alone

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=14)
ROOMY = EngineConfig(num_frames=400, page_size=4, token_budget=200, max_running=60)


class Life(RuleBasedStateMachine):
    """Texts are those of each request alone, the books balance after every step, and everybody ends."""

    @initialize(
        num_frames=st.integers(10, 24),  # for each group of layers
        page_size=st.integers(1, 5),
        budget=st.integers(6, 14),
        watermark=st.integers(0, 2),
        preemption=st.sampled_from(["recompute", "swap", "none"]),
        swap_frames=st.integers(0, 20),
        prefix_cache=st.booleans(),
        windows=st.sampled_from([(None,), (None,), (3,), (None, 4), (4, None, 4)]),
        speculation=st.none() | st.builds(Speculation, tokens=st.integers(1, 4), ngram=st.integers(1, 2)),
    )
    def build(self, budget: int, num_frames: int, windows: Windows, **options: Any) -> None:
        self.model = FakeModel(windows=windows)
        frames = num_frames * len(windows)
        config = EngineConfig(token_budget=budget, max_running=6, num_frames=frames, poison=True, **options)
        self.engine = Engine(self.model, config)
        self.watch("admit")
        self.watch("swap_in")
        self.watch_begin()
        self.wanted: dict[int, tuple[list[int], SamplingParams, dict[str, Any]]] = {}
        self.texts: dict[tuple[int, int], list[int]] = {}
        self.done: dict[int, Completion] = {}
        self.aborted: set[int] = set()

    def watch(self, name: str) -> None:
        """See that whoever comes in leaves the watermark (S34)."""
        memory = self.engine._memory
        ask = getattr(memory, name)

        def watched(*arguments: Any) -> Any:
            answer = ask(*arguments)
            assert not answer or memory.spare >= (self.engine.config.watermark or 0)
            return answer

        setattr(memory, name, watched)

    def watch_begin(self) -> None:
        """See that a step takes the frames that were promised, no more and no fewer."""
        cache, memory = self.engine.cache, self.engine._memory
        begin = cache.begin

        def watched(seq_ids: Any, counts: Any) -> Any:
            assert cache.manager.frames_to_reserve(seq_ids, counts) == sum(memory._promised.values())
            return begin(seq_ids, counts)

        setattr(cache, "begin", watched)  # noqa: B010

    def send(self, prompt: list[int], params: SamplingParams, priority: int = 0, **options: Any) -> None:
        try:
            number = self.engine.add(prompt, params, priority=priority, **options)
        except ContractError as error:
            assert "(S34)" in str(error) or "can never fit" in str(error)
            return
        self.wanted[number] = prompt, params, options

    @rule(prompt=prompts, limit=st.integers(1, 16), priority=st.integers(0, 1))
    def greedy(self, prompt: list[int], limit: int, priority: int) -> None:
        self.send(prompt, SamplingParams(max_tokens=limit, ignore_eos=True), priority)

    @rule(prompt=prompts, limit=st.integers(1, 8), n=st.integers(1, 3), seed=st.integers(0, 9))
    def samples(self, prompt: list[int], limit: int, n: int, seed: int) -> None:
        params = SamplingParams(max_tokens=limit, temperature=2.0, seed=seed, n=n, presence_penalty=1.0)
        self.send(prompt, params)

    @rule(prompt=prompts, limit=st.integers(1, 6), width=st.integers(1, 3))
    def beams(self, prompt: list[int], limit: int, width: int) -> None:
        self.send(prompt, SamplingParams(max_tokens=limit, beam_width=width, n=width))

    @rule(prompt=prompts, limit=st.integers(1, 6))
    def judged(self, prompt: list[int], limit: int) -> None:
        self.send(prompt, SamplingParams(max_tokens=limit, prompt_logprobs=1, logprobs=1))

    @rule(limit=st.integers(4, 16), length=st.integers(2, 3))
    def repetitive(self, limit: int, length: int) -> None:
        """Guesses come true here."""

        def cycle(prompt: Any, outputs: Any, logits: Any) -> Any:
            logits[(len(prompt) + len(outputs)) % length] += 40
            return logits

        self.send(list(range(length)) * 2, SamplingParams(max_tokens=limit, ignore_eos=True), logits_processor=cycle)

    @rule(at=st.integers(0, 99))
    @precondition(lambda self: self.wanted)
    def abort(self, at: int) -> None:
        number = sorted(self.wanted)[at % len(self.wanted)]
        if number not in self.done:
            self.aborted.add(number)
        self.engine.abort(number)
        self.take(self.engine._loose)
        self.engine._loose = []

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.take(self.engine.step())

    def take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.done
            self.texts.setdefault((delta.request_id, delta.sample), []).extend(delta.token_ids)
            if delta.completion is not None:
                self.done[delta.request_id] = delta.completion

    @invariant()
    def books_balance(self) -> None:
        manager = self.engine.cache.manager
        manager.audit()
        metrics = self.engine.metrics()
        assert metrics.frames_free + metrics.frames_cached + metrics.frames_held == manager.num_frames
        assert self.engine.num_unfinished == len(self.wanted) - len(self.done) == metrics.queued + metrics.running
        if not metrics.running:
            assert metrics.frames_held == 0
        held: dict[int, int] = {}
        for use in self.engine.frames():
            for number in {number for number, _, _ in use.holders}:
                held[number] = held.get(number, 0) + 1
        for number, frames in held.items():  # nobody ever has more than he was measured by when he came (S34)
            assert frames <= self.engine._memory.largest(self.engine._requests[number].ticket)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(3000):
            if not self.engine.num_unfinished:
                break
            self.step(1)
        assert set(self.done) == set(self.wanted)
        roomy = Engine(self.model, ROOMY)
        for number, (prompt, params, options) in self.wanted.items():
            found = self.done[number]
            assert found.error is None
            for at, sample in enumerate(found.samples):
                assert tuple(self.texts[number, at]) == sample.token_ids
            if number in self.aborted:
                continue
            expected = roomy.generate(prompt, params, **options)[0]
            assert found.samples == expected.samples
            assert found.prompt_logprobs == expected.prompt_logprobs
            if params.is_plain and params.beam_width is None and not options:
                expected = alone(
                    prompt, params.max_tokens, ignore_eos=params.ignore_eos, windows=self.model.config.windows
                )
                assert list(found.token_ids) == expected
        assert self.engine.metrics().frames_held == 0
        assert all(0 <= token < VOCAB for tokens in self.texts.values() for token in tokens)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("preemption", ["recompute", "swap", "none"])
def test_many_requests_through_a_small_pool(preemption: Any) -> None:
    """A pool that holds a quarter of them; texts, ends and frames as if each had been alone (S34)."""
    model = FakeModel()
    config = EngineConfig(
        num_frames=48, page_size=4, token_budget=24, max_running=16, preemption=preemption, swap_frames=64, poison=True
    )
    engine = Engine(model, config)
    requests = [([token % 20 for token in range(at, at + 3 + at % 13)], 4 + at % 17) for at in range(64)]
    params = [SamplingParams(max_tokens=limit, ignore_eos=True) for _, limit in requests]
    found = engine.generate([prompt for prompt, _ in requests], params)
    for completion, (prompt, limit) in zip(found, requests, strict=True):
        assert list(completion.token_ids) == alone(prompt, limit, ignore_eos=True)
    metrics = engine.metrics()
    assert metrics.frames_free + metrics.frames_cached == 48
    assert metrics.output_tokens == sum(limit for _, limit in requests)
    assert metrics.requests_looked_up == 64  # nobody twice, preempted or not
    assert metrics.tokens_looked_up == sum(len(prompt) for prompt, _ in requests)
    assert (metrics.recomputed + metrics.swapped > 0) == (preemption != "none")


@given(
    wants=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(0, 1)), min_size=1, max_size=10),
    num_frames=st.integers(8, 20),
    page_size=st.integers(1, 4),
    budget=st.integers(4, 24),
    watermark=st.integers(0, 2),
    preemption=st.sampled_from(["recompute", "none"]),
)
def test_the_engine_decides_as_a_count_of_frames_does(
    wants: list[tuple[int, int, int]], num_frames: int, page_size: int, budget: int, watermark: int, preemption: Any
) -> None:
    """What a simulator learns holds for the engine: the same requests give the same plan in every step."""
    config = EngineConfig(
        num_frames=num_frames, page_size=page_size, token_budget=budget, max_running=4, watermark=watermark,
        preemption=preemption, prefix_cache=False,
    )  # fmt: skip
    engine = Engine(FakeModel(), config)
    counted = Scheduler(CountingMemory(num_frames, page_size, watermark), config.limits)
    for name, (prompt, outputs, priority) in enumerate(wants):
        ticket = Ticket(Want(name, prompt, outputs), priority=priority, outputs=outputs)
        try:
            counted.add(ticket)
        except ContractError:
            with pytest.raises(ContractError, match="can never fit"):
                engine.add([1] * prompt, SamplingParams(max_tokens=outputs, ignore_eos=True), priority=priority)
            ticket.request = None
            continue
        number = engine.add([1] * prompt, SamplingParams(max_tokens=outputs, ignore_eos=True), priority=priority)
        engine._requests[number].name = name  # type: ignore[attr-defined]
    plan_engine, plans = engine._scheduler.schedule, []

    def watched() -> Plan:
        plans.append(plan_engine())
        return plans[-1]

    engine._scheduler.schedule = watched  # type: ignore[method-assign]
    while engine.num_unfinished:
        engine.step()
        expected = counted.schedule()
        counted.done()
        found = plans[-1]
        assert found.decode_rows == expected.decode_rows
        for part in ("prefill", "admitted", "preempted"):
            assert named(getattr(found, part)) == named(getattr(expected, part))
    assert not counted.num_running and not counted.num_waiting


def named(part: list[Any]) -> list[Any]:
    """Say whom a part of a plan means."""
    return [(x[0].request.name, x[1]) if isinstance(x, tuple) else x.request.name for x in part]
