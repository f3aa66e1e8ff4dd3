"""Products of many rows and a matrix of 16-bit numbers: rung 3 of ``pagedref_cuda.layers.linear``.

The tensor cores multiply, and lose nothing: a float32 is the sum of three bfloat16 numbers, each the rounding of what
the ones before it left, and a float16 is the sum of two. So three products of bfloat16 numbers (six for float16), each
exact and added up in float32, are the product of the numbers themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda, float32, uint32

from pagedref_cuda._ptx import as_float, half_to_float, ldg, mma_bf16, pack_bf16
from pagedref_cuda._runtime import Kernel, device_function, kernel
from pagedref_cuda.layers._weights import BFLOAT16, FLOAT16, Weight

__all__ = ["LEAST_ROWS", "launch_product"]

LEAST_ROWS = 5
"""From how many rows on the tensor cores do less work than rung 2."""

Array = npt.NDArray[Any]

_ZERO = np.float32(0.0)
_THREADS = 128
_SIGNATURE = ("uint32[::1]", "uint32[::1]", "float32[:]", *("int64",) * 4, "float32[:, :]")

# A warp has 32 rows and 16 outputs, 32 columns at a time.
_ROWS, _WARP_FEATURES, _CHUNK = 32, 16, 32


@device_function
def _finish(total: np.float32, row: int, feature: int, bias: Array, adds: int, out: Array) -> None:
    """Write one number of the result."""
    if bias.shape[0] > 0:
        total += bias[feature]
    if adds:
        total += out[row, feature]
    out[row, feature] = total


@device_function
def _left(word: Any, low: np.float32, high: np.float32) -> tuple[np.float32, np.float32]:
    """Return what two numbers are more than the two bfloat16 of a word; exact."""
    return low - as_float(word << uint32(16)), high - as_float(word & uint32(0xFFFF0000))


@device_function
def _three(low: np.float32, high: np.float32) -> tuple[Any, Any, Any]:
    """Return two float32 as three words of bfloat16 pairs, whose sums they are."""
    first = pack_bf16(low, high)
    low, high = _left(first, low, high)
    second = pack_bf16(low, high)
    low, high = _left(second, low, high)
    return first, second, pack_bf16(low, high)


@device_function
def _two(word: Any) -> tuple[Any, Any]:
    """Return two float16 as two words of bfloat16 pairs, whose sums they are."""
    low, high = half_to_float(word)
    first = pack_bf16(low, high)
    low, high = _left(first, low, high)
    return first, pack_bf16(low, high)


def _tensor_cores(kind: int, name: str) -> Kernel:
    """Declare the kernel for one type of 16-bit weights."""

    def linear_3(
        x: Array, weight: Array, bias: Array, adds: int, width: int, features: int, tokens: int, out: Array
    ) -> None:
        """Multiply many rows by a matrix of 16-bit numbers.

        Launch: a warp owns 32 rows and 16 outputs. Reads: those rows of `x`, which four warps of a block share in the
        cache, and of the matrix, 16 bytes a lane. Writes: its numbers of `out`. Barriers: none. Rung: 3: tensor cores.
        The order of the columns within a product is free, so a lane takes the eight that lie beside each other, of the
        rows and of the matrix alike.
        """
        first_feature = cuda.grid(1) // 32 * _WARP_FEATURES
        if first_feature >= features:
            return
        lane = cuda.grid(1) % 32
        g = lane // 4
        t = lane % 4
        first_row = cuda.blockIdx.y * _ROWS
        totals = cuda.local.array(16, float32)
        for j in range(16):
            totals[j] = _ZERO
        x_starts = cuda.local.array(4, np.int64)
        for m in range(4):
            x_starts[m] = min(first_row + g + 8 * m, tokens - 1) * width
        w_starts = cuda.local.array(2, np.int64)
        for n in range(2):
            w_starts[n] = min(first_feature + g + 8 * n, features - 1) * width
        zero = uint32(0)
        for start in range(0, width, _CHUNK):
            live = start + 8 * t < width
            at = start + 8 * t if live else 0
            v = ldg(weight, (w_starts[0] + at) // 2, 4)
            w = ldg(weight, (w_starts[1] + at) // 2, 4)
            for s in range(2):  # 16 of the 32 columns
                b = cuda.local.array(8, np.uint32)  # output group, part, half of the fragment
                b[0] = v[0] if s == 0 else v[2]
                b[1] = v[1] if s == 0 else v[3]
                b[2] = w[0] if s == 0 else w[2]
                b[3] = w[1] if s == 0 else w[3]
                for j in range(4):
                    word = b[j] if live else zero
                    if kind == FLOAT16:
                        b[j], b[4 + j] = _two(word)
                    else:
                        b[j] = word
                for m in range(2):  # 16 of the 32 rows
                    upper = ldg(x, x_starts[2 * m] + at + 4 * s, 4)
                    lower = ldg(x, x_starts[2 * m + 1] + at + 4 * s, 4)
                    a0 = _three(as_float(upper[0]), as_float(upper[1]))
                    a1 = _three(as_float(lower[0]), as_float(lower[1]))
                    a2 = _three(as_float(upper[2]), as_float(upper[3]))
                    a3 = _three(as_float(lower[2]), as_float(lower[3]))
                    for n in range(2):
                        j = 8 * m + 4 * n
                        c = (totals[j], totals[j + 1], totals[j + 2], totals[j + 3])
                        if kind == FLOAT16:
                            second = (b[4 + 2 * n], b[5 + 2 * n])
                            c = mma_bf16((a0[2], a1[2], a2[2], a3[2]), second, c)
                            c = mma_bf16((a0[1], a1[1], a2[1], a3[1]), second, c)
                            c = mma_bf16((a0[0], a1[0], a2[0], a3[0]), second, c)
                        first = (b[2 * n], b[1 + 2 * n])
                        c = mma_bf16((a0[2], a1[2], a2[2], a3[2]), first, c)
                        c = mma_bf16((a0[1], a1[1], a2[1], a3[1]), first, c)
                        c = mma_bf16((a0[0], a1[0], a2[0], a3[0]), first, c)
                        totals[j] = c[0]
                        totals[j + 1] = c[1]
                        totals[j + 2] = c[2]
                        totals[j + 3] = c[3]
        for m in range(2):
            for n in range(2):
                for j in range(4):
                    row = first_row + 16 * m + g + 8 * (j // 2)
                    feature = first_feature + 8 * n + 2 * t + j % 2
                    if row < tokens and feature < features:
                        _finish(totals[8 * m + 4 * n + j], row, feature, bias, adds, out)

    linear_3.__name__ = linear_3.__qualname__ = f"linear_3_{name}"
    return kernel(_SIGNATURE, launch_bounds=_THREADS)(linear_3)


_RUNG_3 = {
    FLOAT16: _tensor_cores(FLOAT16, "float16"),
    BFLOAT16: _tensor_cores(BFLOAT16, "bfloat16"),
}


def launch_product(x: Any, weight: Weight, bias: Any, out: Any, *, adds: bool) -> None:
    """Multiply many rows that lie on the device by a matrix that does.

    Parameters
    ----------
    x : array (tokens * in_features,) of uint32
        The rows as words.
    weight : Weight
        The matrix (out_features, in_features), with ``flat``.
    bias : array (out_features,) of float32
        One without elements adds nothing.
    out : array (tokens, out_features) of float32
        Takes the result.
    adds : bool
        Onto what lies in `out`.
    """
    tokens, features = out.shape
    wide = _THREADS // 32 * _WARP_FEATURES
    grid = (-(-features // wide), -(-tokens // _ROWS))
    arguments = (x, weight.flat, bias, int(adds), weight.shape[1], features, tokens, out)
    _RUNG_3[weight.kind].launch_grid(grid, _THREADS, *arguments)
