"""What the kernels of all fast rungs share: the address of a key, scores in base 2, the end of a row.

Scores are kept in base 2 inside: ``exp2`` is one instruction. The host multiplies the factors by log2(e) once, and a
row's lse returns to the natural log when it is written (S9).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float32, int64, uint32

from pagedref_cuda._ptx import as_float, exp2, half_to_float
from pagedref_cuda._runtime import device_function

__all__ = [
    "ALL_LANES",
    "LN_2",
    "LOG2_E",
    "finish",
    "place",
    "score",
    "unpack_bf16",
    "unpack_f16",
    "unpack_f32",
]

LOG2_E = 1.0 / math.log(2.0)
LN_2 = np.float32(math.log(2.0))
ALL_LANES = 0xFFFFFFFF
_MINUS_INFINITY = np.float32(-np.inf)
_ZERO = np.float32(0.0)


@device_function
def place(key: Any, page_size: Any, first_page: Any, kv_indices: Any) -> Any:
    """Return frame and offset of a key (S19); the quotient has 32 bits, everything after it 64."""
    page = int64(uint32(key) // uint32(page_size))
    return kv_indices[first_page + page], int64(key) - page * page_size


@device_function
def score(product: Any, key: Any, position: Any, scale: Any, softcap: Any, slope: Any) -> Any:
    """Return the final score of a key in base 2 (S1, S2, S6).

    `scale` is ``sm_scale * log2(e)``; with a softcap it is ``sm_scale / cap``, and `softcap` is ``cap * log2(e)``.
    """
    value = product * scale
    if softcap > _ZERO:
        value = softcap * float32(math.tanh(value))
    if slope != _ZERO:
        value += slope * float32(key - position)
    return value


@device_function
def finish(top: Any, total: Any, sink: Any) -> Any:
    """Return what a row is multiplied by, and its lse, from maximum, sum and sink in base 2 (S8, S9, S11)."""
    joint = max(top, sink)
    if joint == _MINUS_INFINITY:
        return _ZERO, _MINUS_INFINITY
    shrink = exp2(top - joint)
    whole = total * shrink + exp2(sink - joint)
    return shrink / whole, (joint + float32(math.log2(whole))) * LN_2


@device_function
def unpack_f32(words: Any, i: Any) -> Any:
    """Return number `i` of a tuple of words that hold float32."""
    return as_float(words[i])


@device_function
def unpack_bf16(words: Any, i: Any) -> Any:
    """Return number `i` of a tuple of words that hold two bfloat16 each, the low one first."""
    word = words[i >> 1]
    return as_float(word & uint32(0xFFFF0000) if i & 1 else word << uint32(16))


@device_function
def unpack_f16(words: Any, i: Any) -> Any:
    """Return number `i` of a tuple of words that hold two float16 each, the low one first."""
    return half_to_float(words[i >> 1])[i & 1]
