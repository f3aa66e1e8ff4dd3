"""Norms on the device: the twins of :mod:`pagedref.layers.norm`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref_cuda import _runtime
from pagedref_cuda._runtime import kernel
from pagedref_cuda.layers._checks import checked, rows, written_rows
from pagedref_cuda.layers._warps import warp_sum

__all__ = ["launch_layer_norm", "launch_rms_norm", "layer_norm", "rms_norm"]

Array = npt.NDArray[Any]

_ZERO = np.float32(0.0)
_LANES = 32
_WARPS = 4
_ROWS, _COLUMNS = "float32[:, :]", "float32[:]"
_EMPTY = np.zeros((0, 0), np.float32)


@kernel((_ROWS, _ROWS, _COLUMNS, "float32", "float32", _ROWS))
def rms_norm_1(x: Array, added: Array, weight: Array, offset: np.float32, eps: np.float32, out: Array) -> None:
    """Norm the rows, which take `added` first.

    Launch: a thread owns one row. Reads: its row of `x` and `added`, `weight`. Writes: its row of `out`, and of `x`.
    Barriers: none. Rung: 1, the reference line by line.
    """
    row = cuda.grid(1)
    if row >= x.shape[0]:
        return
    width = x.shape[1]
    total = _ZERO
    for i in range(width):
        number = x[row, i]
        if added.shape[0] > 0:
            number += added[row, i]
            x[row, i] = number
        total += number * number
    size = math.sqrt(total / np.float32(width) + eps)
    for i in range(width):
        out[row, i] = x[row, i] / size * (weight[i] + offset)


@kernel((_ROWS, _ROWS, _COLUMNS, "float32", "float32", _ROWS))
def rms_norm_2(x: Array, added: Array, weight: Array, offset: np.float32, eps: np.float32, out: Array) -> None:
    """Norm the rows, which take `added` first.

    Launch: a warp owns one row. Reads: its row of `x` and `added`, `weight`. Writes: its row of `out`, and of `x`.
    Barriers: none. Rung: 2, neighbouring lanes read neighbouring numbers, and the lanes add up their sums by shuffles:
    one request for 32 numbers where rung 1 has 32.
    """
    row = cuda.grid(1) // _LANES
    if row >= x.shape[0]:
        return
    lane = cuda.grid(1) % _LANES
    width = x.shape[1]
    total = _ZERO
    for i in range(lane, width, _LANES):
        number = x[row, i]
        if added.shape[0] > 0:
            number += added[row, i]
            x[row, i] = number
        total += number * number
    size = math.sqrt(warp_sum(total) / np.float32(width) + eps)
    for i in range(lane, width, _LANES):
        out[row, i] = x[row, i] / size * (weight[i] + offset)


@kernel((_ROWS, _ROWS, _COLUMNS, _COLUMNS, "float32", _ROWS))
def layer_norm_1(x: Array, added: Array, weight: Array, bias: Array, eps: np.float32, out: Array) -> None:
    """Norm the rows, which take `added` first, about their means.

    Launch: a thread owns one row. Reads: its row of `x` and `added`, `weight`, `bias`. Writes: its row of `out`, and
    of `x`. Barriers: none. Rung: 1, the reference line by line.
    """
    row = cuda.grid(1)
    if row >= x.shape[0]:
        return
    width = x.shape[1]
    total = _ZERO
    for i in range(width):
        if added.shape[0] > 0:
            x[row, i] += added[row, i]
        total += x[row, i]
    mean = total / np.float32(width)
    total = _ZERO
    for i in range(width):
        away = x[row, i] - mean
        total += away * away
    size = math.sqrt(total / np.float32(width) + eps)
    for i in range(width):
        number = (x[row, i] - mean) / size * weight[i]
        if bias.shape[0] > 0:
            number += bias[i]
        out[row, i] = number


@kernel((_ROWS, _ROWS, _COLUMNS, _COLUMNS, "float32", _ROWS))
def layer_norm_2(x: Array, added: Array, weight: Array, bias: Array, eps: np.float32, out: Array) -> None:
    """Norm the rows, which take `added` first, about their means.

    Launch: a warp owns one row. Reads: its row of `x` and `added`, `weight`, `bias`. Writes: its row of `out`, and of
    `x`. Barriers: none. Rung: 2, as in `rms_norm_2`.
    """
    row = cuda.grid(1) // _LANES
    if row >= x.shape[0]:
        return
    lane = cuda.grid(1) % _LANES
    width = x.shape[1]
    total = _ZERO
    for i in range(lane, width, _LANES):
        number = x[row, i]
        if added.shape[0] > 0:
            number += added[row, i]
            x[row, i] = number
        total += number
    mean = warp_sum(total) / np.float32(width)
    total = _ZERO
    for i in range(lane, width, _LANES):
        away = x[row, i] - mean
        total += away * away
    size = math.sqrt(warp_sum(total) / np.float32(width) + eps)
    for i in range(lane, width, _LANES):
        number = (x[row, i] - mean) / size * weight[i]
        if bias.shape[0] > 0:
            number += bias[i]
        out[row, i] = number


def launch_rms_norm(x: Any, weight: Any, eps: float, out: Any, added: Any, offset: float = 0.0) -> None:
    """Norm rows that lie on the device.

    Parameters
    ----------
    x, weight, out, added : arrays
        As in :func:`rms_norm`, on the device; an `added` without rows adds nothing.
    eps, offset : float
        As there.
    """
    arguments = (x, added, weight, np.float32(offset), np.float32(eps), out)
    if _runtime.SIMULATOR:
        rms_norm_1.launch(x.shape[0], *arguments)
    else:
        rms_norm_2.launch_grid(-(-x.shape[0] // _WARPS), _WARPS * _LANES, *arguments)


def launch_layer_norm(x: Any, weight: Any, bias: Any, eps: float, out: Any, added: Any) -> None:
    """Norm rows that lie on the device, about their means.

    Parameters
    ----------
    x, weight, bias, out, added : arrays
        As in :func:`layer_norm`, on the device; a `bias` or `added` without elements adds nothing.
    eps : float
        As there.
    """
    arguments = (x, added, weight, bias, np.float32(eps), out)
    if _runtime.SIMULATOR:
        layer_norm_1.launch(x.shape[0], *arguments)
    else:
        layer_norm_2.launch_grid(-(-x.shape[0] // _WARPS), _WARPS * _LANES, *arguments)


def rms_norm(
    x: Array, weight: Array, eps: float, out: Array, *, added: Array | None = None, offset: float = 0.0
) -> None:
    """Divide each row by its root mean square and multiply it by the weight.

    Parameters
    ----------
    x : array (tokens, hidden) of float32
        Rows; more axes in front are as good.
    weight : array (hidden,) of float32
        Factor of each column.
    eps : float
        Added to the mean square, > 0.
    out : array (tokens, hidden) of float32
        Takes the result; not `x`.
    added : array (tokens, hidden) of float32, optional
        Added to `x` first, in place.
    offset : float
        Added to every factor.

    Raises
    ------
    ContractError
        Shapes or types do not fit.

    Notes
    -----
    Mutates: `out`, and `x` if `added` is given. Agreement: BOUND. Twin: ``pagedref.layers.rms_norm``.
    """
    more = None if added is None else rows(added)
    checked("rms_norm", {"x": rows(x), "weight": weight, "out": rows(out), "added": more})
    more = _runtime.readable(_EMPTY if more is None else more)
    with written_rows(x, out) as (stream, target):
        launch_rms_norm(stream, _runtime.readable(weight), eps, target, more, offset)


def layer_norm(
    x: Array, weight: Array, bias: Array | None, eps: float, out: Array, *, added: Array | None = None
) -> None:
    """Take the mean off each row, divide by the standard deviation, multiply by the weight and add the bias.

    Parameters
    ----------
    x : array (tokens, hidden) of float32
        Rows.
    weight : array (hidden,) of float32
        Factor of each column.
    bias : array (hidden,) of float32, optional
        Added to each column.
    eps : float
        Added to the variance, > 0.
    out : array (tokens, hidden) of float32
        Takes the result; not `x`.
    added : array (tokens, hidden) of float32, optional
        Added to `x` first, in place.

    Raises
    ------
    ContractError
        Shapes or types do not fit.

    Notes
    -----
    Mutates: `out`, and `x` if `added` is given. Agreement: BOUND. Twin: ``pagedref.layers.layer_norm``.
    """
    more = None if added is None else rows(added)
    checked("layer_norm", {"x": rows(x), "weight": weight, "bias": bias, "out": rows(out), "added": more})
    more = _runtime.readable(_EMPTY if more is None else more)
    shift = _runtime.readable(_EMPTY.reshape(-1) if bias is None else bias)
    with written_rows(x, out) as (stream, target):
        launch_layer_norm(stream, _runtime.readable(weight), shift, eps, target, more)
