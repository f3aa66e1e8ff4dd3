"""How each family lays its weights out on disk, written by hand: names spelt out, fused tensors filled row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pagedref.models.config import ModelConfig

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]
Writer = Callable[[ModelConfig, Weights], Weights]

SIZES: dict[str, Any] = {
    "vocab_size": 13, "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 16, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
MLA = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 6, "n_group": 2,
    "topk_group": 1, "kv_lora_rank": 6, "qk_nope_head_dim": 5, "qk_rope_head_dim": 4, "v_head_dim": 3,
    "first_k_dense_replace": 1,
}  # fmt: skip

SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {**GROUPED, "attention_bias": True, "mlp_bias": True},
    "mistral": {**GROUPED, "sliding_window": 4},
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "phi3": GROUPED,
    "olmo2": GROUPED,
    "smollm3": GROUPED,
    "gemma": GROUPED,
    "gemma2": {**GROUPED, "sliding_window": 4},
    "gemma3_text": {**GROUPED, "sliding_window": 4, "query_pre_attn_scalar": 4},
    "gpt2": {"vocab_size": 13, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16},
    "gpt_neox": {**SIZES, "rotary_pct": 0.5},
    "opt": {**SIZES, "ffn_dim": 10},
    "bloom": {"vocab_size": 13, "n_embed": 8, "n_layer": 2, "num_attention_heads": 2},
    "mpt": {"vocab_size": 13, "d_model": 8, "n_layers": 2, "n_heads": 2, "max_seq_len": 16},
    "falcon": {**SIZES, "new_decoder_architecture": True, "num_attention_heads": 4, "num_kv_heads": 2, "bias": True},
    "mixtral": {**GROUPED, "num_local_experts": 3},
    "qwen3_moe": {**GROUPED, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6},
    "gpt_oss": {**GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 4},
    "deepseek_v2": {**SIZES, **MLA, "q_lora_rank": None},
    "deepseek_v3": {**SIZES, **MLA, "q_lora_rank": 7},
}
"""A small configuration of each family."""


def _by_heads(config: ModelConfig, q: Array, k: Array, v: Array) -> Array:
    """For each kv head: its query heads, its key, its value."""
    rows, dim, group = [], config.head_dim, config.num_qo_heads // config.num_kv_heads
    for head in range(config.num_kv_heads):
        for query in range(head * group, (head + 1) * group):
            rows += [q[query * dim + i] for i in range(dim)]
        rows += [k[head * dim + i] for i in range(dim)]
        rows += [v[head * dim + i] for i in range(dim)]
    return np.array(rows)


def _alternating(gate: Array, up: Array) -> Array:
    """(experts, outputs, ...) twice, as (experts, ..., 2 outputs): gate, up, gate, up."""
    experts, outputs = gate.shape[:2]
    rows = [[(gate, up)[i % 2][e, i // 2] for i in range(2 * outputs)] for e in range(experts)]
    return np.moveaxis(np.array(rows), 1, -1)


def _llama_layer(w: Weights, biases: bool = False) -> Weights:
    names = {f"self_attn.{kind}_proj": w[kind] for kind in "qkvo"}
    names |= {f"mlp.{kind}_proj": w[kind] for kind in ("gate", "up", "down") if kind in w}
    found = {f"{name}.weight": weight for name, weight in names.items()}
    for kind in ("q", "k", "v", "o", "gate", "up", "down"):
        if f"{kind}_bias" in w:
            found[f"{'mlp' if len(kind) > 1 else 'self_attn'}.{kind}_proj.bias"] = w[f"{kind}_bias"]
    for norm, name in {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}.items():
        if norm in w:
            found[f"{name}.weight"] = w[norm]
    for kind in "qk":
        if f"{kind}_norm" in w:
            found[f"self_attn.{kind}_norm.weight"] = w[f"{kind}_norm"]
    return found


def _llama(config: ModelConfig, w: Weights) -> Weights:
    return _llama_layer(w)


def _phi3(config: ModelConfig, w: Weights) -> Weights:
    found = _llama_layer(w)
    found = {name: weight for name, weight in found.items() if name[:-12][-2:] not in (".q", ".k", ".v")}
    del found["mlp.gate_proj.weight"], found["mlp.up_proj.weight"]
    qkv = [row for kind in "qkv" for row in w[kind]]
    both = [row for kind in ("gate", "up") for row in w[kind]]
    return found | {"self_attn.qkv_proj.weight": np.array(qkv), "mlp.gate_up_proj.weight": np.array(both)}


def _olmo2(config: ModelConfig, w: Weights) -> Weights:
    norms = {"post_attention_layernorm.weight": w["attn_post_norm"]}
    return _llama_layer(w) | norms | {"post_feedforward_layernorm.weight": w["mlp_post_norm"]}


def _gemma(config: ModelConfig, w: Weights) -> Weights:
    return _llama_layer(w) | {
        "post_attention_layernorm.weight": w["attn_post_norm"],
        "pre_feedforward_layernorm.weight": w["mlp_norm"],
        "post_feedforward_layernorm.weight": w["mlp_post_norm"],
    }


def _both(name: str, w: Weights, kind: str) -> Weights:
    return {f"{name}.weight": w[kind], f"{name}.bias": w[f"{kind}_bias"]}


def _gpt2(config: ModelConfig, w: Weights) -> Weights:
    """Inputs first: entry (i, j) is the weight of output j for input i."""
    hidden = config.hidden_size
    fused = np.empty((hidden, 3 * hidden), np.float32)
    for number, kind in enumerate("qkv"):
        for output in range(hidden):
            fused[:, number * hidden + output] = w[kind][output]
    found = {"attn.c_attn.weight": fused, "attn.c_attn.bias": np.concatenate([w[f"{kind}_bias"] for kind in "qkv"])}
    for name, kind in {"attn.c_proj": "o", "mlp.c_fc": "up", "mlp.c_proj": "down"}.items():
        found |= {f"{name}.weight": w[kind].T.copy(), f"{name}.bias": w[f"{kind}_bias"]}
    return found | _both("ln_1", w, "attn_norm") | _both("ln_2", w, "mlp_norm")


def _gpt_neox(config: ModelConfig, w: Weights) -> Weights:
    found = {"attention.query_key_value.weight": _by_heads(config, w["q"], w["k"], w["v"])}
    found["attention.query_key_value.bias"] = _by_heads(config, w["q_bias"], w["k_bias"], w["v_bias"])
    for name, kind in {"attention.dense": "o", "mlp.dense_h_to_4h": "up", "mlp.dense_4h_to_h": "down"}.items():
        found |= _both(name, w, kind)
    return found | _both("input_layernorm", w, "attn_norm") | _both("post_attention_layernorm", w, "mlp_norm")


def _bloom(config: ModelConfig, w: Weights) -> Weights:
    return {name.replace("attention.", "self_attention.", 1) if name.startswith("attention.") else name: weight
            for name, weight in _gpt_neox(config, w).items()}  # fmt: skip


def _falcon(config: ModelConfig, w: Weights) -> Weights:
    names = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"}
    return {names.get(name.split(".")[0], name.split(".")[0]) + name[name.index(".") :]: weight
            for name, weight in _bloom(config, w).items()}  # fmt: skip


def _opt(config: ModelConfig, w: Weights) -> Weights:
    found: Weights = {}
    names = {f"self_attn.{kind}_proj": kind for kind in "qkv"} | {"self_attn.out_proj": "o", "fc1": "up", "fc2": "down"}
    for name, kind in (names | {"self_attn_layer_norm": "attn_norm", "final_layer_norm": "mlp_norm"}).items():
        found |= _both(name, w, kind)
    return found


def _mpt(config: ModelConfig, w: Weights) -> Weights:
    found = {"attn.Wqkv.weight": np.array([row for kind in "qkv" for row in w[kind]]), "attn.out_proj.weight": w["o"]}
    found |= {"norm_1.weight": w["attn_norm"], "norm_2.weight": w["mlp_norm"]}
    return found | {"ffn.up_proj.weight": w["up"], "ffn.down_proj.weight": w["down"]}


def _experts(names: dict[str, str], w: Weights) -> Weights:
    return {name.format(e): weight for kind, name in names.items() for e, weight in enumerate(w[f"experts_{kind}"])}


def _mixtral(config: ModelConfig, w: Weights) -> Weights:
    numbers = {"gate": "w1", "down": "w2", "up": "w3"}
    names = {kind: f"block_sparse_moe.experts.{{}}.{name}.weight" for kind, name in numbers.items()}
    return _llama_layer(w) | _experts(names, w) | {"block_sparse_moe.gate.weight": w["router"]}


_EACH = {kind: f"mlp.experts.{{}}.{kind}_proj.weight" for kind in ("gate", "up", "down")}


def _qwen3_moe(config: ModelConfig, w: Weights) -> Weights:
    return _llama_layer(w) | _experts(_EACH, w) | {"mlp.gate.weight": w["router"]}


def _gpt_oss(config: ModelConfig, w: Weights) -> Weights:
    return _llama_layer(w) | _both("mlp.router", w, "router") | {
        "self_attn.sinks": w["sinks"],
        "mlp.experts.gate_up_proj": _alternating(w["experts_gate"], w["experts_up"]),
        "mlp.experts.gate_up_proj_bias": _alternating(w["experts_gate_bias"], w["experts_up_bias"]),
        "mlp.experts.down_proj": np.array([weight.T for weight in w["experts_down"]]),
        "mlp.experts.down_proj_bias": w["experts_down_bias"],
    }  # fmt: skip


def _deepseek(config: ModelConfig, w: Weights) -> Weights:
    names = {"q": "q_proj", "q_a": "q_a_proj", "q_a_norm": "q_a_layernorm", "q_b": "q_b_proj"}
    names |= {"kv_a": "kv_a_proj_with_mqa", "kv_a_norm": "kv_a_layernorm", "kv_b": "kv_b_proj", "o": "o_proj"}
    found = {f"self_attn.{name}.weight": w[kind] for kind, name in names.items() if kind in w}
    found |= {"input_layernorm.weight": w["attn_norm"], "post_attention_layernorm.weight": w["mlp_norm"]}
    if "router" not in w:
        return found | {f"mlp.{kind}_proj.weight": w[kind] for kind in ("gate", "up", "down")}
    if "router_correction" in w:
        found["mlp.gate.e_score_correction_bias"] = w["router_correction"]
    shared = {f"mlp.shared_experts.{kind}_proj.weight": w[f"shared_{kind}"] for kind in ("gate", "up", "down")}
    return found | _experts(_EACH, w) | shared | {"mlp.gate.weight": w["router"]}


_LLAMA_TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "lm_head": "lm_head.weight"}
_OLD_TOP = {
    "embed": "transformer.word_embeddings.weight", "final_norm": "transformer.ln_f.weight",
    "embed_norm": "transformer.word_embeddings_layernorm.weight",
}  # fmt: skip
_LAYOUTS: dict[str, tuple[str, dict[str, str], Writer]] = {
    "phi3": ("model.layers.{}.", _LLAMA_TOP, _phi3),
    "olmo2": ("model.layers.{}.", _LLAMA_TOP, _olmo2),
    "gemma2": ("model.layers.{}.", _LLAMA_TOP, _gemma),
    "gemma3_text": ("model.layers.{}.", _LLAMA_TOP, _gemma),
    "gpt2": ("transformer.h.{}.", {"embed": "transformer.wte.weight", "positions": "transformer.wpe.weight",
                                   "final_norm": "transformer.ln_f.weight"}, _gpt2),
    "gpt_neox": ("gpt_neox.layers.{}.", {"embed": "gpt_neox.embed_in.weight", "lm_head": "embed_out.weight",
                                         "final_norm": "gpt_neox.final_layer_norm.weight"}, _gpt_neox),
    "opt": ("model.decoder.layers.{}.", {
        "embed": "model.decoder.embed_tokens.weight", "positions": "model.decoder.embed_positions.weight",
        "final_norm": "model.decoder.final_layer_norm.weight"}, _opt),
    "bloom": ("transformer.h.{}.", _OLD_TOP, _bloom),
    "mpt": ("transformer.blocks.{}.", {"embed": "transformer.wte.weight",
                                       "final_norm": "transformer.norm_f.weight"}, _mpt),
    "falcon": ("transformer.h.{}.", _OLD_TOP, _falcon),
    "mixtral": ("model.layers.{}.", _LLAMA_TOP, _mixtral),
    "qwen3_moe": ("model.layers.{}.", _LLAMA_TOP, _qwen3_moe),
    "gpt_oss": ("model.layers.{}.", _LLAMA_TOP, _gpt_oss),
    "deepseek_v2": ("model.layers.{}.", _LLAMA_TOP, _deepseek),
    "deepseek_v3": ("model.layers.{}.", _LLAMA_TOP, _deepseek),
}  # fmt: skip


def tensors(config: ModelConfig, weights: Weights) -> Weights:
    """What a file of the family of `config` holds, given our weights."""
    layer, top, write = _LAYOUTS.get(config.architecture, ("model.layers.{}.", _LLAMA_TOP, _llama))
    found = {name: weights[kind] for kind, name in top.items() if kind in weights}
    for kind, name in top.items():
        if f"{kind}_bias" in weights:
            found[name.removesuffix("weight") + "bias"] = weights[f"{kind}_bias"]
    for number in range(config.num_layers):
        own = {name.split(".")[2]: w for name, w in weights.items() if name.startswith(f"layers.{number}.")}
        found |= {layer.format(number) + name: weight for name, weight in write(config, own).items()}
    return {name: np.ascontiguousarray(weight, np.float32) for name, weight in found.items()}
