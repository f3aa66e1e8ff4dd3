"""How the pool is used: frames, pages, tokens, and what the last pages leave empty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagedref.memory._sequences import Sequences
from pagedref.memory._tables import TableStore
from pagedref.memory.frames import FrameAllocator
from pagedref.ragged import concat_ranges

__all__ = ["MemoryStats", "measure"]


@dataclass(frozen=True)
class MemoryStats:
    """Use of a pool at one moment.

    Attributes
    ----------
    num_frames, page_size : int
        Geometry.
    free, held, cached : int
        Frames without content, with holders, and kept for hits (S25): together `num_frames`.
    shared : int
        Frames with more than one holder.
    sequences : int
        Live sequences.
    tokens, reserved_tokens : int
        Committed, and reserved beyond them, summed over sequences: shared tokens count for each holder.
    pages : int
        Table entries with a frame: what `held` would be if nothing were shared.
    stored_tokens : int
        Slots that hold a live token: shared tokens count once.
    internal_waste_tokens : int
        Slots of held frames that hold no live token.
    """

    num_frames: int
    page_size: int
    free: int
    held: int
    cached: int
    shared: int
    sequences: int
    tokens: int
    reserved_tokens: int
    pages: int
    stored_tokens: int
    internal_waste_tokens: int

    @property
    def saved_frames(self) -> int:
        """Frames that sharing saves."""
        return self.pages - self.held

    @property
    def utilization(self) -> float:
        """Part of the slots of held frames that hold a live token, in [0, 1]; 1 when nothing is held."""
        return self.stored_tokens / (self.held * self.page_size) if self.held else 1.0


def measure(frames: FrameAllocator, sequences: Sequences, tables: TableStore, page_size: int) -> MemoryStats:
    """Return the use of a pool; costs O(pages).

    Parameters
    ----------
    frames, sequences, tables
        The state of a manager.
    page_size : int
        Slots in a page.

    Returns
    -------
    MemoryStats
    """
    rows = sequences.live_rows()
    lens, ends, pages = sequences.length[rows], sequences.end[rows], tables.num_pages[rows]
    named = tables.frames(rows, pages)  # (pages of all sequences,)
    live = np.repeat(lens, pages) - concat_ranges(np.zeros_like(pages), pages) * page_size
    mapped = named >= 0  # not holes
    named = named[mapped]
    live = np.clip(live[mapped], 0, page_size)  # live tokens in each page, as its sequence sees it
    order = np.argsort(named, kind="stable")
    starts = np.flatnonzero(np.diff(named[order], prepend=-1))
    stored = int(np.maximum.reduceat(live[order], starts).sum()) if starts.size else 0  # each frame once
    return MemoryStats(
        num_frames=frames.num_frames,
        page_size=page_size,
        free=frames.num_free,
        held=frames.num_held,
        cached=frames.num_cached,
        shared=int(np.count_nonzero(frames.refcount > 1)),
        sequences=int(rows.size),
        tokens=int(lens.sum()),
        reserved_tokens=int((ends - lens).sum()),
        pages=int(named.size),
        stored_tokens=stored,
        internal_waste_tokens=frames.num_held * page_size - stored,
    )
