"""Deliberately wrong managers: one for each fault of a public one, each a method of the plain manager replaced."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from pagedref.conformance._plain_manager import PlainManager, _Owner

__all__ = ["MANAGER_MUTANTS", "ManagerMutant"]


@dataclass(frozen=True)
class ManagerMutant:
    """A wrong manager.

    Attributes
    ----------
    factory : type
        Makes it.
    fault : str
        Number of the fault.
    text : str
        What it does wrong.
    kinds : tuple of str
        What the model may call it.
    """

    factory: type[PlainManager]
    fault: str
    text: str
    kinds: tuple[str, ...]


class _DropsTwice(PlainManager):
    """Copying on write gives the old frame back twice."""

    def append(self, seq: int, tokens: Sequence[int]) -> list[tuple[int, int]]:
        copies = super().append(seq, tokens)
        for source, _ in copies:
            if self.counts[source]:
                self.drop(source)
        return copies


class _CountsEntries(PlainManager):
    """A fork counts the first page once more: it is never free again."""

    def fork(self, parent: int, child: int) -> None:
        super().fork(parent, child)
        self.share(self.owners[parent].frames[0])


class _ForkDoesNotCount(PlainManager):
    """A fork copies the table and counts nothing."""

    def fork(self, parent: int, child: int) -> None:
        super().fork(parent, child)
        for frame in self.owners[child].frames:
            self.counts[frame] -= 1


class _WritesShared(PlainManager):
    """Nothing is copied before a write."""

    def pages_to_copy(self, owner: _Owner) -> list[int]:
        return []


class _CopiesBackwards(PlainManager):
    """Copies are reported the wrong way round."""

    def append(self, seq: int, tokens: Sequence[int]) -> list[tuple[int, int]]:
        return [(target, source) for source, target in super().append(seq, tokens)]


class _SharesTail(PlainManager):
    """A partly filled last page has a key, and is handed to a second writer without a copy."""

    def publish(self, owner: _Owner) -> None:
        super().publish(owner)
        whole = len(owner.keys)
        tail = tuple(owner.tokens[whole * self.page_size : owner.written])
        if tail:
            parent = owner.keys[-1] if owner.keys else ("space", owner.space)
            self.frame_of.setdefault((parent, "tail", tail), owner.frames[whole])
            self.key_of.setdefault(owner.frames[whole], (parent, "tail", tail))

    def begin(self, seq: int, tokens: Sequence[int], space: Hashable = None) -> int:
        hit = super().begin(seq, tokens, space)
        owner, whole = self.owners[seq], hit // self.page_size
        parent = owner.keys[-1] if owner.keys else ("space", space)
        for size in range(min(self.page_size, len(tokens) - hit) - 1, 0, -1):
            frame = self.frame_of.get((parent, "tail", tuple(tokens[hit : hit + size])))
            if frame is not None and self.counts[frame]:
                self.drop(owner.frames[whole])
                owner.frames[whole] = frame
                self.share(frame)
                return hit + size
        return hit

    def forget(self, frame: int) -> None:
        key = self.key_of.pop(frame, None)
        self.frame_of.pop(key, None)


class _PinsFirst(PlainManager):
    """Hits are held before the check, and stay held when it refuses."""

    def check(self, needed: int, hits: list[int]) -> None:
        for frame in hits:
            self.share(frame)
        super().check(needed, [])
        for frame in hits:
            self.drop(frame)


class _CountsHitsTwice(PlainManager):
    """Hits that nobody holds are counted as available; the shortage shows half way."""

    def check(self, needed: int, hits: list[int]) -> None:
        super().check(needed, [])

    def evict(self) -> int:
        if not self.cached:
            raise MemoryError("evict: nothing is cached")
        return super().evict()


class _TakesBeforeCheck(PlainManager):
    """An append takes frames one by one until there is none."""

    def append(self, seq: int, tokens: Sequence[int]) -> list[tuple[int, int]]:
        owner, copies = self.owner(seq), []
        for token in tokens:
            copies += super().append(seq, [token])
        self.owners[seq] = owner
        return copies


class _HitResets(PlainManager):
    """Taking a free page into use again removes its key."""

    def share(self, frame: int) -> None:
        if frame in self.cached:
            self.forget(frame)
        super().share(frame)


class _KeepsKeys(PlainManager):
    """A page that is given up keeps its key."""

    def forget(self, frame: int) -> None:
        self.key_of.pop(frame, None)


class _PublishesEarly(PlainManager):
    """Keys are there as soon as there is room."""

    def begin(self, seq: int, tokens: Sequence[int], space: Hashable = None) -> int:
        hit = super().begin(seq, tokens, space)
        owner = self.owners[seq]
        written, owner.written = owner.written, len(tokens)
        self.publish(owner)
        owner.written = written
        return hit


class _ShallowFirst(PlainManager):
    """Pages are given back first page first."""

    def order_of_release(self, frames: list[int]) -> list[int]:
        return frames


class _PastHoles(PlainManager):
    """All pages of a prompt that are there are counted, not the first run of them."""

    def match(self, tokens: Sequence[int], space: Hashable) -> list[int]:
        keys = self.keys(tokens[:-1], space)
        there = [key in self.frame_of for key in keys]
        last = max((at for at, found in enumerate(there) if found), default=-1)
        return [self.frame_of.get(key, 0) for key in keys[: last + 1]]


class _ForgetsLastPage(PlainManager):
    """A full last page is counted as empty, and not given back."""

    def free(self, seq: int) -> None:
        owner = self.owner(seq)
        if len(owner.tokens) % self.page_size == 0:
            owner.frames = owner.frames[:-1]
        super().free(seq)


class _TakesEarly(PlainManager):
    """A page is taken when the one before is full, not when its first token comes."""

    def pages(self, num_tokens: int) -> int:
        return num_tokens // self.page_size + 1


class _TakesLate(PlainManager):
    """A page is taken one token late."""

    def pages(self, num_tokens: int) -> int:
        return max(-(-(num_tokens - 1) // self.page_size), 1)


class _UntaggedKeys(PlainManager):
    """Keys hold the name, not whether it is that of an adapter or of a salt."""

    def keys(self, tokens: Sequence[int], space: Hashable) -> list[Any]:
        return super().keys(tokens, space[-1] if isinstance(space, tuple) else space)


class _SpaceInFirstPage(PlainManager):
    """Keys of later pages leave the space out."""

    def keys(self, tokens: Sequence[int], space: Hashable) -> list[Any]:
        first, others = super().keys(tokens, space)[:1], super().keys(tokens, None)[1:]
        return first + others


class _WeakHash(PlainManager):
    """A key is a number in base 31, and tokens are not compared."""

    def keys(self, tokens: Sequence[int], space: Hashable) -> list[Any]:
        found: list[Any] = []
        key = hash(("space", space)) % 1000
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            for token in tokens[start : start + self.page_size]:
                key = key * 31 + token
            found.append((key, start))
        return found


class _NoParent(PlainManager):
    """The key of a page is its tokens alone."""

    def keys(self, tokens: Sequence[int], space: Hashable) -> list[Any]:
        return [(space, key[1]) for key in super().keys(tokens, space)]


class _HitsAll(PlainManager):
    """The whole prompt may be hit."""

    def match(self, tokens: Sequence[int], space: Hashable) -> list[int]:
        return super().match([*tokens, 0], space)


class _LeavesTheLast(PlainManager):
    """A sequence that is freed leaves its last page held."""

    def order_of_release(self, frames: list[int]) -> list[int]:
        return frames[:-1]


class _FreesSharedPages(PlainManager):
    """Freeing gives a page back though others hold it."""

    def drop(self, frame: int) -> None:
        if self.counts[frame] > 1:
            self.unused.append(frame)
        super().drop(frame)


class _FreesTwice(PlainManager):
    """A second free is accepted in silence."""

    def free(self, seq: int) -> None:
        if seq in self.owners:
            super().free(seq)


class _NeverHits(PlainManager):
    """Keys are compared with an object that is new each time."""

    def match(self, tokens: Sequence[int], space: Hashable) -> list[int]:
        return []


_LOST = ("content is lost", "shared page written", "double free")

MANAGER_MUTANTS: dict[str, ManagerMutant] = {
    mutant.factory.__name__.lstrip("_"): mutant
    for mutant in (
        ManagerMutant(_DropsTwice, "P38", "a copy on write drops the old frame twice", ("double free",)),
        ManagerMutant(_CountsEntries, "P38", "a fork counts a page once too often", ("leak",)),
        ManagerMutant(_ForkDoesNotCount, "P38", "a fork counts nothing", _LOST),
        ManagerMutant(_WritesShared, "P39", "a shared page is written without a copy", ("shared page written",)),
        ManagerMutant(_CopiesBackwards, "P39", "copies go the wrong way", _LOST),
        ManagerMutant(_SharesTail, "P39", "a partly filled page is handed to a second writer",
                      ("shared page written", "double free", "hit on other content")),
        ManagerMutant(_PinsFirst, "P41", "a refusal leaves hits held", ("refusal changes state", "leak")),
        ManagerMutant(_CountsHitsTwice, "P41", "hits are counted as available", ("refusal changes state", "leak")),
        ManagerMutant(_TakesBeforeCheck, "P41", "a refused append keeps what it took", ("refusal changes state",)),
        ManagerMutant(_HitResets, "P42", "a hit of a free page removes its key", ("cached page is lost",)),
        ManagerMutant(_KeepsKeys, "P42", "a recycled page keeps its key", ("stale key", "hit on other content")),
        ManagerMutant(_PublishesEarly, "P43", "keys are published before the write", ("hit before publication",)),
        ManagerMutant(_ShallowFirst, "P45", "the first page of a chain is given up first", ("eviction order",)),
        ManagerMutant(_PastHoles, "P45", "hits are counted past a hole", ("hit counted past a hole", "stale key")),
        ManagerMutant(_ForgetsLastPage, "P48", "a full last page is counted as empty", ("leak",)),
        ManagerMutant(_TakesEarly, "P49", "a page is taken one token early", ("page taken early",)),
        ManagerMutant(_TakesLate, "P49", "a page is taken one token late", ("page taken late",)),
        ManagerMutant(_UntaggedKeys, "P50", "adapter X and salt X have one key", ("keys mix spaces",)),
        ManagerMutant(_SpaceInFirstPage, "P50", "later pages have keys without the space", ("keys mix spaces",)),
        ManagerMutant(_WeakHash, "P51", "different tokens have one key", ("false hit",)),
        ManagerMutant(_NoParent, "P51", "keys leave out what came before", ("false hit", "hit counted past a hole")),
        ManagerMutant(_HitsAll, "P52", "a prompt is hit to its end", ("whole prompt hits",)),
        ManagerMutant(_LeavesTheLast, "leak", "the last page is never given back", ("leak",)),
        ManagerMutant(_FreesSharedPages, "double free", "a page is given back while others hold it", ("double free",)),
        ManagerMutant(_FreesTwice, "double free", "a second free is accepted", ("double free",)),
        ManagerMutant(_NeverHits, "P42", "nothing is ever hit", ("cached page is lost",)),
    )
}  # fmt: skip
"""The mutants by name."""
