"""Keys turned as they are read: the bits of keys that were turned before they were written (S1, P66, P67)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pagedref.attention import Rotary
from pagedref.conformance import PagedCase, assert_exact, make_case
from pagedref.errors import ContractError
from pagedref.kv_format import KVFormat

twin = pytest.importorskip("pagedref_cuda")
pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

ROTATIONS = {
    "half": Rotary.plain(8),
    "interleaved": Rotary.plain(8, 100.0, layout="interleaved"),
    "partial": Rotary.plain(4),
    "partial interleaved": Rotary.plain(6, layout="interleaved"),
    "with magnitude": Rotary(np.array([1.0, 0.3, 0.01]), "half", 1.25),
}


def turned(case: PagedCase, rotary: Rotary) -> PagedCase:
    """Return the case with its live keys turned in the cache, in float32."""
    k_cache = np.full(case.k_cache.shape, np.nan, np.float32)
    page_size = case.k_cache.shape[1]
    for sequence, keys in enumerate(case.keys):
        frames = case.kv_indices[case.kv_indptr[sequence] : case.kv_indptr[sequence + 1]]
        positions = np.arange(len(keys))
        rows = rotary.apply(np.asarray(keys, np.float32), positions)
        k_cache[frames[positions // page_size], positions % page_size] = rows
    return replace(case, k_cache=k_cache)


@pytest.mark.parametrize("name", ROTATIONS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_turning_at_the_read_is_turning_before_the_write(name: str, page_size: int) -> None:
    case = make_case(7, [3, 1, 2], [11, 6, 40], page_size=page_size)
    rotary = ROTATIONS[name]
    before = turned(case, rotary)
    expected = before.prefill(twin)
    actual = case.using(rotary=rotary).prefill(twin)
    assert_exact(np.asarray(actual.out), np.asarray(expected.out), name)
    assert_exact(np.asarray(actual.lse), np.asarray(expected.lse), name)


def test_decode_and_narrow_storage() -> None:
    """Keys are widened and scaled first, then turned."""
    rotary = ROTATIONS["half"]
    for form in (KVFormat("bfloat16"), KVFormat("int8", "slot_head")):
        case = make_case(8, [1, 1], [9, 17], form=form)
        plain: Any = replace(turned(case, rotary), v_cache=case.v_cache)
        values = np.full(case.v_cache.shape, np.nan, np.float32)
        for sequence, live in enumerate(case.values):
            frames = case.kv_indices[case.kv_indptr[sequence] : case.kv_indptr[sequence + 1]]
            values[frames[np.arange(len(live)) // 4], np.arange(len(live)) % 4] = np.asarray(live, np.float32)
        expected = replace(plain, v_cache=values, stored={}).decode(twin)
        actual = case.using(rotary=rotary).decode(twin)
        assert_exact(np.asarray(actual.out), np.asarray(expected.out), str(form))


def test_a_longer_sequence_grows_the_table() -> None:
    rotary = Rotary.plain(8)
    for length in (3, 50, 9):
        case = make_case(9, [1], [length])
        expected = turned(case, rotary).decode(twin)
        assert_exact(np.asarray(case.using(rotary=rotary).decode(twin).out), np.asarray(expected.out))


def test_refusals() -> None:
    case = make_case(10, [1], [3])
    with pytest.raises(ContractError, match="paged_decode: rotary is no Rotary"):
        case.using(rotary=3.0).decode(twin)
    with pytest.raises(ContractError, match="paged_prefill: rotary is wider than a key"):
        case.using(rotary=Rotary.plain(10)).prefill(twin)
