"""``exp``, ``log`` and ``tanh`` in float32, made of operations that every machine rounds the same way.

A library's ``exp`` has other bits on every machine. Ours is a fixed list of multiplications, additions and
subtractions, each rounded once and never fused, of integer operations on bit patterns, and of comparisons (``tanh`` has
one division); a kernel that performs the same list has the same bits. The bodies are written with operators,
``view``, ``np.minimum`` and ``np.maximum`` alone, so a compiler of kernels takes them as they are, with scalars for
arrays, provided that it does not contract ``a * b + c``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ordered_exp", "ordered_log", "ordered_lse", "ordered_tanh", "select"]

Float32: TypeAlias = npt.NDArray[np.float32]
Flags: TypeAlias = npt.NDArray[np.bool_]

_f = np.float32  # constants stand here with the digits that name one float32

# exp: x = n ln 2 + r with |r| <= ln 2 / 2, then exp(r) = 1 + r + r * r * q(r).
_EXP_LOWEST = _f(-104.0)  # below half the smallest subnormal from here on
_EXP_HIGHEST = _f(89.0)  # overflows from 88.72284 on
_LOG2_E = _f(1.4426950408889634)
_ROUND = _f(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer, which then lies in the low bits
_ROUND_BITS = np.int32(0x4B400000)
_LN2_HIGH = _f(0.693145751953125)  # 15 bits, so that n * _LN2_HIGH is exact
_LN2_LOW = _f(1.4286068203094172e-06)
_Q0, _Q1, _Q2 = _f(0.5), _f(0.16666667), _f(0.04166627)
_Q3, _Q4, _Q5 = _f(0.008333264), _f(0.0013946119), _f(0.00019918448)

# log: x = 2**k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), then log(1 + f) = f - f * f / 2 + f**3 * p(f).
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_SMALLEST_NORMAL = _f(2.0**-126)
_TWO_23 = _f(2.0**23)
_P0, _P1, _P2, _P3, _P4 = _f(0.3333333), _f(-0.24999967), _f(0.20000091), _f(-0.16669406), _f(0.14285117)
_P5, _P6, _P7, _P8, _P9 = _f(-0.12424393), _f(0.1103621), _f(-0.10819608), _f(0.10632007), _f(-0.059767842)

# tanh: x + x**3 * t(x * x) below _TANH_BORDER, 1 - 2 / (exp(2 |x|) + 1) above it.
_TANH_BORDER = _f(0.55)
_T0, _T1, _T2 = _f(-0.3333333), _f(0.13333295), _f(-0.05395979)
_T3, _T4, _T5 = _f(0.02178377), _f(-0.008416794), _f(0.0023989996)

_HALF, _ONE, _TWO, _ZERO = _f(0.5), _f(1.0), _f(2.0), _f(0.0)
_INFINITY, _NAN = _f(np.inf), _f(np.nan)
_NO_SIGN = np.int32(0x7FFFFFFF)


def select(condition: Flags, yes: Float32 | np.float32, no: Float32 | np.float32) -> Float32:
    """Return `yes` where `condition` holds and `no` elsewhere, bit for bit.

    Parameters
    ----------
    condition : array of bool
        Any shape.
    yes, no : arrays of float32
        Broadcast against `condition`; what is not selected may be NaN.

    Returns
    -------
    array of float32

    Examples
    --------
    >>> select(np.array([True, False]), np.float32([1, 2]), np.float32([np.nan, 4])).tolist()
    [1.0, 4.0]
    """
    mask = -np.int32(condition)  # all bits or none
    bits: Any = np.int32((yes.view(np.int32) & mask) | (no.view(np.int32) & ~mask)).view(np.float32)
    result: Float32 = bits
    return result


def ordered_exp(x: Float32) -> Float32:
    """Return ``exp(x)``, at most 0.69 ulp from the exact value (0.77 ulp where that is subnormal).

    Parameters
    ----------
    x : array of float32
        Any values, infinities and NaN included.

    Returns
    -------
    array of float32, same shape
        Subnormal results are rounded, not flushed; 0 from -103.98 downwards, inf from 88.72284 upwards; 1 for 0; NaN
        for NaN.

    Notes
    -----
    Agreement: ORDERED. Operations: minimum, maximum, 12 multiplications, 17 additions and subtractions; shifts, sums
    and reinterpretations of int32. What the subtraction of ``n * low`` and the sum ``1 + r`` lose is added back at the
    end.

    References
    ----------
    W. J. Cody, W. Waite, Software Manual for the Elementary Functions, 1980, chapter 6 (argument reduction).
    P. T. P. Tang, Table-driven implementation of the exponential function in IEEE floating-point arithmetic, ACM
    Transactions on Mathematical Software 15, 1989 (error analysis).

    Examples
    --------
    >>> ordered_exp(np.float32([0, 1, -np.inf, 89])).tolist()
    [1.0, 2.7182817459106445, 0.0, inf]
    """
    x = np.minimum(np.maximum(x, _EXP_LOWEST), _EXP_HIGHEST)
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    high = x - n * _LN2_HIGH  # exact
    low = n * _LN2_LOW
    r = high - low
    lost = (high - r) - low
    q = _Q4 + r * _Q5
    q = _Q3 + r * q
    q = _Q2 + r * q
    q = _Q1 + r * q
    q = _Q0 + r * q
    total = _ONE + r
    rest = (_ONE - total) + r  # exact
    total = total + (rest + (lost + (r * r) * q))
    power = np.int32(shifted.view(np.int32) - _ROUND_BITS)
    half = power >> 1  # two factors: either alone stays normal, and only the second product rounds
    first: Any = np.int32((half + 127) << 23).view(np.float32)
    second: Any = np.int32((power - half + 127) << 23).view(np.float32)
    result: Float32 = total * first * second
    return result


def _log_parts(x: Float32) -> tuple[Float32, Float32]:
    """Return two numbers whose exact sum is within 0.4 ulp of the logarithm of a positive finite number."""
    small = x < _SMALLEST_NORMAL
    bits = select(small, x * _TWO_23, x).view(np.int32)
    offset = np.int32(bits - _SQRT_HALF_BITS)
    exponent = offset >> 23
    mantissa: Any = np.int32(bits - (exponent << 23)).view(np.float32)  # in [sqrt(1/2), sqrt(2))
    k = np.float32(exponent - 23 * np.int32(small))
    f = mantissa - _ONE  # exact
    p = _P8 + f * _P9
    p = _P7 + f * p
    p = _P6 + f * p
    p = _P5 + f * p
    p = _P4 + f * p
    p = _P3 + f * p
    p = _P2 + f * p
    p = _P1 + f * p
    p = _P0 + f * p
    square = f * f
    high = k * _LN2_HIGH  # exact
    total = high + f
    lost = (high - total) + f  # exact
    tail = (f * square) * p - _HALF * square
    return total, lost + (k * _LN2_LOW + tail)


def _log_of_others(x: Float32) -> Float32:
    """Return the logarithm of what is not a positive finite number: -inf of 0, inf of inf, else NaN."""
    return select(x == _ZERO, -_INFINITY, select(x == _INFINITY, _INFINITY, _NAN))


def ordered_log(x: Float32) -> Float32:
    """Return the natural logarithm, at most 0.9 ulp from the exact value.

    Parameters
    ----------
    x : array of float32
        Any values.

    Returns
    -------
    array of float32, same shape
        ``-inf`` for 0 and -0, ``inf`` for ``inf``, 0 for 1, NaN for negative numbers and NaN; subnormal arguments are
        as good as others.

    Notes
    -----
    Agreement: ORDERED. Operations: 16 multiplications, 17 additions and subtractions, comparisons, selections and
    operations on int32.

    References
    ----------
    W. J. Cody, W. Waite, Software Manual for the Elementary Functions, 1980, chapter 5.
    P. T. P. Tang, Table-driven implementation of the logarithm function in IEEE floating-point arithmetic, ACM
    Transactions on Mathematical Software 16, 1990.

    Examples
    --------
    >>> ordered_log(np.float32([1, 2, 0, -1])).tolist()
    [0.0, 0.6931471824645996, -inf, nan]
    """
    total, rest = _log_parts(x)
    return select((x > _ZERO) & (x < _INFINITY), total + rest, _log_of_others(x))


def ordered_lse(top: Float32, x: Float32) -> Float32:
    """Return ``top + log(x)``, rounded nearly once.

    Parameters
    ----------
    top, x : arrays of float32
        The larger of the scores, and the sum of ``exp(score - top)``.

    Returns
    -------
    array of float32, same shape
        ``top + ordered_log(x)`` where `x` is not positive and finite.

    Notes
    -----
    Agreement: ORDERED. The two parts of the logarithm are added to `top` with the error of that sum (Knuth's two-sum),
    so that the logarithm is not rounded by itself.

    Examples
    --------
    >>> ordered_lse(np.float32([100, -np.inf]), np.float32([1, 0])).tolist()
    [100.0, -inf]
    """
    total, rest = _log_parts(x)
    both = top + total
    part = both - top
    error = (top - (both - part)) + (total - part)  # exact
    return select((x > _ZERO) & (x < _INFINITY), both + (error + rest), top + _log_of_others(x))


def ordered_tanh(x: Float32) -> Float32:
    """Return the hyperbolic tangent, at most 1.5 ulp from the exact value, for the softcap (S2).

    Parameters
    ----------
    x : array of float32
        Any values.

    Returns
    -------
    array of float32, same shape
        Odd; exactly 1 for large arguments, x itself for tiny ones, NaN for NaN.

    Notes
    -----
    Agreement: ORDERED. Operations: those of :func:`ordered_exp`, one division, and an odd polynomial of degree 13.

    Examples
    --------
    >>> ordered_tanh(np.float32([0.5, -200, 1e-30])).tolist()
    [0.46211716532707214, -1.0, 1.0000000031710769e-30]
    """
    bits = x.view(np.int32)
    size: Any = np.int32(bits & _NO_SIGN).view(np.float32)
    z = size * size
    t = _T4 + z * _T5
    t = _T3 + z * t
    t = _T2 + z * t
    t = _T1 + z * t
    t = _T0 + z * t
    near = size + (size * z) * t
    far = _ONE - _TWO / (ordered_exp(_TWO * size) + _ONE)
    result = select(size < _TANH_BORDER, near, far).view(np.int32)
    signed: Any = np.int32(result | (bits & ~_NO_SIGN)).view(np.float32)
    answer: Float32 = signed
    return answer
