"""How results are compared: by agreement class, never by a tolerance that a test brings along."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.dense import DenseState

__all__ = ["NotRefused", "OtherRefusal", "assert_bound", "assert_exact", "assert_state", "bound_fraction"]

Array = npt.NDArray[Any]


class NotRefused(AssertionError):
    """Wrong input was accepted."""


class OtherRefusal(AssertionError):
    """Wrong input was refused with another class or text than those of the specification."""


def assert_exact(actual: Array, expected: Array, what: str = "result") -> None:
    """Demand equal bits (class EXACT).

    Parameters
    ----------
    actual, expected : arrays
        Any numbers; NaNs are equal if their bits are.
    what : str
        Named in the message.

    Raises
    ------
    AssertionError
        Says how many elements differ and where the first one is.
    """
    actual, expected = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise AssertionError(
            f"{what}: {actual.dtype}{actual.shape} is not of the form {expected.dtype}{expected.shape}"
        )
    unsigned = np.dtype(f"u{actual.itemsize}")
    differ = actual.view(unsigned) != expected.view(unsigned)
    if differ.any():
        first = tuple(int(index[0]) for index in np.nonzero(differ))
        raise AssertionError(
            f"{what}: {int(differ.sum())} of {differ.size} elements differ in their bits, first at {first}: "
            f"{actual[first]!r} instead of {expected[first]!r}"
        )


def bound_fraction(actual: Array, expected: Array, bound: Array) -> float:
    """Return the largest error as a fraction of its bound; infinite where one that must be exact is not.

    Parameters
    ----------
    actual : array
        Result of a backend.
    expected, bound : arrays of float64
        Result of the oracle and its bound. Infinities, NaN positions and zeros of bound 0 must be met exactly.

    Returns
    -------
    float
        At most 1 if all is well.

    Examples
    --------
    >>> bound_fraction(np.array([1.5, -np.inf]), np.array([1.0, -np.inf]), np.array([1.0, 0.0]))
    0.5
    """
    if actual.shape != expected.shape:
        return float("inf")
    wide = actual.astype(np.float64)
    finite = np.isfinite(expected)
    same = np.array_equal(np.isnan(wide), np.isnan(expected)) and np.array_equal(
        wide[np.isinf(expected)], expected[np.isinf(expected)]
    )
    if not same or not np.isfinite(wide[finite]).all():
        return float("inf")
    error = np.abs(wide[finite] - expected[finite])
    limit = bound[finite]
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = np.where(error == 0, 0.0, error / limit)
    return float(fraction.max(initial=0.0))


def assert_bound(actual: Array, expected: Array, bound: Array | None, what: str = "result") -> None:
    """Demand an error within the bound (class BOUND).

    Parameters
    ----------
    actual, expected, bound : arrays
        As in :func:`bound_fraction`; no bound is an error of the test.
    what : str
        Named in the message.

    Raises
    ------
    AssertionError
        Says how large the error is in parts of the bound.
    """
    if bound is None:
        raise AssertionError(f"{what}: the oracle was not asked for its bound")
    fraction = bound_fraction(actual, expected, bound)
    if fraction > 1:
        raise AssertionError(f"{what}: error is {fraction:.3g} times its bound (shape {actual.shape})")


def assert_state(state: Any, expected: DenseState, what: str = "state") -> None:
    """Demand that output and lse agree with the oracle within its bound.

    Parameters
    ----------
    state : AttentionState or pair
        Output and lse of a backend.
    expected : DenseState
        Of the oracle, with bounds.
    what : str
        Named in the message.

    Raises
    ------
    AssertionError
        Names which of the two is off, and how far.
    """
    out, lse = (np.asarray(part) for part in state)
    assert_bound(lse, expected.lse, expected.lse_bound, f"{what}: lse")
    assert_bound(out, expected.out, expected.out_bound, f"{what}: out")
