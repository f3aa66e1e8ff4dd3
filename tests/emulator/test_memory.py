"""State spaces, checks, cp.async, races, atomics, statistics."""

from __future__ import annotations

import numpy as np
import pytest

from pagedref_cuda.emulator import AsyncHazard, EmulatorError, Memory, MemoryFault, Module, RaceError, UninitialisedRead
from tests.emulator.small_kernels import HEAD, assemble, edge_int, kernel, run, same

N = 256
Z = np.zeros(64, np.uint32)
SH = ".shared .align 16 .b8 S[1024];\n"
ADDR = "mov.u32 %r0, %tid.x; mov.u64 %d0, S; mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d0, %d1; "


def test_vector_ld_st():
    a = np.arange(4 * N, dtype=np.uint32)
    ptx = (
        HEAD
        + """.visible .entry k(.param .u64 A, .param .u64 B, .param .u32 n) { .reg .b32 %r<20>; .reg .b64 %d<20>;
        .reg .f32 %f<4>; .reg .b16 %h<8>; .reg .pred %p;
    ld.param.u64 %d0, [A]; ld.param.u64 %d1, [B]; ld.param.u32 %r9, [n]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x; mad.lo.u32 %r0, %r0, %r1, %r2;
    setp.ge.u32 %p, %r0, %r9; @%p bra E; cvta.to.global.u64 %d0, %d0; mul.wide.u32 %d2, %r0, 16; add.u64 %d3, %d0, %d2;
    add.u64 %d4, %d1, %d2;
    ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%r3,%r4,%r5,%r6}, [%d3]; ld.global.cg.v2.u64 {%d5,%d6}, [%d3];
    ld.relaxed.gpu.global.v2.b16 {%h0,%h1}, [%d3+4];
    ld.global.v4.u8 {%h2,%h3,%h4,%h5}, [%d3]; cvt.u32.u16 %r10, %h5; cvt.u32.u16 %r11, %h2; cvt.u32.u16 %r12, %h0;
    add.u32 %r3, %r3, %r10; add.u32 %r3, %r3, %r11; sub.u32 %r4, %r4, %r12;
    st.global.wb.v4.b32 [%d4], {%r6,%r5,%r4,%r3}; E: ret; }"""
    )
    assemble(ptx)
    b = np.zeros_like(a)
    st = Module(ptx).launch("k", 4, 64, [a, b, np.uint32(200)])
    A = a.reshape(-1, 4)
    e = A[:, ::-1].copy()
    e[:, 3] += (A[:, 0] >> 24) + (A[:, 0] & 255)
    e[:, 2] -= A[:, 1] & 0xFFFF
    e[200:] = 0
    same(b, e.reshape(-1))
    w = st.global_by_width()
    assert w["ld", 16]["requests"] == 14 and w["ld", 16]["bytes"] == 2 * 200 * 16
    assert w["st", 16]["sectors"] == 100 and w["ld", 4]["sectors"] == 2 * 100


def test_subword_and_sign_extension():
    a = edge_int("u8", N, 1)
    o = run(
        "ld.param.u64 %d0, [P0]; cvta.to.global.u64 %d0, %d0; mov.u32 %r0, %ctaid.x; "
        "mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r0, %r0, %r1, %r2; "
        "cvt.u64.u32 %d1, %r0;"
        "add.u64 %d2, %d0, %d1; ld.global.s8 %o0, [%d2]; ld.global.u8 %o1, [%d2]; "
        "ld.global.s8 %o2, [%d2]; ld.global.u8 %o3, [%d2];",
        [("u8", a)],
        ["s32", "u32", "s64", "u16"],
    )
    (
        same(o[0], a.view(np.int8).astype(np.int32)),
        same(o[1], a.astype(np.uint32)),
        same(o[2], a.view(np.int8).astype(np.int64)),
        same(o[3], a.astype(np.uint16)),
    )


