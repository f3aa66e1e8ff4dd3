"""What callbacks of a request may do: end it or others, raise, add more. Nobody else notices, reports keep order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.engine import Completion, Delta, Engine, EngineConfig
from pagedref.errors import ContractError
from pagedref.models.draft import Speculation
from pagedref.models.sampling import SamplingParams, choose
from tests.engine.fake_model import EOS, FakeModel, FakeTokenizer, alone, next_logits

LETTERS = "abcdefghijklmnopqrst\N{LATIN SMALL LETTER E WITH ACUTE}"
speculations = st.none() | st.builds(Speculation, tokens=st.integers(1, 5), ngram=st.integers(1, 2))
engines = st.builds(
    EngineConfig,
    num_frames=st.integers(12, 40), page_size=st.integers(1, 5), token_budget=st.integers(4, 20),
    max_running=st.just(4), watermark=st.integers(0, 1), preemption=st.sampled_from(["recompute", "swap", "none"]),
    prefix_cache=st.booleans(), speculation=speculations, poison=st.just(True),
)  # fmt: skip


def serve(engine: Engine) -> list[Delta]:
    """Run to the end; the books balance."""
    deltas = []
    while engine.num_unfinished:
        deltas += engine.step()
    engine.cache.audit()
    metrics = engine.metrics()
    assert metrics.frames_held == 0 and metrics.frames_free + metrics.frames_cached == engine.config.num_frames
    return deltas + engine.step()


def cycle(length: int) -> Any:
    """A processor under which a text repeats itself: guesses come true."""

    def processor(prompt: Any, outputs: Any, logits: Any) -> Any:
        logits[(len(prompt) + len(outputs)) % length] += 40
        return logits

    return processor


acts = st.sampled_from(["abort itself", "abort another", "raise", "add"])
plots = st.lists(
    st.tuples(
        st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.sampled_from(["listener", "processor"]), acts,
        st.integers(1, 5),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(config=engines, plot=plots)
def test_callbacks_harm_nobody_else(config: EngineConfig, plot: list[tuple[int, int, int, str, str, int]]) -> None:
    """Every delta comes before the completion of its request, and the texts of those left alone are what they are."""
    engine = Engine(FakeModel(), config)
    touched: set[int] = set()  # requests that were aborted, or have raised
    ends: dict[int, Completion] = {}
    wanted: dict[int, list[int]] = {}

    def quiet(prompt: list[int], limit: int) -> None:
        try:
            number = engine.add(prompt, SamplingParams(max_tokens=limit, ignore_eos=True))
        except ContractError as error:
            assert "can never fit" in str(error)
        else:
            wanted[number] = alone(prompt, limit, ignore_eos=True)

    def act(what: str, own: int) -> None:
        if what == "add":
            return quiet([own % 3, 1], 3)
        other = min(wanted, default=own) if what == "abort another" else own
        touched.add(other)
        if what == "raise":
            raise RuntimeError("not my day")
        return engine.abort(other)

    def troublemaker(prompt: list[int], limit: int, n: int, place: str, what: str, at: int) -> None:
        calls = []
        names: list[int] = []

        def listen(delta: Delta) -> None:
            calls.append(delta)
            if place == "listener" and len(calls) == at:
                act(what, names[0])

        def process(prompt_ids: Any, outputs: Any, logits: Any) -> Any:
            if place == "processor" and len(outputs) == at and names[0] not in touched:
                act(what, names[0])
            return cycle(3)(prompt_ids, outputs, logits)

        params = SamplingParams(max_tokens=limit, ignore_eos=True, n=n, temperature=0.1, seed=3)
        try:
            names.append(engine.add(prompt, params, on_delta=listen, logits_processor=process))
        except ContractError as error:
            assert "can never fit" in str(error)

    for length, limit, n, place, what, at in plot:
        quiet([limit, *range(length)], limit)
        troublemaker([at % 3 for at in range(length)], limit, n, place, what, at)
    told: dict[tuple[int, int], list[int]] = {}
    for delta in serve(engine):
        assert delta.request_id not in ends
        told.setdefault((delta.request_id, delta.sample), []).extend(delta.token_ids)
        if delta.completion is not None:
            ends[delta.request_id] = delta.completion
    for number, completion in ends.items():
        for sample, found in enumerate(completion.samples):
            assert tuple(told[number, sample]) == found.token_ids
        if number in wanted and number not in touched:
            assert completion.error is None and list(completion.token_ids) == wanted[number]
    assert set(wanted) <= set(ends)


def spoken(
    prompt: list[int], params: SamplingParams, sample: int, tokenizer: FakeTokenizer
) -> tuple[str, list[int], str]:
    """Text, tokens and reason of one sample, made token by token and looked at as a whole each time."""
    tokens: list[int] = []
    while True:
        tokens.append(choose(next_logits((*prompt, *tokens)), params, prompt, tokens, sample=sample))
        reason = params.finish_reason(tokens[-1], len(tokens), {EOS}, 65 - len(prompt))
        text = tokenizer.decode(tokens)
        whole = text if reason else text.rstrip("\N{REPLACEMENT CHARACTER}")
        ends = [(at + len(stop), -len(stop)) for stop in params.stop if (at := whole.find(stop)) >= 0]
        if ends:
            end, length = min(ends)
            return text[: end if params.include_stop else end + length], tokens, "stop"
        if reason:
            return text, tokens, reason


wishes = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 20), ignore_eos=st.booleans(), n=st.integers(1, 3), include_stop=st.booleans(),
    temperature=st.sampled_from([0.0, 0.5, 2.0]), seed=st.integers(0, 2**64 - 1), top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([0.3, 1.0]), repetition_penalty=st.sampled_from([1.0, 1.4]),
    stop=st.lists(st.text(LETTERS, min_size=1, max_size=2), max_size=6),
    stop_token_ids=st.sets(st.integers(0, 21), max_size=1),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    config=engines,
    requests=st.lists(st.tuples(st.lists(st.integers(0, 21), min_size=1, max_size=12), wishes), max_size=6),
)
def test_texts_are_those_of_one_token_after_the_other(
    config: EngineConfig, requests: list[tuple[list[int], SamplingParams]]
) -> None:
    """Stop strings across tokens, halves of characters, several samples, guesses and preemptions together."""
    tokenizer = FakeTokenizer()
    engine = Engine(FakeModel(tokenizer=tokenizer), config)
    numbers = {}
    for prompt, params in requests:
        try:
            numbers[engine.add(prompt, params)] = prompt, params
        except ContractError as error:
            assert "can never fit" in str(error)
    pieces: dict[tuple[int, int], str] = {}
    for delta in serve(engine):
        at = delta.request_id, delta.sample
        pieces[at] = pieces.get(at, "") + delta.text
        if delta.completion is not None:
            prompt, params = numbers[delta.request_id]
            for sample, found in enumerate(delta.completion.samples):
                expected = spoken(prompt, params, sample, tokenizer)
                assert (found.text, list(found.token_ids), found.finish_reason) == expected
                assert pieces[delta.request_id, sample] == found.text


@settings(max_examples=25, deadline=None)
@given(config=engines, at=st.integers(1, 60), whom=st.integers(0, 3))
def test_an_abort_may_come_at_any_moment(config: EngineConfig, at: int, whom: int) -> None:
    """In the model, in a look at the clock: a stream may be dropped wherever Python collects garbage."""
    model, moments = FakeModel(tokenizer=FakeTokenizer()), 0

    def moment() -> float:
        nonlocal moments
        moments += 1
        if moments == at:
            engine.abort(whom)
        return float(moments)

    def forward(*arguments: Any) -> Any:
        moment()
        return plain(*arguments)

    engine = Engine(model, config, clock=moment)
    plain, model.transformer.forward = model.transformer.forward, forward
    prompts = [[token, 1, 0, 1][: 2 + token] for token in range(4)]
    at += 4  # looks at the clock while they are added
    for prompt in prompts:
        engine.add(prompt, SamplingParams(max_tokens=7, ignore_eos=True))
    ends = {delta.request_id: delta.completion for delta in serve(engine) if delta.completion}
    for number, prompt in enumerate(prompts):
        if number != whom or moments < at:
            assert list(ends[number].token_ids) == alone(prompt, 7, ignore_eos=True)
        else:
            assert ends[number].finish_reason in ("abort", "length") and ends[number].error is None


def test_a_stream_that_was_never_begun_can_be_closed() -> None:
    """Closed, or only dropped."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=8))
    engine.stream([1, 2]).close()
    engine.stream([1, 2])
    assert engine.num_unfinished == 0 and engine.metrics().finished == {"abort": 2}


