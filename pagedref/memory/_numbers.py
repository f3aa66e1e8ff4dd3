"""Checks of single numbers, made before anything changes (S26)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedref.errors import ContractError

__all__ = ["MAX_PAGE_SIZE", "MAX_SPAN", "whole_number"]

MAX_PAGE_SIZE = 2**31 - 1  # with at most 2**31 - 1 frames every slot fits 64 bits (S19)
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
    if isinstance(number, int | np.integer) and not isinstance(number, bool) and number >= low:
        if high is None or number <= high:
            return int(number)
    rule = f">= {low}" if high is None else f"in [{low}, {high}]"
    raise ContractError(f"{function}: {name} is wrong, got {number!r}, need an integer {rule}")
