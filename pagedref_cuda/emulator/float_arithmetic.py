"""Floating-point arithmetic: add, sub, mul, fma, div, min, max, and the functions that a GPU approximates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator import rounding as fp
from pagedref_cuda.emulator.elements import (
    HALF,
    float_n,
    ftz16,
    osum,
    rounding,
    sat01,
)
from pagedref_cuda.emulator.integer_arithmetic import int_addsubmul, int_div, int_mad
from pagedref_cuda.emulator.operands import (
    F16,
    F32,
    F64,
    PACKED,
    U32,
    U64,
    UN,
    Context,
    is_float,
    np_type,
)
from pagedref_cuda.emulator.syntax import TYPE_BYTES

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


def _addsubmul(c: Context) -> Any:
    """Compile add, sub, mul of any type."""
    base = c.f.parts[0]
    ty = c.type()
    if not is_float(ty):
        return int_addsubmul(c, base, ty)
    mode, ftz, sat = rounding(c) or "rn", c.take("ftz"), c.take("sat")
    c.done()
    c.nargs(3)
    d, a, b = c.args
    return float_binary(c, base, ty, mode, ftz, sat, d, a, b)


NP2 = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def float_binary(c: Context, base: Any, ty: str, mode: str, ftz: Any, sat: Any, d: Any, a: Any, b: Any) -> Any:
    """Compile an operation of two floats, with every rounding mode."""
    if ty in ("f32", "f64"):
        ga, gb, p = c.get(a, ty), c.get(b, ty), c.put(d, ty)
        f = NP2[base]
        if mode == "rn" and not ftz and not sat:
            return lambda M: p(M, f(ga(M), gb(M)))

        def run(M: Machine) -> None:
            x, y = ga(M), gb(M)
            if ftz:
                x, y = fp.ftz32(x), fp.ftz32(y)
            if mode == "rn":
                r = f(x, y)
            elif ty == "f32":
                x, y = np.broadcast_arrays(x, y)
                r = fp.binary32_directed(x, y, base, mode)
            else:
                r = fp.binary64(x, y, base, mode)
            if ftz:
                r = fp.ftz32(r)
            if sat:
                r = sat01(r)
            p(M, r)

        return run
    if mode != "rn" or base == "div":
        c.refuse(f".{mode} {base} on .{ty}")
    elem = PACKED.get(ty, ty)
    odd: dict[str, Any] = {"add": osum, "sub": lambda x, y: osum(x, -y), "mul": np.multiply}

    def one(x: Any, y: Any) -> Any:
        if ftz:
            x, y = ftz16(x), ftz16(y)
        r = odd[base](x, y)
        if sat:
            r = sat01(r)
        r = fp.round_to(r, elem)
        if ftz:
            r = ftz16(r.astype(F64)).astype(F16)
        return r

    return float_n(c, ty, one, d, (a, b))


def _fma(c: Context) -> Any:
    """Compile fma and mad: one rounding."""
    base = c.f.parts[0]
    ty = c.type()
    if not is_float(ty):
        return int_mad(c, base, ty)
    mode = rounding(c)
    if mode is None:
        c.refuse("fma/mad without a rounding mode")
    ftz, sat, relu = c.take("ftz"), c.take("sat"), c.take("relu")
    c.done()
    c.nargs(4)
    d, a, b, e = c.args
    if ty == "f32":
        ga, gb, gc, p = c.get(a, ty), c.get(b, ty), c.get(e, ty), c.put(d, ty)
        fma32 = fp.fma32
        if mode == "rn" and not ftz and not sat:
            return lambda M: p(M, fma32(ga(M), gb(M), gc(M)))

        def run(M: Machine) -> None:
            x, y, z = ga(M), gb(M), gc(M)
            if ftz:
                x, y, z = fp.ftz32(x), fp.ftz32(y), fp.ftz32(z)
            r = fma32(x, y, z, mode)
            if ftz:
                r = fp.ftz32(r)
            p(M, sat01(r) if sat else r)

        return run
    if ty == "f64":
        ga, gb, gc, p = c.get(a, ty), c.get(b, ty), c.get(e, ty), c.put(d, ty)
        return lambda M: p(M, fp.fma64(ga(M), gb(M), gc(M), mode))
    if mode != "rn":
        c.refuse("rounding mode")
    elem = PACKED.get(ty, ty)

    def one(x: Any, y: Any, z: Any) -> Any:
        if ftz:
            x, y, z = ftz16(x), ftz16(y), ftz16(z)
        r = fp.fma_small(x, y, z, elem)
        if ftz:
            r = ftz16(r.astype(F64)).astype(F16)
        if sat or relu:
            v = fp.bf16_to_f32(r) if elem == "bf16" else r
            if sat:
                v = sat01(v)
            if relu:
                v = np.where(v < 0, v.dtype.type(0), v)
            r = fp.f32_to_bf16(v) if elem == "bf16" else v
        return r

    return float_n(c, ty, one, d, (a, b, e))


def _div(c: Context) -> Any:
    """Compile div of any type; the approximate forms are rounded correctly here."""
    ty = c.type()
    if not is_float(ty):
        return int_div(c, ty, "div")
    c.take("approx", "full")
    mode = rounding(c) or "rn"
    ftz = c.take("ftz")
    c.done()
    return float_binary(c, "div", ty, mode, ftz, None, *c.args)


def unary_f32(c: Context, fn64: Any, approx_types: Any = ("f32",), exact_fn: Any = None) -> Any:
    """Compile a function that a GPU approximates: float64, rounded once."""
    ty = c.type()
    approx = c.take("approx")
    mode = rounding(c)
    ftz = c.take("ftz")
    c.done()
    c.nargs(2)
    d, a = c.args
    if ty == "f32":
        ga, p = c.get(a, ty), c.put(d, ty)
        if mode in ("rz", "rm", "rp") and exact_fn is None:
            c.refuse("rounding mode")

        def run(M: Machine) -> None:
            x = ga(M)
            if ftz:
                x = fp.ftz32(x)
            if mode in ("rz", "rm", "rp"):
                r = exact_fn(x, mode)
            else:
                r = fn64(x.astype(F64)).astype(F32)
            p(M, fp.ftz32(r) if ftz else r)

        return run
    if ty == "f64" and "f64" in approx_types:
        ga, p = c.get(a, ty), c.put(d, ty)
        if approx and ftz:  # rcp/rsqrt.approx.ftz.f64: the low 32 bits of the result are zero
            return lambda M: p(M, (fn64(ga(M)).view(U64) & U64(0xFFFFFFFF00000000)).view(F64))
        if mode not in (None, "rn"):
            what = c.f.parts[0]
            return lambda M: p(M, fp.unary64(ga(M), what, mode))
        return lambda M: p(M, fn64(ga(M)))
    if ty in ("f16", "bf16", "f16x2", "bf16x2") and ty in approx_types:
        elem = PACKED.get(ty, ty)
        return float_n(c, ty, lambda x: fp.round_to(fn64(x), elem), d, (a,))
    c.refuse("type")


def _ex2(c: Context) -> Any:
    """Compile ex2."""
    return unary_f32(c, np.exp2, HALF)


def _lg2(c: Context) -> Any:
    """Compile lg2."""
    return unary_f32(c, np.log2)


def _rcp(c: Context) -> Any:
    """Compile rcp."""
    return unary_f32(
        c, lambda x: 1.0 / x, ("f32", "f64"), lambda x, m: fp.binary32_directed(np.ones_like(x), x, "div", m)
    )


def _rsqrt(c: Context) -> Any:
    """Compile rsqrt."""
    return unary_f32(c, lambda x: 1.0 / np.sqrt(x), ("f32", "f64"))


def _sqrt(c: Context) -> Any:
    """Compile sqrt."""
    return unary_f32(c, np.sqrt, ("f32", "f64"), fp.sqrt32_directed)


def _sin(c: Context) -> Any:
    """Compile sin."""
    return unary_f32(c, np.sin)


def _cos(c: Context) -> Any:
    """Compile cos."""
    return unary_f32(c, np.cos)


def _tanh(c: Context) -> Any:
    """Compile tanh."""
    return unary_f32(c, np.tanh, HALF)


def _absneg(c: Context) -> Any:
    """Compile abs and neg."""
    base = c.f.parts[0]
    ty = c.type()
    ftz = c.take("ftz")
    c.done()
    c.nargs(2)
    d, a = c.args
    if not is_float(ty):
        ga, p = c.get(a, ty), c.put(d, ty)
        return (lambda M: p(M, np.abs(ga(M)))) if base == "abs" else (lambda M: p(M, (-ga(M))))
    n = TYPE_BYTES[ty]
    sign = {2: 0x8000, 4: 0x80008000 if ty in PACKED else 0x80000000, 8: 1 << 63}[n]
    ga, p = c.get(a, f"b{8 * n}"), c.put(d, f"b{8 * n}")
    k, nk = UN[n](sign), UN[n](~sign & ((1 << 8 * n) - 1))

    def run(M: Machine) -> None:
        v = ga(M)
        if ftz and ty == "f32":
            v = fp.ftz32(v.view(F32)).view(U32)
        p(M, (v & nk) if base == "abs" else (v ^ k))

    if ftz and ty != "f32":
        c.refuse(".ftz")
    return run


def fminmax(x: Any, y: Any, is_min: Any, nan: Any) -> Any:
    """Return minimum or maximum by IEEE 754 minNum and maxNum, -0 below +0."""
    r = (np.fmin if is_min else np.fmax)(x, y)
    z = (x == 0) & (y == 0)
    if z.any():
        s = (np.signbit(x) | np.signbit(y)) if is_min else (np.signbit(x) & np.signbit(y))
        r = np.where(z, np.where(s, x.dtype.type(-0.0), x.dtype.type(0.0)), r)
    if nan:
        r = np.where(np.isnan(x) | np.isnan(y), x.dtype.type(np.nan), r)
    return r


def _minmax(c: Context) -> Any:
    """Compile min and max."""
    is_min = c.f.parts[0] == "min"
    ty = c.type()
    ftz, nan = c.take("ftz"), c.take("NaN")
    relu = c.take("relu")
    c.done()
    c.nargs(3)
    d, a, b = c.args
    if not is_float(ty):
        ga, gb, p = c.get(a, ty), c.get(b, ty), c.put(d, ty)
        f = np.minimum if is_min else np.maximum
        if relu:
            return lambda M: p(M, np.maximum(f(ga(M), gb(M)), np_type(ty).type(0)))
        return lambda M: p(M, f(ga(M), gb(M)))
    if relu:
        c.refuse(".relu")
    if ty in ("f32", "f64"):
        ga, gb, p = c.get(a, ty), c.get(b, ty), c.put(d, ty)

        def run(M: Machine) -> None:
            x, y = ga(M), gb(M)
            if ftz:
                x, y = fp.ftz32(x), fp.ftz32(y)
            p(M, fminmax(x, y, is_min, nan))

        return run
    elem = PACKED.get(ty, ty)
    return float_n(
        c,
        ty,
        lambda x, y: fp.round_to(fminmax(ftz16(x) if ftz else x, ftz16(y) if ftz else y, is_min, nan), elem),
        d,
        (a, b),
    )


def _copysign(c: Context) -> Any:
    """Compile copysign: magnitude of the second, sign of the first operand."""
    ty = c.type()
    c.done()
    d, a, b = c.args
    ga, gb, p = c.get(a, ty), c.get(b, ty), c.put(d, ty)
    return lambda M: p(M, np.copysign(gb(M), ga(M)))  # sign of a, magnitude of b


def _testp(c: Context) -> Any:
    """Compile testp."""
    ty = c.type()
    op = c.take("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    c.done()
    d, a = c.args
    ga, p = c.get(a, ty), c.put(d, "pred")
    tiny = np.finfo(np_type(ty)).tiny
    functions: dict[Any, Any] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (np.abs(x) < tiny) & (x != 0),
    }
    fn = functions[op]
    return lambda M: p(M, fn(ga(M)))


OPERATIONS = {
    "add": _addsubmul,
    "sub": _addsubmul,
    "mul": _addsubmul,
    "fma": _fma,
    "mad": _fma,
    "div": _div,
    "ex2": _ex2,
    "lg2": _lg2,
    "rcp": _rcp,
    "rsqrt": _rsqrt,
    "sqrt": _sqrt,
    "sin": _sin,
    "cos": _cos,
    "tanh": _tanh,
    "abs": _absneg,
    "neg": _absneg,
    "min": _minmax,
    "max": _minmax,
    "copysign": _copysign,
    "testp": _testp,
}
