"""Helpers: build small PTX kernels around a body, assemble them with ptxas when there is one, run them under the
emulator."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from fractions import Fraction

import numpy as np

from pagedref_cuda.emulator import Module

PTXAS = shutil.which("ptxas")
SIZE = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "u16": 2,
    "s16": 2,
    "b16": 2,
    "u32": 4,
    "s32": 4,
    "b32": 4,
    "f32": 4,
    "u64": 8,
    "s64": 8,
    "b64": 8,
    "f64": 8,
}
REGS = """.reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %d<64>; .reg .f32 %f<32>; .reg .f64 %g<32>;
"""
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


def assemble(ptx):
    """ptxas must accept the text (skipped where there is no ptxas)."""
    if PTXAS:
        with tempfile.TemporaryDirectory() as d:
            p = os.path.join(d, "k.ptx")
            with open(p, "w") as f:
                f.write(ptx)
            r = subprocess.run(
                [PTXAS, "-arch=sm_90", p, "-o", os.path.join(d, "k.cubin")], capture_output=True, text=True
            )
            assert r.returncode == 0, r.stderr + ptx


def kernel(body, ins, outs, decl=""):
    """Entry k: per thread i = ctaid*ntid + tid, loads %i0,%i1,... (types ins), runs body, stores %o0,%o1,... (types
    outs)."""
    n = len(ins) + len(outs)
    L = [HEAD + decl, ".visible .entry k(" + ", ".join(f".param .u64 P{k}" for k in range(n)) + ")\n{\n", REGS]

    def reg(t):
        return "b16" if SIZE[t] <= 2 else f"b{8 * SIZE[t]}" if t[0] != "f" else t

    for k, t in enumerate(ins):
        L.append(f".reg .{reg(t)} %i{k};\n")
    for k, t in enumerate(outs):
        L.append(f".reg .{reg(t)} %o{k};\n")
    L.append(
        ".reg .b32 %tx, %nx, %cx, %gi; .reg .b64 %ad, %of;\nmov.u32 %tx, %tid.x; "
        "mov.u32 %nx, %ntid.x; mov.u32 %cx, %ctaid.x;\n"
        "mad.lo.s32 %gi, %nx, %cx, %tx;\n"
    )
    for k, t in enumerate(ins):
        L.append(
            f"ld.param.u64 %ad, [P{k}]; cvta.to.global.u64 %ad, %ad; "
            f"mul.wide.u32 %of, %gi, {SIZE[t]}; add.s64 %ad, %ad, %of;\n"
            f"ld.global.{t} %i{k}, [%ad];\n"
        )
    L.append(body + "\n")
    for k, t in enumerate(outs):
        L.append(
            f"ld.param.u64 %ad, [P{len(ins) + k}]; cvta.to.global.u64 %ad, %ad; "
            f"mul.wide.u32 %of, %gi, {SIZE[t]}; add.s64 %ad, %ad, %of;\n"
            f"st.global.{t} [%ad], %o{k};\n"
        )
    L.append("ret;\n}\n")
    return "".join(L)


NP = {
    "u8": np.uint8,
    "s8": np.int8,
    "b8": np.uint8,
    "u16": np.uint16,
    "s16": np.int16,
    "b16": np.uint16,
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "f32": np.float32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
    "f64": np.float64,
}


def run(body, ins, outs, decl="", check=True, block=64, **kw):
    """ins: [(type, array)], outs: [type] -> list of output arrays"""
    n = len(ins[0][1]) if ins else block
    pad = -n % block
    arrs = [np.concatenate([np.asarray(a), np.asarray(a)[:1].repeat(pad)]).astype(NP[t], copy=False) for t, a in ins]
    res = [np.zeros(n + pad, NP[t]) for t in outs]
    ptx = kernel(body, [t for t, _ in ins], outs, decl)
    if check:
        assemble(ptx)
    Module(ptx).launch("k", (n + pad) // block, block, arrs + res, **kw)
    return [r[:n] for r in res]


# ------------------------------------------------------------------ independent oracle: exact rationals -> IEEE formats
FMT = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}


def round_frac(x, fmt, mode="rn", zero=0.0):
    """Exact Fraction -> Python float holding the value rounded to fmt."""
    if x == 0:
        return zero
    p, emin, emax = FMT[fmt]
    s, a = (-1, -x) if x < 0 else (1, x)
    e = a.numerator.bit_length() - a.denominator.bit_length()
    if Fraction(2) ** e > a:
        e -= 1
    assert Fraction(2) ** e <= a < Fraction(2) ** (e + 1)
    q = max(e, emin) - (p - 1)
    m = a / Fraction(2) ** q
    k, r = divmod(m.numerator, m.denominator)
    frac = Fraction(r, m.denominator)
    up = {
        "rn": frac > Fraction(1, 2) or (frac == Fraction(1, 2) and k & 1),
        "rz": False,
        "rm": s < 0 and frac > 0,
        "rp": s > 0 and frac > 0,
    }[mode]
    k += bool(up)
    big = (2**p - 1) * Fraction(2) ** (emax - p + 1)
    v = k * Fraction(2) ** q
    if v > big:
        inf = mode == "rn" or (mode == "rp" and s > 0) or (mode == "rm" and s < 0)
        return s * (float("inf") if inf else float(big))
    return s * float(v)


def dec_bf16(b):
    return (np.asarray(b, np.uint16).astype(np.uint32) << 16).view(np.float32)


def enc_bf16(x):
    """exact values only"""
    u = np.asarray(x, np.float32).view(np.uint32)
    return (u >> 16).astype(np.uint16)


def edge_f32(n, seed=0, finite=False):
    r = np.random.default_rng(seed)
    bits = r.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
    mid = (r.standard_normal(n) * 10.0 ** r.integers(-3, 4, n)).astype(np.float32)
    sp = np.array(
        [
            0.0,
            -0.0,
            1.0,
            -1.0,
            1e-45,
            -1e-45,
            1.1754942e-38,
            1.17549435e-38,
            3.4028235e38,
            -3.4028235e38,
            0.5,
            1.5,
            2.5,
            -2.5,
            65504,
            65520,
            np.inf,
            -np.inf,
            np.nan,
            2147483648.0,
            4294967296.0,
            -2147483648.0,
            9.223372e18,
            1.8446744e19,
        ],
        np.float32,
    )
    x = np.where(r.random(n) < 0.4, bits, mid)
    x[: len(sp)] = sp
    r.shuffle(x)
    if finite:
        x = np.where(np.isfinite(x), x, np.float32(1.25))
    return x


def edge_int(ty, n, seed=0):
    r = np.random.default_rng(seed)
    dt = np.dtype(NP[ty])
    nb = dt.itemsize * 8
    x = r.integers(0, 2**64, n, dtype=np.uint64) >> r.integers(64 - nb, 64, n).astype(np.uint64)
    x = x.astype(f"u{dt.itemsize}").view(dt).copy()
    flip = r.random(n) < 0.3
    x[flip] = ~x[flip]
    ii = np.iinfo(dt)
    sp = np.array([0, 1, 2, ii.max, ii.min, ii.max - 1, 31, 32, 33, 63, 64], dtype=object)
    sp = np.array([int(v) for v in sp if ii.min <= v <= ii.max], dt)
    x[: len(sp)] = sp
    r.shuffle(x)
    return x


def same(a, b):
    """bit equality, except that any NaN equals any NaN"""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    if a.dtype.kind == "f":
        u = f"u{a.dtype.itemsize}"
        ok = (a.view(u) == b.view(u)) | (np.isnan(a) & np.isnan(b))
    else:
        ok = a == b
    k = np.flatnonzero(~ok)
    assert not k.size, f"{k.size} of {a.size} differ, first at {k[0]}: {a[k[0]]!r} != {b[k[0]]!r}"
