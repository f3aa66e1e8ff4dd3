"""Those with experts: Mixtral, Qwen3-MoE, GPT-OSS, DeepSeek V2 and V3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagedref.models.config import Experts, Latent
from pagedref.models.families._family import Family, biases, layer_windows, sizes
from pagedref.models.families._llama import NAMES, QK_NORMS, base
from pagedref.models.families._stored import Alternating, EachExpert, Stored
from pagedref.models.fields import real, refuse, whole
from pagedref.models.rope import yarn_magnitude

_EACH = {f"experts_{kind}": EachExpert(f"mlp.experts.{{}}.{kind}_proj.weight") for kind in ("gate", "up", "down")}


def _mixtral(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = base(hf, theta=1000000.0)
    count, chosen = whole(hf, "num_local_experts", 8), whole(hf, "num_experts_per_tok", 2)
    experts = Experts(count, chosen, found["intermediate_size"], scoring="softmax_chosen")
    return {**found, **layer_windows(hf, found["num_layers"]), "experts": experts}


MIXTRAL = Family(
    ("MixtralForCausalLM",),
    "every token takes two of eight experts",
    _mixtral,
    {
        **NAMES,
        "router": "block_sparse_moe.gate.weight",
        "experts_gate": EachExpert("block_sparse_moe.experts.{}.w1.weight"),
        "experts_down": EachExpert("block_sparse_moe.experts.{}.w2.weight"),
        "experts_up": EachExpert("block_sparse_moe.experts.{}.w3.weight"),
    },
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072},
)


def _qwen3_moe(hf: Mapping[str, Any]) -> dict[str, Any]:
    found = base(hf)
    experts = Experts(
        whole(hf, "num_local_experts" if hf.get("num_experts") is None else "num_experts"),
        whole(hf, "num_experts_per_tok", 8),
        whole(hf, "moe_intermediate_size"),
        renormalise=bool(hf.get("norm_topk_prob")),
    )
    return {**found, "biases": biases(hf) & frozenset("qkvo"), "qk_norm": "head", "experts": experts}


QWEN3_MOE = Family(
    ("Qwen3MoeForCausalLM",),
    "Qwen 3 with experts",
    _qwen3_moe,
    {**NAMES, **QK_NORMS, **_EACH, "router": "mlp.gate.weight"},
    defaults={"num_key_value_heads": 4, "max_position_embeddings": 32768},
    neutral={"decoder_sparse_step": (1,), "mlp_only_layers": ([],), "use_sliding_window": (False,)},
)


def _gpt_oss(hf: Mapping[str, Any]) -> dict[str, Any]:
    if hf.get("rope_scaling") is None and hf.get("rope_parameters") is None:
        plain = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
        hf = {**hf, "rope_scaling": plain}
    found = base(hf, theta=150000.0)
    experts = Experts(
        whole(hf, "num_local_experts"),
        whole(hf, "num_experts_per_tok", 4),
        found["intermediate_size"],
        scoring="softmax_chosen",
        limit=real(hf, "swiglu_limit", 7.0),
    )
    named = biases(hf, default=True) | {"router", "experts_gate", "experts_up", "experts_down"}
    windows = layer_windows(hf, found["num_layers"], is_full=lambda layer: layer % 2 == 1)
    return {**found, **windows, "biases": named, "sinks": True, "experts": experts}


GPT_OSS = Family(
    ("GptOssForCausalLM",),
    "a sink in each head, a window in every second layer, experts with biases and a clipped gate",
    _gpt_oss,
    {
        **NAMES,
        "sinks": "self_attn.sinks",
        "router": "mlp.router.weight",
        "experts_gate": Alternating("mlp.experts.gate_up_proj", first=0),
        "experts_up": Alternating("mlp.experts.gate_up_proj", first=1),
        "experts_down": Stored("mlp.experts.down_proj", turned=True),
        "experts_gate_bias": Alternating("mlp.experts.gate_up_proj_bias", first=0),
        "experts_up_bias": Alternating("mlp.experts.gate_up_proj_bias", first=1),
        "experts_down_bias": "mlp.experts.down_proj_bias",
    },
    defaults={
        "head_dim": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
    },
    neutral={"swiglu_alpha": (1.702,)},
)


def _deepseek(hf: Mapping[str, Any], **scoring: Any) -> dict[str, Any]:
    """Read what both versions share: latents, experts, and the scale of scores under YaRN."""
    rank, nope = whole(hf, "kv_lora_rank", 512), whole(hf, "qk_nope_head_dim", 128)
    turned, value = whole(hf, "qk_rope_head_dim", 64), whole(hf, "v_head_dim", 128)
    own = None if hf.get("q_lora_rank", 1536) is None else whole(hf, "q_lora_rank", 1536)
    interleaved = bool(hf.get("rope_interleave", True))
    found = sizes({**hf, "head_dim": nope + turned})
    found |= base({**hf, "head_dim": turned}) | {"head_dim": nope + turned, "num_kv_heads": 1, "rotary_dim": None}
    scale, rope = (nope + turned) ** -0.5, hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if found["rope_scaling"] is not None and rope.get("mscale_all_dim"):
        scale *= yarn_magnitude(found["rope_scaling"].factor, real(rope, "mscale_all_dim")) ** 2
    width = whole(hf, "moe_intermediate_size")
    dense = 0 if hf.get("first_k_dense_replace", 0) == 0 else whole(hf, "first_k_dense_replace")
    experts = Experts(
        whole(hf, "n_routed_experts"),
        whole(hf, "num_experts_per_tok", 8),
        width,
        shared_size=width * whole(hf, "n_shared_experts", 1),
        dense_layers=dense,
        scale=real(hf, "routed_scaling_factor", 1.0),
        **scoring,
    )
    return {
        **found,
        "biases": frozenset({"q_a", "kv_a", "o"}) if hf.get("attention_bias") else frozenset(),
        "latent": Latent(rank, nope, turned, value, own, interleaved),
        "sm_scale": scale,
        "experts": experts,
    }


_LATENT_NAMES = {
    **NAMES,
    **_EACH,
    "q_a": "self_attn.q_a_proj.weight",
    "q_a_norm": "self_attn.q_a_layernorm.weight",
    "q_b": "self_attn.q_b_proj.weight",
    "kv_a": "self_attn.kv_a_proj_with_mqa.weight",
    "kv_a_norm": "self_attn.kv_a_layernorm.weight",
    "kv_b": "self_attn.kv_b_proj.weight",
    "router": "mlp.gate.weight",
    **{f"shared_{kind}": f"mlp.shared_experts.{kind}_proj.weight" for kind in ("gate", "up", "down")},
}


def _deepseek_v2(hf: Mapping[str, Any]) -> dict[str, Any]:
    method = hf.get("topk_method", "greedy")
    if method == "greedy":
        return _deepseek(hf)
    if method != "group_limited_greedy":
        refuse("ModelConfig", "topk_method", "is not supported", method, "greedy or group_limited_greedy")
    return _deepseek(hf, groups=whole(hf, "n_group"), groups_per_token=whole(hf, "topk_group"))


DEEPSEEK_V2 = Family(
    ("DeepseekV2ForCausalLM",),
    "latents instead of keys and values (MLA); experts in groups, and shared ones",
    _deepseek_v2,
    _LATENT_NAMES,
    defaults={"n_shared_experts": 2, "n_routed_experts": 64, "moe_intermediate_size": 1407},
    neutral={"norm_topk_prob": (False,), "mlp_bias": (False,), "moe_layer_freq": (1,), "scoring_func": ("softmax",)},
)


def _deepseek_v3(hf: Mapping[str, Any]) -> dict[str, Any]:
    return _deepseek(
        hf,
        scoring="sigmoid",
        correction=True,
        renormalise=bool(hf.get("norm_topk_prob", True)),
        groups=whole(hf, "n_group", 8),
        groups_per_token=whole(hf, "topk_group", 4),
        group_score="top2",
    )


DEEPSEEK_V3 = Family(
    ("DeepseekV3ForCausalLM",),
    "as V2; experts are scored by sigmoid, and chosen with a correction that does not weigh",
    _deepseek_v3,
    {**_LATENT_NAMES, "router_correction": "mlp.gate.e_score_correction_bias"},
    defaults={
        "n_routed_experts": 256,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 4096,
    },
    neutral={"moe_layer_freq": (1,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
)
