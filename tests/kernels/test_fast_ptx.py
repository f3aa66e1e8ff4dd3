"""Inline PTX computes what its plain Python twin computes, to the bit, on the emulator or a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

from numba import cuda, float32, uint32

from pagedref_cuda import _ptx, _runtime
from pagedref_cuda._ptx import (
    as_float,
    as_word,
    cp_async,
    cp_async_commit,
    cp_async_wait,
    e4m3_to_halves,
    exp2,
    half_to_float,
    ldg,
    ldmatrix,
    ldmatrix_trans,
    lds,
    mma_bf16,
    mma_f16,
    pack_bf16,
    pack_f16,
    permute,
    stg,
)  # fmt: skip
from pagedref_cuda._runtime import Kernel
from pagedref_cuda.fast import halves
from pagedref_cuda.fast.halves import (
    bf16_parts,
    e4m3_to_bf16,
    e5m2_to_bf16,
    f16_parts,
    int4_to_bf16,
    int8_to_bf16,
)  # fmt: skip
from tests.kernels.fast_runs import COMPILED

pytestmark = COMPILED
LANES = np.arange(32)


def _everything(x: Any, y: Any, f: Any, live_lanes: Any) -> None:
    shared = cuda.shared.array(512, uint32, 16)
    t = cuda.threadIdx.x
    cp_async(shared, t * 4, x, t * 4, 4, t < live_lanes)
    cp_async_commit()
    cp_async_wait(0)
    own = lds(shared, t * 4, 4)
    direct = ldg(x, t * 4, 2, 2)
    stg(y, t * 4, (own[0], own[1], direct[0], direct[1]))
    cuda.syncwarp()
    straight, turned = ldmatrix(shared, t * 4), ldmatrix_trans(shared, t * 4)
    a, b = as_float(x[t]), exp2(-float32(t) * float32(0.37))
    low, high = half_to_float(pack_f16(a, b))
    first, second = e4m3_to_halves(x[t])
    y[512 + t], y[544 + t] = pack_bf16(a, b), pack_f16(a, b)
    y[576 + t], y[608 + t] = first, second
    y[640 + t] = permute(x[t], x[t + 32], 0x5410)
    f[t], f[32 + t], f[64 + t], f[96 + t] = low, high, b, as_float(as_word(a) + uint32(1))
    bits = mma_bf16(straight, (own[0], own[1]), (b, b, a, a))
    narrow = mma_f16(straight, (own[0], own[1]), (b, b, a, a))
    for i in range(4):
        y[128 + 32 * i + t], y[256 + 32 * i + t] = straight[i], turned[i]
        f[128 + 32 * i + t], f[256 + 32 * i + t] = bits[i], narrow[i]


def _widened(x: Any, f: Any, y: Any) -> None:
    t = cuda.threadIdx.x
    for i in range(2):
        y[32 * i + t] = e4m3_to_bf16(x[t])[i]
        y[64 + 32 * i + t] = e5m2_to_bf16(x[t])[i]
        y[128 + 32 * i + t] = int8_to_bf16(x[t])[i]
        y[192 + 32 * i + t] = f16_parts(f[t], f[t + 1])[i]
    for i in range(4):
        y[256 + 32 * i + t] = int4_to_bf16(x[t])[i]
    for i in range(3):
        y[384 + 32 * i + t] = bf16_parts(f[t], f[t + 1])[i]


def launch(function: Any, types: tuple[str, ...], *arguments: Any) -> None:
    Kernel(function, (types,)).launch_grid(1, 32, *arguments)


def same(actual: Any, expected: Any) -> bool:
    return np.array_equal(np.asarray(actual), np.asarray(expected), equal_nan=True)


def test_instructions_equal_their_twins() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(512).astype(ml_dtypes.bfloat16)
    x = numbers.view(np.uint32)
    y, f = np.zeros(1024, np.uint32), np.zeros(512, np.float32)
    with _runtime.written(y, f) as lent:
        types = ("uint32[::1]", "uint32[::1]", "float32[::1]", "int64")
        launch(_everything, types, _runtime.readable(x), *lent, 30)
    shared = np.where(np.arange(128) < 120, x[:128], 0).astype(np.uint32)
    own = [shared[LANES * 4 + i] for i in range(4)]
    assert same(y[:128].reshape(32, 4).T, [own[0], own[1], x[LANES * 4 + 2], x[LANES * 4 + 3]])
    straight, turned = _ptx.ldmatrix(shared, LANES * 4), _ptx.ldmatrix_trans(shared, LANES * 4)
    assert same(y[128:256].reshape(4, 32), straight)
    assert same(y[256:384].reshape(4, 32), turned)
    a, b = _ptx.as_float(x[:32]), _ptx.exp2(-LANES.astype(np.float32) * np.float32(0.37))
    assert same(y[512:544], _ptx.pack_bf16(a, b))
    assert same(y[544:576], _ptx.pack_f16(a, b))
    assert same(y[576:640].reshape(2, 32), _ptx.e4m3_to_halves(x[:32]))
    assert same(y[640:672], _ptx.permute(x[:32], x[32:64], 0x5410))
    low, high = _ptx.half_to_float(_ptx.pack_f16(a, b))
    assert same(f[:128].reshape(4, 32), [low, high, b, _ptx.as_float(_ptx.as_word(a) + np.uint32(1))])
    assert same(f[128:256].reshape(4, 32), _ptx.mma_bf16(straight, (own[0], own[1]), (b, b, a, a)))
    assert same(f[256:384].reshape(4, 32), _ptx.mma_f16(straight, (own[0], own[1]), (b, b, a, a)))


def test_stored_numbers_widen_exactly() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 1 << 32, 32, dtype=np.uint32)
    f = (rng.standard_normal(33) * 2.0 ** rng.integers(-8, 8, 33)).astype(np.float32)
    y = np.zeros(512, np.uint32)
    with _runtime.written(y) as lent:
        launch(
            _widened, ("uint32[::1]", "float32[::1]", "uint32[::1]"), _runtime.readable(x), _runtime.readable(f), *lent
        )
    bf16 = y.view(ml_dtypes.bfloat16).astype(np.float32).reshape(-1, 32, 2)

    def stored(words: int, kind: Any) -> Any:
        """Return what a type of ml_dtypes says of the codes, one word after the other."""
        return x.view(kind).astype(np.float32).reshape(32, words, 2).transpose(1, 0, 2)

    assert same(bf16[:2], stored(2, ml_dtypes.float8_e4m3fn))
    assert same(bf16[2:4], stored(2, ml_dtypes.float8_e5m2))
    assert same(bf16[4:6], stored(2, np.int8))
    codes = np.stack([x >> np.uint32(4 * i) & 15 for i in range(8)], axis=1).astype(np.int64)
    nibbles = np.where(codes > 7, codes - 16, codes).astype(np.float32)
    assert same(bf16[8:12], nibbles.reshape(32, 4, 2).transpose(1, 0, 2))
    pairs = np.stack([f[:32], f[1:]], axis=1)
    assert same(bf16[12:15].sum(axis=0, dtype=np.float64), pairs), "three bfloat16 hold a float32"
    assert same(y[192:256].reshape(2, 32), halves.f16_parts(f[:32], f[1:]))
    for at, twin in ((0, halves.e4m3_to_bf16), (64, halves.e5m2_to_bf16), (128, halves.int8_to_bf16)):
        assert same(
            bf16[at // 32 : at // 32 + 2],
            np.asarray(twin(x)).view(ml_dtypes.bfloat16).astype(np.float32).reshape(2, 32, 2),
        )
    assert same(y[256:384].reshape(4, 32), halves.int4_to_bf16(x))
    assert same(y[384:480].reshape(3, 32), halves.bf16_parts(f[:32], f[1:]))


def test_copies_of_the_twin_arrive_at_the_wait() -> None:
    shared, words = np.zeros(8, np.uint32), np.arange(8, dtype=np.uint32)
    for at in (0, 4):
        _ptx.cp_async(shared, at, words, at, 4, at == 0)
        _ptx.cp_async_commit()
    assert not shared.any()
    _ptx.cp_async_wait(1)
    assert shared.tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    shared[4:] = 9
    _ptx.cp_async_wait(0)
    assert not shared[4:].any(), "zeros where nothing is live"
