"""Writing to a quantised cache and reading from it, to the bit (S16-S18).

Stored = ``x / scale`` (plus the zero point), saturated, rounded once to nearest even; read = ``stored * scale``, or
``(stored - zero) * scale``. Every step is one float32 operation, so that a kernel can do the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.kv_format import KINDS, KVFormat

__all__ = ["Quantized", "choose_scales", "dequantize", "pack_int4", "quantize", "rescaled", "unpack_int4", "widen"]

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

_SMALLEST = np.float32(np.finfo(np.float32).tiny)
_LARGEST = np.float32(np.finfo(np.float32).max * (1 - 2.0**-20))  # so that the end of a range is read as finite


class Quantized(NamedTuple):
    """Rows as they are stored.

    Attributes
    ----------
    stored : array
        Numbers in the type of the format; int4 packed.
    scale, zero : arrays of float32 or None
        Computed for these rows; None where the format does not compute them.
    """

    stored: Array
    scale: Float32 | None
    zero: Float32 | None


def pack_int4(nibbles: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Put two nibbles into a byte, the low one first.

    Parameters
    ----------
    nibbles : array (..., 2 n) of uint8, 0 .. 15
        Two's complement where values are signed.

    Returns
    -------
    array (..., n) of uint8

    Examples
    --------
    >>> pack_int4(np.array([1, 15], np.uint8)).tolist()
    [241]
    """
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << np.uint8(4))


def unpack_int4(packed: npt.NDArray[np.uint8], *, signed: bool) -> Float32:
    """Read nibbles as numbers.

    Parameters
    ----------
    packed : array (..., n) of uint8
        Two nibbles each, the low one first.
    signed : bool
        ``-8 .. 7`` instead of ``0 .. 15``.

    Returns
    -------
    array (..., 2 n) of float32

    Examples
    --------
    >>> unpack_int4(np.array([241], np.uint8), signed=True).tolist()
    [1.0, -1.0]
    """
    numbers = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.float32)
    numbers[..., 0::2] = packed & np.uint8(15)
    numbers[..., 1::2] = packed >> np.uint8(4)
    if signed:
        numbers -= np.float32(16) * (numbers >= 8)
    return numbers


def choose_scales(rows: Float32, form: KVFormat) -> tuple[Float32, Float32 | None]:
    """Choose scale and zero point of each row of values that share them (S17).

    Parameters
    ----------
    rows : array (..., channels) of float32
        Live values only; the last axis shares a scale.
    form : KVFormat
        Granularity ``slot_head`` or ``group``.

    Returns
    -------
    scale : array (...) of float32
        Positive and finite; subnormal only where a range is one subnormal value.
    zero : array (...) of float32 or None
        An integer; None without zero points.

    Notes
    -----
    Infinities and NaNs take no part in a range. Zero points are whole numbers, of any size where a range is narrow and
    far from 0. A range that is one value c has scale ``|c|``, so that it is stored as
    1 or -1 beside the zero point and comes back exactly; 0 has scale 1 (P32).

    Examples
    --------
    >>> choose_scales(np.array([[2.5, 2.5], [-1.0, 127.0]], np.float32), KVFormat("int8", "slot_head"))[0].tolist()
    [2.5, 1.0]
    """
    finite = np.isfinite(rows)
    with np.errstate(invalid="ignore"):
        low = np.where(finite, rows, np.float32(np.inf)).min(axis=-1, initial=np.inf)
        high = np.where(finite, rows, np.float32(-np.inf)).max(axis=-1, initial=-np.inf)
    low, high = np.where(low > high, np.float32(0), low), np.where(low > high, np.float32(0), high)
    single = low == high
    one_value = np.where(low == 0, np.float32(1), np.abs(low))
    low, high = np.clip(low, -_LARGEST, _LARGEST), np.clip(high, -_LARGEST, _LARGEST)
    if form.zero_point:
        steps = np.float32(15 if form.kind == "int4" else 254)
        with np.errstate(over="ignore"):
            width = high - low  # exact for neighbours, so that the zero point stays finite; too wide only far apart
        step = np.where(np.isfinite(width), width / steps, high / steps - low / steps)
        spread = np.maximum(step, _SMALLEST)
        lowest = np.float32(0 if form.kind == "int4" else -127)
        zero = np.where(single, np.float32(lowest + 8), lowest + np.rint(-low / np.where(single, 1, spread)))
        return np.where(single, one_value, spread).astype(np.float32), zero.astype(np.float32)
    largest = np.float32(KINDS[form.kind].largest)
    absolute = np.maximum(np.abs(low), np.abs(high))
    scale = np.where(single, one_value, np.maximum(absolute / largest, _SMALLEST))
    return scale.astype(np.float32), None


