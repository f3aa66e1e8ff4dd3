"""Turning weights into parts: each is dropped as soon as its copy is laid out, so that a model exists once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.layers.activation import activate, gate
from pagedref.layers.linear import Linear
from pagedref.layers.norm import layer_norm, rms_norm
from pagedref.layers.turn import rotary_tables, rotate
from pagedref.models.config import ModelConfig
from pagedref.models.parts import _exact

__all__ = ["ARITHMETIC", "Arithmetic", "Build", "Norm"]

Array = npt.NDArray[Any]
Norm = Callable[[Array, Array], None]
"""``norm(x, out)``: rows, and where the result goes."""


class Arithmetic(NamedTuple):
    """The layers that a model computes with, and the type of its numbers."""

    dtype: Any
    linear: Any
    rms_norm: Callable[..., None]
    layer_norm: Callable[..., None]
    activate: Callable[..., None]
    gate: Callable[..., None]
    rotary_tables: Callable[..., tuple[Array, Array]]
    rotate: Callable[..., None]


ARITHMETIC: Mapping[str, Arithmetic] = {
    "float32": Arithmetic(
        np.float32, Linear, rms_norm, layer_norm, activate, gate, rotary_tables, rotate
    ),
    "float64": Arithmetic(
        np.float64, _exact.Linear, _exact.rms_norm, _exact.layer_norm, _exact.activate, _exact.gate,
        _exact.rotary_tables, _exact.rotate,
    ),
}  # fmt: skip
"""The fast layers, and the exact ones that they are measured against."""


class Build:
    """Take weights out of a dictionary and make parts of them.

    Parameters
    ----------
    config : ModelConfig
        Geometry.
    weights : dict of str to array
        By the names of :mod:`pagedref.models.weights`; becomes empty.
    arithmetic : Arithmetic
        What the parts compute with.

    Attributes
    ----------
    num_bytes : int
        Bytes of everything taken so far.
    """

    def __init__(self, config: ModelConfig, weights: dict[str, Array], arithmetic: Arithmetic) -> None:
        self.config, self.arithmetic = config, arithmetic
        self._weights = weights
        self.num_bytes = 0

    def array(self, name: str) -> Array:
        """Return a weight in the type of the model."""
        weight = self._weights.pop(name).astype(self.arithmetic.dtype, copy=False)
        self.num_bytes += weight.nbytes
        return weight

    def linear(self, prefix: str, *kinds: str) -> Any:
        """Return one product for several weights that stand side by side, with their biases."""
        return self.linear_of(prefix, kinds, lambda weight: weight)

    def linear_of(self, prefix: str, kinds: tuple[str, ...], part: Callable[[Array], Array]) -> Any:
        """Return the product for a part of each weight and bias, such as one expert of a stack."""
        weights = [part(self._weights[prefix + kind]) for kind in kinds]
        biases = [self._weights.get(f"{prefix}{kind}_bias") for kind in kinds]
        given = [
            np.zeros(len(weight), np.float32) if bias is None else part(bias)
            for weight, bias in zip(weights, biases, strict=True)
        ]
        made = self.arithmetic.linear(weights, given if any(bias is not None for bias in biases) else ())
        self.num_bytes += made.panels.nbytes
        return made

    def drop(self, prefix: str, *kinds: str) -> None:
        """Forget weights that have been laid out."""
        for kind in kinds:
            self._weights.pop(prefix + kind)
            self._weights.pop(f"{prefix}{kind}_bias", None)

    def norm(self, name: str, *, eps: float | None = None, kind: str | None = None) -> Norm:
        """Return a norm; its kind and what it adds to the square are those of the model unless given."""
        config, arithmetic = self.config, self.arithmetic
        eps = config.norm_eps if eps is None else eps
        weight = self.array(name)
        if (kind or config.norm) == "rms":
            weight = weight + arithmetic.dtype(config.norm_offset) if config.norm_offset else weight
            return lambda x, out: arithmetic.rms_norm(x, weight, eps, out)
        bias = self.array(f"{name}_bias") if f"{name}_bias" in self._weights else None
        return lambda x, out: arithmetic.layer_norm(x, weight, bias, eps, out)
