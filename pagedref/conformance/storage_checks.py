"""Checks of stored forms: what append writes, what gather and attention read, for every kind and granularity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pagedref.conformance.agreement import assert_exact, assert_state
from pagedref.conformance.cases import make_case, oracle
from pagedref.kv_format import KVFormat

__all__ = ["FORMATS", "STORED_CHECKS"]

FORMATS: tuple[KVFormat, ...] = (
    *(KVFormat(kind) for kind in ("float64", "float32", "float16", "bfloat16", "e4m3fn", "e5m2")),
    *(
        KVFormat(kind, granularity)
        for kind in ("float16", "e4m3fn", "int8", "int4")
        for granularity in ("tensor", "head", "frame_head", "slot_head")
        if kind != "float16" or granularity != "slot_head"
    ),
    *(KVFormat(kind, "group", group_size=4) for kind in ("e4m3fn", "int8", "int4")),
    *(KVFormat(kind, "group", group_size=2, zero_point=True) for kind in ("int8", "int4")),
    KVFormat("int4", "slot_head", zero_point=True),
)
"""Every kind, and every granularity with the kinds that need it most."""


def append_stores_the_declared_numbers(backend: Any, form: KVFormat) -> None:
    """Rows given to ``append_kv`` lie in the cache as the case laid them out, scales and zero points too (S16, S17)."""
    case = make_case(50, [1, 1], [7, 5], form=form)
    k_cache, v_cache = np.zeros_like(case.k_cache), np.zeros_like(case.v_cache)
    stored = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in case.stored.items()}
    for name, array in stored.items():
        if form.computed and isinstance(array, np.ndarray):
            stored[name] = np.full_like(array, np.nan)
    slots: list[int] = []
    rows: dict[str, list[Any]] = {"k": [], "v": []}
    for sequence, length in enumerate((7, 5)):
        rng = np.random.default_rng([50, 2, sequence])
        frames = case.kv_indices[case.kv_indptr[sequence] : case.kv_indptr[sequence + 1]]
        slots += [int(frames[position // 4]) * 4 + position % 4 for position in range(length)]
        rows["k"].append(rng.standard_normal((length, 2, 8)))
        rows["v"].append(rng.standard_normal((length, 2, 8)))
    keys, values = (np.concatenate(rows[side]).astype(np.float32) for side in "kv")
    if form.kind == "float64":
        keys, values = np.concatenate(case.keys), np.concatenate(case.values)
    backend.append_kv(keys, values, k_cache, v_cache, np.array(slots), **stored)
    frames, offsets = np.array(slots) // 4, np.array(slots) % 4
    for side, cache, expected in (("k", k_cache, case.k_cache), ("v", v_cache, case.v_cache)):
        assert_exact(cache[frames, offsets], expected[frames, offsets], f"{form}: {side}_cache after append")
        for name in (f"{side}_scale", f"{side}_zero"):
            if name in stored and form.computed:
                assert_exact(stored[name][frames, offsets], case.stored[name][frames, offsets], f"{form}: {name}")


def gather_reads_the_declared_numbers(backend: Any, form: KVFormat) -> None:
    """``gather_kv`` gives ``stored * scale`` of every live token, poison around them (S16, S18)."""
    case = make_case(51, [1, 1, 1], [7, 0, 5], form=form)
    keys, values = backend.gather_kv(*case.pages, **case.stored)
    dtype = case.keys[0].dtype if form.granularity else form.dtype
    assert_exact(np.asarray(keys), np.concatenate(case.keys).astype(dtype), f"{form}: keys")
    assert_exact(np.asarray(values), np.concatenate(case.values).astype(dtype), f"{form}: values")


def attention_reads_the_declared_numbers(backend: Any, form: KVFormat) -> None:
    """Prefill and decode over the stored cache agree with the oracle over ``stored * scale`` (S16, S18)."""
    case = make_case(52, [3, 1, 0], [9, 5, 2], form=form)
    assert_state(case.prefill(backend), oracle(case), f"{form}: prefill")
    case = make_case(52, [1, 1, 1], [9, 5, 2], page_size=3, form=form, window=4, softcap=2.0)
    assert_state(case.decode(backend), oracle(case), f"{form}: decode")


def poison_beside_stored_numbers_changes_no_bit(backend: Any, form: KVFormat) -> None:
    """L3 for every format: NaN, or the largest code, in whatever is not live."""
    results = [make_case(53, [2, 1], [6, 9], form=form, poison=x).prefill(backend) for x in (0.0, float("nan"))]
    assert_exact(np.asarray(results[1].out), np.asarray(results[0].out), f"{form}: output beside poison")
    assert_exact(np.asarray(results[1].lse), np.asarray(results[0].lse), f"{form}: lse beside poison")


STORED_CHECKS: dict[str, Callable[[Any, KVFormat], None]] = {
    check.__name__: check
    for check in (
        append_stores_the_declared_numbers,
        gather_reads_the_declared_numbers,
        attention_reads_the_declared_numbers,
        poison_beside_stored_numbers_changes_no_bit,
    )
}
"""Checks by name; each takes a backend and a format."""
