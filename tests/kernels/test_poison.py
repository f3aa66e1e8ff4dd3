"""Poison in live slots is found, with its place, in every format that has NaN; poison elsewhere is of no concern."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedref.conformance import make_case
from pagedref.kv_format import KVFormat

twin = pytest.importorskip("pagedref_cuda")
pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

FORMS = [None, KVFormat("float16"), KVFormat("bfloat16"), KVFormat("e4m3fn", "head"), KVFormat("e5m2")]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("page_size", [1, 4])
def test_places_are_named(form: Any, page_size: int) -> None:
    case = make_case(3, [1, 1, 1], [7, 0, 9], page_size=page_size, form=form)
    assert twin.find_poison(*case.pages, **case.stored) == [], "everything that is not live is NaN here"
    frames = case.kv_indices[case.kv_indptr[2] :]
    case.k_cache[frames[5 // page_size], 5 % page_size, 1, 3] = np.nan
    case.v_cache[frames[8 // page_size], 8 % page_size, 0, 0] = np.nan
    case.v_cache[case.kv_indices[0], 0, 1, 7] = np.nan
    expected = [("k", 2, 5, 1), ("v", 0, 0, 1), ("v", 2, 8, 0)]
    assert twin.find_poison(*case.pages, **case.stored) == expected
    holed = case.kv_indices.copy()
    holed[case.kv_indptr[2] :] = -1
    pages = case.k_cache, case.v_cache, case.kv_indptr, holed, case.kv_last_page_len
    assert twin.find_poison(*pages, **case.stored) == [("v", 0, 0, 1)], "unmapped pages are left out"


def test_scales_of_integers_tell() -> None:
    case = make_case(4, [1], [6], form=KVFormat("int8", "slot_head"))
    assert twin.find_poison(*case.pages, **case.stored) == []
    case.stored["v_scale"][case.kv_indices[1], 1, 0] = np.inf
    assert twin.find_poison(*case.pages, **case.stored) == [("v", 0, 5, 0)]
