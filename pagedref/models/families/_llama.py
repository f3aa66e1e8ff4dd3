"""Llama and those that changed little of it: Mistral, Qwen 2 and 3, Phi-3, OLMo 2, SmolLM3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagedref.models.families._family import (
    Family,
    activation,
    biases,
    layer_windows,
    rotary,
    same_in_all,
    sizes,
)
from pagedref.models.families._stored import Rows
from pagedref.models.fields import real, refuse, whole

NAMES = {
    "embed": "embed_tokens.weight",
    "final_norm": "norm.weight",
    "lm_head": "/lm_head.weight",
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
QK_NORMS = {"q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight"}


def base(hf: Mapping[str, Any], *, theta: float = 10000.0, tied: bool = False) -> dict[str, Any]:
    """Return what every family of this kind has in common.

    Parameters
    ----------
    hf : mapping
        Contents of ``config.json``.
    theta : float
        Rotary base where the file says nothing.
    tied : bool
        Whether the output projection is the embedding, where the file says nothing.

    Returns
    -------
    dict
    """
    found = sizes(hf)
    return {
        **found,
        **rotary(hf, found, theta=theta),
        "intermediate_size": whole(hf, "intermediate_size"),
        "norm_eps": real(hf, "rms_norm_eps", 1e-6),
        "activation": activation(hf),
        "tie_embeddings": bool(hf.get("tie_word_embeddings", tied)),
    }


def _llama(hf: Mapping[str, Any]) -> dict[str, Any]:
    return {**base(hf), "biases": biases(hf)}


LLAMA = Family(("LlamaForCausalLM",), "RMS norm, rotary embedding, a gated network", _llama, NAMES)


def _mistral(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = base(hf)
    return {**found, **layer_windows(hf, found["num_layers"])}


MISTRAL = Family(
    ("MistralForCausalLM",),
    "a sliding window",
    _mistral,
    NAMES,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
)


def _qwen_windows(hf: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The window counts only where it is switched on, and not in the first layers."""
    if not hf.get("use_sliding_window"):
        return {}
    first = 0 if hf.get("max_window_layers") == 0 else whole(hf, "max_window_layers", 28)
    return layer_windows(hf, layers, is_full=lambda layer: layer < first)


def _qwen2(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = base(hf)
    return {**found, **_qwen_windows(hf, found["num_layers"]), "biases": frozenset("qkv")}


QWEN2 = Family(
    ("Qwen2ForCausalLM",),
    "biases of q, k and v, whatever the configuration says; a window in the later layers",
    _qwen2,
    NAMES,
    defaults={"sliding_window": 4096, "max_position_embeddings": 32768},
    neutral={"mlp_bias": (False,)},
)


def _qwen3(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = base(hf)
    windows = _qwen_windows(hf, found["num_layers"])
    return {**found, **windows, "biases": biases(hf) & frozenset("qkvo"), "qk_norm": "head"}


QWEN3 = Family(
    ("Qwen3ForCausalLM",),
    "a norm of each head of queries and keys",
    _qwen3,
    NAMES | QK_NORMS,
    defaults={"sliding_window": 4096, "max_position_embeddings": 32768},
    neutral={"mlp_bias": (False,)},
)


def _phi3(hf: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("rope_scaling", "rope_parameters"):
        entries = hf.get(key)
        if isinstance(entries, Mapping) and entries.get("rope_type", entries.get("type")) == "yarn":
            hf = {**hf, key: {**entries, "rope_type": "longrope"}}  # the name in some of its first files
    found = {**base(hf), **layer_windows({**hf, "layer_types": None}, sizes(hf)["num_layers"])}
    scaling = found["rope_scaling"]
    if scaling is not None and scaling.type != "longrope":
        refuse("ModelConfig", "rope_type", "is not supported for phi3", scaling.type, "default or longrope")
    if scaling is not None:  # the short list of factors; `for_length` chooses the other
        found["max_model_len"] = min(found["max_model_len"], scaling.original_max_position_embeddings)
    return found


PHI3 = Family(
    ("Phi3ForCausalLM",),
    "q, k and v in one tensor, gate and up in another; LongRoPE",
    _phi3,
    {
        **NAMES,
        **same_in_all("qkv", Rows("self_attn.qkv_proj.weight", among=("q", "k", "v"))),
        **same_in_all(("gate", "up"), Rows("mlp.gate_up_proj.weight", among=("gate", "up"))),
    },
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    neutral={"attention_bias": (False,)},
)


def _olmo2(hf: Mapping[str, Any]) -> dict[str, Any]:
    norms = ("attn_post_norm", "mlp_post_norm")
    return {**base(hf), "biases": biases(hf) & frozenset("qkvo"), "norms": norms, "qk_norm": "width"}


OLMO2 = Family(
    ("Olmo2ForCausalLM",),
    "norms behind attention and network instead of before; queries and keys normed over their whole width",
    _olmo2,
    {
        **NAMES,
        **QK_NORMS,
        "attn_post_norm": "post_attention_layernorm.weight",
        "mlp_post_norm": "post_feedforward_layernorm.weight",
    },
    defaults={"rms_norm_eps": 1e-5},
    neutral={"mlp_bias": (False,)},
)


def _smollm3(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = base(hf, theta=2000000.0, tied=True)
    layers, kinds = found["num_layers"], hf.get("no_rope_layers")
    if kinds is None:
        every = whole(hf, "no_rope_layer_interval", 4)
        kinds = [int((layer + 1) % every != 0) for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) < layers or any(kind not in (0, 1) for kind in kinds):
        refuse("ModelConfig", "no_rope_layers", "is no list", kinds, f"0 or 1 for each of {layers} layers")
    unrotated = frozenset(layer for layer in range(layers) if not kinds[layer])
    windows = layer_windows(hf, layers, is_full=lambda layer: layer not in unrotated)
    windows = windows if hf.get("use_sliding_window") else {}
    return {**found, **windows, "biases": biases(hf), "unrotated_layers": unrotated}


SMOLLM3 = Family(
    ("SmolLM3ForCausalLM",),
    "every fourth layer without rotary embedding",
    _smollm3,
    NAMES,
    defaults={"num_key_value_heads": 4, "max_position_embeddings": 32768},
)