def test_const_and_global_variables():
    decl = """.const .align 4 .f32 C[4] = {1.5, -2.0, 0f40490FDB, 3.0}; .global .align 8 .u64 G[2] = {5, 0x100000000};
    .global .u32 CNT = 7; .global .align 8 .u64 PTR = generic(CNT);
    .const .align 2 .u16 H[3] = {1, 2, 0xffff};\n"""
    body = """and.b32 %r0, %i0, 3; mul.wide.u32 %d0, %r0, 4; mov.u64 %d1, C; add.u64 %d2, %d1, %d0;
    ld.const.f32 %o0, [%d2]; ld.const.f32 %o1, [C+8]; ld.global.u64 %o2, [G+8];
    ld.global.u64 %d3, [PTR]; ld.u32 %o3, [%d3]; ld.const.u16 %o4, [H+4]; cvta.const.u64 %d5, %d2; ld.f32 %f9, [%d5];
    add.f32 %o0, %o0, %f9;"""
    a = edge_int("u32", N, 1)
    o = run(body, [("u32", a)], ["f32", "f32", "u64", "u32", "u16"], decl=decl)
    C = np.array([1.5, -2, np.pi, 3], np.float32)
    same(o[0], C[a & 3] * 2), same(o[1], np.full(N, np.float32(np.pi))), same(o[2], np.full(N, 2**32, np.uint64))
    same(o[3], np.full(N, 7, np.uint32)), same(o[4], np.full(N, 65535, np.uint16))
    with pytest.raises(MemoryFault, match="'C'"):
        run("ld.const.f32 %o0, [C+16];", [("u32", a)], ["f32"], decl=decl, check=False)


def test_module_global_persists():
    ptx = HEAD + ".global .u32 CNT;\n.visible .entry k() { .reg .b32 %r<3>; atom.global.add.u32 %r0, [CNT], 1; ret; }"
    assemble(ptx)
    m = Module(ptx)
    m.launch("k", 2, 32, [])
    m.launch("k", 1, 10, [])
    assert m.globals["CNT"].view(np.uint32)[0] == 74


def test_local_and_generic():
    body = """.local .align 16 .b8 buf[64]; .shared .align 16 .b8 T[256]; mov.u64 %d0, buf; cvta.local.u64 %d1, %d0;
    mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 7; mul.wide.u32 %d2, %r1, 4;
    add.u64 %d3, %d0, %d2; st.local.u32 [%d3], %i0; add.u64 %d4, %d1, %d2; ld.u32 %o0, [%d4]; mov.u64 %d5, T;
    cvta.shared.u64 %d6, %d5; mul.wide.u32 %d7, %r0, 4; add.u64 %d8, %d6, %d7;
    st.u32 [%d8], %o0; and.b32 %r2, %r0, 1; setp.eq.u32 %p0, %r2, 0; selp.b64 %d9, %d8, %d4, %p0; ld.u32 %o1, [%d9];
    add.u64 %d10, %d5, %d7; ld.shared.u32 %o2, [%d10];
    isspacep.shared %p1, %d9; selp.u32 %o3, 1, 0, %p1; cvta.to.shared.u64 %d11, %d8; cvt.u32.u64 %r5, %d11;
    ld.shared.u32 %r6, [%r5]; add.u32 %o2, %o2, %r6; isspacep.global %p2, %ad; selp.u32 %o4, 1, 0, %p2;"""
    a = edge_int("u32", N, 1)
    o = run(body, [("u32", a)], ["u32"] * 5)
    same(o[0], a), same(o[1], a), same(o[2], a + a), same(o[3], (np.arange(N) % 2 == 0).astype(np.uint32))
    with pytest.raises(MemoryFault, match="local"):
        run(
            ".local .align 4 .b8 buf[8]; mov.u64 %d0, buf; st.local.u32 [%d0+4096], %i0; mov.u32 %o0, 1;",
            [("u32", a)],
            ["u32"],
        )


# ------------------------------------------------------------------ faults
IDX = "ld.param.u64 %d0, [P0]; cvta.to.global.u64 %d0, %d0; mul.wide.s32 %d1, %i0, 4; add.s64 %d2, %d0, %d1; "


