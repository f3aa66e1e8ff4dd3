"""Prefix sharing: publish whole pages when they are written, find them for new prompts, share them (S28-S30)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pagedref.errors import ContractError
from pagedref.memory._codes import Coder, FastCoder, KeyCoder
from pagedref.memory._core import ManagerCore
from pagedref.memory._entries import PRESENT, SHARED, WRITABLE, pack
from pagedref.memory._index import PrefixIndex
from pagedref.memory._index_audit import index_problems
from pagedref.memory._match import Match, PrefixStats, find_match, keys_of, longest_child
from pagedref.memory._numbers import whole_number
from pagedref.memory._publish import Publisher
from pagedref.memory._streams import Prompt, Streams
from pagedref.memory._views import Int64Array
from pagedref.memory.events import Copied, Hit, Shared
from pagedref.memory.prefix import PrefixHit, root_message, token_array

__all__ = ["PrefixSharing", "PrefixStats"]

NONE = np.empty(0, dtype=np.int64)


class PrefixSharing(ManagerCore):
    """Find and share pages; see `KVManager`.

    Parameters
    ----------
    num_frames, page_size
        Geometry of the pool.
    deduplicate : bool
        Whether a page that is completed a second time is given up for the first one.
    hash_function : callable, optional
        Bytes to bytes: makes the codes of the index the keys of this function (studies, tests).
    **options
        Of `ManagerCore`.
    """

    def __init__(
        self,
        num_frames: int,
        page_size: int,
        *,
        deduplicate: bool = False,
        hash_function: Callable[[bytes], bytes] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_frames, page_size, **options)
        self._hash = hash_function
        self._deduplicate = deduplicate
        self._requests = self._queried = self._hit_tokens = self._given_up = 0
        self._publisher: Publisher | None = None

    @property
    def prefix_stats(self) -> PrefixStats:
        """What prefix sharing saved so far."""
        nodes = self._publisher.index.num_nodes - 1 if self._publisher else 0
        published = self._publisher.count if self._publisher else 0
        return PrefixStats(self._requests, self._queried, self._hit_tokens, published, self._given_up, nodes)

    def match_prefix(
        self,
        tokens: Any,
        *,
        adapter: Any = None,
        salt: Any = None,
        media: Iterable[Sequence[Any]] = (),
        recompute_last: bool = True,
    ) -> PrefixHit:
        """Say what a prompt would find; nothing changes and nothing is counted (S29).

        Parameters
        ----------
        tokens, adapter, salt, media, recompute_last
            See `attach_prefix`.

        Returns
        -------
        PrefixHit
            `src` and `dst` are empty.
        """
        match = self._match("match_prefix", tokens, adapter, salt, media, recompute_last)
        none = np.empty(0, dtype=np.int64)
        return PrefixHit(match.frames.size * self._page_size, match.frames, none, none)

    def attach_prefix(
        self,
        seq_id: int,
        tokens: Any,
        *,
        adapter: Any = None,
        salt: Any = None,
        media: Iterable[Sequence[Any]] = (),
        recompute_last: bool = True,
        partial_tail: bool = False,
        resumed: bool = False,
    ) -> PrefixHit:
        """Give a sequence without tokens the longest prefix of its prompt that is in the pool (S28-S30).

        Whole pages are shared in place, at most ``n - 1`` tokens of them: one at least is always computed. The prompt
        is remembered, so that its pages are published as they are committed.

        Parameters
        ----------
        seq_id : int
            A live sequence without tokens.
        tokens : integer array (n,)
            The prompt, token ids in ``[0, 2**31)``.
        adapter, salt : None, int, str, bytes or tuple
            Who shares with whom: only prompts with the same adapter and salt find each other.
        media : iterable of Media
            Runs of positions of the prompt whose tokens stand for something else.
        recompute_last : bool
            False lets all n tokens hit, for studies.
        partial_tail : bool
            Whether a page that matches in its first tokens is copied, where a frame is available for it.
        resumed : bool
            Whether this request was here before (a preemption): it is not counted again.

        Returns
        -------
        PrefixHit
            With `partial_tail`, a copy that the caller carries out **before it does anything else**.

        Raises
        ------
        ContractError
            The sequence has tokens, or an argument has the wrong type or range.
        """
        row = int(self._sequences.rows("attach_prefix", [seq_id])[0])
        if self._sequences.end[row]:
            got = self._sequences.end[row]
            raise ContractError(f"attach_prefix: seq_id {seq_id} has tokens or room for them, got {got}, need none")
        match = self._match("attach_prefix", tokens, adapter, salt, media, recompute_last)
        return self._attach(row, match, recompute_last, partial_tail, resumed)

    def _match(
        self, function: str, tokens: Any, adapter: Any, salt: Any, media: Any, recompute_last: bool
    ) -> Match:
        """Look a prompt up."""
        return find_match(
            self._prefix(), function, tokens, adapter=adapter, salt=salt, media=media, recompute_last=recompute_last
        )

    def _attach(self, row: int, match: Match, recompute_last: bool, partial_tail: bool, resumed: bool) -> PrefixHit:
        """Share what was found; cannot fail."""
        publisher, size = self._prefix(), self._page_size
        root, codes, frames = match.root, match.codes, match.frames
        whole, known = match.pages.shape[0], match.tokens.size
        if root < 0:
            root = publisher.index.root(match.name, publisher.coder.root(match.name))
            items = {page: item for page, item in match.media.items() if page < whole} if match.media else {}
            codes = publisher.coder.chain(publisher.index, root, 0, match.pages, items)
        hits = int(frames.size)
        node = int(match.nodes[-1]) if hits else root
        publisher.index.children[node] += 1
        if publisher.streams.cursor[row] >= 0:  # named before, and without tokens now: the last name counts
            publisher.index.hold(publisher.streams.close(row), -1)
        publisher.streams.open(row, node, hits, known)
        if known > whole * size:
            publisher.streams.tail[row, : known - whole * size] = match.tokens[whole * size :]
        publisher.streams.prompts[row] = Prompt(match.pages, codes, match.media)
        if whole in match.media:
            publisher.streams.tail_media[row] = match.media[whole]
        rows = np.array([row])
        if hits:
            self._tables.grow(0, hits)
            self._share_pages(row, frames)
            self._tables.num_pages[row] = hits
        length = hits * size
        src = dst = NONE
        if partial_tail:
            rest = match.tokens[length : min(known - recompute_last, length + size)]
            src, dst, more = self._partial_tail(rows, node, rest, match.media.get(hits))
            length += more
        self._sequences.length[row] = self._sequences.end[row] = length
        if not resumed:
            self._requests += 1
            self._queried += known
            self._hit_tokens += length
        self._changed(rows)
        if self.on_event is not None:
            seq_id = int(self._sequences.seq_id[row])
            self.on_event(Hit(seq_id, length, known))
            if hits:
                self.on_event(Shared(seq_id, tuple(frames.tolist())))
            if dst.size:
                self.on_event(Copied(tuple(src.tolist()), tuple(dst.tolist())))
        return PrefixHit(length, frames, src, dst)

    def _share_pages(self, row: int, frames: Int64Array) -> None:
        """Give the first pages of a table frames that were found."""
        self._frames.revive(frames)
        self._tables.entries[row, : frames.size] = pack(frames, PRESENT | SHARED)

    def _partial_tail(
        self, rows: Int64Array, node: int, rest: Any, media: bytes | None
    ) -> tuple[Int64Array, Int64Array, int]:
        """Take a frame for a copy of the page that matches `rest` longest, if there is one and a frame to be had."""
        index = self._prefix().index
        none = np.empty(0, dtype=np.int64)
        below, length = longest_child(index, node, rest) if media is None else (-1, 0)
        if length == 0:
            return none, none, 0
        src = index.first_frame[below : below + 1].astype(np.int64)
        if self.num_available - int(self.refcount[src[0]] == 0) < 1:
            return none, none, 0
        self._frames.revive(src)  # not to be given up for its own copy
        dst = self._frames.alloc(1)
        self._frames.free(src)
        self._tables.grow(0, int(self._tables.num_pages[rows[0]]) + 1)
        self._tables.extend(rows, np.array([1]), dst, PRESENT | WRITABLE)
        return src, dst, length

    def page_keys(self, seq_id: int) -> list[bytes]:
        """Return the SHA-256 keys of the published pages of a sequence (S28): their names on a disk or elsewhere.

        Parameters
        ----------
        seq_id : int
            A live sequence.

        Returns
        -------
        list of bytes
            One for each page from page 0 on that is published, whether or not it has a frame now: a key names what a
            page holds, and stays right for a page that is swapped out, released by a window or given up.
        """
        row = int(self._sequences.rows("page_keys", [seq_id])[0])
        publisher = self._publisher
        return [] if publisher is None else keys_of(publisher, int(publisher.streams.cursor[row]))

    def clear_prefixes(self) -> int:
        """Forget everything that is only cached; those frames are free from now on.

        Returns
        -------
        int
            How many frames that were.
        """
        return self.evict(self._frames.num_cached)

    def evict(self, n: int) -> int:
        """Give up cached frames without handing them out: they are free from now on (S31).

        Parameters
        ----------
        n : int
            How many; fewer when fewer are cached.

        Returns
        -------
        int
            How many it was.
        """
        frames = self._frames.give_up(min(whole_number("evict", "n", n), self._frames.num_cached))
        self._last = None
        return int(frames.size)

    def _prefix(self) -> Publisher:
        """Return what publishes pages, made at the first use."""
        if self._publisher is None:
            index = PrefixIndex(self.num_frames, self._page_size)
            coder: Coder = FastCoder(self._page_size) if self._hash is None else KeyCoder(self._hash)
            streams = Streams(self._sequences.num_rows, self._page_size)
            self._publisher = Publisher(index, coder, streams, self._deduplicate)
        return self._publisher

    def _prefix_evicted(self, frames: Int64Array) -> None:
        """Forget what is known of the content of frames."""
        if self._publisher is not None:
            self._publisher.index.drop(frames)
            self._given_up += int(frames.size)

    def _unpublish(self, frames: Int64Array) -> None:
        """Take back the publication of frames that are about to be written in place."""
        if self._publisher is None:
            return
        frames = frames[self._publisher.index.node_of[frames] >= 0]
        if frames.size:
            self._publisher.index.drop(frames)
            self._frames.forget(frames)

    def _learn(self, rows: Int64Array, before: Int64Array, counts: Int64Array, tokens: Any) -> None:
        """Take note of committed tokens, and publish the pages that they complete."""
        if tokens is None and self._publisher is None:
            return
        publisher = self._prefix()
        if tokens is not None:
            self._open_streams(publisher, rows[before == 0])
        length = self._sequences.length[rows]
        published = publisher.learn(rows, before, counts, length, tokens, self._tables, self._frames)
        if published and publisher.deduplicate:
            self._changed(rows)  # tables may name other frames now
        if self.on_event is not None:
            for row, page, frames in published:
                self.on_event(publisher.event(int(self._sequences.seq_id[row]), page, frames))

    def _open_streams(self, publisher: Publisher, rows: Int64Array) -> None:
        """Begin streams of sequences whose first tokens are committed now."""
        new = rows[publisher.streams.cursor[rows] < 0]
        if new.size:
            name = root_message()
            root = publisher.index.root(name, publisher.coder.root(name))
            for row in new.tolist():
                publisher.streams.open(row, root, 0, 0)
                publisher.index.hold(root, 1)

    def _problems(self) -> list[str]:
        """List what an audit finds, the index included."""
        found = super()._problems()
        if self._publisher is not None:
            found += index_problems(self._publisher, self._frames, self._sequences, self._tables)
        return found

    def _grow_rows(self) -> None:
        """Make room for as many rows as there are sequences."""
        if self._sequences.num_rows <= self._tables.num_pages.size:
            return  # of streams there are as many as of tables
        self._tables.grow(self._sequences.num_rows, 0)
        if self._publisher is not None:
            self._publisher.streams.grow(self._sequences.num_rows)

    def _fork_stream(self, parent: int, child: int) -> None:
        """Let a child know what its parent knows."""
        if self._publisher is not None:
            node = self._publisher.streams.copy(parent, child)
            if node >= 0:
                self._publisher.index.hold(node, 1)

    def _close_streams(self, rows: Int64Array) -> None:
        """End the streams of sequences that are freed."""
        if self._publisher is not None:
            for row in rows.tolist():
                node = self._publisher.streams.close(row)
                if node >= 0:
                    self._publisher.index.hold(node, -1)

    def _check_tokens(self, tokens: Any, counts: Int64Array) -> Any:
        """Return checked token ids of a commit, one for each committed token."""
        array = token_array("commit", tokens)
        if array.size != counts.sum():
            raise ContractError(f"commit: tokens has the wrong length, got {array.size}, need {int(counts.sum())}")
        return array
