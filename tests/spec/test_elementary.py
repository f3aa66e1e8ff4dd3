"""Our own ``exp``, ``log`` and ``tanh``: accuracy over float32 inputs, special values, stored bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pagedref.attention.elementary import ordered_exp, ordered_log, ordered_lse, ordered_tanh, select
from pagedref.conformance import assert_exact

Array = Any
EXHAUSTIVE = pytest.mark.skipif(
    not os.environ.get("PAGEDREF_EXHAUSTIVE"), reason="minutes: tox -e exhaustive sets PAGEDREF_EXHAUSTIVE"
)
STEP = 9973  # prime, so that a sample meets every pattern of low bits
RUN = 1 << 21

# function, float64 function, first and last positive input, signs, ulp that its docstring states
RANGES = [
    pytest.param(ordered_exp, np.exp, 1e-45, 89.0, 1, 0.69, id="exp of positive numbers"),
    pytest.param(ordered_exp, np.exp, 1e-45, 104.5, -1, 0.77, id="exp of negative numbers"),
    pytest.param(ordered_log, np.log, 1e-45, np.finfo(np.float32).max, 1, 0.9, id="log"),
    pytest.param(ordered_tanh, np.tanh, 1e-45, 30.0, 1, 1.5, id="tanh of positive numbers"),
    pytest.param(ordered_tanh, np.tanh, 1e-45, 30.0, -1, 1.5, id="tanh of negative numbers"),
]


def bits(number: float) -> int:
    return int(np.float32(number).view(np.int32))


def ulps(result: Array, exact: Array) -> Array:
    """Return the error in units of the last place of float32 where the exact value lies, subnormal ones included."""
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 24, -149))
    return np.abs(result.astype(np.float64) - exact) / unit


def worst(function: Any, exact: Any, first: float, last: float, sign: int, step: int) -> tuple[float, float, int]:
    """Return the largest error in ulp, where it is, and how many inputs were taken."""
    record, place, count = 0.0, 0.0, 0
    with np.errstate(all="ignore"):
        for start in range(bits(first), bits(last) + 1, RUN * step):
            patterns = np.arange(start, min(start + RUN * step, bits(last) + 1), step, dtype=np.int64)
            x = patterns.astype(np.int32).view(np.float32) * np.float32(sign)
            expected = exact(x.astype(np.float64))
            result = function(x)
            beyond = expected > np.finfo(np.float32).max  # rounds to infinity, or to the largest number
            assert np.isinf(result[expected > 2.0**128 * (1 - 2.0**-25)]).all()
            error = ulps(np.where(beyond, 0, result), np.where(beyond, 0, expected))
            at = int(np.argmax(error))
            assert error[at] == error[at], f"not a number at {x[at]!r}"
            count += len(x)
            if error[at] > record:
                record, place = float(error[at]), float(x[at])
    return record, place, count


@pytest.mark.parametrize(("function", "exact", "first", "last", "sign", "limit"), RANGES)
def test_sample(function: Any, exact: Any, first: float, last: float, sign: int, limit: float) -> None:
    error, place, _ = worst(function, exact, first, last, sign, STEP)
    assert error <= limit, f"{error} ulp at {place!r}"


@EXHAUSTIVE
@pytest.mark.parametrize(("function", "exact", "first", "last", "sign", "limit"), RANGES)
def test_every_input(
    function: Any, exact: Any, first: float, last: float, sign: int, limit: float, record_property: Any
) -> None:
    """All float32 inputs for which there is something to compute, one by one, against float64."""
    error, place, count = worst(function, exact, first, last, sign, 1)
    print(f"{function.__name__}: {count} inputs, at most {error:.4f} ulp, at {place!r}")
    assert count == bits(last) - bits(first) + 1
    assert error <= limit, f"{error} ulp at {place!r}"


def special(function: Callable[..., Array], inputs: list[float], expected: list[float]) -> None:
    with np.errstate(all="ignore"):
        result = function(np.array(inputs, np.float32))
    assert np.array_equal(result, np.array(expected, np.float32), equal_nan=True), result
    assert np.array_equal(np.signbit(result[result == 0]), np.signbit(np.array(expected)[np.array(expected) == 0]))


def test_special_values() -> None:
    inf, nan, tiny = float("inf"), float("nan"), 2.0**-149
    special(ordered_exp, [0, -0.0, inf, -inf, nan, -nan, 1e38, -1e38], [1, 1, inf, 0, nan, nan, inf, 0])
    special(ordered_exp, [88.72283, 88.72284, -103.97, -103.98], [np.float32(3.4027985e38), inf, tiny, 0])
    special(ordered_log, [1, 0, -0.0, inf, -inf, nan, -1, -tiny], [0, -inf, -inf, inf, nan, nan, nan, nan])
    special(ordered_tanh, [0, -0.0, inf, -inf, nan, tiny, 700, -88], [0, -0.0, 1, -1, nan, tiny, 1, -1])


def test_around_overflow_and_underflow() -> None:
    """Inputs one by one around the ends of the range of ``exp``: inf, subnormal numbers and 0 begin where they must."""
    for end in (88.72284, -87.33655, -103.278, -103.972):
        x = (np.arange(-4000, 4001, dtype=np.int32) + np.float32(end).view(np.int32)).view(np.float32)
        with np.errstate(all="ignore"):
            exact, result = np.exp(x.astype(np.float64)), ordered_exp(x)
        over = exact >= 2.0**128 * (1 - 2.0**-25)
        assert np.isinf(result[over]).all() and np.isfinite(result[~over]).all()
        assert (ulps(result[~over], exact[~over]) <= 0.77).all()


def test_powers_are_monotonic_where_it_matters() -> None:
    """``exp`` of neighbouring numbers never goes down, so a larger score never has a smaller weight."""
    for start in (-90.0, -20.0, -1.0, -0.3466, 0.3465, 1.0, 80.0):
        x = (np.arange(200_001, dtype=np.int32) + np.float32(start).view(np.int32)).view(np.float32)
        result = ordered_exp(np.sort(x))
        assert (np.diff(result) >= 0).all()


def test_lse_is_rounded_nearly_once() -> None:
    rng = np.random.default_rng(0)
    top = (rng.standard_normal(200_000) * 10.0 ** rng.integers(-3, 4, 200_000)).astype(np.float32)
    total = np.exp(rng.uniform(0, 12, 200_000)).astype(np.float32)
    logarithm = np.log(total.astype(np.float64))
    exact = top + logarithm
    size = np.maximum(np.maximum(np.abs(exact), np.abs(top)), logarithm).astype(np.float32)
    assert (np.abs(ordered_lse(top, total) - exact) <= 0.9 * np.spacing(size)).all()
    results = ordered_lse(top, total), top + ordered_log(total)
    once, twice = (np.abs(lse - exact) / np.spacing(size) for lse in results)
    assert once.mean() < 0.9 * twice.mean()


def test_lse_of_no_weight() -> None:
    top = np.array([-np.inf, -np.inf, 3, np.inf, np.nan], np.float32)
    total = np.array([0, np.nan, np.nan, np.nan, np.nan], np.float32)
    with np.errstate(all="ignore"):
        assert np.array_equal(ordered_lse(top, total), np.float32([-np.inf, *[np.nan] * 4]), equal_nan=True)


def test_scalars_and_shapes() -> None:
    """A kernel works on single numbers: the same functions take them, with the same bits."""
    x = np.random.default_rng(1).uniform(0.01, 20, (3, 5, 7)).astype(np.float32)
    for function in (ordered_exp, ordered_log, ordered_tanh):
        whole = function(x)
        assert whole.shape == x.shape and whole.dtype == np.float32
        single = [function(number) for number in x.ravel()]
        assert_exact(np.array(single, np.float32).reshape(x.shape), whole, function.__name__)


def test_select_never_touches_the_other() -> None:
    nan = np.full(3, np.nan, np.float32)
    assert_exact(select(np.array([True] * 3), np.float32([1, -0.0, 3]), nan), np.float32([1, -0.0, 3]))


def test_bits_are_those_of_every_machine() -> None:
    """Stored bits: a machine, a compiler or a NumPy that fuses or reorders anything fails here."""
    x = np.float32([-103.5, -87.4, -10.1, -0.7, 1e-3, 0.3, 2.5, 88.7])
    stored = {
        ordered_exp: STORED_EXP,
        ordered_log: STORED_LOG,
        ordered_tanh: STORED_TANH,
    }
    for function, expected in stored.items():
        with np.errstate(over="ignore"):
            result = function(np.abs(x) if function is ordered_log else x)
        assert [f"{pattern:08x}" for pattern in result.view(np.uint32).tolist()] == expected.split(), function.__name__


STORED_EXP = "00000001 00782140 382c4cd2 3efe406e 3f8020c9 3facc82c 4142eb7f 7f7a37fc"
STORED_LOG = "4094775f 408f0e4c 40140095 beb69e1a c0dd0c55 bf9a1bc8 3f6a9208 408f8740"
STORED_TANH = "bf800000 bf800000 bf800000 bf1ab7d9 3a83126c 3e9526ee 3f7c92c1 3f800000"
