"""Integer arithmetic: add, sub, mul, mad with carry, div, rem, sad, dot products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator.errors import EmulatorError
from pagedref_cuda.emulator.operands import (
    I32,
    I64,
    SN,
    U32,
    U64,
    UN,
    Context,
    np_type,
)
from pagedref_cuda.emulator.syntax import TYPE_BYTES

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


def mul_hi(x: Any, y: Any, ty: str) -> Any:
    """Return the upper half of a product."""
    n = TYPE_BYTES[ty]
    if n < 8:
        w = SN[2 * n] if ty[0] == "s" else UN[2 * n]
        return ((x.astype(w) * y.astype(w)) >> w(8 * n)).astype(np_type(ty))
    a, b = x.view(U64), y.view(U64)
    m, s = U64(0xFFFFFFFF), U64(32)
    al, ah, bl, bh = a & m, a >> s, b & m, b >> s
    t = al * bl
    u = ah * bl + (t >> s)
    v = al * bh + (u & m)
    r = ah * bh + (u >> s) + (v >> s)
    if ty[0] == "s":
        r = r - np.where(x.view(I64) < 0, b, U64(0)) - np.where(y.view(I64) < 0, a, U64(0))
    return r.view(np_type(ty))


WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def int_addsubmul(c: Context, base: Any, ty: str) -> Any:
    """Compile integer add, sub, mul."""
    sat, cc = c.take("sat"), c.take("cc")
    part = c.take("lo", "hi", "wide") if base == "mul" else None
    c.done()
    c.nargs(3)
    d, a, b = c.args
    ga, gb = c.get(a, ty), c.get(b, ty)
    if base == "mul":
        if part is None or sat or cc:
            c.refuse("mul needs .lo, .hi or .wide")
        if part == "wide":
            wt = WIDE.get(ty) or c.refuse("mul.wide type")
            p, dt = c.put(d, wt), np_type(wt).type
            return lambda M: p(M, ga(M).astype(dt) * gb(M).astype(dt))
        p = c.put(d, ty)
        if part == "lo":
            return lambda M: p(M, ga(M) * gb(M))
        return lambda M: p(M, mul_hi(ga(M), gb(M), ty))
    p = c.put(d, ty)
    if cc:
        return carry_op(c, base, ty, d, a, b, False, True)
    if sat:
        if ty != "s32":
            c.refuse(".sat")
        f = np.add if base == "add" else np.subtract
        return lambda M: p(M, np.clip(f(ga(M).astype(I64), gb(M).astype(I64)), -(2**31), 2**31 - 1).astype(I32))
    if base == "add":
        return lambda M: p(M, ga(M) + gb(M))
    return lambda M: p(M, ga(M) - gb(M))


def mad_carry(c: Context, part: Any, ty: str, d: Any, a: Any, b: Any, e: Any, use: Any, setcc: Any) -> Any:
    """Compile mad.cc and madc: one half of a product, then an addition with carry."""
    ga, gb = c.get(a, ty), c.get(b, ty)
    ut = f"u{8 * TYPE_BYTES[ty]}"

    def half(M: Machine) -> Any:
        return (ga(M) * gb(M) if part == "lo" else mul_hi(ga(M), gb(M), ty)).view(np_type(ut))

    return carry_op(c, "add", ty, d, half, e, use, setcc)


def _madc(c: Context) -> Any:
    """Compile madc."""
    ty = c.type()
    part = c.take("lo", "hi")
    cc = c.take("cc")
    c.done()
    c.nargs(4)
    if part is None:
        c.refuse("madc")
    d, a, b, e = c.args
    return mad_carry(c, part, ty, d, a, b, e, True, bool(cc))


def carry_op(c: Context, base: Any, ty: str, d: Any, a: Any, b: Any, use: Any, setcc: Any) -> Any:
    """Compile an addition or subtraction with carry; the flag is one array of the machine."""
    n = TYPE_BYTES[ty]
    if n not in (4, 8):
        c.refuse("carry arithmetic type")
    ut = f"u{8 * n}"
    ga, gb, p = a if callable(a) else c.get(a, ut), c.get(b, ut), c.put(d, ut)

    def run(M: Machine) -> None:
        x, y = ga(M), gb(M)
        cin = None
        if use:
            if M.cc is None:
                raise EmulatorError("carry flag is read but was never set")
            cin = M.cc if M.asel is None else M.cc[M.asel]
        if base == "add":
            r = x + y
            co = r < x
            if cin is not None:
                r2 = r + cin.astype(UN[n])
                co = co | (r2 < r)
                r = r2
        else:
            r = x - y
            co = x < y
            if cin is not None:
                k = cin.astype(UN[n])
                co = co | (r < k)
                r = r - k
        if setcc:
            if M.cc is None:
                M.cc = np.zeros(M.T, bool)
            else:
                M.cc = M.cc.copy()
            if M.mode == 2:
                M.cc[M.sel] = co
            elif M.mode == 1:
                np.copyto(M.cc, co, where=M.mask)
            else:
                M.cc[:] = co
        p(M, r)

    return run


def _addc(c: Context) -> Any:
    """Compile addc and subc."""
    base = c.f.parts[0]
    ty = c.type()
    cc = c.take("cc")
    c.done()
    d, a, b = c.args
    return carry_op(c, "add" if base == "addc" else "sub", ty, d, a, b, True, bool(cc))


def int_mad(c: Context, base: Any, ty: str) -> Any:
    """Compile integer mad."""
    if base == "fma":
        c.refuse("integer fma")
    part = c.take("lo", "hi", "wide")
    sat = c.take("sat")
    cc = c.take("cc")
    c.done()
    c.nargs(4)
    d, a, b, e = c.args
    if part is None or (cc and part == "wide") or (sat and not (part == "hi" and ty == "s32")):
        c.refuse("integer mad modifier")
    if cc:
        return mad_carry(c, part, ty, d, a, b, e, False, True)
    ga, gb = c.get(a, ty), c.get(b, ty)
    if part == "wide":
        wt = WIDE.get(ty) or c.refuse("mad.wide type")
        gc, p, dt = c.get(e, wt), c.put(d, wt), np_type(wt).type
        return lambda M: p(M, ga(M).astype(dt) * gb(M).astype(dt) + gc(M))
    gc, p = c.get(e, ty), c.put(d, ty)
    if part == "lo":
        return lambda M: p(M, ga(M) * gb(M) + gc(M))
    if sat:
        return lambda M: p(M, np.clip(mul_hi(ga(M), gb(M), ty).astype(I64) + gc(M), -(2**31), 2**31 - 1).astype(I32))
    return lambda M: p(M, mul_hi(ga(M), gb(M), ty) + gc(M))


def _mul24(c: Context) -> Any:
    """Compile mul24 and mad24."""
    base = c.f.parts[0]
    ty = c.type()
    part = c.take("lo", "hi")
    c.done()
    gs = [c.get(x, ty) for x in c.args[1:]]
    p = c.put(c.args[0], ty)

    def ext(v: Any) -> Any:
        v = v.astype(I64)
        return (v << 40) >> 40 if ty == "s32" else v & 0xFFFFFF

    def run(M: Machine) -> None:
        r = ext(gs[0](M)) * ext(gs[1](M))
        r = (r if part == "lo" else r >> 16).astype(U32).view(np_type(ty))
        p(M, r + gs[2](M) if base == "mad24" else r)

    return run


def int_div(c: Context, ty: str, what: Any) -> Any:
    """Compile integer division or remainder; by zero is an error when strict."""
    c.done()
    c.nargs(3)
    d, a, b = c.args
    ga, gb, p = c.get(a, ty, True), c.get(b, ty, True), c.put(d, ty, True)
    signed = ty[0] == "s"

    def run(M: Machine) -> None:
        x, y = ga(M), gb(M)
        if (y == 0).any():
            j = int(np.flatnonzero(y == 0)[0])
            if M.strict:
                raise EmulatorError(f"integer {what} by zero (result unspecified); {M.who(M.thread_of(j))}")
        if signed:
            r = np.fmod(x, y)
            if what == "div":
                r = np.where(y == -1, -x, (x - r) // np.where(y == 0, 1, y)).astype(x.dtype)
            else:
                r = np.where(y == -1, 0, r).astype(x.dtype)
        else:
            r = x // y if what == "div" else x % y
        p(M, r)

    return run


def _rem(c: Context) -> Any:
    """Compile rem."""
    return int_div(c, c.type(), "rem")


def _sad(c: Context) -> Any:
    """Compile sad."""
    ty = c.type()
    c.done()
    d, a, b, e = c.args
    ga, gb, gc, p = c.get(a, ty), c.get(b, ty), c.get(e, ty), c.put(d, ty)

    def run(M: Machine) -> None:
        x, y = ga(M), gb(M)
        p(M, np.where(x < y, y - x, x - y) + gc(M))

    return run


def _dp4a(c: Context) -> Any:
    """Compile dp4a and dp2a."""
    base = c.f.parts[0]
    bt, at = c.mods.pop(), c.mods.pop()
    half = c.take("lo", "hi") if base == "dp2a" else None
    c.done()
    d, a, b, e = c.args
    ga, gb, gc, p = c.get(a, "b32"), c.get(b, "b32"), c.get(e, "s32"), c.put(d, "s32")

    def lane(v: Any, k: Any, w: Any, signed: Any) -> Any:
        v = (v >> U32(w * k)) & U32((1 << w) - 1)
        v = v.astype(I64)
        return np.where(v >= 1 << (w - 1), v - (1 << w), v) if signed else v

    def run(M: Machine) -> None:
        x, y, r = ga(M), gb(M), gc(M).astype(I64)
        if base == "dp4a":
            for k in range(4):
                r = r + lane(x, k, 8, at == "s32") * lane(y, k, 8, bt == "s32")
        else:
            for k in range(2):
                r = r + lane(x, k, 16, at == "s32") * lane(y, k + (2 if half == "hi" else 0), 8, bt == "s32")
        p(M, r.astype(U32).view(I32))

    return run


OPERATIONS = {
    "rem": _rem,
    "addc": _addc,
    "subc": _addc,
    "madc": _madc,
    "mul24": _mul24,
    "mad24": _mul24,
    "sad": _sad,
    "dp4a": _dp4a,
    "dp2a": _dp4a,
}
