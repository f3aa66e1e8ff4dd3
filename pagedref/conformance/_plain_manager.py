"""A cache manager in plain Python: counts, sharing, copy on write, prefix hits, eviction (S19-S31).

It is what a manager must do, as short as it can be said; its methods are cut so that each mistake of a mutant is one of
them replaced.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagedref.errors import CorruptionError, OutOfFrames

__all__ = ["PlainManager"]


@dataclass
class _Owner:
    """One sequence: its tokens, those of them that are written, its frames, and what its keys start with."""

    tokens: list[int]
    frames: list[int]
    written: int
    space: Hashable
    keys: list[Any] = field(default_factory=list)


class PlainManager:
    """Manage frames for sequences; see `pagedref.conformance.manager_model.CacheManager`.

    Parameters
    ----------
    num_frames, page_size : int
        Geometry.
    """

    spaces = True

    def __init__(self, num_frames: int, page_size: int) -> None:
        self.page_size = page_size
        self.counts = [0] * num_frames
        self.unused = list(range(num_frames))
        self.cached: dict[int, None] = {}  # frames of count 0 that can be hit, the first to go first
        self.frame_of: dict[Any, int] = {}
        self.key_of: dict[int, Any] = {}
        self.owners: dict[int, _Owner] = {}

    # what the driver calls

    def begin(self, seq: int, tokens: Sequence[int], space: Hashable = None) -> int:
        """Begin a sequence with a prompt; return how many of its tokens are there already."""
        hits = self.match(tokens, space)
        self.check(self.pages(len(tokens)) - len(hits), hits)
        for frame in hits:
            self.share(frame)
        frames = hits + self.take(self.pages(len(tokens)) - len(hits))
        self.owners[seq] = _Owner(list(tokens), frames, len(hits) * self.page_size, space)
        self.owners[seq].keys = self.keys(tokens[: len(hits) * self.page_size], space)
        return len(hits) * self.page_size

    def append(self, seq: int, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """Make room for more tokens; return the copies to carry out first."""
        owner = self.owner(seq)
        copied = self.pages_to_copy(owner) if tokens else []
        new = self.pages(len(owner.tokens) + len(tokens)) - len(owner.frames)
        self.check(new + len(copied), [])
        copies = []
        for page in copied:
            old, owner.frames[page] = owner.frames[page], self.take(1)[0]
            self.drop(old)
            copies.append((old, owner.frames[page]))
        owner.frames += self.take(new)
        owner.tokens += tokens
        return copies

    def commit(self, seq: int) -> None:
        """Note that every token with room is written: whole pages can be hit from now on."""
        owner = self.owner(seq)
        owner.written = len(owner.tokens)
        self.publish(owner)

    def fork(self, parent: int, child: int) -> None:
        """Begin a sequence that shares every page of another."""
        owner = self.owner(parent)
        for frame in owner.frames:
            self.share(frame)
        self.owners[child] = _Owner(owner.tokens[:], owner.frames[:], owner.written, owner.space, owner.keys[:])

    def free(self, seq: int) -> None:
        """End a sequence; its last page is given back first."""
        owner = self.owner(seq)
        del self.owners[seq]
        for frame in self.order_of_release(owner.frames):
            self.drop(frame)

    def table(self, seq: int) -> list[int]:
        """Return the frame of each page."""
        return list(self.owner(seq).frames)

    def lookup(self, tokens: Sequence[int], space: Hashable = None) -> int:
        """Return how many tokens of a prompt would be there."""
        return len(self.match(tokens, space)) * self.page_size

    def num_available(self) -> int:
        """Return how many frames could be given out."""
        return len(self.unused) + len(self.cached)

    # what mutants replace

    def owner(self, seq: int) -> _Owner:
        """Return a live sequence."""
        if seq not in self.owners:
            raise CorruptionError(f"owner: seq is not live, got {seq}, need one that was begun and not freed")
        return self.owners[seq]

    def pages(self, num_tokens: int) -> int:
        """Return the pages of a number of tokens."""
        return -(-num_tokens // self.page_size)

    def keys(self, tokens: Sequence[int], space: Hashable) -> list[Any]:
        """Return the key of each whole page: parent and tokens, from the space on."""
        found: list[Any] = []
        key: Any = ("space", space)
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            key = (key, tuple(tokens[start : start + self.page_size]))
            found.append(key)
        return found

    def match(self, tokens: Sequence[int], space: Hashable) -> list[int]:
        """Return the frames of the longest run of pages that is there; one token is always left to compute."""
        frames = []
        for key in self.keys(tokens[:-1], space):
            if key not in self.frame_of:
                break
            frames.append(self.frame_of[key])
        return frames

    def check(self, needed: int, hits: list[int]) -> None:
        """Refuse before anything changes; hits that nobody holds are needed, not available."""
        available = self.num_available() - sum(frame in self.cached for frame in hits)
        if needed > available:
            text = f"check: num_tokens needs more frames than there are, got {needed}, need at most {available}"
            raise OutOfFrames(text, needed=needed, available=available)

    def take(self, count: int) -> list[int]:
        """Give frames out: those that hold nothing first, then the cached one that was given back first."""
        frames = []
        for _ in range(count):
            frame = self.unused.pop(0) if self.unused else self.evict()
            self.counts[frame] = 1
            frames.append(frame)
        return frames

    def evict(self) -> int:
        """Give up a cached page and its key."""
        frame = next(iter(self.cached))
        del self.cached[frame]
        self.forget(frame)
        return frame

    def forget(self, frame: int) -> None:
        """Remove the key of a frame."""
        key = self.key_of.pop(frame, None)
        if key is not None:
            del self.frame_of[key]

    def share(self, frame: int) -> None:
        """Add a holder; a page that was only cached is in use again."""
        self.cached.pop(frame, None)
        self.counts[frame] += 1

    def drop(self, frame: int) -> None:
        """Remove a holder; the last one leaves the page cached if it has a key."""
        self.counts[frame] -= 1
        if self.counts[frame]:
            return
        if frame in self.key_of:
            self.cached[frame] = None
        else:
            self.unused.append(frame)

    def order_of_release(self, frames: list[int]) -> list[int]:
        """Return frames in the order in which they are given back."""
        return frames[::-1]

    def pages_to_copy(self, owner: _Owner) -> list[int]:
        """Return the page that is written next if others hold it too."""
        page, offset = divmod(len(owner.tokens), self.page_size)
        return [page] if offset and self.counts[owner.frames[page]] > 1 else []

    def publish(self, owner: _Owner) -> None:
        """Let the whole pages of a sequence be hit; the first frame of equal pages is the one."""
        for page, key in enumerate(self.keys(owner.tokens[: owner.written], owner.space)):
            if page >= len(owner.keys):
                owner.keys.append(key)
                if key not in self.frame_of:
                    self.frame_of[key] = owner.frames[page]
                    self.key_of[owner.frames[page]] = key
