"""Tensor cores: mma on fragments of a warp, ldmatrix and stmatrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator import rounding as fp
from pagedref_cuda.emulator.elements import (
    halves,
    join,
)
from pagedref_cuda.emulator.operands import (
    F16,
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    Context,
)
from pagedref_cuda.emulator.syntax import Vec

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


def frag(shape: Any, which: Any, nreg: Any, per: Any) -> Any:
    """Return rows and columns of a fragment, as arrays (32 lanes, registers, elements of a register)."""
    lane = np.arange(32)[:, None, None]
    g, t = lane >> 2, lane & 3
    r = np.arange(nreg)[None, :, None]
    e = np.arange(per)[None, None, :]
    z = np.zeros((32, nreg, per), int)
    if which == "c":  # 16x8 accumulators, `per` elements per register (f32: 1, f16: 2)
        i = r * per + e
        return z + g + 8 * (i >> 1), z + 2 * t + (i & 1)
    if which == "a":  # registers alternate row halves, then advance along k
        return z + g + 8 * (r & 1), z + t * per + e + (r >> 1) * 4 * per
    return z + t * per + e + r * 4 * per, z + g  # b: k x 8


def split_elems(v: Any, ty: str) -> Any:
    """Take registers apart into elements, as float64 or int64."""
    if ty in ("f16", "bf16"):
        h = np.stack([v & U32(0xFFFF), v >> U32(16)], -1).astype(U16)
        return (h.view(F16) if ty == "f16" else fp.bf16_to_f32(h)).astype(F64)
    if ty == "tf32":
        return (v & U32(0xFFFFE000)).view(F32).astype(F64)[..., None]
    if ty in ("s8", "u8", "e4m3", "e5m2"):
        b = np.stack([(v >> U32(8 * k)) & U32(0xFF) for k in range(4)], -1).astype(U8)
        if ty == "s8":
            return b.view(np.int8).astype(I64)
        return b.astype(I64) if ty == "u8" else fp.fp8_decode(b, ty).astype(F64)
    raise AssertionError(ty)


MMA = {  # (shape, a type) -> (a regs, b regs, elements per register, k)
    ("m16n8k16", "f16"): (4, 2, 2, 16),
    ("m16n8k16", "bf16"): (4, 2, 2, 16),
    ("m16n8k8", "f16"): (2, 1, 2, 8),
    ("m16n8k8", "bf16"): (2, 1, 2, 8),
    ("m16n8k8", "tf32"): (4, 2, 1, 8),
    ("m16n8k4", "tf32"): (2, 1, 1, 4),
    ("m16n8k32", "s8"): (4, 2, 4, 32),
    ("m16n8k32", "u8"): (4, 2, 4, 32),
    ("m16n8k16", "s8"): (2, 1, 4, 16),
    ("m16n8k16", "u8"): (2, 1, 4, 16),
    ("m16n8k32", "e4m3"): (4, 2, 4, 32),
    ("m16n8k32", "e5m2"): (4, 2, 4, 32),
}


def _mma(c: Context) -> Any:
    """Compile mma.sync: float64 sums, rounded once."""
    if c.take("sync") is None or c.take("aligned") is None:
        c.refuse("mma form")
    shape = c.take(*{s for s, _ in MMA}, "m8n8k4", "m8n8k16", "m8n8k32", "m16n8k64", "m16n8k128", "m16n8k256")
    if c.take("row") is None or c.take("col") is None:
        c.refuse("mma layout")
    sat = c.take("satfinite")
    if len(c.mods) != 4:
        c.refuse("mma types")
    dt, at, bt, ct = c.mods
    key = (shape, at)
    if key not in MMA or dt != ct or (at != bt and not ({at, bt} <= {"s8", "u8"} or {at, bt} <= {"e4m3", "e5m2"})):
        c.refuse("mma shape or types")
    na, nb, per, K = MMA[key]
    ints = at in ("s8", "u8")
    if dt not in (("s32",) if ints else ("f32", "f16") if at == "f16" else ("f32",)):
        c.refuse("mma accumulator type")
    nc = 4 if dt != "f16" else 2
    cper = 1 if dt != "f16" else 2
    D, A, B, Cc = c.args
    if (len(D.items), len(A.items), len(B.items), len(Cc.items)) != (nc, na, nb, nc):
        c.refuse("mma operand counts")
    cty = {"f32": "f32", "s32": "s32", "f16": "b32"}[dt]
    fa, fb, fc = (
        [c.full(x, "b32") for x in A.items],
        [c.full(x, "b32") for x in B.items],
        [c.full(x, cty) for x in Cc.items],
    )
    ps = [c.put(x, cty, True) for x in D.items]
    ar, ac = frag(shape, "a", na, per)
    br, bc = frag(shape, "b", nb, per)
    cr, cc_ = frag(shape, "c", nc, cper)
    acc = I64 if ints else F64

    def body(M: Machine) -> None:
        w = np.unique(M.sel >> 5)
        n = len(w)

        def regs(fs: Any) -> Any:
            return np.stack([f(M).reshape(M.W, 32)[w] for f in fs], -1)  # (n,32,regs)

        a = np.zeros((n, 16, K), acc)
        b = np.zeros((n, K, 8), acc)
        a[:, ar, ac] = split_elems(regs(fa), at)
        b[:, br, bc] = split_elems(regs(fb), bt)
        cm = np.zeros((n, 16, 8), acc)
        cv = regs(fc)
        cm[:, cr, cc_] = split_elems(cv, "f16") if dt == "f16" else cv.astype(acc)[..., None]
        d = np.matmul(a, b) + cm
        if ints:
            if sat:
                d = np.clip(d, -(2**31), 2**31 - 1)
            r = d.astype(U32).view(I32)
        else:
            r = d.astype(F32 if dt == "f32" else F16)
        out = r[:, cr, cc_]  # (n,32,nc,cper)
        out = out[..., 0] if cper == 1 else join(np.ascontiguousarray(out[..., 0]), np.ascontiguousarray(out[..., 1]))
        M.stats.mma[c.f.op] = M.stats.mma.get(c.f.op, 0) + n
        pos = M.sel
        full = np.zeros((M.W, 32, nc), out.dtype)
        full[w] = out
        full = full.reshape(M.T, nc)
        for k in range(nc):
            ps[k](M, np.ascontiguousarray(full[pos, k]))

    return "sync", lambda M, pc: M.collective(pc, None, body)


def _ldmatrix(c: Context) -> Any:
    """Compile ldmatrix and stmatrix."""
    store = c.f.parts[0] == "stmatrix"
    c.type()
    if c.take("sync") is None or c.take("aligned") is None or c.take("m8n8") is None:
        c.refuse("ldmatrix form")
    num = int(c.take("x1", "x2", "x4")[1:])
    trans = c.take("trans")
    if c.take("shared", "shared::cta") is None:
        c.refuse("ldmatrix without .shared")
    c.done()
    d, m = c.args if not store else c.args[::-1]
    items = d.items if isinstance(d, Vec) else (d,)
    if len(items) != num:
        c.refuse("ldmatrix register count")
    ga, _ = c.addr(m)
    if store:
        fs = [c.full(x, "b32") for x in items]
    else:
        ps = [c.put(x, "b32", True) for x in items]

    def rows(M: Machine) -> Any:
        """byte offsets (W', num, 8) of the matrix rows, from the addresses of lanes 0..8*num-1"""
        w = np.unique(M.sel >> 5)
        a = np.zeros(M.T, I64)
        a[M.sel] = M.spread(ga(M))
        return w, a.reshape(M.W, 32)[w][:, : 8 * num]

    def body(M: Machine) -> None:
        w, addr = rows(M)
        n = len(w)
        old = M.sel
        th = (w[:, None] * 32 + np.arange(8 * num)).reshape(-1)
        M.set_group(th)
        flat = addr.reshape(-1)
        lane = np.arange(32)
        if not store:
            v = M.load("shared", flat, 4, 4)  # 4 words per row
            mat = np.stack(v, -1).reshape(n, num, 8, 4).view(U16).reshape(n, num, 8, 8)
            if trans:
                mat = mat.transpose(0, 1, 3, 2)
            lo, hi = mat[:, :, lane >> 2, 2 * (lane & 3)], mat[:, :, lane >> 2, 2 * (lane & 3) + 1]
            r = join(np.ascontiguousarray(lo), np.ascontiguousarray(hi))  # (n,num,32)
            M.set_group(old)
            full = np.zeros((M.W, 32, num), U32)
            full[w] = r.transpose(0, 2, 1)
            full = full.reshape(M.T, num)
            for k in range(num):
                ps[k](M, np.ascontiguousarray(full[M.sel, k]))
        else:
            reg = np.stack([f(M).reshape(M.W, 32)[w] for f in fs], 1)  # (n,num,32)
            mat = np.zeros((n, num, 8, 8), U16)
            lo, hi = halves(reg)
            mat[:, :, lane >> 2, 2 * (lane & 3)] = lo
            mat[:, :, lane >> 2, 2 * (lane & 3) + 1] = hi
            if trans:
                mat = mat.transpose(0, 1, 3, 2)
            words = np.ascontiguousarray(mat).reshape(n * num * 8, 8).view(U32)
            M.store("shared", flat, 4, 4, [np.ascontiguousarray(words[:, k]) for k in range(4)])
            M.set_group(old)

    return "sync", lambda M, pc: M.collective(pc, None, body)


OPERATIONS = {"mma": _mma, "ldmatrix": _ldmatrix, "stmatrix": _ldmatrix}
