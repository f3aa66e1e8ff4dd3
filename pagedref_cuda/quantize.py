"""Writing numbers in the format of a cache: scales, saturation, rounding, to the bit (S16, S17).

The twin of :mod:`pagedref.attention.quantize`: the same float32 operations in the same order, none of them fused, as no
product is ever added to anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.storage import Storage
from pagedref_cuda._device import rint
from pagedref_cuda._numbers import INT4, INT8, UINT4, Numbers, narrow, number, put, quiet
from pagedref_cuda._runtime import device_function
from pagedref_cuda._storage import STORED, Stored, token_scale

__all__ = ["TARGET", "Target", "target", "write_row"]

Array = npt.NDArray[Any]

_ZERO, _ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)
_SMALLEST = np.float32(np.finfo(np.float32).tiny)
_LARGEST = np.float32(np.finfo(np.float32).max * (1 - 2.0**-20))  # so that the end of a range is read as finite
_EIGHT, _INT4_STEPS, _INT8_STEPS, _INT8_LOWEST = np.float32(8), np.float32(15), np.float32(254), np.float32(-127)


class Target(NamedTuple):
    """A cache that is written.

    Attributes
    ----------
    cache : Stored
        Numbers, scales and zero points; the last two are read, or written where `computed`.
    computed : int
        Whether scales are chosen at the write (S17).
    low, high : float32
        Where numbers saturate; infinite where they do not.
    """

    cache: Stored
    computed: int
    low: np.float32
    high: np.float32


TARGET = (Target, (STORED, "int64", "float32", "float32"))
"""Type of :class:`Target` in the signature of a kernel."""


def target(cache: Stored, side: Storage) -> Target:
    """Return a cache that is written as kernels see it.

    Parameters
    ----------
    cache : Stored
        The cache.
    side : Storage
        Its stored form.

    Returns
    -------
    Target
        With the numbers at which its format saturates.
    """
    form = side.form
    if form.kind == "int4":
        low, high = (0.0, 15.0) if form.zero_point else (-8.0, 7.0)
    else:
        high = {"e4m3fn": 448.0, "e5m2": 57344.0, "int8": 127.0}.get(form.kind, np.inf)
        low = -high
    return Target(cache, int(form.computed), np.float32(low), np.float32(high))


@device_function
def _finite(x: np.float32) -> Any:
    return x - x == _ZERO


@device_function
def _choose(rows: Numbers, token: int, head: int, first: int, target: Target) -> tuple[np.float32, np.float32]:
    """Choose scale and zero point of a group of channels: the twin of ``choose_scales``."""
    low = _INFINITY
    high = -_INFINITY
    for d in range(first, first + target.cache.channels):
        x = number(rows, 0, token, head, d)
        if _finite(x):
            low = min(low, x)
            high = max(high, x)
    if low > high:
        low = _ZERO
        high = _ZERO
    one_value = _ONE if low == _ZERO else abs(low)
    single = low == high
    low = min(max(low, -_LARGEST), _LARGEST)
    high = min(max(high, -_LARGEST), _LARGEST)
    if target.cache.zeroed:
        int4 = target.cache.numbers.kind == UINT4
        steps = _INT4_STEPS if int4 else _INT8_STEPS
        lowest = _ZERO if int4 else _INT8_LOWEST
        width = high - low
        step = width / steps if _finite(width) else high / steps - low / steps
        spread = max(step, _SMALLEST)
        if single:
            return one_value, lowest + _EIGHT
        return spread, lowest + rint(-low / spread)
    if single:
        return one_value, _ZERO
    return max(max(abs(low), abs(high)) / target.high, _SMALLEST), _ZERO


@device_function
def _code(x: np.float32, scale: np.float32, zero: np.float32, target: Target) -> Any:
    """Return the code of one number: divided, saturated, rounded once (S16)."""
    kind = target.cache.numbers.kind
    integer = kind in (INT8, INT4, UINT4)
    if x != x:
        if not integer:
            return narrow(quiet(x) if target.cache.scaled else x, kind)
        x = _ZERO
    elif target.cache.scaled:
        x = x / scale
    if target.cache.zeroed:
        x = x + zero
    x = min(max(x, target.low), target.high)
    if integer:
        return np.int64(rint(x))
    return narrow(x, kind)


@device_function
def write_row(rows: Numbers, token: int, head: int, dim: int, target: Target, frame: int, offset: int) -> None:
    """Write a row of one kv head into its slot, with its scales and zero points where these are computed."""
    cache = target.cache
    kind = cache.numbers.kind
    scale = _ONE
    zero = _ZERO
    low_nibble = 0
    for d in range(dim):
        group = d // cache.channels
        if d % cache.channels == 0:
            if target.computed:
                scale, zero = _choose(rows, token, head, d, target)
                cache.scale[frame, offset, head, group] = scale
                if cache.zeroed:
                    cache.zero[frame, offset, head, group] = zero
            elif cache.scaled:
                scale = token_scale(cache.scale, frame, offset, head, group)
        code = _code(number(rows, 0, token, head, d), scale, zero, target)
        if kind in (INT4, UINT4):
            if d % 2 == 0:
                low_nibble = code & 15
            else:
                put(cache.numbers, frame, offset, head, d, low_nibble | (code & 15) << 4)
        else:
            put(cache.numbers, frame, offset, head, d, code)
