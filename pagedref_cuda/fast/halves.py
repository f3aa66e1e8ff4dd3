"""Stored numbers as pairs of bfloat16 or float16, exactly: what tensor cores multiply.

A function ``widen(words, halves, at, count)`` turns `count` words of a row into words of two numbers each, in order,
which it writes from ``halves[at]`` onwards. Every
e4m3fn, e5m2, int8 and int4 is a bfloat16, so that a quantised cache needs no rounding here; its scales are factors of
scores and weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, int32, uint32

from pagedref_cuda._ptx import as_float, as_word, e4m3_to_halves, half_to_float, pack_bf16, pack_f16, permute
from pagedref_cuda._runtime import SIMULATOR, device_function

if not SIMULATOR:
    from pagedref_cuda._runtime.assembly import registers

__all__ = [
    "BITS",
    "NUMBER",
    "WIDEN",
    "bf16_parts",
    "e4m3_to_bf16",
    "e5m2_to_bf16",
    "f16_parts",
    "int4_to_bf16",
    "int8_to_bf16",
]

BITS = {"f32": 32, "bf16": 16, "f16": 16, "e4m3fn": 8, "e5m2": 8, "int8": 8, "int4": 4}
"""Bits of a stored number."""

_SHIFT, _UPPER = np.uint32(16), np.uint32(0xFFFF0000)


def _bf16_pair(low: Any, high: Any) -> Any:
    """Return two numbers that are bfloat16 as a word."""
    return as_word(low) >> _SHIFT | as_word(high) & _UPPER


def e4m3_to_bf16(word: Any) -> tuple[Any, Any]:
    """Return the four e4m3fn of a word as two words of bfloat16, NaN too; needs sm_89 or later."""
    return tuple(_bf16_pair(*half_to_float(half)) for half in e4m3_to_halves(word))


def e5m2_to_bf16(word: Any) -> tuple[Any, Any]:
    """Return the four e5m2 of a word as two words of bfloat16: each is the upper byte of a float16."""
    halves = permute(word, np.uint32(0), 0x1404), permute(word, np.uint32(0), 0x3424)
    return tuple(_bf16_pair(*half_to_float(half)) for half in halves)


def int8_to_bf16(word: Any) -> tuple[Any, Any]:
    """Return the four int8 of a word as two words of bfloat16."""
    codes = np.ascontiguousarray(np.asarray(word, np.uint32)[..., None]).view(np.int8).astype(np.float32)
    return _bf16_pair(codes[..., 0], codes[..., 1]), _bf16_pair(codes[..., 2], codes[..., 3])


def int4_to_bf16(word: Any) -> tuple[Any, Any, Any, Any]:
    """Return the eight int4 of a word as four words of bfloat16; the low nibble of a byte comes first."""
    turned = np.asarray(word, np.uint32) ^ np.uint32(0x88888888)
    codes = [(turned >> np.uint32(4 * i) & np.uint32(15)).astype(np.float32) - np.float32(8) for i in range(8)]
    return tuple(_bf16_pair(codes[i], codes[i + 1]) for i in range(0, 8, 2))


def bf16_parts(low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Return two float32 as the sum of three pairs of bfloat16, which keep all their bits."""
    first = pack_bf16(low, high)
    low, high = low - as_float(first << _SHIFT), high - as_float(first & _UPPER)
    second = pack_bf16(low, high)
    return first, second, pack_bf16(low - as_float(second << _SHIFT), high - as_float(second & _UPPER))


def f16_parts(low: Any, high: Any) -> tuple[Any, Any]:
    """Return two float32 as the sum of two pairs of float16: 22 bits of numbers from 2**-14 to 2**15."""
    first = pack_f16(low, high)
    rounded = half_to_float(first)
    return first, pack_f16(low - rounded[0], high - rounded[1])