def test_out_of_bounds():
    ok = np.zeros(64, np.int32)
    for bad, msg in ((64, "0 bytes past the end of 'arg0'"), (-1, "4 bytes before 'arg0'"), (10**6, "past the end")):
        i = ok.copy()
        i[37] = bad
        with pytest.raises(MemoryFault, match=msg) as e:
            run(IDX + "ld.global.u32 %o0, [%d2];", [("s32", i)], ["u32"])
        assert (
            "block (0,0,0) thread (37,0,0)" in str(e.value)
            and "ld.global.u32 %o0" in str(e.value)
            and "PTX line" in str(e.value)
            and e.value.line > 0
        )
        with pytest.raises(MemoryFault, match=msg):
            run(IDX + "st.global.u32 [%d2], 5; mov.u32 %o0, 1;", [("s32", i)], ["u32"])
        with pytest.raises(MemoryFault, match=msg):
            run(IDX + "atom.global.add.u32 %o0, [%d2], 5;", [("s32", i)], ["u32"])
        run(
            IDX + "setp.eq.s32 %p0, %i0, 0; mov.u32 %o0, 0; @%p0 ld.global.u32 %o0, [%d2];", [("s32", i)], ["u32"]
        )  # predicated off: no access
    with pytest.raises(MemoryFault, match="null pointer"):
        run("mov.u64 %d0, 16; ld.global.u32 %o0, [%d0];", [("u32", Z)], ["u32"])
    with pytest.raises(MemoryFault, match="null pointer"):
        run("mov.u64 %d0, 0; ld.u32 %o0, [%d0];", [("u32", Z)], ["u32"])
    with pytest.raises(MemoryFault, match="straddles"):
        ptx = (
            HEAD
            + ".visible .entry k(.param .u64 A) { .reg .b32 %r<5>; .reg .b64 %d<3>; ld.param.u64 %d0, [A]; "
            + "ld.global.v4.u32 {%r0,%r1,%r2,%r3}, [%d0+16]; ret; }"
        )
        Module(ptx).launch("k", 1, 1, [np.zeros(6, np.uint32)])
    with pytest.raises(MemoryFault, match="read-only"):
        a = np.zeros(64, np.uint32)
        a.flags.writeable = False
        ptx = HEAD + (
            ".visible .entry k(.param .u64 A) { .reg .b64 %d<3>; ld.param.u64 %d0, [A]; st.global.u32 [%d0], 1; ret; }"
        )
        Module(ptx).launch("k", 1, 1, [a])


def test_misaligned():
    with pytest.raises(MemoryFault, match="misaligned global load"):
        run(
            IDX + "ld.global.v2.u32 {%r1,%r2}, [%d2]; mov.u32 %o0, %r1;",
            [("s32", np.arange(64, dtype=np.int32) % 62)],
            ["u32"],
        )
    with pytest.raises(MemoryFault, match="misaligned shared"):
        run(ADDR + "st.shared.v4.u32 [%d2], {%i0,%i0,%i0,%i0}; mov.u32 %o0, 1;", [("u32", Z)], ["u32"], decl=SH)


def test_shared_bounds_and_red_zone():
    decl = ".shared .align 4 .b8 A[256];\n.shared .align 4 .b8 B[256];\n"
    body = (
        "mov.u32 %r0, %tid.x; mov.u64 %d0, A; mov.u64 %d3, B; mul.wide.u32 %d1, %r0, 4; "
        "add.u64 %d2, %d0, %d1; st.shared.u32 [%d3], 1; st.shared.u32 [%d2+{k}], %r0; "
        "mov.u32 %o0, 1;"
    )
    run(body.format(k=0), [("u32", Z)], ["u32"], decl=decl)
    with pytest.raises(MemoryFault, match=r"between shared variables.*256 bytes into"):
        run(body.format(k=4), [("u32", Z)], ["u32"], decl=decl)
    with pytest.raises(MemoryFault, match="outside shared memory"):
        run(body.format(k=4096), [("u32", Z)], ["u32"], decl=decl)
    with pytest.raises(MemoryFault, match="outside shared memory"):
        run("mov.u32 %r0, 0; ld.shared.u32 %o0, [%r0];", [("u32", Z)], ["u32"], decl=decl)


def test_dynamic_shared():
    decl = ".extern .shared .align 16 .b8 D[];\n.shared .align 4 .b8 A[64];\n"
    body = """mov.u32 %r0, %tid.x; mov.u64 %d0, D; mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d0, %d1;
    st.shared.u32 [%d2], %i0; bar.sync 0; xor.b32 %r1, %r0, 1; mul.wide.u32 %d1, %r1, 4;
    add.u64 %d2, %d0, %d1; ld.shared.u32 %o0, [%d2]; mov.u32 %o1, %dynamic_smem_size;"""
    a = edge_int("u32", N, 1)
    o = run(body, [("u32", a)], ["u32", "u32"], decl=decl, shared_bytes=256, races=True)
    same(o[0], a.reshape(-1, 2)[:, ::-1].reshape(-1)), same(o[1], np.full(N, 256, np.uint32))
    with pytest.raises(MemoryFault):
        run(body, [("u32", a)], ["u32", "u32"], decl=decl, shared_bytes=128)
    with pytest.raises(MemoryFault):
        run(body, [("u32", a)], ["u32", "u32"], decl=decl)


