"""Published models: what matters of their ``config.json``, and how many parameters they are said to have.

The counts are those of the models' own pages (the sum over their safetensors files, or the authors' table).
"""

from __future__ import annotations

from typing import Any

PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt2": (124_439_808, {
        "model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024
    }),
    "pythia-70m": (70_426_624, {
        "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 512, "num_hidden_layers": 6,
        "num_attention_heads": 8, "intermediate_size": 2048, "max_position_embeddings": 2048, "rotary_pct": 0.25,
        "rotary_emb_base": 10000, "hidden_act": "gelu", "use_parallel_residual": True, "tie_word_embeddings": False
    }),
    "opt-125m": (125_239_296, {
        "model_type": "opt", "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "ffn_dim": 3072, "max_position_embeddings": 2048, "word_embed_proj_dim": 768,
        "do_layer_norm_before": True, "_remove_final_layer_norm": False, "activation_function": "relu"
    }),
    "bloom-560m": (559_214_592, {
        "model_type": "bloom", "vocab_size": 250880, "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16
    }),
    "mpt-7b": (6_649_286_656, {
        "model_type": "mpt", "vocab_size": 50432, "d_model": 4096, "n_layers": 32, "n_heads": 32, "max_seq_len":
        2048, "expansion_ratio": 4, "no_bias": True, "attn_config": {"alibi": True, "alibi_bias_max": 8,
        "attn_impl": "torch", "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "attn_type":
        "multihead_attention", "softmax_scale": None, "attn_uses_sequence_id": False}
    }),
    "falcon-7b": (6_921_720_704, {
        "model_type": "falcon", "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False,
        "new_decoder_architecture": False
    }),
    "falcon-40b": (41_303_293_952, {
        "model_type": "falcon", "vocab_size": 65024, "hidden_size": 8192, "num_hidden_layers": 60,
        "num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True, "parallel_attn": True, "bias": False,
        "alibi": False, "new_decoder_architecture": True
    }),
    "SmolLM2-135M": (134_515_008, {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True
    }),
    "Llama-3.2-1B": (1_235_814_400, {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "tie_word_embeddings": True, "rope_theta": 500000.0, "rope_scaling": {"factor": 32.0, "high_freq_factor":
        4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
    }),
    "Mistral-7B": (7_241_732_096, {
        "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096
    }),
    "Qwen2.5-0.5B": (494_032_768, {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 24
    }),
    "Qwen3-0.6B": (596_049_920, {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "tie_word_embeddings": True
    }),
    "Phi-3-mini": (3_821_079_552, {
        "model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 2047
    }),
    "OLMo-2-1B": (1_484_916_736, {
        "model_type": "olmo2", "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16, "tie_word_embeddings": False
    }),
    "SmolLM3-3B": (3_075_098_624, {
        "model_type": "smollm3", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4
    }),
    "gemma-2b": (2_506_172_416, {
        "model_type": "gemma", "vocab_size": 256000, "hidden_size": 2048, "intermediate_size": 16384,
        "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256
    }),
    "gemma-2-2b": (2_614_341_888, {
        "model_type": "gemma2", "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "sliding_window": 4096
    }),
    "gemma-3-1b": (999_885_952, {
        "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "sliding_window": 512, "sliding_window_pattern": 6
    }),
    "Mixtral-8x7B": (46_702_792_704, {
        "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2
    }),
    "Qwen3-30B-A3B": (30_532_122_624, {
        "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": []
    }),
    "gpt-oss-20b": (20_914_757_184, {
        "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128
    }),
    "DeepSeek-V2-Lite": (15_706_484_224, {
        "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "kv_lora_rank": 512, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1,
        "topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "scoring_func": "softmax",
        "moe_layer_freq": 1, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
        "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}
    }),
    "DeepSeek-V3": (671_026_419_200, {
        "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3,
        "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4, "norm_topk_prob": True, "scoring_func": "sigmoid",
        "moe_layer_freq": 1, "routed_scaling_factor": 2.5
    }),
}  # fmt: skip
