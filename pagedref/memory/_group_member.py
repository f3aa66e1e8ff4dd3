"""One group of layers among several over a pool: a manager of its own, and what the groups ask of each other (S32)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages, page_of
from pagedref.errors import PageFault
from pagedref.memory._entries import PRESENT, SHARED, frames_of, pack
from pagedref.memory._index_audit import index_problems
from pagedref.memory._match import Match, find_match
from pagedref.memory._numbers import MAX_SPAN
from pagedref.memory._views import Int64Array
from pagedref.memory.manager import KVManager
from pagedref.ragged import concat_ranges

__all__ = ["GroupMember"]


class GroupMember(KVManager):
    """Keep the tables of one group of layers in a pool that other groups use, too.

    Parameters
    ----------
    name : str
        Name of the group.
    window : int or None
        Keys that a query of its layers sees.
    num_frames, page_size, **options
        Of `KVManager`; `pool` is the allocator that all groups share.
    """

    def __init__(self, name: str, window: int | None, num_frames: int, page_size: int, **options: Any) -> None:
        super().__init__(num_frames, page_size, **options)
        self.name, self.window = name, None if window is None else min(int(window), MAX_SPAN)

    def first_page(self, length: Any) -> Any:
        """Return the first page that a query at position `length` and later ones can see."""
        return 0 * length if self.window is None else page_of(np.maximum(length - self.window + 1, 0), self._page_size)

    def refuse_released(self, seq_ids: Any, lengths: Any) -> None:
        """Raise PageFault if a sequence that is cut off would need pages that its window has released (S32)."""
        rows = self._present_rows("truncate", seq_ids)
        keep = self._counts("truncate", "lengths", lengths, rows)
        if (keep > self._sequences.length[rows]).any():
            return  # refused by `truncate`
        first = self.first_page(keep)
        counts = num_pages(keep, self._page_size) - first
        index = self._tables.index(np.repeat(rows, counts), concat_ranges(first, counts))
        holes = frames_of(self._tables.entries.reshape(-1)[index]) < 0
        if holes.any():
            at = int(np.repeat(np.arange(rows.size), counts)[int(np.argmax(holes))])
            raise PageFault(
                f"truncate: lengths of sequence {self._sequences.seq_id[rows[at]]} need pages that the window of group "
                f"{self.name!r} has released, got {keep[at]}, need the live tokens or 0"
            )

    # -- prefixes

    def find(self, function: str, tokens: Any, recompute_last: bool, fields: dict[str, Any]) -> Match:
        """Look a prompt up: frames of all its pages that are known here, -1 where one was given up; nothing changes."""
        publisher = self._prefix()
        every = {"adapter": None, "salt": None, "media": (), **fields}
        match = find_match(publisher, function, tokens, recompute_last=recompute_last, **every)
        usable = max(int(match.tokens.size) - recompute_last, 0) // self._page_size
        if self.window is None or match.root < 0 or match.frames.size == usable:
            return match
        nodes = publisher.index.chain(match.root, match.codes[:usable], match.pages[:usable], match.media)
        return match._replace(nodes=nodes, frames=publisher.index.first_frame[nodes].astype(np.int64))

    def lengths(self, match: Match, pages: int) -> npt.NDArray[np.bool_]:
        """Return which hits of 0, 1, ..., `pages` pages this group can give: bool (pages + 1,)."""
        page = np.arange(1, pages + 1)
        missing = np.ones(pages, dtype=np.bool_)
        missing[: match.frames.size] = match.frames[:pages] < 0
        gap = np.maximum.accumulate(np.concatenate([[0], np.where(missing, page, 0)]))  # behind the last missing page
        good: npt.NDArray[np.bool_] = gap <= self.first_page(np.arange(pages + 1) * self._page_size)
        return good

    def visible(self, match: Match, pages: int) -> Int64Array:
        """Return the frames that a hit of some pages takes: -1 for pages that no later query sees."""
        frames = np.full(pages, -1, dtype=np.int64)
        first = int(self.first_page(pages * self._page_size))
        frames[first:] = match.frames[first:pages]
        return frames

    def take(self, seq_id: int, match: Match, pages: int) -> Int64Array:
        """Give a sequence without tokens a hit of some pages that `lengths` says it can have.

        Parameters
        ----------
        seq_id, match, pages
            A sequence, the result of `find`, and the pages that all groups agreed on.

        Returns
        -------
        int64 array
            The frames that it shares now.
        """
        index, coder = self._prefix().index, self._prefix().coder
        frames, nodes = self.visible(match, pages), match.nodes[:pages]
        if nodes.size < pages:  # a window of one key needs none of them: pages without frames stand for the prefix
            k, root, codes = int(nodes.size), match.root, match.codes
            if root < 0:
                root = index.root(match.name, coder.root(match.name))
                whole = match.pages.shape[0]
                items = {page: item for page, item in match.media.items() if page < whole}
                codes = coder.chain(index, root, 0, match.pages, items)
            rest = {page - k: item for page, item in match.media.items() if k <= page < pages}
            new = index.grow(int(nodes[-1]) if k else root, codes[k:pages], match.pages[k:pages], rest)
            match, nodes = match._replace(root=root, codes=codes), np.concatenate([nodes, new])
        row = int(self._sequences.rows("attach_prefix", [seq_id])[0])
        self._attach(row, match._replace(nodes=nodes, frames=frames), True, False, True)
        return frames[frames >= 0]

    def _share_pages(self, row: int, frames: Int64Array) -> None:
        pages = np.flatnonzero(frames >= 0)
        self._frames.revive(frames[pages])
        self._tables.entries[row, pages] = pack(frames[pages], PRESENT | SHARED)

    def owned(self, frames: Int64Array) -> Int64Array:
        """Return those of some frames that hold published pages of this group."""
        if self._publisher is None:
            return frames[:0]
        return frames[self._publisher.index.node_of[frames] >= 0]

    def forget_evicted(self, frames: Int64Array) -> None:
        """Hear from the pool that cached frames are given up, those of other groups among them."""
        own = self.owned(frames)
        if own.size:
            self._evicted(own)

    # -- audit

    def mentions(self) -> Int64Array:
        """Return the frames that tables of this group name, once for each entry."""
        named = frames_of(self._tables.entries).reshape(-1)
        return named[(named >= 0) & (named < self.num_frames)]

    def published(self) -> npt.NDArray[np.bool_]:
        """Return which frames hold published pages of this group: bool (num_frames,)."""
        if self._publisher is None:
            return np.zeros(self.num_frames, dtype=np.bool_)
        return self._publisher.index.node_of >= 0

    def problems_of_index(self, elsewhere: npt.NDArray[np.bool_]) -> list[str]:
        """List what an audit finds in the index; `elsewhere` are frames that other groups published."""
        if self._publisher is None:
            return []
        return index_problems(self._publisher, self._frames, self._sequences, self._tables, elsewhere)