def test_uninitialised():
    with pytest.raises(UninitialisedRead, match="never written"):
        run(ADDR + "ld.shared.u32 %o0, [%d2];", [("u32", Z)], ["u32"], decl=SH)
    run(ADDR + "ld.shared.u32 %o0, [%d2];", [("u32", Z)], ["u32"], decl=SH, strict=False)
    with pytest.raises(UninitialisedRead, match="never written"):  # only half of the words were written
        run(
            ADDR + "setp.lt.u32 %p0, %r0, 32; @%p0 st.shared.u32 [%d2], %i0; bar.sync 0; ld.shared.u32 %o0, [%d2];",
            [("u32", Z)],
            ["u32"],
            decl=SH,
        )
    with pytest.raises(UninitialisedRead, match="register %r5"):
        run("add.u32 %o0, %r5, 1;", [("u32", Z)], ["u32"])
    with pytest.raises(
        UninitialisedRead, match=r"register %r6 .*thread \(32,0,0\)"
    ):  # written by half of the threads only
        run(
            ADDR + "setp.lt.u32 %p0, %r0, 32; @%p0 mov.u32 %r5, 1; mov.u32 %r6, %r5; add.u32 %o0, %r6, 1;",
            [("u32", Z)],
            ["u32"],
            decl=SH,
        )
    run(
        ADDR
        + "setp.lt.u32 %p0, %r0, 32; @%p0 mov.u32 %r5, 1; mov.u32 %r6, %r5; @!%p0 mov.u32 %r6, 2; add.u32 %o0, %r6, 1;",
        [("u32", Z)],
        ["u32"],
        decl=SH,
    )
    with pytest.raises(UninitialisedRead, match="register %r7"):
        run("mov.u32 %r7, 3; mov.u32 %r7, %r8; add.u32 %o0, %r7, 1;", [("u32", Z)], ["u32"])
    with pytest.raises(EmulatorError, match="by zero"):
        run("div.u32 %o0, 5, %i0;", [("u32", Z)], ["u32"])


# ------------------------------------------------------------------ races
X = "xor.b32 %r1, %r0, {k}; mul.wide.u32 %d3, %r1, 4; add.u64 %d4, %d0, %d3; "


def race(body, **kw):
    return run(body, [("u32", np.arange(64, dtype=np.uint32))], ["u32"], decl=SH, races=True, **kw)


def test_race_raw():
    b = ADDR + X.format(k=1) + "st.shared.u32 [%d2], %i0; {bar} ld.shared.u32 %o0, [%d4];"
    (o,) = race(b.format(bar="bar.sync 0;"))
    same(o, np.arange(64, dtype=np.uint32) ^ 1)
    with pytest.raises(RaceError, match="read-after-write"):
        race(b.format(bar=""))
    race(b.format(bar="bar.warp.sync 0xffffffff;"))  # partner in the same warp: a warp barrier is enough
    b = ADDR + X.format(k=32) + "st.shared.u32 [%d2], %i0; {bar} ld.shared.u32 %o0, [%d4];"
    with pytest.raises(RaceError, match="read-after-write"):
        race(b.format(bar="bar.warp.sync 0xffffffff;"))  # partner in the other warp: it is not
    race(ADDR + "st.shared.u32 [%d2], %i0; ld.shared.u32 %o0, [%d2];")  # own word


