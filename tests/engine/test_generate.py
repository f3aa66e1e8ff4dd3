"""Greedy text depends on the prompt alone, and every frame comes back."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pagedref import attention
from pagedref.errors import OutOfFrames
from pagedref.models.generate import BatchRun, Request, frames_needed
from pagedref.models.model import Model, load_model
from pagedref.models.tiny_text import encode, facts, story
from tests.engine.small_models import dense_logits, make_config, make_weights

FACTS = facts(12, seed=5)
STORIES = [
    story(n, FACTS[:k], seed=n)
    for n, k in ((40, 2), (64, 3), (90, 5), (33, 2), (300, 12), (700, 12), (51, 4), (128, 8))
]
PROMPTS = [encode(tale.prompt(tale.facts[i % len(tale.facts)])) for i, tale in enumerate(STORIES)]
ANSWERS = [tale.facts[i % len(tale.facts)].answer_ids for i, tale in enumerate(STORIES)]


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model("tiny")


def start(model: Model, requests: list[Request], num_frames: int, page_size: int = 4, **options: Any) -> BatchRun:
    """A run over a poisoned pool with frames in random order."""
    order = np.random.default_rng(2).permutation(num_frames)
    cache = model.cache(num_frames, page_size=page_size, frame_order=order, poison=True)
    settings = {"eos_token_ids": model.config.eos_token_ids, "max_model_len": model.config.max_model_len, **options}
    return BatchRun(model.transformer, cache, requests, **settings)


def finish(run: BatchRun) -> list[list[int]]:
    new: list[list[int]] = [[] for _ in run.requests]
    for token in run.tokens():
        new[token.index].append(token.token_id)
        run.cache.audit()
    assert run.cache.manager.num_free == run.cache.manager.num_frames
    return new


@pytest.mark.parametrize("page_size", [1, 16, 100])
def test_answers_are_right_alone(tiny: Model, page_size: int) -> None:
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        assert tiny.generate(prompt, 8, page_size=page_size)[0].token_ids == answer


@pytest.mark.parametrize("page_size", [1, 16, 100])
@pytest.mark.parametrize("shuffled", [False, True])
def test_answers_are_right_in_a_batch_of_eight(tiny: Model, page_size: int, shuffled: bool) -> None:
    frames = sum(frames_needed(Request(tuple(prompt), 8), page_size) for prompt in PROMPTS)
    order = np.random.default_rng(0).permutation(frames) if shuffled else None
    found = tiny.generate(PROMPTS, 8, page_size=page_size, num_frames=frames, frame_order=order)
    assert [generation.token_ids for generation in found] == ANSWERS
    assert [generation.prompt_ids for generation in found] == PROMPTS
    assert {generation.finish_reason for generation in found} == {"stop"}


@pytest.mark.parametrize("tokens_per_step", [1, 7, 64, 512])
def test_poisoned_pool_and_pieces_of_any_length(tiny: Model, tokens_per_step: int) -> None:
    """S7, S25: NaN in every slot that is not live, an audit after every token, prompts read in pieces beside decode."""
    picked = [0, 3, 6, 1] if tokens_per_step == 1 else range(8)
    requests = [Request(tuple(PROMPTS[i]), 8) for i in picked]
    run = start(tiny, requests, 400, tokens_per_step=tokens_per_step)
    assert finish(run) == [ANSWERS[i] for i in picked]


def test_prompts_wait_for_frames(tiny: Model) -> None:
    requests = [Request(tuple(prompt), 8) for prompt in PROMPTS]
    largest = max(frames_needed(request, 4) for request in requests)
    run = start(tiny, requests, largest)
    assert finish(run) == ANSWERS
    assert run.report.frames_peak <= largest


def test_random_weights_follow_the_dense_model() -> None:
    config = make_config()
    model, weights = Model(config, make_weights(config)), make_weights(config)
    prompts = [[5, 9, 1], [33], list(range(20))]
    for prompt, generation in zip(prompts, model.generate(prompts, 12, page_size=3, ignore_eos=True), strict=True):
        text = list(prompt)
        for _ in range(12):
            text.append(int(dense_logits(config, weights, text)[-1].argmax()))
        assert generation.token_ids == text[len(prompt) :]
        assert generation.finish_reason == "length"


def test_every_stop_token_stops() -> None:
    """P65: the stop set is a union; the token that stops is kept, and `ignore_eos` goes on."""
    config = make_config()
    free = Model(config, make_weights(config)).generate([5, 9, 1], 12)[0].token_ids
    for stop in (free[3], free[5]):
        limited = make_config(eos_token_ids=frozenset({stop, 69}))
        model = Model(limited, make_weights(limited))
        generation = model.generate([5, 9, 1], 12)[0]
        assert generation.token_ids == free[: free.index(stop) + 1]
        assert generation.finish_reason == "stop"
        assert model.generate([5, 9, 1], 12, ignore_eos=True)[0].token_ids == free


def test_report_of_a_run(tiny: Model) -> None:
    """One prompt of 47 tokens and an answer: the last token is not stored, so 47 + n - 1 are, in pages of 16."""
    generation = tiny.generate(PROMPTS[0], 8, page_size=16)[0]
    stored = len(PROMPTS[0]) + len(generation.token_ids) - 1
    memory, pages = generation.memory, -(-stored // 16)
    assert (memory.num_sequences, memory.num_tokens, memory.num_pages, memory.frames_held) == (1, stored, pages, pages)
    assert memory.bytes_per_token == 2 * 2 * 2 * 64 * 4  # layers, K and V, kv heads, head_dim, float32
    assert memory.bytes_wasted == (pages * 16 - stored) * memory.bytes_per_token
    assert memory.bytes_contiguous == 32768 * memory.bytes_per_token


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers(tiny: Model) -> None:
    """S34, P53: 16 tokens and one new one fit four pages of four; 16 and two do not."""
    assert tiny.generate([[0] * 16], 1, page_size=4, num_frames=4)[0].finish_reason == "length"
    with pytest.raises(OutOfFrames) as caught:
        tiny.generate([[0] * 4, [0] * 16], 2, page_size=4, num_frames=4)
    assert (caught.value.needed, caught.value.available) == (5, 4)
    assert str(caught.value) == (
        "generate: num_frames is too small for prompt 1, got 4, need 5 = ceil((16 + 2 - 1) / 4) (S34)"
    )


def test_tokens_come_as_they_are_made(tiny: Model) -> None:
    seen: list[Any] = []
    generations = tiny.generate(PROMPTS[:2], 8, on_token=seen.append)
    for index, generation in enumerate(generations):
        mine = [token for token in seen if token.index == index]
        assert [token.token_id for token in mine] == generation.token_ids
        assert [token.finish_reason for token in mine] == [None] * (len(mine) - 1) + ["stop"]


def test_streamed_text_is_the_text() -> None:
    pytest.importorskip("tokenizers")
    model = load_model("tiny")
    prompt = STORIES[2].prompt(FACTS[1])
    generation = model.generate(prompt, 8)[0]
    assert generation.text.strip() == FACTS[1].answer
    assert "".join(token.text for token in model.stream(prompt, 8)) == generation.text


class Failing:
    """A backend whose attention fails at one call."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.calls, self.at, self.error = 0, at, error

    def __getattr__(self, name: str) -> Any:
        return getattr(attention, name)

    def paged_decode(self, *arguments: Any, **keywords: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return attention.paged_decode(*arguments, **keywords)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_an_error_in_a_step_leaves_nothing_behind(error: BaseException) -> None:
    model = load_model("tiny", Failing(4, error))  # the second layer of the second decode step
    run = start(model, [Request(tuple(PROMPTS[0]), 8)], 60)
    with pytest.raises(type(error)):
        list(run.tokens())
    run.cache.audit()
    assert run.cache.manager.num_free == 60
    assert not run.cache.manager.sequences


def test_leaving_a_stream_frees_everything(tiny: Model) -> None:
    run = start(tiny, [Request(tuple(prompt), 8) for prompt in PROMPTS[:3]], 200)
    tokens = run.tokens()
    next(tokens)
    assert run.cache.manager.num_free < 200
    tokens.close()
    run.cache.audit()
    assert run.cache.manager.num_free == 200


def test_an_error_of_the_listener_passes_through(tiny: Model) -> None:
    def listener(token: Any) -> None:
        raise RuntimeError("not interested")

    with pytest.raises(RuntimeError, match="not interested"):
        tiny.generate(PROMPTS[0], 8, on_token=listener)


def wrong_backends(page: int) -> Iterator[tuple[str, Any]]:
    """Backends with one mistake each in how decode reads pages; `page` holds the fact that is asked for."""

    def changed(change: Any) -> Any:
        def paged_decode(q: Any, k: Any, v: Any, indptr: Any, indices: Any, last: Any, **keywords: Any) -> Any:
            k, v, indices = change(k, v, indices.copy())
            return attention.paged_decode(q, k, v, indptr, indices, last, **keywords)

        operations = {name: getattr(attention, name) for name in attention.__all__}
        return SimpleNamespace(**{**operations, "paged_decode": paged_decode})

    def neighbour(k: Any, v: Any, indices: Any) -> Any:
        indices[page] = indices[page - 1]
        return k, v, indices

    yield "right", changed(lambda k, v, indices: (k, v, indices))
    yield "a neighbour's frame for one page", changed(neighbour)
    yield "values one slot late", changed(lambda k, v, indices: (k, np.roll(v, 1, axis=1), indices))
    yield "kv heads exchanged", changed(lambda k, v, indices: (k[:, :, ::-1], v[:, :, ::-1], indices))


def test_one_wrong_page_changes_the_answer() -> None:
    """The tiny model is sharp: this suite would notice."""
    tale, fact = STORIES[4], STORIES[4].facts[3]
    for name, backend in wrong_backends(page=(tale.positions[3] + 6) // 8):  # six words on stands the second value
        found = load_model("tiny", backend).generate(encode(tale.prompt(fact)), 8, page_size=8)[0].token_ids
        assert (found == fact.answer_ids) == (name == "right"), name
