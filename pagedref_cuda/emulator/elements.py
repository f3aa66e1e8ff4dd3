"""Elements of half and packed registers: taking them apart, rounding, putting them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator import rounding as fp
from pagedref_cuda.emulator.operands import (
    F16,
    F64,
    PACKED,
    U16,
    U32,
    Context,
)

if TYPE_CHECKING:
    pass


HALF = ("f32", "f16", "bf16", "f16x2", "bf16x2")


def sat01(x: Any) -> Any:
    """Clamp to 0..1; NaN gives 0."""
    return np.where(np.isnan(x), x.dtype.type(0), np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(1)))


def fetch_f64(c: Context, o: Any, ty: str, exact: bool = False) -> Any:
    """Return a function that reads an operand of any float type as float64."""
    if ty == "bf16":
        g = c.get(o, "b16", exact)
        return lambda M: fp.bf16_to_f32(g(M)).astype(F64)
    g = c.get(o, ty, exact)
    return lambda M: g(M).astype(F64)


def float_put(c: Context, o: Any, ty: str, exact: bool = False) -> Any:
    """Return a function that writes a destination of any float type (bfloat16 as bits)."""
    return c.put(o, "b16" if ty == "bf16" else ty, exact)


def halves(v: Any) -> Any:
    """Take words apart: (low uint16, high uint16)."""
    return (v & U32(0xFFFF)).astype(U16), (v >> U32(16)).astype(U16)


def join(lo: Any, hi: Any) -> Any:
    """Put two halves into a word."""
    return lo.view(U16).astype(U32) | (hi.view(U16).astype(U32) << U32(16))


def packed(fn: Any, elem: Any) -> Any:
    """Lift a function of float64 arrays to pairs of halves of type `elem`."""

    def dec(b: Any) -> Any:
        return (b.view(F16) if elem == "f16" else fp.bf16_to_f32(b)).astype(F64)

    def run(*xs: Any) -> Any:
        parts = [halves(x) for x in xs]
        return join(*(fn(*[dec(p[k]) for p in parts]) for k in (0, 1)))

    return run


def ftz16(x: Any) -> Any:
    """Flush float64 numbers that are subnormal as float16."""
    return np.where(np.abs(x) < 2.0**-14, np.copysign(0.0, x), x)


def rounding(c: Context) -> Any:
    """Take the rounding mode, if there is one."""
    return c.take("rn", "rz", "rm", "rp", "rna")


def osum(x: Any, y: Any) -> Any:
    """Add in float64 so that one more rounding gives the exact rounding of the sum."""
    s = x + y
    return np.where((s == 0) | ~np.isfinite(s), s, fp.odd_sum(x, y))


def float_n(c: Context, ty: str, one: Any, d: Any, srcs: Any) -> Any:
    """Compile an operation on one half or a pair; `one` maps float64 operands to the rounded element."""
    if ty in PACKED:
        g = [c.get(s, "b32") for s in srcs]
        p = c.put(d, "b32")
        fn = packed(one, PACKED[ty])
        return lambda M: p(M, fn(*[x(M) for x in g]))
    g = [fetch_f64(c, s, ty) for s in srcs]
    p = float_put(c, d, ty)
    return lambda M: p(M, one(*[x(M) for x in g]))
