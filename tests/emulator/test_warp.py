"""Warp collectives, matrix instructions, barriers, divergence and deadlocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pagedref_cuda.emulator import BarrierError, EmulatorError, Module, StepLimit, Trap, Unsupported
from tests.emulator.small_kernels import HEAD, assemble, dec_bf16, edge_int, run, same

N = 256
FULL = "0xffffffff"


def lanes(x):
    return x.reshape(-1, 32)


def test_shfl():
    a = edge_int("b32", N, 1)
    r = np.random.default_rng(0)
    b = r.integers(0, 32, N).astype(np.uint32)
    body = f"""shfl.sync.bfly.b32 %o0, %i0, 16, 31, {FULL}; shfl.sync.down.b32 %o1|%p1, %i0, 5, 31, {FULL};
    shfl.sync.up.b32 %o2|%p2, %i0, 3, 0, {FULL};
    shfl.sync.idx.b32 %o3, %i0, %i1, 31, {FULL}; selp.u32 %o4, 1, 0, %p1; selp.u32 %o5, 1, 0, %p2;
    shfl.sync.down.b32 %o6|%p3, %i0, 1, 0x1807, {FULL};
    selp.u32 %o7, 1, 0, %p3; shfl.sync.bfly.b32 %o8, %i0, 1, 0x1c03, -1;
    shfl.sync.idx.b32 %o9, %i0, 2, 0x181f, {FULL};"""
    o = run(body, [("b32", a), ("u32", b)], ["b32"] * 4 + ["u32"] * 2 + ["b32", "u32", "b32", "b32"])
    A, lane = lanes(a), np.arange(32)
    same(o[0], A[:, lane ^ 16].reshape(-1))
    ok = lane + 5 <= 31
    same(o[1], A[:, np.where(ok, lane + 5, lane)].reshape(-1)), same(o[4], np.tile(ok, 8).astype(np.uint32))
    ok = lane - 3 >= 0
    same(o[2], A[:, np.where(ok, lane - 3, lane)].reshape(-1)), same(o[5], np.tile(ok, 8).astype(np.uint32))
    same(o[3], np.take_along_axis(A, lanes(b).astype(int), 1).reshape(-1))
    ok = (lane & 7) + 1 <= 7  # width 8: c = ((32-8)<<8)|7 ... segments of 8 lanes
    same(o[6], A[:, np.where(ok, lane + 1, lane)].reshape(-1)), same(o[7], np.tile(ok, 8).astype(np.uint32))
    same(o[8], A[:, lane ^ 1].reshape(-1))
    same(o[9], A[:, (lane & 24) | 2].reshape(-1))


def test_vote_match_redux():
    r = np.random.default_rng(1)
    a = r.integers(0, 4, N).astype(np.uint32)
    a[32:64] = 2
    a[64:96] = np.maximum(a[64:96], 1)
    s = edge_int("s32", N, 3)
    body = f"""setp.ne.u32 %p0, %i0, 0; vote.sync.ballot.b32 %o0, %p0, {FULL}; vote.sync.all.pred %p1, %p0, {FULL};
    vote.sync.any.pred %p2, !%p0, {FULL};
    vote.sync.uni.pred %p3, %p0, {FULL}; selp.u32 %o1, 1, 0, %p1; selp.u32 %o2, 1, 0, %p2; selp.u32 %o3, 1, 0, %p3;
    match.any.sync.b32 %o4, %i0, {FULL};
    match.all.sync.b32 %o5|%p4, %i0, {FULL}; selp.u32 %o6, 1, 0, %p4; redux.sync.add.s32 %o7, %i1, {FULL};
    redux.sync.max.s32 %o8, %i1, {FULL};
    redux.sync.min.u32 %o9, %i1, {FULL}; redux.sync.xor.b32 %o10, %i1, {FULL}; redux.sync.and.b32 %o11, %i1, {FULL};
    activemask.b32 %o12;"""
    o = run(body, [("u32", a), ("s32", s)], ["u32"] * 7 + ["s32", "s32", "u32", "u32", "u32", "u32"])
    A, S = lanes(a), lanes(s)
    w = 2 ** np.arange(32, dtype=np.uint64)

    def rep(v, t=np.uint32):
        return np.repeat(np.asarray(v).astype(t), 32)

    same(o[0], rep(((A != 0) * w).sum(1)))
    (
        same(o[1], rep((A != 0).all(1))),
        same(o[2], rep((A == 0).any(1))),
        same(o[3], rep((A != 0).all(1) | (A == 0).all(1))),
    )
    same(o[4], ((A[:, :, None] == A[:, None, :]) * w).sum(2).astype(np.uint32).reshape(-1))
    al = (A[:, :1] == A).all(1)
    same(o[5], rep(np.where(al, 0xFFFFFFFF, 0))), same(o[6], rep(al))
    (
        same(o[7], rep(S.sum(1, dtype=np.int32), np.int32)),
        same(o[8], rep(S.max(1), np.int32)),
        same(o[9], rep(S.view(np.uint32).min(1))),
    )
    (
        same(o[10], rep(np.bitwise_xor.reduce(S.view(np.uint32), 1))),
        same(o[11], rep(np.bitwise_and.reduce(S.view(np.uint32), 1))),
    )
    same(o[12], rep(np.full(8, 0xFFFFFFFF)))


def test_special_registers():
    body = """mov.u32 %o0, %laneid; mov.u32 %o1, %tid.x; mov.u32 %o2, %ctaid.x; mov.u32 %o3, %ntid.x;
    mov.u32 %o4, %nctaid.x; mov.u32 %o5, %lanemask_lt;
    mov.u32 %o6, %lanemask_ge; mov.u32 %r0, %clock; mov.u64 %d0, %clock64; mov.u32 %o7, %tid.y;
    mov.u32 %o8, %lanemask_eq;"""
    o = run(body, [("u32", np.zeros(N, np.uint32))], ["u32"] * 9)
    i = np.arange(N, dtype=np.uint32)
    for k, e in enumerate(
        [
            i % 32,
            i % 64,
            i // 64,
            np.full(N, 64),
            np.full(N, 4),
            (1 << (i % 32).astype(np.int64)) - 1,
            (2**32 - (1 << (i % 32).astype(np.int64))),
            np.zeros(N),
            1 << (i % 32).astype(np.int64),
        ]
    ):
        same(o[k], e.astype(np.uint32))


def test_grid_3d():
    ptx = (
        HEAD
        + """.visible .entry k(.param .u64 P0) {
    .reg .b32 %r<30>; .reg .b64 %d<5>;
    mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y;
    mov.u32 %r5, %ctaid.z;
    mov.u32 %r6, %ntid.x; mov.u32 %r7, %ntid.y; mov.u32 %r8, %ntid.z; mov.u32 %r9, %nctaid.x; mov.u32 %r10, %nctaid.y;
    mad.lo.u32 %r11, %r5, %r10, %r4; mad.lo.u32 %r11, %r11, %r9, %r3; mad.lo.u32 %r11, %r11, %r8, %r2;
    mad.lo.u32 %r11, %r11, %r7, %r1; mad.lo.u32 %r11, %r11, %r6, %r0;
    ld.param.u64 %d0, [P0]; mul.wide.u32 %d1, %r11, 4; add.u64 %d0, %d0, %d1;
    mad.lo.u32 %r12, %r0, 100, %r1; mad.lo.u32 %r12, %r12, 100, %r2; mad.lo.u32 %r12, %r12, 10, %r3;
    mad.lo.u32 %r12, %r12, 10, %r4; mad.lo.u32 %r12, %r12, 10, %r5;
    st.global.u32 [%d0], %r12; ret; }"""
    )
    assemble(ptx)
    g, b = (3, 2, 4), (5, 3, 2)
    o = np.zeros(24 * 30, np.uint32)
    Module(ptx).launch("k", g, b, [o])
    Z = np.indices((4, 2, 3, 2, 3, 5))
    cz, cy, cx, tz, ty, tx = Z
    same(o, (((((tx * 100 + ty) * 100 + tz) * 10 + cx) * 10 + cy) * 10 + cz).reshape(-1).astype(np.uint32))


# ------------------------------------------------------------------ divergence
def test_divergence_loop():
    n = np.random.default_rng(0).integers(0, 50, 1000).astype(np.uint32)
    body = """mov.u32 %o0, 0; mov.u32 %r1, 0;
    LOOP: setp.ge.u32 %p0, %r1, %i0; @%p0 bra DONE; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN;
    add.u32 %o0, %o0, %r1; bra.uni NEXT;
    EVEN: xor.b32 %o0, %o0, %r1; NEXT: add.u32 %r1, %r1, 1; bra LOOP; DONE:
    shfl.sync.bfly.b32 %o1, %o0, 1, 31, 0xffffffff;"""
    o = run(body, [("u32", n)], ["u32", "u32"])
    e = []
    for k in n:
        v = 0
        for i in range(k):
            v = v ^ i if i % 2 == 0 else v + i
        e.append(v)
    e = np.array(e, np.uint32)
    same(o[0], e)
    e2 = np.concatenate([e, e[:0]])
    same(o[1][:992], e2[:992].reshape(-1, 2)[:, ::-1].reshape(-1))


def test_collective_in_divergent_code():
    """half-warp masks in the two arms of a branch"""
    a = edge_int("u32", 64, 1)
    body = """mov.u32 %r0, %laneid; setp.lt.u32 %p0, %r0, 16; @%p0 bra A;
    redux.sync.add.u32 %o0, %i0, 0xffff0000; bra B; A: redux.sync.max.u32 %o0, %i0, 0x0000ffff;
    B: bar.warp.sync 0xffffffff;"""
    (o,) = run(body, [("u32", a)], ["u32"])
    A = a.reshape(2, 2, 16)
    e = np.stack([A[:, 0].max(1), A[:, 1].sum(1, dtype=np.uint32)], 1)
    same(o, np.repeat(e.reshape(-1), 16))


def test_waits_for_late_lanes():
    """lanes reach the shuffle through different paths and times"""
    n = np.random.default_rng(2).integers(0, 9, 64).astype(np.uint32)
    body = """mov.u32 %r1, 0; mov.u32 %o0, 0; setp.eq.u32 %p2, %i0, 0; @%p2 bra S;
    L: add.u32 %o0, %o0, %i0; add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, %i0; @%p0 bra L;
    S: shfl.sync.idx.b32 %o1, %o0, 7, 31, 0xffffffff;"""
    o = run(body, [("u32", n)], ["u32", "u32"])
    same(o[1], np.repeat((n * n).reshape(2, 32)[:, 7], 32))


def test_missing_lane_is_an_error():
    with pytest.raises(BarrierError, match="deadlock"):
        run(
            (
                "mov.u32 %r0, %laneid; setp.eq.u32 %p0, %r0, 3; @%p0 bra X; bar.sync 0; bra Y; "
                "X: shfl.sync.bfly.b32 %o0, %i0, 1, 31, 0xffffffff; Y: mov.u32 %o0, 1;"
            ),
            [("u32", np.zeros(32, np.uint32))],
            ["u32"],
            block=32,
        )
    with pytest.raises(BarrierError, match="own lane"):
        run("shfl.sync.bfly.b32 %o0, %i0, 1, 31, 0xfffffffe;", [("u32", np.zeros(32, np.uint32))], ["u32"], block=32)
    with pytest.raises(EmulatorError, match="reads lane"):
        run(
            (
                "mov.u32 %r0, %laneid; setp.ge.u32 %p0, %r0, 16; @%p0 bra X; "
                "shfl.sync.bfly.b32 %r1, %i0, 16, 31, 0xffff; X: mov.u32 %o0, 1;"
            ),
            [("u32", np.zeros(32, np.uint32))],
            ["u32"],
            block=32,
        )


def test_divergent_barrier():
    body = (
        "mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, {k}; @%p0 bra A; bar.sync 0; bra B; "
        "A: bar.sync 0; B: mov.u32 %o0, 5;"
    )
    for k in (16, 32):
        with pytest.raises(BarrierError, match="divergent barrier"):
            run(body.format(k=k), [("u32", np.zeros(64, np.uint32))], ["u32"])
    run(
        body.format(k=32), [("u32", np.zeros(64, np.uint32))], ["u32"], strict=False
    )  # whole warps: hardware accepts it
    with pytest.raises(BarrierError, match="have exited"):
        run(
            "mov.u32 %r0, %tid.x; mov.u32 %o0, 1; setp.lt.u32 %p0, %r0, 40; @%p0 exit; bar.sync 0;",
            [("u32", np.zeros(64, np.uint32))],
            ["u32"],
        )
    run(
        "mov.u32 %r0, %tid.x; mov.u32 %o0, 1; setp.lt.u32 %p0, %r0, 40; @%p0 exit; bar.sync 0;",
        [("u32", np.zeros(64, np.uint32))],
        ["u32"],
        strict=False,
    )
    with pytest.raises(BarrierError, match="deadlock"):
        run(
            "mov.u32 %r0, %tid.x; mov.u32 %o0, 1; setp.lt.u32 %p0, %r0, 32; @%p0 bar.sync 1; @!%p0 bar.sync 2;",
            [("u32", np.zeros(64, np.uint32))],
            ["u32"],
        )


def test_named_barriers_and_red():
    a = np.random.default_rng(0).integers(0, 2, 128).astype(np.uint32)
    body = """mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %i0, 0; barrier.cta.red.popc.aligned.u32 %o0, 0, %p0;
    bar.red.and.pred %p1, 0, %p0; bar.red.or.pred %p2, 0, %p0;
    selp.u32 %o1, 1, 0, %p1; selp.u32 %o2, 1, 0, %p2; setp.lt.u32 %p3, %r0, 64; @%p3 bra A; bar.sync 1, 64; bra B;
    A: bar.sync 2, 64; B: bar.sync 0; mov.u32 %o3, 3;"""
    a[64:] = 1
    o = run(body, [("u32", a)], ["u32"] * 4)
    same(o[0], np.repeat(a.reshape(2, 64).sum(1), 64).astype(np.uint32))
    (
        same(o[1], np.repeat(a.reshape(2, 64).all(1), 64).astype(np.uint32)),
        same(o[2], np.repeat(a.reshape(2, 64).any(1), 64).astype(np.uint32)),
    )


def test_barrier_arrive():
    """producer arrives, consumer waits"""
    body = """mov.u32 %r0, %tid.x; mov.u64 %d0, S; mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d0, %d1;
    setp.lt.u32 %p0, %r0, 32; @%p0 bra PROD;
    bar.sync 3, 64; ld.shared.u32 %o0, [%d2+-128]; bra E; PROD: st.shared.u32 [%d2], %i0; bar.arrive 3, 64;
    mov.u32 %o0, 0; E:"""
    a = np.arange(100, 164).astype(np.uint32)
    (o,) = run(body, [("u32", a)], ["u32"], decl=".shared .align 16 .b8 S[128];\n", races=True)
    same(o[32:], a[:32])


def test_spin_between_blocks():
    """block 1 waits for a flag set by block 0: needs the fairness rule and one batch"""
    body = """mov.u32 %r0, %ctaid.x; ld.param.u64 %d0, [P0]; cvta.to.global.u64 %d0, %d0; setp.eq.u32 %p0, %r0, 1;
    @%p0 bra SET;
    W: ld.volatile.global.u32 %r1, [%d0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra W; mov.u32 %o0, %r1; bra E;
    SET: st.volatile.global.u32 [%d0], 77; mov.u32 %o0, 5; E:"""
    z = np.zeros(64, np.uint32)
    (o,) = run(body, [("u32", z)], ["u32"], block=32, cooperative=True)
    same(o, np.repeat([77, 5], 32).astype(np.uint32))
    with pytest.raises(StepLimit):
        run("L: bra L; mov.u32 %o0, 0;", [("u32", z)], ["u32"], max_steps=1000)


def test_brx_exit_trap():
    body = """and.b32 %r0, %i0, 3; ts: .branchtargets A, B, C, D; brx.idx %r0, ts; A: mov.u32 %o0, 10; bra E;
    B: mov.u32 %o0, 20; bra E; C: mov.u32 %o0, 30; bra E;
    D: mov.u32 %o0, 40; E:"""
    a = edge_int("u32", N, 1)
    (o,) = run(body, [("u32", a)], ["u32"])
    same(o, np.array([10, 20, 30, 40], np.uint32)[a & 3])
    with pytest.raises(Trap, match=r"thread \(5,0,0\)"):
        run("mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 5; mov.u32 %o0, 0; @%p0 trap;", [("u32", a)], ["u32"])


def test_functions():
    decl = """.func (.param .b32 rv) inner(.param .b32 x, .param .b64 y) { .reg .b32 %r<4>; .reg .b64 %rd<3>;
    .reg .pred %p; ld.param.u32 %r0, [x]; ld.param.u64 %rd0, [y];
    setp.gt.u32 %p, %r0, 1000; @%p bra BIG; cvt.u32.u64 %r1, %rd0; add.u32 %r2, %r0, %r1; st.param.b32 [rv], %r2; ret;
    BIG: st.param.b32 [rv], %r0; ret; }
    .func (.param .b32 rv) outer(.param .b32 x) { .reg .b32 %r<4>; .reg .b64 %rd<3>; .local .align 8 .b8 buf[16];
    ld.param.u32 %r0, [x]; mov.u64 %rd1, buf; st.local.u32 [%rd1+8], %r0;
    cvta.local.u64 %rd2, %rd1; ld.u32 %r3, [%rd2+8];
    { .param .b32 p0; st.param.b32 [p0+0], %r3; .param .b64 p1; st.param.b64 [p1+0], 7; .param .b32 r0;
    call.uni (r0), inner, (p0, p1); ld.param.b32 %r1, [r0+0]; }
    mul.lo.u32 %r1, %r1, 3; st.param.b32 [rv], %r1; ret; }
"""
    a = np.random.default_rng(0).integers(0, 2000, N).astype(np.uint32)
    (o,) = run(
        "{ .param .b32 q; st.param.b32 [q], %i0; .param .b32 w; call (w), outer, (q); ld.param.b32 %o0, [w]; }",
        [("u32", a)],
        ["u32"],
        decl=decl,
    )
    same(o, (np.where(a > 1000, a, a + 7) * 3).astype(np.uint32))


def test_refusals():
    z = [("u32", np.zeros(32, np.uint32))]
    for body in (
        "add.foo.u32 %o0, %i0, 1;",
        "frobnicate.u32 %o0, %i0;",
        "shfl.bfly.b32 %o0, %i0, 1, 31;",
        "mov.u32 %o0, %envreg3;",
        "prmt.b32.f4e %o0, %i0, %i0, 3;",
        "mbarrier.init.shared.b64 [%d0], 3;",
        "ld.global.v4.u64 {%d0,%d1,%d2,%d3}, [%ad]; mov.u32 %o0, 1;",
    ):
        with pytest.raises(Unsupported, match="line"):
            run(body, z, ["u32"], check=False)


# ------------------------------------------------------------------ matrix instructions
def frag_a16(A, lane):
    """m16n8k16: registers of a lane as (row, col) pairs, from the ISA's formulas"""
    g, t = lane >> 2, lane & 3
    out = []
    for i in range(8):
        row = g if i < 2 or 4 <= i < 6 else g + 8
        col = t * 2 + (i & 1) + (8 if i >= 4 else 0)
        out.append(A[row, col])
    return out


def bits16(v, ty):
    v = np.asarray(v, np.float32)
    return v.astype(np.float16).view(np.uint16) if ty == "f16" else v.astype(ml_dtypes.bfloat16).view(np.uint16)


def pack2(lo, hi):
    return int(lo) | int(hi) << 16


@pytest.mark.parametrize("ty,acc", [("bf16", "f32"), ("f16", "f32"), ("f16", "f16")])
@pytest.mark.parametrize("K", [16, 8])
def test_mma_half(ty, acc, K):
    if K == 8 and acc == "f16":
        pass
    r = np.random.default_rng(1)
    W = 4
    n = 32 * W
    na, nb = (4, 2) if K == 16 else (2, 1)
    A, B, Cm = (
        r.standard_normal((W, 16, K)),
        r.standard_normal((W, K, 8)),
        r.standard_normal((W, 16, 8)).astype(np.float32),
    )
    ab, bb = bits16(A, ty), bits16(B, ty)
    dec = (
        (lambda b: b.view(np.float16).astype(np.float64)) if ty == "f16" else (lambda b: dec_bf16(b).astype(np.float64))
    )
    a = np.zeros((na, n), np.uint32)
    b = np.zeros((nb, n), np.uint32)
    c = np.zeros((4, n), np.float32)
    for w in range(W):
        for lane in range(32):
            g, t = lane >> 2, lane & 3
            if K == 16:
                e = frag_a16(ab[w], lane)
                bs = [bb[w][t * 2 + (i & 1) + (8 if i >= 2 else 0), g] for i in range(4)]
            else:
                e = [ab[w][g if i < 2 else g + 8, t * 2 + (i & 1)] for i in range(4)]
                bs = [bb[w][t * 2 + i, g] for i in range(2)]
            for k in range(na):
                a[k, w * 32 + lane] = pack2(e[2 * k], e[2 * k + 1])
            for k in range(nb):
                b[k, w * 32 + lane] = pack2(bs[2 * k], bs[2 * k + 1])
            for i in range(4):
                c[i, w * 32 + lane] = Cm[w][g if i < 2 else g + 8, t * 2 + (i & 1)]
    ins = [("b32", x) for x in a] + [("b32", x) for x in b]
    ra = ",".join(f"%i{k}" for k in range(na))
    rb = ",".join(f"%i{k + na}" for k in range(nb))
    D = dec(ab) @ dec(bb)
    if acc == "f32":
        ins += [("f32", x) for x in c]
        rc = ",".join(f"%i{k + na + nb}" for k in range(4))
        o = run(
            f"mma.sync.aligned.m16n8k{K}.row.col.f32.{ty}.{ty}.f32 {{%o0,%o1,%o2,%o3}}, {{{ra}}}, {{{rb}}}, {{{rc}}};",
            ins,
            ["f32"] * 4,
        )
        D = (D + Cm).astype(np.float32)
        for w in range(W):
            for lane in range(32):
                g, t = lane >> 2, lane & 3
                for i in range(4):
                    assert o[i][w * 32 + lane] == pytest.approx(
                        D[w][g if i < 2 else g + 8, t * 2 + (i & 1)], rel=1e-6, abs=1e-7
                    )
    else:
        ch = c.astype(np.float16)
        ins += [
            ("b32", np.array([pack2(ch[0, i].view(np.uint16), ch[1, i].view(np.uint16)) for i in range(n)], np.uint32)),
            ("b32", np.array([pack2(ch[2, i].view(np.uint16), ch[3, i].view(np.uint16)) for i in range(n)], np.uint32)),
        ]
        o = run(
            (
                f"mma.sync.aligned.m16n8k{K}.row.col.f16.f16.f16.f16 {{%o0,%o1}}, {{{ra}}}, {{{rb}}}, "
                f"{{%i{na + nb},%i{na + nb + 1}}};"
            ),
            ins,
            ["b32"] * 2,
        )
        for w in range(W):
            for lane in range(32):
                g, t = lane >> 2, lane & 3
                for i in range(4):
                    v = np.array([o[i >> 1][w * 32 + lane] >> (16 * (i & 1)) & 0xFFFF], np.uint16).view(np.float16)[0]
                    row, col = g if i < 2 else g + 8, t * 2 + (i & 1)
                    assert v == pytest.approx(
                        D[w][row, col] + np.float64(np.float16(Cm[w][row, col])), rel=2e-3, abs=2e-3
                    )


def test_mma_tf32_int8_fp8():
    r = np.random.default_rng(1)
    # tf32 m16n8k8
    A, B = r.standard_normal((16, 8)).astype(np.float32), r.standard_normal((8, 8)).astype(np.float32)
    lane = np.arange(32)
    g, t = lane >> 2, lane & 3

    def trunc(x):
        return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)

    a = [A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4]]
    b = [B[t, g], B[t + 4, g]]
    z = np.zeros(32, np.float32)
    o = run(
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%o0,%o1,%o2,%o3}, "
            "{%i0,%i1,%i2,%i3}, {%i4,%i5}, {%i6,%i6,%i6,%i6};"
        ),
        [("b32", x.view(np.uint32)) for x in a + b] + [("f32", z)],
        ["f32"] * 4,
        block=32,
    )
    D = trunc(A) @ trunc(B)
    for i in range(4):
        assert np.allclose(o[i], D[g + 8 * (i >> 1), 2 * t + (i & 1)], rtol=1e-6, atol=1e-7)
    # s8/u8 and fp8 m16n8k32
    for ty in ("s8", "u8", "e4m3", "e5m2"):
        raw_a, raw_b = r.integers(0, 256, (16, 32)).astype(np.uint8), r.integers(0, 256, (32, 8)).astype(np.uint8)
        if ty[0] == "e":
            raw_a &= 0xBF
            raw_b &= 0xBF
        val = {
            "s8": lambda x: x.view(np.int8).astype(np.float64),
            "u8": lambda x: x.astype(np.float64),
            "e4m3": lambda x: x.view(ml_dtypes.float8_e4m3fn).astype(np.float64),
            "e5m2": lambda x: x.view(ml_dtypes.float8_e5m2).astype(np.float64),
        }[ty]
        aw = np.zeros((4, 32), np.uint32)
        bw = np.zeros((2, 32), np.uint32)
        for ln in range(32):
            gg, tt = ln >> 2, ln & 3
            for i in range(16):
                row = gg if i < 4 or 8 <= i < 12 else gg + 8
                col = tt * 4 + (i & 3) + (16 if i >= 8 else 0)
                aw[i // 4, ln] |= np.uint32(int(raw_a[row, col]) << 8 * (i & 3))
            for i in range(8):
                bw[i // 4, ln] |= np.uint32(int(raw_b[tt * 4 + (i & 3) + (16 if i >= 4 else 0), gg]) << 8 * (i & 3))
        D = val(raw_a) @ val(raw_b)
        acc = "s32" if ty[0] in "su" else "f32"
        o = run(
            (
                f"mma.sync.aligned.m16n8k32.row.col.{acc}.{ty}.{ty}.{acc} {{%o0,%o1,%o2,%o3}}, "
                f"{{%i0,%i1,%i2,%i3}}, {{%i4,%i5}}, {{%i6,%i6,%i6,%i6}};"
            ),
            [("b32", x) for x in list(aw) + list(bw)] + [(acc, np.zeros(32))],
            [acc] * 4,
            block=32,
            check=ty[0] != "e",
        )
        for i in range(4):
            assert np.allclose(o[i], D[g + 8 * (i >> 1), 2 * t + (i & 1)], rtol=1e-6)


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_stmatrix(num, trans):
    r = np.random.default_rng(0)
    mats = r.integers(0, 65536, (num, 8, 8)).astype(np.uint16)
    words = np.zeros((4, 32), np.uint32)  # shared image: 4 words per lane, rows at lane*16 bytes
    for m in range(num):
        for row in range(8):
            words[:, m * 8 + row] = mats[m, row].view(np.uint32)
    regs = ",".join(f"%o{k}" for k in range(num))
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r9, S; shl.b32 %r1, %r0, 4; add.u32 %r1, %r9, %r1;
    st.shared.v4.b32 [%r1], {{%i0,%i1,%i2,%i3}}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 {{{regs}}}, [%r1];
    add.u32 %r2, %r1, 512; stmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 [%r2], {{{regs}}}; bar.sync 0;
    mov.u32 %o4, 0; mov.u32 %o5, 0; mov.u32 %o6, 0; mov.u32 %o7, 0; setp.lt.u32 %p0, %r0, {8 * num};
    @%p0 ld.shared.v4.b32 {{%o4,%o5,%o6,%o7}}, [%r2];"""
    body += "".join(f"mov.u32 %o{k}, 0;" for k in range(num, 4))
    o = run(
        body, [("b32", w) for w in words], ["b32"] * 8, decl=".shared .align 16 .b8 S[1024];\n", block=32, races=True
    )
    for m in range(num):
        X = mats[m].T if trans else mats[m]
        e = [pack2(X[lane // 4, 2 * (lane % 4)], X[lane // 4, 2 * (lane % 4) + 1]) for lane in range(32)]
        same(o[m], np.array(e, np.uint32))
    for k in range(4):
        e = words[k].copy()
        e[8 * num :] = 0
        same(o[4 + k], e)
