"""Small configurations of every family, such that each of its features shows in the logits."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {"vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES: dict[str, Any] = {
    **COMMON, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 96,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
GPT: dict[str, Any] = {**COMMON, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
EXPERTS: dict[str, Any] = {
    **SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 20, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "n_group": 4, "topk_group": 2,
}  # fmt: skip


def rope(theta: float = 100.0, **scaling: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **scaling}}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # name: (model_type, settings)
    "llama": ("llama", {**SIZES, **rope(), "tie_word_embeddings": True}),
    "llama, all biases": ("llama", {**SIZES, **rope(), "attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    "llama, llama3": ("llama", {**SIZES, **rope(**LLAMA3)}),
    "llama, linear": ("llama", {**SIZES, **rope(rope_type="linear", factor=4.0)}),
    "llama, yarn": ("llama", {**SIZES, **rope(**YARN)}),
    "llama, yarn with its own factor": ("llama", {**SIZES, **rope(**YARN, attention_factor=1.3, beta_fast=9.0)}),
    "llama, dynamic": ("llama", {**SIZES, "max_position_embeddings": 20, **rope(rope_type="dynamic", factor=3.0)}),
    "mistral": ("mistral", {**SIZES, **rope(), "sliding_window": 7}),
    "qwen2": ("qwen2", {**SIZES, **rope(), "tie_word_embeddings": True}),
    "qwen2, window": ("qwen2", {**SIZES, **rope(), "use_sliding_window": True, "sliding_window": 6,
                                "max_window_layers": 1}),
    "qwen3": ("qwen3", {**SIZES, **rope(), "head_dim": 12, "attention_bias": True}),
    "phi3": ("phi3", {**SIZES, **rope(), "sliding_window": 9}),
    "phi3, longrope": ("phi3", {**SIZES, "original_max_position_embeddings": 48, **rope(
        rope_type="longrope", short_factor=[1.0, 1.3, 1.7, 2.0], long_factor=[2.0, 3.0, 5.0, 8.0],
        original_max_position_embeddings=48)}),
    "phi3, longrope beyond": ("phi3", {**SIZES, "original_max_position_embeddings": 16, **rope(
        rope_type="longrope", short_factor=[1.0, 1.3, 1.7, 2.0], long_factor=[2.0, 3.0, 5.0, 8.0],
        original_max_position_embeddings=16)}),
    "phi3, partial rotary": ("phi3", {**SIZES, **rope(partial_rotary_factor=0.75)}),
    "olmo2": ("olmo2", {**SIZES, **rope()}),
    "smollm3": ("smollm3", {**SIZES, **rope(), "no_rope_layer_interval": 2}),
    "gemma": ("gemma", {**SIZES, **rope(), "head_dim": 12}),
    "gemma2": ("gemma2", {**SIZES, **rope(), "head_dim": 12, "sliding_window": 5, "query_pre_attn_scalar": 9,
                          "attn_logit_softcapping": 3.0, "final_logit_softcapping": 20.0}),
    "gemma3": ("gemma3_text", {**SIZES, "num_hidden_layers": 7, "head_dim": 12, "sliding_window": 5,
                               "query_pre_attn_scalar": 9, "rope_parameters": {
                                   "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}}}),
    "gpt2": ("gpt2", {**COMMON, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 96}),
    "gpt_neox": ("gpt_neox", {**GPT, "intermediate_size": 44, "max_position_embeddings": 96,
                              "rope_parameters": {"rope_theta": 100.0, "rope_type": "default",
                                                  "partial_rotary_factor": 0.5}}),
    "gpt_neox, one after the other": ("gpt_neox", {**GPT, "intermediate_size": 44, "use_parallel_residual": False,
                                                   "rotary_pct": 1.0, "attention_bias": False}),
    "opt": ("opt", {**GPT, "ffn_dim": 44, "word_embed_proj_dim": 32, "max_position_embeddings": 96}),
    "bloom": ("bloom", {**COMMON, "hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "bloom, six heads": ("bloom", {**COMMON, "hidden_size": 48, "n_layer": 2, "n_head": 6}),
    "mpt": ("mpt", {**COMMON, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 96}),
    "mpt, six heads": ("mpt", {**COMMON, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 96}),
    "falcon": ("falcon", {**GPT, **rope()}),
    "falcon, groups": ("falcon", {**GPT, **rope(), "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon, many heads in series": ("falcon", {**GPT, **rope(), "multi_query": False, "parallel_attn": False}),
    "mixtral": ("mixtral", {**SIZES, **rope(), "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", {**SIZES, **rope(), "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 3,
                                "moe_intermediate_size": 20, "norm_topk_prob": True}),
    "gpt_oss": ("gpt_oss", {**SIZES, "head_dim": 10, "num_local_experts": 5, "num_experts_per_tok": 2,
                            "sliding_window": 5, "swiglu_limit": 0.8, **rope(**YARN, truncate=False)}),
    "deepseek_v2": ("deepseek_v2", {**EXPERTS, **rope(), "q_lora_rank": None, "topk_method": "group_limited_greedy"}),
    "deepseek_v2, yarn": ("deepseek_v2", {**EXPERTS, **rope(**YARN, mscale=0.7, mscale_all_dim=0.9),
                                          "q_lora_rank": 14, "topk_method": "greedy"}),
    "deepseek_v3": ("deepseek_v3", {**EXPERTS, **rope(**YARN, mscale=1.0, mscale_all_dim=1.0), "q_lora_rank": 14}),
    "deepseek_v3, halves": ("deepseek_v3", {**EXPERTS, **rope(), "q_lora_rank": None, "rope_interleave": False,
                                            "norm_topk_prob": False}),
}  # fmt: skip
