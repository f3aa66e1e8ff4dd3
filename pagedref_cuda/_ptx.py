"""Inline PTX for kernels, each function with a plain Python twin: the twin is what stands below as its body.

A function of one thread (loads, conversions, bit casts) takes scalars; its twin takes scalars or NumPy arrays. A
function of a whole warp (:func:`mma_bf16`, :func:`mma_f16`, :func:`ldmatrix`) has a twin in which each register is an
array of 32 lanes. Numba's simulator can run the former, a reader both.

Fragments of ``mma.sync.m16n8k16``, for lane = 4 * g + t:

- A (16 x 16, four words of two numbers): ``(g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)`` and the next column;
- B (16 x 8, two words): rows ``2t, 2t + 1`` and ``2t + 8, 2t + 9`` of column g;
- C and D (16 x 8, four float32): ``(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)``.
"""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np

from pagedref_cuda._runtime import SIMULATOR

__all__ = [
    "as_float",
    "as_word",
    "cp_async",
    "cp_async_commit",
    "cp_async_wait",
    "e4m3_to_halves",
    "exp2",
    "half_to_float",
    "ldg",
    "ldmatrix",
    "ldmatrix_trans",
    "lds",
    "mma_bf16",
    "mma_f16",
    "mma_three_bf16",
    "mma_two_f16",
    "pack_bf16",
    "pack_f16",
    "permute",
    "stg",
]

Words = tuple[Any, ...]


def as_float(word: Any) -> Any:
    """Return the float32 whose bits are `word`."""
    return np.asarray(word, np.uint32).view(np.float32)[()]


def as_word(number: Any) -> Any:
    """Return the bits of a float32."""
    return np.asarray(number, np.float32).view(np.uint32)[()]


def exp2(x: Any) -> Any:
    """Return 2**x in float32; on a GPU ``ex2.approx.ftz``, wrong by at most 2**-22 of the result, subnormals are 0."""
    power = np.exp2(np.asarray(x, np.float64)).astype(np.float32)
    return np.where(power < np.finfo(np.float32).tiny, np.float32(0), power)[()]


def pack_bf16(low: Any, high: Any) -> Any:
    """Round two float32 to bfloat16, to nearest even, into one word."""
    halves = [
        np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) for x in (low, high)
    ]
    return (halves[0] | halves[1] << np.uint32(16))[()]


def pack_f16(low: Any, high: Any) -> Any:
    """Round two float32 to float16, to nearest even, into one word."""
    halves = [np.asarray(x, np.float32).astype(np.float16).view(np.uint16).astype(np.uint32) for x in (low, high)]
    return (halves[0] | halves[1] << np.uint32(16))[()]


def half_to_float(word: Any) -> tuple[Any, Any]:
    """Return the two float16 of a word as float32, the low one first."""
    word = np.asarray(word, np.uint32)
    low, high = ((word >> np.uint32(shift)).astype(np.uint16).view(np.float16) for shift in (0, 16))
    return low.astype(np.float32)[()], high.astype(np.float32)[()]


def e4m3_to_halves(word: Any) -> tuple[Any, Any]:
    """Return the four e4m3fn of a word as two words of float16, exactly, NaN too; needs sm_89 or later."""
    codes = [(np.asarray(word, np.uint32) >> np.uint32(8 * i)).astype(np.uint8) for i in range(4)]
    halves = [np.uint32(x.view(ml_dtypes.float8_e4m3fn).astype(np.float16).view(np.uint16)) for x in codes]
    return halves[0] | halves[1] << np.uint32(16), halves[2] | halves[3] << np.uint32(16)


def permute(a: Any, b: Any, selector: int) -> Any:
    """Pick four of the eight bytes of `a` (0-3) and `b` (4-7), one for each hexadecimal digit, the lowest first."""
    both = np.asarray(a, np.uint64) | np.asarray(b, np.uint64) << np.uint64(32)
    word = np.zeros(both.shape, np.uint32)
    for i in range(4):
        shift = np.uint64(8 * (int(selector) >> 4 * i & 7))
        word |= (both >> shift & np.uint64(255)).astype(np.uint32) << np.uint32(8 * i)
    return word[()]


