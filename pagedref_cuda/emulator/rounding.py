"""Exact floating-point helpers: correctly rounded fma, directed rounding, f16/bf16/fp8 conversion, flush-to-zero.

Everything works on NumPy arrays. bfloat16 travels as uint16 bit patterns.

The idea is to *round to odd*: an exact value x = s + e (s the float64 nearest, e the exact error) is replaced by the
float64 neighbour of s with an odd last bit whenever e is not 0. Rounding that to a format with at most 51 bits of
precision gives the correctly rounded x in any rounding mode (Boldo and Melquiond), without double rounding.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

F32, F64, U16, U32, U64, I64 = np.float32, np.float64, np.uint16, np.uint32, np.uint64, np.int64
TINY32 = np.float32(2.0**-126)
TINY64 = np.float64(2.0**-1022)


# ------------------------------------------------------------------ flush to zero
def ftz32(x: Any) -> Any:
    """Flush float32 subnormals to zero."""
    a = np.abs(x)
    m = (a < TINY32) & (a > 0)
    if m.any():
        x = np.where(m, np.copysign(F32(0), x), x)
    return x


# ------------------------------------------------------------------ error-free transforms
def two_sum(a: Any, b: Any) -> Any:
    """Return the rounded sum of two float64 and what the rounding lost."""
    s = a + b
    bb = s - a
    return s, (a - (s - bb)) + (b - bb)


def two_prod(a: Any, b: Any) -> Any:
    """a*b = p + e exactly (Dekker/Veltkamp), for magnitudes away from overflow and underflow."""
    c = F64(134217729.0)
    p = a * b
    t = c * a
    ah = t - (t - a)
    al = a - ah
    t = c * b
    bh = t - (t - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(s: Any, e: Any) -> Any:
    """float64 s (= RN(s+e)) -> round-to-odd of s + e."""
    adj = ((e > 0) | (e < 0)) & np.isfinite(s)
    if not adj.any():
        return s
    b = s.view(I64)
    adj &= (b & 1) == 0
    # neighbour in the direction of e: away from zero iff e has the sign of s (s == 0 cannot have e != 0)
    away = (e > 0) == (s > 0)
    return np.where(adj, b + np.where(away, 1, -1), b).view(F64)


def odd_sum(a: Any, b: Any) -> Any:
    """round-to-odd float64 of a+b (float64 inputs)."""
    s, e = two_sum(a, b)
    return to_odd(s, e)


# ------------------------------------------------------------------ float64 -> narrower format, any mode
def _f32_odd(x: Any) -> Any:
    """float64 -> float32 rounded to odd (bit patterns)."""
    y = x.astype(F32)
    yd = y.astype(F64)
    b = y.view(U32)
    up = np.abs(yd) > np.abs(x)
    b = b - up.astype(U32)  # toward zero
    inexact = (yd != x) & ~np.isnan(x)
    return b | inexact.astype(U32)


def f32_to_bf16(x: Any) -> Any:
    """float32 -> bf16 bits, round to nearest even."""
    b = x.view(U32)
    r = ((b + (U32(0x7FFF) + ((b >> U32(16)) & U32(1)))) >> U32(16)).astype(U16)
    nan = np.isnan(x)
    if nan.any():
        r = np.where(nan, U16(0x7FFF), r)
    return r


def bf16_to_f32(b: Any) -> Any:
    """Widen bfloat16 bits."""
    return (b.astype(U32) << U32(16)).view(F32)


def _decode(bits: Any, ty: str) -> Any:
    return {"f16": lambda: bits.view(np.float16), "bf16": lambda: bf16_to_f32(bits), "f32": lambda: bits.view(F32)}[
        ty
    ]().astype(F64)


def round_to(x: Any, ty: str, mode: str = "rn") -> Any:
    """float64 array (exact, or rounded to odd) -> array of ty ('f16' float16, 'bf16' uint16 bits, 'f32', 'f64')."""
    if ty == "f64":
        return x
    if ty == "f16":
        y = x.astype(np.float16)
    elif ty == "f32":
        y = x.astype(F32)
    else:
        y = f32_to_bf16(_f32_odd(x).view(F32))
    if mode in ("rn", "rna"):
        if mode == "rna":
            raise NotImplementedError
        return y
    ub = U32 if ty == "f32" else U16
    b = y.view(ub)
    yd = _decode(b, ty)
    gt, lt = yd > x, yd < x
    neg = np.signbit(x)
    if mode == "rz":
        dec, inc = np.where(neg, lt, gt), np.zeros_like(gt)  # magnitude too large -> step down
    elif mode == "rm":
        dec, inc = gt & ~neg, gt & neg  # must not exceed x
    elif mode == "rp":
        dec, inc = lt & neg, lt & ~neg
    else:
        raise NotImplementedError(mode)
    b = b - dec.astype(ub) + inc.astype(ub)
    return b.view(y.dtype)


# ------------------------------------------------------------------ fma
def fma32(a: Any, b: Any, c: Any, mode: str = "rn") -> Any:
    """Correctly rounded float32 a*b+c."""
    p = a.astype(F64) * b.astype(F64)  # exact: 48 significant bits
    c = c.astype(F64)
    s = p + c
    if mode == "rn":
        r = s.astype(F32)
        # Double rounding only bites where s is the midpoint of two floats (normal range) or the result is subnormal.
        # (s == 0 means an exactly zero sum: nothing to correct.)
        sus = ((s.view(U64) & U64(0x1FFFFFFF)) == U64(0x10000000)) | ((np.abs(s) < 2.0**-125) & (s != 0))
        k = np.flatnonzero(sus)
        if k.size:
            p, c = np.broadcast_arrays(p, c)
            r[k] = odd_sum(p[k], c[k]).astype(F32)
        return r
    o = odd_sum(p, c)
    # an exact zero sum keeps IEEE's sign from s
    return round_to(np.where(s == 0, s, o), "f32", mode)


def fma_small(a: Any, b: Any, c: Any, ty: str, mode: str = "rn") -> Any:
    """Correctly rounded fma for f16 / bf16, operands given as float64."""
    p = a * b
    s = p + c
    return round_to(np.where((s == 0) | ~np.isfinite(s), s, odd_sum(p, c)), ty, mode)


def _round_fraction(x: Any, mode: str = "rn") -> Any:
    """Fraction -> float64, correctly rounded (python's int/int division is round-half-even for normal and
    subnormal)."""
    if mode == "rn":
        try:
            return x.numerator / x.denominator
        except OverflowError:
            return float("inf") if x > 0 else float("-inf")
    r = _round_fraction(x)
    if np.isinf(r):
        big = np.finfo(F64).max
        if mode == "rz" or (mode == "rm" and r > 0) or (mode == "rp" and r < 0):
            return float(np.copysign(big, r))
        return r
    d = Fraction(r)
    if mode == "rz":
        return float(np.nextafter(r, 0.0)) if abs(d) > abs(x) else r
    if mode == "rm":
        return float(np.nextafter(r, -np.inf)) if d > x else r
    return float(np.nextafter(r, np.inf)) if d < x else r


def fma64(a: Any, b: Any, c: Any, mode: str = "rn") -> Any:
    """Correctly rounded float64 a*b+c (vector path in a safe exponent range, exact rationals elsewhere)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    aa, ab, ac = np.abs(a), np.abs(b), np.abs(c)
    lo, hi = 2.0**-400, 2.0**400
    naive = a * b + c
    ok = (aa < hi) & (ab < hi) & (ac < hi) & ((aa > lo) & (ab > lo) & ((ac > 2.0**-900) | (ac == 0)))
    out = naive.copy()
    if ok.any() and mode == "rn":
        x, y, z = a[ok], b[ok], c[ok]
        uh, ul = two_prod(x, y)
        th, tl = two_sum(z, ul)
        vh, vl = two_sum(uh, th)
        out[ok] = vh + to_odd(*two_sum(tl, vl))
    elif mode != "rn":
        ok = np.zeros_like(ok)
    rest = ~ok & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    if mode == "rn":
        rest &= (a != 0) & (b != 0)
    for i in np.flatnonzero(rest):
        x = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        if x == 0:
            if a[i] == 0 or b[i] == 0:
                out[i] = naive[i]  # sign rules of 0*b + c
            else:
                out[i] = -0.0 if mode == "rm" else 0.0
        else:
            out[i] = _round_fraction(x, mode)
            if out[i] == 0 and x < 0:
                out[i] = -0.0
    return out


