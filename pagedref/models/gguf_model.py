"""A model in a GGUF file: its configuration, the names of its weights, its tokenizer.

Files of the architecture ``llama`` store the rows of q and k with rotary pairs side by side; they are put back into
the half-split order here, per head, with ``num_kv_heads`` for k (P67). ``qwen2`` files are stored half-split.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedref.models.config import FAMILIES, ModelConfig, RopeScaling
from pagedref.models.fields import real, refuse, token_ids, whole
from pagedref.models.gguf_file import GGUFFile
from pagedref.models.weights import Progress, Weights, collect

if TYPE_CHECKING:
    from pagedref.models.tokenizer import Tokenizer

__all__ = ["config_from_gguf", "load_gguf"]

_ARCHITECTURES = ("llama", "qwen2")
_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"
_HARMLESS = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")
_MUST_BE_NEUTRAL = (
    "expert_count", "attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias", "logit_scale",
    "residual_scale", "embedding_scale", "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read the configuration of the model in a GGUF file.

    Parameters
    ----------
    file : GGUFFile

    Returns
    -------
    ModelConfig
        Stop tokens are the union of end of text, of turn and of message (P65).

    Raises
    ------
    ContractError
        If the architecture or a setting is not supported, or a size is missing or impossible.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        refuse("ModelConfig", "general.architecture", "is not supported", architecture, " or ".join(_ARCHITECTURES))
    prefix = f"{architecture}."
    entries = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    for key in _MUST_BE_NEUTRAL:
        if entries.get(key) not in (None, 0, 1):
            refuse("ModelConfig", key, f"is not supported for {architecture}", entries[key], "none")
    heads, hidden = whole(entries, "attention.head_count"), whole(entries, "embedding_length")
    if "attention.key_length" not in entries and hidden % heads:
        refuse("ModelConfig", "embedding_length", "does not divide", hidden, f"a multiple of {heads} heads")
    head_dim = whole(entries, "attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if whole(entries, key, head_dim) != head_dim:
            refuse("ModelConfig", key, "differs from the head", entries[key], str(head_dim))
    tokens = {key: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    embedding = file.tensors.get(_TOP["embed"])
    if embedding is not None and not embedding.shape:
        refuse("ModelConfig", _TOP["embed"], "has the wrong shape", embedding.shape, "(vocab_size, embedding_length)")
    return ModelConfig(
        architecture=architecture,
        vocab_size=embedding.shape[0] if embedding is not None else whole(entries, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=whole(entries, "feed_forward_length"),
        num_layers=whole(entries, "block_count"),
        num_qo_heads=heads,
        num_kv_heads=whole(entries, "attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=real(entries, "attention.layer_norm_rms_epsilon"),
        rope_theta=real(entries, "rope.freq_base", 10000.0),
        max_model_len=whole(entries, "context_length"),
        rope_scaling=_rope_scaling(file, entries, head_dim),
        tie_embeddings=_TOP["lm_head"] not in file.tensors,
        qkv_bias=FAMILIES[architecture].qkv_bias or "blk.0.attn_q.bias" in file.tensors,
        window=whole(entries, "attention.sliding_window") if entries.get("attention.sliding_window") else None,
        bos_token_id=min(token_ids(tokens.pop("bos")), default=None),
        eos_token_ids=frozenset[int]().union(*(token_ids(value) for value in tokens.values())),
        dtype=_main_format(file),
    )


def load_gguf(path: Path, progress: Progress | None = None) -> tuple[ModelConfig, Weights, Tokenizer | None, str]:
    """Read configuration, weights and tokenizer of a GGUF file.

    Parameters
    ----------
    path : Path
    progress : callable, optional
        Called with (weights read, weights in all).

    Returns
    -------
    config, weights, tokenizer, note
        `tokenizer` is ``None``, and `note` says why, if it cannot be used here.

    Raises
    ------
    ContractError
        One line: what is missing, damaged or not supported.
    """
    file = GGUFFile(path)
    config = config_from_gguf(file)
    interleaved = config.architecture == "llama"
    weights = collect(file, config, _name, harmless=_is_harmless, interleaved=interleaved, progress=progress)
    from pagedref.models.gguf_tokenizer import tokenizer_from_gguf

    tokenizer, note = tokenizer_from_gguf(file.metadata)
    return config, weights, tokenizer, note


def _name(name: str) -> str:
    """Return the GGUF name of one of our weights.

    Examples
    --------
    >>> _name("layers.3.o"), _name("lm_head")
    ('blk.3.attn_output.weight', 'output.weight')
    """
    if name in _TOP:
        return _TOP[name]
    _, layer, kind = name.split(".")
    return f"blk.{layer}.{_LAYER[kind]}"


def _is_harmless(name: str) -> bool:
    return _HARMLESS.fullmatch(name) is not None


def _rope_scaling(file: GGUFFile, entries: Mapping[str, Any], head_dim: int) -> RopeScaling | None:
    """Return the rotary scaling of a file: a table of divisors, one factor, or none."""
    kind = entries.get("rope.scaling.type", "linear" if entries.get("rope.scale_linear") else "none")
    if kind not in ("none", "linear"):
        refuse("ModelConfig", "rope.scaling.type", "is not supported", kind, "none or linear")
    if _ROPE_FACTORS in file.tensors:
        if file.shape(_ROPE_FACTORS) != (head_dim // 2,):
            refuse(
                "ModelConfig", _ROPE_FACTORS, "has the wrong shape", file.shape(_ROPE_FACTORS), f"({head_dim // 2},)"
            )
        return RopeScaling("factors", factors=tuple(map(float, file.read_float32(_ROPE_FACTORS))))
    if kind == "none":
        return None
    key = "rope.scaling.factor" if "rope.scaling.factor" in entries else "rope.scale_linear"
    return RopeScaling("linear", factor=real(entries, key))


def _main_format(file: GGUFFile) -> str:
    """Return the format that holds most bytes of the file."""
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.dtype] += tensor.stop - tensor.start
    return sizes.most_common(1)[0][0] if sizes else "none"
