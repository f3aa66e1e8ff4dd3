"""Cases of quantised caches: P32, P33, P35."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pagedref.conformance.agreement import assert_exact
from pagedref.conformance.fault_cases._tools import same
from pagedref.kv_format import KVFormat

__all__ = ["CASES"]

_COMPUTED = (
    *(KVFormat(kind, "slot_head") for kind in ("int8", "int4", "e4m3fn", "e5m2")),
    *(KVFormat(kind, "group", group_size=4) for kind in ("int8", "int4", "e4m3fn")),
    *(KVFormat(kind, "slot_head", zero_point=True) for kind in ("int8", "int4")),
    *(KVFormat(kind, "group", group_size=2, zero_point=True) for kind in ("int8", "int4")),
)


def _cache(form: KVFormat, frames: int, page_size: int, dim: int) -> dict[str, Any]:
    """Return caches and metadata of a computed format, filled with junk."""
    made: dict[str, Any] = {}
    for side in "kv":
        made[f"{side}_cache"] = np.full((frames, page_size, 1, form.stored_dim(dim)), 0x77, np.uint8).view(form.dtype)
        shape = form.scale_shape(frames, page_size, 1, dim) or ()
        made[f"{side}_scale"] = np.full(shape, np.nan, np.float32)
        if form.zero_point:
            made[f"{side}_zero"] = np.full(shape, np.nan, np.float32)
    return made


def _write_and_read(backend: Any, form: KVFormat, rows: Any, slots: list[int]) -> tuple[Any, dict[str, Any]]:
    """Append rows to slots of a junk cache of pages of 4, and gather those slots in order."""
    made = _cache(form, 3, 4, rows.shape[-1])
    caches = made.pop("k_cache"), made.pop("v_cache")
    backend.append_kv(rows, rows, *caches, np.array(slots), kv_format=form, **made)
    live = [slot for slot in slots if slot >= 0]
    pages = np.array([0, 1], np.int32), np.array([live[0] // 4], np.int32), np.array([len(live)], np.int32)
    keys, values = backend.gather_kv(*caches, *pages, kv_format=form, **made)
    assert_exact(np.asarray(keys), np.asarray(values), f"{form}: keys and values alike")
    return np.asarray(keys), made


def p32(backend: Any) -> None:
    """A row or group without spread comes back exactly, and all metadata is finite in its own type (S17)."""
    for form in _COMPUTED:
        for constant in (2.5, -7.25, 0.0, 1e-3, 6e4, 1e30):
            rows = np.full((3, 1, 4), constant, np.float32)
            back, made = _write_and_read(backend, form, rows, [4, 5, 6])
            assert_exact(back, np.full_like(rows, constant) + 0, f"{form}: constant {constant}")
            for name, array in made.items():
                assert np.isfinite(array[1, :3]).all(), f"{form}: {name} of constant {constant} is not finite"
                assert np.isnan(array[0]).all(), f"{form}: {name} of an unwritten frame was written"


def p33(backend: Any) -> None:
    """Writing saturates before the cast: +-448 and +-57344 at the ends, NaN stays, integers have none (S16)."""
    numbers = [448.0, 464.0, 465.0, 1000.0, -1000.0, np.inf, -np.inf, np.nan, 0.4375, 57_344.0, 61_440.0, -1e9]
    ends = {
        "e4m3fn": [448, 448, 448, 448, -448, 448, -448, np.nan, 0.4375, 448, 448, -448],
        "e5m2": [448, 448, 448, 1024, -1024, 57344, -57344, np.nan, 0.4375, 57344, 57344, -57344],
        "int8": [127, 127, 127, 127, -127, 127, -127, 0, 0, 127, 127, -127],
    }
    types = {"e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "int8": np.int8}
    rows = np.array(numbers, np.float32).reshape(-1, 1, 1)
    for kind, expected in ends.items():
        scales = [{"k_scale": 1.0, "v_scale": 1.0}] if kind == "int8" else [{}, {"k_scale": 1.0, "v_scale": 1.0}]
        for scale in scales:
            caches = [np.zeros((3, 4, 1, 1), types[kind]) for _ in range(2)]
            backend.append_kv(rows, rows, *caches, np.arange(12), **scale)
            for name, cache in zip(("keys", "values"), caches, strict=True):
                want = np.array(expected, np.float32).astype(types[kind])
                assert_exact(cache.ravel(), want, f"{name} in {kind}, {scale or 'no scale'}")
    caches = [np.zeros((3, 4, 1, 1), types["e4m3fn"]) for _ in range(2)]
    backend.append_kv(rows, rows, *caches, np.arange(12), k_scale=2.0, v_scale=0.25)
    read = caches[0].astype(np.float32).ravel()[:7].tolist(), caches[1].astype(np.float32).ravel()[:3].tolist()
    same(read[0], [224, 224, 240, 448, -448, 448, -448], "keys of scale 2")  # 232 is a tie, to even
    same(read[1], [448, 448, 448], "values of scale 1/4")


def p35(backend: Any) -> None:
    """A scale is chosen from live numbers: no wider buffer, no skipped rows, no unwritten end of a page (S17)."""
    live = np.array([[0.5, 1.0, -0.25, 0.125]], np.float32).reshape(1, 1, 4)
    for form in _COMPUTED:
        alone, metadata = _write_and_read(backend, form, live, [4])
        wide = np.full((3, 1, 8), 1e4, np.float32)
        wide[1, :, :4] = live[0]
        back, made = _write_and_read(backend, form, wide[:, :, :4], [-1, 4, -1])
        assert_exact(back, alone, f"{form}: a row in a wider buffer, between rows that are skipped")
        for name, array in made.items():
            assert_exact(array[1, 0], metadata[name][1, 0], f"{form}: {name}")
            assert np.isnan(array[1, 1:]).all(), f"{form}: {name} of slots that were not written"
        if not form.zero_point and form.granularity == "slot_head":
            largest = {"int8": 127, "int4": 7, "e4m3fn": 448, "e5m2": 57344}[form.kind]
            same(metadata["k_scale"][1, 0].tolist(), [np.float32(1) / np.float32(largest)], f"{form}: scale from 1.0")


CASES = {"P32": p32, "P33": p33, "P35": p35}
"""The cases by number; each takes a backend."""
