"""Which pages a sequence keeps: cut off, released by a window, pinned (S32)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedref.addressing import num_pages, offset_of, page_of
from pagedref.errors import ContractError, PageFault
from pagedref.memory._entries import NO_FLAG, PINNED, UNMAPPED, frames_of
from pagedref.memory._numbers import MAX_SPAN, whole_number
from pagedref.memory._sharing import PrefixSharing
from pagedref.memory.events import Freed
from pagedref.ragged import concat_ranges

__all__ = ["Residency"]


class Residency(PrefixSharing):
    """Let go of pages, or keep them; see `KVManager`.

    Parameters
    ----------
    num_frames, page_size, **options
        Of `PrefixSharing`.
    """

    def truncate(self, seq_ids: Any, lengths: Any) -> None:
        """Cut sequences off: speculative tokens that were rejected, or a prompt that is edited.

        Reserved tokens go, too. A page that is published or shared is left to others as it is: whoever writes into
        the part that was cut off does so in place or in a copy, as always (S27).

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences, each named once.
        lengths : int or integer array (num_seqs,)
            Tokens that stay, at most those that are live.

        Raises
        ------
        ContractError
            More tokens than are live.
        PageFault
            The last page that stays is partly filled and has no frame.
        """
        rows = self._present_rows("truncate", seq_ids)
        keep = self._counts("truncate", "lengths", lengths, rows)
        live = self._sequences.length[rows]
        if (keep > live).any():
            at = int(np.argmax(keep > live))
            raise ContractError(
                f"truncate: lengths of sequence {self._sequences.seq_id[rows[at]]} is more than is live, "
                f"got {keep[at]}, need at most {live[at]}"
            )
        partial = np.flatnonzero(offset_of(keep, self._page_size) > 0)
        last = frames_of(self._tables.entries[rows[partial], page_of(keep[partial], self._page_size)])
        if last.size and last.min() < 0:
            at = int(partial[int(np.argmin(last))])
            raise PageFault(
                f"truncate: lengths of sequence {self._sequences.seq_id[rows[at]]} end in a hole, "
                f"got {keep[at]}, need a page that has a frame, or its start"
            )
        self._release(rows, num_pages(keep, self._page_size))
        if self._publisher is not None:
            for row, length in zip(rows.tolist(), keep.tolist()):
                self._publisher.truncate(row, length)
        self._sequences.length[rows] = self._sequences.end[rows] = keep

    def release_window(self, seq_ids: Any, window: int, *, sinks: int = 0) -> int:
        """Unmap the pages that no later query can see through a window, and let go of them at once (S5, S32).

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences, each named once.
        window : int
            Keys that a query sees, its own position included, >= 1; of several windows the largest.
        sinks : int
            First tokens that stay visible for ever.

        Returns
        -------
        int
            Pages that became holes. Pinned pages stay.

        Raises
        ------
        ContractError
            A number out of range.
        """
        window = min(whole_number("release_window", "window", window, low=1), MAX_SPAN)
        sinks = min(whole_number("release_window", "sinks", sinks), MAX_SPAN)
        rows = self._present_rows("release_window", seq_ids)
        first = np.minimum(num_pages(sinks, self._page_size), self._tables.num_pages[rows])
        stop = page_of(np.maximum(self._sequences.length[rows] - window + 1, 0), self._page_size)
        counts = np.maximum(stop - first, 0)
        pages = concat_ranges(first, counts)[::-1]
        index = self._tables.index(np.repeat(rows, counts)[::-1], pages)
        flat = self._tables.entries.reshape(-1)
        entries = flat[index]
        gone = (frames_of(entries) >= 0) & ((entries & PINNED) == NO_FLAG)
        index, frames = index[gone], frames_of(entries[gone])
        freed = self._frames.free(frames, self._tables.above(index))
        flat[index] = UNMAPPED
        self._changed(rows)
        if self.on_event is not None and frames.size:
            self.on_event(Freed(tuple(self._sequences.seq_id[rows].tolist()), tuple(freed.tolist())))
        return int(frames.size)

    def pin(self, seq_ids: Any, *, on: bool = True) -> None:
        """Pin all pages that sequences have now, or let go of them again.

        A pinned page is not released by a window, its sequence is not swapped out and never chosen as a victim.

        Parameters
        ----------
        seq_ids : int or integer array (num_seqs,)
            Live sequences.
        on : bool
            False takes the pins off.
        """
        for row in self._present_rows("pin", seq_ids).tolist():
            entries = self._tables.entries[row, : self._tables.num_pages[row]]
            mapped = frames_of(entries) >= 0
            entries[mapped] = entries[mapped] | PINNED if on else entries[mapped] & ~PINNED
        self._last = None

    def is_pinned(self, seq_id: int) -> bool:
        """Tell whether a sequence has pinned pages.

        Parameters
        ----------
        seq_id : int
            A live sequence.

        Returns
        -------
        bool
        """
        row = int(self._sequences.rows("is_pinned", [seq_id])[0])
        entries = self._tables.entries[row, : self._tables.num_pages[row]]
        return bool(((entries & PINNED) != NO_FLAG).any())
