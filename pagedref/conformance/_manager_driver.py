"""The stateful model: drives a cache manager, writes contents where it says, and finds what no manager may do.

A pool of contents stands beside the manager. A token's content is its whole history: the tokens before it and the space
of its keys. So whoever reads a slot sees whose it is, and every rule becomes a comparison.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["Driver", "Problem"]

Content = tuple[Hashable, tuple[int, ...]]

_LAST, _NEXT = 5, 7  # tokens that no program uses


class Problem(AssertionError):
    """A rule that the manager broke.

    Parameters
    ----------
    kind : str
        What kind of mistake it is.
    rule : str
        Of the specification.
    detail : str
        What was seen.
    """

    def __init__(self, kind: str, rule: str, detail: str) -> None:
        super().__init__(f"{kind} ({rule}): {detail}")
        self.kind, self.rule, self.detail = kind, rule, detail


@dataclass
class _Sequence:
    tokens: list[int]
    written: int
    space: Hashable

    def page(self, index: int, page_size: int) -> Content:
        """Return the content of a whole page: its history up to the page's end."""
        return self.space, tuple(self.tokens[: (index + 1) * page_size])


class Driver:
    """One manager and what it has been told.

    Parameters
    ----------
    manager : object
        Under test.
    num_frames, page_size : int
        Its geometry.
    """

    def __init__(self, manager: Any, num_frames: int, page_size: int) -> None:
        self.manager, self.num_frames, self.page_size = manager, num_frames, page_size
        self.live: dict[int, _Sequence] = {}
        self.pool: dict[tuple[int, int], Content] = {}
        self.published: dict[Content, set[int]] = {}  # whole pages that were committed, and all frames of them
        self.released: dict[int, int] = {}  # when the last holder of a frame gave it back
        self.unwritten: set[Content] = set()  # whole pages that were promised and not committed
        self.tables: dict[int, list[int]] = {}
        self.clock = 0
        self.caches = callable(getattr(manager, "lookup", None))
        self.counts = callable(getattr(manager, "num_available", None))

    # operations

    def begin(self, seq: int, tokens: Sequence[int], space: Hashable = None) -> int:
        """Begin a sequence; return the hit."""
        self.clock += 1
        keys = {"space": space} if space is not None else {}
        held, hit = self._held(), self._known_hit(tokens, space)
        need = self._pages(len(tokens)) - hit // self.page_size
        pages = self._chain(tokens, space)[: hit // self.page_size]
        idle = sum(bool(self.published[content] - held) for content in pages)  # needed, hence not available
        room = self.num_frames - len(held) - idle
        call = lambda: self.manager.begin(seq, list(tokens), **keys)  # noqa: E731
        hit = int(self._attempt(call, need, room, f"begin of {len(tokens)}") or 0)
        sequence = _Sequence(list(tokens), hit, space)
        self.live[seq] = sequence
        self._judge_hit(seq, sequence, hit)
        self._look(written_by=seq, first=hit)
        for page in range(hit // self.page_size, len(tokens) // self.page_size):
            if sequence.page(page, self.page_size) not in self.published:
                self.unwritten.add(sequence.page(page, self.page_size))
        return hit

    def append(self, seq: int, tokens: Sequence[int]) -> int:
        """Make room for more tokens; return the number of copies."""
        self.clock += 1
        sequence = self.live[seq]
        before, table = len(sequence.tokens), self.tables[seq]
        shared = bool(before % self.page_size and tokens and self._holders(table[-1], but=seq))
        need = self._pages(before + len(tokens)) - self._pages(before) + shared
        room = self.num_frames - len(self._held())
        copies = self._attempt(lambda: self.manager.append(seq, list(tokens)), need, room, f"append of {len(tokens)}")
        for source, target in copies or []:
            if self._holders(target, but=seq):
                self._fail("double free", "S25", f"frame {target}, the target of a copy, is held by another sequence")
            for offset in range(self.page_size):
                self.pool.pop((target, offset), None)
                if (source, offset) in self.pool:
                    self.pool[target, offset] = self.pool[source, offset]
        sequence.tokens += tokens
        self._look(written_by=seq, first=before, table_before=table)
        return len(copies or [])

    def commit(self, seq: int) -> None:
        """Write what has room, then say so."""
        self.clock += 1
        sequence, table = self.live[seq], self.tables[seq]
        for position in range(sequence.written, len(sequence.tokens)):
            page, offset = divmod(position, self.page_size)
            self.pool[table[page], offset] = sequence.space, tuple(sequence.tokens[: position + 1])
        self._attempt(lambda: self.manager.commit(seq), 0, self.num_frames, "commit")
        begun, sequence.written = sequence.written // self.page_size, len(sequence.tokens)
        for page in range(begun, len(sequence.tokens) // self.page_size):
            content = sequence.page(page, self.page_size)
            self.unwritten.discard(content)
            frames = self.published.setdefault(content, set())
            if not any(self._resident(content, frame) for frame in frames - {table[page]}):
                frames.clear()  # all were given up: it begins anew
            frames.add(table[page])
        self._look()

    def fork(self, parent: int, child: int) -> None:
        """Share every page; only of a parent without tokens that are not written."""
        self.clock += 1
        self._attempt(lambda: self.manager.fork(parent, child), 0, self.num_frames, "fork")
        origin = self.live[parent]
        self.live[child] = _Sequence(origin.tokens[:], origin.written, origin.space)
        self._look()
        if self.tables[child] != self.tables[parent]:
            self._fail("fork does not share", "S27", f"tables {self.tables[parent]} and {self.tables[child]}")

    def free(self, seq: int) -> None:
        """End a sequence."""
        self.clock += 1
        self._attempt(lambda: self.manager.free(seq), 0, self.num_frames, "free")
        table = self.tables.pop(seq)
        del self.live[seq]
        held = self._held()
        self.released |= dict.fromkeys(set(table) - held, self.clock)
        self._look()

    def free_again(self, seq: int) -> None:
        """Free a sequence that has ended: refused."""
        try:
            self.manager.free(seq)
        except Exception:
            return self._look()
        self._fail("double free", "S25", f"sequence {seq} was freed twice and the second time accepted")

    def lookup(self, tokens: Sequence[int], space: Hashable = None) -> int:
        """Ask for a hit and judge it by what is known to be there."""
        keys = {"space": space} if space is not None else {}
        found = int(self.manager.lookup(list(tokens), **keys))
        self._judge_length(tokens, space, found)
        self._look()
        return found

    def end(self) -> None:
        """Free all, and take the whole pool: nothing is lost."""
        for seq in list(self.live):
            self.free(seq)
        size = self.num_frames * self.page_size
        try:
            self.begin(-1, [_LAST] * size)
        except MemoryError as error:
            self._fail("leak", "S25", f"with no sequence left, a prompt of the whole pool was refused: {error}")
        self.free(-1)

    # judgements

    def _fail(self, kind: str, rule: str, detail: str) -> NoReturn:
        raise Problem(kind, rule, detail)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _held(self) -> set[int]:
        return {frame for table in self.tables.values() for frame in table}

    def _holders(self, frame: int, but: int) -> list[int]:
        return [seq for seq, table in self.tables.items() if seq != but and frame in table]

    def _chain(self, tokens: Sequence[int], space: Hashable) -> list[Content]:
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(space, tuple(tokens[:end])) for end in ends]

    def _resident(self, content: Content, frame: int) -> bool:
        """Tell whether a frame still has the page that ends with this content."""
        return self.pool.get((frame, self.page_size - 1)) == content

    def _known_hit(self, tokens: Sequence[int], space: Hashable) -> int:
        """Return what must be hit: pages that were committed and whose frames all still have them."""
        if not self.caches:
            return 0
        hit = 0
        for content in self._chain(tokens[:-1], space):
            frames = self.published.get(content, set())
            if not frames or not all(self._resident(content, frame) for frame in frames):
                break
            hit += self.page_size
        return hit

    def _attempt(self, call: Any, need: int, room: int, what: str) -> Any:
        """Carry an operation out; where it is refused, hold it to its reasons and look for traces."""
        before = self._state()
        try:
            return call()
        except MemoryError:
            if self._state() != before:
                self._fail("refusal changes state", "S26", f"{what} was refused, and {self._difference(before)}")
            if need <= room:
                self._fail(
                    "refused without reason", "S26", f"{what} needs {need} frames of {room} that nobody holds: a leak?"
                )
            raise
        except Exception as error:
            self._fail("crash", "S26", f"{what}: {type(error).__name__}: {error}")

    def _state(self) -> dict[str, Any]:
        """Return what can be seen of the manager from outside."""
        seen: dict[str, Any] = {f"the table of {seq}": list(self.manager.table(seq)) for seq in self.live}
        if self.counts:
            seen["num_available"] = int(self.manager.num_available())
        if self.caches:
            for content in self.published:
                space, tokens = content
                keys = {"space": space} if space is not None else {}
                seen[f"the hit of {list(tokens)}"] = int(self.manager.lookup([*tokens, _NEXT], **keys))
        return seen

    def _difference(self, before: dict[str, Any]) -> str:
        after = self._state()
        name = next(name for name in before if before[name] != after[name])
        return f"{name} changed from {before[name]} to {after[name]}"

    def _judge_length(self, tokens: Sequence[int], space: Hashable, hit: int) -> None:
        """Judge the length of a hit."""
        if hit >= len(tokens) > 0:
            self._fail("whole prompt hits", "S29", f"{hit} of {len(tokens)} tokens: nothing is left to compute")
        known = self._known_hit(tokens, space)
        if hit < known:
            self._fail("cached page is lost", "S30", f"{hit} tokens of {list(tokens)} hit, {known} are there")
        pages = self._chain(tokens, space)[: hit // self.page_size]
        missing = [at for at, content in enumerate(pages) if not self._anywhere(content)]
        if missing:
            self._name_false_hit(tokens, space, pages, missing[0])

    def _anywhere(self, content: Content) -> bool:
        return any(found == content for (_, offset), found in self.pool.items() if offset == self.page_size - 1)

    def _name_false_hit(self, tokens: Sequence[int], space: Hashable, pages: list[Content], at: int) -> NoReturn:
        """Say what kind of false hit it is."""
        what = f"page {at} of {list(tokens)}" + (f" in space {space!r}" if space is not None else "")
        if pages[at] in self.unwritten:
            self._fail("hit before publication", "S30", f"{what} was promised by a sequence, but never written")
        if pages[at] in self.published:
            if any(self._anywhere(content) for content in pages[at + 1 :]):
                self._fail("hit counted past a hole", "S29", f"{what} was given up, pages behind it are counted")
            self._fail("stale key", "S30", f"{what} was given up for other tokens, but its key is still found")
        others = {found for found in self.published if found[1] == pages[at][1]}
        if others:
            self._fail("keys mix spaces", "S28", f"{what} was written in space {next(iter(others))[0]!r} only")
        self._fail("false hit", "S28", f"{what} was never written by anybody: other tokens have its key")

    def _judge_hit(self, seq: int, sequence: _Sequence, hit: int) -> None:
        """Judge a hit by length, and by what lies in the frames."""
        if self.caches or hit:
            self._judge_length(sequence.tokens, sequence.space, hit)
        table = [int(frame) for frame in self.manager.table(seq)]
        for position in range(hit):
            page, offset = divmod(position, self.page_size)
            content = sequence.space, tuple(sequence.tokens[: position + 1])
            if page >= len(table) or self.pool.get((table[page], offset)) != content:
                self._fail("hit on other content", "S30", f"position {position} of sequence {seq} is not there")

    def _look(self, written_by: int | None = None, first: int = 0, table_before: list[int] | None = None) -> None:
        """Compare every live sequence with the pool, and the counts with the tables."""
        for seq, sequence in self.live.items():
            table = [int(frame) for frame in self.manager.table(seq)]
            if len(table) != self._pages(len(sequence.tokens)):
                kind = "page taken early" if len(table) > self._pages(len(sequence.tokens)) else "page taken late"
                self._fail(kind, "S24", f"{len(sequence.tokens)} tokens of sequence {seq} have {len(table)} pages")
            if any(not 0 <= frame < self.num_frames for frame in table) or len(set(table)) < len(table):
                self._fail("table is not sound", "S21", f"table {table} of sequence {seq}, {self.num_frames} frames")
            self.tables[seq] = table
        if written_by is not None:
            self._prepare_writing(written_by, first, table_before)
        for seq, sequence in self.live.items():
            for position in range(sequence.written):
                page, offset = divmod(position, self.page_size)
                found = self.pool.get((self.tables[seq][page], offset))
                if found != (sequence.space, tuple(sequence.tokens[: position + 1])):
                    self._fail("content is lost", "S27", f"position {position} of sequence {seq} lost its token")
        if self.counts:
            said, right = int(self.manager.num_available()), self.num_frames - len(self._held())
            if said != right:
                kind = "leak" if said < right else "double free"
                self._fail(kind, "S25", f"{said} frames are said to be available, {right} are held by nobody")

    def _prepare_writing(self, seq: int, first: int, table_before: list[int] | None) -> None:
        """Judge the pages that are written next: nobody else's; and clear what was in new ones."""
        sequence = self.live[seq]
        kept = 0 if table_before is None else len(table_before)
        fresh = set(self.tables[seq][max(first // self.page_size, kept) :])
        for page in range(first // self.page_size, self._pages(len(sequence.tokens))):
            frame = self.tables[seq][page]
            if others := self._holders(frame, but=seq):
                if page < kept or page * self.page_size < first:
                    self._fail("shared page written", "S27", f"page {page} of sequence {seq} is that of {others[0]}")
                self._fail("double free", "S25", f"frame {frame} is given to sequence {seq} while {others[0]} holds it")
            if page >= kept:
                self._judge_eviction(frame, fresh)
        for frame in fresh:
            for offset in range(self.page_size):
                self.pool.pop((frame, offset), None)

    def _judge_eviction(self, frame: int, fresh: set[int]) -> None:
        """Judge a cached page that is given up: not before the pages behind it that were given back with it."""
        content = self.pool.get((frame, self.page_size - 1))
        if content is None or self.published.get(content) != {frame}:  # of equal pages one has no key
            return
        kept = self._held() | fresh
        for other, frames in self.published.items():
            if other[0] != content[0] or other[1][: -self.page_size] != content[1]:
                continue
            for child in frames - kept:
                if self._resident(other, child) and self.released.get(child) == self.released.get(frame):
                    text = f"the page that ends with {list(content[1])} is given up before the one behind it"
                    self._fail("eviction order", "S31", text)
