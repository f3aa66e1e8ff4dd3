"""What a model is, in numbers and names: geometry, norms, positions, attention, feed-forward network, stop tokens.

:class:`ModelConfig` is the one description that the rest of the package reads, whichever file it came from. Its fields
are the choices that families of models made differently; left alone, they describe a Llama. How a family's files are
read stands in :mod:`pagedref.models.families`; a setting that the transformer cannot honour is refused there, by name,
before a single weight is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.layers.activation import ACTIVATIONS
from pagedref.models._special import Experts, Latent
from pagedref.models.fields import count, refuse, whole
from pagedref.models.rope import Rope, RopeScaling, plain_frequencies

__all__ = ["NORMS", "Experts", "Latent", "ModelConfig"]

NORMS = ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm")
"""Where a layer can have a norm: before and behind the attention, before and behind the feed-forward network."""


@dataclass(frozen=True)
class ModelConfig:
    """Describe one decoder-only transformer.

    Parameters
    ----------
    architecture : str
        Family, a key of :data:`pagedref.models.families.FAMILIES`.
    vocab_size, hidden_size, intermediate_size, num_layers : int
        Sizes, >= 1.
    num_qo_heads, num_kv_heads : int
        Heads of queries and of keys and values; the first is a multiple of the second.
    head_dim : int
        Numbers in one head; ``num_qo_heads * head_dim`` need not be `hidden_size` (P69).
    norm_eps : float
        Added to the mean square, or to the variance, in each norm.
    rope_theta : float
        Base of the rotary wavelengths, > 0.
    max_model_len : int
        Positions that the model was made for.
    rope_scaling : RopeScaling, optional
        ``None`` for plain rotary embedding.
    tie_embeddings : bool
        Whether the output projection is the embedding.
    biases : frozenset of str
        Linear weights that have a bias, by our names (``q``, ``o``, ``up``, ...), and ``norm`` if norms have one.
    window : int, optional
        Sliding window (S5): keys ``p - window + 1 .. p``, HF's ``sliding_window``.
    bos_token_id : int, optional
        First token of a text.
    eos_token_ids : frozenset of int
        Every token that ends a text: the union of all sources (P65).
    dtype : str
        Number format of the weights in the file.
    full_layers : frozenset of int
        Layers that see everything although there is a `window`.
    rotary_dim : int, optional
        Channels of a head that are turned, even; ``None`` for all, 0 for none (P67).
    unrotated_layers : frozenset of int
        Layers whose queries and keys are not turned.
    local_rope_theta : float, optional
        Another base, without scaling, in the layers with a window.
    learned_positions : int, optional
        A row for each position is added to the embedding; this many rows stand before that of position 0.
    alibi : float, optional
        Scores fall with the distance (S6); the largest exponent of the slopes, 8 as published.
    norm : str
        ``rms`` or ``layer``.
    norm_offset : float
        Added to every norm weight: 1 where files store the difference from 1.
    norms : tuple of str
        Which of :data:`NORMS` a layer has.
    parallel : bool
        Whether attention and feed-forward network both start from the layer's input. Without ``mlp_norm`` they share
        one norm.
    embed_norm : bool
        Whether a norm follows the embedding.
    embed_scale : float
        Factor on the embedding.
    qk_norm : str, optional
        RMS norm of queries and keys: of each ``head``, or over the whole ``width``.
    sm_scale : float, optional
        Factor on scores; by default ``1 / sqrt(head_dim)``.
    softcap, logit_softcap : float, optional
        ``cap * tanh(x / cap)`` on scores (S2) and on logits.
    sinks : bool
        Whether each head has a sink (S11).
    latent : Latent, optional
        Attention through latents instead of keys and values.
    gated : bool
        Whether the feed-forward network has a gate.
    activation : str
        A key of :data:`pagedref.layers.activation.ACTIVATIONS`.
    experts : Experts, optional
        Experts instead of one network.

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
    norm_eps: float
    rope_theta: float
    max_model_len: int
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    biases: frozenset[str] = frozenset()
    window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)
    dtype: str = "float32"
    full_layers: frozenset[int] = frozenset()
    rotary_dim: int | None = None
    unrotated_layers: frozenset[int] = frozenset()
    local_rope_theta: float | None = None
    learned_positions: int | None = None
    alibi: float | None = None
    norm: str = "rms"
    norm_offset: float = 0.0
    norms: tuple[str, ...] = ("attn_norm", "mlp_norm")
    parallel: bool = False
    embed_norm: bool = False
    embed_scale: float = 1.0
    qk_norm: str | None = None
    sm_scale: float | None = None
    softcap: float | None = None
    logit_softcap: float | None = None
    sinks: bool = False
    latent: Latent | None = None
    gated: bool = True
    activation: str = "silu"
    experts: Experts | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_qo_heads", "num_kv_heads"):
            whole({name: getattr(self, name)}, name)
        if self.num_qo_heads % self.num_kv_heads:
            need = f"a multiple of {self.num_kv_heads}"
            refuse("ModelConfig", "num_qo_heads", "does not divide", self.num_qo_heads, need)
        whole({"head_dim": self.head_dim}, "head_dim")
        turned = self.turned
        if turned % 2 or not 0 <= turned <= self.head_dim:
            name = "head_dim" if self.rotary_dim is None else "rotary_dim"
            refuse("ModelConfig", name, "cannot be turned in pairs", turned, f"an even number up to {self.head_dim}")
        for name in ("rope_theta", "local_rope_theta"):
            theta = getattr(self, name)
            if theta is not None and not 1e-9 <= theta <= 1e30:
                refuse("ModelConfig", name, "is out of range", theta, "1e-9 .. 1e30")
        if self.rope_scaling is not None:
            self.rope_scaling.check(self.rope_theta, turned)
        for name, value, allowed in (
            ("norm", self.norm, ("rms", "layer")),
            ("qk_norm", self.qk_norm, (None, "head", "width")),
            ("activation", self.activation, tuple(ACTIVATIONS)),
        ):
            if value not in allowed:
                refuse("ModelConfig", name, "is unknown", value, " or ".join(map(str, allowed)))
        if not set(self.norms) <= set(NORMS):
            refuse("ModelConfig", "norms", "are unknown", self.norms, " or ".join(NORMS))

    @property
    def turned(self) -> int:
        """Channels of a head that rotary embedding turns, 0 for none."""
        if self.rotary_dim is not None:
            return self.rotary_dim
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def qkv_bias(self) -> bool:
        """Whether q, k and v have a bias."""
        return {"q", "k", "v"} <= self.biases

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Sliding window of each layer, ``None`` where it sees everything."""
        return tuple(None if layer in self.full_layers else self.window for layer in range(self.num_layers))

    def rope_kind(self, layer: int) -> str | None:
        """Return which of the rotations of the model a layer has.

        Parameters
        ----------
        layer : int
            ``0 .. num_layers - 1``.

        Returns
        -------
        str or None
            ``local`` where a window has a base of its own, else ``global``; ``None`` where nothing is turned.
        """
        if not self.turned or layer in self.unrotated_layers:
            return None
        near = self.local_rope_theta is not None and self.window is not None and layer not in self.full_layers
        return "local" if near else "global"

    def rope(self, layer: int) -> Rope | None:
        """Return the rotation of a layer, ``None`` where nothing is turned.

        Parameters
        ----------
        layer : int
            ``0 .. num_layers - 1``.

        Returns
        -------
        Rope or None
        """
        kind = self.rope_kind(layer)
        if kind is None:
            return None
        if kind == "local" and self.local_rope_theta is not None:
            return Rope(plain_frequencies(self.local_rope_theta, self.turned), 1.0)
        if self.rope_scaling is None:
            return Rope(plain_frequencies(self.rope_theta, self.turned), 1.0)
        return self.rope_scaling.frequencies(self.rope_theta, self.turned, self.max_model_len)

    @property
    def inv_freq(self) -> npt.NDArray[np.float64]:
        """Rotary frequencies of the layers that see everything, float64 (pairs,), scaling included (P66)."""
        whole_view = replace(self, window=None, unrotated_layers=frozenset())
        rope = whole_view.rope(0)
        return np.empty(0) if rope is None else rope.inv_freq

    @property
    def features(self) -> frozenset[str]:
        """Everything in which the model differs from a plain Llama, one word each: what a runner must be able to do."""
        turned = self.turned
        words = {
            "biases": bool(self.biases - {"norm"}),
            "window": self.window is not None,
            "layer windows": self.window is not None and bool(self.full_layers),
            "layer_norm": self.norm == "layer",
            "norm_offset": self.norm_offset != 0,
            "norms": set(self.norms) != {"attn_norm", "mlp_norm"},
            "parallel": self.parallel,
            "plain mlp": not self.gated,
            "activation": self.activation != "silu",
            "experts": self.experts is not None,
            "latent": self.latent is not None,
            "qk_norm": self.qk_norm is not None,
            "sm_scale": self.sm_scale is not None,
            "softcap": self.softcap is not None,
            "logit_softcap": self.logit_softcap is not None,
            "alibi": self.alibi is not None,
            "sinks": self.sinks,
            "embed_scale": self.embed_scale != 1,
            "embed_norm": self.embed_norm,
            "learned positions": self.learned_positions is not None,
            "no rotary": not turned,
            "partial rotary": 0 < turned < self.head_dim,
            "unrotated layers": bool(self.unrotated_layers),
            "local rotary": self.local_rope_theta is not None,
            "rotary magnitude": any(rope.magnitude != 1 for rope in [self.rope(0)] if rope is not None),
        }
        return frozenset(word for word, there in words.items() if there)

    def with_eos(self, more: Iterable[int]) -> ModelConfig:
        """Return the same model with more tokens that end a text (P65: never fewer)."""
        return replace(self, eos_token_ids=self.eos_token_ids | frozenset(more))

    def for_length(self, max_model_len: int) -> ModelConfig:
        """Return the same model, made for texts up to another length.

        Parameters
        ----------
        max_model_len : int
            Positions, >= 1. The scalings ``dynamic`` and ``longrope`` choose their frequencies by it, once for all
            texts: keys that were turned with others would not fit.

        Returns
        -------
        ModelConfig

        Raises
        ------
        ContractError
            It is no positive integer, or the model has learned positions, which are as many as they are.
        """
        length = count("for_length", "max_model_len", max_model_len)
        if self.learned_positions is not None and length != self.max_model_len:
            refuse("for_length", "max_model_len", "differs from the learned positions", length, str(self.max_model_len))
        return replace(self, max_model_len=length)

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
        from pagedref.models.families import config_from_hf

        return config_from_hf(config)