def quantize(
    values: Array, form: KVFormat, scale: Float32 | None = None, zero: Float32 | None = None
) -> Quantized:
    """Round values to the numbers of a format (S16).

    Parameters
    ----------
    values : array (..., dim) of a floating type
        Taken as float32 (float64 where the format is).
    form : KVFormat
        The format.
    scale : array of float32, optional
        Broadcasts against `values`, without the last axis; given for all granularities that are not computed.
    zero : array of float32, optional
        Likewise.

    Returns
    -------
    Quantized
        With the scales and zero points that were computed.

    Notes
    -----
    Agreement: EXACT. NaN stays NaN where the format has one and becomes 0 (the zero point) in integers.

    Examples
    --------
    >>> quantize(np.array([[448.0, 465.0, -1000.0]]), KVFormat("e4m3fn")).stored.astype(float).tolist()
    [[448.0, 448.0, -448.0]]
    """
    kind = KINDS[form.kind]
    if kind.name == "float64":
        wide = values.astype(np.float64)
        return Quantized(wide if scale is None else wide / scale[..., None], None, None)
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32, copy=False)
    computed: Float32 | None = None
    origin: Float32 | None = None
    if form.computed:
        channels = form.group_size or numbers.shape[-1]
        grouped = numbers.reshape(*numbers.shape[:-1], numbers.shape[-1] // channels, channels)
        computed, origin = choose_scales(grouped, form)
        factor: Any = np.repeat(computed, grouped.shape[-1], axis=-1)  # (..., dim)
        shift = None if origin is None else np.repeat(origin, grouped.shape[-1], axis=-1)
        if form.granularity == "slot_head":
            computed, origin = computed[..., 0], None if origin is None else origin[..., 0]
    else:
        factor = np.float32(1) if scale is None else scale[..., None]
        shift = None if zero is None else zero[..., None]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ratio = numbers if scale is None and computed is None else numbers / factor
        if kind.integer:
            ratio = np.where(np.isnan(ratio), np.float32(0), ratio)
            low, high = (-kind.largest, kind.largest) if kind.name == "int8" else (-8.0, 7.0)
            if form.zero_point:
                low, high = (-127.0, 127.0) if kind.name == "int8" else (0.0, 15.0)
            if shift is not None:
                ratio = ratio + shift
            whole = np.rint(np.clip(ratio, np.float32(low), np.float32(high)))
            if kind.name == "int4":
                return Quantized(pack_int4(whole.astype(np.int8).view(np.uint8) & np.uint8(15)), computed, origin)
            return Quantized(whole.astype(np.int8), computed, origin)
        if kind.name == "float32":
            return Quantized(ratio, None, None)
        if np.isfinite(kind.largest):
            ratio = np.clip(ratio, np.float32(-kind.largest), np.float32(kind.largest))  # NaN stays
        return Quantized(ratio.astype(kind.dtype), computed, origin)


def widen(stored: Array, form: KVFormat, out: Array | None = None) -> Array:
    """Return stored numbers in float32 (float64 for float64), exactly, without scale.

    Parameters
    ----------
    stored : array
        In the type of the format, C-contiguous; int4 packed along the last axis.
    form : KVFormat
        The format.
    out : array of float32, optional
        Receives the numbers; C-contiguous, of the unpacked shape.

    Returns
    -------
    array of float32 or float64
        NaN where NaN is stored. float32 and float64 are returned as they are.

    Notes
    -----
    A narrow float is moved into the bits of a float32 and multiplied by a power of two, which is exact for its
    subnormals too; only infinities and NaNs are set apart. A cast would cost ten times more.
    """
    kind = form.kind
    if kind in ("float32", "float64"):
        return stored
    if out is None:
        last = 2 * stored.shape[-1] if kind == "int4" else stored.shape[-1]
        out = np.empty((*stored.shape[:-1], last), np.float32)
    if kind == "int8":
        np.copyto(out, stored)
    elif kind == "int4":
        table = _NIBBLES[not form.zero_point]
        table.take(stored, out=out.view(np.complex64), mode="clip")
    elif kind == "bfloat16":
        bits = out.view(np.uint32)
        np.copyto(bits, stored.view(np.uint16))
        np.left_shift(bits, np.uint32(16), out=bits)
    else:
        _widen_float(stored, _LAYOUTS[kind], out)
    return out


class _Layout(NamedTuple):
    """Where a narrow float lies in the bits of a float32."""

    codes: Any  # signed integer of the same width: its sign fills the upper bits
    shift: int  # to the place of the mantissa
    keep: int  # sign, exponent and mantissa
    factor: float  # what the smaller exponent bias leaves out
    largest: int  # code of the largest finite number; what is above is infinite (if there is one) or NaN
    infinity: int  # code of infinity, or -1


_LAYOUTS = {
    "float16": _Layout(np.int16, 13, -0x70002000, 2.0**112, 0x7BFF, 0x7C00),
    "e4m3fn": _Layout(np.int8, 20, -0x78100000, 2.0**120, 0x7E, -1),
    "e5m2": _Layout(np.int8, 21, -0x70200000, 2.0**112, 0x7B, 0x7C),
}
_NIBBLES = {  # both values of a byte, as a pair of float32
    signed: unpack_int4(np.arange(256, dtype=np.uint8)[:, None], signed=signed).view(np.complex64)[:, 0]
    for signed in (False, True)
}


def _widen_float(stored: Array, layout: _Layout, out: Array) -> None:
    """Move the codes of a narrow float into float32."""
    bits = out.view(np.int32)
    codes = stored.view(layout.codes)
    np.copyto(bits, codes)
    np.left_shift(bits, np.int32(layout.shift), out=bits)
    np.bitwise_and(bits, np.int32(layout.keep), out=bits)
    np.multiply(out, np.float32(layout.factor), out=out)
    sign = np.iinfo(layout.codes).min
    magnitude = codes & layout.codes(~sign)
    if magnitude.size and magnitude.max() > layout.largest:
        infinite = magnitude == layout.infinity
        out[infinite] = np.copysign(np.float32(np.inf), out[infinite])
        out[(magnitude > layout.largest) & ~infinite] = np.nan


def dequantize(
    stored: Array, form: KVFormat, scale: Float32 | None = None, zero: Float32 | None = None
) -> Array:
    """Read stored numbers: ``(stored - zero) * scale`` (S16).

    Parameters
    ----------
    stored : array (..., dim)
        Numbers in the type of the format; int4 packed.
    form : KVFormat
        The format.
    scale, zero : arrays of float32, optional
        Broadcast against `stored` without its last axis; for granularity ``group`` with an axis of groups at the end.

    Returns
    -------
    array (..., dim) of float32 or float64

    Notes
    -----
    Agreement: EXACT: one subtraction and one product, each rounded to float32.

    Examples
    --------
    >>> form = KVFormat("int8", "slot_head")
    >>> stored, scale, _ = quantize(np.array([[0.5, -1.0]]), form)
    >>> stored.tolist(), dequantize(stored, form, scale).astype(float).round(3).tolist()
    ([[64, -127]], [[0.504, -1.0]])
    """
    return rescaled(widen(stored, form), form, scale, zero)


def rescaled(numbers: Array, form: KVFormat, scale: Float32 | None, zero: Float32 | None) -> Array:
    """Apply zero points and scales to numbers that are wide already.

    Parameters
    ----------
    numbers : array (..., dim) of float32 or float64
        Stored numbers.
    form, scale, zero
        As in :func:`dequantize`.

    Returns
    -------
    array (..., dim)
        The same array where there is nothing to apply.
    """
    if scale is None and zero is None:
        return numbers
    if form.granularity == "group":
        channels = form.group_size or 1
        grouped = numbers.reshape(*numbers.shape[:-1], numbers.shape[-1] // channels, channels)
    else:
        grouped = numbers
    with np.errstate(invalid="ignore", over="ignore"):
        if zero is not None:
            grouped = grouped - zero[..., None]
        if scale is not None:
            grouped = grouped * scale[..., None]
    return grouped.reshape(numbers.shape)
