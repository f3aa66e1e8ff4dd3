"""CUDA C++ compiled by NVRTC: packed halves, bf16x2, fp8, pipelines, cooperative groups, by-value structs, switches,
assert."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from pagedref_cuda.emulator import AsyncHazard, Module

nb = pytest.importorskip("tests.emulator.bridge", reason="numba-cuda is not installed", exc_type=ImportError)

SRC = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void half2k(const __half2* a, const __half2* b, __half2* o, float2* f, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
  __half2 s = __hfma2(a[i], b[i], __hadd2(a[i], b[i])); s = __hmax2(s, __float2half2_rn(-1.f));
  o[i] = __hmul2(s, h2exp2(a[i]));
  f[i] = __half22float2(__hsub2(a[i], __hneg2(b[i])));
}
extern "C" __global__ void bf2k(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* o, float* f, unsigned
short* q, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
  o[i] = __hfma2(a[i], b[i], a[i]); float2 x = __bfloat1622float2(a[i]); f[i] = x.x * x.y;
  __nv_fp8x2_e4m3 e(x); q[i] = e.__x;
}
struct P { int n; float s; double d; unsigned char c; long long big; };
extern "C" __global__ void structk(P p, float* o) { int i = threadIdx.x;
if (i < p.n) o[i] = p.s * i + (float)p.d + p.c + (float)(p.big >> 32); }
__device__ __noinline__ float pick(int k, float x) {
  switch (k) { case 0: return x + 1; case 1: return x * 2; case 2: return x - 3; case 3: return x * x;
  case 4: return -x; case 5: return x / 3; case 6: return sqrtf(x); case 7: return __expf(x); default: return 0; } }
extern "C" __global__ void switchk(const float* x, float* o) { int i = threadIdx.x; o[i] = pick(i % 9, x[i]); }
extern "C" __global__ void cgk(const float* x, float* o, int* m) {
  auto b = cg::this_thread_block(); auto w = cg::tiled_partition<32>(b); auto t8 = cg::tiled_partition<8>(b);
  float v = x[b.thread_rank() + blockIdx.x * blockDim.x]; float s = cg::reduce(w, v, cg::plus<float>());
  float u = t8.shfl_xor(v, 3); int mx = cg::reduce(t8, (int)b.thread_rank(), cg::greater<int>());
  b.sync(); o[b.thread_rank() + blockIdx.x * blockDim.x] = s + u;
  m[b.thread_rank() + blockIdx.x * blockDim.x] = mx + w.any(v > 2.5f) * 1000; }
extern "C" __global__ void pipek(const float4* x, float* o, int tiles, int bug) {
  __shared__ float4 buf[2][64]; int t = threadIdx.x; float acc = 0;
  __pipeline_memcpy_async(&buf[0][t], &x[t], 16); __pipeline_commit();
  for (int k = 0; k < tiles; k++) {
    if (k + 1 < tiles) __pipeline_memcpy_async(&buf[(k + 1) & 1][t], &x[(k + 1) * 64 + t], 16);
    __pipeline_commit(); __pipeline_wait_prior(1 + bug); __syncthreads();
    float4 v = buf[k & 1][63 - t]; acc += v.x + v.y * 2 + v.z * 3 + v.w * 4; __syncthreads(); }
  o[t] = acc; }
extern "C" __global__ void u64k(const unsigned long long* a, const unsigned long long* b, unsigned long long* o) { int
i = threadIdx.x; o[i] = __umul64hi(a[i], b[i]) + a[i] / (b[i] | 1) + a[i] % 1000003ull + __popcll(a[i]) +
__clzll(b[i]); }
extern "C" __global__ void printk(int* o) { printf("%d %s\n", o[0], "x"); }
extern __shared__ int dyn[];
extern "C" __global__ void dynk(int* o) { int t = threadIdx.x; dyn[t] = t * t; __syncthreads();
o[t] = dyn[blockDim.x - 1 - t]; }
__constant__ int ctab[8] = {3, 1, 4, 1, 5, 9, 2, 6}; __device__ int counter = 100;
extern "C" __global__ void constk(int* o) { int t = threadIdx.x; o[t] = ctab[t & 7] + atomicAdd(&counter, 1) * 0; }
"""


@pytest.fixture(scope="module")
def mod():
    return Module(nb.cpp_to_ptx(SRC, "k.cu", (9, 0), False))


def test_covered(mod):
    for e in mod.entries:
        assert mod.unsupported(e) == [], e


def test_half2(mod):
    r = np.random.default_rng(0)
    a, b = r.standard_normal(200).astype(np.float16), r.standard_normal(200).astype(np.float16)
    o, f = np.zeros(200, np.float16), np.zeros(200, np.float32)
    mod.launch("half2k", 2, 64, [a, b, o, f, 100])
    A, B = a.astype(np.float64), b.astype(np.float64)
    s = np.maximum((A * B + (a + b).astype(np.float64)).astype(np.float16), np.float16(-1))
    e = s * np.exp2(A).astype(np.float16)
    assert np.allclose(o.astype(np.float64), e.astype(np.float64), rtol=2e-3, atol=1e-3) and (o == e).mean() > 0.9
    assert np.array_equal(f, (a + b).astype(np.float32))


def test_bf16x2_fp8(mod):
    bf = ml_dtypes.bfloat16
    r = np.random.default_rng(0)
    a, b = r.standard_normal(200).astype(bf), r.standard_normal(200).astype(bf)
    o, f, q = np.zeros(200, bf), np.zeros(100, np.float32), np.zeros(100, np.uint16)
    mod.launch("bf2k", 2, 64, [a, b, o, f, q, 100])
    A, B = a.astype(np.float64), b.astype(np.float64)
    e = (A * B + A).astype(np.float32).astype(bf)
    assert (o.view(np.uint16) == e.view(np.uint16)).mean() > 0.99
    assert np.array_equal(f, a[::2].astype(np.float32) * a[1::2].astype(np.float32))
    e8 = a.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(q, e8[::2].astype(np.uint16) | e8[1::2].astype(np.uint16) << 8)