def test_race_war_waw():
    with pytest.raises(RaceError, match="write-after-read"):
        race(
            ADDR
            + X.format(k=32)
            + "st.shared.u32 [%d2], 0; bar.sync 0; ld.shared.u32 %o0, [%d4]; st.shared.u32 [%d2], %i0;"
        )
    race(
        ADDR
        + X.format(k=32)
        + "st.shared.u32 [%d2], 0; bar.sync 0; ld.shared.u32 %o0, [%d4]; bar.sync 0; st.shared.u32 [%d2], %i0;"
    )
    with pytest.raises(RaceError, match="write-after-read"):  # broadcast read, then thread 0 overwrites it
        race(
            ADDR
            + (
                "st.shared.u32 [%d2], 0; bar.sync 0; ld.shared.u32 %o0, [S]; setp.eq.u32 %p0, %r0, 0; "
                "@%p0 st.shared.u32 [S], 9;"
            )
        )
    race(
        ADDR
        + (
            "st.shared.u32 [%d2], 0; bar.sync 0; setp.eq.u32 %p0, %r0, 0; mov.u32 %o0, 0; "
            "@%p0 ld.shared.u32 %o0, [S]; @%p0 st.shared.u32 [S], 9;"
        )
    )
    with pytest.raises(RaceError, match="write-after-write"):
        race(ADDR + "st.shared.u32 [S], %r0; mov.u32 %o0, 0;")
    race(
        ADDR + "st.shared.u32 [S], 7; mov.u32 %o0, 0;"
    )  # everybody stores the same value in one instruction: tolerated
    with pytest.raises(RaceError, match="write-after-write"):
        race(ADDR + X.format(k=1) + "st.shared.u32 [%d2], %r0; st.shared.u32 [%d4], %r0; mov.u32 %o0, 0;")


def test_race_atomics():
    init = ADDR + "st.shared.u32 [%d2], 0; bar.sync 0; "
    race(init + "atom.shared.add.u32 %o0, [S], 1; atom.shared.add.u32 %o0, [S], 1; bar.sync 0; ld.shared.u32 %o0, [S];")
    with pytest.raises(RaceError):
        race(init + "atom.shared.add.u32 %o0, [S], 1; ld.shared.u32 %o0, [S];")
    with pytest.raises(RaceError):
        race(init + "ld.shared.u32 %o0, [S]; atom.shared.add.u32 %o0, [S], 1;")


