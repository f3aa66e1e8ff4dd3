"""Number formats and the constants that bounds are made of."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from pagedref import numerics


@pytest.mark.parametrize(("dtype", "power"), [("float64", -53), ("float32", -24), ("float16", -11)])
def test_unit_roundoff(dtype: str, power: int) -> None:
    assert numerics.unit_roundoff(dtype) == 2.0**power
    one = np.ones(1, dtype)
    assert one + one.dtype.type(2.0**power) == one, "half a unit rounds to even"


def test_gamma_covers_a_long_sum() -> None:
    rng = np.random.default_rng(0)
    values = rng.random(10_000).astype(np.float32)
    total = np.float32(0)
    for value in values:
        total += value
    exact = math.fsum(values.tolist())
    assert abs(float(total) - exact) <= numerics.gamma(len(values) - 1, "float32") * exact
    assert numerics.gamma(2**24, "float32") == math.inf


def test_stated_accuracy_of_elementary_functions_holds_here() -> None:
    """EXP_ULPS and the others are what the bounds assume of this machine's NumPy."""
    points = np.concatenate([np.linspace(-87, 88, 200_001), np.geomspace(1e-30, 80, 50_001)]).astype(np.float32)
    for function, exact, ulps in (
        (np.exp, np.exp(points.astype(np.float64)), numerics.EXP_ULPS),
        (np.tanh, np.tanh(points.astype(np.float64)), numerics.TANH_ULPS),
        (np.log, None, numerics.LOG_ULPS),
    ):
        inputs = np.abs(points) + np.float32(1e-30) if exact is None else points
        expected = np.log(inputs.astype(np.float64)) if exact is None else exact
        error = np.abs(function(inputs).astype(np.float64) - expected)
        unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
        assert (error <= ulps * np.maximum(unit, np.finfo(np.float32).tiny)).all(), function.__name__


def test_bfloat16_widens_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = numerics.widen_bfloat16(bits)
    reference = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(wide, reference, equal_nan=True)
    assert np.array_equal((wide.view(np.uint32) >> 16).astype(np.uint16), bits), "the way back is exact"


def test_accumulator() -> None:
    assert numerics.accumulator("float64") == np.float64
    assert numerics.accumulator(np.float16) == np.float32
    assert numerics.tiny("float32") == 2.0**-149
