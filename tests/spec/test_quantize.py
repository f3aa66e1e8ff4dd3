"""Rounding to stored numbers, code by code, against `ml_dtypes` and plain arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pagedref.attention.quantize import choose_scales, dequantize, pack_int4, quantize, unpack_int4, widen
from pagedref.kv_format import KINDS, KVFormat

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(("kind", "bits"), [("e4m3fn", 8), ("e5m2", 8), ("bfloat16", 16), ("float16", 16)])
def test_every_code_widens_exactly(kind: str, bits: int) -> None:
    form = KVFormat(kind)
    codes = np.arange(1 << bits, dtype=f"uint{bits}").view(form.dtype)
    wide, reference = widen(codes, form), codes.astype(np.float32)
    assert wide.dtype == np.float32
    assert np.array_equal(wide, reference, equal_nan=True)
    assert np.array_equal(np.signbit(wide[~np.isnan(wide)]), np.signbit(reference[~np.isnan(reference)]))


def test_every_nibble() -> None:
    packed = np.arange(256, dtype=np.uint8)
    unsigned = unpack_int4(packed, signed=False)
    assert np.array_equal(unsigned.reshape(-1, 2), np.stack([packed % 16, packed // 16], axis=1))
    signed = unpack_int4(packed, signed=True)
    assert np.array_equal(signed, np.where(unsigned > 7, unsigned - 16, unsigned))
    assert np.array_equal(pack_int4(unsigned.astype(np.uint8).reshape(256, 2)), packed[:, None])


@pytest.mark.parametrize(
    ("kind", "cases"),
    [
        ("e4m3fn", {448: 448, 464: 448, 465: 448, -1000: -448, np.inf: 448, -np.inf: -448, 0.0009765625: 0}),
        ("e5m2", {57344: 57344, 61440: 57344, 1e9: 57344, -np.inf: -57344}),
    ],
)
def test_p33_saturation(kind: str, cases: dict[float, float]) -> None:
    """P33: clamped before the cast, so that nothing finite or infinite becomes NaN; NaN stays."""
    stored = quantize(np.array([list(cases)], np.float32), KVFormat(kind)).stored
    assert stored.astype(np.float32).ravel().tolist() == list(cases.values())
    assert np.isnan(quantize(np.array([np.nan]), KVFormat(kind)).stored.astype(np.float32)).all()
    naive = np.array([465.0], np.float32).astype(ml_dtypes.float8_e4m3fn)
    assert np.isnan(naive.astype(np.float32)).all(), "the cast alone is the fault"


def test_integers_saturate_and_have_no_nan() -> None:
    row = np.array([[0.4, 0.5, 1.5, 2.5, -0.5, 126.6, 127.6, -128.0, np.inf, -np.inf, np.nan, 0.0]], np.float32)
    stored = quantize(row, KVFormat("int8", "tensor"), np.float32(1)).stored
    assert stored.ravel().tolist() == [0, 0, 2, 2, 0, 127, 127, -127, 127, -127, 0, 0], "nearest even, +-127"
    nibbles = quantize(row, KVFormat("int4", "tensor"), np.float32(1)).stored
    assert unpack_int4(nibbles, signed=True).ravel().tolist() == [0, 0, 2, 2, 0, 7, 7, -8, 7, -8, 0, 0]


@settings(deadline=None, max_examples=200)
@given(
    row=hnp.arrays(np.float32, (3, 4), elements=floats),
    form=st.sampled_from(
        [
            *(KVFormat(kind, "slot_head") for kind in ("e4m3fn", "e5m2", "int8", "int4")),
            *(KVFormat(kind, "group", group_size=2) for kind in ("int8", "int4")),
            *(KVFormat(kind, "slot_head", zero_point=True) for kind in ("int8", "int4")),
            *(KVFormat(kind, "group", group_size=2, zero_point=True) for kind in ("int8", "int4")),
        ]
    ),
)
def test_any_row_comes_back_within_half_a_step(row: Any, form: KVFormat) -> None:
    """S17: all metadata finite, live infinities saturate, and finite values err by at most half a step of the grid."""
    stored, scale, zero = quantize(row, form)
    assert scale is not None and np.isfinite(scale).all() and (scale > 0).all()
    assert zero is None or (np.isfinite(zero).all() and (zero == np.rint(zero)).all())
    back = dequantize(stored, form, scale, zero)
    channels = form.group_size or 4
    step = np.repeat(scale.reshape(3, -1), channels, axis=-1).astype(np.float64)
    finite = np.isfinite(row)
    with np.errstate(invalid="ignore"):
        error = np.abs(back.astype(np.float64) - row.astype(np.float64))
    largest = np.where(finite, np.abs(row.astype(np.float64)), 0).max(initial=0)
    slack = 1e-6 * largest + 1e-36
    if form.integer:
        assert (error[finite] <= (0.5001 * step + (4e-7 * largest if form.zero_point else 0))[finite] + slack).all()
    else:
        digits = {"e4m3fn": 2.0**-4, "e5m2": 2.0**-3}[form.kind]
        smallest = {"e4m3fn": 2.0**-10, "e5m2": 2.0**-17}[form.kind]
        assert (error[finite] <= (digits * np.abs(row) + 1.01 * smallest * step)[finite] + slack).all()
    assert not np.isnan(back[~np.isnan(row)]).any()


@pytest.mark.parametrize("constant", [2.5, -7.25, 0.0, 1e-30, 3e38])
@pytest.mark.parametrize("kind", ["e4m3fn", "e5m2", "int8", "int4"])
def test_p32_a_constant_comes_back_exactly(kind: str, constant: float) -> None:
    """P32: no range of 0 becomes an infinite inverse; 2.5 comes back as 2.5, with and without zero point."""
    forms = [KVFormat(kind, "slot_head"), KVFormat(kind, "group", group_size=4)]
    forms += [KVFormat(kind, "slot_head", zero_point=True)] if KINDS[kind].integer else []
    row = np.full((2, 8), constant, np.float32)
    for form in forms:
        stored, scale, zero = quantize(row, form)
        assert (dequantize(stored, form, scale, zero) == row).all(), form
        assert scale is not None and (scale == (abs(row[0, 0]) or 1)).all()


def test_p35_padding_takes_no_part_in_a_range() -> None:
    """P35: a scale is chosen from the live channels that are given, and nothing else is looked at."""
    live = np.array([[0.5, 1.0]], np.float32)
    wide = np.concatenate([live, np.full((1, 2), 1e4, np.float32)], axis=1)
    form = KVFormat("int8", "slot_head")
    assert choose_scales(live, form)[0].tolist() == [np.float32(1) / np.float32(127)]
    assert choose_scales(wide, form)[0].tolist() != choose_scales(live, form)[0].tolist(), "junk would show"


def test_one_division_and_one_product() -> None:
    """S16: float32 throughout, so a kernel can do the same; the inverse times x would round differently."""
    rng = np.random.default_rng(0)
    values, scale = rng.standard_normal(10_000).astype(np.float32) * 100, np.float32(0.3)
    stored = quantize(values, KVFormat("int8", "tensor"), scale).stored
    expected = [int(np.clip(np.rint(np.float32(x) / scale), -127, 127)) for x in values]
    assert stored.tolist() == expected
    assert np.array_equal(dequantize(stored, KVFormat("int8", "tensor"), scale), stored.astype(np.float32) * scale)
