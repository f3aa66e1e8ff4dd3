"""Activations, alone or as the gate of a second projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError

__all__ = ["ACTIVATIONS", "activate", "gate"]

Float32 = npt.NDArray[np.float32]

_SQRT_2_OVER_PI = np.float32(0.7978845608028654)
_CUBE = np.float32(0.044715)
_ONE, _TWO = np.float32(1), np.float32(2)


def _silu(x: Float32, out: Float32) -> None:
    """``x / (1 + exp(-x))``; the exponential may overflow, which gives 0."""
    with np.errstate(over="ignore"):
        np.negative(x, out=out)
        np.exp(out, out=out)
    out += _ONE
    np.divide(x, out, out=out)


# erfc(z) = t exp(q(t) - z z) with t = 1 / (1 + z / 2), z >= 0. The coefficients of q, from degree 0, are a Chebyshev
# fit of log(erfc(z) exp(z z) / t): relative error 1.6e-8.
_Q = (
    *(-1.26551212, 0.999999732, 0.375031223, 0.0824174725, -0.0734011899, -0.239549265),
    *(0.351500248, -1.25355212, 2.43074789, -2.22785362, 1.00053475, -0.180363016),
)


def _gelu(x: Float32, out: Float32) -> None:
    """``x Phi(x)`` with the normal distribution function ``Phi``, by an approximation of erfc."""
    z = np.abs(x).astype(np.float64) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.5 * z)
    power = np.full_like(t, _Q[-1])
    for coefficient in _Q[-2::-1]:
        power *= t
        power += coefficient
    tail = 0.5 * t * np.exp(power - z * z)  # Phi(-|x|)
    out[...] = x * np.where(x > 0, 1.0 - tail, tail)


def _gelu_tanh(x: Float32, out: Float32) -> None:
    """``x (1 + tanh(u)) / 2`` with ``u = sqrt(2 / pi) (x + 0.044715 x**3)``, which is ``x / (1 + exp(-2 u))``."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(x, x, out=out)
        out *= _CUBE
        out += _ONE
        out *= x
        out *= -_TWO * _SQRT_2_OVER_PI
        np.exp(out, out=out)
        out += _ONE
        np.divide(x, out, out=out)


def _relu(x: Float32, out: Float32) -> None:
    """``max(x, 0)``."""
    np.maximum(x, np.float32(0), out=out)


def _relu_squared(x: Float32, out: Float32) -> None:
    """``max(x, 0) ** 2``."""
    np.maximum(x, np.float32(0), out=out)
    out *= out


def _sigmoid(x: Float32, out: Float32) -> None:
    """``1 / (1 + exp(-x))``."""
    with np.errstate(over="ignore"):
        np.negative(x, out=out)
        np.exp(out, out=out)
    out += _ONE
    np.divide(_ONE, out, out=out)


ACTIVATIONS: Mapping[str, Callable[[Float32, Float32], None]] = MappingProxyType(
    {
        "silu": _silu,
        "gelu": _gelu,
        "gelu_tanh": _gelu_tanh,
        "relu": _relu,
        "relu_squared": _relu_squared,
        "sigmoid": _sigmoid,
    }
)
"""The activations by name; each is called with the numbers and with an array for the result."""


def _named(function: str, kind: str) -> Callable[[Float32, Float32], None]:
    if kind not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ContractError(f"{function}: kind is not an activation, got {kind!r}, need one of {known}")
    return ACTIVATIONS[kind]


def activate(x: Float32, out: Float32, *, kind: str) -> None:
    """Apply an activation to each number.

    Parameters
    ----------
    x : array (tokens, features) of float32
        Rows.
    out : array (tokens, features) of float32
        Takes the result; not `x`.
    kind : str
        A key of :data:`ACTIVATIONS`: ``silu`` is ``x / (1 + exp(-x))``, ``gelu`` is ``x Phi(x)``, ``gelu_tanh`` its
        approximation with tanh, ``relu`` is ``max(x, 0)``, ``relu_squared`` its square, ``sigmoid`` is
        ``1 / (1 + exp(-x))``.

    Raises
    ------
    ContractError
        There is no such activation.

    Notes
    -----
    Mutates: `out`. Agreement: BOUND. Safe for any finite number. Twin: ``pagedref_cuda.layers.activate``.

    References
    ----------
    D. Hendrycks and K. Gimpel, Gaussian Error Linear Units, 2016. D. So et al., Primer, 2021 (squared relu).

    Examples
    --------
    >>> x, out = np.array([[-2.0, 0.0, 3.0]], np.float32), np.empty((1, 3), np.float32)
    >>> activate(x, out, kind="relu_squared")
    >>> out.tolist()
    [[0.0, 0.0, 9.0]]
    """
    _named("activate", kind)(x, out)


def gate(x: Float32, up: Float32, out: Float32, *, kind: str) -> None:
    """Compute ``activation(x) * up``.

    Parameters
    ----------
    x, up : arrays (tokens, features) of float32
        The two projections.
    out : array (tokens, features) of float32
        Takes the result; neither `x` nor `up`.
    kind : str
        The activation, as in :func:`activate`.

    Raises
    ------
    ContractError
        There is no such activation.

    Notes
    -----
    Mutates: `out`. Agreement: BOUND. Twin: ``pagedref_cuda.layers.gate``.

    References
    ----------
    N. Shazeer, GLU Variants Improve Transformer, 2020.

    Examples
    --------
    >>> x, out = np.array([[0.0, 100.0, -200.0]], np.float32), np.empty((1, 3), np.float32)
    >>> gate(x, np.full((1, 3), 2.0, np.float32), out, kind="silu")
    >>> out.tolist()
    [[0.0, 200.0, -0.0]]
    """
    _named("gate", kind)(x, out)
    out *= up
