"""Comparison and selection: setp, set, selp, slct."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator import rounding as fp
from pagedref_cuda.emulator.elements import (
    fetch_f64,
    ftz16,
    halves,
    join,
)
from pagedref_cuda.emulator.operands import (
    F16,
    F64,
    PACKED,
    U16,
    UN,
    Context,
    is_float,
    np_type,
)
from pagedref_cuda.emulator.syntax import TYPE_BYTES, Dual, Imm

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


CMP: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


UNORD = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}


def _half(bits: Any) -> Any:
    """Return bits as float16."""
    return bits.view(F16)


def compare(c: Context, ty: str) -> Any:
    """Take the comparison operator; return its function of two arrays."""
    op = c.take(*CMP, *UNORD, "num", "nan")
    if op is None:
        c.refuse("no comparison operator")
    if is_float(ty):
        if op in ("lo", "ls", "hi", "hs"):
            c.refuse("comparison operator")
        if op == "num":
            return lambda x, y: ~(np.isnan(x) | np.isnan(y))
        if op == "nan":
            return lambda x, y: np.isnan(x) | np.isnan(y)
        if op in UNORD:
            f = CMP[UNORD[op]]
            return lambda x, y: f(x, y) | np.isnan(x) | np.isnan(y)
        if op == "ne":  # ordered: false on NaN
            return lambda x, y: (x != y) & ~(np.isnan(x) | np.isnan(y))
        return CMP[op]
    if (
        op in UNORD
        or op in ("num", "nan")
        or (ty[0] == "s" and op in ("lo", "ls", "hi", "hs"))
        or (ty[0] == "b" and op not in ("eq", "ne"))
    ):
        c.refuse("comparison operator")
    return CMP[op]


BOOL: dict[Any, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _setp(c: Context) -> Any:
    """Compile setp: a comparison into one or two predicates."""
    ty = c.type()
    ftz = c.take("ftz")
    f = compare(c, ty)
    b = c.take("and", "or", "xor")
    c.done()
    c.nargs(4 if b else 3)
    d, x, y = c.args[:3]
    gp = c.get(c.args[3], "pred") if b else None
    bf: Any = BOOL.get(b)
    if ty in PACKED:
        if not isinstance(d, Dual):
            c.refuse("x2 comparison needs two predicates")
        ga, gb = c.get(x, "b32"), c.get(y, "b32")
        ps = [c.put(d.a, "pred"), c.put(d.b, "pred")]
        elem = PACKED[ty]
        dec = _half if elem == "f16" else fp.bf16_to_f32

        def run2(M: Machine) -> None:
            u, v = halves(ga(M)), halves(gb(M))
            q = gp(M) if gp else None
            r = [f(dec(u[k]), dec(v[k])) for k in (0, 1)]
            for k in (0, 1):
                ps[k](M, bf(r[k], q) if gp else r[k])

        return run2
    if ty == "bf16":
        ga, gb = fetch_f64(c, x, ty), fetch_f64(c, y, ty)
    else:
        ga, gb = c.get(x, ty), c.get(y, ty)
    if ftz and ty != "f32":
        if ty != "f16":
            c.refuse(".ftz")
        g1, g2 = ga, gb
        ga, gb = (lambda M: ftz16(g1(M).astype(F64))), (lambda M: ftz16(g2(M).astype(F64)))
    elif ftz:
        g1, g2 = ga, gb
        ga, gb = (lambda M: fp.ftz32(g1(M))), (lambda M: fp.ftz32(g2(M)))
    if isinstance(d, Dual):
        p, q = c.put(d.a, "pred"), c.put(d.b, "pred")

        def run(M: Machine) -> None:
            r = f(ga(M), gb(M))
            k = gp(M) if gp else None
            p(M, bf(r, k) if gp else r)
            q(M, bf(~r, k) if gp else ~r)

        return run
    p = c.put(d, "pred")
    if gp:
        return lambda M: p(M, bf(f(ga(M), gb(M)), gp(M)))
    return lambda M: p(M, f(ga(M), gb(M)))


def _set(c: Context) -> Any:
    """Compile set: a comparison into a register."""
    st = c.type()
    dt = c.type()
    ftz = c.take("ftz")
    f = compare(c, st)
    b = c.take("and", "or", "xor")
    c.done()
    d, x, y = c.args[:3]
    gp = c.get(c.args[3], "pred") if b else None
    if st in PACKED:
        elem = PACKED[st]
        if dt not in ("u32", st) or gp:
            c.refuse("set type")
        dec = _half if elem == "f16" else fp.bf16_to_f32
        ga, gb, p = c.get(x, "b32"), c.get(y, "b32"), c.put(d, "b32")
        ones = U16(0xFFFF) if dt == "u32" else U16(0x3C00 if elem == "f16" else 0x3F80)

        def run2(M: Machine) -> None:
            u, v = halves(ga(M)), halves(gb(M))
            p(M, join(*(np.where(f(dec(u[k]), dec(v[k])), ones, U16(0)) for k in (0, 1))))

        return run2
    if (st in ("f16", "bf16") or dt in ("f16", "bf16")) and dt not in ("u16", "s16", "u32", "s32", "f16", "bf16"):
        c.refuse("set type")
    ga, gb = (fetch_f64(c, x, st), fetch_f64(c, y, st)) if st == "bf16" else (c.get(x, st), c.get(y, st))
    if ftz and st == "f32":
        g1, g2 = ga, gb
        ga, gb = (lambda M: fp.ftz32(g1(M))), (lambda M: fp.ftz32(g2(M)))
    n = TYPE_BYTES[dt]
    true = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}.get(dt, (1 << 8 * n) - 1)
    p = c.put(d, f"b{8 * n}")

    def run(M: Machine) -> None:
        r = f(ga(M), gb(M))
        if gp:
            r = BOOL[b](r, gp(M))
        p(M, np.where(r, UN[n](true), UN[n](0)))

    return run


def _selp(c: Context) -> Any:
    """Compile selp: choose by a predicate."""
    ty = c.type()
    c.done()
    c.nargs(4)
    d, a, b, q = c.args
    bt = "pred" if ty == "pred" else f"b{8 * TYPE_BYTES[ty]}"
    ga = c.get(a, ty if isinstance(a, Imm) else bt)
    gb = c.get(b, ty if isinstance(b, Imm) else bt)
    gp, p = c.get(q, "pred"), c.put(d, bt)
    ud = np_type(bt)
    return lambda M: p(M, np.where(gp(M), ga(M).view(ud), gb(M).view(ud)))


def _slct(c: Context) -> Any:
    """Compile slct: choose by a sign."""
    ct = c.type()
    ty = c.type()
    ftz = c.take("ftz")
    c.done()
    d, a, b, e = c.args
    if ct not in ("s32", "f32"):
        c.refuse("slct type")
    ga, gb, gc, p = c.get(a, ty), c.get(b, ty), c.get(e, ct), c.put(d, ty)
    return lambda M: p(M, np.where((fp.ftz32(gc(M)) if ftz else gc(M)) >= 0, ga(M), gb(M)))


OPERATIONS = {"setp": _setp, "set": _set, "selp": _selp, "slct": _slct}
