"""Rows of integers: their checks, and the small index patterns that ragged batches are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError

__all__ = ["concat_ranges", "indptr_from_lens", "int_array", "rows_from_indptr"]

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

INT32_MAX = 2**31 - 1


def int_array(
    function: str,
    name: str,
    numbers: Any,
    *,
    ndim: int = 1,
    low: int | None = None,
    high: int | None = None,
    scalar: bool = False,
) -> npt.NDArray[Any]:
    """Return `numbers` as an integer array of a known number of axes and range, or say what is wrong with it.

    Parameters
    ----------
    function, name : str
        What the error text names.
    numbers : array_like of int
        Any integer dtype; an empty list counts as int64. Booleans and floats are refused.
    ndim : int
        Axes that it must have.
    low, high : int, optional
        Smallest and largest value allowed.
    scalar : bool
        Whether a single integer counts as an array of one.

    Returns
    -------
    integer array
        `numbers` itself where it is an array already, never a copy made for the sake of the dtype.

    Raises
    ------
    ContractError
        Wrong dtype, number of axes, or range.

    Examples
    --------
    >>> int_array("f", "page", [1, 2], low=0).tolist()
    [1, 2]
    >>> int_array("f", "page", [1, -2], low=0)
    Traceback (most recent call last):
    pagedref.errors.ContractError: f: page is out of range, got -2, need at least 0
    """
    try:
        array = np.asarray(numbers)
    except (TypeError, ValueError, OverflowError) as error:
        raise ContractError(f"{function}: {name} is no array, got {numbers!r:.60}, need integers") from error
    if array.size == 0 and not isinstance(numbers, np.ndarray):
        array = array.astype(np.int64)
    if scalar and array.ndim == 0:
        array = array.reshape(1)
    if array.dtype.kind not in "iu":
        raise ContractError(f"{function}: {name} has the wrong dtype, got {array.dtype}, need integers")
    if array.ndim != ndim:
        raise ContractError(f"{function}: {name} has the wrong shape, got {array.shape}, need {ndim} axes")
    if array.size and low is not None and (smallest := int(array.min())) < low:
        raise ContractError(f"{function}: {name} is out of range, got {smallest}, need at least {low}")
    if array.size and high is not None and (largest := int(array.max())) > high:
        raise ContractError(f"{function}: {name} is out of range, got {largest}, need at most {high}")
    return array


def checked_page_size(function: str, page_size: Any) -> int:
    """Return a checked page size (any integer >= 1, S19)."""
    if isinstance(page_size, bool) or not isinstance(page_size, int | np.integer) or page_size < 1:
        raise ContractError(f"{function}: page_size is wrong, got {page_size!r}, need an integer >= 1")
    return int(page_size)


def narrowed(function: str, name: str, array: Int64Array) -> Int32Array:
    """Narrow to the interchange width, refusing what does not fit."""
    if array.size and int(array.max()) > INT32_MAX:
        largest = int(array.max())
        raise ContractError(f"{function}: {name} does not fit 32 bits, got {largest}, need at most {INT32_MAX}")
    return array.astype(np.int32)


def checked_indptr(function: str, name: str, indptr: Any) -> Int64Array:
    """Return a checked indptr in 64 bits: not empty, starts with 0, never falls."""
    array: Int64Array = int_array(function, name, indptr, low=0).astype(np.int64)
    if array.size == 0 or array[0] != 0:
        raise ContractError(f"{function}: {name} starts wrongly, got {array[:1].tolist()}, need a first entry of 0")
    falls = np.flatnonzero(np.diff(array) < 0)
    if falls.size:
        before, after = array[falls[0]], array[falls[0] + 1]
        raise ContractError(f"{function}: {name} falls after entry {falls[0]}, got {after}, need at least {before}")
    return array


def concat_ranges(starts: Any, counts: Any) -> Int64Array:
    """Return the ranges ``starts[i], ..., starts[i] + counts[i] - 1``, one after the other.

    Parameters
    ----------
    starts : integer array (n,)
        First value of each range.
    counts : integer array (n,)
        Length of each range, >= 0.

    Returns
    -------
    int64 array (sum of counts,)

    Examples
    --------
    >>> concat_ranges([5, 9, 20], [2, 0, 3]).tolist()
    [5, 6, 20, 21, 22]
    """
    lengths = np.asarray(counts, dtype=np.int64)
    if lengths.size and lengths.min() == lengths.max() == 1:
        return np.array(starts, dtype=np.int64)  # a decode step
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    shifts: Int64Array = np.asarray(starts, dtype=np.int64) - (ends - lengths)
    return np.arange(total, dtype=np.int64) + np.repeat(shifts, lengths)


def indptr_from_lens(lens: Any) -> Int32Array:
    """Return the indptr of rows of the given lengths.

    Parameters
    ----------
    lens : integer array (n,)
        Length of each row, >= 0.

    Returns
    -------
    int32 array (n + 1,)
        0, then the running sums.

    Raises
    ------
    ContractError
        A negative length, or a total that does not fit 32 bits.

    Examples
    --------
    >>> indptr_from_lens([3, 0, 2]).tolist()
    [0, 3, 3, 5]
    """
    lengths = int_array("indptr_from_lens", "lens", lens, low=0)
    indptr = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=indptr[1:])
    return narrowed("indptr_from_lens", "sum of lens", indptr)


def rows_from_indptr(indptr: Any) -> Int64Array:
    """Return the row that each element belongs to.

    Parameters
    ----------
    indptr : integer array (n + 1,)
        Starts with 0, never falls.

    Returns
    -------
    int64 array (indptr[-1],)

    Examples
    --------
    >>> rows_from_indptr([0, 3, 3, 5]).tolist()
    [0, 0, 0, 2, 2]
    """
    counts = np.diff(checked_indptr("rows_from_indptr", "indptr", indptr))
    return np.repeat(np.arange(counts.size, dtype=np.int64), counts)
