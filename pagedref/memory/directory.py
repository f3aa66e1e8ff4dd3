"""The page table of a very long sequence: a directory of leaves, as large as what is mapped (S19).

A flat table of a million tokens is 62,500 entries at page size 16, whether they are mapped or not. Where windows or
sparse contexts leave most of them unmapped, two levels pay: a leaf of 512 entries, the size of a hardware page of
entries, exists only while one of its pages has one.

::

    page      =  directory index | index in the leaf, 9 bits
    directory -> leaf number, -1 for none   (4 bytes for 512 pages)
    leaf      -> 512 packed entries         (see `page_table`)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.memory._entries import UNMAPPED
from pagedref.memory.page_table import PageTable

__all__ = ["LEAF_PAGES", "LONG_PAGES", "TwoLevelTable", "make_table"]

LEAF_PAGES = 512
"""Pages of a leaf: its entries fill 4,096 bytes."""
LONG_PAGES = 8192
"""From here on `make_table` chooses two levels."""


class TwoLevelTable(PageTable):
    """Map the pages of one sequence to frames, with memory proportional to what is mapped.

    Parameters
    ----------
    page_size : int
        Slots in a page, >= 1.

    Notes
    -----
    The same interface and the same errors as `PageTable`.

    Examples
    --------
    >>> table = TwoLevelTable(page_size=16)
    >>> table.map([62_499], [7])
    >>> table.translate([999_999]).tolist(), table.num_leaves, table.nbytes
    ([127], 1, 4588)
    """

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._entries = self._entries[:0]
        self._directory = np.full(0, -1, dtype=np.int32)
        self._leaves: list[npt.NDArray[np.uint64] | None] = []
        self._vacant: list[int] = []  # numbers of leaves that are gone

    @property
    def num_leaves(self) -> int:
        """Leaves that exist."""
        return sum(leaf is not None for leaf in self._leaves)

    @property
    def nbytes(self) -> int:
        """Bytes of the directory and the leaves."""
        return self._directory.nbytes + 8 * LEAF_PAGES * self.num_leaves

    def _get(self, pages: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        entries = np.full(pages.size, UNMAPPED, dtype=np.uint64)
        for number, at in self._by_leaf(pages):
            if number < self._directory.size and (leaf := self._leaf(number)) is not None:
                entries[at] = leaf[pages[at] % LEAF_PAGES]
        return entries

    def _put(self, pages: npt.NDArray[Any], entries: Any) -> None:
        values = np.asarray(entries, dtype=np.uint64)
        for number, at in self._by_leaf(pages):
            leaf = self._leaf(number) if number < self._directory.size else None
            if leaf is None:
                leaf = self._new_leaf(number)
            leaf[pages[at] % LEAF_PAGES] = values[at]
            if (leaf == UNMAPPED).all():
                self._vacant.append(int(self._directory[number]))
                self._leaves[self._vacant[-1]] = None
                self._directory[number] = -1

    def _listed(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        pages, entries = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for number in np.flatnonzero(self._directory >= 0).tolist():
            leaf = self._leaf(number)
            assert leaf is not None
            inside = np.flatnonzero(leaf != UNMAPPED)
            pages.append(inside + number * LEAF_PAGES)
            entries.append(leaf[inside])
        return np.concatenate(pages), np.concatenate(entries)

    def _by_leaf(self, pages: npt.NDArray[Any]) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Return each leaf that pages fall into, and where in `pages`."""
        numbers = pages // LEAF_PAGES
        return [(int(number), np.flatnonzero(numbers == number)) for number in np.unique(numbers)]

    def _leaf(self, number: int) -> npt.NDArray[np.uint64] | None:
        """Return a leaf of the directory, None where there is none."""
        at = int(self._directory[number])
        return self._leaves[at] if at >= 0 else None

    def _new_leaf(self, number: int) -> npt.NDArray[np.uint64]:
        """Make an empty leaf."""
        if number >= self._directory.size:
            more = np.full(number + 1 - self._directory.size, -1, dtype=np.int32)
            self._directory = np.concatenate([self._directory, more])
        leaf = np.full(LEAF_PAGES, UNMAPPED, dtype=np.uint64)
        at = self._vacant.pop() if self._vacant else len(self._leaves)
        self._leaves[at : at + 1] = [leaf]
        self._directory[number] = at
        return leaf


def make_table(page_size: int, num_pages: int) -> PageTable:
    """Return an empty table of the kind that fits a sequence of some length.

    Parameters
    ----------
    page_size : int
        Slots in a page, >= 1.
    num_pages : int
        Pages that the sequence may have.

    Returns
    -------
    PageTable
        Flat below `LONG_PAGES` pages, in two levels from there on.

    Examples
    --------
    >>> type(make_table(16, 128)).__name__, type(make_table(16, 62_500)).__name__
    ('PageTable', 'TwoLevelTable')
    """
    return TwoLevelTable(page_size) if num_pages >= LONG_PAGES else PageTable(page_size)
