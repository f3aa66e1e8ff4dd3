"""Configurations: both key styles of HF, what is refused, rotary scaling (P66), stop tokens (P65), head sizes (P69)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError, PagedRefError
from pagedref.models.config import Experts, Latent, ModelConfig
from pagedref.models.families import FAMILIES
from pagedref.models.fields import reals, show
from pagedref.models.rope import RopeScaling

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
PLAIN = {
    **LLAMA, "n_routed_experts": 8, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "n_group": 2, "topk_group": 1, "rotary_pct": 0.5,
}  # fmt: skip
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
        norm_eps=1e-5,
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
    table = RopeScaling("factors", factors=(1.0, 8.0)).frequencies(4.0, 4, 64)
    np.testing.assert_array_equal(table.inv_freq, [1.0, 0.0625])
    assert table.magnitude == 1


def test_yarn_scaling() -> None:
    """The first pair is kept, the last divided; the magnitude is 0.1 ln(factor) + 1 unless the file says otherwise."""
    scaling = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}
    config = ModelConfig.from_hf({**LLAMA, "head_dim": 128, "rope_scaling": scaling})
    rope, plain = config.rope(0), 10000.0 ** -(np.arange(64) / 64)
    assert rope is not None
    np.testing.assert_allclose(rope.inv_freq[[0, -1]] / plain[[0, -1]], [1.0, 1 / 16], rtol=1e-15)
    np.testing.assert_allclose(rope.magnitude, 0.1 * np.log(16.0) + 1, rtol=1e-15)
    for more, magnitude in (
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.5, "mscale_all_dim": 0}, 0.1 * np.log(16.0) + 1),
    ):
        rope = ModelConfig.from_hf({**LLAMA, "head_dim": 128, "rope_scaling": {**scaling, **more}}).rope(0)
        assert rope is not None
        np.testing.assert_allclose(rope.magnitude, magnitude, rtol=1e-15)


def test_scalings_that_depend_on_the_length_are_chosen_once() -> None:
    """As loaded, a model is as long as it was first trained for; `for_length` chooses for all texts."""
    dynamic = ModelConfig.from_hf({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    plain = ModelConfig.from_hf(LLAMA)
    np.testing.assert_array_equal(dynamic.inv_freq, plain.inv_freq)
    longer = dynamic.for_length(128)  # 2 * 128 / 64 - 1 = 3, to the power of 4 / (4 - 2)
    np.testing.assert_allclose(longer.inv_freq, (10000.0 * 9) ** -(np.arange(2) / 2), rtol=1e-15)
    assert longer.max_model_len == 128
    factors = {"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}
    phi = {**LLAMA, "model_type": "phi3", "architectures": None, "original_max_position_embeddings": 16}
    config = ModelConfig.from_hf({**phi, "rope_scaling": factors})
    assert config.max_model_len == 16
    np.testing.assert_allclose(config.inv_freq, plain.inv_freq / [1.0, 2.0], rtol=1e-15)
    np.testing.assert_allclose(config.for_length(17).inv_freq, plain.inv_freq / [3.0, 4.0], rtol=1e-15)
    for seen in (config, config.for_length(64)):
        rope = seen.rope(0)
        assert rope is not None
        np.testing.assert_allclose(rope.magnitude, np.sqrt(1 + np.log(4) / np.log(16)), rtol=1e-15)
    with pytest.raises(ContractError, match="for_length: max_model_len is too small"):
        config.for_length(0)
    learned = ModelConfig.from_hf({**LLAMA, "model_type": "gpt2", "architectures": None})
    with pytest.raises(ContractError, match="differs from the learned positions, got 65, need 64"):
        learned.for_length(65)


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
    assert ModelConfig.from_hf({**LLAMA, "attention_bias": True, "mlp_bias": True}).biases == {
        "q", "k", "v", "o", "gate", "up", "down"
    }  # fmt: skip
    refused({**QWEN2, "mlp_bias": True}, "mlp_bias", "qwen2")


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


def test_layers_may_differ() -> None:
    assert ModelConfig.from_hf({**QWEN2, "use_sliding_window": True, "max_window_layers": 1}).windows == (None, 8)
    kinds = ["full_attention", "sliding_attention"]
    assert ModelConfig.from_hf({**MISTRAL, "sliding_window": 8, "layer_types": kinds}).windows == (None, 8)
    assert ModelConfig.from_hf({**MISTRAL, "sliding_window": 8, "layer_types": kinds[::-1]}).windows == (8, None)
    for wrong in (kinds[:1], ["chunked_attention", "full_attention"], "full_attention", [1, 2]):
        refused({**MISTRAL, "sliding_window": 8, "layer_types": wrong}, "layer_types")


def test_partial_rotary_of_p67() -> None:
    """Half of a head of 8: two frequencies over a width of 4, and not the first two of four over 8."""
    config = ModelConfig.from_hf({**LLAMA, "head_dim": 8, "partial_rotary_factor": 0.5})
    assert config.turned == 4
    np.testing.assert_array_equal(config.inv_freq, [1.0, 0.01])


def test_unknown_architectures_are_named() -> None:
    refused({"architectures": ["MambaForCausalLM"], "model_type": "llama"}, "MambaForCausalLM", "llama", "gpt2")
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
        ("hidden_act", "quick_gelu"),
        ("hidden_act", ["silu"]),
        ("partial_rotary_factor", 0.75),
        ("partial_rotary_factor", 1.5),
        ("partial_rotary_factor", 0.01),
        ("quantization_config", {"quant_method": "mxfp4"}),
        ("rope_scaling", {"type": "new", "factor": 2.0}),
        ("rope_scaling", {"type": "yarn", "factor": 2.0, "beta_fast": -1.0}),
        ("rope_scaling", {"type": "dynamic", "factor": 0.5}),
        ("rope_scaling", {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 2.0]}),
        ("rope_scaling", {"type": "longrope", "short_factor": [1.0, 0], "long_factor": [1.0, 2.0]}),
        ("rope_scaling", {"type": "longrope", "short_factor": 1.0, "long_factor": [1.0, 2.0]}),
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
NAMES = """head_dim rope_theta rope_scaling rope_parameters sliding_window layer_types dtype
use_sliding_window max_window_layers attention_bias mlp_bias partial_rotary_factor hidden_act architectures model_type
n_embd n_head n_inner
activation_function layer_norm_epsilon rotary_pct rotary_emb_base use_parallel_residual ffn_dim
word_embed_proj_dim
attn_config alibi new_decoder_architecture multi_query num_kv_heads num_ln_in_parallel_attn parallel_attn activation
no_rope_layers no_rope_layer_interval query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping
hidden_activation sliding_window_pattern rope_local_base_freq num_local_experts num_experts num_experts_per_tok
moe_intermediate_size swiglu_limit kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim n_group
topk_group topk_method n_routed_experts n_shared_experts first_k_dense_replace routed_scaling_factor
original_max_position_embeddings quantization_config tie_word_embeddings"""
keys = st.sampled_from([*LLAMA, *NAMES.split()])
bases = st.sampled_from([LLAMA, QWEN2, MISTRAL]) | st.sampled_from(list(FAMILIES)).map(
    lambda name: {**PLAIN, "architectures": None, "model_type": name}
)


@given(bases, st.dictionaries(keys, values, max_size=4))
def test_any_configuration_loads_or_is_refused(base: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        config = ModelConfig.from_hf({**base, **changes})
    except PagedRefError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        if config.head_dim <= 4096:
            assert config.inv_freq.shape == (config.turned // 2,) and np.all(np.isfinite(config.inv_freq))
            assert len(config.windows) == config.num_layers and config.features <= set(SEEN)


WORDS = """biases window layer_norm norm_offset norms parallel activation experts latent qk_norm sm_scale softcap
logit_softcap alibi sinks embed_scale embed_norm"""
SEEN = [*WORDS.split(), "layer windows", "plain mlp", "learned positions", "no rotary", "partial rotary"]
SEEN += ["unrotated layers", "local rotary", "rotary magnitude"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_reads_a_plain_configuration(name: str) -> None:
    config = ModelConfig.from_hf({**PLAIN, "architectures": list(FAMILIES[name].architectures[:1])})
    assert (config.architecture, config.num_layers, config.hidden_size) == (name, 2, 16)
    refused({**LLAMA, "architectures": list(FAMILIES[name].architectures[:1]), "vocab_size": None}, "vocab_size")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [(name, key, "other") for name, family in FAMILIES.items() for key in family.neutral]
    + [("mpt", "attn_config", {"alibi": False}), ("mpt", "attn_config", {"clip_qkv": 6}), ("mpt", "attn_config", 3)]
    + [("opt", "word_embed_proj_dim", 8), ("falcon", "num_ln_in_parallel_attn", 2), ("smollm3", "no_rope_layers", [1])]
    + [("phi3", "rope_parameters", {"rope_type": 3}), ("deepseek_v2", "topk_method", "other")]
    + [("gemma3_text", "rope_parameters", {"sliding_attention": {"rope_type": "yarn"}, "full_attention": {}})],
)
def test_settings_that_would_be_misread_are_named(name: str, setting: str, value: object) -> None:
    plain = {**PLAIN, "architectures": None, "model_type": name}
    ModelConfig.from_hf(plain)
    refused({**plain, setting: value}, "rope_type" if setting == "rope_parameters" and name == "phi3" else setting)


positive = st.floats(1e-300, 1e300) | st.floats(0.5, 100.0) | st.just(1.0)


@given(
    st.sampled_from(["linear", "dynamic", "llama3", "yarn", "longrope"]),
    st.dictionaries(
        st.sampled_from(["factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"])
        | st.sampled_from(["rope_theta", "mscale", "mscale_all_dim"]),
        positive,
    ),
    st.integers(1, 100_000),
    st.integers(1, 2**31 - 1),
)
def test_any_scaling_gives_finite_frequencies_or_is_refused(
    kind: str, numbers: dict[str, float], original: int, length: int
) -> None:
    rope = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **numbers}
    rope |= {"original_max_position_embeddings": original, "short_factor": [1.0, 2.0], "long_factor": [1.0, 3.0]}
    try:
        config = ModelConfig.from_hf({**LLAMA, "rope_parameters": rope})
    except PagedRefError as error:
        assert "\n" not in str(error)
        return
    with np.errstate(all="ignore"):
        rotation = config.for_length(length).rope(0)
    assert rotation is not None and np.isfinite(rotation.inv_freq).all() and rotation.magnitude > 0


def test_lists_of_numbers() -> None:
    assert reals({"a": [1, 2.5]}, "a") == (1.0, 2.5)
    for wrong in (None, 3, "12", [1, "x"], [0.0], [float("nan")]):
        with pytest.raises(ContractError, match="ModelConfig: a is"):
            reals({"a": wrong}, "a")


GPT_WORDS = {"biases", "layer_norm", "plain mlp", "activation"}
GEMMA_WORDS = {"activation", "embed_scale", "norm_offset"}
MLA_WORDS = {"latent", "sm_scale", "partial rotary", "experts"}
READINGS: dict[str, tuple[dict[str, Any], set[str], dict[str, Any]]] = {
    # family: (settings besides PLAIN, features, fields)
    "llama": ({}, set(), {"norm_eps": 1e-5, "tie_embeddings": True}),
    "mistral": ({"sliding_window": 8}, {"window"}, {"window": 8}),
    "qwen2": ({}, {"biases"}, {"biases": frozenset("qkv")}),
    "qwen3": ({}, {"qk_norm"}, {"qk_norm": "head"}),
    "phi3": ({"sliding_window": 8}, {"window"}, {}),
    "olmo2": ({}, {"norms", "qk_norm"}, {"qk_norm": "width", "norms": ("attn_post_norm", "mlp_post_norm")}),
    "smollm3": ({"no_rope_layer_interval": 2}, {"unrotated layers"}, {"unrotated_layers": {1}, "rope_theta": 2e6}),
    "gemma": ({}, GEMMA_WORDS, {"embed_scale": 4.0, "norm_offset": 1.0, "activation": "gelu_tanh"}),
    "gemma2": (
        {"sliding_window": 8},
        GEMMA_WORDS | {"window", "layer windows", "norms", "sm_scale", "softcap", "logit_softcap"},
        {"softcap": 50.0, "logit_softcap": 30.0, "sm_scale": 1 / 16, "full_layers": {1}, "norm_offset": 1.0},
    ),
    "gemma3_text": (
        {"sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 4},
        GEMMA_WORDS | {"window", "layer windows", "norms", "sm_scale", "qk_norm", "local rotary"},
        {"sm_scale": 0.5, "rope_theta": 1e6, "local_rope_theta": 1e4, "softcap": None, "full_layers": {1}},
    ),
    "gpt2": ({}, GPT_WORDS | {"no rotary", "learned positions"}, {"learned_positions": 0, "intermediate_size": 64}),
    "gpt_neox": ({}, GPT_WORDS | {"partial rotary", "parallel"}, {"turned": 2, "activation": "gelu"}),
    "opt": ({"ffn_dim": 20}, GPT_WORDS | {"no rotary", "learned positions"},
            {"learned_positions": 2, "activation": "relu", "intermediate_size": 20}),
    "bloom": ({}, GPT_WORDS | {"no rotary", "alibi", "embed_norm"}, {"activation": "gelu_tanh", "num_kv_heads": 4}),
    "mpt": ({}, GPT_WORDS - {"biases"} | {"no rotary", "alibi"}, {"biases": frozenset(), "alibi": 8.0}),
    "falcon": ({}, GPT_WORDS - {"biases"} | {"parallel", "norms"}, {"num_kv_heads": 1, "norms": ("attn_norm",)}),
    "mixtral": ({}, {"experts"}, {}),
    "qwen3_moe": ({}, {"experts", "qk_norm"}, {}),
    "gpt_oss": (
        {"sliding_window": 8},
        {"experts", "biases", "sinks", "window", "layer windows", "rotary magnitude"},
        {"full_layers": {1}, "rope_theta": 150000.0},
    ),
    "deepseek_v2": ({"q_lora_rank": None}, MLA_WORDS, {"head_dim": 192, "num_kv_heads": 1, "sm_scale": 192**-0.5}),
    "deepseek_v3": ({}, MLA_WORDS, {"head_dim": 192, "num_kv_heads": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_what_each_family_reads(name: str) -> None:
    settings, features, fields = READINGS[name]
    config = ModelConfig.from_hf({**PLAIN, "architectures": None, "model_type": name, **settings})
    assert config.features == features
    assert {field: getattr(config, field) for field in fields} == fields


@pytest.mark.parametrize(
    ("name", "new", "old"),
    [
        ("gpt_neox", {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 1.0}},
         {"rotary_emb_base": 50.0, "rotary_pct": 1.0}),
        ("gemma3_text",
         {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}},
         {"rope_theta": 5e5, "rope_local_base_freq": 50.0, "rope_scaling": {"type": "linear", "factor": 8.0}}),
        ("phi3",
         {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0],
                              "rope_theta": 10000.0, "original_max_position_embeddings": 16}},
         {"rope_scaling": {"type": "su", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]},
          "original_max_position_embeddings": 16}),
        ("deepseek_v2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0,
                                             "original_max_position_embeddings": 16}},
         {"rope_scaling": {"type": "yarn", "factor": 4, "mscale_all_dim": 1, "original_max_position_embeddings": 16}}),
        ("gpt2", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4},
         {"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None,
          "n_embd": 16, "n_layer": 2, "n_head": 4}),
    ],
)  # fmt: skip
def test_older_keys_of_families_say_the_same(name: str, new: dict[str, Any], old: dict[str, Any]) -> None:
    plain = {**PLAIN, "architectures": None, "model_type": name, "rotary_pct": None, "sliding_window": 8}
    read = [ModelConfig.from_hf({**plain, **style}) for style in (new, old)]
    assert read[0] == read[1]
    for layer in (0, 1):
        ropes = [config.rope(layer) for config in read]
        if ropes[0] is not None and ropes[1] is not None:
            np.testing.assert_array_equal(ropes[0].inv_freq, ropes[1].inv_freq)


def test_what_experts_are_read() -> None:
    """Every rule of choosing, by family."""

    def experts(name: str, **settings: Any) -> Experts | None:
        return ModelConfig.from_hf({**PLAIN, "architectures": None, "model_type": name, **settings}).experts

    assert experts("mixtral") == Experts(4, 2, 24, scoring="softmax_chosen")
    assert experts("qwen3_moe", norm_topk_prob=True) == Experts(4, 2, 8, renormalise=True)
    assert experts("gpt_oss") == Experts(4, 2, 24, scoring="softmax_chosen", limit=7.0)
    assert experts("deepseek_v2", first_k_dense_replace=1) == Experts(8, 2, 8, 16, 1)
    grouped = {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0, "n_shared_experts": 1}
    assert experts("deepseek_v2", **grouped) == Experts(8, 2, 8, 8, 0, scale=3.0, groups=2)
    assert experts("deepseek_v3") == Experts(
        8, 2, 8, 8, 3, "sigmoid", renormalise=True, scale=2.5, groups=2, group_score="top2", correction=True
    )
    lonely = {"n_group": 8, "num_experts_per_tok": 1}
    for wrong in ({"n_group": 3}, {"topk_group": 3}, {"num_experts_per_tok": 5}, lonely):
        with pytest.raises(ContractError, match="expert"):
            experts("deepseek_v3", **wrong)


def test_what_latents_are_read() -> None:
    scaling = {"type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707,
               "original_max_position_embeddings": 4096}  # fmt: skip
    settings = {**PLAIN, "architectures": None, "model_type": "deepseek_v2", "rope_scaling": scaling}
    config = ModelConfig.from_hf({**settings, "q_lora_rank": None})
    assert config.latent == Latent(512, 128, 64, 128)
    rope = config.rope(0)
    assert rope is not None and rope.magnitude == 1 and len(rope.inv_freq) == 32
    stretched = 0.1 * 0.707 * np.log(40.0) + 1
    np.testing.assert_allclose(config.sm_scale, 192**-0.5 * stretched**2, rtol=1e-15)
    halves = ModelConfig.from_hf({**settings, "q_lora_rank": 7, "rope_interleave": False}).latent
    assert halves == Latent(512, 128, 64, 128, 7, interleaved=False)
    refused({**settings, "qk_rope_head_dim": 5}, "pairs", "5")