if not SIMULATOR:
    _HALVES_TO_BF16 = (
        "mov.b32 {l, h}, x; cvt.f32.f16 a, l; cvt.f32.f16 b, h; prmt.b32 $0, a, b, 0x7632; "
        "mov.b32 {l, h}, y; cvt.f32.f16 a, l; cvt.f32.f16 b, h; prmt.b32 $1, a, b, 0x7632;}"
    )
    registers(
        e4m3_to_bf16,
        "{.reg .b16 l, h; .reg .b32 x, y, a, b; mov.b32 {l, h}, $2; "
        "cvt.rn.f16x2.e4m3x2 x, l; cvt.rn.f16x2.e4m3x2 y, h; " + _HALVES_TO_BF16,
        "rr",
        "r",
    )
    registers(
        e5m2_to_bf16,
        "{.reg .b16 l, h; .reg .b32 x, y, a, b; prmt.b32 x, $2, 0, 0x1404; prmt.b32 y, $2, 0, 0x3424; "
        + _HALVES_TO_BF16,
        "rr",
        "r",
    )
    # A small code becomes the last bits of 2**23; a float32 subtraction takes that and the offset away.
    registers(
        int8_to_bf16,
        "{.reg .b32 x, a, b; xor.b32 x, $2, 0x80808080; "
        + "".join(
            f"prmt.b32 a, x, 0x4B000000, 0x744{2 * i}; prmt.b32 b, x, 0x4B000000, 0x744{2 * i + 1}; "
            f"sub.rn.f32 a, a, 0f4B000080; sub.rn.f32 b, b, 0f4B000080; prmt.b32 ${i}, a, b, 0x7632; "
            for i in range(2)
        )
        + "}",
        "rr",
        "r",
    )
    registers(
        int4_to_bf16,
        "{.reg .b32 x, y, a, b; xor.b32 x, $4, 0x88888888; shr.u32 y, x, 4; "
        "and.b32 x, x, 0x0F0F0F0F; and.b32 y, y, 0x0F0F0F0F; "
        + "".join(
            f"prmt.b32 a, x, 0x4B000000, 0x744{i}; prmt.b32 b, y, 0x4B000000, 0x744{i}; "
            f"sub.rn.f32 a, a, 0f4B000008; sub.rn.f32 b, b, 0f4B000008; prmt.b32 ${i}, a, b, 0x7632; "
            for i in range(4)
        )
        + "}",
        "rrrr",
        "r",
    )
    registers(
        bf16_parts,
        "{.reg .b32 a, b, l, h; cvt.rn.bf16x2.f32 $0, $4, $3; shl.b32 a, $0, 16; and.b32 b, $0, 0xFFFF0000; "
        "sub.rn.f32 l, $3, a; sub.rn.f32 h, $4, b; cvt.rn.bf16x2.f32 $1, h, l; shl.b32 a, $1, 16; "
        "and.b32 b, $1, 0xFFFF0000; sub.rn.f32 l, l, a; sub.rn.f32 h, h, b; cvt.rn.bf16x2.f32 $2, h, l;}",
        "rrr",
        "ff",
    )
    registers(
        f16_parts,
        "{.reg .b16 s, t; .reg .b32 a, b; cvt.rn.f16x2.f32 $0, $3, $2; mov.b32 {s, t}, $0; cvt.f32.f16 a, s; "
        "cvt.f32.f16 b, t; sub.rn.f32 a, $2, a; sub.rn.f32 b, $3, b; cvt.rn.f16x2.f32 $1, b, a;}",
        "rr",
        "ff",
    )


@device_function
def _same(words: Any, halves: Any, at: Any, count: Any) -> None:
    for i in range(count):
        halves[at + i] = words[i]


@device_function
def _from_e4m3(words: Any, halves: Any, at: Any, count: Any) -> None:
    for i in range(count):
        halves[at + 2 * i], halves[at + 2 * i + 1] = e4m3_to_bf16(words[i])


@device_function
def _from_e5m2(words: Any, halves: Any, at: Any, count: Any) -> None:
    for i in range(count):
        halves[at + 2 * i], halves[at + 2 * i + 1] = e5m2_to_bf16(words[i])


@device_function
def _from_int8(words: Any, halves: Any, at: Any, count: Any) -> None:
    for i in range(count):
        halves[at + 2 * i], halves[at + 2 * i + 1] = int8_to_bf16(words[i])


@device_function
def _from_int4(words: Any, halves: Any, at: Any, count: Any) -> None:
    for i in range(count):
        found = int4_to_bf16(words[i])
        for j in range(4):
            halves[at + 4 * i + j] = found[j]


WIDEN = {
    "bf16": _same,
    "f16": _same,
    "e4m3fn": _from_e4m3,
    "e5m2": _from_e5m2,
    "int8": _from_int8,
    "int4": _from_int4,
}
"""The function for each kind of storage: float16 for float16, bfloat16 for all others."""


@device_function
def _number_f32(words: Any, row: Any, d: Any) -> Any:
    return as_float(words[row + d])


@device_function
def _number_bf16(words: Any, row: Any, d: Any) -> Any:
    return as_float((words[row + (d >> 1)] >> uint32(16 * (d & 1))) << uint32(16))


@device_function
def _number_f16(words: Any, row: Any, d: Any) -> Any:
    return half_to_float(words[row + (d >> 1)] >> uint32(16 * (d & 1)))[0]


@device_function
def _number_e4m3(words: Any, row: Any, d: Any) -> Any:
    return half_to_float(e4m3_to_halves(words[row + (d >> 2)] >> uint32(8 * (d & 3)))[0])[0]


@device_function
def _number_e5m2(words: Any, row: Any, d: Any) -> Any:
    return half_to_float((words[row + (d >> 2)] >> uint32(8 * (d & 3)) & uint32(255)) << uint32(8))[0]


@device_function
def _number_int8(words: Any, row: Any, d: Any) -> Any:
    code = int32(words[row + (d >> 2)] >> uint32(8 * (d & 3)) & uint32(255))
    return float32(code - 256 if code > 127 else code)


@device_function
def _number_int4(words: Any, row: Any, d: Any) -> Any:
    code = int32(words[row + (d >> 3)] >> uint32(4 * (d & 7)) & uint32(15))
    return float32(code - 16 if code > 7 else code)


NUMBER = {
    "f32": _number_f32,
    "bf16": _number_bf16,
    "f16": _number_f16,
    "e4m3fn": _number_e4m3,
    "e5m2": _number_e5m2,
    "int8": _number_int8,
    "int4": _number_int4,
}
"""``number(words, row, d)``: number d of the row that begins at a word, as float32, without scale."""
