"""What a model is, in numbers: geometry, norm, rotary embedding, window, stop tokens.

:class:`ModelConfig` is the one description that the rest of the package reads, whichever file it came from. A family
of models is one entry of :data:`FAMILIES`; a setting that the transformer cannot honour is refused here, by name,
before a single weight is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.models.fields import real, refuse, token_ids, whole

__all__ = ["FAMILIES", "Family", "ModelConfig", "RopeScaling"]


@dataclass(frozen=True)
class Family:
    """Say what sets one family of models apart.

    Parameters
    ----------
    architectures : tuple of str
        Names of the family in the ``architectures`` entry of an HF ``config.json``.
    qkv_bias : bool
        Whether q, k and v always carry a bias, although no setting says so (P69).
    windowed : bool
        Whether ``sliding_window`` of the configuration has a meaning for this family.
    window_switch : bool
        Whether the window counts only where ``use_sliding_window`` is true.
    """

    architectures: tuple[str, ...]
    qkv_bias: bool = False
    windowed: bool = False
    window_switch: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(("LlamaForCausalLM",)),
    "mistral": Family(("MistralForCausalLM",), windowed=True),
    "qwen2": Family(("Qwen2ForCausalLM",), qkv_bias=True, windowed=True, window_switch=True),
}
"""The families that load, by the ``model_type`` of their HF configuration."""


@dataclass(frozen=True)
class RopeScaling:
    """Stretch the wavelengths of the rotary embedding beyond the length that a model was first trained for.

    Parameters
    ----------
    type : str
        ``"linear"`` (every frequency divided by `factor`), ``"llama3"`` (low frequencies divided, high ones kept, a
        ramp between them) or ``"factors"`` (every frequency divided by its own entry of `factors`, as GGUF files
        store them).
    factor : float
        How far the context is stretched, > 0.
    low_freq_factor, high_freq_factor : float
        ``llama3`` only: ends of the ramp, as ``original length / wavelength``.
    original_max_position_embeddings : int
        ``llama3`` only: the length before stretching.
    factors : tuple of float
        ``factors`` only: divisors, one for each pair, > 0.

    Examples
    --------
    >>> RopeScaling("linear", factor=4.0).scale(np.array([1.0, 0.5])).tolist()
    [0.25, 0.125]
    """

    type: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    factors: tuple[float, ...] = ()

    @classmethod
    def from_hf(cls, rope: Mapping[str, Any]) -> RopeScaling | None:
        """Read the scaling of an HF configuration; the key may be ``rope_type`` or ``type`` (P66).

        Returns
        -------
        RopeScaling or None
            ``None`` for the type ``default``.

        Raises
        ------
        ContractError
            If the type is unknown or a factor is missing or out of range.
        """
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return None
        if kind == "linear":
            return cls("linear", factor=real(rope, "factor"))
        if kind != "llama3":
            refuse("ModelConfig", "rope_type", "is not supported", kind, "default, linear or llama3")
        low, high = real(rope, "low_freq_factor"), real(rope, "high_freq_factor")
        if low >= high:
            refuse("ModelConfig", "high_freq_factor", "is not above low_freq_factor", high, f"> {low:g}")
        length = whole(rope, "original_max_position_embeddings")
        return cls("llama3", real(rope, "factor"), low, high, length)

    def scale(self, inv_freq: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the stretched frequencies.

        Parameters
        ----------
        inv_freq : array of float64, (head_dim / 2,)
            Frequencies in radians per position, before scaling.

        Returns
        -------
        array of float64, (head_dim / 2,)
            The same table must serve prefill and decode (P66).
        """
        if self.type == "factors":
            return inv_freq / np.asarray(self.factors, dtype=np.float64)
        if self.type == "linear":
            return inv_freq / self.factor
        turns = self.original_max_position_embeddings * inv_freq / (2 * math.pi)  # (head_dim / 2,)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = np.clip(ramp, 0.0, 1.0)  # 1: frequency kept, 0: divided by factor
        return inv_freq * (keep + (1 - keep) / self.factor)


