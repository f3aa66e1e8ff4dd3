"""The walk over pages: tiles, strided pools, hidden NaNs, threads."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.attention import paged_decode, paged_prefill, parallel, reader, tiles
from pagedref.conformance import assert_exact, assert_state, make_case, oracle


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), tile=st.integers(1, 9), rows=st.integers(1, 4), sharp=st.booleans())
def test_any_tile_agrees_with_the_oracle(seed: int, tile: int, rows: int, sharp: bool) -> None:
    """Many small tiles: the running maximum moves, rows begin in different tiles, a window starts inside one."""
    spread, window = 30.0 if sharp else 1.0, 6 if seed % 2 else None
    case = make_case(seed, [5, 1, 7], [20, 33, 7], page_size=3, spread=spread, window=window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "tokens_per_tile", lambda *_: tile)
        patch.setattr(tiles, "rows_per_tile", lambda *_: rows)
        state = case.prefill(type("namespace", (), {"paged_prefill": staticmethod(paged_prefill)}))
    assert_state(state, oracle(case))


def test_tiles_do_not_lose_infinite_scores() -> None:
    """A key of -inf weighs nothing and is not NaN; all of them are a row without weight."""
    case = make_case(0, [1], [3], poison=0.0, num_kv_heads=1, group_size=1, head_dim=1)
    ones = replace(case, q=np.ones_like(case.q))
    for dead in ([0], [0, 1, 2]):
        k_cache = case.k_cache.copy()
        k_cache[case.kv_indices[0], dead] = -np.inf
        keys = [k_cache[case.kv_indices[0], :3]]
        changed = replace(ones, k_cache=k_cache, keys=keys)
        state = changed.prefill(sys.modules["pagedref.attention"])
        assert_state(state, oracle(changed), f"keys {dead} of -inf")


def test_strided_pools_are_walked_in_place() -> None:
    """The common strides are a view for ``take``; others are copied page by page; nothing copies the pool."""
    pool = np.zeros((50, 4, 2, 3, 2, 8), np.float32)  # frames, layers, K and V, page_size, heads, dim
    view = reader._as_frames(pool[:, 1, 0])
    assert view is not None and view[1] == 8 and view[0].base is not None
    assert reader._as_frames(pool[..., :5][:, 1, 0]) is None
    assert reader._as_frames(pool[::-1, 1, 0]) is None


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("threadpoolctl", reason="threads are used where threadpoolctl is installed")
    monkeypatch.setattr(parallel, "_LARGE", 1)
    case = make_case(3, [1] * 6, [300, 5, 700, 64, 0, 31], page_size=16, head_dim=64)
    results = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("PAGEDREF_THREADS", threads)
        results.append(paged_decode(case.q, *case.pages))
    for result in results[1:]:
        assert_exact(result.out, results[0].out)
        assert_exact(result.lse, results[0].lse)


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("threadpoolctl", reason="threads are used where threadpoolctl is installed")
    monkeypatch.setenv("PAGEDREF_THREADS", "2")
    monkeypatch.setattr(parallel, "_LARGE", 1)

    def work(piece: int) -> None:
        if piece == 1:
            raise RuntimeError("piece 1")

    for _ in range(2):  # and the lock is free again
        with pytest.raises(RuntimeError, match="piece 1"):
            parallel.for_each(work, [10, 10, 10])


def test_no_warnings(recwarn: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case = make_case(9, [3, 2, 1], [2, 0, 40], poison=float("nan"), spread=1e20)
        case.prefill(sys.modules["pagedref.attention"])
