"""What a decode step moves and executes, counted on the emulator: the targets of the fast rungs."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

from benchmarks.kernel_counts import BUDGET, Counts, count
from pagedref.errors import BackendUnavailable
from pagedref_cuda import _runtime


def emulated() -> bool:
    try:
        return bool(_runtime.mode() == "emulator")
    except BackendUnavailable:
        return False


pytestmark = pytest.mark.skipif(not emulated(), reason="only the emulator counts")
counted = cache(count)


@pytest.mark.parametrize("length", [1024, 8192])
@pytest.mark.parametrize("group_size", [1, 4, 8, 16])
def test_a_step_reads_keys_and_values_once(group_size: int, length: int) -> None:
    found: Counts = counted(group_size, length)
    assert 1.0 <= found.kv_loaded <= 1.02
    assert found.kv_sectors == 16, "a request of 512 bytes touches 16 sectors"
    assert found.ways <= 2
    assert found.launches == 2
    assert found.instructions <= (80 if group_size <= 8 else BUDGET)
    assert found.predicted >= 0.85


@pytest.mark.parametrize("group_size", [1, 8])
def test_pages_of_one_token_cost_little_more(group_size: int) -> None:
    one, sixteen = counted(group_size, 1024, 1), counted(group_size, 1024)
    assert one.instructions <= 1.3 * sixteen.instructions
    assert one.sectors <= 1.3 * sixteen.sectors
    assert one.kv_sectors == 16


def test_each_rung_gains_what_it_says() -> None:
    rungs = {rung: counted(8, 128, 16, rung) for rung in (1, 2, 4)}
    assert rungs[2].sectors < rungs[1].sectors / 10, "whole requests instead of numbers"
    assert rungs[2].instructions < rungs[1].instructions / 10
    assert rungs[4].loaded < 0.6 * rungs[2].loaded, "a group of 8 reads once, not twice"
    assert rungs[4].instructions < rungs[2].instructions / 5, "products of fragments"
    assert rungs[2].on_their_way == 0 < rungs[4].on_their_way


def test_float32_reads_once_too() -> None:
    found = counted(1, 1024, 16, 5, "float32")
    assert found.kv_loaded <= 1.02
    assert found.kv_sectors == 16
    assert found.instructions <= 80
