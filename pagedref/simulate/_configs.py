"""Read what a cache costs out of an HF ``config.json``, and the few fields of well-known models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pagedref.errors import ContractError

__all__ = ["MODELS", "Layers", "layers_of", "load_config", "longest"]


class Layers(NamedTuple):
    """Layers of a model that store the same.

    Attributes
    ----------
    number : int
        How many.
    heads, k_dim, v_dim : int
        What each stores of a token: heads, and numbers of a key and of a value of each. A latent layer stores one head
        of the latent vector and the rotated key.
    window : int or None
        Tokens that a query sees; None for all.
    latent : bool
        Whether keys and values are one latent vector.
    """

    number: int
    heads: int
    k_dim: int
    v_dim: int
    window: int | None
    latent: bool


def _plain(layers: int, hidden: int, heads: int, kv_heads: int, length: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": length, **more,
    }  # fmt: skip


MODELS: dict[str, dict[str, Any]] = {
    "opt-13b": _plain(40, 5120, 40, 40, 2048),
    "opt-66b": _plain(64, 9216, 72, 72, 2048),
    "opt-175b": _plain(96, 12288, 96, 96, 2048),
    "llama-2-7b": _plain(32, 4096, 32, 32, 4096),
    "llama-2-13b": _plain(40, 5120, 40, 40, 4096),
    "llama-2-70b": _plain(80, 8192, 64, 8, 4096),
    "llama-3-8b": _plain(32, 4096, 32, 8, 8192),
    "llama-3.1-8b": _plain(32, 4096, 32, 8, 131072),
    "llama-3.1-70b": _plain(80, 8192, 64, 8, 131072),
    "llama-3.1-405b": _plain(126, 16384, 128, 8, 131072),
    "mistral-7b": _plain(32, 4096, 32, 8, 32768, sliding_window=4096),
    "qwen2.5-7b": _plain(28, 3584, 28, 4, 32768),
    "qwen3-32b": _plain(64, 5120, 64, 8, 40960, head_dim=128),
    "gemma-3-27b": _plain(62, 5376, 32, 16, 131072, head_dim=128, sliding_window=1024, sliding_window_pattern=6),
    "gpt-oss-20b": _plain(
        24, 2880, 64, 8, 131072, head_dim=64, sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 12,
    ),
    "deepseek-v3": _plain(61, 7168, 128, 128, 163840, kv_lora_rank=512, qk_rope_head_dim=64),
    "smollm2": _plain(30, 576, 9, 3, 8192),
}  # fmt: skip
"""Fields of published configurations, by name."""

FULL = ("full_attention", "attention", "full")
WINDOWED = ("sliding_attention", "chunked_attention", "local_attention", "local")
NOTHING = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "ssm")  # a state that does not grow
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_sequence_length", "max_seq_len")
ENOUGH = 2**31


def refuse(field: str, what: str, got: Any, need: str) -> NoReturn:
    """Raise the error of a field."""
    raise ContractError(f"cache_cost: {field} {what}, got {got!r:.60}, need {need}")


def load_config(path: Path) -> dict[str, Any]:
    """Return a ``config.json``, by its own path or that of its folder.

    Parameters
    ----------
    path : Path
        The file, or its folder.

    Returns
    -------
    dict
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        refuse("config", "is no JSON", file.name, f"a config.json ({str(error)[:60]})")
    if not isinstance(config, dict):
        refuse("config", "is no object", config, "an HF configuration")
    return config


def _number(config: Mapping[str, Any], names: tuple[str, ...], default: int | None = None) -> int:
    """Return the first of some fields that is there, a whole number >= 1."""
    for name in names:
        value = config.get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < ENOUGH:
                refuse(name, "is no size", value, "an integer >= 1")
            return value
    if default is None:
        refuse(names[0], "is missing", None, " or ".join(names))
    return default


def longest(config: Mapping[str, Any]) -> int | None:
    """Return the longest context that a model was made for, if the configuration says so.

    Parameters
    ----------
    config : mapping
        An HF configuration.

    Returns
    -------
    int or None
    """
    config = config.get("text_config") or config
    return next((config[name] for name in LENGTHS if isinstance(config.get(name), int)), None)


def layers_of(config: Mapping[str, Any]) -> list[Layers]:
    """Return what the layers of a model store.

    Parameters
    ----------
    config : mapping
        An HF configuration; of one for several modalities, its text part.

    Returns
    -------
    list of Layers
        Layers alike together.
    """
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    if config.get("is_encoder_decoder"):
        refuse("is_encoder_decoder", "is not supported", True, "a model that only decodes")
    count = _number(config, ("num_hidden_layers", "n_layer", "num_layers", "n_layers"))
    windows = _windows(config, count)
    shared = config.get("num_kv_shared_layers") or 0  # the last ones read what others store
    windows = windows[: count - _number(config, ("num_kv_shared_layers",), 0) if shared else count]
    rank = config.get("kv_lora_rank")
    if rank is not None:
        heads, k_dim = 1, _number(config, ("kv_lora_rank",))
        v_dim = _number(config, ("qk_rope_head_dim",))
    else:
        all_heads = _number(config, ("num_attention_heads", "n_head", "num_heads", "n_heads"))
        one = config.get("multi_query") and not config.get("new_decoder_architecture")
        names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
        heads = 1 if one else _number(config, names, all_heads)
        k_dim = _head_dim(config, all_heads)
        v_dim = _number(config, ("v_head_dim",), k_dim)
    found: list[Layers] = []
    for window in dict.fromkeys(windows):
        if window != 0:
            found.append(Layers(windows.count(window), heads, k_dim, v_dim, window, rank is not None))
    return found


def _head_dim(config: Mapping[str, Any], heads: int) -> int:
    """Return the numbers of a key of one head."""
    if any(config.get(name) is not None for name in ("head_dim", "attention_head_dim", "kv_channels")):
        return _number(config, ("head_dim", "attention_head_dim", "kv_channels"))
    hidden = _number(config, ("hidden_size", "n_embd", "d_model", "dim"))
    if hidden % heads:
        refuse("hidden_size", "does not divide", hidden, f"a multiple of {heads} heads, or head_dim")
    return hidden // heads


def _windows(config: Mapping[str, Any], count: int) -> list[int | None]:
    """Return the window of each layer: None for all tokens, 0 for layers that store none."""
    window: int | None = None
    if config.get("use_sliding_window", True):
        names = tuple(name for name in ("sliding_window", "attention_chunk_size") if config.get(name) is not None)
        window = _number(config, names) if names else None
    kinds = config.get("layer_types", config.get("layers_block_type"))
    if isinstance(kinds, list):
        if len(kinds) != count:
            refuse("layer_types", "have the wrong length", len(kinds), f"{count}, one for each layer")
        known = {**dict.fromkeys(FULL), **dict.fromkeys(WINDOWED, window), **dict.fromkeys(NOTHING, 0)}
        for kind in kinds:
            if kind not in known:
                refuse("layer_types", "hold an unknown kind", kind, ", ".join(known))
        return [known[kind] for kind in kinds]
    if window is None:
        return [None] * count
    every = config.get("sliding_window_pattern")
    if every is not None:  # every n-th layer sees everything
        every = _number(config, ("sliding_window_pattern",))
        return [None if (layer + 1) % every == 0 else window for layer in range(count)]
    if "use_sliding_window" in config and "max_window_layers" in config:  # the first layers see everything
        first = _number(config, ("max_window_layers",)) if config["max_window_layers"] else 0
        return [None] * min(first, count) + [window] * max(0, count - first)
    return [window] * count