def ldg(words: Any, i: Any, count: Any, offset: Any = 0) -> Words:
    """Load 1, 2 or 4 consecutive words from global memory in one request; ``i + offset`` is a multiple of `count`.

    `count` is a constant, and so is `offset` once loops are unrolled: it becomes part of the instruction.
    """
    if (i + offset) % count:
        raise ValueError(f"ldg: index {i + offset} is not a multiple of {count}")
    return tuple(words[i + offset + j] for j in range(count))


def stg(words: Any, i: Any, values: Words) -> None:
    """Store 2 or 4 consecutive words to global memory in one request; `i` is a multiple of their number."""
    if i % len(values):
        raise ValueError(f"stg: index {i} is not a multiple of {len(values)}")
    for j, value in enumerate(values):
        words[i + j] = value


def lds(shared: Any, i: Any, count: Any, offset: Any = 0) -> Words:
    """Load 1, 2 or 4 consecutive words from shared memory in one request, as :func:`ldg` does from global memory."""
    return ldg(shared, i, count, offset)


_copies = threading.local()


def cp_async(
    shared: Any, s: Any, words: Any, i: Any, count: Any, live: Any, s_offset: Any = 0, i_offset: Any = 0
) -> None:
    """Begin to copy 1, 2 or 4 words from global to shared memory; zeros, and nothing is read, unless `live`.

    The words are there after :func:`cp_async_wait`, not before; the twin keeps to that. The offsets are added to `s`
    and `i`; once loops are unrolled they are constants, part of the instruction.
    """
    s, i = s + s_offset, i + i_offset
    if not hasattr(_copies, "open"):
        _copies.open, _copies.groups = [], []
    _copies.open.append((shared, s, [words[i + j] if live else np.uint32(0) for j in range(count)]))


def cp_async_commit() -> None:
    """Make the copies begun since the last commit one group."""
    if not hasattr(_copies, "open"):
        _copies.open, _copies.groups = [], []
    _copies.groups.append(_copies.open)
    _copies.open = []


def cp_async_wait(groups: Any) -> None:
    """Wait until at most `groups` of the newest groups of this thread are pending; a constant."""
    while len(getattr(_copies, "groups", ())) > groups:
        for shared, s, values in _copies.groups.pop(0):
            for j, value in enumerate(values):
                shared[s + j] = value


def _numbers(words: Words, dtype: Any) -> Any:
    """Return fragments as float32: (32 lanes, words, 2)."""
    lanes = np.stack([np.broadcast_to(np.asarray(word, np.uint32), 32) for word in words], axis=1)
    return np.ascontiguousarray(lanes).view(dtype).reshape(32, len(words), 2).astype(np.float32)