# ------------------------------------------------------------------ cp.async
CP = (
    "mov.u32 %r0, %tid.x; mov.u32 %r1, S; shl.b32 %r2, %r0, {sh}; add.u32 %r3, %r1, %r2; "
    "ld.param.u64 %d0, [P0]; cvta.to.global.u64 %d0, %d0; cvt.u64.u32 %d1, %r2; "
    "add.u64 %d2, %d0, %d1; "
)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async(size):
    w = size // 4
    a = edge_int("u32", 64 * w, 1)
    pad = np.zeros(64, np.uint32)
    sh = size.bit_length() - 1
    src = "ld.param.u64 %d0, [P1]; cvta.to.global.u64 %d0, %d0; cvt.u64.u32 %d1, %r2; add.u64 %d2, %d0, %d1; "
    body = (
        CP.format(sh=sh)
        + src
        + (
            f"cp.async.ca.shared.global.L2::128B [%r3], [%d2], {size}; cp.async.commit_group; "
            f"cp.async.wait_group 0; bar.sync 0; xor.b32 %r4, %r3, 4; ld.shared.u32 %o0, [%r4];"
        )
    )

    ptx = kernel(body, ["u32", "u32"], ["u32"], SH)
    assemble(ptx)
    o = np.zeros(64, np.uint32)
    Module(ptx).launch("k", 1, 64, [pad, a, o], races=True)
    same(o, a[(np.arange(64) * size // 4) ^ 1])


def test_cp_async_hazards():
    a = np.arange(64, dtype=np.uint32)
    b = CP.format(sh=2) + "cp.async.ca.shared.global [%r3], [%d2], 4; {x} ld.shared.u32 %o0, [%r3];"
    for x in (
        "",
        "cp.async.commit_group;",
        "bar.sync 0;",
        "cp.async.commit_group; cp.async.wait_group 1;",
        "cp.async.wait_group 0;",
    ):
        with pytest.raises(AsyncHazard, match="not been waited for"):
            run(b.format(x=x), [("u32", a)], ["u32"], decl=SH)
    for x in (
        "cp.async.commit_group; cp.async.wait_group 0;",
        "cp.async.wait_all;",
        "cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1;",
    ):
        (o,) = run(b.format(x=x), [("u32", a)], ["u32"], decl=SH, races=True)
        same(o, a)
    (o,) = run(b.format(x=""), [("u32", a)], ["u32"], decl=SH, strict=False)
    assert (o == 0xCDCDCDCD).all()  # the copy has not happened yet
    with pytest.raises(RaceError):  # waited for, but no barrier before another thread reads
        run(
            CP.format(sh=2)
            + (
                "cp.async.ca.shared.global [%r3], [%d2], 4; cp.async.wait_all; xor.b32 %r4, %r3, 4; "
                "ld.shared.u32 %o0, [%r4];"
            ),
            [("u32", a)],
            ["u32"],
            decl=SH,
            races=True,
        )
    with pytest.raises(MemoryFault, match="past the end"):
        run(
            CP.format(sh=2) + "cp.async.ca.shared.global [%r3], [%d2+8], 4; cp.async.wait_all; mov.u32 %o0, 0;",
            [("u32", a)],
            ["u32"],
            decl=SH,
        )
    with pytest.raises(AsyncHazard, match="store"):
        run(
            CP.format(sh=2)
            + "cp.async.ca.shared.global [%r3], [%d2], 4; st.shared.u32 [%r3], 1; cp.async.wait_all; mov.u32 %o0, 0;",
            [("u32", a)],
            ["u32"],
            decl=SH,
        )


def test_cp_async_pipeline_and_zfill():
    """two groups in flight; zero fill beyond the source, which is not read"""
    a = np.arange(1, 65, dtype=np.uint32)
    body = (
        CP.format(sh=2)
        + """cp.async.ca.shared.global [%r3], [%d2], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%r3+256], [%d2], 4; cp.async.commit_group;
    cp.async.wait_group 1; ld.shared.u32 %o0, [%r3]; setp.lt.u32 %p0, %r0, 60; selp.u32 %r5, 4, 0, %p0;
    cp.async.ca.shared.global [%r3+512], [%d2+16], 4, %r5; cp.async.commit_group;
    cp.async.wait_group 1; ld.shared.u32 %o1, [%r3+256]; cp.async.wait_group 0; ld.shared.u32 %o2, [%r3+512];"""
    )
    o = run(body, [("u32", a)], ["u32"] * 3, decl=SH, races=True)
    same(o[0], a), same(o[1], a)
    same(o[2], np.where(np.arange(64) < 60, np.arange(64) + 5, 0).astype(np.uint32))


# ------------------------------------------------------------------ atomics
def test_atomics_int():
    r = np.random.default_rng(0)
    for nb in (1, 7, 300):
        idx = r.integers(0, nb, 1024).astype(np.uint32)
        val = edge_int("u32", 1024, 3)
        ops = ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "exch.b32", "inc.u32", "dec.u32"]
        body = "ld.param.u64 %d0, [P2]; cvta.to.global.u64 %d0, %d0; mul.wide.u32 %d1, %i0, 4; add.u64 %d2, %d0, %d1;"
        for op in ops:
            tab = edge_int("u32", 1024, 4)
            t0 = tab.copy()
            ptx_body = body + f"atom.global.{op} %o0, [%d2], %i1;"

            ptx = kernel(ptx_body, ["u32", "u32", "u32"], ["u32"])
            assemble(ptx)
            o = np.zeros(1024, np.uint32)
            Module(ptx).launch("k", 4, 256, [idx, val, tab, o])
            M = 2**32 - 1

            def sg(x):
                return x - 2**32 if x >> 31 else x

            fn = {
                "add": lambda p, v, M=M: p + v & M,
                "min": lambda p, v, M=M: min(sg(p), sg(v)) & M,
                "max": max,
                "and": lambda p, v: p & v,
                "or": lambda p, v: p | v,
                "xor": lambda p, v: p ^ v,
                "exch": lambda p, v: v,
                "inc": lambda p, v: 0 if p >= v else p + 1,
                "dec": lambda p, v: v if p == 0 or p > v else p - 1,
            }[op.split(".")[0]]
            e, old = [int(x) for x in t0], []
            for i, v in zip(idx, val):
                old.append(e[i])
                e[i] = fn(e[i], int(v))
            same(tab, np.array(e, np.uint32)), same(o, np.array(old, np.uint32))


def test_atomics_float_cas_half():
    r = np.random.default_rng(0)

    idx = r.integers(0, 5, 512).astype(np.uint32)
    v = r.standard_normal(512).astype(np.float32)
    tab, o = np.zeros(512, np.float32), np.zeros(512, np.float32)
    ptx = kernel(
        (
            "ld.param.u64 %d0, [P2]; cvta.to.global.u64 %d0, %d0; mul.wide.u32 %d1, %i0, 4; "
            "add.u64 %d2, %d0, %d1; atom.global.add.f32 %o0, [%d2], %i1;"
        ),
        ["u32", "f32", "f32"],
        ["f32"],
    )
    assemble(ptx)
    Module(ptx).launch("k", 4, 128, [idx, v, tab, o])
    e, old = np.zeros(512, np.float32), []
    for i, x in zip(idx, v):
        old.append(e[i])
        e[i] = e[i] + x
    same(tab, e), same(o, np.array(old, np.float32))
    # one address, many threads, f64 red; cas loop with every thread succeeding in turn; f16x2
    ptx = kernel(
        """ld.param.u64 %d0, [P1]; cvta.to.global.u64 %d0, %d0; cvt.f64.f32 %g0, %i0; red.global.add.f64 [%d0], %g0;
        ld.param.u64 %d1, [P2]; cvta.to.global.u64 %d1, %d1; ld.volatile.global.u32 %r0, [%d1];
    L: add.u32 %r1, %r0, 3; atom.global.cas.b32 %r2, [%d1], %r0, %r1; setp.eq.u32 %p0, %r2, %r0; mov.u32 %r0, %r2;
    @!%p0 bra L; ld.param.u64 %d2, [P3]; cvta.to.global.u64 %d2, %d2;
    cvt.rn.f16.f32 %h0, 0f3F800000; mov.b32 %r5, {%h0, %h0}; red.global.add.noftz.f16x2 [%d2], %r5;
    mov.u32 %o0, %r1;""",
        ["f32", "f64", "u32", "u32"],
        ["u32"],
    )
    assemble(ptx)
    d, n, h, o = np.zeros(512), np.zeros(512, np.uint32), np.zeros(512, np.uint32), np.zeros(512, np.uint32)
    Module(ptx).launch("k", 4, 128, [v, d, n, h, o])
    same(d[:1], np.add.accumulate(v.astype(np.float64))[-1:])
    assert n[0] == 1536 and sorted(o) == list(range(3, 1537, 3))
    same(h[:1].view(np.float16), np.full(2, 512, np.float16))


def test_pointer_table_and_memory():
    mem = Memory()
    bufs = [np.full(4, 10 * k, np.uint32) for k in range(8)]
    tab = np.array([mem.add(b, f"buf{k}") for k, b in enumerate(bufs)], np.uint64)
    ptx = (
        HEAD
        + """.visible .entry k(.param .u64 T, .param .u64 O) { .reg .b32 %r<5>; .reg .b64 %d<6>; ld.param.u64 %d0, [T];
        ld.param.u64 %d1, [O]; mov.u32 %r0, %tid.x; mul.wide.u32 %d2, %r0, 8; add.u64 %d3, %d0, %d2;
    ld.global.u64 %d4, [%d3]; ld.global.u32 %r1, [%d4+12]; mul.wide.u32 %d2, %r0, 4; add.u64 %d5, %d1, %d2;
    st.global.u32 [%d5], %r1; st.global.u32 [%d4], %r0; ret; }"""
    )
    assemble(ptx)
    o = np.zeros(8, np.uint32)
    Module(ptx).launch("k", 1, 8, [tab, o], memory=mem)
    same(o, np.arange(0, 80, 10, dtype=np.uint32))
    assert [int(b[0]) for b in bufs] == list(range(8))


# ------------------------------------------------------------------ statistics
def test_coalescing_numbers():
    ptx = (
        HEAD
        + """.visible .entry k(.param .u64 A, .param .u32 s) { .reg .b32 %r<5>; .reg .b64 %d<6>; ld.param.u64 %d0, [A];
        ld.param.u32 %r2, [s]; mov.u32 %r0, %tid.x; mul.lo.u32 %r1, %r0, %r2; mul.wide.u32 %d1, %r1, 4;
    add.u64 %d2, %d0, %d1; ld.global.u32 %r3, [%d2]; st.global.u32 [%d2], %r3; ret; }"""
    )
    assemble(ptx)
    a = np.zeros(64 * 32, np.uint32)
    for s, sec in ((1, 4), (2, 8), (8, 32), (32, 32), (0, 1)):
        st = Module(ptx).launch("k", 1, 64, [a, np.uint32(s)])
        d = st.global_by_width()["ld", 4]
        assert d["requests"] == 2 and d["sectors"] == 2 * sec, s
        assert st.by_opcode()["ld.global.u32"] == (2, 64) and st.thread_instructions == 64 * 9
    assert "sectors" in st.report()


def test_bank_conflicts():
    for stride, ways in ((1, 1), (2, 2), (32, 32), (33, 1), (8, 8)):
        body = (
            f"mov.u32 %r0, %tid.x; mul.lo.u32 %r1, %r0, {4 * stride}; mov.u32 %r2, S; "
            f"add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], %r0; ld.shared.u32 %o0, [%r1];"
        )

        ptx = kernel(body, ["u32"], ["u32"], ".shared .align 16 .b8 S[8192];\n")
        st = Module(ptx).launch("k", 1, 32, [np.zeros(32, np.uint32), np.zeros(32, np.uint32)])
        assert [r["max_ways"] for r in st.accesses() if r["space"] == "shared"] == [ways, ways], stride
        assert st.shared_wavefronts == 2 * ways and st.shared_ideal == 2
    body = (
        "mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 4; mov.u32 %r2, S; add.u32 %r1, %r1, %r2; "
        "st.shared.v4.u32 [%r1], {%r0,%r0,%r0,%r0}; ld.shared.u32 %o0, [S];"
    )
    ptx = kernel(body, ["u32"], ["u32"], ".shared .align 16 .b8 S[8192];\n")
    st = Module(ptx).launch("k", 1, 32, [np.zeros(32, np.uint32), np.zeros(32, np.uint32)])
    assert st.shared_wavefronts == 5 and st.shared_ideal == 5


def test_many_batches_equal_one():
    a = edge_int("u32", 4096, 1)
    body = ADDR + (
        "st.shared.u32 [%d2], %i0; bar.sync 0; xor.b32 %r1, %r0, 63; mul.wide.u32 %d1, %r1, 4; "
        "add.u64 %d2, %d0, %d1; ld.shared.u32 %o0, [%d2];"
    )
    for bt in (64, 500, 10**6):
        (o,) = run(body, [("u32", a)], ["u32"], decl=SH, batch_threads=bt)
        same(o, a.reshape(-1, 64)[:, ::-1].reshape(-1))


def test_global_races():
    """inter-block races (global_races)"""
    ptx = (
        HEAD
        + """.visible .entry k(.param .u64 A, .param .u32 m) { .reg .b32 %r<9>; .reg .b64 %d<6>; .reg .pred %p<5>;
        ld.param.u64 %d0, [A]; ld.param.u32 %r9x, [m]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %d1, %r3, 4; add.u64 %d2, %d0, %d1;
    setp.eq.u32 %p0, %r9x, 0; @%p0 bra OWN; setp.eq.u32 %p1, %r9x, 1; @%p1 bra NEIGH; setp.eq.u32 %p2, %r9x, 2;
    @%p2 bra ATOM; setp.eq.u32 %p3, %r9x, 3; @%p3 bra BOTH; st.global.u32 [%d0], %r1; ret;
    OWN: ld.global.u32 %r4, [%d2]; st.global.u32 [%d2], %r4; ret; NEIGH: ld.global.u32 %r4, [%d2+128];
    st.global.u32 [%d2], %r4; ret;
    ATOM: atom.global.add.u32 %r4, [%d0], 1; ret; BOTH: atom.global.add.u32 %r4, [%d0], 1; ld.global.u32 %r4, [%d0];
    ret; }""".replace("%r9x", "%r8")
    )
    assemble(ptx)
    m = Module(ptx)
    a = np.zeros(256, np.uint32)
    for bt in (32, 10**6):
        for mode, bad in ((0, False), (1, True), (2, False), (3, True), (4, True)):

            def go(mode=mode, bt=bt):
                return m.launch("k", 4, 32, [a, np.uint32(mode)], global_races=True, batch_threads=bt)

            if bad:
                with pytest.raises(RaceError, match="global race"):
                    go()
            else:
                go()


def test_hints_and_noops():
    body = (
        IDX
        + """prefetch.global.L2 [%d2]; prefetchu.L1 [%d2]; ldu.global.u32 %r1, [%d2]; membar.gl; fence.acq_rel.gpu;
        fence.sc.sys; nanosleep.u32 20; ld.acquire.gpu.global.u32 %r2, [%d2];
    st.release.cta.global.u32 [%d2], %r2; elect.sync %r3|%p1, 0xffffffff; selp.u32 %r4, 1, 0, %p1;
    add.u32 %o0, %r1, %r4; ld.global.L1::evict_last.v2.f32 {%f1,%f2}, [%d0];"""
    )
    i = np.arange(64, dtype=np.int32)
    (o,) = run(body, [("s32", i)], ["u32"])
    same(o, (i + (i % 32 == 0)).astype(np.uint32))
