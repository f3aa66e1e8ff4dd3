"""Choices on the device: the twins of :mod:`pagedref.layers.choose`, the same token for the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda, float32, int32

from pagedref import validate
from pagedref_cuda import _runtime
from pagedref_cuda._device import exp
from pagedref_cuda._runtime import device_function, kernel
from pagedref_cuda.layers._checks import checked
from pagedref_cuda.layers._warps import NO_COLUMN, block_best

__all__ = ["argmax", "launch_argmax", "route", "top_k"]

Array = npt.NDArray[Any]

_ZERO = np.float32(0.0)
_LOWEST = np.float32(-np.inf)
_THREADS = 512
_LOGITS, _CHOSEN = "float32[:, :]", "int64[:]"


@kernel((_LOGITS, _CHOSEN))
def argmax_1(logits: Array, chosen: Array) -> None:
    """Find the largest number of each row, the first of equals.

    Launch: a thread owns one row. Reads: its row. Writes: its number of `chosen`. Barriers: none. Rung: 1, the
    reference line by line.
    """
    row = cuda.grid(1)
    if row >= logits.shape[0]:
        return
    best = 0
    for column in range(1, logits.shape[1]):
        if logits[row, column] > logits[row, best]:
            best = column
    chosen[row] = best


@kernel((_LOGITS, _CHOSEN), launch_bounds=_THREADS)
def argmax_2(logits: Array, chosen: Array) -> None:
    """Find the largest number of each row, the first of equals.

    Launch: a block of 512 threads owns one row. Reads: its row. Writes: its number of `chosen`. Barriers: two. Rung: 2,
    neighbouring threads read neighbouring numbers, warps compare by shuffles and meet in shared memory.
    """
    row = cuda.blockIdx.x
    if row >= logits.shape[0]:
        return
    values = cuda.shared.array(32, float32)
    columns = cuda.shared.array(32, int32)
    value = _LOWEST
    best = NO_COLUMN
    for column in range(cuda.threadIdx.x, logits.shape[1], _THREADS):
        number = logits[row, column]
        if best == NO_COLUMN or number > value:
            value = number
            best = np.int32(column)
    value, best = block_best(value, best, values, columns)
    if cuda.threadIdx.x == 0:
        chosen[row] = best


@device_function
def _comes_after(value: Any, column: Any, limit: Any, limit_column: Any) -> Any:
    """Tell whether a number comes after the last one that was taken, in falling order."""
    return value < limit or (value == limit and column > limit_column)


@kernel((_LOGITS, _LOGITS, "int64[:, :]"))
def top_k_1(logits: Array, values: Array, columns: Array) -> None:
    """Find the largest numbers of each row, falling, the first of equals first.

    Launch: a thread owns one row. Reads: its row, once for each of the k. Writes: its rows of `values` and `columns`.
    Barriers: none. Rung: 1: the next is the largest of those that come after the last one.
    """
    row = cuda.grid(1)
    if row >= logits.shape[0]:
        return
    for place in range(values.shape[1]):
        best = -1
        for column in range(logits.shape[1]):
            number = logits[row, column]
            if place > 0 and not _comes_after(number, column, values[row, place - 1], columns[row, place - 1]):
                continue
            if best < 0 or number > logits[row, best]:
                best = column
        values[row, place] = logits[row, best]
        columns[row, place] = best


@kernel((_LOGITS, _LOGITS, "int64[:, :]"), launch_bounds=_THREADS)
def top_k_2(logits: Array, values: Array, columns: Array) -> None:
    """Find the largest numbers of each row, falling, the first of equals first.

    Launch: a block of 512 threads owns one row. Reads: its row, once for each of the k, from the cache after the first.
    Writes: its rows of `values` and `columns`. Barriers: two for each of the k. Rung: 2, as in `argmax_2`.
    """
    row = cuda.blockIdx.x
    if row >= logits.shape[0]:
        return
    warp_values = cuda.shared.array(32, float32)
    warp_columns = cuda.shared.array(32, int32)
    limit = _LOWEST
    limit_column = int32(-1)
    for place in range(values.shape[1]):
        value = _LOWEST
        best = NO_COLUMN
        for column in range(cuda.threadIdx.x, logits.shape[1], _THREADS):
            number = logits[row, column]
            if place > 0 and not _comes_after(number, column, limit, limit_column):
                continue
            if best == NO_COLUMN or number > value:
                value = number
                best = np.int32(column)
        limit, limit_column = block_best(value, best, warp_values, warp_columns)
        if cuda.threadIdx.x == 0:
            values[row, place] = limit
            columns[row, place] = limit_column


@kernel((_LOGITS, _LOGITS, "int64[:, :]", "int64"))
def route_1(logits: Array, weights: Array, experts: Array, normalise: int) -> None:
    """Turn the scores of chosen experts into weights, a softmax over them or over all.

    Launch: a thread owns one token. Reads: its row of `logits`, and of `weights`, which holds the chosen scores,
    falling. Writes: its row of `weights`. Barriers: none. Rung: 1; there are few experts, and few tokens.
    """
    row = cuda.grid(1)
    if row >= logits.shape[0]:
        return
    top = weights[row, 0]
    total = _ZERO
    if normalise:
        for place in range(weights.shape[1]):
            total += exp(weights[row, place] - top)
    else:
        for expert in range(logits.shape[1]):
            total += exp(logits[row, expert] - top)
    for place in range(weights.shape[1]):
        weights[row, place] = exp(weights[row, place] - top) / total


def launch_argmax(logits: Any, chosen: Any) -> None:
    """Find the largest number of rows that lie on the device.

    Parameters
    ----------
    logits : array (tokens, columns) of float32
        At least one column.
    chosen : array (tokens,) of int64
        Takes the columns.
    """
    if _runtime.SIMULATOR:
        argmax_1.launch(logits.shape[0], logits, chosen)
    else:
        argmax_2.launch_grid(logits.shape[0], _THREADS, logits, chosen)


def argmax(logits: Array) -> Any:
    """Return the column of the largest number of each row, the first of equals.

    Parameters
    ----------
    logits : array (tokens, columns) of float32
        No NaN; at least one column.

    Returns
    -------
    array (tokens,) of int64

    Raises
    ------
    ContractError
        Shape or type does not fit.

    Notes
    -----
    Agreement: EXACT. Twin: ``pagedref.layers.argmax``.
    """
    _columns("argmax", logits)
    chosen = _runtime.empty((logits.shape[0],), np.int64)
    launch_argmax(_runtime.readable(logits), chosen)
    return _runtime.to_host(chosen)


def _columns(function: str, logits: Any) -> int:
    """Return the number of columns, after the checks."""
    width = checked(function, {"logits": logits})["columns"]
    if width < 1:
        validate.fail(function, "logits", "have no columns", tuple(logits.shape), "one or more")
    return width


def _largest(function: str, logits: Any, k: int) -> tuple[Any, Any, Any]:
    """Return logits, the k largest and their columns, all on the device."""
    width = _columns(function, logits)
    if not 1 <= k <= width:
        validate.fail(function, "k", "is out of range", k, f"1..{width}")
    scores = _runtime.readable(logits)
    values, columns = (_runtime.empty((logits.shape[0], k), dtype) for dtype in (np.float32, np.int64))
    if _runtime.SIMULATOR:
        top_k_1.launch(logits.shape[0], scores, values, columns)
    else:
        top_k_2.launch_grid(logits.shape[0], _THREADS, scores, values, columns)
    return scores, values, columns


def top_k(logits: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest numbers of each row, falling, and their columns; of equals the first comes first.

    Parameters
    ----------
    logits : array (tokens, columns) of float32
        No NaN.
    k : int
        In ``1 .. columns``.

    Returns
    -------
    values : array (tokens, k) of float32
        The numbers.
    columns : array (tokens, k) of int64
        Where they stand.

    Raises
    ------
    ContractError
        `k` is out of range, or shape or type does not fit.

    Notes
    -----
    Agreement: EXACT. Twin: ``pagedref.layers.top_k``.
    """
    _, values, columns = _largest("top_k", logits, k)
    return _runtime.to_host(values), _runtime.to_host(columns)


def route(logits: Array, k: int, *, normalise: bool) -> tuple[Array, Array]:
    """Choose the experts of each token and their weights.

    Parameters
    ----------
    logits : array (tokens, experts) of float32
        Scores of the router.
    k : int
        Experts of a token, in ``1 .. experts``.
    normalise : bool
        The weights of the chosen add up to 1; else they are those of a softmax over all.

    Returns
    -------
    weights : array (tokens, k) of float32
        In ``0 .. 1``, falling.
    experts : array (tokens, k) of int64
        Of equals the first comes first.

    Raises
    ------
    ContractError
        `k` is out of range, or shape or type does not fit.

    Notes
    -----
    Agreement: BOUND for the weights, EXACT for the experts. Twin: ``pagedref.layers.route``.
    """
    scores, weights, experts = _largest("route", logits, k)
    route_1.launch(logits.shape[0], scores, weights, experts, int(normalise))
    return _runtime.to_host(weights), _runtime.to_host(experts)
