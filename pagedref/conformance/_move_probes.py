"""Probes of append, gather, copy and merge: calls with fresh arguments, results as plain arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.conformance.cases import make_case
from pagedref.kv_format import KVFormat

__all__ = ["move_probes"]

Array = npt.NDArray[Any]
Parts = dict[str, Array]
Row = tuple[str, str, Callable[[Any], Parts], tuple[str, ...]]

_SLOTS = {
    "slots in order": [0, 1, 2, 3, 4],
    "slots out of order": [9, 2, 14, 5, 0],
    "slot -1 skips": [3, -1, 6, -1, 12],
    "slot -1 first": [-1, 7, -1, 1, 13],
}
_STORED = {
    "float16": KVFormat("float16"),
    "bfloat16": KVFormat("bfloat16"),
    "e4m3fn": KVFormat("e4m3fn"),
    "e5m2": KVFormat("e5m2"),
    "e4m3fn, one scale per head": KVFormat("e4m3fn", "head"),
    "int8, one scale": KVFormat("int8", "tensor"),
    "int8, scale per head": KVFormat("int8", "head"),
    "int8, scale per slot": KVFormat("int8", "slot_head"),
    "int8, zero point": KVFormat("int8", "slot_head", zero_point=True),
    "int4, groups and zero point": KVFormat("int4", "group", group_size=4, zero_point=True),
    "int4, scale per head": KVFormat("int4", "head"),
}


def _bits(array: Array) -> Array:
    """Return the bits of an array as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _rows(seed: int, spread: float) -> tuple[Array, Array]:
    """Return keys and values, some far out of every range, some in the middle between two stored numbers."""
    rng = np.random.default_rng(seed)
    k, v = (spread * rng.standard_normal((5, 2, 8)).astype(np.float32) for _ in range(2))
    return k, v


def _append(name: str, slots: list[int], form: KVFormat, spread: float, seed: int, large: bool = False) -> Row:
    """Return a probe of append."""

    def run(backend: Any) -> Parts:
        k, v = _rows(seed, spread)
        if large:
            k[1, 0, :4], v[2, 1, :4] = (1e3, -1e3, 7e4, -np.inf), (-465.0, 470.0, 1e9, -6e4)
        made: dict[str, Any] = {}
        for side in "kv":
            shape = form.scale_shape(4, 4, 2, 8)
            made[f"{side}_cache"] = np.full((4, 4, 2, form.stored_dim(8)), 5, form.dtype)
            if shape is not None and form.computed:
                made[f"{side}_scale"] = np.full(shape, 9.0, np.float32)
                if form.zero_point:
                    made[f"{side}_zero"] = np.full(shape, 9.0, np.float32)
            elif shape is not None:
                scale = np.linspace(0.03, 0.055, int(np.prod(shape)) or 1, dtype=np.float32).reshape(shape)
                made[f"{side}_scale"] = np.asarray(scale * (1 + ("v" in side)), np.float32)
        caches = made.pop("k_cache"), made.pop("v_cache")
        stored = {"kv_format": form, **made} if form != KVFormat.of(form.dtype) or form.integer else {}
        with np.errstate(all="ignore"):
            backend.append_kv(k, v, *caches, np.array(slots, np.int64), **stored)
        parts = {"k_cache": _bits(caches[0]), "v_cache": _bits(caches[1])}
        return parts | {name: _bits(x) for name, x in made.items() if form.computed}

    return f"append: {name}", "append_kv", run, (form.dtype.name,)


def _gather(name: str, **keywords: Any) -> Row:
    """Return a probe of gather."""
    case = make_case(230, [1] * 4, [5, 0, 9, 2], poison=3.0, **keywords)

    def run(backend: Any) -> Parts:
        with np.errstate(all="ignore"):
            keys, values = backend.gather_kv(*case.pages, **case.stored)
        return {"keys": _bits(np.asarray(keys)), "values": _bits(np.asarray(values))}

    return f"gather: {name}", "gather_kv", run, (case.k_cache.dtype.name,)


def _copy(name: str, src: list[int], dst: list[int]) -> Row:
    """Return a probe of copy."""

    def run(backend: Any) -> Parts:
        rng = np.random.default_rng(240)
        pools = [rng.standard_normal(shape).astype(np.float32) for shape in ((6, 2, 3), (6, 4), (6,))]
        backend.copy_frames(pools, np.array(src, np.int32), np.array(dst, np.int32))
        return {f"pool {at}": _bits(pool) for at, pool in enumerate(pools)}

    return f"copy: {name}", "copy_frames", run, ("float32",)


def _merge(name: str, shift: float = 0.0, count: int = 2, empty: tuple[int, ...] = ()) -> Row:
    """Return a probe of merge."""

    def run(backend: Any) -> Parts:
        rng = np.random.default_rng(250)
        out = rng.standard_normal((count, 3, 2, 4)).astype(np.float32)
        lse = (shift + rng.standard_normal((count, 3, 2))).astype(np.float32)
        for at in empty:
            out[at], lse[at] = 0, -np.inf
        with np.errstate(all="ignore"):
            state = backend.merge_states(out, lse)
        return {"out": np.asarray(state[0]), "lse": np.asarray(state[1])}

    return f"merge: {name}", "merge_states", run, ("float32",)


def move_probes() -> list[Row]:
    """Make all probes of movement and merging.

    Returns
    -------
    list of tuple
        Name, operation, run, types of the caches.
    """
    plain = KVFormat("float32")
    rows = [_append(name, slots, plain, 1.0, at) for at, (name, slots) in enumerate(_SLOTS.items())]
    for at, (name, form) in enumerate(_STORED.items()):
        rows.append(_append(name, [9, 2, -1, 5, 0], form, 2.0, 10 + at))
        if form.kind in ("e4m3fn", "e5m2", "int8") and not form.computed:
            rows.append(_append(f"{name}, out of range", [9, 2, 7, 5, 0], form, 2.0, 30 + at, large=True))
    rows += [_gather("float32"), _gather("pages of 1", page_size=1), _gather("another v_head_dim", v_head_dim=5)]
    rows += [_gather(name, form=form) for name, form in _STORED.items() if form.granularity]
    rows += [_copy("frames", [1, 1, 3], [4, 0, 5]), _copy("one frame", [2], [0]), _copy("two frames", [0, 5], [3, 1])]
    rows += [
        _merge("two states"),
        _merge("five states", count=5),
        _merge("one is empty", empty=(1,)),
        _merge("all are empty", empty=(0, 1)),
        _merge("three are empty", count=3, empty=(0, 1, 2)),
        _merge("large lse", shift=300.0),
        _merge("lse far below zero", shift=-300.0, count=3),
    ]
    return rows