def binary64(a: Any, b: Any, op: Any, mode: str) -> Any:
    """Directed-rounding float64 add/sub/mul/div through exact rationals (slow; rn never comes here)."""
    a, b = np.broadcast_arrays(a, b)
    rn = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op](a, b)
    out = rn.copy()
    for i in np.flatnonzero(np.isfinite(a) & np.isfinite(b) & ((b != 0) | (op != "div"))):
        x, y = Fraction(float(a[i])), Fraction(float(b[i]))
        z = x + y if op == "add" else x - y if op == "sub" else x * y if op == "mul" else x / y
        if z != 0:
            out[i] = _round_fraction(z, mode)
            if out[i] == 0 and z < 0:
                out[i] = -0.0
        elif (
            op in ("add", "sub")
            and mode == "rm"
            and not (
                a[i] == 0
                and b[i] == 0
                and rn[i] == 0
                and not np.signbit(rn[i])
                and not (np.signbit(a[i]) or np.signbit(b[i]))
            )
        ):
            out[i] = -0.0
    return out


def unary64(a: Any, op: Any, mode: str) -> Any:
    """Directed-rounding float64 rcp / sqrt through exact rationals."""
    rn = 1.0 / a if op == "rcp" else np.sqrt(a)
    out = rn.copy()
    for i in np.flatnonzero(np.isfinite(a) & (a != 0) & ((a > 0) | (op == "rcp"))):
        x = Fraction(float(a[i]))
        if op == "rcp":
            out[i] = _round_fraction(1 / x, mode)
        else:  # integer square root with enough bits plus a sticky bit
            k = 2**2300
            s = math.isqrt(x.numerator * k // x.denominator)
            exact = Fraction(s * s, k) == x
            out[i] = _round_fraction(Fraction(s, 2**1150) + (0 if exact else Fraction(1, 2**1151)), mode)
    return out


def binary32_directed(a: Any, b: Any, op: Any, mode: str) -> Any:
    """Add, subtract, multiply or divide float32 with a directed rounding."""
    x, y = a.astype(F64), b.astype(F64)
    if op == "mul":
        z = x * y
    elif op == "div":
        q = x / y
        # residual decides the sticky bit: x - q*y, exact sign through an exact product of 24-bit pieces
        p, e = two_prod(q, y)
        r = (x - p) - e
        z = to_odd(q, np.where(np.isfinite(r) & (q != 0), r * np.sign(y), 0.0))
    else:
        z = odd_sum(x, y if op == "add" else -y)
        s = x + (y if op == "add" else -y)
        z = np.where(np.isfinite(s), z, s)
        zero = s == 0
        if mode == "rm" and zero.any():
            z = np.where(zero & (x != 0), -0.0, z)
    return round_to(z, "f32", mode)


def sqrt32_directed(a: Any, mode: str) -> Any:
    """Take a float32 root with a directed rounding."""
    x = a.astype(F64)
    q = np.sqrt(x)
    p, e = two_prod(q, q)
    r = (x - p) - e
    return round_to(to_odd(q, np.where(np.isfinite(r), r, 0.0)), "f32", mode)


# ------------------------------------------------------------------ fp8
def fp8_encode(x: Any, ty: str) -> Any:
    """float32 -> fp8 bits with .rn.satfinite."""
    import ml_dtypes

    if ty == "e4m3":
        y = np.clip(x, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    else:
        y = np.clip(x, -57344.0, 57344.0).astype(ml_dtypes.float8_e5m2).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), y)


def fp8_decode(b: Any, ty: str) -> Any:
    """Widen fp8 bits to float32."""
    import ml_dtypes

    return b.view(ml_dtypes.float8_e4m3fn if ty == "e4m3" else ml_dtypes.float8_e5m2).astype(F32)


def tf32(x: Any, mode: str) -> Any:
    """Round float32 to tf32, as bits."""
    b = x.view(U32)
    fin = np.isfinite(x)
    if mode == "rna":
        r = (b + U32(0x1000)) & U32(0xFFFFE000)
    elif mode == "rn":
        r = (b + U32(0xFFF) + ((b >> U32(13)) & U32(1))) & U32(0xFFFFE000)
    else:
        r = b & U32(0xFFFFE000)
    return np.where(fin, r, b)
