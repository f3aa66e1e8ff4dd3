"""Read a text file line by line, and complain about one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from pagedref.errors import ContractError
from pagedref.simulate.trace import MAX_LEN

__all__ = ["check_length", "complain", "lines_of", "shown"]

LONGEST = 1 << 26
"""Bytes of a line at most: what is longer is no text."""


def complain(path: str, line: int, field: str, what: str, got: Any, need: str) -> NoReturn:
    """Raise the error of a line.

    Parameters
    ----------
    path : str
        The file.
    line : int
        Its number, from 1 on.
    field : str
        What is wrong in it.
    what, need : str
        What is wrong with it, and what would be right.
    got : object
        What stands there.
    """
    raise ContractError(f"open_trace: {Path(path).name}, line {line}: {field} {what}, got {shown(got)}, need {need}")


def shown(got: Any) -> str:
    """Return a value as a short text.

    Parameters
    ----------
    got : object
        Anything.

    Returns
    -------
    str
    """
    text = repr(got)
    return text if len(text) <= 60 else text[:57] + "..."


def lines_of(path: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, each with its number.

    Parameters
    ----------
    path : str
        A text file in UTF-8, with or without a byte order mark.

    Yields
    ------
    number : int
        From 1 on.
    line : str
        Without its end.
    """
    with open(path, "rb") as file:
        number = 0
        while raw := file.readline(LONGEST + 1):
            number += 1
            if len(raw) > LONGEST:
                complain(path, number, "line", "is no line of text", f"more than {LONGEST} bytes", "a text file")
            if b"\x00" in raw:
                complain(path, number, "line", "is binary", raw[:12], "a text file")
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                complain(path, number, "line", "is no UTF-8", raw[error.start : error.start + 8], "a text file")
            if line:
                yield number, line


def check_length(path: str, line: int, field: str, value: int) -> int:
    """Return a number of tokens, or complain.

    Parameters
    ----------
    path, line, field
        See `complain`.
    value : int
        The number.

    Returns
    -------
    int
    """
    if not 1 <= value <= MAX_LEN:
        what = "is negative" if value < 0 else "is zero" if value == 0 else "is absurd"
        complain(path, line, field, what, value, f"an integer in [1, {MAX_LEN}]")
    return value
