"""Logic, shifts and single bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator.operands import (
    I64,
    U32,
    U64,
    UN,
    Context,
    np_type,
)
from pagedref_cuda.emulator.syntax import TYPE_BYTES, Imm

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


def _logic(c: Context) -> Any:
    """Compile and, or, xor."""
    base = c.f.parts[0]
    ty = c.type()
    c.done()
    c.nargs(3)
    d, a, b = c.args
    ga, gb, p = c.get(a, ty), c.get(b, ty), c.put(d, ty)
    f = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[base]
    return lambda M: p(M, f(ga(M), gb(M)))


def _not(c: Context) -> Any:
    """Compile not."""
    ty = c.type()
    c.done()
    ga, p = c.get(c.args[1], ty), c.put(c.args[0], ty)
    return lambda M: p(M, ~ga(M))


def _cnot(c: Context) -> Any:
    """Compile cnot: 1 where the operand is 0."""
    ty = c.type()
    c.done()
    ga, p = c.get(c.args[1], ty), c.put(c.args[0], ty)
    return lambda M: p(M, (ga(M) == 0).astype(np_type(ty)))


def _shift(c: Context) -> Any:
    """Compile shl and shr; a count of the width or more shifts everything out."""
    base = c.f.parts[0]
    ty = c.type()
    c.done()
    c.nargs(3)
    d, a, b = c.args
    n = TYPE_BYTES[ty] * 8
    ga, gb, p = c.get(a, ty), c.get(b, "u32"), c.put(d, ty)
    dt = np_type(ty).type
    if isinstance(b, Imm):
        k = b.value & 0xFFFFFFFF
        if k < n:
            kk = dt(k)
            if base == "shl":
                return lambda M: p(M, ga(M) << kk)
            return lambda M: p(M, ga(M) >> kk)

    def run(M: Machine) -> None:
        x, s = ga(M), gb(M)
        big = s >= n
        k = np.where(big, U32(n - 1), s).astype(dt)
        r = (x << k) if base == "shl" else (x >> k)
        if big.any() and (base == "shl" or ty[0] != "s"):
            r = np.where(big, dt(0), r)
        p(M, r)

    return run


def _shf(c: Context) -> Any:
    """Compile shf: a shift of 64 bits, of which 32 are kept."""
    c.type()
    left = c.take("l", "r") == "l"
    wrap = c.take("wrap", "clamp") == "wrap"
    c.done()
    d, a, b, e = c.args
    ga, gb, gc, p = c.get(a, "u32"), c.get(b, "u32"), c.get(e, "u32"), c.put(d, "u32")

    def run(M: Machine) -> None:
        x = ga(M).astype(U64) | (gb(M).astype(U64) << U64(32))
        s = gc(M)
        s = (s & U32(31)) if wrap else np.minimum(s, U32(32))
        s = s.astype(U64)
        r = ((x << s) >> U64(32)) if left else (x >> s)
        p(M, r.astype(U32))

    return run


def _popc(c: Context) -> Any:
    """Compile popc."""
    ty = c.type()
    c.done()
    ga, p = c.get(c.args[1], ty), c.put(c.args[0], "u32")
    return lambda M: p(M, np.bitwise_count(ga(M)).astype(U32))


def smear(x: Any) -> Any:
    """Set every bit below the highest one."""
    n = x.dtype.itemsize * 8
    k = 1
    while k < n:
        x = x | (x >> x.dtype.type(k))
        k *= 2
    return x


def _clz(c: Context) -> Any:
    """Compile clz."""
    ty = c.type()
    c.done()
    n = TYPE_BYTES[ty] * 8
    ga, p = c.get(c.args[1], f"u{n}"), c.put(c.args[0], "u32")
    return lambda M: p(M, (n - np.bitwise_count(smear(ga(M))).astype(I64)).astype(U32))


def _bfind(c: Context) -> Any:
    """Compile bfind."""
    ty = c.type()
    sh = c.take("shiftamt")
    c.done()
    n = TYPE_BYTES[ty] * 8
    ga, p = c.get(c.args[1], ty), c.put(c.args[0], "u32")

    def run(M: Machine) -> None:
        x = ga(M)
        if ty[0] == "s":
            x = np.where(x < 0, ~x, x)
        pos = np.bitwise_count(smear(x.astype(UN[n // 8]))).astype(I64) - 1
        if sh:
            pos = np.where(pos >= 0, n - 1 - pos, -1)
        p(M, pos.astype(U32))

    return run


def brev(x: Any) -> Any:
    """Reverse the bits."""
    n = x.dtype.itemsize * 8
    r = np.zeros_like(x)
    t = x.dtype.type
    for k in range(n):
        r |= ((x >> t(k)) & t(1)) << t(n - 1 - k)
    return r


def _brev(c: Context) -> Any:
    """Compile brev."""
    ty = c.type()
    c.done()
    ga, p = c.get(c.args[1], ty), c.put(c.args[0], ty)
    return lambda M: p(M, brev(ga(M)))


def _bfe(c: Context) -> Any:
    """Compile bfe: take a field out."""
    ty = c.type()
    c.done()
    n = TYPE_BYTES[ty] * 8
    d, a, b, e = c.args
    ga, gb, gc, p = c.get(a, ty), c.get(b, "u32"), c.get(e, "u32"), c.put(d, ty)
    signed = ty[0] == "s"
    ut = UN[n // 8]

    def run(M: Machine) -> None:
        x, pos, ln = ga(M).astype(ut), (gb(M) & U32(0xFF)).astype(I64), (gc(M) & U32(0xFF)).astype(I64)
        big = pos >= n
        v = np.where(big, ut(0), x >> np.minimum(pos, n - 1).astype(ut))
        el = np.minimum(ln, np.maximum(n - pos, 0))  # bits really taken from a; everything above is sign (or zero)
        m = np.where(el >= n, ~ut(0), (ut(1) << np.minimum(el, n - 1).astype(ut)) - ut(1))
        r = v & m
        if signed:
            sb = (x >> np.minimum(pos + ln - 1, n - 1).clip(0).astype(ut)) & ut(1)
            sb = np.where(ln == 0, ut(0), sb)
            r = np.where(sb == 1, r | ~m, r)
            r = np.where(ln == 0, ut(0), r)
        p(M, r.view(np_type(ty)))

    return run


def _bfi(c: Context) -> Any:
    """Compile bfi: put a field in."""
    ty = c.type()
    c.done()
    n = TYPE_BYTES[ty] * 8
    d, a, b, e, g = c.args
    ga, gb, gc, gd, p = c.get(a, ty), c.get(b, ty), c.get(e, "u32"), c.get(g, "u32"), c.put(d, ty)
    ut = UN[n // 8]

    def run(M: Machine) -> None:
        x, y, pos, ln = ga(M), gb(M), (gc(M) & U32(0xFF)).astype(I64), (gd(M) & U32(0xFF)).astype(I64)
        m = np.where(ln >= n, ~ut(0), (ut(1) << np.minimum(ln, n - 1).astype(ut)) - ut(1))
        k = np.minimum(pos, n - 1).astype(ut)
        m = np.where(pos >= n, ut(0), m << k)
        p(M, (y & ~m) | ((x << k) & m))

    return run


def _lop3(c: Context) -> Any:
    """Compile lop3: any function of three bits, by its table."""
    c.type()
    c.done()
    c.nargs(5)
    d, a, b, e, lut = c.args
    t = lut.value
    ga, gb, gc, p = c.get(a, "b32"), c.get(b, "b32"), c.get(e, "b32"), c.put(d, "b32")

    def run(M: Machine) -> None:
        x, y, z = ga(M), gb(M), gc(M)
        r = None
        for k in range(8):
            if t >> k & 1:
                v = (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
                r = v if r is None else r | v
        if r is None:
            r = np.zeros(1, U32)
        p(M, r)

    return run


def _prmt(c: Context) -> Any:
    """Compile prmt in its default mode: choose bytes."""
    c.type()
    c.done()  # only the default mode
    d, a, b, e = c.args
    ga, gb, gc, p = c.get(a, "b32"), c.get(b, "b32"), c.get(e, "b32"), c.put(d, "b32")

    def run(M: Machine) -> None:
        x = ga(M).astype(U64) | (gb(M).astype(U64) << U64(32))
        s = gc(M)
        r = np.zeros(1, U32)
        for k in range(4):
            sel = (s >> U32(4 * k)) & U32(15)
            byte = ((x >> (U64(8) * (sel & U32(7)).astype(U64))) & U64(0xFF)).astype(U32)
            byte = np.where(sel & U32(8), np.where(byte & U32(0x80), U32(0xFF), U32(0)), byte)
            r = r | (byte << U32(8 * k))
        p(M, r)

    return run


def _bmsk(c: Context) -> Any:
    """Compile bmsk: a field of ones."""
    c.type()
    wrap = c.take("wrap", "clamp") == "wrap"
    c.done()
    d, a, b = c.args
    ga, gb, p = c.get(a, "u32"), c.get(b, "u32"), c.put(d, "u32")

    def run(M: Machine) -> None:
        x, y = ga(M).astype(U64), gb(M).astype(U64)
        if wrap:
            x, y = x & U64(31), y & U64(31)
        else:
            x, y = np.minimum(x, U64(32)), np.minimum(y, U64(32))
        p(M, ((((U64(1) << y) - U64(1)) << x) & U64(0xFFFFFFFF)).astype(U32))

    return run


def _szext(c: Context) -> Any:
    """Compile szext: extend from any width."""
    ty = c.type()
    wrap = c.take("wrap", "clamp") == "wrap"
    c.done()
    d, a, b = c.args
    ga, gb, p = c.get(a, "u32"), c.get(b, "u32"), c.put(d, "u32")

    def run(M: Machine) -> None:
        x, k = ga(M).astype(I64), gb(M).astype(I64)
        k = k & 31 if wrap else np.minimum(k, 32)
        m = (I64(1) << k) - 1
        v = x & m
        if ty == "s32":
            v = np.where((k > 0) & ((x >> np.maximum(k - 1, 0)) & 1 == 1), v | ~m, v)
        p(M, v.astype(U32))

    return run


OPERATIONS = {
    "and": _logic,
    "or": _logic,
    "xor": _logic,
    "not": _not,
    "cnot": _cnot,
    "shl": _shift,
    "shr": _shift,
    "shf": _shf,
    "popc": _popc,
    "clz": _clz,
    "bfind": _bfind,
    "brev": _brev,
    "bfe": _bfe,
    "bfi": _bfi,
    "lop3": _lop3,
    "prmt": _prmt,
    "bmsk": _bmsk,
    "szext": _szext,
}
