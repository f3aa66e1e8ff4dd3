"""Beam search against a slow search that never stops early; scores over new tokens alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.models.beam import BeamSearch, Hypothesis, rank_samples, score
from pagedref.models.logprobs import log_softmax
from pagedref.models.model import Model, load_model

VOCAB = 5


def table_logits(seed: int, coarse: bool, tokens: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Logits that depend on the whole text; coarse ones make ties frequent."""
    rng = np.random.default_rng([seed, len(tokens), *tokens])
    return (rng.integers(0, 3, VOCAB) if coarse else rng.standard_normal(VOCAB) * 4).astype(np.float32)


def search(
    seed: int, coarse: bool, width: int, stop: set[int], max_tokens: int, penalty: float
) -> tuple[list[Hypothesis], int]:
    """What BeamSearch finds, and its steps; parents are checked on the way."""
    beams = BeamSearch(width, stop_token_ids=stop, max_tokens=max_tokens, length_penalty=penalty)
    steps = 0
    while not beams.done:
        before = [beam.tokens for beam in beams.beams]
        parents = beams.advance(np.stack([table_logits(seed, coarse, tokens) for tokens in before]))
        steps += 1
        assert len(parents) == len(beams.beams) <= width
        for parent, beam in zip(parents, beams.beams, strict=True):
            assert beam.tokens[:-1] == before[parent]
    return beams.best(width), steps


