"""Reading single entries of configuration files that nobody vouches for.

Every function returns a checked value or raises a :class:`~pagedref.errors.ContractError` of one line.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex

from pagedref.errors import ContractError

__all__ = ["JSON_LIMIT", "count", "read_json", "real", "reals", "refuse", "show", "token_ids", "whole"]

JSON_LIMIT = 256 << 20
"""Bytes of the largest JSON file that is read; a tokenizer of 256,000 tokens takes 35 million."""

_LIMIT = 2**31 - 1


def show(value: object) -> str:
    """Return a value as text for an error: one line, at most 80 characters; of a path, its end.

    Parameters
    ----------
    value : object
        Anything.

    Returns
    -------
    str

    Examples
    --------
    >>> show("a" * 500)[-5:], len(show(list(range(500))))
    ("aaa'…", 80)
    >>> show("/home/" + "a" * 500 + "/model.gguf")[-12:]
    "/model.gguf'"
    """
    path = isinstance(value, str) and "/" in value
    try:
        text = repr((value[-200:] if path else value[:200]) if isinstance(value, str) else value)
    except (RecursionError, ValueError):
        text = type(value).__name__
    if len(text) <= 80:
        return text
    if path:
        return "…'" + text[-78:]
    return text[:78] + "'…" if isinstance(value, str) else text[:79] + "…"


def refuse(function: str, argument: str, wrong: str, got: object, need: str) -> NoReturn:
    """Raise a ContractError in the one form of the house; `got` is shown shortened.

    Parameters
    ----------
    function, argument, wrong, need : str
        The parts of the text.
    got : object
        What was there instead.

    Raises
    ------
    ContractError
        Always: ``<function>: <argument> <what is wrong>, got <value>, need <rule>``.
    """
    raise ContractError(f"{function}: {argument} {wrong}, got {show(got)}, need {need}")


def whole(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a positive integer of a configuration; ``None`` counts as absent.

    Parameters
    ----------
    config : mapping
        The configuration.
    key : str
        Name of the entry.
    default : int, optional
        Taken where the entry is absent.

    Returns
    -------
    int
        1 to 2**31 - 1.

    Raises
    ------
    ContractError
        If the entry is absent without a default, is no integer, or lies outside 1 .. 2**31 - 1.

    Examples
    --------
    >>> whole({"layers": 3}, "layers"), whole({}, "layers", 1)
    (3, 1)
    """
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LIMIT:
        refuse("ModelConfig", key, "is missing" if value is None else "is no positive integer", value, f"1 .. {_LIMIT}")
    return value


def count(function: str, argument: str, value: object, *, most: int = _LIMIT) -> int:
    """Return a positive integer that was given as an argument; NumPy's integers count, truth values do not.

    Parameters
    ----------
    function, argument : str
        For the text of an error.
    value : object
        As given.
    most : int
        The largest that is allowed.

    Returns
    -------
    int

    Raises
    ------
    ContractError
        It is no integer, or outside 1 .. `most`.

    Examples
    --------
    >>> count("generate", "tokens_per_step", 512)
    512
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        refuse(function, argument, "is no integer", value, f"1 .. {most}")
    number = operator.index(value)
    if not 1 <= number <= most:
        refuse(function, argument, "is too small" if number < 1 else "is too large", number, f"1 .. {most}")
    return number


def real(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Return a positive finite number of a configuration; ``None`` counts as absent.

    Parameters
    ----------
    config : mapping
        The configuration.
    key : str
        Name of the entry.
    default : float, optional
        Taken where the entry is absent.

    Returns
    -------
    float
        1e-300 to 1e300.

    Raises
    ------
    ContractError
        If the entry is absent without a default, is no number, or is not positive and finite.
    """
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-300 <= value <= 1e300:
        refuse("ModelConfig", key, "is missing" if value is None else "is no positive number", value, "> 0 and finite")
    return float(value)


def reals(config: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """Return a list of positive finite numbers of a configuration.

    Parameters
    ----------
    config : mapping
        The configuration.
    key : str
        Name of the entry.

    Returns
    -------
    tuple of float

    Raises
    ------
    ContractError
        If the entry is no list, or something in it is not positive and finite.

    Examples
    --------
    >>> reals({"short_factor": [1, 2.5]}, "short_factor")
    (1.0, 2.5)
    """
    values = config.get(key)
    if not isinstance(values, list | tuple) or len(values) > _LIMIT:
        refuse("ModelConfig", key, "is missing" if values is None else "is no list", values, "a list of numbers")
    return tuple(real({key: value}, key) for value in values)


def token_ids(value: object) -> frozenset[int]:
    """Return an entry for token ids, a number or a list of numbers, as a set; anything else counts as none.

    Parameters
    ----------
    value : object
        The entry.

    Returns
    -------
    frozenset of int
        Those of them that lie in 0 .. 2**31 - 1.

    Examples
    --------
    >>> sorted(token_ids([2, 0, -1])), sorted(token_ids(7)), sorted(token_ids(None))
    ([0, 2], [7], [])
    """
    values = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return frozenset(v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _LIMIT)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Parameters
    ----------
    path : Path
        A file of at most :data:`JSON_LIMIT` bytes.

    Returns
    -------
    dict

    Raises
    ------
    ContractError
        If the file is missing, too large, not JSON, or not an object.
    """
    try:
        size = path.stat().st_size
        if size > JSON_LIMIT:
            refuse("load_checkpoint", path.name, "is too large", size, f"at most {JSON_LIMIT} bytes")
        value = json.loads(path.read_bytes())
    except OSError as error:
        refuse("load_checkpoint", path.name, "cannot be read", error.strerror or str(error), "a readable file")
    except (ValueError, RecursionError) as error:
        refuse("load_checkpoint", path.name, "is not JSON", str(error), "a JSON object")
    if not isinstance(value, dict):
        refuse("load_checkpoint", path.name, "is not a JSON object", type(value).__name__, "a JSON object")
    return value
