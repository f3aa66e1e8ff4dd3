"""Checks of levels and batches that come as they are: whole numbers, integer arrays that fit together, one name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.errors import ContractError, PageFault
from pagedref.ragged import int_array

__all__ = ["CheckedBatch", "checked_batch", "flag", "signed_as", "whole_number"]

IndexArray = npt.NDArray[np.int64]

_PARTS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len")
_MOST = 2**31 - 1
_WIDE = 2**62


class CheckedBatch(NamedTuple):
    """The metadata of a batch in 64 bits, and the number of keys of each sequence."""

    qo_indptr: IndexArray
    kv_indptr: IndexArray
    kv_indices: IndexArray
    kv_last_page_len: IndexArray
    kv_lens: IndexArray


def whole_number(function: str, argument: str, value: object, *, least: int = 1, most: int | None = _MOST) -> int:
    """Return an integer of a range.

    Parameters
    ----------
    function, argument : str
        For the text of an error.
    value : object
        As given; NumPy's integers count, truth values do not.
    least, most : int
        The range; `most` None is unlimited.

    Returns
    -------
    int

    Raises
    ------
    ContractError
        It is no integer, or out of range.

    Examples
    --------
    >>> whole_number("f", "page_size", np.int32(4))
    4
    """
    rule = f"an integer >= {least}" if most is None else f"an integer in {least}..{most}"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        validate.fail(function, argument, "is not an integer", _shown(value), rule)
    number = int(value)
    if number < least or (most is not None and number > most):
        wrong = "is too small" if number < least else "is too large"
        validate.fail(function, argument, wrong, _shown(number), rule)
    return number


def flag(function: str, argument: str, value: object) -> bool:
    """Return a truth value; anything else is refused, a text above all.

    Parameters
    ----------
    function, argument : str
        For the text of an error.
    value : object
        As given.

    Returns
    -------
    bool

    Raises
    ------
    ContractError
        It is no truth value.
    """
    if not isinstance(value, bool | np.bool_):
        validate.fail(function, argument, "is not a boolean", _shown(value), "True or False")
    return bool(value)


def checked_batch(
    function: str, batch: object, page_size: int, *, num_tokens: int | None = None, num_frames: int | None = None
) -> CheckedBatch:
    """Check the metadata of a batch.

    Parameters
    ----------
    function : str
        What the error text names.
    batch : object
        As given: qo_indptr, kv_indptr, kv_indices and kv_last_page_len, arrays or lists of integers.
    page_size : int
        Positions in a page.
    num_tokens, num_frames : int, optional
        Rows of the queries and frames of the pool; by default what the batch names.

    Returns
    -------
    CheckedBatch

    Raises
    ------
    ContractError
        Names the part, the place and the rule.
    """
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes) or len(batch) != len(_PARTS):
        function, _, argument = function.partition(": ")
        validate.fail(function, argument or "batch", "is no CascadeLevel", _shown(batch), ", ".join(_PARTS))
    parts = []
    for name, part in zip(_PARTS, batch, strict=True):
        if not isinstance(part, np.ndarray | list | tuple):
            validate.fail(function, name, "is not an array", _shown(part), "integers (n,)")
        try:
            array = np.asarray(part)
        except (ValueError, OverflowError):  # a list of unlike parts
            validate.fail(function, name, "is not an array", _shown(part), "integers (n,)")
        parts.append(int_array(function, name, array, low=-_WIDE, high=_WIDE).astype(np.int64))
    rows, indptr, frames, last = parts
    for name, part in (("qo_indptr", rows), ("kv_indptr", indptr)):
        if not part.size:
            validate.fail(function, name, "is empty", part.shape, "one entry more than sequences")
    rows = validate.qo_lens(function, rows, int(rows[-1]) if num_tokens is None else num_tokens)
    if not len(rows) - 1 == len(indptr) - 1 == len(last):
        got = (len(rows) - 1, len(indptr) - 1, len(last))
        validate.fail(function, "qo_indptr", "does not fit kv_indptr and kv_last_page_len", got, "equal counts")
    pool = int(frames.max(initial=-1)) + 1 if num_frames is None else num_frames
    indptr, frames, lens = validate.csr(function, indptr, frames, last, pool, page_size)
    return CheckedBatch(rows, indptr, frames, last, lens)


@contextmanager
def signed_as(function: str, inner: str) -> Iterator[None]:
    """Let errors of an operation that is called on the way bear the name of the function that was called.

    Parameters
    ----------
    function, inner : str
        The name to give, and the name to replace.

    Yields
    ------
    None

    Raises
    ------
    ContractError, PageFault
        In place of those of `inner`, of the same class.
    """
    try:
        yield
    except (ContractError, PageFault) as error:
        text = str(error)
        if not text.startswith(f"{inner}: "):
            raise
        raise type(error)(function + text.removeprefix(inner)) from None


def _shown(thing: Any) -> str:
    """Return a thing as a text of one line and at most 80 characters."""
    try:
        text = " ".join(repr(thing).split())
    except ValueError:  # an integer of too many digits
        text = type(thing).__name__
    return text if len(text) <= 80 else text[:77] + "..."
