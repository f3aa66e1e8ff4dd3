"""One entry of the table of families, and what reading a configuration has in common for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagedref.models.families._stored import Stored
from pagedref.models.fields import real, refuse, whole
from pagedref.models.rope import RopeScaling

__all__ = ["Family", "activation", "biases", "layer_windows", "optional", "rotary", "same_in_all", "sizes"]

MOST_LAYERS = 4096

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "relu2": "relu_squared",
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Say what sets one family of models apart, and how its files are read.

    Parameters
    ----------
    architectures : tuple of str
        Names of the family in the ``architectures`` entry of an HF ``config.json``.
    about : str
        What is special, in one line.
    read : callable
        From the contents of ``config.json`` to fields of :class:`~pagedref.models.config.ModelConfig`.
    names : mapping of str to str, Stored or tuple of str
        Where each of our weights lies; a name that begins with ``/`` has no prefix; of several names the first that
        the file has counts. Biases need no entry where they lie beside their weight.
    layer : str
        What stands before the names of a layer's weights.
    prefixes : tuple of str
        What may stand before all names; the first with which the embedding is found counts.
    defaults : mapping of str to value
        What an entry means that a file leaves out, where that is not what it means for a Llama.
    neutral : mapping of str to tuple
        Settings that must be absent or have one of these values: others are not supported.
    harmless : str
        Pattern of tensors that follow from the configuration and may be left unread.
    """

    architectures: tuple[str, ...]
    about: str
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    names: Mapping[str, str | tuple[str, ...] | Stored]
    layer: str = "layers.{}."
    prefixes: tuple[str, ...] = ("model.",)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    harmless: str = r"(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"

    def stored(self, kind: str) -> tuple[Stored, ...]:
        """Return where a weight may lie, empty if the family has none of this name."""
        found = self.names.get(kind)
        if isinstance(found, Stored):
            return (found,)
        if found is not None:
            return tuple(Stored(name) for name in ([found] if isinstance(found, str) else found))
        if kind.endswith("_bias"):
            return tuple(place.bias() for place in self.stored(kind.removesuffix("_bias")))
        return ()


_KEYS = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "num_qo_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "max_model_len": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
}
"""What files of different families call the same size."""


