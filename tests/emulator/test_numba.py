"""Kernels compiled by numba-cuda to PTX and executed, against NumPy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from pagedref.errors import ContractError
from pagedref_cuda.emulator import AsyncHazard, BarrierError, MemoryFault, RaceError, UninitialisedRead

nb = pytest.importorskip("tests.emulator.bridge", reason="numba-cuda is not installed", exc_type=ImportError)

from numba import cuda  # noqa: E402
from numba.cuda import types  # noqa: E402

from tests.emulator import intrinsics  # noqa: E402

R = np.random.default_rng
f32, u32 = np.float32, np.uint32


def randn(*s, seed=0):
    return R(seed).standard_normal(s).astype(f32)


# ------------------------------------------------------------------ simple kernels
def k_add(a, b, o):
    i = cuda.grid(1)
    if i < o.size:
        o[i] = a[i] + b[i]


def test_vector_add():
    for n in (1, 31, 1000, 4096):
        a, b, o = randn(n), randn(n, seed=1), np.zeros(n, f32)
        st = nb.launch(k_add, (n + 127) // 128, 128, a, b, o, races=True)
        assert np.array_equal(o, a + b)
    assert st.global_bytes("ld") == 2 * 4 * n and st.global_bytes("st") == 4 * n
    assert st.sectors == 3 * n // 8


def k_saxpy(a, x, y, o, lim):
    i = cuda.grid(1)
    if i >= o.size:
        return
    v = y[i]
    if x[i] < lim:
        if x[i] < -lim:
            return
        v = a * x[i] + y[i]
    elif i % 3 == 0:
        v = v - x[i]
    else:
        for j in range(i % 7):
            v += x[j]
    o[i] = v


def test_saxpy_divergent():
    n = 1000
    x, y, o = randn(n), randn(n, seed=1), np.full(n, 9, f32)
    nb.launch(k_saxpy, 8, 128, f32(2.5), x, y, o, f32(0.5), fma=False)
    e = np.full(n, 9, f32)
    for i in range(n):
        v = y[i]
        if x[i] < 0.5:
            if x[i] < -0.5:
                continue
            v = f32(2.5) * x[i] + y[i]
        elif i % 3 == 0:
            v = v - x[i]
        else:
            for j in range(i % 7):
                v = v + x[j]
        e[i] = v
    assert np.array_equal(o, e)  # bit for bit with fma=False


def k_block_sum(x, o):
    s = cuda.shared.array(128, f32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i] if i < x.size else f32(0)
    cuda.syncthreads()
    h = 64
    while h > 0:
        if t < h:
            s[t] += s[t + h]
        cuda.syncthreads()
        h //= 2
    if t == 0:
        o[cuda.blockIdx.x] = s[0]


def test_block_reduction():
    x = randn(1000)
    o = np.zeros(8, f32)
    nb.launch(k_block_sum, 8, 128, x, o, races=True, fma=False)
    e = np.zeros(1024, f32)
    e[:1000] = x
    e = e.reshape(8, 128)
    while e.shape[1] > 1:
        e = e[:, : e.shape[1] // 2] + e[:, e.shape[1] // 2 :]
    assert np.array_equal(o, e[:, 0])


def k_block_sum_race(x, o):
    s = cuda.shared.array(128, f32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    h = 64
    while h > 0:
        cuda.syncthreads()
        if t < 2 * h:  # wrong: the upper half is read by others while it is written
            s[t] += s[(t + h) % 128]
        h //= 2
    cuda.syncthreads()
    o[cuda.grid(1)] = s[0]


def test_race_is_caught():
    x = randn(128)
    with pytest.raises(RaceError) as e:
        nb.launch(k_block_sum_race, 1, 128, x, np.zeros(128, f32), races=True)
    assert "test_numba.py" in str(e.value) and e.value.loc[1] > 0  # points into the Python source


def k_warp_sum(x, o, mx, idx):
    i = cuda.grid(1)
    v = x[i]
    m = v
    for k in range(5):
        v += cuda.shfl_xor_sync(0xFFFFFFFF, v, 16 >> k)
        m = max(m, cuda.shfl_down_sync(0xFFFFFFFF, m, 16 >> k))
    b = cuda.ballot_sync(0xFFFFFFFF, x[i] > 0)
    if cuda.laneid == 0:
        o[i // 32] = v
        mx[i // 32] = m
        idx[i // 32] = b


def test_warp_reductions():
    x = randn(512)
    o, m, b = np.zeros(16, f32), np.zeros(16, f32), np.zeros(16, np.uint32)
    nb.launch(k_warp_sum, 4, 128, x, o, m, b)
    X = x.reshape(16, 32)
    e = X.copy()
    for h in (16, 8, 4, 2, 1):
        e = e + e[:, np.arange(32) ^ h]
    assert np.array_equal(o, e[:, 0]) and np.array_equal(m, X.max(1))
    assert np.array_equal(b, ((X > 0) * (1 << np.arange(32, dtype=np.uint64))).sum(1).astype(u32))


def k_hist(x, h, sh):
    s = cuda.shared.array(16, np.int32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(s, x[i], 1)
        cuda.atomic.add(h, x[i], 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(sh, t, s[t])


def test_histogram():
    x = R(0).integers(0, 16, 3000).astype(np.uint8)
    h, sh = np.zeros(16, np.int32), np.zeros(16, np.int32)
    nb.launch(k_hist, 12, 256, x, h, sh, races=True)
    e = np.bincount(x, minlength=16)
    assert np.array_equal(h, e) and np.array_equal(sh, e)


def k_atomic_misc(x, mx, mn, f, c):
    i = cuda.grid(1)
    cuda.atomic.max(mx, 0, x[i])
    cuda.atomic.min(mn, 0, x[i])
    cuda.atomic.add(f, 0, x[i])
    old = cuda.atomic.cas(c, 0, np.int32(0), np.int32(i + 1))
    if old == 0:
        c[1] = i
    cuda.atomic.inc(c, 2, np.uint32(9)) if False else cuda.atomic.exch(c, 3, np.int32(i))


def test_atomics_float():
    x = randn(256)
    mx, mn, f, c = np.full(1, -9, f32), np.full(1, 9, f32), np.zeros(1, f32), np.zeros(4, np.int32)
    nb.launch(k_atomic_misc, 2, 128, x, mx, mn, f, c)
    assert (
        mx[0] == x.max()
        and mn[0] == x.min()
        and f[0] == np.add.accumulate(x)[-1]
        and c[0] == 1
        and c[1] == 0
        and c[3] == 255
    )


def k_index(a8, i64, off, o):
    i = cuda.grid(1)
    j = i64[i] + off
    o[i] = a8[j] + a8[-1 - i]


def test_int64_and_negative_index():
    a, i = R(0).integers(0, 256, 200).astype(np.uint8), R(1).integers(-50, 50, 128).astype(np.int64)
    o = np.zeros(128, np.int64)
    nb.launch(k_index, 1, 128, a, i, np.int64(60), o)
    j = i + 60
    assert np.array_equal(o, a[j].astype(np.int64) + a[-1 - np.arange(128)].astype(np.int64))


def k_strided(a, o, t):
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < a.shape[1]:
        o[i, j] = a[i, j] * t[0] + t[1]


def test_strides_tuples_2d():
    base = randn(20, 30)
    for a in (base, base.T, base[::2, ::3], base[::-1, 5:], np.asfortranarray(base)):
        o = np.zeros(a.shape, f32)
        nb.launch(k_strided, (3, 8), (16, 4), a, o, (f32(2), f32(0.5)))
        assert np.array_equal(o, a * f32(2) + f32(0.5))


TABLE = np.arange(64, dtype=f32) ** 2


def k_const_local(o, n):
    c = cuda.const.array_like(TABLE)
    loc = cuda.local.array(8, f32)
    i = cuda.grid(1)
    for j in range(8):
        loc[j] = c[(i + j) % 64]
    s = f32(0)
    for j in range(n):
        s += loc[(i * j) % 8]
    o[i] = s


def test_const_and_local():
    o = np.zeros(64, f32)
    nb.launch(k_const_local, 1, 64, o, 20)
    e = [sum(TABLE[(i + (i * j) % 8) % 64] for j in range(20)) for i in range(64)]
    assert np.array_equal(o, np.array(e, f32))


@cuda.jit(device=True)
def helper(x, y):
    if x > y:
        return math.sqrt(x) - y
    return x / y


def k_math(x, o):
    i = cuda.grid(1)
    v = x[i]
    o[i, 0] = math.exp(v)
    o[i, 1] = math.log(abs(v) + f32(0.1))
    o[i, 2] = math.sin(v * f32(10)) + math.cos(v)
    o[i, 3] = helper(abs(v), f32(0.7))
    o[i, 4] = math.tanh(v)
    o[i, 5] = math.pow(abs(v), f32(1.7))
    o[i, 6] = math.floor(v) + math.ceil(v * f32(2))
    o[i, 7] = math.erf(v)


def test_math_functions():
    x = np.concatenate([randn(125), [0.0, 60.0, -80.0]]).astype(f32)
    o = np.zeros((128, 8), f32)
    nb.launch(k_math, 1, 128, x, o)
    d = x.astype(np.float64)
    ad = np.abs(d)
    e = np.stack(
        [
            np.exp(d),
            np.log(ad + 0.1),
            np.sin((x * f32(10)).astype(np.float64)) + np.cos(d),
            np.where(ad > f32(0.7), np.sqrt(ad) - f32(0.7), ad / f32(0.7)),
            np.tanh(d),
            ad ** np.float64(f32(1.7)),
            np.floor(d) + np.ceil(2 * d),
            [math.erf(v) for v in d],
        ],
        1,
    )
    assert np.allclose(o, e, rtol=3e-6, atol=2e-6)


def k_f64(a, b, o):
    i = cuda.grid(1)
    o[i] = math.exp(a[i]) / (b[i] * b[i] + 1.0) + math.sqrt(a[i] * a[i]) - math.sin(b[i])


def test_float64():
    a, b = R(0).standard_normal(128) * 3, R(1).standard_normal(128) * 3
    o = np.zeros(128)
    nb.launch(k_f64, 1, 128, a, b, o)
    assert np.allclose(o, np.exp(a) / (b * b + 1) + np.abs(a) - np.sin(b), rtol=1e-14, atol=1e-14)


# ------------------------------------------------------------------ half types
def k_half(a, b, o, p):
    i = cuda.grid(1)
    p[i] = a[i] * b[i] + a[i]
    o[i] = f32(a[i]) + f32(b[i])


def test_float16():
    a, b = randn(128).astype(np.float16), randn(128, seed=1).astype(np.float16)
    o, p = np.zeros(128, f32), np.zeros(128, np.float16)
    nb.launch(k_half, 1, 128, a, b, o, p)
    assert np.array_equal(o, a.astype(f32) + b.astype(f32))
    assert np.array_equal(p, a * b + a)


def k_bf16(a, b, o, p):
    i = cuda.grid(1)
    p[i] = a[i] * b[i] + a[i]
    o[i] = types.float32(a[i]) + types.float32(b[i])


def test_bfloat16():
    bf = ml_dtypes.bfloat16
    a, b = randn(128).astype(bf), randn(128, seed=1).astype(bf)
    o, p = np.zeros(128, f32), np.zeros(128, bf)
    nb.launch(k_bf16, 1, 128, a, b, o, p)
    A, B = a.astype(f32), b.astype(f32)
    assert np.array_equal(o, A + B)
    e = ((A * B).astype(bf).astype(f32) + A).astype(bf)
    assert np.array_equal(p.view(np.uint16), e.view(np.uint16))


def k_bf16_bits(a, o):
    i = cuda.grid(1)
    o[i] = np.uint32(np.uint32(a[i]) << np.uint32(16)).view(np.float32) * f32(2)


def test_bf16_as_uint16():
    a = randn(64).astype(ml_dtypes.bfloat16)
    o = np.zeros(64, f32)
    nb.launch(k_bf16_bits, 1, 64, a.view(np.uint16), o)
    assert np.array_equal(o, a.astype(f32) * 2)


# ------------------------------------------------------------------ bit-exactness without contraction
def k_dot(a, b, o):
    i = cuda.grid(1)
    s = f32(0)
    for j in range(a.shape[1]):
        s += a[i, j] * b[i, j]
    o[i] = s / f32(3) + math.sqrt(abs(s))


def test_bit_exact_fma_false():
    a, b = randn(256, 37), randn(256, 37, seed=1)
    o = np.zeros(256, f32)
    st = nb.launch(k_dot, 2, 128, a, b, o, fma=False)
    assert not any("fma" in t for t in st.by_opcode()) and not st.module.contractible() and not st.warnings
    s = np.zeros(256, f32)
    for j in range(37):
        s = s + a[:, j] * b[:, j]
    e = s / f32(3) + np.sqrt(np.abs(s))
    assert np.array_equal(o, e)
    o2 = np.zeros(256, f32)
    st = nb.launch(k_dot, 2, 128, a, b, o2)
    assert "fma.rn.f32" in st.by_opcode() and not np.array_equal(o2, e) and np.allclose(o2, e, rtol=1e-4, atol=1e-5)
    s = np.zeros(256, np.float64)  # the contracted code, reproduced exactly: one rounding per step
    t = np.zeros(256, f32)
    for j in range(37):
        t = (a[:, j].astype(np.float64) * b[:, j] + t).astype(f32)  # double rounding is possible but very unlikely here
    # `opt=False` does not help: it leaves plain mul.f32/add.f32, which ptxas contracts
    st = nb.launch(k_dot, 2, 128, a, b, o2, opt=False)
    assert st.module.contractible() and any("contract" in w for w in st.warnings)


# ------------------------------------------------------------------ paged decode attention, GQA
PAGE, D, TPB = 16, 64, 64


def k_decode(q, kc, vc, table, lens, scale, out):
    s, h, t = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    kvh = h // (q.shape[1] // kc.shape[2])
    qs = cuda.shared.array(64, types.float32)
    ps = cuda.shared.array(64, types.float32)
    red = cuda.shared.array(2, types.float32)
    n = lens[s]
    qs[t] = q[s, h, t] * scale
    m = types.float32(-1e30)
    den = types.float32(0.0)
    acc = types.float32(0.0)
    cuda.syncthreads()
    for base in range(0, n, TPB):
        j = base + t
        x = types.float32(-1e30)
        if j < n:
            pg = table[s, j // PAGE]
            x = types.float32(0.0)
            for d in range(D):
                x += qs[d] * kc[pg, j % PAGE, kvh, d]
        w = x
        for k in range(5):
            w = max(w, cuda.shfl_xor_sync(0xFFFFFFFF, w, 16 >> k))
        if t % 32 == 0:
            red[t // 32] = w
        cuda.syncthreads()
        m2 = max(m, max(red[0], red[1]))
        ps[t] = math.exp(x - m2)
        c = math.exp(m - m2)
        cuda.syncthreads()
        acc *= c
        den *= c
        for i in range(min(TPB, n - base)):
            jj = base + i
            den += ps[i]
            acc += ps[i] * vc[table[s, jj // PAGE], jj % PAGE, kvh, t]
        m = m2
        cuda.syncthreads()
    out[s, h, t] = acc / den


def decode_problem(S=3, H=8, KV=2, lens=(100, 1, 64), seed=0):
    r = R(seed)
    mp = max((n + PAGE - 1) // PAGE for n in lens)
    P = S * mp + 3
    kc, vc = r.standard_normal((P, PAGE, KV, D), dtype=f32), r.standard_normal((P, PAGE, KV, D), dtype=f32)
    q = r.standard_normal((S, H, D), dtype=f32)
    table = np.full((S, mp), 10**6, np.int32)  # unused entries would be out of bounds
    perm = iter(r.permutation(P))
    for s, n in enumerate(lens):
        for i in range((n + PAGE - 1) // PAGE):
            table[s, i] = next(perm)
    return q, kc, vc, table, np.array(lens, np.int32)


def decode_ref(q, kc, vc, table, lens, scale):
    o = np.zeros(q.shape)
    g = q.shape[1] // kc.shape[2]
    for s, n in enumerate(lens):
        pages = table[s, : (n + PAGE - 1) // PAGE]
        k = kc[pages].reshape(-1, *kc.shape[2:])[:n].repeat(g, 1).astype(np.float64)
        v = vc[pages].reshape(-1, *vc.shape[2:])[:n].repeat(g, 1).astype(np.float64)
        x = np.einsum("hd,nhd->hn", q[s].astype(np.float64), k) * scale
        p = np.exp(x - x.max(1, keepdims=True))
        o[s] = np.einsum("hn,nhd->hd", p / p.sum(1, keepdims=True), v)
    return o


def test_paged_decode():
    q, kc, vc, tb, ln = decode_problem()
    o = np.zeros_like(q)
    st = nb.launch(k_decode, (3, 8), TPB, q, kc, vc, tb, ln, f32(0.125), o, races=True)
    assert np.allclose(o, decode_ref(q, kc, vc, tb, ln, 0.125), rtol=1e-5, atol=1e-6)
    assert st.barriers > 0 and st.global_bytes() > 0
    o1 = np.zeros_like(q)
    nb.launch(
        k_decode, (3, 8), TPB, q, kc, vc, tb, ln, f32(0.125), o1, batch_threads=64
    )  # one block at a time: same bits
    assert np.array_equal(o, o1)
    bad = tb.copy()
    bad[0, 3] = kc.shape[0]
    with pytest.raises(MemoryFault, match="'kc'") as e:
        nb.launch(k_decode, (3, 8), TPB, q, kc, vc, bad, ln, f32(0.125), o)
    assert "block (0," in str(e.value) and "test_numba.py:" in str(e.value)
    with pytest.raises(MemoryFault, match="read-only"):
        ro = np.zeros_like(q)
        ro.flags.writeable = False
        nb.launch(
            k_decode,
            (3, 8),
            TPB,
            q,
            kc,
            vc,
            tb,
            ln,
            f32(0.125),
            ro,
            sig=[nb.typeof(x) for x in (q, kc, vc, tb, ln, f32(1), o)],
        )


# ------------------------------------------------------------------ inline PTX intrinsics: ldg v4, cp.async, mma, ex2
def k_tensor(g, o):
    sm = cuda.shared.array(512, types.uint32)
    t = cuda.threadIdx.x
    intrinsics.cp_async16(sm, t * 4, g, t * 4)
    intrinsics.cp_async_commit()
    a0, a1, a2, a3 = intrinsics.ldg_u32x4(g, 512 + t * 4)
    intrinsics.cp_async_wait_all()
    cuda.syncthreads()
    z = types.float32(0.0)
    d0, d1, d2, d3 = intrinsics.mma_bf16(a0, a1, a2, a3, sm[t * 2], sm[t * 2 + 1], z, z, z, z)
    o[t * 4] = intrinsics.ex2(d0)
    o[t * 4 + 1] = d1
    o[t * 4 + 2] = d2
    o[t * 4 + 3] = d3


def k_tensor_nowait(g, o):
    sm = cuda.shared.array(512, types.uint32)
    t = cuda.threadIdx.x
    intrinsics.cp_async16(sm, t * 4, g, t * 4)
    intrinsics.cp_async_commit()
    cuda.syncthreads()
    o[t] = sm[t * 2]


def k_tensor_nobarrier(g, o):
    sm = cuda.shared.array(512, types.uint32)
    t = cuda.threadIdx.x
    intrinsics.cp_async16(sm, t * 4, g, t * 4)
    intrinsics.cp_async_commit()
    intrinsics.cp_async_wait_all()
    o[t] = sm[t * 2]


def test_inline_ptx_tensor_core():
    g = randn(2048).astype(ml_dtypes.bfloat16).view(u32)
    o = np.zeros(128, f32)
    st = nb.launch(k_tensor, 1, 32, g, o, races=True)
    h = g.view(ml_dtypes.bfloat16).astype(np.float64)
    A, B = np.zeros((16, 16)), np.zeros((16, 8))
    for lane in range(32):
        r, t = lane >> 2, lane & 3
        a, b = h[1024 + lane * 8 : 1024 + lane * 8 + 8], h[lane * 4 : lane * 4 + 4]
        (
            A[r, 2 * t : 2 * t + 2],
            A[r + 8, 2 * t : 2 * t + 2],
            A[r, 2 * t + 8 : 2 * t + 10],
            A[r + 8, 2 * t + 8 : 2 * t + 10],
        ) = a[:2], a[2:4], a[4:6], a[6:]
        B[2 * t : 2 * t + 2, r], B[2 * t + 8 : 2 * t + 10, r] = b[:2], b[2:]
    Dm = A @ B
    got = o.reshape(32, 4)
    for lane in range(32):
        r, t = lane >> 2, lane & 3
        assert np.allclose(
            got[lane], [2.0 ** Dm[r, 2 * t], Dm[r, 2 * t + 1], Dm[r + 8, 2 * t], Dm[r + 8, 2 * t + 1]], rtol=1e-5
        )
    assert (
        list(st.mma.values()) == [1]
        and st.global_by_width()["cp", 16]["bytes"] == 512
        and st.global_by_width()["ld", 16]["sectors"] == 16
    )


def test_missing_wait_and_barrier():
    g = np.arange(1024, dtype=u32)
    with pytest.raises(AsyncHazard, match=r"test_numba\.py"):
        nb.launch(k_tensor_nowait, 1, 32, g, np.zeros(128, u32))
    with pytest.raises(RaceError, match=r"cp\.async"):
        nb.launch(k_tensor_nobarrier, 1, 32, g, np.zeros(128, u32), races=True)
    with pytest.raises(MemoryFault, match="past the end of 'g'"):
        nb.launch(k_tensor, 1, 32, g[:600].copy(), np.zeros(128, f32))
    with pytest.raises(MemoryFault, match="misaligned"):
        nb.launch(k_misaligned, 1, 32, g, np.zeros(128, u32))


def k_misaligned(g, o):
    t = cuda.threadIdx.x
    a, b, c, d = intrinsics.ldg_u32x4(g, t)
    o[t] = a + b + c + d


def k_dyn(x, o):
    s = cuda.shared.array(0, types.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    o[t] = s[x.size - 1 - t]


def test_dynamic_shared():
    x, o = randn(128), np.zeros(128, f32)
    nb.launch(k_dyn, 1, 128, x, o, shared_bytes=512, races=True)
    assert np.array_equal(o, x[::-1])
    with pytest.raises(MemoryFault, match="outside shared"):
        nb.launch(k_dyn, 1, 128, x, o, shared_bytes=256)


def k_oob(x, o):
    i = cuda.grid(1)
    o[i] = x[i + 1]


def k_early(x, o):
    t = cuda.threadIdx.x
    if t >= 40:
        return
    cuda.syncthreads()
    o[t] = x[t]


def k_uninit(x, o):
    s = cuda.shared.array(64, types.float32)
    t = cuda.threadIdx.x
    if t < 63:
        s[t] = x[t]
    cuda.syncthreads()
    o[t] = s[t]


def test_faults():
    x, o = randn(64), np.zeros(64, f32)
    with pytest.raises(
        MemoryFault, match=r"0 bytes past the end of 'x' \(256 bytes\); block \(1,0,0\) thread \(31,0,0\)"
    ):
        nb.launch(k_oob, 2, 32, x, o)
    with pytest.raises(BarrierError, match="have exited"):
        nb.launch(k_early, 1, 64, x, o)
    with pytest.raises(UninitialisedRead, match=r"thread \(63,0,0\)"):
        nb.launch(k_uninit, 1, 64, x, o)
    with pytest.raises(ContractError, match="float8"):
        nb.launch(k_oob, 1, 32, x.astype(ml_dtypes.float8_e4m3fn), o)


def k_bools(flag, n, c, o):
    i = cuda.grid(1)
    if flag:
        o[i] = n + c.real
    else:
        o[i] = c.imag


def test_scalar_types():
    for flag in (True, False):
        o = np.zeros(32)
        nb.launch(k_bools, 1, 32, flag, np.uint8(200), 1.5 - 2j, o)
        assert (o == (201.5 if flag else -2.0)).all()


def k_nd(x, o):
    i, j, k = cuda.grid(3)
    if i < x.shape[0] and j < x.shape[1] and k < x.shape[2]:
        o[i, j, k] = x[i, j, k] + i * 100 + j * 10 + k


def test_3d_grid():
    x = R(0).integers(0, 9, (7, 6, 5)).astype(np.int64)
    o = np.zeros_like(x)
    nb.launch(k_nd, (2, 3, 5), (4, 2, 1), x, o)
    assert np.array_equal(o, x + np.arange(7)[:, None, None] * 100 + np.arange(6)[:, None] * 10 + np.arange(5))


def k_count(x, o):
    i = cuda.grid(1)
    o[i] = (
        cuda.syncthreads_count(np.int32(x[i] > 0))
        + 1000 * cuda.syncthreads_and(np.int32(x[i] > -9))
        + 10000 * cuda.syncthreads_or(np.int32(x[i] > 9))
    )


def test_syncthreads_count():
    x, o = randn(128), np.zeros(128, np.int64)
    nb.launch(k_count, 2, 64, x, o)
    assert np.array_equal(o, np.repeat((x > 0).reshape(2, 64).sum(1), 64) + 1000)


def k_match(x, o):
    i = cuda.grid(1)
    o[i] = (
        cuda.match_any_sync(0xFFFFFFFF, x[i])
        + cuda.popc(cuda.activemask()) * 0
        + cuda.ffs(x[i])
        + cuda.clz(x[i])
        + cuda.brev(x[i])
    )


def test_bit_intrinsics():
    x = R(0).integers(1, 5, 32).astype(np.int32)
    o = np.zeros(32, np.uint32)
    nb.launch(k_match, 1, 32, x, o)
    m = ((x[:, None] == x) * (1 << np.arange(32, dtype=np.uint64))).sum(1)
    e = [
        int(a) + (int(v) & -int(v)).bit_length() + 32 - int(v).bit_length() + int(f"{int(v):032b}"[::-1], 2)
        for a, v in zip(m, x)
    ]
    assert np.array_equal(o, np.array([v & 0xFFFFFFFF for v in e], u32))


def k_print(a, o):
    i = cuda.grid(1)
    if i < 2:
        print(i, a[i], "hello")
    cuda.nanosleep(10)
    cuda.threadfence()
    cuda.syncwarp()
    o[i] = cuda.warpsize * 100 + cuda.laneid


def test_print_and_misc():
    o = np.zeros(64, np.int32)
    st = nb.launch(k_print, 1, 64, np.array([0.5, 2.5], f32), o)
    assert [s.split() for s in st.printed] == [["0", "0.500000", "hello"], ["1", "2.500000", "hello"]]
    assert np.array_equal(o, 3200 + np.arange(64) % 32)


def k_grid_sync(o):
    g = cuda.cg.this_grid()
    o[cuda.grid(1)] = 1
    g.sync()


def test_grid_sync_is_refused():
    from pagedref_cuda.emulator import Unsupported

    with pytest.raises(Unsupported, match="cudaCG"):
        nb.launch(k_grid_sync, 2, 32, np.zeros(64, f32))


REC = np.dtype([("x", np.int32), ("y", np.float64), ("z", np.uint8)], align=True)


def k_types(rec, c, b, o, oc, ob):
    i = cuda.grid(1)
    o[i] = rec[i].x + rec[i].y * rec[i].z
    oc[i] = c[i] * c[i] + 1j
    ob[i] = not b[i]


def test_records_complex_bool():
    r = np.zeros(32, REC)
    r["x"], r["y"], r["z"] = np.arange(32), 0.5, 3
    c = (np.arange(32) + 1j * np.arange(32)[::-1]).astype(np.complex64)
    b = np.arange(32) % 3 == 0
    o, oc, ob = np.zeros(32), np.zeros(32, np.complex64), np.zeros(32, bool)
    nb.launch(k_types, 1, 32, r, c, b, o, oc, ob)
    assert np.allclose(o, r["x"] + 1.5) and np.allclose(oc, c * c + 1j) and np.array_equal(ob, ~b)


def k_python_ops(a, b, o):
    i = cuda.grid(1)
    o[i, 0] = a[i] // b[i]
    o[i, 1] = a[i] % b[i]
    o[i, 2] = a[i] / b[i]
    o[i, 3] = a[i] ** 2
    o[i, 4] = a[i] >> 1


@pytest.mark.parametrize("dt", [np.int8, np.int32, np.int64])
def test_python_integer_semantics(dt):
    a, b = R(0).integers(-50, 50, 64).astype(dt), (R(1).integers(1, 9, 64) * R(2).choice([-1, 1], 64)).astype(dt)
    o = np.zeros((64, 5))
    nb.launch(k_python_ops, 1, 64, a, b, o)
    A, B = a.astype(np.int64), b.astype(np.int64)
    assert np.array_equal(o, np.stack([A // B, A % B, A / B, A**2, A >> 1], 1))


def k_rng(s, o):
    i = cuda.grid(1)
    o[i] = xoroshiro128p_uniform_float32(s, i)


def test_random_generator():
    global xoroshiro128p_uniform_float32
    from numba.cuda.random import init_xoroshiro128p_states_cpu, xoroshiro128p_dtype, xoroshiro128p_uniform_float32

    s = np.zeros(64, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(s, 7, 0)
    s0 = s.copy()
    o = np.zeros(64, f32)
    nb.launch(k_rng, 2, 32, s, o)
    e = [f32((((int(p) + int(q)) & (2**64 - 1)) >> 11) / 2**53) for p, q in zip(s0["s0"], s0["s1"])]
    assert np.array_equal(o, np.array(e, f32)) and not np.array_equal(s, s0)


@pytest.mark.parametrize("cc", [(8, 0), (9, 0), (10, 0), (9, 0, "a")])
def test_other_targets_and_debug(cc):
    a, b, o = randn(100), randn(100, seed=1), np.zeros(100, f32)
    nb.launch(k_add, 4, 32, a, b, o, cc=cc)
    assert np.array_equal(o, a + b)
    o[:] = 0
    nb.launch(k_add, 4, 32, a, b, o, cc=cc, debug=True, opt=False)
    assert np.array_equal(o, a + b)


# -------------------------------------------------- paged decode of bf16 with a double-buffered cp.async pipeline
def make_decode_bf16(bug):
    """one block per (sequence, KV head), one warp per query head of the group, one page per pipeline stage"""

    def k(q, kc, vc, table, lens, scale2, kvh, out):
        s, g, t = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        lane = t % 32
        h = g * 4 + t // 32
        sk = cuda.shared.array(1024, types.uint32, alignment=16)
        sv = cuda.shared.array(1024, types.uint32, alignment=16)
        n = lens[s]
        tiles = (n + 15) // 16
        q0 = q[s, h, 2 * lane] * scale2
        q1 = q[s, h, 2 * lane + 1] * scale2
        so = (t // 8) * 32 + (t % 8) * 4
        m, den, a0, a1 = types.float32(-1e30), types.float32(0), types.float32(0), types.float32(0)
        go = ((table[s, 0] * 16 + t // 8) * kvh + g) * 32 + (t % 8) * 4
        intrinsics.cp_async16(sk, so, kc, go)
        intrinsics.cp_async16(sv, so, vc, go)
        intrinsics.cp_async_commit()
        for i in range(tiles):
            b = (i & 1) * 512
            if i + 1 < tiles:
                go = ((table[s, i + 1] * 16 + t // 8) * kvh + g) * 32 + (t % 8) * 4
                intrinsics.cp_async16(sk, 512 - b + so, kc, go)
                intrinsics.cp_async16(sv, 512 - b + so, vc, go)
            if bug != 1:
                intrinsics.cp_async_commit()
            intrinsics.cp_async_wait1()
            if bug != 2:
                cuda.syncthreads()
            for j in range(min(16, n - i * 16)):
                x = sk[b + j * 32 + lane]
                d = q0 * np.uint32(x << np.uint32(16)).view(np.float32) + q1 * np.uint32(
                    x & np.uint32(0xFFFF0000)
                ).view(np.float32)
                for r in range(5):
                    d += cuda.shfl_xor_sync(0xFFFFFFFF, d, 16 >> r)
                m2 = max(m, d)
                c = intrinsics.ex2(m - m2)
                p = intrinsics.ex2(d - m2)
                v = sv[b + j * 32 + lane]
                den = den * c + p
                a0 = a0 * c + p * np.uint32(v << np.uint32(16)).view(np.float32)
                a1 = a1 * c + p * np.uint32(v & np.uint32(0xFFFF0000)).view(np.float32)
                m = m2
            if bug != 3:
                cuda.syncthreads()
        out[s, h, 2 * lane] = a0 / den
        out[s, h, 2 * lane + 1] = a1 / den

    return k


def test_bf16_decode_pipeline():
    bf = ml_dtypes.bfloat16
    q, kc, vc, tb, ln = decode_problem(lens=(100, 1, 64, 17), S=4)
    kb, vb = kc.astype(bf), vc.astype(bf)
    ku, vu = kb.reshape(-1).view(u32), vb.reshape(-1).view(u32)

    def args(o):
        return (q, ku, vu, tb, ln, f32(0.125 * math.log2(math.e)), np.int32(2), o)

    o = np.zeros_like(q)
    st = nb.launch(make_decode_bf16(0), (4, 2), 128, *args(o), races=True)
    assert np.allclose(o, decode_ref(q, kb.astype(f32), vb.astype(f32), tb, ln, 0.125), rtol=1e-5, atol=1e-6)
    w = st.global_by_width()
    assert (
        w["cp", 16]["bytes"] == sum((n + 15) // 16 for n in ln) * 2 * 2 * 128 * 16
        and w["cp", 16]["bytes"] == 32 * w["cp", 16]["sectors"]
    )
    assert st.shared_wavefronts == st.shared_ideal
    for bug, exc in ((1, AsyncHazard), (2, RaceError), (3, RaceError)):
        with pytest.raises(exc, match=r"test_numba\.py"):
            nb.launch(make_decode_bf16(bug), (4, 2), 128, *args(np.zeros_like(q)), races=True)
