"""Which sequences live, and how long they are: ids, rows, lengths.

A sequence has an id that users hold and a row in the arrays of the manager. Ids are never reused unless the user says
so; rows are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError, CorruptionError
from pagedref.ragged import int_array

__all__ = ["Sequences"]

Int64Array: TypeAlias = npt.NDArray[np.int64]

FIRST_ROWS = 16
MAX_ID = 2**62
NO_ID = -1


class Sequences:
    """Hold the ids and lengths of sequences in arrays, and find rows by id for a whole batch at once.

    Attributes
    ----------
    seq_id : int64 array (num_rows,)
        Id of the sequence in a row, -1 in a row that is free.
    length : int64 array (num_rows,)
        Live tokens.
    end : int64 array (num_rows,)
        Live and reserved tokens together, so ``length <= end``.

    Notes
    -----
    Rows are found through a ring, a power of two of at least two places for each row: an id lives at place
    ``id % size`` together with its row, and an id whose place is taken goes to a dictionary, which only long-lived or
    hand-picked ids ever need. An empty place p holds the id ``~p``, which belongs to another place and so matches none.
    """

    def __init__(self) -> None:
        self.seq_id: Int64Array = np.full(FIRST_ROWS, NO_ID, dtype=np.int64)
        self.length: Int64Array = np.zeros(FIRST_ROWS, dtype=np.int64)
        self.end: Int64Array = np.zeros(FIRST_ROWS, dtype=np.int64)
        self.next_id = 0  # every id ever added is below
        self._free_rows = list(range(FIRST_ROWS - 1, -1, -1))
        self._scratch = np.zeros(FIRST_ROWS, dtype=np.int64)
        self._build_ring()

    @property
    def num_rows(self) -> int:
        """Rows that the arrays have."""
        return self.seq_id.size

    @property
    def num_live(self) -> int:
        """Sequences that live."""
        return self.num_rows - len(self._free_rows)

    def live_rows(self) -> Int64Array:
        """Return the rows in use, in ascending order of their ids.

        Returns
        -------
        int64 array (num_live,)
        """
        rows = np.flatnonzero(self.seq_id != NO_ID)
        return rows[np.argsort(self.seq_id[rows])]

    def add(self, function: str, seq_id: int | None) -> tuple[int, int]:
        """Give a row to a new sequence.

        Parameters
        ----------
        function : str
            What the error text names.
        seq_id : int, optional
            Its id, not in use, in ``[0, 2**62)``; by default one more than the largest ever used.

        Returns
        -------
        seq_id, row : int

        Raises
        ------
        ContractError
            The id is in use or out of range.

        Mutates
        -------
        This directory; rows double when none is free.
        """
        given = self.next_id if seq_id is None else seq_id
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or not 0 <= given < MAX_ID:
            raise ContractError(f"{function}: seq_id is out of range, got {given!r}, need an integer in [0, 2**62)")
        number = int(given)
        if self.find(number) is not None:
            raise ContractError(f"{function}: seq_id is in use, got {number}, need an id that no live sequence has")
        if not self._free_rows:
            self._grow()
        row = self._free_rows.pop()
        self.seq_id[row], self.length[row], self.end[row] = number, 0, 0
        self.next_id = max(self.next_id, number + 1)
        self._enter(number, row)
        return number, row

    def drop(self, rows: Int64Array) -> None:
        """Forget sequences; their rows are free again.

        Parameters
        ----------
        rows : int64 array (n,)
            Rows in use, each named once.

        Mutates
        -------
        This directory.
        """
        for row in rows[::-1].tolist():
            number = int(self.seq_id[row])
            place = number & self._mask
            if self._ring_id[place] == number:
                self._ring_id[place] = ~place
            else:
                del self._elsewhere[number]
            self._free_rows.append(row)
        self.seq_id[rows], self.length[rows], self.end[rows] = NO_ID, 0, 0

    def find(self, seq_id: int) -> int | None:
        """Return the row of an id, or None when no live sequence has it.

        Parameters
        ----------
        seq_id : int
            Any integer.

        Returns
        -------
        int or None
        """
        place = seq_id & self._mask
        if self._ring_id[place] == seq_id:
            return int(self._ring_row[place])
        return self._elsewhere.get(seq_id)

    def rows(self, function: str, seq_ids: Any, *, unique: bool = True) -> Int64Array:
        """Return the rows of a batch of sequences.

        Parameters
        ----------
        function : str
            What the error text names.
        seq_ids : int or integer array (num_seqs,)
            Ids of live sequences.
        unique : bool
            Whether naming one twice is an error.

        Returns
        -------
        int64 array (num_seqs,)

        Raises
        ------
        ContractError
            An id that no live sequence has, or one named twice.
        CorruptionError
            From ``free``, an id of a sequence that was freed before (S25).
        """
        if type(seq_ids) is int:
            row = self.find(seq_ids)
            return np.array([self._row_elsewhere(function, seq_ids) if row is None else row], dtype=np.int64)
        ids = int_array(function, "seq_ids", seq_ids, scalar=True).astype(np.int64, copy=False)
        places = ids & np.int64(self._mask)
        rows: Int64Array = self._ring_row[places]
        found = self._ring_id[places] == ids
        if not found.all():
            for at in np.flatnonzero(~found).tolist():
                rows[at] = self._row_elsewhere(function, int(ids[at]))
        if unique and rows.size > 1:
            order = np.arange(rows.size)
            self._scratch[rows] = order  # of a row named twice, the last mention wins
            again = np.flatnonzero(self._scratch[rows] != order)
            if again.size:
                raise ContractError(
                    f"{function}: seq_ids names a sequence twice, got {ids[again[0]]}, need each id once"
                )
        return rows

    def _row_elsewhere(self, function: str, number: int) -> int:
        """Return the row of an id that is not at its place in the ring, or refuse it."""
        row = self._elsewhere.get(number)
        if row is not None:
            return row
        if function == "free" and 0 <= number < self.next_id:
            text = f"free: seq_ids names a sequence that is gone (double free), got {number}, need a live sequence"
            raise CorruptionError(text)
        raise ContractError(f"{function}: seq_ids names no live sequence, got {number}, need the id of one")

    def _enter(self, number: int, row: int) -> None:
        """Make an id findable."""
        place = number & self._mask
        if self._ring_id[place] == ~place:
            self._ring_id[place], self._ring_row[place] = number, row
        else:
            self._elsewhere[number] = row

    def _build_ring(self) -> None:
        """Make a ring of at least two places for each row and enter all live sequences."""
        size = 1 << (2 * self.num_rows - 1).bit_length()
        self._mask = size - 1
        self._ring_id: Int64Array = ~np.arange(size, dtype=np.int64)
        self._ring_row: Int64Array = np.zeros(size, dtype=np.int64)
        self._elsewhere: dict[int, int] = {}
        for row in np.flatnonzero(self.seq_id != NO_ID).tolist():
            self._enter(int(self.seq_id[row]), row)

    def _grow(self) -> None:
        """Double the rows."""
        old = self.num_rows
        for name, fill in (("seq_id", NO_ID), ("length", 0), ("end", 0), ("_scratch", 0)):
            setattr(self, name, np.concatenate([getattr(self, name), np.full(old, fill, dtype=np.int64)]))
        self._free_rows = list(range(2 * old - 1, old - 1, -1))
        self._build_ring()
