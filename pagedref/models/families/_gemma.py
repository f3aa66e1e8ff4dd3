"""Gemma 1 to 3: norm weights count from 1, embeddings are scaled; then windows, soft caps and more norms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pagedref.models.config import NORMS
from pagedref.models.families._family import Family, activation, biases, layer_windows, optional
from pagedref.models.families._llama import NAMES, QK_NORMS, base
from pagedref.models.fields import real, refuse, whole

_SANDWICH = {
    "attn_post_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}
_WINDOWED = {"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096}
_NEUTRAL = {"use_bidirectional_attention": (False,), "mlp_bias": (False,)}


def _gemma(hf: Mapping[str, Any], *, theta: float = 10000.0) -> dict[str, Any]:
    found = base({**hf, "hidden_act": "gelu_new"}, theta=theta, tied=True)
    return {
        **found,
        "activation": activation(hf, "hidden_activation", "gelu_pytorch_tanh"),
        "biases": biases(hf) & frozenset("qkvo"),
        "embed_scale": math.sqrt(found["hidden_size"]),
        "norm_offset": 1.0,
    }


GEMMA = Family(
    ("GemmaForCausalLM",),
    "embeddings times the square root of their width, norm weights that count from 1",
    _gemma,
    NAMES,
    defaults={"head_dim": 256, "max_position_embeddings": 8192},
    neutral=_NEUTRAL,
)


def _capped(hf: Mapping[str, Any], softcap: float | None, logit_softcap: float | None) -> dict[str, Any]:
    """Return what Gemma 2 and 3 share."""
    return {
        "norms": NORMS,
        "sm_scale": real(hf, "query_pre_attn_scalar", 256) ** -0.5,
        "softcap": optional(hf, "attn_logit_softcapping", softcap),
        "logit_softcap": optional(hf, "final_logit_softcapping", logit_softcap),
    }


def _gemma2(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = _gemma(hf)
    windows = layer_windows(hf, found["num_layers"], is_full=lambda layer: layer % 2 == 1)
    return {**found, **windows, **_capped(hf, 50.0, 30.0)}


GEMMA2 = Family(
    ("Gemma2ForCausalLM",),
    "a window in every second layer, soft caps on scores and logits, norms on both sides, a scale of its own",
    _gemma2,
    NAMES | _SANDWICH,
    defaults={**_WINDOWED, "max_position_embeddings": 8192},
    neutral=_NEUTRAL,
)


def _two_ropes(hf: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rotary settings of layers with a window, and the configuration as it holds for the others."""
    ropes = hf.get("rope_parameters")
    if not isinstance(ropes, Mapping) or not any(isinstance(value, Mapping) for value in ropes.values()):
        return {"rope_theta": hf.get("rope_local_base_freq")}, dict(hf)
    near, far = (ropes.get(kind) or {} for kind in ("sliding_attention", "full_attention"))
    if not isinstance(near, Mapping) or near.get("rope_type", "default") != "default":
        refuse("ModelConfig", "rope_parameters", "scale the layers with a window", near, "default there")
    return dict(near), {**hf, "rope_parameters": far}


def _gemma3(hf: Mapping[str, Any]) -> dict[str, Any]:
    near, hf = _two_ropes(hf)
    found = _gemma(hf, theta=1000000.0)
    every = whole(hf, "sliding_window_pattern", whole(hf, "_sliding_window_pattern", 6))
    windows = layer_windows(hf, found["num_layers"], is_full=lambda layer: (layer + 1) % every == 0)
    local = real(near, "rope_theta", 10000.0)
    return {**found, **windows, **_capped(hf, None, None), "qk_norm": "head", "local_rope_theta": local}


GEMMA3 = Family(
    ("Gemma3ForCausalLM",),
    "five layers with a window to one without, each kind with its own rotary base; a norm of each head",
    _gemma3,
    NAMES | _SANDWICH | QK_NORMS,
    defaults={**_WINDOWED, "max_position_embeddings": 131072},
    neutral=_NEUTRAL,
)
