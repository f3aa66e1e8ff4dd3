"""The engine: what it promises to each request, whatever the others do."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from pagedref.engine import Delta, Engine, EngineConfig
from pagedref.errors import ContractError
from pagedref.models.beam import BeamSearch
from pagedref.models.draft import Speculation
from pagedref.models.logprobs import log_softmax, token_logprob
from pagedref.models.sampling import SamplingParams, choose
from tests.engine.fake_model import EOS, VOCAB, FakeModel, FakeTokenizer, alone, next_logits

SMALL = EngineConfig(num_frames=32, page_size=4, token_budget=16, max_running=8, poison=True)


def free(max_tokens: int, **changes: Any) -> SamplingParams:
    """Parameters of a request that only its length ends."""
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **changes)


def drain(engine: Engine) -> list[Delta]:
    """Run to the end and return everything that came."""
    deltas = []
    while engine.num_unfinished:
        deltas += engine.step()
    return deltas + engine.step()


def test_a_cached_prompt_computes_at_least_one_token() -> None:
    """P52: page 4, a prompt of 8 that is cached whole: 4 tokens hit, 4 are computed."""
    model = FakeModel()
    engine = Engine(model, SMALL)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    engine.generate(prompt, free(1))
    before = model.transformer.tokens
    again = engine.generate(prompt, free(1))[0]
    assert again.usage.cached_tokens == 4
    assert model.transformer.tokens - before == 4
    assert list(again.token_ids) == alone(prompt, 1)


def test_the_hit_is_known_before_tokens_are_scheduled() -> None:
    """P52: prompt 465, hit 256: 209 tokens are computed, not 465."""
    model = FakeModel(max_model_len=512)
    engine = Engine(model, EngineConfig(num_frames=40, page_size=16, token_budget=512))
    prompt = [at % 19 for at in range(465)]
    engine.generate(prompt[:257], free(1))
    before = model.transformer.tokens
    engine.add(prompt, free(1))
    engine.step()
    assert model.transformer.tokens - before == 209
    assert engine.metrics().tokens_hit == 256


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    """P53: 4 frames of 4; 20 tokens are refused, the next request is served, and 16 + 1 just fit."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=4, page_size=4))
    with pytest.raises(ContractError, match=r"got 5 pages \(20 \+ 1 tokens\), need at most 4"):
        engine.add([1] * 20, free(1))
    small = engine.add([1] * 4, free(1))
    exact = engine.add([2] * 16, free(1))
    assert [delta.request_id for delta in drain(engine)] == [small, exact]
    with pytest.raises(ContractError, match=r"can never fit, .* got 5 pages \(4 \+ 2 x 8 tokens\)"):
        engine.add([1] * 4, free(8, temperature=1.0, n=2))


def test_outputs_are_no_prompt_after_a_preemption() -> None:
    """P58: prompt 3, four tokens, preempted after two: same tokens, four outputs, penalties see outputs alone."""
    model = FakeModel()
    engine = Engine(model, EngineConfig(num_frames=4, page_size=2, prefix_cache=False, poison=True))
    params = free(4, presence_penalty=3.0, frequency_penalty=1.0, logprobs=0)
    engine.add([1, 2, 3], free(6))
    second = engine.add([1, 2, 4], params)
    found = {delta.request_id: delta.completion for delta in drain(engine) if delta.completion}[second]
    assert found is not None and found.usage.preemptions == 1
    expected: list[int] = []
    for _ in range(4):
        expected.append(choose(next_logits((1, 2, 4, *expected)), params, [1, 2, 4], expected))
    assert list(found.token_ids) == expected
    assert (found.usage.prompt_tokens, found.usage.output_tokens) == (3, 4)
    assert len(found.samples[0].logprobs) == 4
    assert engine.metrics().output_tokens == 6 + 4


