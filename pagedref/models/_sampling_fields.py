"""Checks of the fields of SamplingParams: each returns the value in its one form, or refuses it in one line."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pagedref.models.fields import refuse

Pairs = tuple[tuple[int, float], ...]

_LARGEST_TOKEN = 2**31 - 1


def whole(name: str, value: Any, least: int, most: int) -> int:
    """Return an integer within limits; NumPy's count, truth values do not.

    Parameters
    ----------
    name : str
        Of the field.
    value : object
        As given.
    least, most : number
        Limits, both allowed.

    Returns
    -------
    int

    Raises
    ------
    ContractError
        It is none.
    """
    need = f"{least} .. {most}"
    try:
        number = operator.index(value)
    except TypeError:
        refuse("SamplingParams", name, "is no integer", value, need)
    if isinstance(value, bool | np.bool_) or not least <= number <= most:
        refuse("SamplingParams", name, "is out of range", value, need)
    return number


def real(name: str, value: Any, least: float, most: float) -> float:
    """Return a finite number within limits.

    Parameters
    ----------
    name : str
        Of the field.
    value : object
        As given.
    least, most : number
        Limits, both allowed.

    Returns
    -------
    float

    Raises
    ------
    ContractError
        It is none.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        refuse("SamplingParams", name, "is no number", value, f"{least} .. {most}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and least <= number <= most):
        refuse("SamplingParams", name, "is out of range", value, f"a finite number in {least} .. {most}")
    return number


def flag(name: str, value: Any) -> bool:
    """Return a truth value.

    Parameters
    ----------
    name : str
        Of the field.
    value : object
        As given.

    Returns
    -------
    bool

    Raises
    ------
    ContractError
        It is none.
    """
    if not isinstance(value, bool):
        refuse("SamplingParams", name, "is no truth value", value, "True or False")
    return value


def tokens(name: str, value: Any) -> frozenset[int]:
    """Return a set of token ids.

    Parameters
    ----------
    name : str
        Of the field.
    value : object
        As given.

    Returns
    -------
    frozenset of int

    Raises
    ------
    ContractError
        It is none.
    """
    return frozenset(whole(name, token, 0, _LARGEST_TOKEN) for token in _items(name, value, "token ids"))


def pairs(name: str, value: Any) -> Pairs:
    """Return a mapping of token ids to numbers as pairs in order of the ids; ``-inf`` is a number here.

    Parameters
    ----------
    name : str
        Of the field.
    value : object
        As given.

    Returns
    -------
    tuple of (int, float)

    Raises
    ------
    ContractError
        It is none.
    """
    entries: dict[int, float] = {}
    given = value.items() if isinstance(value, Mapping) else value
    for entry in _items(name, given, "a mapping of token ids to numbers"):
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            refuse("SamplingParams", name, "holds no pair", entry, "token id and number")
        token = whole(name, entry[0], 0, _LARGEST_TOKEN)
        banned = isinstance(entry[1], float | np.floating) and entry[1] == -math.inf
        entries[token] = -math.inf if banned else real(name, entry[1], -math.inf, math.inf)
    return tuple(sorted(entries.items()))


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one text or several as a tuple, none of them empty.

    Parameters
    ----------
    name : str
        Of the field.
    value : object
        As given.

    Returns
    -------
    tuple of str

    Raises
    ------
    ContractError
        It is none.
    """
    several = (value,) if isinstance(value, str) else tuple(_items(name, value, "a text or several"))
    for text in several:
        if not isinstance(text, str) or not text:
            refuse("SamplingParams", name, "holds no text", text, "texts of one character or more")
    return several


def _items(name: str, value: Any, need: str) -> Iterable[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        refuse("SamplingParams", name, "is no collection", value, need)
    return value
