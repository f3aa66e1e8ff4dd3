"""Checks that every store of pages makes: of its slots, and of the bytes that go into them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory._numbers import any_array, whole_number
from pagedref.memory.frames import FrameAllocator
from pagedref.ragged import int_array

__all__ = ["checked_pages", "held_slots", "take"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]


def take(store: str, slots: FrameAllocator, n: int, available: int) -> Int64Array:
    """Take slots of a store, or raise OutOfFrames with its numbers and take none.

    Parameters
    ----------
    store : str
        What the error text names.
    slots : FrameAllocator
    n, available : int
        How many are wanted, and how many the store could free.

    Returns
    -------
    int64 array (n,)
    """
    n = whole_number(f"{store}.alloc", "n", n)
    if n > available:
        most = f"{available} (of {slots.num_frames})"
        text = f"{store}: pages need more slots than are free, got {n}, need at most {most}"
        raise OutOfFrames(text, needed=n, available=available)
    return slots.alloc(n)


def held_slots(function: str, slots: FrameAllocator, given: Any, *, unique: bool = False) -> Int64Array:
    """Return slots as indices; one that is not taken is corruption (S25).

    Parameters
    ----------
    function : str
        What the error text names.
    slots : FrameAllocator
    given : integer array (n,)
    unique : bool
        Whether naming one twice is an error.

    Returns
    -------
    int64 array (n,)
    """
    index: Int64Array = int_array(function, "slots", given, low=0, high=slots.num_frames - 1).astype(np.int64)
    if index.size and int(slots.refcount[index].min()) < 1:
        at = int(index[np.argmin(slots.refcount[index])])
        raise CorruptionError(f"{function}: slots names one that nobody holds, got {at}, need a slot that is taken")
    if unique and np.unique(index).size < index.size:
        raise ContractError(f"{function}: slots names one twice, got {index.tolist()}, need each once")
    return index


def checked_pages(function: str, pages: Any, n: int, bytes_per_page: int) -> Bytes:
    """Return pages as rows of bytes of the right size, C-contiguous.

    Parameters
    ----------
    function : str
        What the error text names.
    pages : uint8 array (n, bytes_per_page)
    n, bytes_per_page : int

    Returns
    -------
    uint8 array (n, bytes_per_page)
    """
    array = any_array(function, "pages", pages)
    if array.dtype != np.uint8 or array.shape != (n, bytes_per_page):
        need = f"uint8 {(n, bytes_per_page)}"
        raise ContractError(f"{function}: pages have the wrong form, got {array.dtype} {array.shape}, need {need}")
    return np.ascontiguousarray(array)