@dataclass(frozen=True)
class ModelConfig:
    """Describe one decoder-only transformer.

    Parameters
    ----------
    architecture : str
        Family, a key of :data:`FAMILIES`.
    vocab_size, hidden_size, intermediate_size, num_layers : int
        Sizes, >= 1.
    num_qo_heads, num_kv_heads : int
        Heads of queries and of keys and values; the first is a multiple of the second.
    head_dim : int
        Numbers in one head, even; ``num_qo_heads * head_dim`` need not be `hidden_size` (P69).
    rms_norm_eps : float
        Added to the mean square in each norm.
    rope_theta : float
        Base of the rotary wavelengths, > 0.
    rope_scaling : RopeScaling, optional
        ``None`` for plain rotary embedding.
    max_model_len : int
        Positions that the model was made for.
    tie_embeddings : bool
        Whether the output projection is the embedding.
    qkv_bias : bool
        Whether q, k and v have a bias (the output projection has none).
    window : int, optional
        Sliding window of every layer (S5): keys ``p - window + 1 .. p``, HF's ``sliding_window``.
    bos_token_id : int, optional
        First token of a text.
    eos_token_ids : frozenset of int
        Every token that ends a text: the union of all sources (P65).
    dtype : str
        Number format of the weights in the file; in memory they are float32.

    Raises
    ------
    ContractError
        If a size is out of range or the heads do not divide.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_model_len: int
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.architecture not in FAMILIES:
            refuse("ModelConfig", "architecture", "is not supported", self.architecture, " or ".join(FAMILIES))
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_qo_heads", "num_kv_heads"):
            whole({name: getattr(self, name)}, name)
        if self.num_qo_heads % self.num_kv_heads:
            refuse(
                "ModelConfig",
                "num_qo_heads",
                "does not divide",
                self.num_qo_heads,
                f"a multiple of {self.num_kv_heads}",
            )
        if whole({"head_dim": self.head_dim}, "head_dim") % 2:
            refuse("ModelConfig", "head_dim", "is odd", self.head_dim, "an even number: rotary embedding turns pairs")
        factors = () if self.rope_scaling is None else self.rope_scaling.factors
        if len(factors) not in (0, self.head_dim // 2):
            refuse("ModelConfig", "rope factors", "have the wrong length", len(factors), str(self.head_dim // 2))
        if not all(0 < factor < math.inf for factor in factors):
            refuse("ModelConfig", "rope factors", "are not all positive", factors, "> 0 and finite")

    @property
    def inv_freq(self) -> npt.NDArray[np.float64]:
        """Rotary frequencies in radians per position, float64 (head_dim / 2,), scaling included (P66)."""
        pairs = np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim  # (head_dim / 2,)
        plain = self.rope_theta**-pairs
        return plain if self.rope_scaling is None else self.rope_scaling.scale(plain)

    def with_eos(self, more: Iterable[int]) -> ModelConfig:
        """Return the same model with more tokens that end a text (P65: never fewer)."""
        return replace(self, eos_token_ids=self.eos_token_ids | frozenset(more))

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read the contents of an HF ``config.json``, in the present or in the older key style.

        Parameters
        ----------
        config : mapping
            ``rope_parameters`` and ``dtype``, or ``rope_theta``, ``rope_scaling`` and ``torch_dtype``.

        Returns
        -------
        ModelConfig

        Raises
        ------
        ContractError
            One line: an unknown architecture, a missing or impossible size, a setting that is not supported.

        Examples
        --------
        >>> small = {"model_type": "qwen2", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 6,
        ...          "num_hidden_layers": 1, "num_attention_heads": 2, "eos_token_id": [3, 4]}
        >>> config = ModelConfig.from_hf(small)
        >>> config.head_dim, config.num_kv_heads, config.qkv_bias, sorted(config.eos_token_ids)
        (4, 2, True, [3, 4])
        """
        family = _family(config)
        for key in ("attention_bias", "mlp_bias"):
            if config.get(key) and not (key == "attention_bias" and FAMILIES[family].qkv_bias):
                refuse("ModelConfig", key, f"is not supported for {family}", config[key], "false")
        if config.get("hidden_act", "silu") not in ("silu", "swish"):
            refuse("ModelConfig", "hidden_act", "is not supported", config["hidden_act"], "silu")
        heads, hidden = whole(config, "num_attention_heads"), whole(config, "hidden_size")
        if config.get("head_dim") is None and hidden % heads:
            refuse("ModelConfig", "hidden_size", "does not divide", hidden, f"a multiple of {heads} heads, or head_dim")
        rope = _rope_entries(config)
        layers = whole(config, "num_hidden_layers")
        return cls(
            architecture=family,
            vocab_size=whole(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=whole(config, "intermediate_size"),
            num_layers=layers,
            num_qo_heads=heads,
            num_kv_heads=whole(config, "num_key_value_heads", heads),
            head_dim=whole(config, "head_dim", hidden // heads),
            rms_norm_eps=real(config, "rms_norm_eps", 1e-6),
            rope_theta=real(rope, "rope_theta", 10000.0),
            max_model_len=whole(config, "max_position_embeddings", 2048),
            rope_scaling=RopeScaling.from_hf(rope),
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=FAMILIES[family].qkv_bias,
            window=_window(config, FAMILIES[family], layers),
            bos_token_id=min(token_ids(config.get("bos_token_id")), default=None),
            eos_token_ids=token_ids(config.get("eos_token_id")),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")[:32],
        )


def _family(config: Mapping[str, Any]) -> str:
    """Return the family of a configuration, by ``architectures`` if that is there, else by ``model_type``."""
    named = config.get("architectures")
    known = [name for family in FAMILIES.values() for name in family.architectures]
    if isinstance(named, list) and named:
        for family, entry in FAMILIES.items():
            if named[0] in entry.architectures:
                return family
        refuse("ModelConfig", "architectures", "is not supported", named[0], " or ".join(known))
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        refuse("ModelConfig", "model_type", "is not supported", kind, " or ".join(FAMILIES))
    return str(kind)


def _rope_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return base and scaling of the rotary embedding as one flat mapping, whichever style the file has."""
    rope: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    for style in ("rope_scaling", "rope_parameters"):
        entries = config.get(style)
        if entries is None:
            continue
        if not isinstance(entries, Mapping) or any(isinstance(value, Mapping) for value in entries.values()):
            refuse("ModelConfig", style, "is not one flat mapping", entries, "the same rotary embedding in every layer")
        rope.update(entries)
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        refuse("ModelConfig", "partial_rotary_factor", "is not supported", partial, "1")
    return rope


def _window(config: Mapping[str, Any], family: Family, layers: int) -> int | None:
    """Return the sliding window of a configuration; layers that differ are refused."""
    switch = config.get("use_sliding_window", not family.window_switch)
    if not family.windowed or not switch or config.get("sliding_window") is None:
        return None
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        distinct = {str(kind) for kind in kinds}
    else:  # the first layers attend to everything where the family has a switch
        full = 0
        if family.window_switch and config.get("max_window_layers") != 0:
            full = whole(config, "max_window_layers", 28)
        distinct = {"full_attention"} if full else set()
        distinct |= {"sliding_attention"} if full < layers else set()
    if distinct == {"full_attention"}:
        return None
    if distinct != {"sliding_attention"}:
        refuse("ModelConfig", "layer_types", "differ", sorted(distinct), "one kind of attention in all layers")
    return whole(config, "sliding_window")
