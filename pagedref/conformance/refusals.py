"""Checks of refusals: wrong input gives the error of the specification, with its text, before any write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pagedref.conformance.agreement import NotRefused, OtherRefusal, assert_exact
from pagedref.conformance.cases import PagedCase, make_case
from pagedref.errors import ContractError, PagedRefError, PageFault

__all__ = ["CHECKS", "refuse_visible_hole"]


@dataclass(frozen=True)
class _Refusal:
    """A call that must raise an error whose text contains some words."""

    what: str
    call: Callable[[Any, PagedCase], object]
    words: tuple[str, ...]
    error: type[PagedRefError] = ContractError


def _expect(refusal: _Refusal, backend: Any, case: PagedCase) -> None:
    """Run one refused call and compare class, text and caches."""
    before = case.k_cache.copy(), case.v_cache.copy()
    try:
        refusal.call(backend, case)
    except refusal.error as error:
        text = str(error)
        missing = [word for word in refusal.words if word not in text]
        if missing:
            raise OtherRefusal(f"{refusal.what}: text {text!r} does not say {missing}") from error
    except Exception as error:
        raise OtherRefusal(f"{refusal.what}: raised {error!r} instead of {refusal.error.__name__}") from error
    else:
        raise NotRefused(f"{refusal.what}: was accepted")
    assert_exact(case.k_cache, before[0], f"{refusal.what}: keys")
    assert_exact(case.v_cache, before[1], f"{refusal.what}: values")


def _with(**changes: Any) -> Callable[[Any, PagedCase], object]:
    """Return a prefill of the case with some arrays replaced."""
    return lambda backend, case: replace(case, **{n: change(case) for n, change in changes.items()}).prefill(backend)


def _keywords(**keywords: Any) -> Callable[[Any, PagedCase], object]:
    """Return a prefill of the case with other keywords."""
    return lambda backend, case: case.using(**keywords).prefill(backend)


def _entry(name: str, at: int, value: int) -> Callable[[PagedCase], Any]:
    """Return a function that gives an array of the case with one entry replaced."""

    def change(case: PagedCase) -> Any:
        array = getattr(case, name).copy()
        array[at] = value
        return array

    return change


_ATTENTION = (
    _Refusal("heads that do not divide", _with(q=lambda case: case.q[:, :3]), ("paged_prefill: q", "3 / 2", "S12")),
    _Refusal("another head size", _with(q=lambda case: case.q[:, :, :5]), ("k_cache", "head_dim = 5")),
    _Refusal("integer queries", _with(q=lambda case: case.q.astype(np.int32)), ("q has the wrong type", "int32")),
    _Refusal("a table out of range", _with(kv_indices=_entry("kv_indices", 1, 999)), ("kv_indices", "999", "S21")),
    _Refusal("a frame of -2", _with(kv_indices=_entry("kv_indices", 1, -2)), ("kv_indices", "-2", "S21")),
    _Refusal("a last page too long", _with(kv_last_page_len=_entry("kv_last_page_len", 0, 5)), ("5", "1..4", "S20")),
    _Refusal("a last page of 0", _with(kv_last_page_len=_entry("kv_last_page_len", 0, 0)), ("got 0", "S20")),
    _Refusal("rows that end early", _with(qo_indptr=_entry("qo_indptr", 2, 1)), ("qo_indptr", "0..3")),
    _Refusal("rows that go back", _with(qo_indptr=_entry("qo_indptr", 1, 7)), ("qo_indptr", "non-decreasing")),
    _Refusal("a table that ends early", _with(kv_indptr=_entry("kv_indptr", 2, 2)), ("kv_indptr", "kv_indices")),
    _Refusal("a window of 0", _keywords(window=0), ("window", "got 0", "S5")),
    _Refusal("a window of three", _keywords(window=(1, 2, 3)), ("window", "S5")),
    _Refusal("a chunk of 0", _keywords(attention_chunk=0), ("attention_chunk", "S5")),
    _Refusal("a softcap of 0", _keywords(softcap=0.0), ("softcap", "S2")),
    _Refusal("a softcap of NaN", _keywords(softcap=float("nan")), ("softcap", "S2")),
    _Refusal("a scale of infinity", _keywords(sm_scale=float("inf")), ("sm_scale", "S1")),
    _Refusal("a causal that is no boolean", _keywords(causal=1), ("causal", "S14")),
    _Refusal("a scale of 0", _keywords(k_scale=0.0), ("paged_prefill: k_scale",)),
    _Refusal("a mask of another size", _keywords(mask=np.ones(5, bool)), ("mask", "S14")),
    _Refusal("a mask of numbers", _keywords(mask=np.ones(24, np.int8)), ("mask", "bool")),
    _Refusal("two sinks for four heads", _keywords(sinks=np.zeros(2, np.float32)), ("sinks", "num_qo_heads = 4")),
    _Refusal("a sink of +inf", _keywords(sinks=np.full(4, np.inf, np.float32)), ("sinks", "S11")),
    _Refusal("a slope of NaN", _keywords(alibi_slopes=np.full(4, np.nan, np.float32)), ("alibi_slopes", "S6")),
)


def _append(slots: list[int], dtype: Any = None, rows: int | None = None) -> Callable[[Any, PagedCase], object]:
    """Return an append of the case's first keys to some slots."""

    def call(backend: Any, case: PagedCase) -> object:
        count = len(slots) if rows is None else rows
        keys, values = (np.ones((count, 2, 8), dtype or case.q.dtype) for _ in range(2))
        return backend.append_kv(keys, values, case.k_cache, case.v_cache, np.array(slots, np.int64))

    return call