def test_every_stop_token_stops() -> None:
    """P65: the model's tokens and those of the request, all of them; a prompt of the maximum length has one token."""
    model = FakeModel(max_model_len=16)
    long = alone([1, 2, 3], 12, ignore_eos=True)
    first = next(at for at, token in enumerate(long) if token not in long[:at] and at > 2)
    engine = Engine(model, SMALL)
    assert engine.generate([1, 2, 3], free(12, stop_token_ids=[long[first]]))[0].token_ids == tuple(long[: first + 1])
    model.config.eos_token_ids = frozenset({EOS, long[first], 5})
    found = engine.generate([1, 2, 3], SamplingParams(max_tokens=12, stop_token_ids=[21]))[0]
    assert (found.finish_reason, found.token_ids) == ("stop", tuple(long[: first + 1]))
    edge = engine.generate([3] * 16, free(9))[0]
    assert (edge.finish_reason, len(edge.token_ids)) == ("length", 1)
    with pytest.raises(ContractError, match="is too long, got 17"):
        engine.add([3] * 17)


def test_requests_come_and_go_at_any_step() -> None:
    engine = Engine(FakeModel(), SMALL)
    wanted: dict[int, list[int]] = {}
    done: dict[int, list[int]] = {}
    for at in range(30):
        prompt, limit = [at % 7, 3, at % 5], 2 + at % 9
        wanted[engine.add(prompt, free(limit))] = alone(prompt, limit, ignore_eos=True)
        for delta in engine.step():
            done.setdefault(delta.request_id, []).extend(delta.token_ids)
    for delta in drain(engine):
        done.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert done == wanted
    metrics = engine.metrics()
    assert metrics.frames_free + metrics.frames_cached == 32
    assert metrics.finished == {"length": 30}


def test_high_classes_go_first_and_stay() -> None:
    engine = Engine(FakeModel(), EngineConfig(num_frames=8, page_size=4, max_running=2))
    low = [engine.add([at, 1], free(6)) for at in range(3)]
    high = engine.add([9, 9], free(6), priority=1)
    firsts: list[int] = []
    for delta in drain(engine):
        if delta.request_id not in firsts:
            firsts.append(delta.request_id)
    assert firsts == [high, *low]


def test_text_comes_whole_and_stops_before_a_stop_string() -> None:
    """No half character, no part of a stop string; the pieces joined are the text."""
    model = FakeModel(tokenizer=FakeTokenizer())
    engine = Engine(model, SMALL)
    tokenizer = model.tokenizer
    for start in range(12):
        plain = engine.generate([start, 3], free(20))[0]
        pieces = [delta.text for delta in engine.stream([start, 3], free(20))]
        assert "".join(pieces) == plain.text == tokenizer.decode(list(plain.token_ids))
        stop = plain.text[5:7]
        cut = plain.text.index(stop)
        with closing(engine.stream([start, 3], free(20, stop=stop))) as stream:
            deltas = list(stream)
        assert "".join(delta.text for delta in deltas) == plain.text[:cut]
        assert deltas[-1].finish_reason == "stop"
        kept = engine.generate([start, 3], free(20, stop=["@", stop], include_stop=True))[0]
        assert kept.text == plain.text[: cut + 2]


def test_half_a_character_waits_for_the_other() -> None:
    """The two halves come one token after the other, and the character with the second."""
    engine = Engine(FakeModel(tokenizer=FakeTokenizer()), SMALL)

    def accents(prompt: Any, outputs: Any, logits: Any) -> Any:
        logits[(0, 20, 21)[len(outputs) % 3]] += 40
        return logits

    pieces = [delta.text for delta in engine.stream([1], free(7), logits_processor=accents)]
    assert pieces == ["a", "", "\N{LATIN SMALL LETTER E WITH ACUTE}"] * 2 + ["a"]


