"""A model in a GGUF file: its configuration, the names of its weights, its tokenizer.

Files of the architecture ``llama`` store the rows of q and k with rotary pairs side by side; they are put back into
the half-split order here, per head, with ``num_kv_heads`` for k (P67). All others are stored half-split. Norm weights
of Gemma are stored as they are multiplied, one added already.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedref.models.config import NORMS, ModelConfig
from pagedref.models.fields import real, refuse, token_ids, whole
from pagedref.models.gguf_file import GGUFFile
from pagedref.models.rope import RopeScaling
from pagedref.models.weights import Entry, Progress, Weights, collect, half_split, weight_shapes

if TYPE_CHECKING:
    from pagedref.models.tokenizer import Tokenizer

__all__ = ["ARCHITECTURES", "config_from_gguf", "load_gguf"]

Entries = Mapping[str, Any]
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
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attn_post_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "mlp_post_norm": "post_ffw_norm.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"
_HARMLESS = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")
_MOST_LAYERS = 4096
_MUST_BE_NEUTRAL = (
    "expert_count", "attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias", "logit_scale",
    "residual_scale", "embedding_scale",
)  # fmt: skip


def _llama(entries: Entries, found: dict[str, Any]) -> dict[str, Any]:
    window = entries.get("attention.sliding_window")
    return {"window": whole(entries, "attention.sliding_window")} if window else {}


def _qwen2(entries: Entries, found: dict[str, Any]) -> dict[str, Any]:
    return {**_llama(entries, found), "biases": frozenset("qkv")}


def _qwen3(entries: Entries, found: dict[str, Any]) -> dict[str, Any]:
    return {**_llama(entries, found), "qk_norm": "head"}


def _gemma(entries: Entries, found: dict[str, Any]) -> dict[str, Any]:
    return {"activation": "gelu_tanh", "embed_scale": math.sqrt(found["hidden_size"])}


def _gemma2(entries: Entries, found: dict[str, Any], *, pattern: int = 2, largest: int = 46) -> dict[str, Any]:
    """The largest model of a kind scales by the width of a head as if heads made up the hidden size."""
    layers, heads = found["num_layers"], found["num_qo_heads"]
    capped = {
        name: real(entries, key)
        for name, key in {"softcap": "attn_logit_softcapping", "logit_softcap": "final_logit_softcapping"}.items()
        if entries.get(key)
    }
    return {
        **_gemma(entries, found),
        **capped,
        "window": whole(entries, "attention.sliding_window"),
        "full_layers": frozenset(layer for layer in range(layers) if (layer + 1) % pattern == 0),
        "norms": NORMS,
        "sm_scale": (found["hidden_size"] / heads if layers == largest else found["head_dim"]) ** -0.5,
    }


def _gemma3(entries: Entries, found: dict[str, Any]) -> dict[str, Any]:
    local = real(entries, "rope.freq_base_swa", 10000.0)
    special = _gemma2(entries, found, pattern=6, largest=62)
    return {**special, "qk_norm": "head", "local_rope_theta": local}


ARCHITECTURES: Mapping[str, tuple[str, Callable[[Entries, dict[str, Any]], dict[str, Any]]]] = {
    "llama": ("llama", _llama),
    "qwen2": ("qwen2", _qwen2),
    "qwen3": ("qwen3", _qwen3),
    "gemma": ("gemma", _gemma),
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3_text", _gemma3),
}
"""The architectures of GGUF files that load: our family, and what sets it apart."""


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read the configuration of the model in a GGUF file.

    Parameters
    ----------
    file : GGUFFile
        An open file.

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
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        refuse("ModelConfig", "general.architecture", "is not supported", architecture, " or ".join(ARCHITECTURES))
    family, special = ARCHITECTURES[architecture]
    prefix = f"{architecture}."
    entries = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    for key in _MUST_BE_NEUTRAL:
        if entries.get(key) not in (None, 0, 1):
            refuse("ModelConfig", key, f"is not supported for {architecture}", entries[key], "none")
    heads, hidden = whole(entries, "attention.head_count"), whole(entries, "embedding_length")
    if "attention.key_length" not in entries and hidden % heads:
        refuse("ModelConfig", "embedding_length", "does not divide", hidden, f"a multiple of {heads} heads")
    head_dim = whole(entries, "attention.key_length", max(1, hidden // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if whole(entries, key, head_dim) != head_dim:
            refuse("ModelConfig", key, "differs from the head", entries[key], str(head_dim))
    tokens = {key: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "eom")}
    embedding = file.tensors.get(_TOP["embed"])
    if embedding is not None and not embedding.shape:
        refuse("ModelConfig", _TOP["embed"], "has the wrong shape", embedding.shape, "(vocab_size, embedding_length)")
    layers = whole(entries, "block_count")
    if layers > _MOST_LAYERS:
        refuse("ModelConfig", "block_count", "is too large", layers, f"at most {_MOST_LAYERS}")
    biased = frozenset("qkv") if "blk.0.attn_q.bias" in file.tensors else frozenset()
    found: dict[str, Any] = {
        "vocab_size": embedding.shape[0] if embedding is not None else whole(entries, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": whole(entries, "feed_forward_length"),
        "num_layers": layers,
        "num_qo_heads": heads,
        "num_kv_heads": whole(entries, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "norm_eps": real(entries, "attention.layer_norm_rms_epsilon"),
        "rope_theta": real(entries, "rope.freq_base", 10000.0),
        "max_model_len": whole(entries, "context_length"),
        "rope_scaling": _rope_scaling(file, entries, head_dim),
        "tie_embeddings": _TOP["lm_head"] not in file.tensors,
        "biases": biased,
        "bos_token_id": min(token_ids(tokens.pop("bos")), default=None),
        "eos_token_ids": frozenset[int]().union(*(token_ids(value) for value in tokens.values())),
        "dtype": _main_format(file),
    }
    return ModelConfig(architecture=family, **{**found, **special(entries, found)})


def load_gguf(path: Path, progress: Progress | None = None) -> tuple[ModelConfig, Weights, Tokenizer | None, str]:
    """Read configuration, weights and tokenizer of a GGUF file.

    Parameters
    ----------
    path : Path
        The file.
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
    if config.num_layers > len(file.tensors):
        need = f"those of {config.num_layers} layers"
        refuse("load_checkpoint", "the file", "has too few tensors", len(file.tensors), need)
    entries = [_entry(name, shape, config) for name, shape in weight_shapes(config)]
    weights = collect(file, config, entries, tied=_TOP["lm_head"], harmless=_is_harmless, progress=progress)
    from pagedref.models.gguf_tokenizer import tokenizer_from_gguf

    tokenizer, note = tokenizer_from_gguf(file.metadata)
    return config, weights, tokenizer, note


