"""What can be seen of the memory: lengths, tables, slots, statistics, audit. The half of a manager that looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.addressing import last_page_len, num_pages, offset_of, page_of, slot_of
from pagedref.errors import ContractError, CorruptionError, PageFault
from pagedref.memory._audit import problems
from pagedref.memory._entries import ACCESSED, DIRTY, frames_of
from pagedref.memory._numbers import MAX_PAGE_SIZE, MAX_SLOTS, whole_number
from pagedref.memory._sequences import Sequences
from pagedref.memory._stats import MemoryStats, measure
from pagedref.memory._tables import TableStore
from pagedref.memory.frames import FrameAllocator
from pagedref.memory.page_table import PageTable
from pagedref.memory.snapshot import snapshot
from pagedref.ragged import CSR, concat_ranges, indptr_from_lens, int_array

__all__ = ["MemoryViews"]

Int64Array: TypeAlias = npt.NDArray[np.int64]

MAX_TOKENS = 2**40  # of one sequence in one call: keeps every sum far inside 64 bits


class MemoryViews:
    """Answer questions about the sequences of a pool; `KVManager` adds what changes them.

    A batch that is only looked at may name a sequence more than once.

    Parameters
    ----------
    num_frames, page_size, frame_order, policy, on_evict
        See `KVManager` and `FrameAllocator`.
    pool : FrameAllocator, optional
        Frames that are shared with other managers (see `groups`, which tells each of evictions and audits all).
    """

    def __init__(
        self,
        num_frames: int,
        page_size: int,
        *,
        frame_order: Any = None,
        policy: Any = "lru",
        on_evict: Callable[[Int64Array], None] | None = None,
        pool: FrameAllocator | None = None,
    ) -> None:
        self._page_size = whole_number("KVManager", "page_size", page_size, low=1, high=MAX_PAGE_SIZE)
        if pool is None:
            pool = FrameAllocator(num_frames, frame_order=frame_order, policy=policy, on_evict=on_evict)
        if pool.num_frames * self._page_size > MAX_SLOTS:
            got, need = f"{pool.num_frames} * {self._page_size}", "num_frames * page_size < 2**63"
            raise ContractError(f"KVManager: page_size gives slots beyond 64 bits, got {got}, need {need}")
        self._frames = pool
        self._sequences = Sequences()
        self._tables = TableStore(self._sequences.num_rows)

    def __repr__(self) -> str:
        cached = f", {self._frames.num_cached} cached" if self._frames.num_cached else ""
        return (
            f"{type(self).__name__}(num_frames={self.num_frames}, page_size={self.page_size}: {len(self)} sequences, "
            f"{self._frames.num_free} frames free, {self._frames.num_held} held{cached})"
        )

    def _repr_html_(self) -> str:
        return snapshot(self)._repr_html_()

    def __len__(self) -> int:
        return self._sequences.num_live

    def __contains__(self, seq_id: object) -> bool:
        return isinstance(seq_id, int | np.integer) and self._sequences.find(int(seq_id)) is not None

    @property
    def num_frames(self) -> int:
        """Frames of the pool."""
        return self._frames.num_frames

    @property
    def page_size(self) -> int:
        """Slots in a page."""
        return self._page_size

    @property
    def num_free(self) -> int:
        """Frames that nobody holds and that keep no content."""
        return self._frames.num_free

    @property
    def num_available(self) -> int:
        """Frames that can be handed out: free ones, and cached ones, which are then given up."""
        return self._frames.num_available

    @property
    def refcount(self) -> npt.NDArray[np.int32]:
        """Holders of every frame: a read-only view, int32 (num_frames,)."""
        return self._frames.refcount

    @property
    def occupied(self) -> npt.NDArray[np.bool_]:
        """Frames that are held or cached, bool (num_frames,)."""
        return self._frames.occupied

    @property
    def sequences(self) -> tuple[int, ...]:
        """Ids of the live sequences, ascending."""
        return tuple(self._sequences.seq_id[self._sequences.live_rows()].tolist())

    def seq_len(self, seq_id: int) -> int:
        """Return the number of live (committed) tokens of a sequence.

        Parameters
        ----------
        seq_id : int
            A live sequence.

        Returns
        -------
        int
        """
        return int(self._sequences.length[self._sequences.rows("seq_len", [seq_id])[0]])

    def seq_lens(self, seq_ids: Any) -> Int64Array:
        """Return the number of live tokens of each sequence.

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences.

        Returns
        -------
        int64 array (num_seqs,)
        """
        return self._sequences.length[self._sequences.rows("seq_lens", seq_ids, unique=False)]

    def reserved(self, seq_ids: Any) -> Int64Array:
        """Return the number of reserved, not yet committed tokens of each sequence.

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences.

        Returns
        -------
        int64 array (num_seqs,)
        """
        return self._reserved(self._sequences.rows("reserved", seq_ids, unique=False))

    def table(self, seq_id: int) -> PageTable:
        """Return the page table of a sequence: a copy, to look at and to test.

        Parameters
        ----------
        seq_id : int
            A live sequence.

        Returns
        -------
        PageTable
        """
        row = int(self._sequences.rows("table", [seq_id])[0])
        return PageTable.from_entries(self._tables.entries[row, : self._tables.num_pages[row]], self._page_size)

    def csr(self, seq_ids: Any, extra: Any = None) -> CSR:
        """Return the pages of a batch in compressed rows (S20).

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences.
        extra : int or integer array (num_seqs,), optional
            Reserved tokens of each to include: those that this step appends. By default none.

        Returns
        -------
        CSR
            Pages that hold the live and the extra tokens; pages reserved beyond them are not listed.

        Raises
        ------
        ContractError
            An unknown id, or more extra tokens than are reserved.
        """
        rows, lens = self._lens("csr", seq_ids, extra)
        pages = num_pages(lens, self._page_size)
        return CSR(
            indptr_from_lens(pages),
            self._tables.frames(rows, pages),
            last_page_len(lens, self._page_size).astype(np.int32),
        )

    def block_table(self, seq_ids: Any, extra: Any = None) -> npt.NDArray[np.int32]:
        """Return the padded table of a batch (S21).

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences.
        extra : int or integer array (num_seqs,), optional
            Reserved tokens of each to include. By default none.

        Returns
        -------
        int32 array (num_seqs, max_pages)
            Frames, -1 beyond the last page of a row; as wide as the longest row.

        Raises
        ------
        ContractError
            An unknown id, or more extra tokens than are reserved.
        """
        rows, lens = self._lens("block_table", seq_ids, extra)
        return self._tables.block_table(rows, num_pages(lens, self._page_size))

    def slot_mapping(self, seq_ids: Any, start: Any, stop: Any) -> Int64Array:
        """Return the slots of positions ``start[i], ..., stop[i] - 1`` of each sequence (S19).

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences.
        start, stop : int or integer array (num_seqs,)
            ``0 <= start <= stop``, and `stop` at most the live and reserved tokens.

        Returns
        -------
        int64 array (sum of stop - start,)
            Sequence after sequence, in order of position.

        Raises
        ------
        ContractError
            An unknown id, or positions that the sequence does not have.
        PageFault
            A position in a hole.

        Mutates
        -------
        ACCESSED of the pages.
        """
        rows = self._present_rows("slot_mapping", seq_ids, unique=False)
        first = self._counts("slot_mapping", "start", start, rows)
        last = self._counts("slot_mapping", "stop", stop, rows)
        wrong = np.flatnonzero((first > last) | (last > self._sequences.end[rows]))
        if wrong.size:
            at = int(wrong[0])
            end = self._sequences.end[rows[at]]
            raise ContractError(
                f"slot_mapping: stop of sequence {self._sequences.seq_id[rows[at]]} is out of range, "
                f"got [{first[at]}, {last[at]}), need a range within [0, {end})"
            )
        return self._slots("slot_mapping", rows, first, last - first, write=False)

    def stats(self) -> MemoryStats:
        """Return how the pool is used now; costs O(pages).

        Returns
        -------
        MemoryStats
        """
        return measure(self._frames, self._sequences, self._tables, self._page_size)

    def audit(self) -> None:
        """Prove that the books balance (S25): counts against table entries, tables against lengths, flags against both.

        Raises
        ------
        CorruptionError
            Lists everything that is wrong.
        """
        if found := self._problems():
            raise CorruptionError("audit: the memory is corrupt: " + "; ".join(found))

    def _problems(self) -> list[str]:
        """List what an audit finds."""
        return problems(self._frames, self._sequences, self._tables, self._page_size, self._held_for_moves())

    def _held_for_moves(self) -> Int64Array:
        """Return frames that wait for pages on their way in."""
        return np.empty(0, dtype=np.int64)

    def _present_rows(self, function: str, seq_ids: Any, *, unique: bool = True) -> Int64Array:
        """Return the rows of sequences whose pages are in the pool."""
        return self._sequences.rows(function, seq_ids, unique=unique)

    def _reserved(self, rows: Int64Array) -> Int64Array:
        """Return the reserved, not yet committed tokens of rows."""
        ahead: Int64Array = self._sequences.end[rows] - self._sequences.length[rows]
        return ahead

    def _counts(self, function: str, name: str, numbers: Any, rows: Int64Array) -> Int64Array:
        """Return one number for each sequence of a batch, in [0, 2**40]."""
        if type(numbers) is int and 0 <= numbers <= MAX_TOKENS:
            return np.array([numbers] if rows.size == 1 else [numbers] * rows.size, dtype=np.int64)
        given = int_array(function, name, numbers, low=0, high=MAX_TOKENS, scalar=True)
        if np.ndim(numbers) == 0:
            return np.full(rows.size, given[0], dtype=np.int64)
        counts: Int64Array = given.astype(np.int64, copy=False)
        if counts.size != rows.size:
            raise ContractError(f"{function}: {name} has the wrong length, got {counts.size}, need {rows.size}")
        return counts

    def _need_reserved(self, function: str, name: str, rows: Int64Array, counts: Int64Array) -> None:
        """Refuse to touch more tokens than are reserved."""
        ahead = self._reserved(rows)
        if (counts <= ahead).all():
            return
        at = int(np.argmax(counts > ahead))
        raise ContractError(
            f"{function}: {name} of sequence {self._sequences.seq_id[rows[at]]} is more than is reserved, "
            f"got {counts[at]}, need at most {ahead[at]}"
        )

    def _lens(self, function: str, seq_ids: Any, extra: Any) -> tuple[Int64Array, Int64Array]:
        """Return the rows of a batch, and how many tokens of each are meant."""
        rows = self._present_rows(function, seq_ids, unique=False)
        lens: Int64Array = self._sequences.length[rows]
        if extra is not None:
            counts = self._counts(function, "extra", extra, rows)
            self._need_reserved(function, "extra", rows, counts)
            lens = lens + counts
        return rows, lens

    def _slots(
        self, function: str, rows: Int64Array, first: Int64Array, counts: Int64Array, *, write: bool
    ) -> Int64Array:
        """Return the slots of ranges of positions, and mark their pages as accessed, on a write also as dirty."""
        positions = concat_ranges(first, counts)  # (tokens,)
        index = self._tables.index(np.repeat(rows, counts), page_of(positions, self._page_size))  # (tokens,)
        entries = self._tables.entries.reshape(-1)[index]
        frames = frames_of(entries)
        if frames.size and frames.min() < 0:
            at = int(np.argmin(frames))
            raise PageFault(f"{function}: position {positions[at]} is in an unmapped page, got no frame, need a frame")
        self._tables.entries.reshape(-1)[index] = entries | (ACCESSED | DIRTY if write else ACCESSED)
        slots: Int64Array = slot_of(frames, offset_of(positions, self._page_size), self._page_size)
        return slots