def test_streams_may_be_mixed_and_closed() -> None:
    """Whoever drives the engine, nobody's text is lost; a closed stream gives its frames back."""
    engine = Engine(FakeModel(), SMALL)
    loose = engine.add([7], free(9))
    a, b = engine.stream([1, 2], free(6)), engine.stream([3], free(8))
    closed = engine.stream([4], free(30))
    next(closed)
    closed.close()
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    for delta_a in a:
        tokens["a"] += delta_a.token_ids
        tokens["b"] += next(b).token_ids
    tokens["b"] += [token for delta in b for token in delta.token_ids]
    assert tokens == {"a": alone([1, 2], 6), "b": alone([3], 8)}
    rest = drain(engine)
    assert [token for delta in rest if delta.request_id == loose for token in delta.token_ids] == alone([7], 9)
    assert engine.metrics().finished == {"abort": 1, "length": 3}
    assert engine.metrics().frames_held == 0


def test_abort_frees_at_once() -> None:
    engine = Engine(FakeModel(), SMALL)
    running, waiting = engine.add([1] * 8, free(9)), engine.add([2] * 8, free(9), priority=-1)
    engine.step()
    for number in (running, waiting, running):
        engine.abort(number)
    assert engine.metrics().frames_held == 0 and engine.num_unfinished == 0
    ends = {delta.request_id: delta for delta in engine.step() if delta.completion}
    assert {number: delta.finish_reason for number, delta in ends.items()} == {running: "abort", waiting: "abort"}
    for unknown in (7, -1, "0", True):
        with pytest.raises(ContractError, match="request_id is unknown"):
            engine.abort(unknown)  # type: ignore[arg-type]


def broken(*_: Any) -> Any:
    raise RuntimeError("not my day")


FAULTS: dict[str, dict[str, Any]] = {
    "callback": {"on_delta": broken},
    "processor": {"logits_processor": broken},
    "shape": {"logits_processor": lambda prompt, outputs, logits: logits[:-1]},
    "nan": {"logits_processor": lambda prompt, outputs, logits: logits * np.nan},
    "banned": {"logits_processor": lambda prompt, outputs, logits: logits - np.inf},
}


