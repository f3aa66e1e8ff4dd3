"""Checks of single numbers, made before anything changes (S26)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError

__all__ = ["MAX_PAGE_SIZE", "MAX_SLOTS", "MAX_SPAN", "any_array", "whole_number"]

MAX_PAGE_SIZE = 2**40
MAX_SLOTS = 2**63 - 1  # slots are int64 (S19)
MAX_SPAN = 2**62  # a window or a number of tokens beyond every sequence


def whole_number(function: str, name: str, number: Any, *, low: int = 0, high: int | None = None) -> int:
    """Return an integer of a known range, or say what is wrong with it.

    Parameters
    ----------
    function, name : str
        What the error text names.
    number : int
        A Python or NumPy integer; booleans and floats are refused.
    low, high : int, optional
        Smallest and largest value allowed.

    Returns
    -------
    int

    Examples
    --------
    >>> whole_number("evict", "n", -1)
    Traceback (most recent call last):
    pagedref.errors.ContractError: evict: n is wrong, got -1, need an integer >= 0
    """
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if whole and number >= low and (high is None or number <= high):
        return int(number)
    rule = f">= {low}" if high is None else f"in [{low}, {high}]"
    raise ContractError(f"{function}: {name} is wrong, got {number!r}, need an integer {rule}")


def any_array(function: str, name: str, given: Any) -> npt.NDArray[Any]:
    """Return an array, whatever its type, or say that it is none: lists of different lengths, for instance.

    Parameters
    ----------
    function, name : str
        What the error text names.
    given : array_like

    Returns
    -------
    array
    """
    try:
        return np.asarray(given)
    except (TypeError, ValueError, OverflowError) as error:
        text = f"{function}: {name} is no array, got {type(given).__name__}, need rows of one length"
        raise ContractError(text) from error
