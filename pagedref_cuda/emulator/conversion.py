"""Conversion between all number types, with every rounding mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator import rounding as fp
from pagedref_cuda.emulator.elements import (
    fetch_f64,
    float_put,
    halves,
    join,
    rounding,
    sat01,
)
from pagedref_cuda.emulator.operands import (
    F16,
    F32,
    F64,
    PACKED,
    U8,
    U16,
    Context,
    is_float,
    np_type,
)
from pagedref_cuda.emulator.syntax import TYPE_BYTES

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


INT_RANGE = {
    t: (np.iinfo(np_type(t)).min, np.iinfo(np_type(t)).max)
    for t in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
}


def float_to_int(x: Any, ty: str, mode: str) -> Any:
    """Convert to an integer type, saturating; NaN gives 0."""
    x = x.astype(F64)
    r = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](x)
    lo, hi = INT_RANGE[ty]
    dt = np_type(ty).type
    over, under = r >= float(hi), r <= float(lo)
    v = np.where(over | under | np.isnan(r), 0.0, r).astype(dt)
    v = np.where(over, dt(hi), np.where(under, dt(lo), v))
    return v


def _cvt(c: Context) -> Any:
    """Compile cvt between scalar types."""
    f8 = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}
    if any(m in f8 for m in c.mods):
        return cvt_fp8(c)
    if c.mods and c.mods[-1] == "f32" and len(c.mods) > 1 and c.mods[-2] in ("f16x2", "bf16x2", "tf32"):
        return cvt_packed(c)
    st = c.type()
    dt = c.type()
    irnd = c.take("rni", "rzi", "rmi", "rpi")
    mode = rounding(c)
    ftz, sat, relu = c.take("ftz"), c.take("sat"), c.take("relu")
    c.done()
    c.nargs(2)
    d, a = c.args
    sf, df = is_float(st), is_float(dt)
    if st in PACKED or dt in PACKED or mode == "rna":
        c.refuse("cvt types")
    if not sf and not df:
        if irnd or mode or ftz or relu:
            c.refuse("rounding on an integer cvt")
        ga, p = c.get(a, st, wide=True), c.put(d, dt, wide=True)
        t = np_type(dt)
        if not sat:
            return lambda M: p(M, ga(M).astype(t))
        lo, hi = INT_RANGE[dt]

        def saturated(M: Machine) -> None:
            x = ga(M)
            slo, shi = INT_RANGE[st]
            if slo < lo:
                x = np.maximum(x, x.dtype.type(lo))
            if shi > hi:
                x = np.minimum(x, x.dtype.type(hi))
            p(M, x.astype(t))

        return saturated
    if sf and not df:
        if irnd is None or mode or relu:
            c.refuse("float to integer cvt needs an integer rounding mode")
        ga = fetch_f64(c, a, st) if st in ("bf16", "f16") else c.get(a, st)
        p = c.put(d, dt, wide=True)
        return lambda M: p(M, float_to_int(fp.ftz32(ga(M)) if ftz and st == "f32" else ga(M), dt, irnd))
    if not sf:  # int -> float
        if mode is None or irnd or relu:
            c.refuse("integer to float cvt needs a rounding mode")
        ga = c.get(a, st, wide=True)
        p = float_put(c, d, dt)

        def from_integer(M: Machine) -> None:
            x = ga(M)
            if mode == "rn" and dt in ("f32", "f64"):
                r = x.astype(np_type(dt))
            elif TYPE_BYTES[st] < 8:
                r = fp.round_to(x.astype(F64), dt, mode) if dt != "f64" else x.astype(F64)
            else:
                r = i64_to_float(x, dt, mode)
            if sat:
                r = sat01(r)
            p(M, r)

        return from_integer
    # float -> float
    p = float_put(c, d, dt)
    if st == dt:
        if st not in ("f32", "f64", "f16") or mode or relu:
            c.refuse("cvt types")
        ga = c.get(a, st)
        whole: dict[Any, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
        ifn = whole.get(irnd, np.copy)

        def same(M: Machine) -> None:
            x = ga(M)
            if ftz:
                x = fp.ftz32(x)
            r = ifn(x)
            p(M, sat01(r) if sat else r)

        return same
    if irnd:
        c.refuse("integer rounding between different float types")
    widening = TYPE_BYTES[dt] > TYPE_BYTES[st]
    if widening and mode:
        c.refuse("rounding mode on a widening cvt")
    if not widening and mode is None:
        c.refuse("narrowing cvt needs a rounding mode")
    ga = fetch_f64(c, a, st)

    def run(M: Machine) -> None:
        x = ga(M)
        if ftz and st == "f32":
            x = np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)
        if relu:
            x = np.where(x < 0, 0.0, x)
        if sat and dt in ("bf16",):
            x = sat01(x)
        r = fp.round_to(x, dt, mode or "rn")
        if ftz and dt == "f32":
            r = fp.ftz32(r)
        if sat and dt != "bf16":
            r = sat01(r)
        p(M, r)

    return run


def i64_to_float(x: Any, dt: Any, mode: str) -> Any:
    """Convert 64-bit integers with any rounding, by way of an exact pair of float64."""
    hi = (x >> x.dtype.type(32)).astype(F64) * 4294967296.0
    lo = (x & x.dtype.type(0xFFFFFFFF)).astype(F64)
    s, e = fp.two_sum(hi, lo)
    if dt == "f64":
        r = s.copy()
        if mode == "rn":
            return r
        d = np.where(
            mode == "rz",
            np.where((s > 0) & (e < 0), -1, np.where((s < 0) & (e > 0), 1, 0)),
            np.where(mode == "rm", np.where(e < 0, -1, 0), np.where(e > 0, 1, 0)),
        )
        return np.where(d < 0, np.nextafter(s, -np.inf), np.where(d > 0, np.nextafter(s, np.inf), s))
    return fp.round_to(fp.to_odd(s, e), dt, mode)


def cvt_packed(c: Context) -> Any:
    """Compile cvt to a pair of halves, and to tf32."""
    c.type()
    dt = c.mods.pop()
    mode = rounding(c)
    ftz, relu, sf = c.take("ftz"), c.take("relu"), c.take("satfinite")
    c.done()
    if dt == "tf32":
        if mode not in ("rna", "rn", "rz") or relu or sf:
            c.refuse("cvt to tf32")
        ga, p = c.get(c.args[1], "f32"), c.put(c.args[0], "b32")
        return lambda M: p(M, fp.tf32(ga(M), mode))
    if mode not in ("rn", "rz") or sf or ftz:
        c.refuse("packed cvt modifier")
    elem = PACKED[dt]
    d, a, b = c.args  # a -> upper half, b -> lower half
    ga, gb, p = c.get(a, "f32"), c.get(b, "f32"), c.put(d, "b32")

    def one(x: Any) -> Any:
        x = x.astype(F64)
        if relu:
            x = np.where(x < 0, 0.0, x)
        return fp.round_to(x, elem, mode)

    return lambda M: p(M, join(one(gb(M)), one(ga(M))))


def cvt_fp8(c: Context) -> Any:
    """Compile cvt from and to pairs of fp8."""
    f8 = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}
    st, dt = c.mods.pop(), None
    dt = c.mods.pop()
    if c.take("rn") is None:
        c.refuse("fp8 cvt without .rn")
    sf, relu = c.take("satfinite"), c.take("relu")
    c.done()
    if dt in f8:
        if not sf:
            c.refuse("fp8 cvt without .satfinite")
        p = c.put(c.args[0], "b16")

        def enc(x: Any) -> Any:
            return fp.fp8_encode(np.where(x < 0, F32(0), x) if relu else x, f8[dt]).astype(U16)

        if st == "f32":
            ga, gb = c.get(c.args[1], "f32"), c.get(c.args[2], "f32")
            return lambda M: p(M, (enc(ga(M)) << U16(8)) | enc(gb(M)))
        if st == "f16x2":
            ga = c.get(c.args[1], "b32")

            def run(M: Machine) -> None:
                lo, hi = halves(ga(M))
                p(M, (enc(hi.view(F16).astype(F32)) << U16(8)) | enc(lo.view(F16).astype(F32)))

            return run
    if st in f8 and dt == "f16x2":
        ga, p = c.get(c.args[1], "b16"), c.put(c.args[0], "b32")

        def run(M: Machine) -> None:
            v = ga(M)
            h = [fp.fp8_decode(x.astype(U8), f8[st]).astype(F16) for x in (v & U16(0xFF), v >> U16(8))]
            if relu:
                h = [np.where(x < 0, F16(0), x) for x in h]
            p(M, join(*h))

        return run
    c.refuse("fp8 cvt types")


OPERATIONS = {"cvt": _cvt}
