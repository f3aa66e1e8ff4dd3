"""Logits and greedy text of stored models, computed elsewhere in float64.

Runs where ``PAGEDREF_GOLDEN`` names the folder of golden data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedref.kv_cache import PagedKVCache
from pagedref.models.checkpoint import load_checkpoint
from pagedref.models.model import Model, load_model
from pagedref.models.transformer import Transformer

FOLDER = os.environ.get("PAGEDREF_GOLDEN")
pytestmark = pytest.mark.skipif(not FOLDER, reason="PAGEDREF_GOLDEN does not name the golden data")

NAMES = ("gpt2", "llama", "llama_bf16_sharded", "mistral", "qwen2")
RELATIVE = 1e-4  # of the largest logit; what the project promises for float32


def variants() -> list[tuple[str, str]]:
    """Each model with each style of configuration that lies beside it."""
    if not FOLDER:
        return []
    found = [(name, style) for name in NAMES for style in ("config.json", "config_legacy.json")]
    return [(name, style) for name, style in found if (Path(FOLDER) / "models" / name / style).exists()]


def load(name: str, style: str = "config.json") -> tuple[Model, dict[str, Any]]:
    folder = Path(str(FOLDER)) / "models" / name
    with np.load(folder / "expected.npz", allow_pickle=False) as data:
        expected = {key: data[key] for key in data.files}
    return load_model(folder if style == "config.json" else folder / style), expected


@pytest.mark.parametrize(("name", "style"), variants())
@pytest.mark.parametrize("options", [{}, {"page_size": 3, "tokens_per_step": 9}], ids=["at once", "in pieces"])
def test_logits_at_every_position(name: str, style: str, options: dict[str, Any]) -> None:
    model, expected = load(name, style)
    for i in range(4):
        exact = expected[f"logits_{i}"]
        found = model.logits(expected[f"prompt_{i}"], **options)
        assert np.abs(found - exact).max() <= RELATIVE * np.abs(exact).max(), f"prompt {i}"


@pytest.mark.parametrize(("name", "style"), variants())
@pytest.mark.parametrize("page_size", [1, 16, 100])
def test_greedy_continuation(name: str, style: str, page_size: int) -> None:
    model, expected = load(name, style)
    prompts = [expected[f"prompt_{i}"].tolist() for i in range(4)]
    wanted = [expected[f"greedy_{i}"].tolist() for i in range(4)]
    options: dict[str, Any] = {"page_size": page_size, "ignore_eos": True}
    alone = [model.generate(prompt, 24, **options)[0].token_ids for prompt in prompts]
    order = np.random.default_rng(0).permutation(400)
    batch = model.generate(prompts, 24, num_frames=400, frame_order=order, tokens_per_step=30, **options)
    assert alone == wanted
    assert [generation.token_ids for generation in batch] == wanted


@pytest.mark.parametrize("name", NAMES)
def test_keys_and_values_in_the_cache(name: str) -> None:
    model, expected = load(name)
    assert isinstance(model.transformer, Transformer)
    prompt = expected["prompt_2"]
    cache = model.cache(8, page_size=5, poison=True)
    sequence = cache.add()
    step = cache.begin([sequence], [len(prompt)])
    model.transformer.forward(cache, step, prompt)
    cache.commit(step)
    for layer in range(model.config.num_layers):
        for kind, found in zip("kv", cache.gather(sequence, layer=layer), strict=True):
            exact = expected[f"{kind}_layer{layer}"].transpose(1, 0, 2)  # (tokens, num_kv_heads, head_dim)
            assert np.abs(found - exact).max() <= RELATIVE * np.abs(exact).max(), f"{kind} of layer {layer}"
    cache.audit()


@pytest.mark.parametrize("name", NAMES)
def test_the_exact_layers_give_the_stored_logits(name: str) -> None:
    """In float64 both sides agree to what is stored: logits rounded to float32."""
    _, expected = load(name)
    checkpoint = load_checkpoint(Path(str(FOLDER)) / "models" / name)
    transformer = Transformer(checkpoint.config, checkpoint.weights, dtype="float64")
    for i in range(4):
        exact, prompt = expected[f"logits_{i}"], expected[f"prompt_{i}"]
        cache = PagedKVCache(transformer.cache_spec(5), 20, poison=True)
        sequence, found = cache.add(), []
        for piece in np.array_split(prompt, 3):
            step = cache.begin([sequence], [len(piece)])
            found.append(transformer.forward(cache, step, piece))
            cache.commit(step)
        apart = np.abs(np.concatenate(found) - exact).max()
        assert apart <= np.finfo(np.float32).eps * np.abs(exact).max(), f"prompt {i}"


@pytest.mark.parametrize("name", NAMES)
def test_forks_go_on_as_if_alone(name: str) -> None:
    """Three children share the pages of one prompt, each goes on with its own greedy text."""
    model, expected = load(name)
    prompt, text = expected["prompt_2"], expected["greedy_2"]
    cache = model.cache(40, page_size=4, poison=True)
    parent = cache.add()
    step = cache.begin([parent], [len(prompt)])
    logits = model.transformer.forward(cache, step, prompt, [len(prompt) - 1])
    cache.commit(step)
    children = [cache.fork(parent) for _ in range(3)]
    held = cache.memory_report().frames_held
    cache.free(parent)
    assert cache.memory_report().frames_held == held
    texts: list[list[int]] = [[] for _ in children]
    for _ in range(len(text)):
        tokens = [int(row.argmax()) for row in np.broadcast_to(logits, (3, logits.shape[-1]))]
        for row, token in zip(texts, tokens, strict=True):
            row.append(token)
        step = cache.begin(children, [1] * 3)
        logits = model.transformer.forward(cache, step, tokens)
        cache.commit(step)
    assert texts == [text.tolist()] * 3
    cache.audit()
