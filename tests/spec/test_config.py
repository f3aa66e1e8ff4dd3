"""Configurations: both key styles of HF, what is refused, rotary scaling (P66), stop tokens (P65), head sizes (P69)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError, PagedRefError
from pagedref.models.config import ModelConfig, RopeScaling
from pagedref.models.fields import show

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 8}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def refused(config: dict[str, Any], *words: str) -> None:
    with pytest.raises(ContractError) as caught:
        ModelConfig.from_hf(config)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 300
    assert all(word in text for word in words), text


def test_every_number_arrives() -> None:
    config = ModelConfig.from_hf(LLAMA)
    assert config == ModelConfig(
        architecture="llama",
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_layers=2,
        num_qo_heads=4,
        num_kv_heads=2,
        head_dim=4,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_model_len=64,
        tie_embeddings=True,
        bos_token_id=1,
        eos_token_ids=frozenset({2}),
    )


@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_both_key_styles_say_the_same(kind: str) -> None:
    new = {**LLAMA, "dtype": "bfloat16", "rope_parameters": {"rope_theta": 500.0, "rope_type": "llama3", **LLAMA3}}
    old = {**LLAMA, "torch_dtype": "bfloat16", "rope_theta": 500.0, "rope_scaling": {kind: "llama3", **LLAMA3}}
    assert ModelConfig.from_hf(new) == ModelConfig.from_hf(old)
    assert ModelConfig.from_hf(new).dtype == "bfloat16"
    plain = {**LLAMA, "rope_theta": 500.0, "rope_scaling": None}
    assert ModelConfig.from_hf(plain) == ModelConfig.from_hf(
        {**LLAMA, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}
    )


def test_llama3_scaling_of_p66() -> None:
    scaling = {"rope_type": "llama3", **LLAMA3}
    config = ModelConfig.from_hf({**LLAMA, "head_dim": 64, "rope_theta": 5e5, "rope_scaling": scaling})
    plain = 5e5 ** -(np.arange(32) / 32)
    ratio = config.inv_freq / plain
    np.testing.assert_array_equal(ratio[:15], 1.0)
    np.testing.assert_allclose(ratio[15:18], [0.60557, 0.30374, 0.10345], atol=5e-6)
    np.testing.assert_allclose(ratio[18:], 1 / 32, rtol=1e-15)


def test_linear_scaling_and_a_table_of_factors() -> None:
    plain = ModelConfig.from_hf(LLAMA)
    linear = ModelConfig.from_hf({**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}})
    np.testing.assert_allclose(linear.inv_freq * 4, plain.inv_freq, rtol=1e-15)
    table = RopeScaling("factors", factors=(1.0, 8.0))
    np.testing.assert_array_equal(table.scale(np.array([1.0, 0.5])), [1.0, 0.0625])


def test_frequencies_count_pairs_over_the_whole_head_dim() -> None:
    config = ModelConfig.from_hf({**LLAMA, "head_dim": 8})
    np.testing.assert_allclose(config.inv_freq, 10000.0 ** -(np.arange(4) / 4), rtol=1e-15)


def test_head_dim_need_not_divide_hidden_size() -> None:
    config = ModelConfig.from_hf({**LLAMA, "hidden_size": 2560, "num_attention_heads": 32, "head_dim": 128})
    assert config.head_dim == 128
    refused({**LLAMA, "hidden_size": 18}, "hidden_size", "18")


def test_biases_follow_from_the_family() -> None:
    assert not ModelConfig.from_hf(LLAMA).qkv_bias
    assert ModelConfig.from_hf(QWEN2).qkv_bias
    refused({**LLAMA, "attention_bias": True}, "attention_bias")
    refused({**LLAMA, "mlp_bias": True}, "mlp_bias")


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({**LLAMA, "sliding_window": 8}, None),
        ({**MISTRAL, "sliding_window": 8}, 8),
        ({**MISTRAL, "sliding_window": None}, None),
        ({**MISTRAL, "sliding_window": 8, "layer_types": ["full_attention"] * 2}, None),
        (QWEN2, None),
        ({**QWEN2, "use_sliding_window": False}, None),
        ({**QWEN2, "use_sliding_window": True, "max_window_layers": 2}, None),
        ({**QWEN2, "use_sliding_window": True, "max_window_layers": 0}, 8),
        ({**QWEN2, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 8),
    ],
)
def test_window(config: dict[str, Any], window: int | None) -> None:
    assert ModelConfig.from_hf(config).window == window


def test_layers_that_differ_are_refused() -> None:
    refused({**QWEN2, "use_sliding_window": True, "max_window_layers": 1}, "layer_types")
    refused({**MISTRAL, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, "layer_types")


def test_unknown_architectures_are_named() -> None:
    refused({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "GPT2LMHeadModel", "LlamaForCausalLM")
    refused({"model_type": "mamba"}, "mamba", "qwen2")
    refused({}, "model_type", "None")
    assert ModelConfig.from_hf({**LLAMA, "architectures": None}).architecture == "llama"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", None),
        ("vocab_size", 0),
        ("hidden_size", "16"),
        ("num_hidden_layers", 2.5),
        ("num_hidden_layers", 2**40),
        ("num_attention_heads", True),
        ("num_key_value_heads", 3),
        ("head_dim", 3),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", float("inf")),
        ("hidden_act", "gelu"),
        ("partial_rotary_factor", 0.5),
        ("rope_scaling", {"type": "yarn", "factor": 2.0}),
        ("rope_scaling", {"type": "linear"}),
        ("rope_scaling", {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}),
        ("rope_scaling", [1]),
        ("rope_parameters", {"full_attention": {"rope_theta": 1.0}}),
    ],
)
def test_impossible_settings_are_named(key: str, value: object) -> None:
    refused({**LLAMA, key: value})


def test_stop_tokens_are_a_union_p65() -> None:
    config = ModelConfig.from_hf({**LLAMA, "eos_token_id": 7}).with_eos([5]).with_eos({6})
    assert config.eos_token_ids == {5, 6, 7}
    assert ModelConfig.from_hf({**LLAMA, "eos_token_id": [3, 4]}).eos_token_ids == {3, 4}
    assert ModelConfig.from_hf({**LLAMA, "eos_token_id": None, "bos_token_id": None}).bos_token_id is None


def test_shown_values_stay_short() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in ("line\nline" * 100, {"a": "b" * 10_000}, 10**5000, b"\x00" * 1000):
        assert len(show(value)) <= 80 and "\n" not in show(value)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text("ab\n", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=4), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(
    [*LLAMA, "head_dim", "rope_theta", "rope_scaling", "rope_parameters", "sliding_window", "layer_types", "dtype"]
    + ["use_sliding_window", "max_window_layers", "attention_bias", "partial_rotary_factor", "hidden_act"]
)


@given(st.sampled_from([LLAMA, QWEN2, MISTRAL]), st.dictionaries(keys, values, max_size=4))
def test_any_configuration_loads_or_is_refused(base: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        config = ModelConfig.from_hf({**base, **changes})
    except PagedRefError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        if config.head_dim <= 4096:
            assert np.all(np.isfinite(config.inv_freq)) and config.inv_freq.shape == (config.head_dim // 2,)
