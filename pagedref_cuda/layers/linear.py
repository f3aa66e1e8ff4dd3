"""Products of rows and a matrix on the device: the twin of :func:`pagedref.layers.linear`.

A product of a few rows costs what reading the matrix costs, so rung 2 reads it once, 16 bytes a lane, for up to eight
rows at a time. A product of many rows costs multiplications: for 16-bit weights, rung 3 gives them to the tensor cores
(``pagedref_cuda.layers.products``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda, float32

from pagedref_cuda import _runtime
from pagedref_cuda._ptx import ldg
from pagedref_cuda._runtime import Kernel, device_function, kernel
from pagedref_cuda.fast.pieces import unpack_bf16, unpack_f16, unpack_f32
from pagedref_cuda.fast.words import flat_words
from pagedref_cuda.layers._checks import checked
from pagedref_cuda.layers._weights import BFLOAT16, FLOAT16, FLOAT32, Weight, weight_number
from pagedref_cuda.layers.activation import KINDS, activation, launch_gate
from pagedref_cuda.layers.products import LEAST_ROWS, launch_product

__all__ = ["launch_gated", "launch_linear", "linear"]

Array = npt.NDArray[Any]

_ZERO = np.float32(0.0)
_LANES = 32
_WARPS = 4
_OUTPUTS = 4
_NONE = np.zeros(0, np.float32)
_UNPACK = {FLOAT32: unpack_f32, FLOAT16: unpack_f16, BFLOAT16: unpack_bf16}


@kernel(
    (
        *("float32[:, :]", "int64", "uint16[:, :]", "uint32[:, :]", "float32[:]", "int64", "float32[:, :]"),
    )
)
def linear_1(x: Array, kind: int, halves: Array, words: Array, bias: Array, adds: int, out: Array) -> None:
    """Multiply rows by a matrix, and add the bias if there is one; onto what lies in `out`, if `adds`.

    Launch: a thread owns one number of the result. Reads: its row of `x` and of the matrix. Writes: its number of
    `out`. Barriers: none. Rung: 1, the reference line by line.
    """
    item = cuda.grid(1)
    features = out.shape[1]
    if item >= out.shape[0] * features:
        return
    token = item // features
    feature = item % features
    total = _ZERO
    for i in range(x.shape[1]):
        total += x[token, i] * weight_number(kind, halves, words, feature, i)
    if bias.shape[0] > 0:
        total += bias[feature]
    if adds:
        total += out[token, feature]
    out[token, feature] = total


def _scattered_sum(count: int) -> Any:
    """Return a function that adds up `count` sums over the lanes of a warp and leaves each lane with one of them."""

    @device_function
    def scattered_sum(totals: Array, lane: int) -> Any:
        half = count // 2
        step = 16
        for _turn in range(5):
            upper = lane & step
            if half > 0:
                for j in range(half):
                    low = totals[j]
                    high = totals[j + half]
                    given = cuda.shfl_xor_sync(0xFFFFFFFF, low if upper else high, step)
                    totals[j] = given + (high if upper else low)
                half //= 2
            else:
                totals[0] += cuda.shfl_xor_sync(0xFFFFFFFF, totals[0], step)
            step //= 2
        return totals[0]

    return scattered_sum


def _rung_2(kind: int, together: int, gated: bool) -> Kernel:
    """Declare the kernel for one type of weights and a number of rows that share each read of them.

    Gated, the matrix is that of the gate above that of the other projection: two outputs of each make a warp's four.
    """
    own = _OUTPUTS // 2 if gated else _OUTPUTS
    numbers = 4 if kind == FLOAT32 else 8  # of 16 bytes
    per_word = 1 if kind == FLOAT32 else 2
    stride = _LANES * numbers
    count, piece = _OUTPUTS * together, numbers * together
    unpack, scattered_sum = _UNPACK[kind], _scattered_sum(count)

    def linear_2(
        x: Array, weight: Array, bias: Array, extra: int, width: int, features: int, tokens: int, out: Array
    ) -> None:
        """Multiply a few rows by a matrix.

        Launch: a warp owns four outputs of one, four or eight rows. Reads: those rows of `x` and of the matrix. Writes:
        its numbers of `out`. Barriers: none. Rung: 2: lanes read 16 bytes each, 512 in a row, and a word of the matrix
        once for all rows of the warp; every number read is multiplied four times or more. In the end each lane hands
        half of its sums to a partner and takes the other half of the partner's, so that n sums cost n shuffles. `extra`
        is the activation where it gates, else whether to add onto what lies in `out`.
        """
        first_feature = cuda.grid(1) // _LANES * own
        if first_feature >= features:
            return
        lane = cuda.grid(1) % _LANES
        first_row = cuda.blockIdx.y * together
        totals = cuda.local.array(count, float32)
        x_at = cuda.local.array(together, np.int64)
        w_at = cuda.local.array(_OUTPUTS, np.int64)
        numbers_of_x = cuda.local.array(piece, float32)
        for j in range(count):
            totals[j] = _ZERO
        for r in range(together):
            x_at[r] = min(first_row + r, tokens - 1) * width
        for f in range(_OUTPUTS):
            w_at[f] = (min(first_feature + f % own, features - 1) + f // own * features) * width
        for i in range(lane * numbers, width, stride):
            for r in range(together):
                for j in range(0, numbers, 4):
                    words = ldg(x, x_at[r] + i + j, 4)
                    for k in range(4):
                        numbers_of_x[numbers * r + j + k] = words[k].view(np.float32)
            for f in range(_OUTPUTS):
                words = ldg(weight, (w_at[f] + i) // per_word, 4)
                for j in range(numbers):
                    w = unpack(words, j)
                    for r in range(together):
                        totals[_OUTPUTS * r + f] += numbers_of_x[numbers * r + j] * w
        total = scattered_sum(totals, lane)
        mine = lane // (_LANES // count)
        row = first_row + mine // _OUTPUTS
        feature = first_feature + mine % _OUTPUTS
        if gated:
            other = cuda.shfl_down_sync(0xFFFFFFFF, total, own * (_LANES // count))
            if bias.shape[0] > 0:
                total += bias[min(feature, features - 1)]
                other += bias[min(feature, features - 1) + features]
            total = activation(extra, total) * other
        if lane % (_LANES // count) == 0 and mine % _OUTPUTS < own and row < tokens and feature < features:
            if not gated:
                if bias.shape[0] > 0:
                    total += bias[feature]
                if extra:
                    total += out[row, feature]
            out[row, feature] = total

    linear_2.__name__ = linear_2.__qualname__ = f"linear{'_gate' * gated}_2_{_NAMES[kind]}_{together}"
    signature = ("uint32[::1]", "uint32[::1]", "float32[:]", *("int64",) * 4, "float32[:, :]")
    return kernel(signature, launch_bounds=_WARPS * _LANES)(linear_2)


_NAMES = {FLOAT32: "float32", FLOAT16: "float16", BFLOAT16: "bfloat16"}
_TOGETHER = {FLOAT32: (1, 4, 8), FLOAT16: (1, 4), BFLOAT16: (1, 4)}
_RUNG_2 = {
    (kind, together, gated): _rung_2(kind, together, gated)
    for kind, numbers in _TOGETHER.items()
    for together in numbers
    for gated in (False, True)
}


def _few_rows(rows: Any, weight: Weight, bias: Any, out: Any, extra: int, *, gated: bool) -> None:
    """Launch rung 2."""
    tokens, features = out.shape
    numbers = _TOGETHER[weight.kind]
    together = next((n for n in numbers if tokens <= n), numbers[-1])
    own = _OUTPUTS // 2 if gated else _OUTPUTS
    grid = (-(-features // (_WARPS * own)), -(-tokens // together))
    arguments = (rows, weight.flat, bias, extra, weight.shape[1], features, tokens, out)
    _RUNG_2[weight.kind, together, gated].launch_grid(grid, _WARPS * _LANES, *arguments)


def launch_linear(
    x: Any, weight: Weight, bias: Any, out: Any, *, adds: bool = False, words: Any = None
) -> None:
    """Multiply rows that lie on the device by a matrix that does.

    Parameters
    ----------
    x : array (tokens, in_features) of float32
        On the device.
    weight : Weight
        The matrix (out_features, in_features).
    bias : array (out_features,) of float32
        One without elements adds nothing.
    out : array (tokens, out_features) of float32
        Takes the result.
    adds : bool
        Onto what lies in `out`: a residual stream.
    words : array, optional
        `x` as ``pagedref_cuda.fast.words.flat_words`` gives it, if that is there already.
    """
    tokens, features = out.shape
    rows = None if _runtime.SIMULATOR or weight.flat is None else flat_words(x) if words is None else words
    if rows is None:
        linear_1.launch(
            tokens * features, x, weight.kind, weight.halves, weight.words, bias, int(adds), out
        )
    elif weight.kind != FLOAT32 and tokens >= LEAST_ROWS:
        launch_product(rows, weight, bias, out, adds=adds)
    else:
        _few_rows(rows, weight, bias, out, int(adds), gated=False)


def launch_gated(
    x: Any, weight: Weight, bias: Any, kind: str, both: Any, out: Any, *, words: Any = None
) -> None:
    """Multiply rows on the device by two matrices and gate one product with the other.

    Parameters
    ----------
    x : array (tokens, in_features) of float32
        On the device.
    weight : Weight
        The matrix of the gate above that of the other projection, (2 * features, in_features).
    bias : array (2 * features,) of float32
        One without elements adds nothing.
    kind : str
        The activation.
    both : array (tokens, 2 * features) of float32
        Room for the products where one launch cannot do it all: 16-bit weights and many rows.
    out : array (tokens, features) of float32
        Takes ``activation(gate) * other``.
    words : array, optional
        As for :func:`launch_linear`.
    """
    tokens, features = out.shape
    many = weight.kind != FLOAT32 and tokens >= LEAST_ROWS
    rows = None if _runtime.SIMULATOR or weight.flat is None else flat_words(x) if words is None else words
    if rows is None or many:
        launch_linear(x, weight, bias, both, words=words)
        launch_gate(both[:, :features], both[:, features:], kind, out)
    else:
        _few_rows(rows, weight, bias, out, KINDS[kind], gated=True)


def linear(x: Array, weight: Array, out: Array, *, bias: Array | None = None) -> None:
    """Multiply rows by a matrix: ``out = x @ weight.T + bias``.

    Parameters
    ----------
    x : array (tokens, in_features) of float32
        Rows.
    weight : array (out_features, in_features) of float32, float16 or bfloat16
        The matrix; its numbers are widened to float32.
    out : array (tokens, out_features) of float32
        Takes the result.
    bias : array (out_features,) of float32, optional
        Added to each row.

    Raises
    ------
    ContractError
        Shapes or types do not fit.

    Notes
    -----
    Mutates: `out`. Agreement: BOUND. Sums are float32 on every rung. Twin: ``pagedref.layers.linear``.
    """
    checked("linear", {"x": x, "weight": weight, "out": out, "bias": bias})
    with _runtime.written(out) as (target,):
        shift = _runtime.readable(_NONE if bias is None else bias)
        launch_linear(_runtime.readable(x), Weight(weight), shift, target)
