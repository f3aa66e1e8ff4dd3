"""A batch that decodes: one more token for each sequence, step after step, at the price of a few array operations.

A handle remembers where its sequences stand: rows, the slot of the last reserved token, how much room the last page
has, and a block_table of its own. A step then touches pages only where a sequence enters a new one. Whatever else
happens to its sequences (a fork, a rollback, a free) the manager tells it, and it looks again at the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.addressing import last_page_len, num_pages, offset_of, page_of, slot_of
from pagedref.errors import ContractError
from pagedref.memory._entries import ACCESSED, DIRTY, PRESENT, WRITABLE, frames_of, pack
from pagedref.memory._plans import CopyPlan
from pagedref.ragged import CSR

if TYPE_CHECKING:
    from pagedref.memory.manager import KVManager

__all__ = ["Batch", "BatchStep"]

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

NOTHING = CopyPlan(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
FRESH = PRESENT | WRITABLE | ACCESSED | DIRTY
SPARE_PAGES = 8  # columns of the block_table beyond the longest sequence when it is made


class BatchStep(NamedTuple):
    """Where the next token of each sequence goes. The arrays are views, valid until the next call.

    Attributes
    ----------
    slot_mapping : int64 array (num_seqs,)
        Slot of each new token.
    block_table : int32 array (num_seqs, max_pages)
        Frames of all pages, the new token's included; -1 beyond the last page.
    seq_lens : int64 array (num_seqs,)
        Tokens of each, the new one included.
    plan : CopyPlan
        Copies to carry out first; only the first step after a fork has any.
    """

    slot_mapping: Int64Array
    block_table: Int32Array
    seq_lens: Int64Array
    plan: CopyPlan


class Batch:
    """Reserve, view and commit one token of each of many sequences; made by `KVManager.batch`.

    Parameters
    ----------
    manager : KVManager
        The manager.
    rows : int64 array (num_seqs,)
        Rows of the sequences.

    Notes
    -----
    The handle, other handles and the methods of the manager may be mixed; they see the same state at any time. A handle
    that has stepped makes others over the same sequences look again.

    Examples
    --------
    >>> from pagedref.memory import KVManager
    >>> manager = KVManager(num_frames=8, page_size=4)
    >>> a, b = manager.add(), manager.add()
    >>> plan = manager.reserve([a, b], [3, 4])
    >>> manager.commit([a, b], [3, 4])
    >>> batch = manager.batch([a, b])
    >>> step = batch.step()
    >>> step.slot_mapping.tolist(), step.block_table.tolist()
    ([3, 8], [[0, -1], [1, 2]])
    >>> batch.commit()
    >>> batch.step().slot_mapping.tolist(), manager.reserved([a, b]).tolist()
    ([12, 9], [1, 1])
    """

    def __init__(self, manager: KVManager, rows: Int64Array) -> None:
        self._manager = manager
        self._rows = rows
        self._seq_ids = manager._sequences.seq_id[rows]
        self._member = np.zeros(manager._sequences.num_rows, dtype=np.bool_)
        self._member[rows] = True
        self._stale, self._shared = True, False
        self._width = 0
        self._marks: tuple[Int64Array, Int64Array] | None = None
        self._mask: npt.NDArray[np.bool_]
        self._at: Any = rows
        if rows.size and np.array_equal(rows, np.arange(rows[0], rows[0] + rows.size)):
            self._at = slice(int(rows[0]), int(rows[0]) + rows.size)  # neighbours: views in place of gathers
        manager._batches.add(self)

    def __repr__(self) -> str:
        return f"Batch({self._rows.size} sequences)"

    def __len__(self) -> int:
        return int(self._rows.size)

    @property
    def seq_ids(self) -> Int64Array:
        """Ids of the sequences: a copy, int64 (num_seqs,)."""
        return self._seq_ids.copy()

    def notice(self, rows: Any) -> None:
        """Hear that tables of rows changed; called by the manager.

        Parameters
        ----------
        rows : int64 array (n,)
            Rows.
        """
        if not self._stale and self._member[rows[rows < self._member.size]].any():
            self._stale = True

    def step(self) -> BatchStep:
        """Reserve room for one more token of each sequence, all or nothing (S24, S26).

        Returns
        -------
        BatchStep
            Views into this handle: valid until its next call.

        Raises
        ------
        OutOfFrames
            The step as a whole needs more frames than are available; nothing was changed.
        ContractError
            A sequence was freed.
        PageFault
            A sequence is swapped out, and there is no pager.
        """
        if self._stale:
            self._look()
        if self._shared:
            return self._general_step()
        manager, left = self._manager, self._left
        enter = np.flatnonzero(left == 0)  # sequences whose last page is full
        if enter.size:
            frames = manager._frames.alloc(enter.size)  # raises before anything changed
            self._enter(enter, frames)
        if self._marks is not None:  # the first step since we looked: the pages that it writes are marked
            manager._tables.entries[self._marks] |= ACCESSED | DIRTY
            self._marks = None
        self._slots += 1
        left -= 1
        if enter.size:
            self._slots[enter] = frames * self._page_size
            left[enter] = self._page_size - 1
        self._ends += 1
        manager._sequences.end[self._at] = self._ends
        manager._stepped(self, self._rows)
        if manager.on_event is not None:
            manager._tell_reserved(self._seq_ids, frames if enter.size else ())
        return BatchStep(self._slots, self._table[:, : self._width], self._ends, NOTHING)

    def csr(self) -> CSR:
        """Return the pages of the batch in compressed rows (S20), the reserved tokens included.

        Returns
        -------
        CSR
        """
        if self._stale:
            self._look()
        indptr = np.zeros(self._rows.size + 1, dtype=np.int32)
        np.cumsum(self._pages, out=indptr[1:])
        indices = self._table[:, : self._width][self._mask[:, : self._width]]
        return CSR(indptr, indices, last_page_len(self._ends, self._page_size).astype(np.int32))

    def commit(self, tokens: Any = None) -> None:
        """Declare all reserved tokens of the batch written (see `KVManager.commit`).

        Parameters
        ----------
        tokens : integer array (num_seqs,), optional
            Their ids: with them, pages that become full can be hit by others.
        """
        manager = self._manager
        if self._stale:
            self._look()
        if tokens is None and manager._publisher is None:
            manager._sequences.length[self._at] = self._ends
            manager._last = None
        else:
            manager.commit(self._seq_ids, manager._reserved(self._rows), tokens)

    def _enter(self, enter: Int64Array, frames: Int64Array) -> None:
        """Map fresh pages of some sequences, in the manager's tables and in ours."""
        tables, pages = self._manager._tables, self._pages[enter]
        longest = int(pages.max()) + 1
        if longest > tables.entries.shape[1]:
            tables.grow(0, longest)
        if longest > self._table.shape[1]:
            self._widen(2 * longest)
        rows = self._rows[enter]
        tables.entries[rows, pages] = pack(frames, FRESH)
        self._table[enter, pages] = frames
        self._mask[enter, pages] = True
        pages += 1
        tables.num_pages[rows] = pages
        self._pages[enter] = pages
        self._width = max(self._width, longest)

    def _general_step(self) -> BatchStep:
        """Reserve through the manager: a last page is shared."""
        plan = self._manager.reserve(self._seq_ids, 1)
        self._look()
        return BatchStep(self._slots, self._table[:, : self._width], self._ends, plan)

    def _look(self) -> None:
        """Read the state of the sequences; costs O(pages)."""
        manager, rows = self._manager, self._rows
        gone = np.flatnonzero(manager._sequences.seq_id[rows] != self._seq_ids)
        if gone.size:
            raise ContractError(f"batch: sequence is gone, got {self._seq_ids[gone[0]]}, need live sequences")
        manager._present_rows("batch", self._seq_ids)  # a swapped one comes back, or is a fault
        self._page_size = manager.page_size
        self._ends = manager._sequences.end[rows]
        self._pages = num_pages(self._ends, self._page_size)
        self._left = self._pages * self._page_size - self._ends
        self._width = int(self._pages.max()) if rows.size else 0
        shape = (rows.size, self._width + SPARE_PAGES)
        self._table: Int32Array = np.full(shape, -1, dtype=np.int32)
        self._table[:, : self._width] = manager._tables.block_table(rows, self._pages)
        self._mask = np.arange(shape[1]) < self._pages[:, None]  # (num_seqs, columns)
        last = np.maximum(self._ends - 1, 0)
        entries = manager._tables.entries[rows, page_of(last, self._page_size)]
        self._slots: Int64Array = slot_of(frames_of(entries), offset_of(last, self._page_size), self._page_size)
        partial = self._left > 0
        self._shared = bool(((entries & WRITABLE) == 0)[partial].any())
        self._marks = (rows[partial], page_of(last, self._page_size)[partial])
        self._stale = False

    def _widen(self, columns: int) -> None:
        """Give the block_table more columns."""
        more = columns - self._table.shape[1]
        rows = self._rows.size
        self._table = np.hstack([self._table, np.full((rows, more), -1, dtype=np.int32)])
        self._mask = np.hstack([self._mask, np.zeros((rows, more), dtype=np.bool_)])
