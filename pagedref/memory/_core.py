"""The state of a manager and what every change of it has in common: letting go of pages, events, open batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import offset_of, page_of
from pagedref.memory._entries import NO_FLAG, WRITABLE, frames_of
from pagedref.memory._plans import Reservation, last_holders
from pagedref.memory._views import Int64Array, MemoryViews
from pagedref.memory.events import Event, Evicted, Freed, Reserved
from pagedref.memory.frames import FrameAllocator

if TYPE_CHECKING:
    from pagedref.memory.batch import Batch

__all__ = ["ManagerCore"]


class ManagerCore(MemoryViews):
    """Hold the state of a manager; the operations are in the classes derived from this one.

    Parameters
    ----------
    num_frames, page_size, frame_order, policy, on_event, pool
        See `KVManager` and `MemoryViews`.
    """

    def __init__(
        self,
        num_frames: int,
        page_size: int,
        *,
        frame_order: Any = None,
        policy: Any = "lru",
        on_event: Callable[[Event], None] | None = None,
        pool: FrameAllocator | None = None,
    ) -> None:
        options: dict[str, Any] = {"frame_order": frame_order, "policy": policy, "pool": pool}
        super().__init__(num_frames, page_size, on_evict=self._evicted, **options)
        self.on_event = on_event
        self._last: Reservation | None = None
        self._batches: weakref.WeakSet[Batch] = weakref.WeakSet()

    def _changed(self, rows: Any) -> None:
        """Remember that tables changed: the last reservation cannot be cancelled, batches over them look again."""
        self._last = None
        if self._batches:
            for batch in list(self._batches):
                batch.notice(rows)

    def _stepped(self, batch: Batch, rows: Int64Array) -> None:
        """Remember that a batch reserved tokens: all other batches over its rows look again."""
        self._last = None
        if len(self._batches) > 1:
            for other in list(self._batches):
                if other is not batch:
                    other.notice(rows)

    def _evicted(self, frames: Int64Array) -> None:
        """Hear from the pool that cached frames are given up."""
        self._prefix_evicted(frames)
        if self.on_event is not None:
            self.on_event(Evicted(tuple(frames.tolist())))

    def _tell_reserved(self, seq_ids: Int64Array, frames: Any) -> None:
        """Tell of a step of a batch."""
        if self.on_event is not None:
            ids = tuple(seq_ids.tolist())
            self.on_event(Reserved(ids, (1,) * len(ids), tuple(int(frame) for frame in frames)))

    def _prefix_evicted(self, frames: Int64Array) -> None:
        """Forget what is known of the content of frames."""

    def _release(self, rows: Int64Array, keep: Any) -> Int64Array:
        """Unmap the pages of tables beyond the first few, and let go of their frames, tail first (S31)."""
        index, frames = self._tables.tail(rows, keep)
        mapped = frames >= 0
        above = self._tables.above(index[mapped])
        freed = self._frames.free(frames[mapped], above)  # raises before anything is unmapped
        self._tables.cut(rows, keep, index)
        self._changed(rows)
        if self.on_event is not None and frames.size:
            self.on_event(Freed(tuple(self._sequences.seq_id[rows].tolist()), tuple(freed.tolist())))
        return freed

    def _shared_writes(
        self, rows: Int64Array, end: Int64Array, counts: Int64Array
    ) -> tuple[tuple[Int64Array, Int64Array], npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """Return where (row, page) a first write would hit a shared page, the entries there, and who is alone on it.

        Only the page that holds position `end` can be meant, and only when that position is inside of it: pages before
        it are full, pages after it are fresh.
        """
        inside = np.flatnonzero((counts > 0) & (offset_of(end, self._page_size) > 0))
        pages = page_of(end[inside], self._page_size)
        entries = self._tables.entries[rows[inside], pages]
        shared = np.flatnonzero((entries & WRITABLE) == NO_FLAG)
        entries = entries[shared]
        frames = frames_of(entries)
        alone = last_holders(frames, self.refcount[frames]) if frames.size else np.empty(0, dtype=np.bool_)
        return (rows[inside[shared]], pages[shared]), entries, alone
