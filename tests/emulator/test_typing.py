"""Case P78 of the reports: where types and indices of a compiled kernel are not those of Python.

Each test shows that the trap is there, and that the emulator, which runs what was compiled, shows it too; the
simulator does not.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tests.emulator.bridge", reason="numba-cuda is not installed", exc_type=ImportError)

from numba import cuda, float32, int64, uint64

import pagedref_cuda
from pagedref_cuda.emulator import MemoryFault

BEYOND = 2**53 + 1


def mixed(a, b, y):
    y[0] = a[0] > b[0]
    y[1] = min(a[0], int64(b[0]) + 2)
    y[2] = a[0] + b[0] - b[0]


def one_sign(a, b, y):
    y[0] = a[0] > int64(b[0])
    y[1] = min(a[0], int64(b[0]) + 2)
    y[2] = a[0] + int64(b[0]) - int64(b[0])


def test_int64_beside_uint64_is_compared_as_float64() -> None:
    """In numba-cuda 0.30 sums and products stay integers; a comparison does not, and loses the last bit."""
    a, b, y = np.array([BEYOND]), np.array([BEYOND - 1], np.uint64), np.zeros(3, np.int64)
    stats = pagedref_cuda.emulate(mixed, 1, 1, a, b, y)
    assert y.tolist() == [0, BEYOND, BEYOND]
    assert any(".f64" in name for name in stats.by_opcode())
    stats = pagedref_cuda.emulate(one_sign, 1, 1, a, b, y)
    assert y.tolist() == [1, BEYOND, BEYOND]
    assert not any(".f64" in name for name in stats.by_opcode())


def literal(x, y):
    y[0] = x[0] * 0.1


def float32_literal(x, y):
    y[0] = x[0] * float32(0.1)


def test_a_python_literal_makes_float32_arithmetic_float64() -> None:
    x, y = np.array([3.0], np.float32), np.zeros(1, np.float32)
    assert any("mul.f64" in name for name in pagedref_cuda.emulate(literal, 1, 1, x, y).by_opcode())
    assert not any(".f64" in name for name in pagedref_cuda.emulate(float32_literal, 1, 1, x, y).by_opcode())


def run_time_size(x, y):
    local = cuda.local.array(x.shape[0], float32)
    for i in range(x.shape[0]):
        local[i] = x[i]
    y[0] = local[0]


def test_a_local_array_of_a_run_time_size_does_not_compile() -> None:
    with pytest.raises(Exception, match=r"(?i)shape|constant|literal|array"):
        pagedref_cuda.emulate(run_time_size, 1, 1, np.zeros(4, np.float32), np.zeros(1, np.float32))


def last_signed(x, y):
    y[0] = x[int64(cuda.threadIdx.x) - 1]


def last_unsigned(x, y):
    y[0] = x[uint64(cuda.threadIdx.x) - uint64(1)]


def test_a_negative_index_wraps_around_when_signed_and_faults_when_not() -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(1, np.float32)
    pagedref_cuda.emulate(last_signed, 1, 1, x, y)
    assert y[0] == 3
    with pytest.raises(MemoryFault, match="before 'x'"):
        pagedref_cuda.emulate(last_unsigned, 1, 1, x, y)


def far_below(x, y):
    y[0] = x[int64(cuda.threadIdx.x) - 9]


def test_an_index_below_minus_the_length_is_out_of_bounds() -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(1, np.float32)
    with pytest.raises(MemoryFault, match="before 'x'"):
        pagedref_cuda.emulate(far_below, 1, 1, x, y)
