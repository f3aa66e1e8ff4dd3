"""Models with sliding windows in an engine: pages leave, texts stay (S5, S32)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pagedref.engine import Engine, EngineConfig
from pagedref.errors import ContractError
from pagedref.models.draft import Speculation
from pagedref.models.model import Model
from pagedref.models.sampling import SamplingParams
from tests.engine.small_models import make_config, make_weights

KINDS: dict[str, dict[str, Any]] = {
    "all layers": {"window": 6, "num_layers": 2},
    "every second": {"window": 6, "num_layers": 4, "full_layers": frozenset({1, 3})},
    "one of three": {"window": 5, "num_layers": 3, "full_layers": frozenset({2})},
}


@pytest.fixture(scope="module", params=list(KINDS))
def model(request: pytest.FixtureRequest) -> Model:
    config = make_config(max_model_len=200, **KINDS[request.param])
    return Model(config, make_weights(config))


def groups_of(model: Model) -> int:
    windows = model.config.windows
    return len(windows) // math.gcd(*(windows.count(window) for window in set(windows)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"token_budget": 5, "max_running": 4, "prefix_cache": False},
        {"preemption": "swap", "swap_frames": 100},
        {"speculation": Speculation(tokens=3, ngram=1)},
    ],
    ids=["plain", "chunked", "swap", "guesses"],
)
def test_texts_are_those_of_one_table(model: Model, options: dict[str, Any]) -> None:
    """Through a small pool, with hits, samples, beams and preemption, bit for bit as alone in a large one."""
    rng = np.random.default_rng(3)
    shared = rng.integers(1, 60, 20).tolist()
    prompts = [shared[: 4 + at] + rng.integers(1, 60, 1 + at % 9).tolist() for at in range(12)]
    params = [
        SamplingParams(max_tokens=9, beam_width=2)
        if at % 4 == 3
        else SamplingParams(max_tokens=10 + at, temperature=float(at % 3), seed=at, n=1 + at % 2, ignore_eos=True)
        for at in range(12)
    ]
    groups = groups_of(model)
    small: dict[str, Any] = {"num_frames": 28 * groups, "page_size": 2, "token_budget": 16, "max_running": 6}
    engine = Engine(model, EngineConfig(**{**small, **options}, poison=True, deterministic=True))
    roomy = Engine(model, EngineConfig(num_frames=600, page_size=8, deterministic=True))
    found = engine.generate(prompts, params)
    for prompt, own, completion in zip(prompts, params, found, strict=True):
        assert completion.samples == roomy.generate([prompt], own)[0].samples
    engine.cache.audit()
    assert engine.metrics().frames_held == 0


def test_a_long_text_holds_what_its_windows_see(model: Model) -> None:
    """120 tokens in pages of 2: layers with a window keep a few pages, the others all."""
    groups, whole = groups_of(model), sum(window is None for window in model.config.windows) > 0
    frames = 20 if not whole else 61 + 20 * groups
    config = EngineConfig(num_frames=frames, page_size=2, token_budget=8, max_running=2)
    engine = Engine(model, config)
    found = engine.generate([[7] * 40], SamplingParams(max_tokens=80, ignore_eos=True))[0]
    assert found.error is None and len(found.token_ids) == 80
    plain = model.generate([[7] * 40], 80, ignore_eos=True)[0]
    assert list(found.token_ids) == plain.token_ids
    assert engine.metrics().frames_peak < groups * 60
    if whole:
        with pytest.raises(ContractError, match=r"groups of layers counted, got \d+ pages \(40 \+ 1 x 80 tokens\)"):
            Engine(model, EngineConfig(num_frames=60, page_size=2)).add([7] * 40, SamplingParams(max_tokens=80))
