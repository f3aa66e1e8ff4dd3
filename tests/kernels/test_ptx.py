"""Every kernel compiles to PTX and to machine code for sm_80, sm_90 and sm_100, without a GPU, and shows what the house
forbids not to be there: float64 and spills; on the first rung barriers and 32-bit products in addresses.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from pagedref.contract import OPERATIONS
from pagedref.errors import BackendUnavailable

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

from numba import cuda

import pagedref_cuda as twin
import pagedref_cuda.runner  # its kernels too
from pagedref_cuda import _runtime
from pagedref_cuda._runtime import Kernel

CASES = [(name, signature) for name, kernel in twin.KERNELS.items() for signature in kernel.signatures]


@cache
def compiled(kernel: Kernel, signature: tuple[Any, ...]) -> str:
    try:
        return _runtime.compile_ptx(kernel, signature)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))


def ptx_of(name: str, signature: tuple[Any, ...]) -> str:
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
    others = {"mla_decode", "mla_prefill", "ordered_part", "ordered_join"}
    assert {f"{operation}_1" for operation in {*OPERATIONS, *others}} <= set(twin.KERNELS)


def report_of(ptx: str, kernel: Kernel, compute_capability: tuple[int, int]) -> str:
    try:
        return _runtime.link_report(ptx, compute_capability, kernel.options.max_registers)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("name", "signature"), CASES)
def test_kernel_compiles_to_clean_ptx(name: str, signature: tuple[Any, ...]) -> None:
    ptx = ptx_of(name, signature)
    assert ".target sm_90" in ptx
    assert ".address_size 64" in ptx
    assert not double_precision(ptx)
    if re.fullmatch(r"\D+_1", name):
        assert not barriers(ptx), "rung 1 has none"
        assert not narrow_products(ptx), "addresses have 64 bits (S19)"


@pytest.mark.parametrize("compute_capability", [(9, 0), (10, 0)])
@pytest.mark.parametrize(("name", "signature"), CASES)
def test_kernel_links_without_spills(
    name: str, signature: tuple[Any, ...], compute_capability: tuple[int, int]
) -> None:
    report = report_of(ptx_of(name, signature), twin.KERNELS[name], compute_capability)
    assert re.search(r"used \d+ registers", report), report
    assert " 0 stack" in report, report
    assert " 0 bytes lmem" in report, report


@pytest.mark.parametrize("name", list(twin.KERNELS))
def test_kernel_compiles_for_the_oldest(name: str) -> None:
    kernel = twin.KERNELS[name]
    try:
        ptx = _runtime.compile_ptx(kernel, kernel.signatures[0], (8, 0))
    except BackendUnavailable as reason:
        pytest.skip(str(reason))
    assert ".target sm_80" in ptx
    assert re.search(r"used \d+ registers", report_of(ptx, kernel, (8, 0)))


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
