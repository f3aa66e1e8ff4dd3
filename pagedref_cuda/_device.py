"""Functions that kernels call: the address arithmetic of the reference, and float32 elementary functions."""

from __future__ import annotations

import math

import numpy as np

from pagedref import addressing
from pagedref_cuda._runtime import device_function, multiply_rounded

__all__ = [
    "exp",
    "frame_of_slot",
    "interval",
    "log",
    "multiply_rounded",
    "offset_of",
    "offset_of_slot",
    "page_of",
    "rint",
    "slot_of",
    "tanh",
]

page_of = device_function(addressing.page_of)
offset_of = device_function(addressing.offset_of)
slot_of = device_function(addressing.slot_of)
frame_of_slot = device_function(addressing.frame_of_slot)
offset_of_slot = device_function(addressing.offset_of_slot)

_WHOLE = np.float32(2.0**23)  # from here on, every float32 is an integer


@device_function
def exp(x: np.float32) -> np.float32:
    """Return e**x in float32; every argument in this package is <= 0, infinite or NaN."""
    return np.float32(math.exp(x))


@device_function
def log(x: np.float32) -> np.float32:
    """Return the natural log of x > 0 in float32."""
    return np.float32(math.log(x))


@device_function
def tanh(x: np.float32) -> np.float32:
    """Return the hyperbolic tangent in float32; +-1 for any large argument."""
    return np.float32(math.tanh(x))


@device_function
def rint(x: np.float32) -> np.float32:
    """Return the nearest integer, of two the even one; a zero may lose its sign."""
    if x > -_WHOLE and x < _WHOLE:
        if x < 0:
            return (x - _WHOLE) + _WHOLE
        return (x + _WHOLE) - _WHOLE
    return x


@device_function
def interval(
    position: int, kv_len: int, causal: int, window_left: int, window_right: int, attention_chunk: int
) -> tuple[int, int]:
    """Return the keys that a query may see before any mask: ``start <= key < stop`` (S3-S5).

    The twin of ``AttentionOptions.intervals``; a window of -1 and a chunk of 0 are off.
    """
    start = 0
    stop = kv_len
    if causal:
        stop = min(stop, position + 1)
    if window_left >= 0:
        start = max(start, position - window_left)
    if window_right >= 0:
        stop = min(stop, position + window_right + 1)
    if attention_chunk > 0:
        first = position // attention_chunk * attention_chunk  # floor, also for negative positions
        start = max(start, first)
        stop = min(stop, first + attention_chunk)
    return start, stop
