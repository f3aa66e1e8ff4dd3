"""Numbers of every type, as kernels see them: words of 8, 16 or 32 bits, widened and rounded in registers.

One compilation serves all types: an array comes as three, of which one has elements, and a kind says how to read them.
Everything is integer arithmetic on the bits of float32, so that no kernel needs another type of float, and the bits are
those of :mod:`pagedref.attention.quantize`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.kv_format import KVFormat
from pagedref_cuda import _runtime
from pagedref_cuda._runtime import device_function

__all__ = [
    "BFLOAT16", "FLOAT32", "INT4", "INT8", "NUMBERS", "UINT4", "Numbers", "copy_number", "kind_of", "kind_of_cache",
    "narrow", "number", "numbers", "of_words", "put", "quiet", "words",
]  # fmt: skip

Array = npt.NDArray[Any]

FLOAT32, FLOAT16, BFLOAT16, E4M3FN, E5M2, INT8, INT4, UINT4 = range(8)
_KINDS = {
    "float32": FLOAT32,
    "float16": FLOAT16,
    "bfloat16": BFLOAT16,
    "e4m3fn": E4M3FN,
    "float8_e4m3fn": E4M3FN,
    "e5m2": E5M2,
    "float8_e5m2": E5M2,
    "int8": INT8,
    "int4": INT4,
}
_TWO_112, _TWO_120 = np.float32(2.0**112), np.float32(2.0**120)
_TWO_9, _TWO_16, _TWO_24 = np.float32(2.0**9), np.float32(2.0**16), np.float32(2.0**24)
_ROUND = np.float32(1.5 * 2.0**23)  # adding it to a small number rounds that to an integer


class Numbers(NamedTuple):
    """An array (a, b, c, d) of any type: the one of three arrays that has elements, and how to read it.

    Attributes
    ----------
    kind : int
        ``FLOAT32`` ... ``UINT4``.
    octets, halves, words : arrays (a, b, c, d) of uint8, uint16 and uint32
        Two int4 share an octet, the low one first.
    """

    kind: int
    octets: Array
    halves: Array
    words: Array


_FOUR = "[:, :, :, :]"
NUMBERS = (Numbers, ("int64", f"uint8{_FOUR}", f"uint16{_FOUR}", f"uint32{_FOUR}"))
"""Type of :class:`Numbers` in the signature of a kernel."""


@device_function
def number(source: Numbers, i: int, j: int, k: int, d: int) -> Any:
    """Return one number as float32, exactly, without scale."""
    kind = source.kind
    a, b, c, e = np.uint64(i), np.uint64(j), np.uint64(k), np.uint64(d)  # an index without a sign costs no test for one
    if kind == FLOAT32:
        return source.words[a, b, c, e].view(np.float32)
    if kind == BFLOAT16:
        return np.uint32(np.int64(source.halves[a, b, c, e]) << 16).view(np.float32)
    if kind == FLOAT16:
        return _widen(np.int64(source.halves[a, b, c, e]), 15, 13, _TWO_112, 0x7C00)
    if kind == E4M3FN:
        return _widen(np.int64(source.octets[a, b, c, e]), 7, 20, _TWO_120, 0x7F)
    if kind == E5M2:
        return _widen(np.int64(source.octets[a, b, c, e]), 7, 21, _TWO_112, 0x7C)
    if kind == INT8:
        code = np.int64(source.octets[a, b, c, e])
        return np.float32(code - 256 if code > 127 else code)
    code = (np.int64(source.octets[a, b, c, np.uint64(d // 2)]) >> (4 * (d % 2))) & 15
    return np.float32(code - 16 if kind == INT4 and code > 7 else code)


@device_function
def _widen(code: Any, sign_at: int, shift: int, factor: np.float32, special: int) -> Any:
    """Move the bits of a narrow float into a float32; `special` is infinity, or the only NaN, and NaNs lie above."""
    size = code & ((1 << sign_at) - 1)
    if size >= special:
        infinite = size == special and shift != 20  # E4M3FN has no infinity
        bits = 0x7F800000 if infinite else 0x7FC00000 | (size << shift & 0x007FFFFF)
    else:  # what the smaller bias of the exponent leaves out is a factor; exact for subnormal numbers too
        bits = np.int64((np.uint32(size << shift).view(np.float32) * factor).view(np.uint32))
    return np.uint32(bits | code >> sign_at << 31).view(np.float32)


@device_function
def narrow(x: np.float32, kind: int) -> Any:
    """Return the code of `x` in a type of float, rounded to nearest even; what is too large is infinite (S16)."""
    bits = np.int64(x.view(np.uint32))
    if kind == FLOAT32:
        return bits
    if kind == FLOAT16:
        return _narrow(bits, 10, 15, 0x7C00, _TWO_24)
    if kind == BFLOAT16:
        return _narrow(bits, 7, 127, 0x7F80, _TWO_24)
    if kind == E4M3FN:
        return _narrow(bits, 3, 7, 0x7F, _TWO_9)
    return _narrow(bits, 2, 15, 0x7C, _TWO_16)


@device_function
def _narrow(bits: Any, mantissa: int, bias: int, special: int, factor: np.float32) -> Any:
    """Round the bits of a float32 to fewer; `factor` is the inverse of the smallest subnormal number."""
    size = bits & 0x7FFFFFFF
    drop = 23 - mantissa
    sign = (bits >> 31) << (7 if mantissa < 7 else 15)
    if size > 0x7F800000:
        if mantissa == 10:
            code = special + max((size & 0x007FFFFF) >> 13, 1)  # NumPy keeps what fits of the rest of a NaN
        else:
            code = special | (1 << (mantissa - 1))
    elif size < (128 - bias) << 23 and bias < 127:
        scaled = np.uint32(size).view(np.float32) * factor
        code = np.int64((scaled + _ROUND) - _ROUND)
    else:
        rounded = size + ((1 << (drop - 1)) - 1) + ((size >> drop) & 1)
        code = min((rounded >> drop) - ((127 - bias) << mantissa), special)
    return code | sign


@device_function
def quiet(x: np.float32) -> np.float32:
    """Return a NaN as arithmetic leaves it on a processor: its highest bit of the mantissa set, the others kept."""
    return np.uint32(np.int64(x.view(np.uint32)) | 0x00400000).view(np.float32)


@device_function
def put(target: Numbers, i: int, j: int, k: int, d: int, code: int) -> None:
    """Write the code of one number; int4 come in pairs, and `code` holds both of them at even `d`."""
    kind = target.kind
    if kind == FLOAT32:
        target.words[i, j, k, d] = np.uint32(code)
    elif kind in (FLOAT16, BFLOAT16):
        target.halves[i, j, k, d] = np.uint16(code)
    elif kind in (INT4, UINT4):
        target.octets[i, j, k, d // 2] = np.uint8(code)
    else:
        target.octets[i, j, k, d] = np.uint8(code & 255)


@device_function
def copy_number(source: Numbers, i: int, j: int, k: int, d: int, target: Numbers, m: int, n: int) -> None:
    """Copy the bits of one number to place ``(0, m, n, d)`` of an array of the same type."""
    if source.kind == FLOAT32:
        target.words[0, m, n, d] = source.words[i, j, k, d]
    elif source.kind in (FLOAT16, BFLOAT16):
        target.halves[0, m, n, d] = source.halves[i, j, k, d]
    else:
        target.octets[0, m, n, d] = source.octets[i, j, k, d]


def words(array: Any) -> Any:
    """View an array as unsigned integers with four axes; a missing first axis has size 1.

    Parameters
    ----------
    array : array (b, c, d) or (a, b, c, d) of any type
        Any strides.

    Returns
    -------
    array (a, b, c, d) of uint8, uint16, uint32 or uint64
        It shares memory with `array`.
    """
    shape = (1,) * (4 - array.ndim) + tuple(array.shape)
    return array.view(np.dtype(f"u{array.dtype.itemsize}")).reshape(shape)


def numbers(array: Any) -> Numbers:
    """Return an array of queries, new rows or outputs as kernels see it.

    Parameters
    ----------
    array : array (b, c, d) of float32, float16 or bfloat16
        Any strides.

    Returns
    -------
    Numbers
        The kind is what the type says.
    """
    return of_words(_runtime.readable(words(array)), kind_of(array.dtype))


def kind_of(dtype: np.dtype[Any]) -> int:
    """Return how the numbers of a type are read.

    Parameters
    ----------
    dtype : dtype
        float32, float16, bfloat16, float8_e4m3fn, float8_e5m2 or int8.

    Returns
    -------
    int
        ``FLOAT32`` ...
    """
    return _KINDS[dtype.name]


def kind_of_cache(form: KVFormat) -> int:
    """Return how the numbers of a cache are read.

    Parameters
    ----------
    form : KVFormat
        The format.

    Returns
    -------
    int
        ``FLOAT32`` ...
    """
    return UINT4 if form.zero_point and form.kind == "int4" else _KINDS[form.kind]


def of_words(lent: Any, kind: int) -> Numbers:
    """Return words that kernels can reach as numbers.

    Parameters
    ----------
    lent : array (a, b, c, d) of uint8, uint16 or uint32
        From :func:`words`, on the device.
    kind : int
        How to read them.

    Returns
    -------
    Numbers
        The other two arrays are empty.
    """
    own = {FLOAT32: 4, FLOAT16: 2, BFLOAT16: 2}.get(kind, 1)
    return Numbers(kind, *(lent if size == own else _empty(size) for size in (1, 2, 4)))


@cache
def _empty(size: int) -> Any:
    return _runtime.readable(np.zeros((0, 0, 0, 0), f"u{size}"))
