"""Activations and gates on the device: the twins of :mod:`pagedref.layers.activation`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref import validate
from pagedref_cuda import _runtime
from pagedref_cuda._runtime import device_function, kernel
from pagedref_cuda.layers._checks import checked

__all__ = ["KINDS", "activate", "activation", "gate", "launch_gate"]

Array = npt.NDArray[Any]

SILU, GELU, GELU_TANH, RELU, RELU_SQUARED, SIGMOID = range(6)
KINDS = {
    "silu": SILU,
    "gelu": GELU,
    "gelu_tanh": GELU_TANH,
    "relu": RELU,
    "relu_squared": RELU_SQUARED,
    "sigmoid": SIGMOID,
}
"""How kernels number the activations."""

_ZERO, _HALF, _ONE, _TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)
_SQRT_HALF = np.float32(0.7071067811865476)
_TWICE_SQRT_2_OVER_PI = np.float32(2 * 0.7978845608028654)
_CUBE = np.float32(0.044715)
_HIGHEST = np.float32(88.7)  # exp is finite up to here


@device_function
def _share(x: np.float32) -> np.float32:
    """Return ``1 + exp(-x)``, finite for every x."""
    return _ONE + np.float32(math.exp(min(-x, _HIGHEST)))


@device_function
def activation(kind: int, x: np.float32) -> np.float32:
    """Return the activation of one number."""
    if kind == SILU:
        return x / _share(x)
    if kind == GELU:
        return _HALF * x * np.float32(math.erfc(-x * _SQRT_HALF))
    if kind == GELU_TANH:
        return x / _share(_TWICE_SQRT_2_OVER_PI * (x * (_ONE + _CUBE * x * x)))
    if kind == SIGMOID:
        return _ONE / _share(x)
    positive = max(x, _ZERO)
    return positive * positive if kind == RELU_SQUARED else positive


@kernel(("float32[:, :]", "float32[:, :]", "int64", "float32[:, :]"))
def gate_1(x: Array, up: Array, kind: int, out: Array) -> None:
    """Activate each number, and multiply it by `up` unless that is empty.

    Launch: a thread owns one number. Reads: its number of `x` and `up`. Writes: its number of `out`. Barriers: none.
    Rung: 1; every number is read and written once, neighbouring threads have neighbouring numbers, and there is
    nothing to gain above it but to do without it.
    """
    item = cuda.grid(1)
    features = out.shape[1]
    if item >= out.shape[0] * features:
        return
    row = item // features
    column = item % features
    number = activation(kind, x[row, column])
    if up.shape[0] > 0:
        number *= up[row, column]
    out[row, column] = number


def launch_gate(x: Any, up: Any, kind: str, out: Any) -> None:
    """Activate rows that lie on the device, and multiply them by others.

    Parameters
    ----------
    x, up, out : arrays (tokens, features) of float32
        As in :func:`gate`, on the device; an `up` without rows multiplies nothing.
    kind : str
        A key of :data:`KINDS`.
    """
    gate_1.launch(out.shape[0] * out.shape[1], x, up, KINDS[kind], out)


def _named(function: str, kind: str) -> None:
    if kind not in KINDS:
        validate.fail(function, "kind", "is not an activation", repr(kind), f"one of {', '.join(KINDS)}")


def activate(x: Array, out: Array, *, kind: str) -> None:
    """Apply an activation to each number.

    Parameters
    ----------
    x : array (tokens, features) of float32
        Rows.
    out : array (tokens, features) of float32
        Takes the result.
    kind : str
        A key of :data:`pagedref.layers.activation.ACTIVATIONS`.

    Raises
    ------
    ContractError
        There is no such activation, or shapes or types do not fit.

    Notes
    -----
    Mutates: `out`. Agreement: BOUND. Twin: ``pagedref.layers.activate``.
    """
    _named("activate", kind)
    checked("activate", {"x": x, "out": out})
    nothing = _runtime.readable(np.zeros((0, 0), np.float32))
    with _runtime.written(out) as (target,):
        launch_gate(_runtime.readable(x), nothing, kind, target)


def gate(x: Array, up: Array, out: Array, *, kind: str) -> None:
    """Compute ``activation(x) * up``.

    Parameters
    ----------
    x, up : arrays (tokens, features) of float32
        The two projections.
    out : array (tokens, features) of float32
        Takes the result.
    kind : str
        The activation, as in :func:`activate`.

    Raises
    ------
    ContractError
        There is no such activation, or shapes or types do not fit.

    Notes
    -----
    Mutates: `out`. Agreement: BOUND. Twin: ``pagedref.layers.gate``.
    """
    _named("gate", kind)
    checked("gate", {"x": x, "up": up, "out": out})
    with _runtime.written(out) as (target,):
        launch_gate(_runtime.readable(x), _runtime.readable(up), kind, target)
