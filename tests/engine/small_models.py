"""Small models with random weights, and a second derivation of what they compute: dense, float64, row by row."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from pagedref.models.config import ModelConfig
from pagedref.models.safetensors_file import write_safetensors
from pagedref.models.weights import Weights, weight_shapes
from pagedref.numerics import gamma

Array = np.ndarray[Any, Any]


def make_config(**changes: Any) -> ModelConfig:
    """A Llama of two layers: three query heads to each kv head, heads that do not add up to the hidden size."""
    given: dict[str, Any] = {
        "architecture": "llama", "vocab_size": 70, "hidden_size": 40, "intermediate_size": 72, "num_layers": 2,
        "num_qo_heads": 6, "num_kv_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 100.0,
        "max_model_len": 64,
    }  # fmt: skip
    return ModelConfig(**{**given, **changes})


def make_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Random weights, large enough that attention and gate are far from linear."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config):
        scale = 1.0 if name == "embed" else 2.0 / math.sqrt(shape[-1])
        weights[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        if name.endswith("norm"):
            weights[name] = (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
    return weights


def dense_logits(config: ModelConfig, weights: Weights, ids: Any) -> Array:
    """Logits (tokens, vocab) in float64, one row and one head at a time."""
    w = {name: weight.astype(np.float64) for name, weight in weights.items()}

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt(np.mean(x * x) + config.rms_norm_eps) * w[name]

    def turn(x: Array, position: int) -> Array:
        half = config.head_dim // 2
        pairs = x[:half] + 1j * x[half:]
        pairs = pairs * np.exp(1j * position * config.inv_freq)
        return np.concatenate([pairs.real, pairs.imag])

    group = config.num_qo_heads // config.num_kv_heads
    rows = [w["embed"][token] for token in ids]
    for layer in range(config.num_layers):
        p = f"layers.{layer}."
        keys: list[Array] = []
        values: list[Array] = []
        for position, x in enumerate(rows):
            h = norm(x, p + "attn_norm")
            q, k, v = (w[p + n] @ h + w.get(f"{p}{n}_bias", 0.0) for n in "qkv")
            keys.append(np.array([turn(head, position) for head in k.reshape(config.num_kv_heads, -1)]))
            values.append(v.reshape(config.num_kv_heads, -1))
            first = 0 if config.window is None else max(0, position - config.window + 1)
            heads = []
            for number, head in enumerate(q.reshape(config.num_qo_heads, -1)):
                head = turn(head, position)
                seen = range(first, position + 1)
                scores = np.array([head @ keys[j][number // group] / math.sqrt(config.head_dim) for j in seen])
                weight = np.exp(scores - scores.max())
                weight /= weight.sum()
                heads.append(sum(share * values[j][number // group] for share, j in zip(weight, seen, strict=True)))
            x = x + w[p + "o"] @ np.concatenate(heads)
            h = norm(x, p + "mlp_norm")
            gate = w[p + "gate"] @ h
            rows[position] = x + w[p + "down"] @ (gate / (1 + np.exp(-gate)) * (w[p + "up"] @ h))
    head = w["embed"] if config.tie_embeddings else w["lm_head"]
    return np.array([head @ norm(x, "final_norm") for x in rows])


def rounding(config: ModelConfig, logits: Array) -> float:
    """How far float32 logits may be from exact ones: every sum of the model errs by gamma of its terms, one after the
    other, relative to the largest logit."""
    terms = 3 * config.hidden_size + config.intermediate_size + config.num_qo_heads * config.head_dim
    return gamma(config.num_layers * terms, "float32") * float(np.abs(logits).max())


def write_hf(folder: Path, config: ModelConfig, weights: Weights) -> Path:
    """Write a model without tokenizer as an HF directory."""
    from pagedref.models.checkpoint import _hf_name

    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", {_hf_name(name): weight for name, weight in weights.items()})
    content = {
        "model_type": config.architecture, "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_qo_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_model_len, "tie_word_embeddings": config.tie_embeddings,
        "eos_token_id": sorted(config.eos_token_ids),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))
    return folder
