"""Publishing: pages whose tokens are known and committed enter the index (S30)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.memory._codes import Coder
from pagedref.memory._entries import SHARED, WRITABLE, frames_of, pack
from pagedref.memory._index import PrefixIndex
from pagedref.memory._streams import Streams
from pagedref.memory._tables import TableStore
from pagedref.memory.events import Published
from pagedref.memory.frames import FrameAllocator

__all__ = ["Publisher"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
NOT_KNOWN = -1
CLOSED = ~WRITABLE
Done: TypeAlias = list[tuple[int, int, Int64Array]]  # row, first page, frames


class Publisher:
    """Join the index, the codes and what is known of the tokens of sequences.

    Parameters
    ----------
    index : PrefixIndex
        Where pages are published.
    coder : Coder
        Codes of pages.
    streams : Streams
        What is known of tokens.
    deduplicate : bool
        Whether a page that is there already takes the place of the one just completed.

    Attributes
    ----------
    count : int
        Frames published so far.
    """

    def __init__(self, index: PrefixIndex, coder: Coder, streams: Streams, deduplicate: bool) -> None:
        self.index, self.coder, self.streams = index, coder, streams
        self.deduplicate = deduplicate
        self.count = 0

    @staticmethod
    def event(seq_id: int, page: int, frames: Int64Array) -> Published:
        """Return what is told of a publication."""
        return Published(seq_id, page, tuple(frames.tolist()))

    def learn(
        self,
        rows: Int64Array,
        before: Int64Array,
        counts: Int64Array,
        length: Int64Array,
        tokens: Any,
        tables: TableStore,
        frames: FrameAllocator,
    ) -> Done:
        """Take note of committed tokens and publish what they complete.

        Parameters
        ----------
        rows, before, counts, length : int64 arrays (n,)
            Sequences, their lengths before, what was committed, and their lengths now.
        tokens : int32 array (sum of counts,) or None
            The committed tokens; None where they are those of the prompt.
        tables, frames
            Of the manager.

        Returns
        -------
        list of (row, first page, frames)
            What was published.
        """
        self.streams.grow(tables.num_pages.size)
        if rows.size == 1:
            return self._learn_one(int(rows[0]), int(before[0]), int(length[0]), tokens, tables, frames)
        if tokens is None or counts.max(initial=0) > 1:
            done: Done = []
            starts = np.cumsum(counts) - counts
            for at, (row, old, count, new) in enumerate(
                zip(rows.tolist(), before.tolist(), counts.tolist(), length.tolist())
            ):
                part = None if tokens is None else tokens[starts[at] : starts[at] + count]
                done += self._learn_one(row, old, new, part, tables, frames)
            return done
        return self._learn_step(rows[counts > 0], before[counts > 0], tokens, tables, frames)

    def _learn_one(
        self, row: int, before: int, length: int, tokens: Any, tables: TableStore, frames: FrameAllocator
    ) -> Done:
        """Do it for one sequence and any number of tokens."""
        streams, size = self.streams, self.index.page_size
        done: Done = []
        if streams.cursor[row] < 0:
            return done
        prompt = streams.prompts.get(row)
        if prompt is not None:
            first, last = int(streams.published[row]), min(length // size, prompt.pages.shape[0])
            if last > first:
                items = {page - first: item for page, item in prompt.media.items() if first <= page < last}
                done += self._chain(row, prompt.pages[first:last], prompt.codes[first:last], items, tables, frames)
            if last == prompt.pages.shape[0] and length // size >= streams.known[row] // size:
                del streams.prompts[row]  # what is left of it is in the tail
        known = int(streams.known[row])
        if tokens is not None and before <= known < length:
            new = tokens[known - before :]
            have = known % size
            run = np.concatenate([streams.tail[row, :have], new])
            whole = run.size // size
            streams.tail[row, : run.size - whole * size] = run[whole * size :]
            streams.known[row] = length
            if whole and int(streams.published[row]) == known // size:
                pages = run[: whole * size].reshape(whole, size)  # (whole, page_size)
                items = {0: streams.tail_media.pop(row)} if row in streams.tail_media else {}
                codes = self.coder.chain(self.index, int(streams.cursor[row]), known // size, pages, items)
                done += self._chain(row, pages, codes, items, tables, frames)
        return done

    def _learn_step(
        self, rows: Int64Array, before: Int64Array, tokens: Any, tables: TableStore, frames: FrameAllocator
    ) -> Done:
        """Do it for one token of each of many sequences."""
        streams, size = self.streams, self.index.page_size
        current = (streams.cursor[rows] >= 0) & (streams.known[rows] == before)
        if streams.tail_media:
            current &= [row not in streams.tail_media for row in rows.tolist()]
        slow = np.flatnonzero(~current)
        done: Done = []
        for at in slow.tolist():
            row, old = int(rows[at]), int(before[at])
            done += self._learn_one(row, old, old + 1, tokens[at : at + 1], tables, frames)
        rows, before, tokens = rows[current], before[current], tokens[current]
        streams.tail[rows, before % size] = tokens
        streams.known[rows] = before + 1
        full = (before + 1) % size == 0
        rows, pages = rows[full], before[full] // size
        ready = streams.published[rows] == pages
        rows, pages = rows[ready], pages[ready]
        if not rows.size:
            return done
        parents, content = streams.cursor[rows].astype(np.int64), streams.tail[rows]
        codes = self.coder.heads(self.index, parents, pages, content)
        if np.unique(codes).size < codes.size:  # the same page twice in one step, perhaps: one after the other
            for at, row in enumerate(rows.tolist()):
                done += self._chain(row, content[at : at + 1], codes[at : at + 1], {}, tables, frames)
            return done
        nodes = self.index.children_of(parents, codes, content)
        new = nodes < 0
        nodes[new] = self.index.sprout(parents[new], codes[new], content[new])
        named = self._hang((rows, pages), nodes, tables, frames)
        np.add.at(self.index.children, nodes, np.int32(1))
        np.subtract.at(self.index.children, parents, np.int32(1))  # there is a child: none of them goes
        streams.cursor[rows] = nodes
        streams.published[rows] = pages + 1
        return done + [(int(row), int(page), named[at : at + 1]) for at, (row, page) in enumerate(zip(rows, pages))]

    def _chain(
        self, row: int, pages: Any, codes: Any, media: dict[int, bytes], tables: TableStore, frames: FrameAllocator
    ) -> Done:
        """Publish the next pages of one sequence."""
        index, streams = self.index, self.streams
        first, node = int(streams.published[row]), int(streams.cursor[row])
        nodes = index.chain(node, codes, pages, media)
        k = int(nodes.size)
        if k < codes.size:
            rest = {page - k: items for page, items in media.items() if page >= k}
            new = index.grow(int(nodes[-1]) if k else node, codes[k:], pages[k:], rest)
            nodes = np.concatenate([nodes, new]) if k else new
        named = self._hang((row, slice(first, first + codes.size)), nodes, tables, frames)
        last = int(nodes[-1])
        index.children[last] += 1
        index.children[node] -= 1  # there is a child below it: it stays
        streams.cursor[row], streams.published[row] = last, first + codes.size
        return [(row, first, named)]

    def _hang(self, at: Any, nodes: Int64Array, tables: TableStore, frames: FrameAllocator) -> Int64Array:
        """Say what the frames of pages hold, at an index of the tables; they are not written any more."""
        index = self.index
        entries = tables.entries[at]
        named = frames_of(entries)
        fresh = (named >= 0) & (index.node_of[named] < 0)
        if self.deduplicate:
            twin = index.first_frame[nodes].astype(np.int64)
            merge = fresh & (twin >= 0)
            entries = entries.copy()
            for one in np.flatnonzero(merge).tolist():
                frames.revive(twin[one : one + 1])
                entries[one] = pack(int(twin[one]), entries[one] & np.uint64(0xFFFF_FFFF))
                frames.free(named[one : one + 1])
            fresh &= ~merge
        if np.count_nonzero(fresh) == fresh.size:
            new, hung = named, nodes
        else:
            new, hung = named[fresh], nodes[fresh]
        index.hang(hung, new)
        frames.keep(new, index.code[hung] if frames.wants_names else None)
        self.count += int(new.size)
        closed = (entries & CLOSED) | SHARED
        tables.entries[at] = closed if new is named else np.where(named >= 0, closed, entries)
        return frames_of(entries) if self.deduplicate else named

    def truncate(self, row: int, length: int) -> None:
        """Forget what is known of tokens from a position on.

        Parameters
        ----------
        row, length : int
            Row, and the tokens that stay.
        """
        streams, index, size = self.streams, self.index, self.index.page_size
        if streams.cursor[row] < 0 or streams.known[row] <= length:
            return
        page, rest = length // size, length % size
        published, prompt = int(streams.published[row]), streams.prompts.pop(row, None)
        media = streams.tail_media.pop(row, None) if page == int(streams.known[row]) // size else None
        if prompt is not None:
            media = prompt.media.get(page, media)
        if page >= published and prompt is not None and page < prompt.pages.shape[0]:
            streams.tail[row, :rest] = prompt.pages[page, :rest]
        node = int(streams.cursor[row])
        for depth in range(published, page, -1):
            if depth == page + 1:
                streams.tail[row, :rest] = index.tokens[node, :rest]
                media = index.media.get(node)
            node = int(index.parent[node])
        if page < published:
            index.hold(node, 1)
            index.hold(int(streams.cursor[row]), -1)
            streams.cursor[row], streams.published[row] = node, page
        streams.known[row] = length if media is None or not rest else NOT_KNOWN  # a cut through media has no name
