"""Position, page, offset, frame, slot: the index arithmetic of paging (S19, S20), and its only home.

Each function is one expression over integers. It takes Python ints, NumPy integers or integer arrays (which broadcast),
and always computes in 64 bits, whatever the width of its arguments: ``np.int32`` times a Python int stays 32 bits wide
in NumPy, and a table of int32 would wrap at page 65,536 of an ordinary cache. The result is an ``np.int64`` or an int64
array. The bodies use nothing but ``np.int64`` and operators, so a compiler of kernels can take them as they are.

Nothing is checked here: arguments are what the callers have already validated (positions >= 0, page_size >= 1).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "element_of",
    "frame_of_slot",
    "kv_len",
    "last_page_len",
    "num_pages",
    "offset_of",
    "offset_of_slot",
    "page_of",
    "slot_of",
]

Integers: TypeAlias = int | np.integer[Any] | npt.NDArray[Any]


def page_of(position: Integers, page_size: Integers) -> Any:
    """Return the page that holds a position (S19).

    Parameters
    ----------
    position : int or integer array
        Index of a token in its sequence, >= 0.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    numpy.int64 or int64 array
        ``position // page_size``.

    Examples
    --------
    >>> int(page_of(37, 16))
    2
    """
    return np.int64(position) // np.int64(page_size)


def offset_of(position: Integers, page_size: Integers) -> Any:
    """Return the index of a position within its page (S19).

    Parameters
    ----------
    position : int or integer array
        Index of a token in its sequence, >= 0.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    numpy.int64 or int64 array
        ``position % page_size``, in ``[0, page_size)``.

    Examples
    --------
    >>> int(offset_of(37, 16))
    5
    """
    return np.int64(position) % np.int64(page_size)


def slot_of(frame: Integers, offset: Integers, page_size: Integers) -> Any:
    """Return the slot of an offset in a frame (S19).

    Parameters
    ----------
    frame : int or integer array
        Frame of the pool, >= 0.
    offset : int or integer array
        Offset within the page, in ``[0, page_size)``.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    numpy.int64 or int64 array
        ``frame * page_size + offset``, in 64 bits.

    Examples
    --------
    >>> import numpy as np
    >>> slot_of(np.array([7, 134_217_728], dtype=np.int32), 3, 16).tolist()
    [115, 2147483651]
    """
    return np.int64(frame) * np.int64(page_size) + np.int64(offset)


def frame_of_slot(slot: Integers, page_size: Integers) -> Any:
    """Return the frame that a slot lies in (S19).

    Parameters
    ----------
    slot : int or integer array
        Slot of the pool, >= 0; the skip mark -1 must have been taken out before (S22).
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    numpy.int64 or int64 array
        ``slot // page_size``.

    Examples
    --------
    >>> int(frame_of_slot(115, 16))
    7
    """
    return np.int64(slot) // np.int64(page_size)


def offset_of_slot(slot: Integers, page_size: Integers) -> Any:
    """Return the offset of a slot within its frame (S19).

    Parameters
    ----------
    slot : int or integer array
        Slot of the pool, >= 0; the skip mark -1 must have been taken out before (S22).
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    numpy.int64 or int64 array
        ``slot % page_size``, in ``[0, page_size)``.

    Examples
    --------
    >>> int(offset_of_slot(115, 16))
    3
    """
    return np.int64(slot) % np.int64(page_size)


def num_pages(num_tokens: Integers, page_size: Integers) -> Any:
    """Return how many pages hold a number of tokens (S20).

    Writing token t therefore takes a new page iff ``t % page_size == 0`` (S24).

    Parameters
    ----------
    num_tokens : int or integer array
        Tokens of a sequence, >= 0.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    numpy.int64 or int64 array
        The quotient rounded up; 0 for no token.

    Examples
    --------
    >>> [int(num_pages(n, 4)) for n in (0, 1, 4, 5)]
    [0, 1, 1, 2]
    """
    return (np.int64(num_tokens) + np.int64(page_size) - np.int64(1)) // np.int64(page_size)


def last_page_len(num_tokens: Integers, page_size: Integers) -> Any:
    """Return how many tokens lie in the last page (S20).

    Parameters
    ----------
    num_tokens : int or integer array
        Tokens of a sequence, >= 0.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    numpy.int64 or int64 array
        In ``[1, page_size]``, and 0 exactly when there is no token.

    Examples
    --------
    >>> [int(last_page_len(n, 16)) for n in (100, 32, 1, 0)]
    [4, 16, 1, 0]
    """
    return ((np.int64(num_tokens) - np.int64(1)) % np.int64(page_size) + np.int64(1)) * (np.int64(num_tokens) > 0)


def kv_len(num_pages: Integers, last_page_len: Integers, page_size: Integers) -> Any:
    """Return the number of tokens in a row of pages (S20), the inverse of `num_pages` and `last_page_len`.

    Parameters
    ----------
    num_pages : int or integer array
        Pages of the sequence, >= 0.
    last_page_len : int or integer array
        Tokens in the last page, in ``[1, page_size]``; 0 iff there is no page.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    numpy.int64 or int64 array
        ``(num_pages - 1) * page_size + last_page_len``; 0 for no page.

    Examples
    --------
    >>> int(kv_len(7, 4, 16)), int(kv_len(0, 0, 16))
    (100, 0)
    """
    return (np.int64(num_pages) - np.int64(1)) * np.int64(page_size) * (np.int64(num_pages) > 0) + np.int64(
        last_page_len
    )


def element_of(frame: Integers, offset: Integers, frame_stride: Integers, slot_stride: Integers) -> Any:
    """Return the place of a slot in a strided pool, in the unit of the strides (S19, S23).

    Parameters
    ----------
    frame : int or integer array
        Frame of the pool, >= 0.
    offset : int or integer array
        Offset within the page, in ``[0, page_size)``.
    frame_stride, slot_stride : int
        Distance between neighbouring frames, and between neighbouring slots of a frame (elements, or bytes).

    Returns
    -------
    numpy.int64 or int64 array
        ``frame * frame_stride + offset * slot_stride``, in 64 bits.

    Examples
    --------
    >>> import numpy as np
    >>> int(element_of(np.int32(2066), 0, 1_039_680, 64))
    2147978880
    """
    return np.int64(frame) * np.int64(frame_stride) + np.int64(offset) * np.int64(slot_stride)
