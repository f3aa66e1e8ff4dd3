"""The bits of a page table entry: the frame in the high word, flags in the low word.

The drawing is in `page_table`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "ACCESSED",
    "AWAY",
    "DIRTY",
    "PINNED",
    "PRESENT",
    "SHARED",
    "SWAPPED",
    "UNMAPPED",
    "WRITABLE",
    "flag_letters",
    "frames_of",
    "pack",
]

FRAME_SHIFT = np.uint64(32)
PRESENT = np.uint64(1 << 0)
WRITABLE = np.uint64(1 << 1)
SHARED = np.uint64(1 << 2)
ACCESSED = np.uint64(1 << 3)
DIRTY = np.uint64(1 << 4)
PINNED = np.uint64(1 << 5)
SWAPPED = np.uint64(1 << 6)
FLAGS = np.uint64(0x1F)
UNMAPPED = np.uint64(0xFFFF_FFFF_0000_0000)
AWAY = UNMAPPED | SWAPPED
NO_FLAG = np.uint64(0)


def pack(frames: Any, flags: Any) -> Any:
    """Return the entries of frames with flags.

    Parameters
    ----------
    frames : int or integer array
        Frames, in ``[0, 2**31 - 1)``.
    flags : uint64 or uint64 array
        Sum of flag bits.

    Returns
    -------
    uint64 or uint64 array

    Examples
    --------
    >>> hex(pack(7, PRESENT | WRITABLE))
    '0x700000003'
    """
    return (np.uint64(frames) << FRAME_SHIFT) | np.uint64(flags)


def frames_of(entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the frames in entries; -1 where nothing is mapped.

    Parameters
    ----------
    entries : uint64 array
        Packed entries.

    Returns
    -------
    int64 array of the same shape

    Examples
    --------
    >>> frames_of(np.array([pack(7, PRESENT), UNMAPPED])).tolist()
    [7, -1]
    """
    return entries.view(np.int64) >> np.int64(32)  # an arithmetic shift: all ones stay -1


def flag_letters(entry: Any) -> str:
    """Return the flags of an entry as letters: P W S A D, a dot for each that is off; then N pinned, O swapped out.

    Parameters
    ----------
    entry : uint64
        Packed entry.

    Returns
    -------
    str

    Examples
    --------
    >>> flag_letters(pack(7, PRESENT | SHARED))
    'P.S..'
    """
    bits = int(entry)
    rare = "N" * bool(bits & int(PINNED)) + "O" * bool(bits & int(SWAPPED))
    return "".join(letter if bits >> bit & 1 else "." for bit, letter in enumerate("PWSAD")) + rare
