"""The page table of one sequence: a packed 64-bit entry for every page (S19, S21, S24, S27).

::

     63                              32 31                 7  6   5   4   3   2   1   0
    +----------------------------------+--------------------+---+---+---+---+---+---+---+
    |          frame number            |      always 0      | O | N | D | A | S | W | P |
    +----------------------------------+--------------------+---+---+---+---+---+---+---+

    P  PRESENT    the page has a frame
    W  WRITABLE   its slots may be written in place
    S  SHARED     other tables may name the frame, too
    A  ACCESSED   read or written since the bit was cleared
    D  DIRTY      written since the bit was cleared
    N  PINNED     not to be released by a window, swapped out or preempted
    O  SWAPPED    the page is in a slower tier: no frame, the frame field is that of an unmapped page

The frame sits in the high word alone, so that an int32 view of a row of entries, every other word, **is** its row of a
block_table. An unmapped page is the entry ``UNMAPPED``: the frame field all ones (-1 as int32) and no flag.

WRITABLE and SHARED exclude each other. SHARED is a hint that grows stale when the other holders go: the reference count
decides then whether a page is copied or taken over in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import offset_of, page_of, slot_of
from pagedref.errors import ContractError, PageFault
from pagedref.memory._entries import (
    ACCESSED,
    DIRTY,
    FLAGS,
    NO_FLAG,
    PINNED,
    PRESENT,
    SHARED,
    SWAPPED,
    UNMAPPED,
    WRITABLE,
    flag_letters,
    frames_of,
    pack,
)
from pagedref.memory._numbers import MAX_PAGE_SIZE, any_array, whole_number
from pagedref.ragged import int_array

__all__ = ["ACCESSED", "DIRTY", "PINNED", "PRESENT", "SHARED", "SWAPPED", "UNMAPPED", "WRITABLE", "PageTable"]

MAX_FRAME = 2**31 - 2
FIRST_PAGES = 8  # width of a new table; it doubles when it is full


class PageTable:
    """Map the pages of one sequence to frames.

    Parameters
    ----------
    page_size : int
        Slots in a page, >= 1.

    Notes
    -----
    A table says where pages lie; who holds a frame is counted by a `FrameAllocator`, once for every entry. All methods
    are vectorised over pages or positions. Used from one thread.

    Examples
    --------
    >>> table = PageTable(page_size=4)
    >>> table.map([0, 1], [7, 3], PRESENT | WRITABLE)
    >>> table.translate([0, 3, 4]).tolist()
    [28, 31, 12]
    >>> table
    PageTable(page_size=4, pages=2: 0->7 PW.A., 1->3 PW.A.)
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = whole_number("PageTable", "page_size", page_size, low=1, high=MAX_PAGE_SIZE)
        self._entries = np.full(FIRST_PAGES, UNMAPPED, dtype=np.uint64)

    def __repr__(self) -> str:
        first = self._get(np.arange(min(self.num_pages, 6)))
        shown = [
            f"{page}->{frame} {flag_letters(entry)}" if frame >= 0 else f"{page}->hole"
            for page, (frame, entry) in enumerate(zip(frames_of(first).tolist(), first))
        ]
        more = ", ..." if self.num_pages > len(shown) else ""
        return f"PageTable(page_size={self._page_size}, pages={self.num_pages}: {', '.join(shown)}{more})"

    @classmethod
    def from_entries(cls, entries: npt.NDArray[np.uint64], page_size: int) -> PageTable:
        """Return a table that holds a copy of packed entries.

        Parameters
        ----------
        entries : uint64 array (pages,)
            Packed entries, from page 0 on.
        page_size : int
            Slots in a page, >= 1.

        Returns
        -------
        PageTable
        """
        table = cls(page_size)
        given = any_array("from_entries", "entries", entries)
        if given.ndim != 1 or (given.size and given.dtype.kind != "u"):
            got = f"{given.dtype} {given.shape}"
            raise ContractError(f"from_entries: entries have the wrong form, got {got}, need uint64 (pages,)")
        copied = given.astype(np.uint64)
        pages = np.flatnonzero(copied != UNMAPPED)
        table._put(pages, copied[pages])
        return table

    @property
    def page_size(self) -> int:
        """Slots in a page."""
        return self._page_size

    @property
    def num_pages(self) -> int:
        """Pages listed: one more than the last page that is mapped."""
        pages, _ = self._listed()
        return int(pages[-1]) + 1 if pages.size else 0

    def map(self, page: Any, frame: Any, flags: Any = PRESENT | WRITABLE) -> None:
        """Give frames to pages that have none.

        Parameters
        ----------
        page : int or integer array (n,)
            Pages, each named once, >= 0.
        frame : int or integer array (n,)
            A frame for each page, in ``[0, 2**31 - 1)``.
        flags : int
            Flag bits of the entries; PRESENT is always set.

        Raises
        ------
        ContractError
            A page that is mapped already or named twice, WRITABLE and SHARED at once, unknown flag bits.

        Mutates
        -------
        The table.
        """
        pages = int_array("map", "page", page, low=0, scalar=True)
        frames = int_array("map", "frame", frame, low=0, high=MAX_FRAME, scalar=True)
        if pages.size != frames.size:
            raise ContractError(f"map: frame has the wrong length, got {frames.size}, need {pages.size}")
        bits = np.uint64(flags) | PRESENT
        if bits & ~FLAGS or (bits & WRITABLE and bits & SHARED):
            raise ContractError(
                f"map: flags contradict each other, got {int(bits):#x}, need known bits, W or S not both"
            )
        if np.unique(pages).size != pages.size:
            raise ContractError(f"map: page is named twice, got {pages.tolist()}, need each page once")
        taken = pages[self.walk(pages) != UNMAPPED]
        if taken.size:
            raise ContractError(f"map: page is mapped already, got {taken[0]}, need an unmapped page")
        self._put(pages, pack(frames, bits))

    def unmap(self, page: Any) -> npt.NDArray[np.int64]:
        """Take the frames away from pages (a hole, or the end of a sequence).

        Parameters
        ----------
        page : int or integer array (n,)
            Mapped pages, each named once.

        Returns
        -------
        int64 array (n,)
            Their frames, which the caller gives back to the allocator.

        Raises
        ------
        PageFault
            A page that is not mapped.
        ContractError
            A page named twice.

        Mutates
        -------
        The table.
        """
        pages = int_array("unmap", "page", page, low=0, scalar=True)
        if np.unique(pages).size != pages.size:
            raise ContractError(f"unmap: page is named twice, got {pages.tolist()}, need each page once")
        frames = frames_of(self._present("unmap", pages))
        self._put(pages, np.full(pages.size, UNMAPPED))
        return frames

    def entry(self, page: int) -> int:
        """Return the packed entry of one page; `UNMAPPED` beyond the end.

        Parameters
        ----------
        page : int
            Page, >= 0.

        Returns
        -------
        int
            In ``[0, 2**64)``.
        """
        return int(self.walk([page])[0])

    def walk(self, pages: Any) -> npt.NDArray[np.uint64]:
        """Return the packed entries of pages; no page faults, no bit changes.

        Parameters
        ----------
        pages : integer array (n,)
            Pages, >= 0.

        Returns
        -------
        uint64 array (n,)
            `UNMAPPED` for holes and beyond the end.
        """
        return self._get(int_array("walk", "pages", pages, low=0))

    def translate(self, positions: Any, *, write: bool = False) -> npt.NDArray[np.int64]:
        """Return the slots of positions (S19), and mark their pages.

        Parameters
        ----------
        positions : integer array (n,)
            Positions of the sequence, >= 0.
        write : bool
            True when the slots are about to be written.

        Returns
        -------
        int64 array (n,)
            Slots.

        Raises
        ------
        PageFault
            A page without a frame; on a write also a page that is not WRITABLE (S27). Nothing is marked.

        Mutates
        -------
        ACCESSED of the pages, on a write also DIRTY.
        """
        index = int_array("translate", "positions", positions, low=0)
        pages = page_of(index, self._page_size)
        entries = self._present("translate", pages)
        if write and (readonly := np.flatnonzero((entries & WRITABLE) == NO_FLAG)).size:
            at = int(readonly[0])
            raise PageFault(
                f"translate: page {pages[at]} is not writable, got {flag_letters(entries[at])}, "
                "need WRITABLE (copy it first, S27)"
            )
        self._put(pages, entries | (ACCESSED | DIRTY if write else ACCESSED))
        slots: npt.NDArray[np.int64] = slot_of(frames_of(entries), offset_of(index, self._page_size), self._page_size)
        return slots

    def frames(self) -> npt.NDArray[np.int64]:
        """Return the frames of all mapped pages, in page order, one for each entry.

        Returns
        -------
        int64 array
            A frame that stands in several entries (a ring) appears as often: that is how holders are counted.
        """
        frames = frames_of(self._listed()[1])
        return frames[frames >= 0]

    def fork(self) -> PageTable:
        """Return a second table with the same frames; from now on neither side writes them in place (S27).

        The caller gives every entry its second holder: ``allocator.share(child.frames())``.

        Returns
        -------
        PageTable

        Mutates
        -------
        Every mapped page of this table becomes SHARED and loses WRITABLE.
        """
        pages, entries = self._listed()
        mapped = frames_of(entries) >= 0
        entries[mapped] = (entries[mapped] & ~WRITABLE) | SHARED
        self._put(pages, entries)
        child = type(self)(self._page_size)
        child._put(pages, entries)
        return child

    def _present(self, function: str, pages: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Return the entries of pages that must all have a frame (S21)."""
        entries = self.walk(pages)
        missing = np.flatnonzero((entries & PRESENT) == NO_FLAG)
        if missing.size:
            raise PageFault(
                f"{function}: page {pages[missing[0]]} has no frame, got an unmapped page, need a mapped one"
            )
        return entries

    # -- how entries are kept: the only methods that a subclass replaces

    def _get(self, pages: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Return the entries of pages; `UNMAPPED` beyond the end."""
        entries = np.full(pages.size, UNMAPPED, dtype=np.uint64)
        inside = pages < self._entries.size
        entries[inside] = self._entries[pages[inside]]
        return entries

    def _put(self, pages: npt.NDArray[Any], entries: Any) -> None:
        """Set the entries of pages."""
        if pages.size and (last := int(pages.max())) >= self._entries.size:
            width = max(2 * self._entries.size, last + 1)
            grown = np.full(width, UNMAPPED, dtype=np.uint64)
            grown[: self._entries.size] = self._entries
            self._entries = grown
        self._entries[pages] = entries

    def _listed(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Return all pages with an entry, ascending, and the entries."""
        pages = np.flatnonzero(self._entries != UNMAPPED)
        return pages, self._entries[pages]
