"""Small models with random weights, how far float32 may be from exact, and how they are written as HF directories."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from pagedref.models.config import ModelConfig
from pagedref.models.families import FAMILIES, Names
from pagedref.models.safetensors_file import write_safetensors
from pagedref.models.weights import Weights, weight_shapes
from pagedref.numerics import gamma
from tests.engine.dense_model import dense_logits

__all__ = ["dense_logits", "make_config", "make_weights", "rounding", "write_hf"]

Array = np.ndarray[Any, Any]


def make_config(**changes: Any) -> ModelConfig:
    """A Llama of two layers: three query heads to each kv head, heads that do not add up to the hidden size."""
    given: dict[str, Any] = {
        "architecture": "llama", "vocab_size": 70, "hidden_size": 40, "intermediate_size": 72, "num_layers": 2,
        "num_qo_heads": 6, "num_kv_heads": 2, "head_dim": 8, "norm_eps": 1e-5, "rope_theta": 100.0,
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
            centre = 1 - config.norm_offset
            weights[name] = (centre + 0.2 * rng.standard_normal(shape)).astype(np.float32)
        elif len(shape) == 1:
            weights[name] = (0.5 * rng.standard_normal(shape)).astype(np.float32)
    return weights


def rounding(config: ModelConfig, logits: Array, dtype: str = "float32") -> float:
    """How far float32 logits may be from exact ones: every sum of the model errs by gamma of its terms, one after the
    other, relative to the largest logit."""
    terms = 3 * config.hidden_size + config.intermediate_size + config.num_qo_heads * config.head_dim
    return gamma(config.num_layers * terms, dtype) * float(np.abs(logits).max())


def write_hf(folder: Path, config: ModelConfig, weights: Weights) -> Path:
    """Write a model without tokenizer as an HF directory."""
    folder.mkdir(exist_ok=True)
    names = Names(FAMILIES[config.architecture], config, weights)
    tensors = {entry.tensors[0]: weights[entry.name] for entry in names.entries()}
    write_safetensors(folder / "model.safetensors", tensors)
    content = {
        "model_type": config.architecture, "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_qo_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "rms_norm_eps": config.norm_eps, "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_model_len, "tie_word_embeddings": config.tie_embeddings,
        "eos_token_id": sorted(config.eos_token_ids),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))
    return folder
