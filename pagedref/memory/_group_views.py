"""What can be seen of groups of layers over one pool: tables by group, lengths, statistics, one audit for all (S25)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages
from pagedref.errors import ContractError, CorruptionError
from pagedref.memory._admission import check_amounts
from pagedref.memory._audit import problems
from pagedref.memory._group_member import GroupMember
from pagedref.memory._match import Match, PrefixStats
from pagedref.memory._plans import CopyPlan
from pagedref.memory._stats import MemoryStats, measure
from pagedref.memory._views import Int64Array
from pagedref.memory.events import Event, Shared
from pagedref.memory.frames import FrameAllocator
from pagedref.memory.page_table import PageTable
from pagedref.memory.prefix import PrefixHit
from pagedref.memory.pressure import Need
from pagedref.ragged import CSR

if TYPE_CHECKING:
    from pagedref.memory.groups import LayerGroup

__all__ = ["GroupViews"]

SHOWN = 8


class GroupViews:
    """Hold a member for each group over one pool, and answer questions; `GroupedKVManager` adds what changes them.

    Parameters
    ----------
    num_frames, page_size, groups, frame_order, policy, on_event, **options
        See `GroupedKVManager`.
    """

    def __init__(
        self,
        num_frames: int,
        page_size: int,
        groups: Sequence[LayerGroup],
        *,
        frame_order: Any = None,
        policy: Any = "lru",
        on_event: Callable[[str, Event], None] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(groups, Iterable) or not all(hasattr(group, "num_layers") for group in groups):
            raise ContractError(f"GroupedKVManager: groups are none, got {groups!r:.60}, need LayerGroups")
        self.groups = tuple(groups)
        names, layers = [group.name for group in self.groups], sorted({group.num_layers for group in self.groups})
        if not names or len(set(names)) < len(names):
            raise ContractError(f"GroupedKVManager: groups are none or share a name, got {names}, need different names")
        if len(layers) > 1:
            need = "equally many in each (see equal_groups)"
            raise ContractError(f"GroupedKVManager: groups have different numbers of layers, got {layers}, need {need}")
        self._frames = FrameAllocator(num_frames, frame_order=frame_order, policy=policy, on_evict=self._evicted)
        self._members = tuple(
            GroupMember(group.name, group.window, num_frames, page_size, pool=self._frames, **options)
            for group in self.groups
        )
        for member in self._members:
            member.on_event = None if on_event is None else partial(self._tell, on_event, member.name)
        self._first = self._members[0]  # ids and lengths are the same in all: one may answer
        self._by_name = {member.name: member for member in self._members}
        self._last: tuple[CopyPlan, list[CopyPlan]] | None = None
        self._counted = np.zeros(3, dtype=np.int64)  # requests, queried, hit_tokens

    def __repr__(self) -> str:
        names = ", ".join(self._by_name)
        frames = f"{self.num_free} of {self.num_frames} frames free"
        return f"{type(self).__name__}({names}: {len(self)} sequences, {frames})"

    def __len__(self) -> int:
        return len(self._first)

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._first

    @property
    def num_frames(self) -> int:
        """Frames of the pool."""
        return self._frames.num_frames

    @property
    def page_size(self) -> int:
        """Slots in a page."""
        return self._first.page_size

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
        return self._first.sequences

    @property
    def prefix_stats(self) -> PrefixStats:
        """What prefix sharing saved so far: requests count once, pages and nodes in each group."""
        each = [member.prefix_stats for member in self._members]
        sums = (sum(getattr(stats, field) for stats in each) for field in ("published", "evicted", "nodes"))
        return PrefixStats(*self._counted.tolist(), *sums)

    def seq_len(self, seq_id: int) -> int:
        """Return the number of live tokens of a sequence, the same in all groups."""
        return self._first.seq_len(seq_id)

    def seq_lens(self, seq_ids: Any) -> Int64Array:
        """Return the number of live tokens of each sequence: int64 (num_seqs,)."""
        return self._first.seq_lens(seq_ids)

    def reserved(self, seq_ids: Any) -> Int64Array:
        """Return the number of reserved, not yet committed tokens of each sequence: int64 (num_seqs,)."""
        return self._first.reserved(seq_ids)

    def table(self, seq_id: int, *, group: str | None = None) -> PageTable:
        """Return the page table of a sequence in a group: a copy (see `KVManager.table`)."""
        return self._member("table", group).table(seq_id)

    def csr(self, seq_ids: Any, extra: Any = None, *, group: str | None = None) -> CSR:
        """Return the pages of a batch in a group, -1 for holes (S21; see `KVManager.csr`)."""
        return self._member("csr", group).csr(seq_ids, extra)

    def block_table(self, seq_ids: Any, extra: Any = None, *, group: str | None = None) -> npt.NDArray[np.int32]:
        """Return the padded table of a batch in a group, -1 for holes too (S21; see `KVManager.block_table`)."""
        return self._member("block_table", group).block_table(seq_ids, extra)

    def slots(self, seq_ids: Any, num_tokens: Any, *, group: str | None = None) -> Int64Array:
        """Return the slots of the first reserved tokens in a group (see `KVManager.slots`)."""
        return self._member("slots", group).slots(seq_ids, num_tokens)

    def slot_mapping(self, seq_ids: Any, start: Any, stop: Any, *, group: str | None = None) -> Int64Array:
        """Return the slots of positions in a group (see `KVManager.slot_mapping`)."""
        return self._member("slot_mapping", group).slot_mapping(seq_ids, start, stop)

    def held(self, *, group: str | None = None) -> int:
        """Return how many frames hold pages of live sequences of a group; costs O(pages)."""
        return int(np.unique(self._member("held", group).mentions()).size)

    def match_prefix(self, tokens: Any, *, recompute_last: bool = True, **keys: Any) -> PrefixHit:
        """Say what a prompt would find in all groups; nothing changes and nothing is counted (S29).

        Parameters
        ----------
        tokens, recompute_last, **keys
            The prompt, and `adapter`, `salt`, `media` of `KVManager.attach_prefix`.

        Returns
        -------
        PrefixHit
            Its frames are those of all groups, group after group.
        """
        matches, pages = self._find("match_prefix", tokens, recompute_last, keys)
        return self._hit(pages, [member.visible(match, pages) for member, match in zip(self._members, matches)])

    def need(self, tokens: Any, num_tokens: int | None = None, *, watermark: int = 0, **keys: Any) -> Need:
        """Say what the admission of a prompt takes now, summed over the groups; nothing changes (S26).

        Parameters
        ----------
        tokens, num_tokens, watermark, **keys
            See `KVManager.need`.

        Returns
        -------
        Need
        """
        check_amounts("need", num_tokens, watermark)
        return self._need(*self._find("need", tokens, keys.pop("recompute_last", True), keys), num_tokens, watermark)

    def frames_to_reserve(self, seq_ids: Any, num_tokens: Any) -> int:
        """Return how many frames `reserve` would take, summed over the groups (see `KVManager.frames_to_reserve`)."""
        return sum(member.frames_to_reserve(seq_ids, num_tokens) for member in self._members)

    def stats(self) -> MemoryStats:
        """Return how the pool is used now; pages and stored tokens count in each group. Costs O(pages)."""
        each = [measure(self._frames, m._sequences, m._tables, self.page_size) for m in self._members]
        stored = sum(stats.stored_tokens for stats in each)
        return dataclasses.replace(
            each[0],
            pages=sum(stats.pages for stats in each),
            stored_tokens=stored,
            internal_waste_tokens=self._frames.num_held * self.page_size - stored,
        )

    def audit(self) -> None:
        """Prove that the books of all groups and the pool balance (S25), or raise CorruptionError with a list."""
        found = self._frames.problems()
        mentions = [member.mentions() for member in self._members]
        published = [member.published() for member in self._members]
        for at, member in enumerate(self._members):
            theirs = np.concatenate([np.empty(0, dtype=np.int64), *mentions[:at], *mentions[at + 1 :]])
            lines = problems(self._frames, member._sequences, member._tables, self.page_size, theirs)
            elsewhere = np.zeros(self.num_frames, dtype=np.bool_)
            for mask in published[:at] + published[at + 1 :]:
                elsewhere |= mask
            lines += member.problems_of_index(elsewhere)
            found += [f"group {member.name}: {line}" for line in lines]
        used = [np.bincount(named, minlength=self.num_frames) > 0 for named in mentions]
        twice = np.flatnonzero(sum((a | b).astype(np.int64) for a, b in zip(used, published)) > 1)
        if twice.size:
            found.append(f"frames {twice[:SHOWN].tolist()} are in two groups")
        mine = self._first._sequences
        for member in self._members[1:]:
            fields = ("seq_id", "length", "end")
            if any(not np.array_equal(getattr(mine, f), getattr(member._sequences, f)) for f in fields):
                found.append(f"group {member.name} has other sequences than group {self._first.name}")
        if found:
            raise CorruptionError("audit: the memory is corrupt: " + "; ".join(found))

    def _member(self, function: str, group: str | None) -> GroupMember:
        """Return the member of a group; the only one where none is named."""
        if group is None and len(self._members) == 1:
            return self._first
        if group not in self._by_name:
            names = ", ".join(map(repr, self._by_name))
            raise ContractError(f"{function}: group is unknown, got {group!r}, need one of {names}")
        return self._by_name[group]

    def _find(
        self, function: str, tokens: Any, recompute_last: bool, fields: dict[str, Any]
    ) -> tuple[list[Match], int]:
        """Look a prompt up in all groups, and find the longest hit that all can give.

        A fixed point: lower the length to the longest that one group can give, then the next, until none lowers it.
        What a group can give does not depend on the others, so it is the longest length that all have in common.
        """
        matches = [member.find(function, tokens, recompute_last, fields) for member in self._members]
        most = max(int(matches[0].tokens.size) - recompute_last, 0) // self.page_size
        good = [member.lengths(match, most) for member, match in zip(self._members, matches)]
        return matches, int(np.flatnonzero(np.logical_and.reduce(good))[-1])

    def _hit(self, pages: int, frames: list[Any]) -> PrefixHit:
        """Return a hit of some pages; -1 in `frames` are holes."""
        named, none = np.concatenate(frames), np.empty(0, dtype=np.int64)
        return PrefixHit(pages * self.page_size, named[named >= 0], none, none)

    def _wanted(self, matches: list[Match], pages: int, num_tokens: int | None) -> int:
        """Return the tokens beyond the hit that are to be stored now."""
        rest = int(matches[0].tokens.size) - pages * self.page_size
        return rest if num_tokens is None else min(num_tokens, rest)

    def _need(self, matches: list[Match], pages: int, num_tokens: int | None, watermark: int) -> Need:
        """Return what matches need, summed over the groups."""
        new = int(num_pages(self._wanted(matches, pages, num_tokens), self.page_size)) * len(self._members)
        hit = self._hit(pages, [member.visible(match, pages) for member, match in zip(self._members, matches)])
        return Need(new, self._frames.num_cached_of(hit.frames), self.num_available, watermark)

    def _evicted(self, frames: Int64Array) -> None:
        """Hear from the pool that cached frames are given up, and tell those whose pages they hold."""
        for member in self._members:
            member.forget_evicted(frames)

    @staticmethod
    def _tell(on_event: Callable[[str, Event], None], name: str, event: Event) -> None:
        """Pass an event on with the name of its group."""
        if isinstance(event, Shared):  # a hit names its holes, too
            event = Shared(event.seq_id, tuple(frame for frame in event.frames if frame >= 0))
        on_event(name, event)
