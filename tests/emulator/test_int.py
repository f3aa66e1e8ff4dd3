"""Integer, logic, bit and comparison instructions against Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.small_kernels import NP, SIZE, edge_int, run, same

N = 512
INTS = ["u16", "s16", "u32", "s32", "u64", "s64"]


def wrap(v, ty):
    n = 8 * SIZE[ty]
    v &= (1 << n) - 1
    return v - (1 << n) if ty[0] == "s" and v >> (n - 1) else v


def arr(vals, ty):
    return np.array([wrap(v, ty) for v in vals], NP[ty])


def L(a):
    return [int(x) for x in a]


@pytest.mark.parametrize("ty", INTS)
def test_arith(ty):
    a, b = edge_int(ty, N, 1), edge_int(ty, N, 2)
    body = (
        f"add.{ty} %o0, %i0, %i1; sub.{ty} %o1, %i0, %i1; mul.lo.{ty} %o2, %i0, %i1; "
        f"mul.hi.{ty} %o3, %i0, %i1; min.{ty} %o4, %i0, %i1; max.{ty} %o5, %i0, %i1;"
    )
    o = run(body, [(ty, a), (ty, b)], [ty] * 6)
    A, B, n = L(a), L(b), 8 * SIZE[ty]
    same(o[0], arr([x + y for x, y in zip(A, B)], ty))
    same(o[1], arr([x - y for x, y in zip(A, B)], ty))
    same(o[2], arr([x * y for x, y in zip(A, B)], ty))
    same(o[3], arr([(x * y) >> n for x, y in zip(A, B)], ty))
    same(o[4], arr([min(x, y) for x, y in zip(A, B)], ty))
    same(o[5], arr([max(x, y) for x, y in zip(A, B)], ty))


@pytest.mark.parametrize("ty", ["u16", "s16", "u32", "s32"])
def test_wide(ty):
    wt = ty[0] + str(16 * SIZE[ty])
    a, b, c = edge_int(ty, N, 1), edge_int(ty, N, 2), edge_int(wt, N, 3)
    o = run(
        f"mul.wide.{ty} %o0, %i0, %i1; mad.wide.{ty} %o1, %i0, %i1, %i2; mul.wide.{ty} %o2, %i0, 7;",
        [(ty, a), (ty, b), (wt, c)],
        [wt] * 3,
    )
    same(o[0], arr([x * y for x, y in zip(L(a), L(b))], wt))
    same(o[1], arr([x * y + z for x, y, z in zip(L(a), L(b), L(c))], wt))
    same(o[2], arr([x * 7 for x in L(a)], wt))


@pytest.mark.parametrize("ty", INTS)
def test_mad_div_rem(ty):
    a, b, c = edge_int(ty, N, 1), edge_int(ty, N, 2), edge_int(ty, N, 3)
    nz = np.where(b == 0, b.dtype.type(3), b)
    n = 8 * SIZE[ty]
    o = run(
        (
            f"mad.lo.{ty} %o0, %i0, %i1, %i2; mad.hi.{ty} %o1, %i0, %i1, %i2; div.{ty} %o2, %i0, %i1; "
            f"rem.{ty} %o3, %i0, %i1;"
        ),
        [(ty, a), (ty, nz), (ty, c)],
        [ty] * 4,
    )
    A, B, Cc = L(a), L(nz), L(c)
    q = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(A, B)]
    same(o[0], arr([x * y + z for x, y, z in zip(A, B, Cc)], ty))
    same(o[1], arr([(x * y >> n) + z for x, y, z in zip(A, B, Cc)], ty))
    same(o[2], arr(q, ty))
    same(o[3], arr([x - y * k for x, y, k in zip(A, B, q)], ty))


def test_sat_abs_neg_sad():
    a, b, c = edge_int("s32", N, 1), edge_int("s32", N, 2), edge_int("u32", N, 3)
    o = run(
        (
            "add.sat.s32 %o0, %i0, %i1; sub.sat.s32 %o1, %i0, %i1; neg.s32 %o2, %i0; "
            "abs.s32 %o3, %i0; sad.s32 %o4, %i0, %i1, %i2;"
        ),
        [("s32", a), ("s32", b), ("u32", c)],
        ["s32", "s32", "s32", "s32", "u32"],
    )

    def cl(v):
        return max(-(2**31), min(2**31 - 1, v))

    same(o[0], arr([cl(x + y) for x, y in zip(L(a), L(b))], "s32"))
    same(o[1], arr([cl(x - y) for x, y in zip(L(a), L(b))], "s32"))
    same(o[2], arr([-x for x in L(a)], "s32"))
    same(o[3], arr([abs(x) for x in L(a)], "s32"))
    same(o[4], arr([abs(x - y) + z for x, y, z in zip(L(a), L(b), L(c))], "u32"))


@pytest.mark.parametrize("ty", ["b16", "b32", "b64"])
def test_logic(ty):
    a, b = edge_int(ty, N, 1), edge_int(ty, N, 2)
    o = run(
        (
            f"and.{ty} %o0, %i0, %i1; or.{ty} %o1, %i0, %i1; xor.{ty} %o2, %i0, %i1; "
            f"not.{ty} %o3, %i0; cnot.{ty} %o4, %i0;"
        ),
        [(ty, a), (ty, b)],
        [ty] * 5,
    )
    same(o[0], a & b), same(o[1], a | b), same(o[2], a ^ b), same(o[3], ~a), same(o[4], (a == 0).astype(a.dtype))


@pytest.mark.parametrize("ty", ["b16", "b32", "b64", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_shift(ty):
    a = edge_int(ty, N, 1)
    s = np.random.default_rng(3).integers(0, 80, N).astype(np.uint32)
    s[:4] = [0, 0xFFFFFFFF, 8 * SIZE[ty], 8 * SIZE[ty] - 1]
    n = 8 * SIZE[ty]
    if ty[0] == "b":
        o = run(
            f"shl.{ty} %o0, %i0, %i1; shl.{ty} %o1, %i0, 5; shl.{ty} %o2, %i0, 200;", [(ty, a), ("u32", s)], [ty] * 3
        )
        same(o[0], arr([x << min(k, n) for x, k in zip(L(a), L(s))], ty))
        same(o[1], arr([x << 5 for x in L(a)], ty))
        same(o[2], np.zeros_like(a))
    else:
        o = run(
            f"shr.{ty} %o0, %i0, %i1; shr.{ty} %o1, %i0, 5; shr.{ty} %o2, %i0, 200;", [(ty, a), ("u32", s)], [ty] * 3
        )
        same(o[0], arr([x >> min(k, n) for x, k in zip(L(a), L(s))], ty))
        same(o[1], arr([x >> 5 for x in L(a)], ty))
        same(o[2], arr([x >> 200 for x in L(a)], ty))


def test_bits():
    a, b, c = (
        edge_int("b32", N, 1),
        edge_int("b32", N, 2),
        np.random.default_rng(0).integers(0, 70, N).astype(np.uint32),
    )
    w = edge_int("b64", N, 5)
    o = run(
        "popc.b32 %o0, %i0; clz.b32 %o1, %i0; brev.b32 %o2, %i0; bfind.u32 %o3, %i0; "
        "bfind.s32 %o4, %i0; shf.l.wrap.b32 %o5, %i0, %i1, %i2;"
        "shf.r.clamp.b32 %o6, %i0, %i1, %i2; bfind.shiftamt.u32 %o7, %i0; "
        "shf.r.wrap.b32 %o8, %i0, %i1, %i2; shf.l.clamp.b32 %o9, %i0, %i1, %i2;",
        [("b32", a), ("b32", b), ("u32", c)],
        ["u32", "u32", "b32", "u32", "u32", "b32", "b32", "u32", "b32", "b32"],
    )
    A, B, Cc = L(a), L(b), L(c)
    M = 2**32 - 1
    same(o[0], np.array([bin(x).count("1") for x in A], np.uint32))
    same(o[1], np.array([32 - x.bit_length() for x in A], np.uint32))
    same(o[2], np.array([int(f"{x:032b}"[::-1], 2) for x in A], np.uint32))
    same(o[3], np.array([(x.bit_length() - 1) & M for x in A], np.uint32))
    same(o[4], np.array([((~x if x >> 31 else x) & M).bit_length() - 1 & M for x in A], np.uint32))
    same(o[5], np.array([((y << 32 | x) << (k & 31)) >> 32 & M for x, y, k in zip(A, B, Cc)], np.uint32))
    same(o[6], np.array([(y << 32 | x) >> min(k, 32) & M for x, y, k in zip(A, B, Cc)], np.uint32))
    same(o[7], np.array([32 - x.bit_length() if x else M for x in A], np.uint32))
    same(o[8], np.array([(y << 32 | x) >> (k & 31) & M for x, y, k in zip(A, B, Cc)], np.uint32))
    same(o[9], np.array([((y << 32 | x) << min(k, 32)) >> 32 & M for x, y, k in zip(A, B, Cc)], np.uint32))
    o = run("popc.b64 %o0, %i0; clz.b64 %o1, %i0; brev.b64 %o2, %i0;", [("b64", w)], ["u32", "u32", "b64"])
    same(o[0], np.array([bin(x).count("1") for x in L(w)], np.uint32))
    same(o[1], np.array([64 - x.bit_length() for x in L(w)], np.uint32))
    same(o[2], np.array([int(f"{x:064b}"[::-1], 2) for x in L(w)], np.uint64))


@pytest.mark.parametrize("ty", ["u32", "s32", "u64", "s64"])
def test_bfe(ty):
    a = edge_int(ty, N, 1)
    r = np.random.default_rng(1)
    p, ln = r.integers(0, 80, N).astype(np.uint32), r.integers(0, 80, N).astype(np.uint32)
    o = run(f"bfe.{ty} %o0, %i0, %i1, %i2;", [(ty, a), ("u32", p), ("u32", ln)], [ty])
    n = 8 * SIZE[ty]
    exp = []
    for x, b, k in zip(L(a), L(p), L(ln)):
        x &= (1 << n) - 1
        sb = 0 if ty[0] == "u" or k == 0 else x >> min(b + k - 1, n - 1) & 1
        v = 0
        for i in range(n):
            bit = x >> (b + i) & 1 if i < k and b + i < n else sb
            v |= bit << i
        exp.append(v)
    same(o[0], arr(exp, ty))


@pytest.mark.parametrize("ty", ["b32", "b64"])
def test_bfi(ty):
    a, b = edge_int(ty, N, 1), edge_int(ty, N, 2)
    r = np.random.default_rng(1)
    p, ln = r.integers(0, 80, N).astype(np.uint32), r.integers(0, 80, N).astype(np.uint32)
    o = run(f"bfi.{ty} %o0, %i0, %i1, %i2, %i3;", [(ty, a), (ty, b), ("u32", p), ("u32", ln)], [ty])
    n = 8 * SIZE[ty]
    exp = []
    for x, f, b_, k in zip(L(a), L(b), L(p), L(ln)):
        for i in range(k):
            if b_ + i < n:
                f = f & ~(1 << (b_ + i)) | ((x >> i & 1) << (b_ + i))
        exp.append(f)
    same(o[0], arr(exp, ty))


def test_lop3_prmt():
    a, b, c = (edge_int("b32", N, k) for k in range(3))
    luts = [0x96, 0xE8, 0x00, 0xFF, 0x1B, 0xCA]
    o = run(
        "".join(f"lop3.b32 %o{k}, %i0, %i1, %i2, {t};" for k, t in enumerate(luts))
        + "prmt.b32 %o6, %i0, %i1, %i2; prmt.b32 %o7, %i0, %i1, 0x5410;",
        [("b32", a), ("b32", b), ("b32", c)],
        ["b32"] * 8,
    )
    for k, t in enumerate(luts):
        exp = []
        for x, y, z in zip(L(a), L(b), L(c)):
            exp.append(sum((t >> ((x >> i & 1) * 4 + (y >> i & 1) * 2 + (z >> i & 1)) & 1) << i for i in range(32)))
        same(o[k], np.array(exp, np.uint32))

    def prmt(x, y, s):
        v = x | y << 32
        r = 0
        for k in range(4):
            q = s >> 4 * k & 15
            byte = v >> 8 * (q & 7) & 255
            if q & 8:
                byte = 255 if byte & 128 else 0
            r |= byte << 8 * k
        return r

    same(o[6], np.array([prmt(*t) for t in zip(L(a), L(b), L(c))], np.uint32))
    same(o[7], np.array([prmt(x, y, 0x5410) for x, y in zip(L(a), L(b))], np.uint32))


def test_carry_chain():
    a0, a1, b0, b1 = (edge_int("u32", N, k) for k in range(4))
    o = run(
        "add.cc.u32 %o0, %i0, %i2; addc.u32 %o1, %i1, %i3; sub.cc.u32 %o2, %i0, %i2; subc.u32 %o3, %i1, %i3;",
        [("u32", a0), ("u32", a1), ("u32", b0), ("u32", b1)],
        ["u32"] * 4,
    )
    a = a0.astype(np.uint64) | a1.astype(np.uint64) << 32
    b = b0.astype(np.uint64) | b1.astype(np.uint64) << 32
    same(o[0].astype(np.uint64) | o[1].astype(np.uint64) << np.uint64(32), a + b)
    same(o[2].astype(np.uint64) | o[3].astype(np.uint64) << np.uint64(32), a - b)


def test_dp4a_mul24():
    a, b, c = edge_int("u32", N, 1), edge_int("u32", N, 2), edge_int("s32", N, 3)
    o = run(
        "dp4a.s32.s32 %o0, %i0, %i1, %i2; dp4a.u32.s32 %o1, %i0, %i1, %i2; "
        "mul24.lo.u32 %o2, %i0, %i1; mul24.hi.s32 %o3, %i0, %i1;"
        "dp2a.lo.s32.u32 %o4, %i0, %i1, %i2;",
        [("u32", a), ("u32", b), ("s32", c)],
        ["s32", "s32", "u32", "s32", "s32"],
    )

    def sb(x, k):
        return wrap(x >> 8 * k & 255, "s8") if True else 0

    exp0 = [sum(sb(x, k) * sb(y, k) for k in range(4)) + z for x, y, z in zip(L(a), L(b), L(c))]
    exp1 = [sum((x >> 8 * k & 255) * sb(y, k) for k in range(4)) + z for x, y, z in zip(L(a), L(b), L(c))]
    same(o[0], arr(exp0, "s32")), same(o[1], arr(exp1, "s32"))
    same(o[2], arr([(x & 0xFFFFFF) * (y & 0xFFFFFF) for x, y in zip(L(a), L(b))], "u32"))

    def s24(x):
        return (x & 0xFFFFFF) - (1 << 24 if x >> 23 & 1 else 0)

    same(o[3], arr([s24(x) * s24(y) >> 16 for x, y in zip(L(a), L(b))], "s32"))
    same(
        o[4],
        arr(
            [
                sum(wrap(x >> 16 * k & 65535, "s16") * (y >> 8 * k & 255) for k in range(2)) + z
                for x, y, z in zip(L(a), L(b), L(c))
            ],
            "s32",
        ),
    )


@pytest.mark.parametrize("ty", INTS)
def test_setp_selp(ty):
    a, b = edge_int(ty, N, 1), edge_int(ty, N, 2)
    b[::3] = a[::3]
    ops = ["eq", "ne", "lt", "le", "gt", "ge"] + (["lo", "ls", "hi", "hs"] if ty[0] == "u" else [])
    body = "".join(f"setp.{op}.{ty} %p0, %i0, %i1; selp.u32 %o{k}, 1, 0, %p0;" for k, op in enumerate(ops))
    o = run(body, [(ty, a), (ty, b)], ["u32"] * len(ops))
    F = {
        "eq": a == b,
        "ne": a != b,
        "lt": a < b,
        "le": a <= b,
        "gt": a > b,
        "ge": a >= b,
        "lo": a < b,
        "ls": a <= b,
        "hi": a > b,
        "hs": a >= b,
    }
    for k, op in enumerate(ops):
        same(o[k], F[op].astype(np.uint32))


def test_predicates():
    a, b = edge_int("s32", N, 1), edge_int("s32", N, 2)
    body = """setp.lt.s32 %p0|%p1, %i0, %i1; setp.gt.and.s32 %p2, %i0, 0, %p0; setp.gt.or.s32 %p3|%p4, %i0, 5, !%p0;
    and.pred %p5, %p0, %p2;
    xor.pred %p6, %p2, %p3; not.pred %p7, %p6; or.pred %p8, %p7, %p5; mov.pred %p9, %p8; selp.u32 %o0, 1, 0, %p1;
    selp.u32 %o1, 1, 0, %p2;
    selp.u32 %o2, 1, 0, %p3; selp.u32 %o3, 1, 0, %p4; selp.u32 %o4, 1, 0, %p9; mov.u32 %o5, 7; @%p0 mov.u32 %o5, 8;
    @!%p0 add.u32 %o5, %o5, 3;
    set.lt.u32.s32 %o6, %i0, %i1; slct.u32.s32 %o7, 11, 22, %i0;"""
    o = run(body, [("s32", a), ("s32", b)], ["u32"] * 8)
    p0 = a < b
    p2 = (a > 0) & p0
    p3, p4 = (a > 5) | ~p0, ~(a > 5) | ~p0
    p8 = ~(p2 ^ p3) | (p0 & p2)
    for k, e in enumerate([~p0, p2, p3, p4, p8]):
        same(o[k], e.astype(np.uint32))
    same(o[5], np.where(p0, 8, 10).astype(np.uint32))
    same(o[6], np.where(p0, 0xFFFFFFFF, 0).astype(np.uint32))
    same(o[7], np.where(a >= 0, 11, 22).astype(np.uint32))


@pytest.mark.parametrize("st", INTS + ["u8", "s8"])
def test_cvt_int(st):
    a = edge_int(st, N, 1)
    dts = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
    body, outs = [], []
    ii = {t: np.iinfo(NP[t]) for t in dts}
    sat = {
        t: ii[t].min > ii[st].min or ii[t].max < ii[st].max for t in dts
    }  # ptxas refuses a .sat that can never clamp
    for k, dt in enumerate(dts):
        m = ".sat" if sat[dt] else ""
        body.append(f"cvt.{dt}.{st} %o{2 * k}, %i0; cvt{m}.{dt}.{st} %o{2 * k + 1}, %i0;")
        outs += [dt, dt]
    o = run("".join(body), [(st, a)], outs)
    for k, dt in enumerate(dts):
        same(o[2 * k], arr(L(a), dt))
        if sat[dt]:
            same(o[2 * k + 1], arr([max(int(ii[dt].min), min(int(ii[dt].max), x)) for x in L(a)], dt))


def test_pack_unpack():
    a, b = edge_int("b16", N, 1), edge_int("b16", N, 2)
    w = edge_int("b64", N, 3)
    o = run(
        (
            "mov.b32 %o0, {%i0, %i1}; mov.b32 {%o1, %o2}, %o0; mov.b64 {%o3, %o4}, %i2; "
            "mov.b64 %o5, {%o4, %o3}; mov.b64 {%h0,%h1,%h2,%h3}, %i2; mov.b16 %o6, %h2;"
        ),
        [("b16", a), ("b16", b), ("b64", w)],
        ["b32", "b16", "b16", "b32", "b32", "b64", "b16"],
    )
    same(o[0], a.astype(np.uint32) | b.astype(np.uint32) << 16)
    same(o[1], a), same(o[2], b)
    same(o[3], (w & 0xFFFFFFFF).astype(np.uint32)), same(o[4], (w >> np.uint64(32)).astype(np.uint32))
    same(o[5], (w >> np.uint64(32)) | (w << np.uint64(32)))
    same(o[6], (w >> np.uint64(32)).astype(np.uint16))


def test_mad_carry():
    """64x64 -> 128 bit product built from 32-bit mad.cc / madc, as libdevice does"""
    a, b = edge_int("u64", N, 1), edge_int("u64", N, 2)
    o = run(
        """mov.b64 {%r0,%r1}, %i0; mov.b64 {%r2,%r3}, %i1; mul.lo.u32 %r4, %r0, %r2; mul.hi.u32 %r5, %r0, %r2;
        mad.lo.cc.u32 %r5, %r0, %r3, %r5; madc.hi.u32 %r6, %r0, %r3, 0;
    mad.lo.cc.u32 %r5, %r1, %r2, %r5; madc.hi.cc.u32 %r6, %r1, %r2, %r6; madc.hi.u32 %r7, %r1, %r3, 0;
    mad.lo.cc.u32 %r6, %r1, %r3, %r6; addc.u32 %r7, %r7, 0;
    mov.b64 %o0, {%r4,%r5}; mov.b64 %o1, {%r6,%r7};""",
        [("u64", a), ("u64", b)],
        ["u64", "u64"],
    )
    p = [x * y for x, y in zip(L(a), L(b))]
    same(o[0], np.array([x & (2**64 - 1) for x in p], np.uint64)), same(o[1], np.array([x >> 64 for x in p], np.uint64))
