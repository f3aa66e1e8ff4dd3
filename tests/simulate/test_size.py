"""What a cache costs: published numbers, every kind of layer, and configurations that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.kv_format import NAMES, KVFormat
from pagedref.simulate import cache_cost
from pagedref.simulate.size import named_models, parse_bytes

SMALL = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 256, "num_key_value_heads": 2}


def config(**more: Any) -> dict[str, Any]:
    return SMALL | more


def test_published_numbers() -> None:
    """819,200 bytes of OPT-13B (SOSP'23, section 3); 70,272 of DeepSeek-V3: 61 layers of 576 numbers of 16 bits."""
    assert cache_cost("OPT-13B").bytes_per_token == 819_200
    assert cache_cost("deepseek-v3").bytes_per_token == 61 * 576 * 2 == 70_272
    assert cache_cost("llama-3-8b").bytes_per_token == 32 * 8 * 128 * 2 * 2
    assert cache_cost("819200").bytes_per_token == 819_200
    assert all(cache_cost(name).max_len for name in named_models())


@given(
    st.integers(1, 50), st.integers(1, 16), st.sampled_from([16, 64, 128]), st.sampled_from(sorted(NAMES)),
    st.integers(1, 5000), st.integers(1, 64),
)  # fmt: skip
def test_plain_models_cost_what_the_cache_spec_says(
    layers: int, heads: int, dim: int, name: str, context: int, page_size: int
) -> None:
    form = KVFormat.named(name, dim)
    spec = CacheSpec(layers, heads, dim, page_size, kv_format=form)
    cost = cache_cost(f"layers={layers},heads={heads},head_dim={dim}", name)
    assert cost.bytes_per_token == spec.bytes_per_token
    assert cost.bytes_for(context, page_size) == spec.num_pages(context) * page_size * spec.bytes_per_token
    assert cost.users(10 * cost.bytes_for(context, page_size), context, page_size) == 10


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({}, {None: 4}),
        ({"sliding_window": None}, {None: 4}),
        ({"sliding_window": 64}, {64: 4}),
        ({"sliding_window": 64, "use_sliding_window": False}, {None: 4}),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}, {None: 3, 64: 1}),
        ({"sliding_window": 64, "sliding_window_pattern": 2}, {64: 2, None: 2}),
        ({"sliding_window": 64, "sliding_window_pattern": 3}, {64: 3, None: 1}),
        ({"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2}, {64: 2, None: 2}),
        ({"attention_chunk_size": 32, "layer_types": ["chunked_attention"] * 3 + ["full_attention"]}, {32: 3, None: 1}),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, {None: 1}),
        ({"num_kv_shared_layers": 1}, {None: 3}),
    ],
)
def test_layers_and_windows(more: dict[str, Any], windows: dict[int | None, int]) -> None:
    cost = cache_cost(config(**more))
    assert {layers.window: layers.number for layers, _ in cost.layers} == windows
    assert {size for _, size in cost.layers} == {2 * 2 * 32 * 2}


def test_other_families() -> None:
    one = {"n_layer": 2, "n_head": 8, "n_embd": 256, "n_positions": 512}
    assert cache_cost(one).bytes_per_token == 2 * 2 * 256 * 2 and cache_cost(one).max_len == 512
    assert cache_cost(one | {"multi_query": True}).bytes_per_token == 2 * 2 * 32 * 2
    assert cache_cost({"text_config": SMALL, "vision_config": {}}).bytes_per_token == cache_cost(SMALL).bytes_per_token
    wide = config(head_dim=96, v_head_dim=48)
    assert cache_cost(wide).bytes_per_token == 4 * 2 * (96 + 48) * 2
    latent = config(kv_lora_rank=128, qk_rope_head_dim=16)
    assert cache_cost(latent).bytes_per_token == 4 * (128 + 16) * 2
    assert cache_cost(latent, "int8").bytes_per_token == 4 * (128 + 4 + 16 * 2), (
        "a scale; the rotated key stays in 16 bits"
    )


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(1, 300))
def test_a_window_holds_the_pages_that_it_touches(context: int, page_size: int, window: int) -> None:
    cost = cache_cost(config(sliding_window=window))
    most = max(
        length // page_size * page_size + page_size - max(0, length - window + 1) // page_size * page_size
        for length in range(max(0, context - 2 * page_size - 1), context)
    )
    held = cost.bytes_for(context, page_size) // cost.bytes_per_token
    assert held >= min(window, context)
    assert held >= most or context <= window
    assert held <= window + 2 * page_size or context <= window


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_hidden_layers": 4}, "num_attention_heads is missing"),
        (config(num_hidden_layers=0), "num_hidden_layers is no size, got 0"),
        (config(num_hidden_layers=True), "num_hidden_layers is no size, got True"),
        (config(num_hidden_layers="4"), "num_hidden_layers is no size, got '4'"),
        (config(hidden_size=250), "hidden_size does not divide, got 250"),
        (config(is_encoder_decoder=True), "is_encoder_decoder is not supported"),
        (config(layer_types=["full_attention"]), "layer_types have the wrong length, got 1"),
        (config(layer_types=["magic"] * 4), "layer_types hold an unknown kind, got 'magic'"),
        (config(layer_types=["mamba"] * 4), "model stores nothing"),
        (config(kv_lora_rank=128), "qk_rope_head_dim is missing"),
        ("gpt-nothing", "model is unknown, got 'gpt-nothing', need one of opt-13b"),
        ("layers=4,heads=x", "model is no description, got 'heads=x'"),
        ("0", "model is unknown"),
    ],
)
def test_refusals(given: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        cache_cost(given)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert cache_cost(tmp_path).bytes_per_token == cache_cost(str(tmp_path / "config.json")).bytes_per_token
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ContractError, match="config is no JSON"):
        cache_cost(tmp_path)
    with pytest.raises(ContractError, match=r"KVFormat\.named: name is unknown"):
        cache_cost("opt-13b", "int3")


@pytest.mark.parametrize(("text", "count"), [("12GiB", 12 << 30), ("12 GB", 12 * 10**9), ("1e3", 1000), ("0.5k", 500)])
def test_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "nan", "inf", "1e99", "12 apples", "0"])
def test_no_bytes(text: str) -> None:
    with pytest.raises(ContractError, match="parse_bytes: text is no size"):
        parse_bytes(text)
