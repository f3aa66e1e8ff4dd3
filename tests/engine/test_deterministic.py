"""Outputs equal to the bit whatever the batch (P73), for models that differ in every part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedref.engine import Engine, EngineConfig
from pagedref.engine._deterministic import products_are_exact
from pagedref.errors import ContractError
from pagedref.layers.linear import ROWS, Linear, fixed_rows
from pagedref.models._special import Experts, Latent
from pagedref.models.model import Model
from pagedref.models.sampling import SamplingParams
from tests.engine.small_models import make_config, make_weights

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "layer norm, parallel": {
        "norm": "layer", "parallel": True, "gated": False, "activation": "gelu", "rotary_dim": 4,
        "biases": frozenset({"q", "k", "v", "o", "up", "down", "norm"}),
    },
    "windows, softcap, q and k norms": {
        "window": 5, "full_layers": frozenset({1}), "softcap": 20.0, "qk_norm": "head", "norm_offset": 1.0,
    },
    "slopes": {"alibi": 8.0, "rotary_dim": 0},
    "sinks, experts": {"sinks": True, "experts": Experts(count=5, per_token=2, size=24)},
}  # fmt: skip
WAYS: tuple[dict[str, Any], ...] = (
    {"num_frames": 200, "page_size": 16},
    {"num_frames": 64, "page_size": 3, "token_budget": 7, "max_running": 5},
    {"num_frames": 40, "page_size": 5, "token_budget": 64, "max_running": 16, "watermark": 0},
)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_change_no_bit(kind: str) -> None:
    """Alone, and among neighbours of other contents in other batches, pages and pieces: every log-probability."""
    config = make_config(**KINDS[kind])
    model = Model(config, make_weights(config))
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, 70, length).tolist() for length in (1, 9, 16, 23, 30)]
    params = [
        SamplingParams(
            max_tokens=9, temperature=float(at % 2), seed=at, ignore_eos=True, logprobs=3,
            prompt_logprobs=2 if at % 2 else None,
        )
        for at in range(len(prompts))
    ]  # fmt: skip
    alone = [
        Engine(model, EngineConfig(num_frames=64, deterministic=True)).generate([prompt], own)[0]
        for prompt, own in zip(prompts, params, strict=True)
    ]
    for way in WAYS:
        engine = Engine(model, EngineConfig(**way, deterministic=True, poison=True))
        strangers = [rng.integers(0, 70, int(rng.integers(1, 30))).tolist() for _ in prompts]
        found = engine.generate([*strangers, *prompts], [SamplingParams(max_tokens=6)] * len(strangers) + params)
        for one, other in zip(found[len(strangers) :], alone, strict=True):
            assert one.samples == other.samples
            assert one.prompt_logprobs == other.prompt_logprobs


def test_contents_of_neighbours_change_no_bit_in_any_mode() -> None:
    """The same shapes and other contents beside it: the same bits, deterministic or not (L2, P73)."""
    model = Model(make_config(), make_weights(make_config()))
    rng = np.random.default_rng(2)
    own = rng.integers(0, 70, 17).tolist()
    params = SamplingParams(max_tokens=8, logprobs=3, ignore_eos=True)
    found = set()
    for _ in range(4):
        beside = [rng.integers(0, 70, length).tolist() for length in (9, 30)]
        engine = Engine(model, EngineConfig(num_frames=64, page_size=4, prefix_cache=False))
        found.add(engine.generate([beside[0], own, beside[1]], params)[1].samples)
    assert len(found) == 1


def test_products_have_a_fixed_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `fixed_rows` every product is of the same shape, for one token as for many."""
    layer, shapes, matmul = Linear([np.ones((64, 40), np.float32)]), set(), np.matmul

    def spy(a: Any, b: Any, **options: Any) -> Any:
        shapes.add((a.shape[-2:], b.shape[-2:]))
        return matmul(a, b, **options)

    monkeypatch.setattr(np, "matmul", spy)
    for tokens in (1, 2, 3, 8, 9, 40):
        with fixed_rows():
            layer(*layer.buffers(tokens), tokens)
    assert shapes == {((ROWS, 40), (40, 64))}
    layer(*layer.buffers(3), 3)
    assert len(shapes) == 2


def test_without_it_bits_may_differ() -> None:
    """The test above can fail: plain attention in other pieces rounds otherwise."""
    model = Model(make_config(), make_weights(make_config()))
    prompt = list(range(60))
    params = SamplingParams(max_tokens=4, logprobs=3, ignore_eos=True)
    found = {
        Engine(model, EngineConfig(num_frames=64, page_size=size, token_budget=budget, max_running=1))
        .generate([prompt], params)[0]
        .samples
        for size, budget in ((16, 64), (3, 7), (5, 11), (7, 20))
    }
    assert len(found) > 1


def test_what_has_no_exact_form_is_refused() -> None:
    config = make_config(latent=Latent(rank=8, nope_dim=6, rope_dim=4, v_dim=6), num_kv_heads=6)
    with pytest.raises(ContractError, match="not supported for latent attention"):
        Engine(Model(config, make_weights(config)), EngineConfig(deterministic=True))


def test_a_quantised_cache_has_the_same_bits_too() -> None:
    """A scale for each slot is what its token alone makes it."""
    plain = Model(make_config(), make_weights(make_config()))
    exact = {
        Engine(plain, EngineConfig(num_frames=64, kv_format="int8", deterministic=True, **way))
        .generate([list(range(40))], SamplingParams(max_tokens=4, logprobs=2))[0]
        .samples
        for way in ({}, {"page_size": 3, "token_budget": 7, "max_running": 7})
    }
    assert len(exact) == 1


def test_products_of_all_lengths_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of experts, too."""
    probed = set()
    monkeypatch.setattr("pagedref.engine._deterministic.products_are_exact", lambda length: not probed.add(length))
    config = make_config(experts=Experts(count=5, per_token=2, size=24, shared_size=56))
    Engine(Model(config, make_weights(config)), EngineConfig(deterministic=True))
    assert probed == {40, 72, 48, 24, 56}


@pytest.mark.parametrize("in_features", [8, 40, 72, 576])
def test_products_are_alike_in_every_place(in_features: int) -> None:
    assert products_are_exact(in_features)
