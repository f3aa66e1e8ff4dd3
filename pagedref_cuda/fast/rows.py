"""How a row of attention leaves a kernel: finished into the output, or as a part that waits to be merged."""

from __future__ import annotations

from typing import Any

from numba import int64

from pagedref_cuda._ptx import as_word, pack_bf16, pack_f16, stg
from pagedref_cuda._runtime import device_function

__all__ = ["STORE", "store_bf16", "store_f16", "store_f32"]


@device_function
def store_f32(words: Any, i: Any, numbers: Any, first: Any, factor: Any) -> None:
    """Write four numbers from `first` of a local array, times `factor`, at number `i` of an array of float32."""
    stg(
        words,
        i,
        (
            as_word(numbers[first] * factor),
            as_word(numbers[first + 1] * factor),
            as_word(numbers[first + 2] * factor),
            as_word(numbers[first + 3] * factor),
        ),
    )


@device_function
def store_bf16(words: Any, i: Any, numbers: Any, first: Any, factor: Any) -> None:
    """Write four numbers as :func:`store_f32` does, rounded once to bfloat16, two in a word."""
    low = pack_bf16(numbers[first] * factor, numbers[first + 1] * factor)
    stg(words, int64(i) >> 1, (low, pack_bf16(numbers[first + 2] * factor, numbers[first + 3] * factor)))


@device_function
def store_f16(words: Any, i: Any, numbers: Any, first: Any, factor: Any) -> None:
    """Write four numbers as :func:`store_f32` does, rounded once to float16, two in a word."""
    low = pack_f16(numbers[first] * factor, numbers[first + 1] * factor)
    stg(words, int64(i) >> 1, (low, pack_f16(numbers[first + 2] * factor, numbers[first + 3] * factor)))


STORE = {"f32": store_f32, "bf16": store_bf16, "f16": store_f16}
"""The function for each type of output."""
