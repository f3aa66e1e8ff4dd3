"""The layers in float64, as their formulas are written: slow, and the measure of the fast ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Linear", "activate", "gate", "layer_norm", "rms_norm", "rotary_tables", "rotate"]

Array = npt.NDArray[np.float64]


class Linear:
    """Multiply rows by a matrix; the face of :class:`pagedref.layers.linear.Linear`."""

    def __init__(self, weights: Sequence[Array], biases: Sequence[Array] = ()) -> None:
        self.panels = np.concatenate(weights).astype(np.float64)  # (out_features, in_features)
        self.bias = np.concatenate(biases).astype(np.float64) if biases else None
        self.out_features, self.in_features = self.panels.shape
        self.padded_features = self.out_features

    def __call__(self, x: Array, out: Array, tokens: int, crew: Any = None) -> Array:
        """Return the products of the first `tokens` rows."""
        self.part(x, out, tokens, 0, 1)
        return out[:tokens, : self.out_features]

    def columns(self, part: int, parts: int) -> slice:
        """Return the outputs of one part of several."""
        return slice(self.out_features * part // parts, self.out_features * (part + 1) // parts)

    def part(self, x: Array, out: Array, tokens: int, part: int, parts: int) -> None:
        """Compute some of the outputs."""
        columns = self.columns(part, parts)
        out[:tokens, columns] = x[:tokens] @ self.panels[columns].T
        if self.bias is not None:
            out[:tokens, columns] += self.bias[columns]

    def rows_of(self, outputs: npt.NDArray[np.int64]) -> Array:
        """Return rows of the matrix."""
        return self.panels[outputs]


def rms_norm(x: Array, weight: Array, eps: float, out: Array, *, offset: float = 0.0) -> None:
    """Divide each row by its root mean square; multiply by the weight.

    Parameters
    ----------
    x, weight, eps, out, offset
        As in :func:`pagedref.layers.norm.rms_norm`, in float64.
    """
    out[...] = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * (weight + offset)


def layer_norm(x: Array, weight: Array, bias: Array | None, eps: float, out: Array) -> None:
    """Take the mean off each row, divide by the standard deviation; multiply by the weight and add the bias.

    Parameters
    ----------
    x, weight, bias, eps, out
        As in :func:`pagedref.layers.norm.layer_norm`, in float64.
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    out[...] = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps) * weight
    if bias is not None:
        out += bias


_erf = np.vectorize(math.erf, otypes=[np.float64])


def activate(x: Array, out: Array, *, kind: str) -> None:
    """Apply an activation by its formula.

    Parameters
    ----------
    x, out, kind
        As in :func:`pagedref.layers.activation.activate`, in float64.
    """
    with np.errstate(over="ignore"):
        if kind == "gelu":
            out[...] = x * (1 + _erf(x / math.sqrt(2))) / 2
        elif kind == "gelu_tanh":
            out[...] = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        elif kind == "sigmoid":
            out[...] = 1 / (1 + np.exp(-x))
        elif kind == "silu":
            out[...] = x / (1 + np.exp(-x))
        else:  # relu, relu_squared
            out[...] = np.maximum(x, 0) ** (2 if kind == "relu_squared" else 1)


def gate(x: Array, up: Array, out: Array, *, kind: str) -> None:
    """Compute ``activation(x) * up``.

    Parameters
    ----------
    x, up, out, kind
        As in :func:`pagedref.layers.activation.gate`, in float64.
    """
    activate(x, out, kind=kind)
    out *= up


def rotary_tables(inv_freq: Array, positions: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Return cosine and sine of the angle of each position and pair.

    Parameters
    ----------
    inv_freq, positions
        As in :func:`pagedref.layers.turn.rotary_tables`, in float64.

    Returns
    -------
    cos, sin : arrays (tokens, 1, pairs)
    """
    angles = positions[:, None, None] * inv_freq
    return np.cos(angles), np.sin(angles)


def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> None:
    """Turn the pairs of each head, as complex numbers.

    Parameters
    ----------
    x, cos, sin, interleaved
        As in :func:`pagedref.layers.turn.rotate`, in float64.
    """
    pairs = cos.shape[-1]
    first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    if interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    turned = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)
    x[..., first], x[..., second] = turned.real, turned.imag