def test_beams_that_are_lost_keep_their_places() -> None:
    """A first step can give fewer beams than the width; the next one may give all, and nobody has come in meanwhile."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=400, page_size=4, token_budget=30, max_running=30))
    engine.add([1, 2, 3], SamplingParams(max_tokens=6, beam_width=30))
    for at in range(12):
        engine.add([at, 2], SamplingParams(max_tokens=6, ignore_eos=True))
    while engine.num_unfinished:
        engine.step()
        assert engine._scheduler.num_rows <= 30


@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_what_a_guess_leads_to_is_no_error_before_it_comes(fault: str) -> None:
    """Behind the token that ends the text a processor may fail: nobody would have asked it without a guess."""
    text = [0, 1, 2, 3, 5]

    def process(prompt: Any, outputs: Any, logits: Any) -> Any:
        if 5 in outputs:
            if fault == "raise":
                raise RuntimeError("nothing comes after 5")
            return logits * np.nan
        logits[text[(len(prompt) + len(outputs)) % 5]] += 40
        return logits

    engine = Engine(FakeModel(), EngineConfig(num_frames=32, page_size=4, speculation=Speculation(tokens=8)))
    found = engine.generate(text * 2, SamplingParams(max_tokens=12, stop_token_ids=[5]), logits_processor=process)[0]
    assert (found.token_ids, found.finish_reason, found.error) == (tuple(text), "stop", None)
    assert engine.metrics().accepted > 0
    late = engine.generate([*text * 2, 0], SamplingParams(max_tokens=12), logits_processor=process)[0]
    assert late.finish_reason == "error" and late.token_ids == tuple(text[1:])


@pytest.mark.parametrize("at", range(1, 7))
def test_ctrl_c_in_a_listener_loses_no_completion(at: int) -> None:
    """Neither that of a request that has just ended, nor those of the others in its step."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=32, page_size=4))
    heard = []

    def listen(delta: Delta) -> None:
        heard.append(delta)
        if len(heard) == at:
            raise KeyboardInterrupt

    params = SamplingParams(max_tokens=3, n=2, temperature=1.0, seed=1, ignore_eos=True)
    numbers = {engine.add([1, 2], params, on_delta=listen), engine.add([3], params)}
    with pytest.raises(KeyboardInterrupt):
        serve(engine)
    ends = {delta.request_id for delta in serve(engine) if delta.completion}
    assert ends == numbers and engine.metrics().frames_held == 0


def test_a_first_token_that_never_came_has_no_time() -> None:
    engine = Engine(FakeModel(), EngineConfig(num_frames=8))
    failed = engine.generate([1, 2], SamplingParams(n=2), logits_processor=lambda *_: None)[0]
    assert failed.error is not None and np.isnan(failed.usage.first_token)
    assert engine.metrics().first_token == (0.0, 0.0)


def test_swapping_has_room_by_default() -> None:
    """Asked for, it happens: the host holds as many pages as the pool, if nobody says otherwise."""
    engine = Engine(FakeModel(), EngineConfig(num_frames=8, page_size=4, watermark=0, preemption="swap"))
    engine.generate([[at, 3, 1] for at in range(6)], SamplingParams(max_tokens=14, ignore_eos=True))
    assert engine.metrics().swapped > 0 == engine.metrics().recomputed
    assert EngineConfig().swap_frames == 0


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ContractError, match="Engine: model is none, got 'tiny', need a Model"):
        Engine("tiny")  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="add: chat is no truth value, got 'no'"):
        Engine(FakeModel(), EngineConfig(num_frames=8)).add([1], chat="no")  # type: ignore[arg-type]
