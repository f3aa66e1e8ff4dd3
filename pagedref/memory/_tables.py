"""The page tables of all sequences in one array: a row of packed entries for each (see `page_table` for the bits).

One store makes a step over thousands of sequences a handful of array operations: reading, extending and cutting tables
never loops over sequences, and a block_table is a few columns of the store read as int32.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.memory._entries import PINNED, SHARED, UNMAPPED, WRITABLE, frames_of, pack
from pagedref.ragged import concat_ranges

__all__ = ["TableStore"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
Entries: TypeAlias = npt.NDArray[np.uint64]

FIRST_WIDTH = 8
HIGH_WORD = 1 if sys.byteorder == "little" else 0


class TableStore:
    """Hold the page tables of many sequences as rows of packed entries.

    Row r is the table of one sequence: entries ``[0, num_pages[r])`` are its pages, everything beyond is `UNMAPPED`.
    Rows and columns are added by doubling. Arguments are trusted: the manager has checked them.

    Parameters
    ----------
    num_rows : int
        Rows to start with, >= 1.

    Attributes
    ----------
    entries : uint64 array (num_rows, width)
        Packed entries.
    num_pages : int64 array (num_rows,)
        Pages of each row.
    """

    def __init__(self, num_rows: int) -> None:
        self.entries: Entries = np.full((num_rows, FIRST_WIDTH), UNMAPPED, dtype=np.uint64)
        self.num_pages: Int64Array = np.zeros(num_rows, dtype=np.int64)

    def grow(self, num_rows: int, width: int) -> None:
        """Make room for rows and columns; no entry changes.

        Parameters
        ----------
        num_rows, width : int
            What must be there; nothing shrinks.
        """
        rows, columns = self.entries.shape
        if num_rows <= rows and width <= columns:
            return
        new_rows = rows if num_rows <= rows else max(num_rows, 2 * rows)
        new_columns = columns if width <= columns else max(width, 2 * columns)
        entries = np.full((new_rows, new_columns), UNMAPPED, dtype=np.uint64)
        entries[:rows, :columns] = self.entries
        num_pages = np.zeros(new_rows, dtype=np.int64)
        num_pages[:rows] = self.num_pages
        self.entries, self.num_pages = entries, num_pages

    def index(self, rows: Int64Array, pages: Any) -> Int64Array:
        """Return where entries lie in the flat store.

        Parameters
        ----------
        rows, pages : int64 arrays (n,)
            A row and a page of it for each entry.

        Returns
        -------
        int64 array (n,)
        """
        flat: Int64Array = rows * np.int64(self.entries.shape[1]) + pages
        return flat

    def extend(self, rows: Int64Array, counts: Int64Array, frames: Int64Array, flags: np.uint64) -> None:
        """Map more pages at the end of tables.

        Parameters
        ----------
        rows : int64 array (n,)
            Tables, each named once.
        counts : int64 array (n,)
            Pages to add to each; the width is there already.
        frames : int64 array (sum of counts,)
            Their frames, table after table.
        flags : uint64
            Flag bits of the new entries.

        Mutates
        -------
        The tables.
        """
        first = self.num_pages[rows]
        self.entries.reshape(-1)[concat_ranges(self.index(rows, first), counts)] = pack(frames, flags)
        self.num_pages[rows] = first + counts

    def tail(self, rows: Int64Array, keep: Any) -> tuple[Int64Array, Int64Array]:
        """Return the pages that tables have beyond the first few, the last page of each table first (S31).

        Parameters
        ----------
        rows : int64 array (n,)
            Tables.
        keep : int64 array (n,) or int
            Pages at the front of each that do not count.

        Returns
        -------
        index, frames : int64 arrays
            Where the entries lie in the flat store, and what frames they name.
        """
        last = self.index(rows, self.num_pages[rows]) - 1
        counts = self.num_pages[rows] - keep
        index = np.repeat(last, counts) - concat_ranges(np.zeros(rows.size, dtype=np.int64), counts)
        return index, frames_of(self.entries.reshape(-1)[index])

    def above(self, index: Int64Array) -> Int64Array:
        """Return the frame of the page before each entry, -1 for a first page and after a hole.

        Parameters
        ----------
        index : int64 array (n,)
            Where the entries lie in the flat store.

        Returns
        -------
        int64 array (n,)
        """
        first = index % self.entries.shape[1] == 0
        frames = frames_of(self.entries.reshape(-1)[index - ~first])
        frames[first] = -1
        return frames

    def cut(self, rows: Int64Array, keep: Any, index: Int64Array) -> None:
        """Unmap what `tail` found.

        Parameters
        ----------
        rows, keep
            The arguments of `tail`.
        index : int64 array
            Its first result.

        Mutates
        -------
        The tables.
        """
        self.entries.reshape(-1)[index] = UNMAPPED
        self.num_pages[rows] = keep

    def fork(self, parent: int, child: int) -> Int64Array:
        """Copy a table into an empty row; both sides lose WRITABLE and become SHARED (S27).

        Parameters
        ----------
        parent, child : int
            Rows.

        Returns
        -------
        int64 array
            The frames, one for each page that has one: each has one more holder now.

        Mutates
        -------
        Both rows.
        """
        pages = int(self.num_pages[parent])
        entries = self.entries[parent, :pages]
        mapped = frames_of(entries) >= 0
        entries[mapped] = (entries[mapped] & ~WRITABLE) | SHARED
        self.entries[child, :pages] = np.where(mapped, entries & ~PINNED, entries)
        self.num_pages[child] = pages
        return frames_of(entries[mapped])

    def block_table(self, rows: Int64Array, pages: Int64Array) -> npt.NDArray[np.int32]:
        """Return the frames of the first pages of tables, padded with -1 (S21).

        Parameters
        ----------
        rows : int64 array (n,)
            Tables.
        pages : int64 array (n,)
            Pages to list of each, at most those it has.

        Returns
        -------
        int32 array (n, max of pages)
        """
        width = int(pages.max()) if pages.size else 0
        table = np.ascontiguousarray(self._words()[rows, :width])  # (n, width)
        if (pages < self.num_pages[rows]).any():
            table[np.arange(width) >= pages[:, None]] = -1
        return table

    def frames(self, rows: Int64Array, pages: Int64Array) -> npt.NDArray[np.int32]:
        """Return the frames of the first pages of tables, table after table.

        Parameters
        ----------
        rows : int64 array (n,)
            Tables.
        pages : int64 array (n,)
            Pages to list of each, at most those it has.

        Returns
        -------
        int32 array (sum of pages,)

        Notes
        -----
        Whole rows, cut where each ends, are several times faster than picking entries one by one; not so when a few
        sequences are far longer than the rest.
        """
        width, total = (int(pages.max()), int(pages.sum())) if pages.size else (0, 0)
        if width * pages.size <= 4 * total:
            return self._words()[rows, :width][np.arange(width) < pages[:, None]]
        return self._words().reshape(-1)[concat_ranges(self.index(rows, 0), pages)]

    def _words(self) -> npt.NDArray[np.int32]:
        """Return the frame field of all entries: a view, int32 (num_rows, width)."""
        words: npt.NDArray[np.int32] = self.entries.view(np.int32)[:, HIGH_WORD::2]
        return words
