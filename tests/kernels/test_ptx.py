"""Every kernel compiles to PTX and to machine code for sm_90, without a GPU, and shows what the house forbids not to be
there: float64, barriers on the first rung, 32-bit products in addresses, spills.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from pagedref.contract import OPERATIONS
from pagedref.errors import BackendUnavailable

twin = pytest.importorskip("pagedref_cuda", reason="numba-cuda is not installed", exc_type=ImportError)

from numba import cuda  # noqa: E402

from pagedref_cuda import _runtime  # noqa: E402
from pagedref_cuda._runtime import Kernel  # noqa: E402

CASES = [(name, signature) for name, kernel in twin.KERNELS.items() for signature in kernel.signatures]


@cache
def compiled(kernel: Kernel, signature: tuple[str, ...]) -> str:
    try:
        return _runtime.compile_ptx(kernel, signature)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))


def ptx_of(name: str, signature: tuple[str, ...]) -> str:
    return compiled(twin.KERNELS[name], signature)


def double_precision(ptx: str) -> list[str]:
    return [line.strip() for line in ptx.splitlines() if re.search(r"\.f64\b|\.b64\s+%fd", line)]


def barriers(ptx: str) -> list[str]:
    return [line.strip() for line in ptx.splitlines() if re.search(r"\b(bar|barrier|shfl|vote|match|redux)\.", line)]


def narrow_products(ptx: str) -> list[str]:
    """List products that keep 32 bits, except the remainder of a 32-bit quotient (how 64-bit division is sped up)."""
    quotients = set(re.findall(r"div\.[us]32\s+(%r\d+)", ptx))
    found = re.findall(r"((?:mul|mad)\.lo\.[us]32\s+%r\d+, (%r\d+), (\S+?)[,;])", ptx)
    return [text for text, a, b in found if a not in quotients and b not in quotients]


def test_every_operation_has_its_first_rung() -> None:
    assert {f"{operation}_1" for operation in OPERATIONS} == set(twin.KERNELS)


@pytest.mark.parametrize(("name", "signature"), CASES)
def test_kernel_compiles_to_clean_ptx(name: str, signature: tuple[str, ...]) -> None:
    ptx = ptx_of(name, signature)
    assert ".target sm_90" in ptx
    assert ".address_size 64" in ptx
    assert not double_precision(ptx)
    assert not barriers(ptx), "rung 1 has none"
    assert not narrow_products(ptx), "addresses have 64 bits (S19)"


@pytest.mark.parametrize(("name", "signature"), CASES)
def test_kernel_links_without_spills(name: str, signature: tuple[str, ...]) -> None:
    ptx = ptx_of(name, signature)
    try:
        report = _runtime.link_report(ptx)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))
    assert re.search(r"used \d+ registers", report), report
    assert " 0 stack" in report, report
    assert " 0 bytes lmem" in report, report


def test_merge_rounds_its_products() -> None:
    """Fused, a sum of two products depends on their order; merging states may not (S10)."""
    ptx = ptx_of("merge_states_1", twin.KERNELS["merge_states_1"].signatures[0])
    assert "mul.rn.f32" in ptx


def _float_literal(x: np.ndarray) -> None:
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = x[i] * 0.1  # not a float32 number: the product is taken in float64


def _with_barrier(x: np.ndarray) -> None:
    cuda.syncthreads()
    x[cuda.grid(1)] = 0


def _local_array(x: np.ndarray) -> None:
    local = cuda.local.array(64, np.float32)
    for i in range(x.shape[0]):
        local[i % 64] = x[i]
    for i in range(x.shape[0]):
        x[i] = local[(i * 7) % 64]


def test_float_literal_is_found() -> None:
    assert double_precision(compiled(Kernel(_float_literal, ()), ("float32[:]",)))


def test_barrier_is_found() -> None:
    assert barriers(compiled(Kernel(_with_barrier, ()), ("float32[:]",)))


def test_local_memory_is_found() -> None:
    ptx = compiled(Kernel(_local_array, ()), ("float32[:]",))
    try:
        report = _runtime.link_report(ptx)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))
    assert " 0 stack" not in report or " 0 bytes lmem" not in report


def test_narrow_product_is_found() -> None:
    assert narrow_products("mul.lo.s32 \t%r3, %r1, %r2;")
    assert narrow_products("mad.lo.s32 \t%r3, %r1, 64, %r2;")
    assert not narrow_products("div.u32 \t%r6, %r5, %r4;\nmul.lo.s32 \t%r7, %r6, %r4;\nmul.wide.s32 \t%rd1, %r2, %r3;")
