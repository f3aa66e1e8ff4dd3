"""Rotary embedding of rows on the device: the twin of :mod:`pagedref.layers.turn`."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import cuda

from pagedref import validate
from pagedref_cuda import _runtime
from pagedref_cuda._runtime import kernel
from pagedref_cuda.layers._checks import checked

__all__ = ["rotate"]

Array = npt.NDArray[Any]


@kernel(("float32[:, :, :]", "float32[:, :, :]", "float32[:, :, :]", "int64"))
def rotate_1(x: Array, cos: Array, sin: Array, interleaved: int) -> None:
    """Turn the pairs of each head by the angle of its token.

    Launch: a thread owns one pair of one head. Reads: its two numbers, their cos and sin. Writes: its two numbers.
    Barriers: none. Rung: 1; every number is read and written once, neighbouring threads have neighbouring pairs, and
    there is nothing to gain above it.
    """
    item = cuda.grid(1)
    pairs = cos.shape[2]
    heads = x.shape[1]
    if item >= x.shape[0] * heads * pairs:
        return
    pair = item % pairs
    head = item // pairs % heads
    token = item // pairs // heads
    first = 2 * pair if interleaved else pair
    second = first + 1 if interleaved else first + pairs
    c = cos[token, 0, pair]
    s = sin[token, 0, pair]
    a = x[token, head, first]
    b = x[token, head, second]
    x[token, head, first] = a * c - b * s
    x[token, head, second] = b * c + a * s


def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> None:
    """Turn the pairs of each head by the angle of its position.

    Parameters
    ----------
    x : array (tokens, heads, head_dim) of float32
        Queries or keys, or both side by side.
    cos, sin : arrays (tokens, 1, pairs) of float32
        From :func:`pagedref.layers.turn.rotary_tables`. With fewer pairs than ``head_dim / 2``, the numbers behind the
        first ``2 * pairs`` stay as they are.
    interleaved : bool
        Pairs are ``(2 i, 2 i + 1)``; by default ``(i, i + pairs)``.

    Raises
    ------
    ContractError
        Shapes or types do not fit.

    Notes
    -----
    Mutates: `x`. Agreement: BOUND. Twin: ``pagedref.layers.rotate``.
    """
    dims = checked("rotate", {"x": x, "cos": cos, "sin": sin})
    if 2 * dims["pairs"] > dims["head_dim"]:
        validate.fail("rotate", "cos", "has too many pairs", dims["pairs"], f"at most {dims['head_dim'] // 2}")
    with _runtime.written(x) as (turned,):
        items = dims["num_tokens"] * dims["num_heads"] * dims["pairs"]
        rotate_1.launch(items, turned, _runtime.readable(cos), _runtime.readable(sin), int(interleaved))
