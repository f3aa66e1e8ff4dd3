"""What the cache of a model costs: bytes per token, bytes of a user, and how many users a pool holds.

Everything follows from a few fields of the model's configuration: how many layers store keys and values, how many
heads and numbers, whether they store one latent vector in their place (MLA), how many tokens the layers with a window
keep, and the stored form (`KVFormat`), its scales included. Layers that keep a state which does not grow with the text
(linear attention, Mamba) store no tokens and are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedref.addressing import num_pages
from pagedref.errors import ContractError
from pagedref.kv_format import KVFormat
from pagedref.memory._numbers import whole_number
from pagedref.simulate._configs import MODELS, Layers, layers_of, load_config, longest

__all__ = ["CacheCost", "cache_cost", "named_models", "parse_bytes"]

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True)
class CacheCost:
    """The price of a token.

    Attributes
    ----------
    name : str
        Of the model.
    layers : tuple of (Layers, int)
        Layers that store the same, and the bytes of a token in one of them.
    max_len : int or None
        The longest context that the model was made for.
    kv_format : str
        Stored form.
    """

    name: str
    layers: tuple[tuple[Layers, int], ...]
    max_len: int | None
    kv_format: str

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers, while it is in every window."""
        return sum(layers.number * size for layers, size in self.layers)

    def bytes_for(self, context: int, page_size: int = 1) -> int:
        """Return the most bytes of pages that a sequence holds on its way to a length.

        Parameters
        ----------
        context : int
            Tokens.
        page_size : int
            Slots in a page.

        Returns
        -------
        int
            Of a layer with a window the pages that overlap it wherever it lies.
        """
        context = whole_number("bytes_for", "context", context, low=1)
        page_size = whole_number("bytes_for", "page_size", page_size, low=1)
        total = 0
        for layers, size in self.layers:
            pages = int(num_pages(context, page_size))
            if layers.window is not None and layers.window < context:
                pages = min(pages, -(-(layers.window - 1) // page_size) + 1)
            total += layers.number * size * pages * page_size
        return total

    def users(self, pool: int, context: int, page_size: int = 1) -> int:
        """Return how many sequences of a length a pool holds at once.

        Parameters
        ----------
        pool : int
            Bytes.
        context, page_size : int
            See `bytes_for`.

        Returns
        -------
        int
        """
        return pool // self.bytes_for(context, page_size)


def named_models() -> list[str]:
    """Return the models that are known by name.

    Returns
    -------
    list of str
    """
    return list(MODELS)


def cache_cost(model: str | Path | Mapping[str, Any], kv_format: str = "float16") -> CacheCost:
    """Return what a token of a model costs.

    Parameters
    ----------
    model : str, path or mapping
        A name of `named_models`; a ``config.json`` or a folder with one; its contents; or a description such as
        ``"layers=40,heads=40,head_dim=128"``, with ``window=`` and ``max_len=`` if need be, or ``"819200"``, the
        bytes themselves.
    kv_format : str
        Stored form, a name of :data:`pagedref.kv_format.NAMES`.

    Returns
    -------
    CacheCost

    Raises
    ------
    ContractError
        The model or the format is not known, or a field is missing or wrong.

    Examples
    --------
    >>> cache_cost("opt-13b").bytes_per_token
    819200
    >>> cache_cost("deepseek-v3").bytes_per_token, cache_cost("llama-3.1-8b", "int8").bytes_per_token
    (70272, 67584)
    >>> gemma = cache_cost("gemma-3-27b")                       # 52 of 62 layers see 1,024 tokens
    >>> round(gemma.bytes_for(131072) / (gemma.bytes_per_token * 131072), 3)
    0.168
    """
    name, config = _config(model)
    if isinstance(config, int):
        layers = Layers(1, 1, 1, 1, None, False)
        return CacheCost(name, ((layers, config),), None, "given")
    found = []
    for layers in layers_of(config):
        form = KVFormat.named(kv_format, *((layers.k_dim,) if layers.latent else (layers.k_dim, layers.v_dim)))
        size = form.bytes_per_token(layers.heads, layers.k_dim)
        if layers.latent:  # the rotated key beside it is stored in the plain form of 16 bits where it is quantised
            form = form if form.granularity == "tensor" and not form.computed else KVFormat("float16")
        size += form.bytes_per_token(layers.heads, layers.v_dim)
        found.append((layers, size))
    if not found:
        raise ContractError(f"cache_cost: model stores nothing, got {name}, need a layer with attention")
    return CacheCost(name, tuple(found), longest(config), kv_format)


def _config(model: Any) -> tuple[str, dict[str, Any] | int]:
    """Return the name of a model and its configuration, or its bytes."""
    if isinstance(model, Mapping):
        return str(model.get("model_type", "model"))[:40], dict(model)
    text = str(model)
    if text.lower() in MODELS:
        return text.lower(), MODELS[text.lower()]
    if text.isdecimal() and int(text) > 0:
        return f"{text} bytes", int(text)
    if "=" in text and not Path(text).exists():
        return text, _described(text)
    if not Path(text).exists():
        names = ", ".join(MODELS)
        need = f"one of {names}; a config.json; layers=..,heads=..,head_dim=..; or bytes"
        raise ContractError(f"cache_cost: model is unknown, got {text!r:.60}, need {need}")
    path = Path(text)
    return path.resolve().parent.name if path.name == "config.json" else path.name, load_config(path)


def _described(text: str) -> dict[str, Any]:
    """Return the configuration that ``layers=40,heads=40,head_dim=128`` stands for."""
    names = {
        "layers": "num_hidden_layers", "heads": "num_key_value_heads", "head_dim": "head_dim", "v_dim": "v_head_dim",
        "window": "sliding_window", "max_len": "max_position_embeddings",
    }  # fmt: skip
    config: dict[str, Any] = {"num_attention_heads": 1}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key.strip() not in names or not value.strip().isdecimal():
            need = f"{', '.join(names)}, each with a whole number"
            raise ContractError(f"cache_cost: model is no description, got {part.strip()!r}, need {need}")
        config[names[key.strip()]] = int(value)
    return config


def parse_bytes(text: str) -> int:
    """Return a number of bytes from a text such as ``12GiB``, ``80 GB`` or ``1e9``.

    Parameters
    ----------
    text : str
        A number, and k, M, G, T (powers of ten) or Ki, Mi, Gi, Ti (of two), with or without a B.

    Returns
    -------
    int
        Whole bytes, >= 1.

    Raises
    ------
    ContractError
        It is none.

    Examples
    --------
    >>> parse_bytes("12GiB"), parse_bytes("1.5 kB"), parse_bytes("819200")
    (12884901888, 1500, 819200)
    """
    number = text.strip().lower().removesuffix("b").rstrip()
    digits = number.rstrip("kmgti ")
    try:
        count = float(digits) * UNITS[number[len(digits) :].strip()]
        if 1 <= count < 2**62:
            return int(count)
    except (ValueError, KeyError, OverflowError):
        pass
    raise ContractError(f"parse_bytes: text is no size, got {text!r:.40}, need one such as 12GiB or 80GB")
