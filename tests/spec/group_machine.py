"""A state machine over all operations of a grouped manager, **with contents**, against plain dictionaries.

What a token writes is a number made from its group, its adapter and all tokens up to it; every slot of a free frame and
every reserved slot holds NaN. So what a prompt can hit is found by brute force over the numbers in the pool, without
the index: page by page, for every length, from the positions that a query at its end sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedref.errors import OutOfFrames, PagedRefError, PageFault
from pagedref.memory import GroupedKVManager, LayerGroup
from tests.spec.cache_machine import ALPHABET, Sequence, content, full_state


def grouped_state(manager: GroupedKVManager) -> list[Any]:
    """Return all that an operation may change, room for growth aside."""
    return [full_state(member) for member in manager._members] + [manager.prefix_stats]


class GroupMachine(RuleBasedStateMachine):
    """Drive a grouped manager; `manager_class` is what is tested."""

    manager_class: type[GroupedKVManager] = GroupedKVManager

    @initialize(
        page_size=st.sampled_from([2, 1, 3, 4]),
        num_frames=st.integers(4, 30),
        windows=st.lists(st.sampled_from([None, 1, 2, 3, 4, 5, 7]), min_size=1, max_size=3),
        policy=st.sampled_from(["lru", "fifo", "clock", "priority"]),
        deduplicate=st.booleans(),
        constant=st.booleans(),
    )
    def start(
        self, page_size: int, num_frames: int, windows: list[Any], policy: str, deduplicate: bool, constant: bool
    ) -> None:
        options: dict[str, Any] = {"hash_function": lambda message: bytes(32)} if constant else {}
        self.windows = {f"g{i}": window for i, window in enumerate(windows)}
        groups = [LayerGroup(name, 2, window) for name, window in self.windows.items()]
        self.events: list[Any] = []
        self.manager = self.manager_class(
            num_frames,
            page_size,
            groups,
            policy=policy,
            deduplicate=deduplicate,
            on_event=lambda *event: self.events.append(event),
            **options,
        )
        self.pool = np.full((num_frames, page_size), np.nan)
        self.model: dict[int, Sequence] = {}
        self.released: dict[int, dict[str, int]] = {}  # pages of each sequence that each window has passed
        self.page_size, self.num_frames = page_size, num_frames

    # -- helpers

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def pick(self, data: Any) -> int:
        return int(data.draw(st.sampled_from(sorted(self.model)), label="sequence"))

    def seen(self, window: Any, length: int) -> set[int]:
        """Return the pages before `length` that a query there sees, from the definition of a window."""
        keys = range(length) if window is None else range(max(length - window + 1, 0), length)
        return {key // self.page_size for key in keys}

    def passed(self, window: Any, length: int) -> int:
        """Return how many pages no query at `length` or later sees: all their keys are before the window."""
        return 0 if window is None else max(length - window + 1, 0) // self.page_size

    def in_pool(self, group: str, adapter: Any, tokens: list[int], page: int) -> set[int]:
        """Return the frames that hold a page of a prompt, by their contents."""
        first = page * self.page_size
        numbers = [content((group, adapter), tokens[: first + i + 1]) for i in range(self.page_size)]
        return set(np.flatnonzero((self.pool == numbers).all(axis=1)).tolist())

    def best_hit(self, adapter: Any, tokens: list[int], last: bool) -> int:
        """Return the longest hit in pages, by brute force over all lengths."""
        for pages in range(max(len(tokens) - last, 0) // self.page_size, 0, -1):
            if all(
                self.in_pool(group, adapter, tokens, page)
                for group, window in self.windows.items()
                for page in self.seen(window, pages * self.page_size)
            ):
                return pages
        return 0

    def attempt(self, call: Any) -> Any:
        """Call; if it is refused, nothing may have changed in any group (S26)."""
        before = grouped_state(self.manager)
        try:
            return call()
        except (OutOfFrames, PageFault) as error:
            assert grouped_state(self.manager) == before
            return error

    def copy(self, plan: Any) -> None:
        self.pool[plan.dst] = self.pool[plan.src]

    def clear_reserved(self, seq_id: int) -> None:
        """Reserved slots, and those behind them in a page, hold nothing until they are written."""
        known = self.model[seq_id]
        for group in self.windows if known.ahead else ():
            self.pool.reshape(-1)[self.manager.slots(seq_id, known.ahead, group=group)] = np.nan
            last = self.manager.block_table(seq_id, known.ahead, group=group)[0, -1]
            self.pool[last, (len(known.tokens) + known.ahead - 1) % self.page_size + 1 :] = np.nan

    def write(self, seq_id: int, tokens: list[int]) -> None:
        """Write and commit tokens, and let windows pass."""
        known = self.model[seq_id]
        every = known.tokens + tokens
        for group in self.windows:
            numbers = [
                content((group, known.adapter), every[: len(known.tokens) + i + 1]) for i in range(len(tokens))
            ]
            self.pool.reshape(-1)[self.manager.slots(seq_id, len(tokens), group=group)] = numbers
        self.manager.commit(seq_id, len(tokens), tokens)
        known.tokens, known.ahead = every, known.ahead - len(tokens)
        for group, window in self.windows.items():
            self.released[seq_id][group] = max(self.released[seq_id][group], self.passed(window, len(every)))

    def begin(self, seq_id: int, adapter: Any, prompt: list[int], hit: int) -> None:
        made = self.model[seq_id] = Sequence(adapter, prompt)
        made.tokens = prompt[:hit]
        self.released[seq_id] = {group: self.passed(window, hit) for group, window in self.windows.items()}

    # -- rules

    @rule(
        prompt=st.lists(st.integers(0, ALPHABET - 1), max_size=12),
        adapter=st.sampled_from([None, None, "x"]),
        last=st.booleans(),
        named=st.integers(0, 5),
    )
    def attach(self, prompt: list[int], adapter: Any, last: bool, named: int) -> None:
        """Begin a sequence with what is there of its prompt; or be admitted, or be refused, with the numbers."""
        pages = self.best_hit(adapter, prompt, last)
        keys: dict[str, Any] = {"adapter": adapter, "recompute_last": last}
        before = grouped_state(self.manager)
        expected = self.manager.match_prefix(prompt, **keys)
        assert grouped_state(self.manager)[:-1] == before[:-1] or not any(m[-1] for m in before[:-1])
        assert expected.num_tokens == pages * self.page_size
        counts = {g: len(self.seen(w, pages * self.page_size)) for g, w in self.windows.items()}
        assert expected.frames.size == sum(counts.values())
        if named == 0:
            seq_id = self.manager.add()
            hit = self.manager.attach_prefix(seq_id, prompt, **keys)
            assert hit.frames.tolist() == expected.frames.tolist()
            self.begin(seq_id, adapter, prompt, hit.num_tokens)
            return
        wanted = min(len(prompt) - pages * self.page_size, 2 * named)
        new = self.pages(wanted) * len(self.windows)
        revived = sum(int(self.manager.refcount[f]) == 0 for f in expected.frames.tolist())
        available = self.manager.num_available
        assert self.manager.need(prompt, 2 * named, **keys) == (new, revived, available, 0)
        got = self.attempt(lambda: self.manager.admit(prompt, 2 * named, **keys))
        assert isinstance(got, OutOfFrames) == (new + revived > available)
        if isinstance(got, OutOfFrames):
            assert (got.needed, got.available) == (new + revived, available)
            return
        assert available - self.manager.num_available == new + revived
        self.begin(got.seq_id, adapter, prompt, got.hit.num_tokens)
        self.model[got.seq_id].ahead = wanted
        self.clear_reserved(got.seq_id)
        self.write(got.seq_id, prompt[pages * self.page_size :][:wanted])

    @precondition(lambda self: self.model)
    @rule(
        data=st.data(),
        count=st.integers(0, 7),
        spare=st.integers(0, 3),
        end=st.sampled_from(["commit", "commit", "commit", "abort", "cancel", "open"]),
    )
    def step(self, data: Any, count: int, spare: int, end: str) -> None:
        """Reserve, write, commit; or not."""
        seq_id = self.pick(data)
        known = self.model[seq_id]
        wanted = max(count + spare - known.ahead, 0)
        stop = len(known.tokens) + known.ahead
        needed = (self.pages(stop + wanted) - self.pages(stop)) * len(self.windows)
        if wanted and stop % self.page_size:
            tables = [self.manager.block_table(seq_id, known.ahead, group=group)[0] for group in self.windows]
            needed += sum(int(self.manager.refcount[table[-1]]) > 1 for table in tables)
        available = self.manager.num_available
        kept = self.manager._frames._kept.copy()
        before = grouped_state(self.manager)
        plan = self.attempt(lambda: self.manager.reserve(seq_id, wanted))
        assert isinstance(plan, OutOfFrames) == (needed > available)
        if isinstance(plan, OutOfFrames):
            assert (plan.needed, plan.available) == (needed, available)
            return
        if end == "cancel":
            self.manager.cancel(plan)
            lost = np.flatnonzero(kept & ~self.manager._frames._kept)
            if lost.size == 0:
                assert grouped_state(self.manager) == before
            for frame in lost.tolist():  # its publication does not come back; what was cut off it is gone
                self.pool[frame, len(known.tokens) % self.page_size :] = np.nan
            return
        self.copy(plan)
        known.ahead += wanted
        self.clear_reserved(seq_id)
        if end == "abort":
            self.manager.rollback(seq_id)
            known.ahead = 0
        elif end == "commit":
            rest = known.prompt[len(known.tokens) : len(known.tokens) + count]
            self.write(seq_id, rest + [data.draw(st.integers(0, ALPHABET - 1)) for _ in range(count - len(rest))])

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data(), count=st.integers(1, 5))
    def batch(self, data: Any, count: int) -> None:
        """A step of all sequences at once, all or nothing."""
        ids = sorted(self.model)
        plan = self.attempt(lambda: self.manager.reserve(ids, count))
        if isinstance(plan, OutOfFrames):
            return
        self.copy(plan)
        for seq_id in ids:
            known = self.model[seq_id]
            known.ahead += count
            self.clear_reserved(seq_id)
        for seq_id in ids:
            known = self.model[seq_id]
            rest = known.prompt[len(known.tokens) : len(known.tokens) + count]
            self.write(seq_id, rest + [data.draw(st.integers(0, ALPHABET - 1)) for _ in range(count - len(rest))])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        parent = self.pick(data)
        known = self.model[parent]
        if not known.ahead:
            child = self.manager.fork(parent)
            made = self.model[child] = Sequence(known.adapter, list(known.prompt))
            made.tokens, self.released[child] = list(known.tokens), dict(self.released[parent])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: Any) -> None:
        seq_id = self.pick(data)
        known, released = self.model[seq_id], self.released[seq_id]
        length = data.draw(st.integers(0, len(known.tokens)))
        lost = any(
            page < released[group]
            for group, window in self.windows.items()
            for page in self.seen(window, length) | ({length // self.page_size} if length % self.page_size else set())
        )
        got = self.attempt(lambda: self.manager.truncate(seq_id, length))
        assert isinstance(got, PageFault) == lost
        if lost:
            return
        known.tokens, known.ahead = known.tokens[:length], 0
        known.prompt = known.prompt[:length] if len(known.prompt) > length else known.prompt
        for group in released:
            released[group] = min(released[group], self.pages(length))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        seq_id = self.pick(data)
        self.manager.free(seq_id)
        del self.model[seq_id], self.released[seq_id]

    @rule(n=st.integers(0, 3))
    def evict(self, n: int) -> None:
        cached = self.manager.stats().cached
        assert self.manager.evict(n) == min(n, cached)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def refuse(self, data: Any) -> None:
        """What is wrong changes nothing."""
        seq_id = self.pick(data)
        before = grouped_state(self.manager)
        calls: list[Any] = [
            lambda: self.manager.add(seq_id),
            lambda: self.manager.free(10**6),
            lambda: self.manager.fork(10**6),
            lambda: self.manager.reserve(seq_id, -1),
            lambda: self.manager.truncate(seq_id, 10**6),
            lambda: self.manager.commit(seq_id, 0, [1]),
            lambda: self.manager.commit(seq_id, 10**6),
            lambda: self.manager.block_table(seq_id, group="no"),
            lambda: self.manager.match_prefix([-1]),
            lambda: self.manager.admit([1, 2], -1),
            lambda: self.manager.attach_prefix(10**6, [1]),
        ]
        for call in calls:
            try:
                call()
            except PagedRefError:
                assert grouped_state(self.manager) == before
            else:
                raise AssertionError("accepted")

    # -- what always holds

    @invariant()
    def holds(self) -> None:
        self.manager.audit()
        self.pool[self.manager._frames._stack[: self.manager.num_free]] = np.nan
        stats = self.manager.stats()
        assert stats.free + stats.held + stats.cached == self.num_frames
        assert self.manager.sequences == tuple(sorted(self.model))
        assert stats.tokens == sum(len(known.tokens) for known in self.model.values())
        assert stats.held == sum(self.manager.held(group=group) for group in self.windows)
        for seq_id, known in self.model.items():
            assert self.manager.seq_len(seq_id) == len(known.tokens)
            assert self.manager.reserved(seq_id).tolist() == [known.ahead]
            for group in self.windows:
                row = self.manager.block_table(seq_id, group=group)[0].tolist()
                passed = self.released[seq_id][group]
                assert [frame < 0 for frame in row] == [page < passed for page in range(self.pages(len(known.tokens)))]
                for position in range(passed * self.page_size, len(known.tokens)):
                    number = content((group, known.adapter), known.tokens[: position + 1])
                    assert self.pool[row[position // self.page_size], position % self.page_size] == number

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.free(list(self.manager.sequences))
            self.manager.clear_prefixes()
            self.manager.audit()
            assert self.manager.num_free == self.num_frames
            assert self.manager.prefix_stats.nodes == 0, "nodes are left"
            assert all(name in self.windows for name, _ in self.events)
            assert not any(-1 in getattr(event, "frames", ()) for _, event in self.events)