def test_struct_and_switch(mod):
    o = np.zeros(32, np.float32)
    mod.launch("structk", 1, 32, [struct.pack("<if d B7x q", 20, 2.5, 7.0, 3, 5 << 32), o])
    e = np.float32(2.5) * np.arange(32, dtype=np.float32) + np.float32(15)
    e[20:] = 0
    assert np.array_equal(o, e)
    x, o = np.linspace(0.5, 3, 64).astype(np.float32), np.zeros(64, np.float32)
    mod.launch("switchk", 1, 64, [x, o])
    F = [
        lambda x: x + 1,
        lambda x: x * 2,
        lambda x: x - 3,
        lambda x: x * x,
        lambda x: -x,
        lambda x: x / np.float32(3),
        np.sqrt,
        np.exp,
        lambda x: x * 0,
    ]
    assert np.allclose(o, [F[i % 9](x[i]) for i in range(64)], rtol=1e-6)


def test_cooperative_groups(mod):
    x = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    o, m = np.zeros(256, np.float32), np.zeros(256, np.int32)
    mod.launch("cgk", 2, 128, [x, o, m])
    i = np.arange(256)
    e = np.repeat(x.reshape(8, 32).sum(1), 32) + x[i ^ 3]
    assert np.allclose(o, e, rtol=1e-4, atol=1e-5)
    assert np.array_equal(m, (i % 128 | 7) + np.repeat((x.reshape(8, 32) > 2.5).any(1), 32) * 1000)


def test_pipeline(mod):
    x = np.random.default_rng(0).standard_normal((5 * 64, 4)).astype(np.float32)
    o = np.zeros(64, np.float32)
    mod.launch("pipek", 1, 64, [x, o, 5, 0], races=True)
    assert np.allclose(
        o, (x.reshape(5, 64, 4)[:, ::-1] * np.array([1, 2, 3, 4], np.float32)).sum((0, 2)), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(AsyncHazard):  # one group too many left in flight
        mod.launch("pipek", 1, 64, [x, o, 5, 1])


def test_u64(mod):
    r = np.random.default_rng(0)
    a, b = (r.integers(0, 2**63, 64).astype(np.uint64) >> r.integers(0, 60, 64).astype(np.uint64) for _ in range(2))
    o = np.zeros(64, np.uint64)
    mod.launch("u64k", 1, 64, [a, b, o])
    e = [
        (x * y >> 64) + x // (y | 1) + x % 1000003 + bin(x).count("1") + 64 - y.bit_length()
        for x, y in zip(map(int, a), map(int, b))
    ]
    assert [int(v) for v in o] == [v & (2**64 - 1) for v in e]


def test_dynamic_const_global_printf(mod):
    o = np.zeros(64, np.int32)
    mod.launch("dynk", 1, 64, [o], shared_bytes=256, races=True)
    assert np.array_equal(o, np.arange(64)[::-1] ** 2)
    mod.launch("constk", 1, 64, [o])
    assert np.array_equal(o, np.tile([3, 1, 4, 1, 5, 9, 2, 6], 8)) and mod.globals["counter"].view(np.int32)[0] == 164
    st = mod.launch("printk", 1, 2, [np.full(4, -7, np.int32)])
    assert st.printed == ["-7 x\n"] * 2


TENSOR = r"""
#include <cuda_bf16.h>
extern "C" __global__ void gemm(const __nv_bfloat16* A, const __nv_bfloat16* B, float* C) {
  // one warp: C[16x8] = A[16x16] * B[16x8] via ldmatrix
  __shared__ __align__(16) __nv_bfloat16 sa[16 * 16], sb[16 * 8]; int l = threadIdx.x;
  for (int i = l; i < 256; i += 32) sa[i] = A[i]; for (int i = l; i < 128; i += 32) sb[i] = B[i]; __syncwarp();
  unsigned a[4], b[2]; unsigned pa = (unsigned)__cvta_generic_to_shared(&sa[(l % 16) * 16 + (l / 16) * 8]), pb =
  (unsigned)__cvta_generic_to_shared(&sb[(l % 16) * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]),
  "=r"(a[3]) : "r"(pa));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(pb));
  float c[4] = {0, 0, 0, 0};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
  "{%0,%1,%2,%3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  int g = l >> 2, t = l & 3; C[g * 8 + 2 * t] = c[0]; C[g * 8 + 2 * t + 1] = c[1]; C[(g + 8) * 8 + 2 * t] = c[2];
  C[(g + 8) * 8 + 2 * t + 1] = c[3]; }
"""


def test_ldmatrix_mma_gemm():
    """row-major operands through ldmatrix/ldmatrix.trans into mma: the layouts must fit together to give a plain
    matrix product"""
    m = Module(nb.cpp_to_ptx(TENSOR, "t.cu", (9, 0), True))
    bf = ml_dtypes.bfloat16
    r = np.random.default_rng(0)
    A, B, Cm = (
        r.standard_normal((16, 16)).astype(bf),
        r.standard_normal((16, 8)).astype(bf),
        np.zeros((16, 8), np.float32),
    )
    st = m.launch("gemm", 1, 32, [A, B, Cm], races=True)
    assert np.allclose(Cm, A.astype(np.float64) @ B.astype(np.float64), rtol=1e-6, atol=1e-6)
    assert st.mma
