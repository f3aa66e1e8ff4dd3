"""Weights on the device: float32, or 16-bit numbers that kernels widen in registers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref_cuda import _runtime
from pagedref_cuda._ptx import as_float, half_to_float
from pagedref_cuda._runtime import device_function
from pagedref_cuda.fast.words import flat_words

__all__ = ["BFLOAT16", "FLOAT16", "FLOAT32", "Weight", "weight_number"]

Array = npt.NDArray[Any]

FLOAT32, FLOAT16, BFLOAT16 = range(3)
_KINDS = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}
_SIXTEEN = np.uint32(16)


class Weight:
    """A matrix that lies on the device, as the kernels of each rung see it.

    Parameters
    ----------
    array : array (rows, columns) of float32, float16 or bfloat16
        On the host, from which it is copied once, or on the device.

    Attributes
    ----------
    kind : int
        ``FLOAT32``, ``FLOAT16`` or ``BFLOAT16``.
    shape : pair of int
        Rows and columns.
    """

    def __init__(self, array: Any) -> None:
        self.kind = _KINDS[array.dtype.name]
        self.shape = (int(array.shape[0]), int(array.shape[1]))
        whole = array.view(np.dtype(f"u{array.dtype.itemsize}"))
        on_host = isinstance(whole, np.ndarray)
        self._whole: Any = _runtime.to_device(whole) if on_host and _runtime.mode() == "gpu" else whole

    @cached_property
    def halves(self) -> Any:
        """The numbers as uint16 (rows, columns); empty for float32."""
        return _runtime.readable(np.zeros((0, 0), np.uint16) if self.kind == FLOAT32 else self._whole)

    @cached_property
    def words(self) -> Any:
        """The numbers as uint32 (rows, columns); empty for 16-bit numbers."""
        return _runtime.readable(self._whole if self.kind == FLOAT32 else np.zeros((0, 0), np.uint32))

    @cached_property
    def flat(self) -> Any:
        """All numbers in a row, as words, if each row of the matrix is whole pieces of 16 bytes; else None."""
        numbers = 4 if self.kind == FLOAT32 else 8
        return None if self.shape[1] % numbers else flat_words(self._whole)


@device_function
def weight_number(kind: int, halves: Array, words: Array, i: int, j: int) -> Any:
    """Return one number of a matrix as float32, exactly."""
    if kind == FLOAT32:
        return as_float(words[i, j])
    word = np.uint32(halves[i, j])
    if kind == BFLOAT16:
        return as_float(word << _SIXTEEN)
    return half_to_float(word)[0]
