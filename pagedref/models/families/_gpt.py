"""Those with LayerNorm, biases and a network without gate: GPT-2, GPT-NeoX (Pythia), OPT, BLOOM, MPT, Falcon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagedref.models.families._family import Family, activation, rotary, same_in_all, sizes
from pagedref.models.families._stored import Heads, Rows, Stored
from pagedref.models.fields import real, refuse, whole

_ALL = frozenset({"q", "k", "v", "o", "up", "down", "norm"})


def _base(hf: Mapping[str, Any], eps: str, *, tied: bool = True) -> dict[str, Any]:
    """Return what every family of this kind has in common."""
    found = sizes({**hf, "head_dim": None})
    return {
        **found,
        "intermediate_size": 4 * found["hidden_size"],
        "norm": "layer",
        "norm_eps": real(hf, eps, 1e-5),
        "biases": _ALL,
        "gated": False,
        "rotary_dim": 0,
        "tie_embeddings": bool(hf.get("tie_word_embeddings", tied)),
    }


def _gpt2(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = _base(hf, "layer_norm_epsilon")
    return {
        **found,
        "num_kv_heads": found["num_qo_heads"],
        "intermediate_size": whole(hf, "n_inner", found["intermediate_size"]),
        "activation": activation(hf, "activation_function", "gelu_new"),
        "learned_positions": 0,
    }


GPT2 = Family(
    ("GPT2LMHeadModel",),
    "a learned row for each position; matrices stored with inputs first (Conv1D)",
    _gpt2,
    {
        "embed": "wte.weight",
        "positions": "wpe.weight",
        "final_norm": "ln_f.weight",
        "lm_head": "/lm_head.weight",
        "attn_norm": "ln_1.weight",
        **same_in_all("qkv", Rows("attn.c_attn.weight", turned=True, among=("q", "k", "v"))),
        "o": Stored("attn.c_proj.weight", turned=True),
        "mlp_norm": "ln_2.weight",
        "up": Stored("mlp.c_fc.weight", turned=True),
        "down": Stored("mlp.c_proj.weight", turned=True),
    },
    layer="h.{}.",
    prefixes=("transformer.", ""),
    defaults={"n_positions": 1024},
    neutral={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    harmless=r"h\.\d+\.attn\.(masked_)?bias",
)


def _gpt_neox(hf: Mapping[str, Any]) -> dict[str, Any]:
    legacy = {"rope_theta": hf.get("rotary_emb_base"), "partial_rotary_factor": hf.get("rotary_pct")}
    hf = {**{key: value for key, value in legacy.items() if value is not None}, **hf}
    found = _base(hf, "layer_norm_eps", tied=False)
    plain = hf.get("attention_bias") is False
    return {
        **found,
        **rotary(hf, found, partial=0.25),
        "num_kv_heads": found["num_qo_heads"],
        "intermediate_size": whole(hf, "intermediate_size"),
        "activation": activation(hf, "hidden_act", "gelu"),
        "biases": _ALL - frozenset("qkvo") if plain else _ALL,
        "parallel": bool(hf.get("use_parallel_residual", True)),
    }


GPT_NEOX = Family(
    ("GPTNeoXForCausalLM",),
    "a quarter of each head is turned; attention and network side by side; q, k and v by heads in one tensor",
    _gpt_neox,
    {
        "embed": "embed_in.weight",
        "final_norm": "final_layer_norm.weight",
        "lm_head": "/embed_out.weight",
        "attn_norm": "input_layernorm.weight",
        **same_in_all("qkv", Heads("attention.query_key_value.weight")),
        "o": "attention.dense.weight",
        "mlp_norm": "post_attention_layernorm.weight",
        "up": "mlp.dense_h_to_4h.weight",
        "down": "mlp.dense_4h_to_h.weight",
    },
    prefixes=("gpt_neox.",),
    harmless=r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
)


def _opt(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = _base(hf, "no entry: 1e-5")
    if whole(hf, "word_embed_proj_dim", found["hidden_size"]) != found["hidden_size"]:
        got = hf["word_embed_proj_dim"]
        refuse("ModelConfig", "word_embed_proj_dim", "differs from the hidden size", got, str(found["hidden_size"]))
    return {
        **found,
        "num_kv_heads": found["num_qo_heads"],
        "intermediate_size": whole(hf, "ffn_dim", found["intermediate_size"]),
        "activation": activation(hf, "activation_function", "relu"),
        "biases": _ALL if hf.get("enable_bias", True) else frozenset({"norm"}),
        "learned_positions": 2,
    }


OPT = Family(
    ("OPTForCausalLM",),
    "learned positions behind two unused rows, relu",
    _opt,
    {
        "embed": "embed_tokens.weight",
        "positions": "embed_positions.weight",
        "final_norm": "final_layer_norm.weight",
        "lm_head": "/lm_head.weight",
        "attn_norm": "self_attn_layer_norm.weight",
        **{kind: f"self_attn.{kind}_proj.weight" for kind in "qkv"},
        "o": "self_attn.out_proj.weight",
        "mlp_norm": "final_layer_norm.weight",
        "up": "fc1.weight",
        "down": "fc2.weight",
    },
    prefixes=("model.decoder.", "decoder."),
    neutral={
        "do_layer_norm_before": (True,),
        "_remove_final_layer_norm": (False,),
        "layer_norm_elementwise_affine": (True,),
    },
)

_FUSED_NAMES: dict[str, str | Stored] = {
    "embed": "word_embeddings.weight",
    "final_norm": "ln_f.weight",
    "lm_head": "/lm_head.weight",
    **same_in_all("qkv", Heads("self_attention.query_key_value.weight")),
    "o": "self_attention.dense.weight",
    "up": "mlp.dense_h_to_4h.weight",
    "down": "mlp.dense_4h_to_h.weight",
}


def _bloom(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = _base(hf, "layer_norm_epsilon")
    found |= {"num_kv_heads": found["num_qo_heads"], "alibi": 8.0, "activation": "gelu_tanh"}
    return {**found, "embed_norm": True}


BLOOM = Family(
    ("BloomForCausalLM",),
    "ALiBi instead of positions, a norm behind the embedding",
    _bloom,
    {
        **_FUSED_NAMES,
        "embed_norm": "word_embeddings_layernorm.weight",
        "attn_norm": "input_layernorm.weight",
        "mlp_norm": "post_attention_layernorm.weight",
    },
    layer="h.{}.",
    prefixes=("transformer.", ""),
    neutral={"apply_residual_connection_post_layernorm": (False,)},
)


def _mpt(hf: Mapping[str, Any]) -> dict[str, Any]:
    attention = hf.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        refuse("ModelConfig", "attn_config", "is no mapping", attention, "settings of attention")
    allowed = {"alibi": (True,), "qk_ln": (False,), "prefix_lm": (False,), "clip_qkv": (None,)}
    for key, values in {**allowed, "attn_type": ("multihead_attention",), "attn_uses_sequence_id": (False,)}.items():
        if attention.get(key, values[0]) not in values:
            refuse("ModelConfig", f"attn_config.{key}", "is not supported for mpt", attention[key], str(values[0]))
    found = _base(hf, "layer_norm_epsilon")
    return {
        **found,
        "num_kv_heads": found["num_qo_heads"],
        "activation": "gelu",
        "biases": frozenset(),
        "alibi": real(attention, "alibi_bias_max", 8.0),
        "sm_scale": None if attention.get("softmax_scale") is None else real(attention, "softmax_scale"),
    }


MPT = Family(
    ("MptForCausalLM", "MPTForCausalLM"),
    "ALiBi, no bias anywhere, not even in LayerNorm",
    _mpt,
    {
        "embed": "wte.weight",
        "final_norm": "norm_f.weight",
        "lm_head": "/lm_head.weight",
        "attn_norm": "norm_1.weight",
        **same_in_all("qkv", Rows("attn.Wqkv.weight", among=("q", "k", "v"))),
        "o": "attn.out_proj.weight",
        "mlp_norm": "norm_2.weight",
        "up": "ffn.up_proj.weight",
        "down": "ffn.down_proj.weight",
    },
    layer="blocks.{}.",
    prefixes=("transformer.",),
    neutral={"no_bias": (True,), "logit_scale": (None,), "expansion_ratio": (4,)},
)


def _falcon(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = _base(hf, "layer_norm_epsilon")
    new = bool(hf.get("new_decoder_architecture"))
    parallel = new or bool(hf.get("parallel_attn", True))
    norms = whole(hf, "num_ln_in_parallel_attn", 2 if new else 1)
    if norms != 1 and not (new and norms == 2):
        refuse("ModelConfig", "num_ln_in_parallel_attn", "is not supported", norms, "2 in the new architecture, else 1")
    heads = found["num_qo_heads"] if new or not hf.get("multi_query", True) else 1
    return {
        **found,
        **rotary(hf, found),
        "num_kv_heads": whole(hf, "num_kv_heads", heads) if new else heads,
        "intermediate_size": whole(hf, "ffn_hidden_size", found["intermediate_size"]),
        "activation": activation(hf, "activation", "gelu"),
        "biases": _ALL if hf.get("bias") else frozenset({"norm"}),
        "parallel": parallel,
        "norms": ("attn_norm",) if parallel and norms == 1 else ("attn_norm", "mlp_norm"),
    }


FALCON = Family(
    ("FalconForCausalLM",),
    "one kv head for all (7B) or for groups (40B); attention and network side by side, with one norm or two",
    _falcon,
    {
        **_FUSED_NAMES,
        "attn_norm": ("input_layernorm.weight", "ln_attn.weight"),
        "mlp_norm": ("post_attention_layernorm.weight", "ln_mlp.weight"),
    },
    layer="h.{}.",
    prefixes=("transformer.",),
    neutral={"alibi": (False,)},
)