@pytest.mark.parametrize("fault", [*FAULTS, "tokenizer"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_fault_stays_with_its_request(fault: str, n: int) -> None:
    """An exception in one request ends it with a reason and harms no other."""
    model = FakeModel(tokenizer=FakeTokenizer())
    engine = Engine(model, SMALL)
    good = [engine.add([at, 2, 1], free(7)) for at in range(3)]
    if fault == "tokenizer":
        clean = {token for at in range(3) for token in alone([at, 2, 1], 7)}
        path = alone([9, 9], 12)
        model.tokenizer.poisoned = next(token for token in path if token not in clean)
    params = free(12) if fault == "tokenizer" else free(12, temperature=1.0, seed=1, n=n)
    bad = engine.add([9, 9], params, **FAULTS.get(fault, {}))
    late = engine.add([5, 5], SamplingParams(max_tokens=2, stop_token_ids=[0]))
    deltas = drain(engine)
    ends = {delta.request_id: delta.completion for delta in deltas if delta.completion}
    failed = ends[bad]
    assert failed is not None and failed.error is not None
    assert all(sample.finish_reason == "error" for sample in failed.samples) or fault == "callback"
    for at, number in enumerate(good):
        completion = ends[number]
        assert completion is not None and list(completion.token_ids) == alone([at, 2, 1], 7)
    assert late in ends
    assert engine.metrics().frames_held == 0
    engine.cache.audit()


def test_a_broken_tokenizer_ends_requests_and_nothing_else() -> None:
    """Also where text is made at the end only, of beams, or at an abort."""
    model = FakeModel(tokenizer=FakeTokenizer())
    engine = Engine(model, SMALL)
    beams = engine.add([1, 2], SamplingParams(max_tokens=4, beam_width=2))
    cut = engine.add([9, 4], free(30))
    good = engine.add([3, 3], free(9, n=1, temperature=1.0, seed=1), on_delta=lambda delta: None)
    for _ in range(3):
        engine.step()
    model.tokenizer.poisoned = alone([9, 4], 2)[1]
    engine.abort(cut)
    model.tokenizer.decode = broken
    ends = {delta.request_id: delta.completion for delta in drain(engine) if delta.completion}
    for number in (beams, good):
        completion = ends[number]
        assert completion is not None and completion.error == "RuntimeError: not my day"
    assert ends[beams] is not None and len(ends[beams].token_ids) > 0
    assert ends[cut] is not None and ends[cut].finish_reason == "abort"
    assert engine.metrics().frames_held == 0


def test_a_listener_that_fails_costs_nobody_a_token() -> None:
    """What came in the same step is still handed out."""
    engine = Engine(FakeModel(), SMALL)
    number = engine.add([1, 2], free(5, temperature=1.0, seed=1, n=3), on_delta=broken)
    deltas = drain(engine)
    completion = deltas[-1].completion
    assert completion is not None and completion.error == "RuntimeError: not my day"
    for sample, whole in enumerate(completion.samples):
        told = [token for delta in deltas if delta.sample == sample for token in delta.token_ids]
        assert told == list(whole.token_ids) and len(told) == 1
    assert {delta.request_id for delta in deltas} == {number}


def test_the_pool_can_be_looked_at_in_every_step() -> None:
    """`on_step` sees tokens stored and nobody gone; what it raises is its owner's."""
    engine = Engine(FakeModel(), SMALL)
    held = []
    engine.on_step = lambda: held.append(engine.metrics().frames_held)
    engine.generate([1] * 9, free(1))
    assert held == [3]
    engine.on_step = broken
    with pytest.raises(RuntimeError, match="not my day"):
        engine.generate([1] * 9, free(1))
    engine.on_step = None
    assert engine.metrics().frames_held == 0
    assert engine.generate([1] * 9, free(1))[0].error is None


def test_a_step_that_failed_is_taken_again() -> None:
    """An error of the model, or Ctrl-C in it, loses nothing."""
    model = FakeModel()
    engine = Engine(model, SMALL)
    numbers = [engine.add([at, 4], free(6)) for at in range(4)]
    tokens: dict[int, list[int]] = {number: [] for number in numbers}
    for fail in (1, 3, 4):
        model.transformer.fail_at = model.transformer.steps + fail
        with pytest.raises(FloatingPointError):
            while True:
                for delta in engine.step():
                    tokens[delta.request_id] += delta.token_ids
        engine.cache.audit()
    for delta in drain(engine):
        tokens[delta.request_id] += delta.token_ids
    assert tokens == {number: alone([at, 4], 6) for at, number in enumerate(numbers)}


def test_requests_may_go_before_a_step_is_taken_again() -> None:
    """One of two, then all of them."""
    model = FakeModel()
    engine = Engine(model, SMALL)
    first, second = engine.add([1, 4], free(6)), engine.add([2, 4], free(6))
    engine.step()
    for gone in (first, second):
        model.transformer.fail_at = model.transformer.steps + 1
        with pytest.raises(FloatingPointError):
            engine.step()
        engine.abort(gone)
    deltas = drain(engine)
    assert {delta.request_id: delta.finish_reason for delta in deltas} == {first: "abort", second: "abort"}
    assert engine.metrics().frames_held == 0
    assert list(engine.generate([2, 4], free(6))[0].token_ids) == alone([2, 4], 6)


def test_log_probabilities_are_those_of_the_model() -> None:
    """Of the prompt too, in chunks, over a preemption; the first token of a prompt has none."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=10, page_size=2, token_budget=6, max_running=3))
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    params = free(5, logprobs=2, prompt_logprobs=1)
    found = engine.generate([prompt, prompt], params)
    history = tuple(prompt)
    expected = [token_logprob(next_logits(history[:at]), history[at], 1) for at in range(1, len(prompt))]
    for completion in found:
        assert completion.prompt_logprobs == (None, *expected)
        new = completion.token_ids
        rows = [next_logits(history + new[:at]) for at in range(5)]
        assert completion.samples[0].logprobs == tuple(
            token_logprob(row, token, 2) for row, token in zip(rows, new, strict=True)
        )
        assert np.allclose([p.logprob for p in completion.samples[0].logprobs], [log_softmax(r).max() for r in rows])


@pytest.mark.parametrize("width", [1, 2, 4])
def test_beams_are_those_of_a_plain_search(width: int) -> None:
    """Copy on write and preemption change no beam."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=17, page_size=3, token_budget=10, max_running=8, poison=True))
    params = SamplingParams(max_tokens=7, beam_width=width, n=width, length_penalty=0.7)
    prompts = [[at, 2, 3, 4][: 1 + at % 4] for at in range(5)]
    found = engine.generate(prompts, params)
    for prompt, completion in zip(prompts, found, strict=True):
        search = BeamSearch(width, stop_token_ids={EOS}, max_tokens=7, length_penalty=0.7)
        while not search.done:
            search.advance(np.array([next_logits((*prompt, *beam.tokens)) for beam in search.beams]))
        best = search.best(width)
        assert [sample.token_ids for sample in completion.samples] == [one.token_ids for one in best]
        assert [sample.score for sample in completion.samples] == [one.score for one in best]
    engine.cache.audit()


def test_samples_share_their_prompt() -> None:
    """Four samples of a prompt of 12 tokens: its pages are there once, and each sample is what it is alone."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=32, page_size=4, max_running=8))
    prompt = list(range(12))
    engine.add(prompt, free(3, temperature=1.5, seed=5, n=4))
    engine.step()
    assert engine.metrics().frames_held == 3
    engine.step()
    assert engine.metrics().frames_held == 3 + 4
    completion = drain(engine)[-1].completion
    assert completion is not None
    params = free(3, temperature=1.5, seed=5)
    for number, sample in enumerate(completion.samples):
        tokens: list[int] = []
        while len(tokens) < 3:
            tokens.append(choose(next_logits((*prompt, *tokens)), params, prompt, tokens, sample=number))
        assert list(sample.token_ids) == tokens


def test_every_frame_says_who_holds_it() -> None:
    """Samples share the pages of their prompt; what has ended is cached; the rest is free."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=12, page_size=4, max_running=8))
    assert all(use.is_free for use in engine.frames())
    engine.generate(list(range(9)), free(1))
    number = engine.add([3] * 6, free(4, temperature=1.5, seed=5, n=2))
    engine.step()
    uses = engine.frames()
    held = sorted(use.holders for use in uses if use.holders)
    assert held == [((number, 0, page), (number, 1, page)) for page in (0, 1)]
    engine.step()
    uses = engine.frames()
    assert [len(use.holders) for use in uses if use.holders] == [2, 1, 1] and sum(use.is_shared for use in uses) == 1
    metrics = engine.metrics()
    assert sum(use.cached for use in uses) == metrics.frames_cached == 2
    assert sum(use.is_free for use in uses) == metrics.frames_free


def test_salt_keeps_prompts_apart() -> None:
    engine = Engine(FakeModel(), SMALL)
    prompt = list(range(12))
    hits = [engine.generate(prompt, free(1), salt=salt)[0].usage.cached_tokens for salt in ("a", "b", "a", None)]
    assert hits == [0, 0, 8, 0]
    with pytest.raises(ContractError, match="no canonical form"):
        engine.add(prompt, salt=1.5)


def test_guesses_change_no_token() -> None:
    """Speculation takes fewer steps for the same greedy and sampled tokens."""
    loop = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    steps = {}

    def cycle(prompt: Any, outputs: Any, logits: Any) -> Any:
        logits[(len(prompt) + len(outputs)) % 3 + 1] += 40
        return logits

    for name, speculation in {"plain": None, "guess": Speculation(tokens=4, ngram=2)}.items():
        model = FakeModel()
        engine = Engine(model, EngineConfig(num_frames=32, page_size=4, speculation=speculation, poison=True))
        found = engine.generate([loop, loop], [free(12), free(12, temperature=1.0, seed=3)], logits_processor=cycle)
        steps[name] = model.transformer.steps, [completion.token_ids for completion in found]
        metrics = engine.metrics()
        engine.cache.audit()
    assert steps["guess"][1] == steps["plain"][1]
    assert steps["guess"][0] < steps["plain"][0] / 2
    assert metrics.accepted > 0 and metrics.drafted >= metrics.accepted


@pytest.mark.parametrize(
    ("prompt", "params", "text"),
    [
        ([], None, "prompt is empty"),
        ([VOCAB], None, "holds what is no token"),
        ([1.5], None, "no flat list"),
        ([1], SamplingParams(stop="x"), "needs a tokenizer"),
        ([1], SamplingParams(n=9, temperature=1.0), "can never run at once"),
        ([1] * 65, None, "too long"),
        ([1], {"max_tokens": 3}, "params are none"),
    ],
)
def test_bad_requests_are_refused(prompt: Any, params: Any, text: str) -> None:
    engine = Engine(FakeModel(), SMALL)
    with pytest.raises(ContractError, match=text):
        engine.add(prompt, params)
    with pytest.raises(ContractError, match=text):
        engine.generate([[1, 2], prompt], [SamplingParams(), params])
    for name in ("on_delta", "logits_processor"):
        with pytest.raises(ContractError, match=f"{name} cannot be called"):
            engine.add([1], **{name: 3})
    assert engine.num_unfinished == 0 and not engine.metrics().frames_held


def test_callbacks_may_add_and_abort_but_not_step() -> None:
    """In a callback the step is not over: others have their tokens still to take."""
    engine = Engine(FakeModel(), SMALL)
    added: list[int] = []

    def listen(delta: Delta) -> None:
        if len(added) < 2:
            added.append(engine.add([5, len(added)], free(3)))
        if len(added) == 2:
            engine.abort(victim)

    first = engine.add([1, 2], free(5), on_delta=listen)
    victim = engine.add([2, 3], free(20))
    stepping = engine.add([3, 4], free(5), on_delta=lambda delta: engine.step())
    ends = {delta.request_id: delta.completion for delta in drain(engine) if delta.completion}
    assert {number: ends[number].finish_reason for number in (first, victim, *added)} == {
        first: "length", victim: "abort", added[0]: "length", added[1]: "length",
    }  # fmt: skip
    assert list(ends[first].token_ids) == alone([1, 2], 5)
    assert [list(ends[number].token_ids) for number in added] == [alone([5, at], 3) for at in range(2)]
    assert "in a step, got a call from a callback" in str(ends[stepping].error)
    assert engine.metrics().frames_held == 0


@pytest.mark.parametrize(
    "options",
    [{"num_frames": 0}, {"page_size": 1.5}, {"watermark": -1}, {"swap_frames": -1}, {"token_budget": 4},
     {"preemption": "drop"}, {"speculation": Speculation(branches=2)}, {"speculation": 3}, {"deterministic": "no"},
     {"watermark": 512}],
)  # fmt: skip
def test_configurations_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        EngineConfig(**options)
    with pytest.raises(ContractError, match="config is none"):
        Engine(FakeModel(), options)  # type: ignore[arg-type]


def test_frames_of_strangers_end_the_request_and_not_the_engine() -> None:
    """Whoever takes frames of the engine's cache by himself can make a request fail, with a reason."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=4, page_size=4))
    stranger = engine.cache.add()
    engine.cache.manager.reserve(stranger, 12)
    number = engine.add([1] * 12, free(2))
    end = drain(engine)[-1]
    assert end.request_id == number and end.completion is not None
    assert "that others hold" in str(end.completion.error)
    assert engine.generate([1, 2], free(2))[0].error is None