def _entry(name: str, shape: tuple[int, ...], config: ModelConfig) -> Entry:
    """Return where one of our weights lies; rows of q and k of a Llama are put back into half-split order."""
    kind = name.rpartition(".")[2].removesuffix("_bias")
    heads = {"q": config.num_qo_heads, "k": config.num_kv_heads} if config.architecture == "llama" else {}
    return Entry(name, (_name(name),), shape, partial(_taken, heads.get(kind, 0)))


def _taken(heads: int, arrays: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    return half_split(arrays[0], heads) if heads else arrays[0]


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


def _rope_scaling(file: GGUFFile, entries: Entries, head_dim: int) -> RopeScaling | None:
    """Return the rotary scaling of a file: a table of divisors, one factor, or none."""
    kind = entries.get("rope.scaling.type", "linear" if entries.get("rope.scale_linear") else "none")
    if kind not in ("none", "linear"):
        refuse("ModelConfig", "rope.scaling.type", "is not supported", kind, "none or linear")
    if _ROPE_FACTORS in file.tensors:
        if file.shape(_ROPE_FACTORS) != (head_dim // 2,):
            need = f"({head_dim // 2},)"
            refuse("ModelConfig", _ROPE_FACTORS, "has the wrong shape", file.shape(_ROPE_FACTORS), need)
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
