"""Rotary frequencies of a model: the plain ones, and how a configuration stretches them.

The formulas are those of :mod:`pagedref.attention.scalings`; here is what a configuration file says about them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.attention import scalings
from pagedref.models.fields import real, reals, refuse, whole

__all__ = ["Rope", "RopeScaling"]

_LEAST, _MOST = 1e-6, 1e9


class Rope(NamedTuple):
    """Hold the rotation of one layer: frequencies (pairs,) of float64 in radians per position, and a factor on it."""

    inv_freq: npt.NDArray[np.float64]
    magnitude: float


@dataclass(frozen=True)
class RopeScaling:
    """Stretch the wavelengths of the rotary embedding beyond the length that a model was first trained for.

    Parameters
    ----------
    type : str
        ``linear`` (every frequency divided by `factor`), ``llama3`` (low frequencies divided, high ones kept, a ramp
        between them), ``yarn`` (the same idea, and a factor on queries and keys), ``dynamic`` (another base, chosen by
        the length), ``longrope`` (a divisor for each pair, one list for short and one for long texts) or ``factors``
        (a divisor for each pair, as GGUF files store them).
    factor : float
        How far the context is stretched, > 0.
    low_freq_factor, high_freq_factor : float
        ``llama3``: ends of the ramp, as ``original length / wavelength``.
    original_max_position_embeddings : int
        The length before stretching; 0 where the type needs none.
    factors, long_factors : tuple of float
        ``factors`` and ``longrope``: divisors, one for each pair, > 0; the second list for texts beyond the original
        length.
    beta_fast, beta_slow : float
        ``yarn``: turns within the original length at which the ramp begins and ends.
    truncate : bool
        ``yarn``: whether the ends of the ramp are whole pairs.
    magnitude : float, optional
        ``yarn`` and ``longrope``: factor on queries and keys; by default it follows from `factor`.

    Examples
    --------
    >>> RopeScaling("linear", factor=4.0).frequencies(10000.0, 4, 2048).inv_freq.tolist()
    [0.25, 0.0025]
    """

    type: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    magnitude: float | None = None

    @classmethod
    def from_hf(cls, rope: Mapping[str, Any], max_model_len: int) -> RopeScaling | None:
        """Read the scaling of an HF configuration; the key may be ``rope_type`` or ``type`` (P66).

        Parameters
        ----------
        rope : mapping
            ``rope_parameters`` or ``rope_scaling``.
        max_model_len : int
            ``max_position_embeddings`` of the model.

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
        kind = "longrope" if kind == "su" else kind  # the name in the first files of Phi-3
        if kind == "default":
            return None
        if kind not in _READERS:
            refuse("ModelConfig", "rope_type", "is not supported", kind, "default or " + " or ".join(_READERS))
        return _READERS[kind](rope, max_model_len)

    def frequencies(self, theta: float, rotary_dim: int, length: int) -> Rope:
        """Return the stretched frequencies; the same table serves prefill and decode (P66).

        Parameters
        ----------
        theta : float
            Plain base.
        rotary_dim : int
            Channels that are turned.
        length : int
            Longest text, for the types that depend on it: chosen once for a model, never for each call.

        Returns
        -------
        Rope
        """
        plain = plain_frequencies(theta, rotary_dim)
        original = self.original_max_position_embeddings
        if self.type == "linear":
            return Rope(scalings.linear(plain, self.factor), 1.0)
        if self.type == "llama3":
            ramp = self.low_freq_factor, self.high_freq_factor
            return Rope(scalings.llama3(plain, self.factor, *ramp, original), 1.0)
        if self.type == "dynamic":
            theta = scalings.dynamic_theta(theta, rotary_dim, self.factor, length, original)
            return Rope(plain_frequencies(theta, rotary_dim), 1.0)
        if self.type == "yarn":
            ends: dict[str, Any] = {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow, "truncate": self.truncate}
            return Rope(*scalings.yarn(plain, self.factor, original, theta, magnitude=self.magnitude, **ends))
        if self.type == "longrope":
            chosen = self.long_factors if length > original else self.factors
            reach = self.factor * original
            return Rope(*scalings.longrope(plain, chosen, reach, original, magnitude=self.magnitude))
        return Rope(plain / np.asarray(self.factors, np.float64), 1.0)

    def check(self, theta: float, rotary_dim: int) -> None:
        """Refuse lists that do not fit the pairs of a model, and types that its base or width does not allow.

        Parameters
        ----------
        theta : float
            Plain base.
        rotary_dim : int
            Channels that are turned.

        Raises
        ------
        ContractError
            One line.
        """
        lists = {"factors": self.factors} if self.type == "factors" else {}
        if self.type == "longrope":
            lists = {"short_factor": self.factors, "long_factor": self.long_factors}
        for name, factors in lists.items():
            if len(factors) != rotary_dim // 2:
                refuse("ModelConfig", f"rope {name}", "has the wrong length", len(factors), str(rotary_dim // 2))
            if not all(0 < factor < math.inf for factor in factors):
                refuse("ModelConfig", f"rope {name}", "is not all positive", factors, "> 0 and finite")
        if self.type == "dynamic" and rotary_dim <= 2:
            refuse("ModelConfig", "rope_type", "does not fit one pair", self.type, "more than 2 rotated channels")
        if self.type == "yarn" and theta <= 1:
            refuse("ModelConfig", "rope_theta", "is too small for yarn", theta, "> 1")


def plain_frequencies(theta: float, rotary_dim: int) -> npt.NDArray[np.float64]:
    """Return ``theta ** (-2 i / rotary_dim)`` for each pair i."""
    return np.asarray(theta ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim))


def _number(rope: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Return a factor of a scaling, which must be of a size that makes sense."""
    value = real(rope, key, default)
    if not _LEAST <= value <= _MOST:
        refuse("ModelConfig", key, "is out of range", value, f"{_LEAST:g} .. {_MOST:g}")
    return value


def _read_linear(rope: Mapping[str, Any], max_model_len: int) -> RopeScaling:
    return RopeScaling("linear", factor=_number(rope, "factor"))


def _read_llama3(rope: Mapping[str, Any], max_model_len: int) -> RopeScaling:
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    if low >= high:
        refuse("ModelConfig", "high_freq_factor", "is not above low_freq_factor", high, f"> {low:g}")
    return RopeScaling("llama3", _number(rope, "factor"), low, high, whole(rope, "original_max_position_embeddings"))


def _read_dynamic(rope: Mapping[str, Any], max_model_len: int) -> RopeScaling:
    factor = _number(rope, "factor")
    if factor < 1:
        refuse("ModelConfig", "factor", "is below 1", factor, ">= 1")
    return RopeScaling("dynamic", factor, original_max_position_embeddings=max_model_len)


def _read_yarn(rope: Mapping[str, Any], max_model_len: int) -> RopeScaling:
    original = whole(rope, "original_max_position_embeddings", max_model_len)
    factor = _number(rope, "factor", max_model_len / original)
    fast, slow = _number(rope, "beta_fast", 32.0), _number(rope, "beta_slow", 1.0)
    magnitude = None if rope.get("attention_factor") is None else _number(rope, "attention_factor")
    if magnitude is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        top, bottom = (yarn_magnitude(factor, _number(rope, key)) for key in ("mscale", "mscale_all_dim"))
        magnitude = top / bottom
    return RopeScaling(
        "yarn", factor, original_max_position_embeddings=original, beta_fast=fast, beta_slow=slow,
        truncate=bool(rope.get("truncate", True)), magnitude=magnitude,
    )  # fmt: skip


def _read_longrope(rope: Mapping[str, Any], max_model_len: int) -> RopeScaling:
    original = whole(rope, "original_max_position_embeddings", max_model_len)
    if original < 2:
        refuse("ModelConfig", "original_max_position_embeddings", "is too small", original, ">= 2")
    return RopeScaling(
        "longrope",
        _number(rope, "factor", max_model_len / original),
        original_max_position_embeddings=original,
        factors=reals(rope, "short_factor"),
        long_factors=reals(rope, "long_factor"),
        magnitude=None if rope.get("attention_factor") is None else _number(rope, "attention_factor"),
    )


_READERS = {
    "linear": _read_linear,
    "llama3": _read_llama3,
    "dynamic": _read_dynamic,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
}


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's ``0.1 weight ln(factor) + 1``, 1 where nothing is stretched."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
