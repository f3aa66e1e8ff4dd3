"""Number formats, rounding and the constants of the error bounds.

A test never holds a tolerance of its own: it compares under an agreement class (see :mod:`pagedref.contract`), and the
class ``BOUND`` takes its numbers from here, through the oracle.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["EXP_ULPS", "LOG_ULPS", "TANH_ULPS", "accumulator", "gamma", "tiny", "unit_roundoff", "widen_bfloat16"]

EXP_ULPS = 3.0
"""Largest error granted to ``exp``, in ulp: NumPy states 2.52 for its vector float32 ``exp``, CUDA's ``expf`` 2."""

LOG_ULPS = 4.0
"""Largest error granted to ``log``, in ulp: NumPy states 3.83 for its vector float32 ``log``, CUDA's ``logf`` 1."""

TANH_ULPS = 4.0
"""Largest error granted to ``tanh``, in ulp: CUDA's ``tanhf`` states 1, NumPy's stays below 4."""


_finfo: Any = ml_dtypes.finfo  # knows the types of NumPy too


def unit_roundoff(dtype: npt.DTypeLike) -> float:
    """Return half the distance from 1 to the next larger number.

    Parameters
    ----------
    dtype : dtype
        A binary floating type of NumPy or `ml_dtypes`.

    Returns
    -------
    float
        The relative error of one correctly rounded operation.

    Examples
    --------
    >>> unit_roundoff("float32") == 2.0 ** -24
    True
    """
    return float(_finfo(dtype).eps) / 2


def tiny(dtype: npt.DTypeLike) -> float:
    """Return the smallest positive (subnormal) number: the absolute error of an underflow.

    Parameters
    ----------
    dtype : dtype
        A binary floating type of NumPy or `ml_dtypes`.

    Returns
    -------
    float
        For float32, 2**-149.
    """
    return float(_finfo(dtype).smallest_subnormal)


def gamma(terms: float, dtype: npt.DTypeLike) -> float:
    """Bound the relative error of a chain of rounded operations in any order.

    Parameters
    ----------
    terms : float
        Number of roundings that one term of the result passes through.
    dtype : dtype
        The arithmetic.

    Returns
    -------
    float
        ``n u / (1 - n u)``; infinite where ``n u >= 1``.

    References
    ----------
    N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1, lemma 3.1.

    Examples
    --------
    >>> gamma(1, "float64") >= 2.0 ** -53
    True
    """
    product = terms * unit_roundoff(dtype)
    return product / (1 - product) if product < 1 else float("inf")


def accumulator(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the type in which scores, sums and the lse are held (S15).

    Parameters
    ----------
    dtype : dtype
        The type of the queries.

    Returns
    -------
    dtype
        The type float64 for float64 queries, float32 for all others.

    Examples
    --------
    >>> accumulator("float16").name, accumulator("float64").name
    ('float32', 'float64')
    """
    return np.dtype(np.float64) if np.dtype(dtype) == np.float64 else np.dtype(np.float32)


def widen_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Widen bfloat16 bit patterns to float32, exactly.

    Parameters
    ----------
    bits : array of uint16, any shape
        The upper half of a float32.

    Returns
    -------
    array of float32, same shape
        Every value, NaN included, as it was stored.

    Examples
    --------
    >>> widen_bfloat16(np.array([0x3F80, 0xC040], dtype=np.uint16)).tolist()
    [1.0, -3.0]
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