def _copy(src: list[int], dst: list[int]) -> Callable[[Any, PagedCase], object]:
    """Return a copy of frames of the case's keys."""
    return lambda backend, case: backend.copy_frames([case.k_cache], np.array(src), np.array(dst))


_CACHE = (
    _Refusal("a slot beyond the pool", _append([0, 10_000]), ("slot_mapping", "10000", "S22")),
    _Refusal("a slot of -2", _append([0, -2]), ("slot_mapping", "-2", "S22")),
    _Refusal("a slot named twice", _append([3, 1, 3]), ("slot_mapping", "twice", "got 3", "S22")),
    _Refusal("fewer rows than slots", _append([0, 1], rows=1), ("slot_mapping", "num_tokens = 1")),
    _Refusal("integers for keys", _append([0], dtype=np.int32), ("k has the wrong type", "int32")),
    _Refusal("a source beyond the pool", _copy([99], [0]), ("src", "99")),
    _Refusal("a target of -1", _copy([0], [-1]), ("dst", "-1")),
    _Refusal("a frame written twice", _copy([0, 1], [2, 2]), ("dst", "twice")),
    _Refusal("a frame read and written", _copy([0, 1], [1, 2]), ("dst", "also read")),
)


def wrong_attention_is_refused(backend: Any, dtype: str) -> None:
    """Heads, shapes, types, tables, lengths and keywords that break the contract."""
    for refusal in _ATTENTION:
        _expect(refusal, backend, make_case(40, [2, 1], [7, 3], dtype=dtype, poison=0.0))


def wrong_writes_are_refused(backend: Any, dtype: str) -> None:
    """Slots and frames that break the contract; nothing is written."""
    for refusal in _CACHE:
        _expect(refusal, backend, make_case(41, [2, 1], [7, 3], dtype=dtype, poison=0.0))


def wrong_states_are_refused(backend: Any, dtype: str) -> None:
    """States whose shapes do not fit."""

    def call(backend: Any, case: PagedCase) -> object:
        return backend.merge_states(np.zeros((2, 3, 4, 5), dtype), np.zeros((2, 3, 3), dtype))

    refusal = _Refusal("lse of other heads", call, ("merge_states: lse", "num_qo_heads = 4"))
    _expect(refusal, backend, make_case(42, [1], [2], dtype=dtype, poison=0.0))


def unmapped_pages_are_faults(backend: Any, dtype: str) -> None:
    """An unmapped page with a visible key, in attention and in gather (S21)."""
    refuse_visible_hole(backend, make_case(43, [2, 1], [7, 3], dtype=dtype, poison=0.0))

    def gather(backend: Any, case: PagedCase) -> object:
        holed = replace(case, kv_indices=_entry("kv_indices", 1, -1)(case))
        return backend.gather_kv(*holed.pages)

    refusal = _Refusal("gather of a hole", gather, ("gather_kv", "unmapped", "S21"), PageFault)
    _expect(refusal, backend, make_case(43, [2, 1], [7, 3], dtype=dtype, poison=0.0))


def refuse_visible_hole(backend: Any, case: PagedCase) -> None:
    """Demand a PageFault for the last page of the first sequence.

    Parameters
    ----------
    backend : module or object
        The backend.
    case : PagedCase
        A batch whose first sequence has a query row.

    Raises
    ------
    AssertionError
        If there is no such error.
    """
    last = int(case.kv_indptr[1]) - 1
    call = _with(kv_indices=_entry("kv_indices", last, -1))
    words = ("paged_prefill: kv_indices", f"page {last}", "sequence 0", "S21")
    _expect(_Refusal("a hole with visible keys", call, words, PageFault), backend, case)


CHECKS = (
    wrong_attention_is_refused,
    wrong_writes_are_refused,
    wrong_states_are_refused,
    unmapped_pages_are_faults,
)