def sizes(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that every model has.

    Parameters
    ----------
    hf : mapping
        Contents of ``config.json``.

    Returns
    -------
    dict
    """
    keys = {name: next((key for key in given if hf.get(key) is not None), given[0]) for name, given in _KEYS.items()}
    hidden, heads = whole(hf, keys["hidden_size"]), whole(hf, keys["num_qo_heads"])
    if hf.get("head_dim") is None and hidden % heads:
        need = f"a multiple of {heads} heads, or head_dim"
        refuse("ModelConfig", keys["hidden_size"], "does not divide", hidden, need)
    layers = whole(hf, keys["num_layers"])
    if layers > MOST_LAYERS:
        refuse("ModelConfig", keys["num_layers"], "is too large", layers, f"at most {MOST_LAYERS}")
    return {
        "vocab_size": whole(hf, "vocab_size"),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_qo_heads": heads,
        "num_kv_heads": whole(hf, keys["num_kv_heads"], heads),
        "head_dim": whole(hf, "head_dim", max(1, hidden // heads)),
        "max_model_len": whole(hf, keys["max_model_len"], 2048),
        "rope_theta": 10000.0,
    }


def rotary(
    hf: Mapping[str, Any], found: Mapping[str, Any], *, theta: float = 10000.0, partial: float = 1.0
) -> dict[str, Any]:
    """Return base, scaling and width of the rotary embedding, whichever key style the file has.

    Parameters
    ----------
    hf : mapping
        ``rope_parameters``, or ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor``.
    found : mapping
        The sizes.
    theta, partial : float
        What holds where the file says nothing.

    Returns
    -------
    dict
    """
    rope: dict[str, Any] = {"rope_theta": hf.get("rope_theta")}
    for style in ("rope_scaling", "rope_parameters"):
        entries = hf.get(style)
        if entries is None:
            continue
        if not isinstance(entries, Mapping) or any(isinstance(value, Mapping) for value in entries.values()):
            refuse("ModelConfig", style, "is not one flat mapping", entries, "the same rotary embedding in every layer")
        rope.update(entries)
    if rope.get("original_max_position_embeddings") is None:
        rope["original_max_position_embeddings"] = hf.get("original_max_position_embeddings")
    given = rope.get("partial_rotary_factor")
    rope["partial_rotary_factor"] = hf.get("partial_rotary_factor") if given is None else given
    share = real(rope, "partial_rotary_factor", partial)
    if share > 1:
        refuse("ModelConfig", "partial_rotary_factor", "is too large", share, "at most 1")
    turned = int(found["head_dim"] * share)
    if share < 1 and not turned:
        refuse("ModelConfig", "partial_rotary_factor", "leaves no channel", share, "at least one pair")
    return {
        "rope_theta": real(rope, "rope_theta", theta),
        "rope_scaling": RopeScaling.from_hf(rope, found["max_model_len"]),
        "rotary_dim": None if turned == found["head_dim"] else turned,
    }


def activation(hf: Mapping[str, Any], key: str = "hidden_act", default: str = "silu") -> str:
    """Return the activation of a file by our name.

    Parameters
    ----------
    hf : mapping
        Contents of ``config.json``.
    key, default : str
        Name of the entry, and what holds without it.

    Returns
    -------
    str
    """
    named = hf.get(key)
    named = default if named is None else named
    if not isinstance(named, str) or named not in _ACTIVATIONS:
        refuse("ModelConfig", key, "is not supported", named, " or ".join(_ACTIVATIONS))
    return _ACTIVATIONS[named]


def biases(hf: Mapping[str, Any], *, default: bool = False) -> frozenset[str]:
    """Return which linear weights of a Llama have a bias, by ``attention_bias`` and ``mlp_bias``.

    Parameters
    ----------
    hf : mapping
        Contents of ``config.json``.
    default : bool
        What holds for the attention without an entry.

    Returns
    -------
    frozenset of str
    """
    attention = hf.get("attention_bias")
    attention = default if attention is None else bool(attention)
    return frozenset([*("qkvo" if attention else ""), *(("gate", "up", "down") if hf.get("mlp_bias") else ())])


def layer_windows(
    hf: Mapping[str, Any], layers: int, *, is_full: Callable[[int], bool] = lambda layer: False
) -> dict[str, Any]:
    """Return the sliding window of a file and the layers without it.

    Parameters
    ----------
    hf : mapping
        ``sliding_window``, and perhaps ``layer_types``.
    layers : int
        Number of layers.
    is_full : callable
        Whether a layer sees everything, where the file does not list it.

    Returns
    -------
    dict
        Empty where no layer has a window.
    """
    if hf.get("sliding_window") is None:
        return {}
    kinds = hf.get("layer_types")
    if kinds is None:
        full = frozenset(layer for layer in range(layers) if is_full(layer))
    else:
        known = {"full_attention", "sliding_attention"}
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in map(str, kinds)):
            need = f"{layers} times full_attention or sliding_attention"
            refuse("ModelConfig", "layer_types", "are not supported", kinds, need)
        full = frozenset(layer for layer, kind in enumerate(kinds) if kind == "full_attention")
    return {} if len(full) == layers else {"window": whole(hf, "sliding_window"), "full_layers": full}


def same_in_all(kinds: Iterable[str], stored: Stored) -> dict[str, Stored]:
    """Return one entry for several weights that lie in the same tensor.

    Parameters
    ----------
    kinds : iterable of str
        The weights.
    stored : Stored
        The tensor.

    Returns
    -------
    dict of str to Stored
    """
    return dict.fromkeys(kinds, stored)


def optional(hf: Mapping[str, Any], key: str, default: float | None = None) -> float | None:
    """Return a positive number of a file; an entry that is null, or absent without a default, is none.

    Parameters
    ----------
    hf : mapping
        Contents of ``config.json``.
    key : str
        Name of the entry.
    default : float, optional
        What holds where it is absent.

    Returns
    -------
    float or None
    """
    if key not in hf:
        return default
    return None if hf[key] is None else real(hf, key)
