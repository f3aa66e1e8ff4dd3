"""Sixty-four requests of mixed lengths through a pool that holds a quarter of them (S29-S34, P73).

With the tiny model in every run; with SmolLM2 in an environment of its own (``tox -e serve``).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedref.engine import Completion, Engine, EngineConfig, EngineMetrics
from pagedref.models import load_model
from pagedref.models.generate import Request, frames_needed
from pagedref.models.model import Model
from pagedref.models.sampling import SamplingParams
from tests.engine.small_models import make_config, make_weights, rounding

PAGE = 16
NUM_REQUESTS = 64
TEXT = Path(__file__).resolve().parents[2] / "docs" / "glossary.rst"

Work = list[tuple[list[int], SamplingParams]]


def small_model() -> Model:
    """Random weights, so that every product rounds."""
    config = make_config(max_model_len=256)
    return Model(config, make_weights(config))


MODELS: dict[str, Any] = {"random": small_model, "tiny": lambda: load_model("tiny")}
if name := os.environ.get("PAGEDREF_SERVE"):
    MODELS = {name: lambda: load_model(name)}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def work(model: Model) -> Work:
    """Prompts of 4 to 96 tokens and 4 to 24 new ones; pieces of a text where there is a tokenizer."""
    rng = np.random.default_rng(64)
    text = rng.integers(1, model.config.vocab_size, 9000).tolist()
    if model.tokenizer is not None:
        text = model.tokenizer.encode(TEXT.read_text())
    requests = []
    for _ in range(NUM_REQUESTS):
        length, start = int(rng.integers(4, 97)), int(rng.integers(0, len(text) - 100))
        params = SamplingParams(max_tokens=int(rng.integers(4, 25)), ignore_eos=True, logprobs=2)
        requests.append((text[start : start + length], params))
    return requests


def quarter(work: Work) -> int:
    """Frames for a quarter of the requests."""
    return sum(frames_needed(Request(tuple(ids), params.max_tokens), PAGE) for ids, params in work) // 4


def serve(model: Model, work: Work, **options: Any) -> tuple[list[Completion], EngineMetrics]:
    """Run all of them at once, and check the memory."""
    frames = quarter(work)
    config = EngineConfig(num_frames=frames, token_budget=128, max_running=32, swap_frames=2 * frames, **options)
    engine = Engine(model, config)
    found = engine.generate([ids for ids, _ in work], [params for _, params in work])
    engine.cache.audit()
    metrics = engine.metrics()
    assert metrics.frames_free + metrics.frames_cached == frames and metrics.frames_held == 0
    assert metrics.finished == {"length": NUM_REQUESTS} and metrics.queued == 0
    assert metrics.output_tokens == sum(params.max_tokens for _, params in work)
    assert metrics.recomputed + metrics.swapped > 0
    return found, metrics


@pytest.fixture(scope="module")
def alone(model: Model, work: Work) -> Any:
    """Run one after the other, each in an empty engine; called with whether to be deterministic."""

    @cache
    def run(deterministic: bool) -> list[Completion]:
        config = EngineConfig(num_frames=16, prefix_cache=False, deterministic=deterministic)
        return [Engine(model, config).generate(ids, params)[0] for ids, params in work]

    return run


def show(name: str, metrics: EngineMetrics) -> None:
    print(f"\n{name}: {metrics.tokens_per_second:.1f} tokens/s, {metrics}")


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_to_the_bit_when_deterministic(model: Model, work: Work, alone: Any, preemption: Any) -> None:
    """Texts and log-probabilities are those of each request alone, bit for bit."""
    found, metrics = serve(model, work, preemption=preemption, deterministic=True)
    show(f"deterministic, {preemption}", metrics)
    for served, single in zip(found, alone(True), strict=True):
        assert served.samples == single.samples


def test_texts_are_those_of_each_alone(model: Model, work: Work, alone: Any) -> None:
    """Wherever the margin between the two best tokens exceeds the rounding; the others are listed."""
    found, metrics = serve(model, work)
    show("recompute", metrics)
    listed = []
    for number, (served, single) in enumerate(zip(found, alone(False), strict=True)):
        if served.token_ids == single.token_ids:
            continue
        same = [a == b for a, b in zip(served.token_ids, single.token_ids, strict=True)]
        at = same.index(False)
        (_, best), (_, second) = single.samples[0].logprobs[at].top
        listed.append((number, at, best - second))
        ids = [*single.prompt_ids, *single.token_ids[:at]]
        assert best - second <= 2 * rounding(model.config, model.logits(ids)[-1])
    print(f"differ where the margin is within the rounding (request, token, margin): {listed}")


def test_nobody_waits_for_ever(model: Model, work: Work) -> None:
    """First tokens come in the order of the requests: nobody is overtaken by one of his class."""
    engine = Engine(model, EngineConfig(num_frames=quarter(work), token_budget=128, max_running=32))
    numbers = [engine.add(ids, params) for ids, params in work]
    firsts: list[int] = []
    while engine.num_unfinished:
        for delta in engine.step():
            if delta.request_id not in firsts:
                firsts.append(delta.request_id)
    assert firsts == numbers