def _mma(a: Words, b: Words, c: Words, dtype: Any) -> Words:
    """Multiply the fragments of a warp as matrices."""
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    left, right = np.zeros((16, 16), np.float64), np.zeros((16, 8), np.float64)
    numbers = _numbers(a, dtype)
    for i in range(4):
        for j in range(2):
            left[g + 8 * (i % 2), 2 * t + 8 * (i // 2) + j] = numbers[:, i, j]
    numbers = _numbers(b, dtype)
    for i in range(2):
        for j in range(2):
            right[2 * t + 8 * i + j, g] = numbers[:, i, j]
    product = left @ right
    return tuple(
        (product[g + 8 * (i // 2), 2 * t + i % 2] + np.asarray(c[i], np.float64)).astype(np.float32) for i in range(4)
    )


def mma_bf16(a: Words, b: Words, c: Words) -> Words:
    """Return A B + C, bfloat16 products and float32 sums, as fragments of a warp (see the module)."""
    return _mma(a, b, c, ml_dtypes.bfloat16)


def mma_f16(a: Words, b: Words, c: Words) -> Words:
    """Return A B + C, float16 products and float32 sums, as fragments of a warp (see the module)."""
    return _mma(a, b, c, np.float16)


def mma_three_bf16(a: Words, b: Words, c: Words) -> Words:
    """Return A B + C where A is the sum of three fragments, 12 words, added one after the other."""
    return mma_bf16(a[8:], b, mma_bf16(a[4:8], b, mma_bf16(a[:4], b, c)))


def mma_two_f16(a: Words, b: Words, c: Words) -> Words:
    """Return A B + C where A is the sum of two fragments, 8 words, added one after the other."""
    return mma_f16(a[4:], b, mma_f16(a[:4], b, c))


def _matrices(shared: Any, i: Any) -> Any:
    """Return four 8 x 8 matrices of 16-bit numbers: lane l gives the word at which row l % 8 of matrix l // 8 lies."""
    rows = np.stack([np.asarray(shared)[np.asarray(i) + j] for j in range(4)], axis=1).astype(np.uint32)
    return np.ascontiguousarray(rows).view(np.uint16).reshape(4, 8, 8)


def ldmatrix(shared: Any, i: Any, offset: Any = 0) -> Words:
    """Load four 8 x 8 matrices of 16-bit numbers from shared memory: lane 4 g + t gets columns 2t, 2t + 1 of row g.

    Lane l passes in ``i + offset`` the word (a multiple of 4) at which row ``l % 8`` of matrix ``l // 8`` begins;
    `offset` is a constant once loops are unrolled.
    """
    matrices = _matrices(shared, np.asarray(i) + offset)
    return tuple(np.ascontiguousarray(m).view(np.uint32).reshape(32) for m in matrices)


def ldmatrix_trans(shared: Any, i: Any, offset: Any = 0) -> Words:
    """Load four 8 x 8 matrices like :func:`ldmatrix`, transposed: lane 4 g + t gets rows 2t, 2t + 1 of column g."""
    matrices = _matrices(shared, np.asarray(i) + offset)
    return tuple(np.ascontiguousarray(m.T).view(np.uint32).reshape(32) for m in matrices)


if not SIMULATOR:
    from pagedref_cuda._runtime.assembly import async_copy, group, loader, registers, storer

    registers(as_float, "mov.b32 $0, $1;", "f", "r")
    registers(as_word, "mov.b32 $0, $1;", "r", "f")
    registers(exp2, "ex2.approx.ftz.f32 $0, $1;", "f", "f")
    registers(pack_bf16, "cvt.rn.bf16x2.f32 $0, $2, $1;", "r", "ff")
    registers(pack_f16, "cvt.rn.f16x2.f32 $0, $2, $1;", "r", "ff")
    registers(permute, "prmt.b32 $0, $1, $2, $3;", "r", "rrr")
    registers(
        half_to_float,
        "{.reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high;}",
        "ff",
        "r",
    )
    registers(
        e4m3_to_halves,
        "{.reg .b16 low, high; mov.b32 {low, high}, $2; cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high;}",
        "rr",
        "r",
    )
    for function, kind, parts in (
        (mma_bf16, "bf16", 1),
        (mma_f16, "f16", 1),
        (mma_three_bf16, "bf16", 3),
        (mma_two_f16, "f16", 2),
    ):
        columns, sums = (4 * parts + 4, 4 * parts + 6), 4 * parts + 6
        text = ""
        for part in range(parts):
            added = range(sums, sums + 4) if part == 0 else range(4)
            lists = range(4), range(4 + 4 * part, 8 + 4 * part), range(*columns), added
            operands = ", ".join("{" + ", ".join(f"${i}" for i in one) + "}" for one in lists)
            text += f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {operands}; "
        registers(function, text, "ffff", "rrrr" * parts + "rrffff", warp=True)
    loader(ldg, "ld.global", 1)
    loader(lds, "ld.shared", 3)
    loader(ldmatrix, "ldmatrix.sync.aligned.m8n8.x4.shared.b16", 3, matrices=True)
    loader(ldmatrix_trans, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 3, matrices=True)
    storer(stg, "st.global", 1)
    async_copy(cp_async)
    group(cp_async_commit, cp_async_wait)