def plain(seed: int, coarse: bool, width: int, stop: set[int], max_tokens: int, penalty: float) -> list[Hypothesis]:
    """The definition, to the last step, keeping everything that ended."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: list[Hypothesis] = []
    for length in range(1, max_tokens + 1):
        continuations = []
        for parent, (tokens, logprob) in enumerate(live):
            for token, extra in enumerate(log_softmax(table_logits(seed, coarse, tokens)).tolist()):
                total = logprob + extra
                if token in stop:
                    ended.append(Hypothesis((*tokens, token), total, total / length**penalty, "stop"))
                else:
                    continuations.append((-total, parent, token))
        best = sorted(continuations)[:width]
        live = [((*live[parent][0], token), -negative) for negative, parent, token in best]
    ended += [Hypothesis(tokens, logprob, logprob / max_tokens**penalty, "length") for tokens, logprob in live]
    return sorted(ended, key=lambda hypothesis: -hypothesis.score)[:width]  # stable: what ended first comes first


@settings(max_examples=200)
@given(
    st.integers(0, 10**6), st.booleans(), st.integers(1, 4), st.sets(st.integers(0, VOCAB - 1), max_size=2),
    st.integers(1, 7), st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
)  # fmt: skip
def test_stopping_early_changes_nothing(
    seed: int, coarse: bool, width: int, stop: set[int], max_tokens: int, penalty: float
) -> None:
    found, steps = search(seed, coarse, width, stop, max_tokens, penalty)
    assert found == plain(seed, coarse, width, stop, max_tokens, penalty)
    assert 1 <= steps <= max_tokens


def test_it_does_stop_early() -> None:
    steps = [search(seed, False, 2, {0}, 50, 1.0)[1] for seed in range(20)]
    assert min(steps) < 50


@pytest.mark.parametrize("penalty", [1.0, -1.0])
def test_it_does_not_stop_too_early(penalty: float) -> None:
    """A text that ends at once is overtaken later: by a long one of a smaller sum, or by a short one of a larger."""

    def logits(tokens: tuple[int, ...]) -> list[float]:
        if not tokens:  # 0 ends the text
            return [0.74, 0.26] if penalty > 0 else [0.05, 0.95]
        return [1e-6, 1] if penalty > 0 else [1, 1e-6]

    beams = BeamSearch(1, stop_token_ids={0}, max_tokens=100, length_penalty=penalty)
    while not beams.done:
        beams.advance(np.log(np.float32([logits(beam.tokens) for beam in beams.beams])))
    assert len(beams.best(1)[0].token_ids) == (100 if penalty > 0 else 2)


def test_p59_length_is_that_of_the_new_tokens() -> None:
    """A prompt of 100 tokens is not there to be counted: ten tokens of -1/2 beat two of -1."""
    assert score(-5.0, 10, 1.0) > score(-2.0, 2, 1.0)
    assert -5.0 / 110 < -2.0 / 102  # with the prompt the other one would win


def test_wide_beam_finds_what_greedy_misses() -> None:
    """0 looks better at first, but after it everything is unlikely."""

    def logits(tokens: tuple[int, ...]) -> list[float]:
        after = {(): [0.55, 0.45, 1e-9], (0,): [0.4, 0.3, 0.3], (1,): [0.01, 0.01, 0.98]}
        return after.get(tokens, [0.3, 0.3, 0.4])

    def best(width: int) -> tuple[int, ...]:
        beams = BeamSearch(width, stop_token_ids=(), max_tokens=2)
        while not beams.done:
            beams.advance(np.log(np.float32([logits(beam.tokens) for beam in beams.beams])))
        return beams.best(1)[0].token_ids

    assert best(1) == (0, 0)
    assert best(2) == (1, 2)


def test_one_beam_is_greedy() -> None:
    tokens: tuple[int, ...] = ()
    for _ in range(6):
        tokens = (*tokens, int(table_logits(3, False, tokens).argmax()))
    found, _ = search(3, False, 1, set(), 6, 1.0)
    assert found[0].token_ids == tokens
    assert found[0].finish_reason == "length"


def test_beams_of_a_model_share_the_prompt_and_fork() -> None:
    """Over a paged cache, forked as the parents say, the sums are those of whole texts read anew."""
    model: Model = load_model("tiny")
    prompt, width = [0, 9, 40, 7, 7, 33, 21], 3
    cache = model.cache(64, page_size=4, poison=True)
    sequences = [cache.add()]
    step = cache.begin(sequences, [len(prompt)])
    logits = model.transformer.forward(cache, step, prompt, [len(prompt) - 1])
    cache.commit(step)
    beams = BeamSearch(width, stop_token_ids=model.config.eos_token_ids, max_tokens=6)
    while not beams.done:
        parents = beams.advance(logits)
        if beams.done:
            break
        old, sequences = sequences, []
        for at, parent in enumerate(parents):
            first = parent not in parents[:at]
            sequences.append(old[parent] if first else cache.fork(old[parent]))
        cache.free([seq for at, seq in enumerate(old) if at not in parents])
        step = cache.begin(sequences, [1] * len(sequences))
        logits = model.transformer.forward(cache, step, [beam.tokens[-1] for beam in beams.beams])
        cache.commit(step)
        cache.audit()
    ids = beams.best(1)[0].token_ids
    table = log_softmax(model.logits([*prompt, *ids]))
    again = math.fsum(float(table[len(prompt) - 1 + at, token]) for at, token in enumerate(ids))
    assert f"{again:.4f}" == f"{beams.best(1)[0].logprob:.4f}"
    others = {hypothesis.token_ids for hypothesis in beams.best(width)}
    assert len(others) == width


def test_samples_are_ranked_by_their_means() -> None:
    assert rank_samples([-4.0, -1.0, -2.0, -2.0], [4, 1, 4, 4], 3) == [2, 3, 0]


def test_rows_that_do_not_fit_are_refused() -> None:
    beams = BeamSearch(2, stop_token_ids=(), max_tokens=2)
    with pytest.raises(ContractError, match=r"^advance: logits do not fit the beams, got \(2, 5\), need \(1, vocab\)"):
        beams.advance(np.zeros((2, VOCAB), np.float32))
    beams.advance(np.zeros((1, VOCAB), np.float32))
    beams.advance(np.zeros((2, VOCAB), np.float32))
    with pytest.raises(ContractError, match=r"^advance: .* need a search that is not done"):
        beams.advance(np.zeros((2, VOCAB), np.float32))


@pytest.mark.parametrize("wrong", [{"width": 0}, {"max_tokens": 0}])
def test_numbers_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ContractError, match=r"^BeamSearch: "):
        BeamSearch(**{"width": 1, "max_tokens": 1, "stop_token_ids": (), **wrong})  # type: ignore[arg-type]


def test_a_stop_token_beyond_the_vocabulary_never_comes() -> None:
    beams = BeamSearch(1, stop_token_ids={VOCAB + 3}, max_tokens=1)
    beams.advance(np.zeros((1, VOCAB), np.float32))
    assert beams.best(1)[0].finish_reason == "length"
