"""Kernels that are wrong on purpose, each with its mended twin: what a GPU would do silently is said here.

Numba's simulator runs most of the wrong ones without a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tests.emulator.bridge", reason="numba-cuda is not installed", exc_type=ImportError)

from numba import cuda, float32, uint32
from numba.core.errors import TypingError

import pagedref_cuda
from pagedref.errors import ContractError
from pagedref_cuda.emulator import (
    AsyncHazard,
    BarrierError,
    EmulatorError,
    MemoryFault,
    RaceError,
    UninitialisedRead,
)
from tests.emulator import intrinsics

THREADS, WORDS = 64, 256


def turn_round(mended: bool) -> Any:
    def kernel(x, y):
        row = cuda.shared.array(THREADS, float32)
        i = cuda.threadIdx.x
        row[i] = x[i]
        if mended:
            cuda.syncthreads()
        y[i] = row[THREADS - 1 - i]

    return kernel


def copy_later(mended: bool) -> Any:
    def kernel(x, y):
        row = cuda.shared.array(WORDS, uint32, 16)
        i = cuda.threadIdx.x
        intrinsics.cp_async16(row, 4 * i, x, 4 * i)
        intrinsics.cp_async_commit()
        if mended:
            intrinsics.cp_async_wait_all()
        for j in range(4):
            y[4 * i + j] = row[4 * i + j]

    return kernel


def tail(mended: bool) -> Any:
    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.shape[0] if mended else i <= x.shape[0]:
            y[i] = x[i]

    return kernel


def barrier_in_a_branch(mended: bool) -> Any:
    def kernel(x, y):
        row = cuda.shared.array(THREADS, float32)
        i = cuda.threadIdx.x
        if i < THREADS // 2:
            row[i] = x[i]
            if not mended:
                cuda.syncthreads()
        if mended:
            cuda.syncthreads()
        if i < THREADS // 2:
            y[i] = row[THREADS // 2 - 1 - i]

    return kernel


def sum_of_a_row(mended: bool) -> Any:
    def kernel(x, y):
        row = cuda.shared.array(THREADS, float32)
        i = cuda.threadIdx.x
        if mended or i < THREADS - 1:
            row[i] = x[i]
        cuda.syncthreads()
        if i == 0:
            total = float32(0)
            for j in range(THREADS):
                total += row[j]
            y[0] = total

    return kernel


def count_all(mended: bool) -> Any:
    def kernel(x, y):
        if mended:
            cuda.atomic.add(y, 0, x[cuda.grid(1)])
        else:
            y[0] += x[cuda.grid(1)]

    return kernel


def floats(size: int) -> Any:
    return np.arange(size, dtype=np.float32)


CASES: dict[str, tuple[Any, type[EmulatorError], str, int, Any, Any]] = {
    "missing barrier": (turn_round, RaceError, "read-after-write race on shared byte", 1, floats(64), floats(64)),
    "missing wait": (copy_later, AsyncHazard, "not been waited for", 1, *np.zeros((2, 256), np.uint32)),
    "off-by-one tail": (tail, MemoryFault, "0 bytes past the end of 'x'", 2, floats(100), floats(100)),
    "divergent barrier": (barrier_in_a_branch, BarrierError, "have exited", 1, floats(64), floats(64)),
    "uninitialised read": (sum_of_a_row, UninitialisedRead, "never written in this launch", 1, floats(64), floats(1)),
    "race between blocks": (count_all, RaceError, "global race on", 2, floats(128), floats(1)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_kernel_is_found_and_its_mended_twin_passes(name: str) -> None:
    make, error, text, blocks, x, y = CASES[name]
    with pytest.raises(error, match=text) as caught:
        pagedref_cuda.emulate(make(False), blocks, THREADS, x.copy(), y.copy())
    assert "thread (" in str(caught.value)
    assert caught.value.loc is not None
    assert caught.value.loc[0].endswith("test_broken.py")
    stats = pagedref_cuda.emulate(make(True), blocks, THREADS, x.copy(), y.copy())
    assert stats.warp_instructions > 0


def test_a_vast_array_is_watched_where_it_is_touched() -> None:
    def kernel(x, y):
        i = cuda.grid(1)
        y[i * 2_000_000_000] = x[i]
        y[(3 - i) * 1_000_000_000 + 5] = x[i]

    x, y = np.arange(2, dtype=np.uint8) + 1, np.zeros(5_000_000_000, np.uint8)  # untouched pages cost nothing
    pagedref_cuda.emulate(kernel, 2, 1, x, y)
    assert (y[0], y[2_000_000_000], y[3_000_000_005], y[2_000_000_005]) == (1, 2, 1, 2)

    def wrong(x, y):
        y[4_000_000_000] = x[cuda.grid(1)]

    with pytest.raises(RaceError, match="4000000000"):
        pagedref_cuda.emulate(wrong, 2, 1, x, y)


def test_results_lie_in_the_callers_arrays() -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    pagedref_cuda.emulate(turn_round(True), 1, THREADS, x, y)
    assert np.array_equal(y, x[::-1])


def test_a_jitted_kernel_is_taken_as_it_is() -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    pagedref_cuda.emulate(cuda.jit(turn_round(True)), 1, THREADS, x, y)
    assert np.array_equal(y, x[::-1])


def test_checks_can_be_turned_off() -> None:
    x, y = floats(128), floats(1)
    pagedref_cuda.emulate(count_all(False), 2, THREADS, x, y, global_races=False)
    pagedref_cuda.emulate(turn_round(False), 1, THREADS, floats(64), floats(64), races=False)


def test_read_only_arrays_are_not_written() -> None:
    y = floats(64)
    y.flags.writeable = False
    with pytest.raises(TypingError, match="Cannot modify readonly array"):
        pagedref_cuda.emulate(turn_round(True), 1, THREADS, floats(64), y)


@cuda.jit(device=True)
def _device_function(x):
    return x


@pytest.mark.parametrize(
    ("kernel", "arguments", "text"),
    [
        (3, (), "kernel is not a kernel, got int"),
        (_device_function, (floats(1),), "kernel is not a kernel, got CUDADispatcher"),
        (turn_round(True), (floats(64),), "kernel has the wrong number of arguments, got 1, need 2"),
        (turn_round(True), (floats(64), "y"), "an argument cannot be passed, got unicode_type"),
        (turn_round(True), (floats(64), np.zeros(3, object)), "an argument has no numba type, got an array of objects"),
    ],
)
def test_what_cannot_be_launched_is_one_line(kernel: Any, arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ContractError, match=text) as caught:
        pagedref_cuda.emulate(kernel, 1, 64, *arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "block"), [(0, 64), ((1, 70_000), 64), (1, (4, 4, 128)), (1, 2048), ((1, 1, 1, 1), 64)]
)
def test_launches_that_a_gpu_refuses_are_refused(grid: Any, block: Any) -> None:
    with pytest.raises(EmulatorError, match=r"launch dimensions|threads per block"):
        pagedref_cuda.emulate(tail(True), grid, block, floats(1), floats(1))


def test_counts_are_collected_by_name() -> None:
    x, y = floats(128), floats(128)
    kernel = tail(True)
    with pagedref_cuda.counting() as counts:
        for _ in range(3):
            pagedref_cuda.emulate(kernel, 4, 32, x, y)
    one, whole = counts["kernel"][0], counts.total("kernel")
    assert len(counts["kernel"]) == 3
    assert whole.warp_instructions == 3 * one.warp_instructions
    assert whole.sectors == 3 * one.sectors == 3 * 2 * 16
    assert whole.global_bytes("ld") == 3 * x.nbytes
    with pytest.raises(ValueError, match="different compilations"):
        whole.add(pagedref_cuda.emulate(turn_round(True), 1, THREADS, floats(64), floats(64)))


def test_options_hold_inside_only() -> None:
    from pagedref_cuda._runtime.checks import current_options

    before = current_options()
    with pagedref_cuda.emulator_options(races=not before["races"]):
        assert current_options()["races"] is not before["races"]
        with pagedref_cuda.emulator_options(batch_threads=64):
            assert current_options()["batch_threads"] == 64
            assert current_options()["races"] is not before["races"]
    assert current_options() == before
    with pytest.raises(TypeError, match="speed is not an option"), pagedref_cuda.emulator_options(speed=1):
        pass
