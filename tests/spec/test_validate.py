"""Argument checks one by one; whole operations are refused in the conformance suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref import validate
from pagedref.errors import ContractError


def state(**changes: Any) -> dict[str, Any]:
    return {"out": np.zeros((2, 3, 4, 5), np.float32), "lse": np.zeros((2, 3, 4), np.float32), **changes}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lse": None}, "merge_states: lse is missing, got None, need an array (num_states, num_tokens, num_qo_heads)"),
        ({"lse": [1.0]}, "merge_states: lse is not an array, got list, need"),
        ({"lse": np.zeros((2, 3), np.float32)}, "lse has the wrong number of dimensions, got (2, 3)"),
        ({"lse": np.zeros((2, 3, 5), np.float32)}, "lse has the wrong shape, got (2, 3, 5), need"),
        ({"lse": np.zeros((2, 3, 4), np.int32)}, "lse has the wrong type, got int32, need float32 or float64"),
    ],
)
def test_arrays_name_what_is_wrong(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ContractError) as error:
        validate.arrays("merge_states", "numpy", state(**change))
    assert text in str(error.value)


def test_the_twin_takes_fewer_types() -> None:
    wide = {name: array.astype(np.float64) for name, array in state().items()}
    validate.arrays("merge_states", "numpy", wide)
    with pytest.raises(ContractError, match="need float32"):
        validate.arrays("merge_states", "cuda", wide)


@pytest.mark.parametrize(("q", "kv"), [(33, 2), (3, 2), (2, 3), (4, 0), (0, 1)])
def test_heads_must_divide(q: int, kv: int) -> None:
    """P27: never floored; the text names both numbers."""
    with pytest.raises(ContractError, match=f"{q} / {kv}"):
        validate.heads("f", q, kv)


@given(
    lengths=st.lists(st.integers(0, 50), max_size=8),
    page_size=st.integers(1, 7),
    narrow=st.booleans(),
)
def test_csr_gives_back_the_lengths(lengths: list[int], page_size: int, narrow: bool) -> None:
    """P15: kv_len from pages and last page, for any lengths; 64 bits whatever came in."""
    dtype = np.int32 if narrow else np.int64
    pages = [-(-length // page_size) for length in lengths]
    last = [(length - 1) % page_size + 1 if length else 0 for length in lengths]
    indptr = np.concatenate([[0], np.cumsum(pages, dtype=np.int64)]).astype(dtype)
    frames = np.arange(indptr[-1], dtype=dtype)
    results = validate.csr("f", indptr, frames, np.array(last, dtype), len(frames), page_size)
    assert results[2].tolist() == lengths
    assert all(array.dtype == np.int64 for array in results)


@given(st.lists(st.integers(-3, 12), max_size=6))
def test_slots_accept_exactly_what_the_rule_says(slots: list[int]) -> None:
    """S22 against its words."""
    live = [slot for slot in slots if slot != -1]
    legal = all(0 <= slot < 10 for slot in live) and len(set(live)) == len(live)
    if legal:
        assert validate.slots("f", np.array(slots, np.int32), 10).tolist() == slots
    else:
        with pytest.raises(ContractError, match="S22"):
            validate.slots("f", np.array(slots, np.int32), 10)


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 5)), max_size=4))
def test_copies_accept_exactly_what_the_rule_says(pairs: list[tuple[int, int]]) -> None:
    src, dst = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    legal = all(0 <= frame < 5 for frame in src + dst) and len(set(dst)) == len(dst) and not set(src) & set(dst)
    arrays = [np.zeros((5, 2)), np.zeros((6,))]
    if legal:
        validate.copies("f", arrays, np.array(src, np.int64), np.array(dst, np.int64))
    else:
        with pytest.raises(ContractError):
            validate.copies("f", arrays, np.array(src, np.int64), np.array(dst, np.int64))


def test_unbuilt_keywords_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "NOT_BUILT", {"other": frozenset({"k_scale", "v_scale"})})
    validate.built("append_kv", "other", {"k_scale": None})
    with pytest.raises(ContractError, match="v_scale is not built yet in the other backend"):
        validate.built("append_kv", "other", {"v_scale": 2.0})
