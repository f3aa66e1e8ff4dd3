"""A state machine over all operations of a manager, **with contents**: what every token wrote is checked after each.

The key and the value of a token are numbers made from its adapter and all tokens up to it, as those of a model are. So
pages that are shared through the prefix index must hold the right numbers by themselves, whoever wrote them. They are
read back through `gather_kv`; every slot that holds neither a live token nor a page that can be hit holds NaN. The
model knows sequences, their tokens, holes and what is swapped out, and nothing about frames.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedref.attention import copy_frames, gather_kv
from pagedref.errors import ContractError, OutOfFrames, PagedRefError, PageFault
from pagedref.memory import KVManager
from pagedref.memory.swap import ArrayFrames, HostStore, carry_out

ALPHABET = 2


def content(adapter: Any, tokens: list[int]) -> float:
    """Return the number that the last of some tokens writes."""
    digest = hashlib.sha256(repr((adapter, tokens)).encode()).digest()
    return float(int.from_bytes(digest[:5], "little"))


def full_state(manager: KVManager) -> list[Any]:
    """Return all that an operation may change, room for growth aside."""
    frames, sequences, tables = manager._frames, manager._sequences, manager._tables
    rows = [
        (int(i), int(n), int(e), row[: int(p)].tolist())
        for i, n, e, p, row in zip(
            sequences.seq_id, sequences.length, sequences.end, tables.num_pages, tables.entries
        )
        if i >= 0
    ]
    state = [rows, frames._stack[: frames._top].tolist(), frames.refcount.tolist(), sequences.next_id]
    state += [frames.policy.frames().tolist(), frames._kept.tolist(), manager.prefix_stats, len(manager.swaps)]
    if manager._publisher is not None:
        index, streams = manager._publisher.index, manager._publisher.streams
        live = np.flatnonzero(sequences.seq_id[: streams.cursor.size] >= 0)
        alive = index.alive()
        state += [index.node_of.tolist(), alive.tolist(), index.children[: alive.size][alive].tolist()]
        state += [index.first_frame[: alive.size][alive].tolist(), index.parent[: alive.size][alive].tolist()]
        state += [array[live].tolist() for array in (streams.cursor, streams.published, streams.known)]
    return state


class Sequence:
    """What the model knows of one sequence."""

    def __init__(self, adapter: Any, prompt: list[int]) -> None:
        self.adapter, self.prompt = adapter, prompt
        self.tokens: list[int] = []
        self.ahead = 0
        self.holes: set[int] = set()
        self.pinned: set[int] = set()


class CacheMachine(RuleBasedStateMachine):
    """Drive a manager; `manager_class` is what is tested."""

    manager_class: type[KVManager] = KVManager

    @initialize(
        page_size=st.sampled_from([2, 1, 3, 4]),
        num_frames=st.integers(2, 14),
        policy=st.sampled_from(["lru", "fifo", "clock", "priority"]),
        deduplicate=st.booleans(),
        constant=st.booleans(),
    )
    def start(self, page_size: int, num_frames: int, policy: str, deduplicate: bool, constant: bool) -> None:
        options: dict[str, Any] = {"hash_function": lambda message: bytes(32)} if constant else {}
        self.events: list[Any] = []
        self.manager = self.manager_class(
            num_frames, page_size, policy=policy, deduplicate=deduplicate, on_event=self.events.append, **options
        )
        self.k = np.full((num_frames, page_size, 1, 1), np.nan)
        self.v = self.k.copy()
        self.frames = ArrayFrames({"k": self.k, "v": self.v})
        self.store = HostStore(2 * num_frames, bytes_per_page=self.frames.bytes_per_frame)
        self.model: dict[int, Sequence] = {}
        self.page_size, self.num_frames = page_size, num_frames

    # -- helpers

    def copy(self, src: Any, dst: Any) -> None:
        if len(src):
            copy_frames([self.k, self.v], src, dst)

    def put(self, slots: Any, numbers: Any) -> None:
        """Write keys, and values that differ from them."""
        self.k.reshape(-1)[slots] = numbers
        self.v.reshape(-1)[slots] = -np.asarray(numbers)

    def pick(self, data: Any, *, swapped: bool = False) -> int:
        live = [i for i in sorted(self.model) if self.manager.is_swapped(i) == swapped]
        return int(data.draw(st.sampled_from(live), label="sequence"))

    def in_pool(self) -> bool:
        return any(not self.manager.is_swapped(i) for i in self.model)

    def attempt(self, call: Any) -> Any:
        """Call; if it is refused for want of frames, nothing may have changed (S26)."""
        before = full_state(self.manager)
        try:
            return call()
        except (OutOfFrames, PageFault):
            assert full_state(self.manager) == before
            return None

    def write(self, seq_id: int, tokens: list[int]) -> None:
        """Write the contents of tokens that are about to be committed."""
        known = self.model[seq_id]
        every = known.tokens + tokens
        slots = self.manager.slots(seq_id, len(tokens))
        self.put(slots, [content(known.adapter, every[: len(known.tokens) + i + 1]) for i in range(len(tokens))])

    # -- rules

    @rule(
        prompt=st.lists(st.integers(0, ALPHABET - 1), max_size=9),
        adapter=st.sampled_from([None, None, "x"]),
        partial=st.booleans(),
        last=st.booleans(),
    )
    def admit(self, prompt: list[int], adapter: Any, partial: bool, last: bool) -> None:
        """Begin a sequence with what is there of its prompt."""
        expected = self.manager.match_prefix(prompt, adapter=adapter, recompute_last=last)
        seq_id = self.manager.add()
        hit = self.manager.attach_prefix(
            seq_id, prompt, adapter=adapter, recompute_last=last, partial_tail=partial
        )
        self.copy(hit.src, hit.dst)
        assert expected.num_tokens == hit.frames.size * self.page_size <= hit.num_tokens
        assert hit.num_tokens <= max(len(prompt) - last, 0)
        assert partial or hit.num_tokens == expected.num_tokens
        made = self.model[seq_id] = Sequence(adapter, prompt)
        made.tokens = prompt[: hit.num_tokens]

    @precondition(lambda self: self.in_pool())
    @rule(data=st.data(), prompt=st.lists(st.integers(0, ALPHABET - 1), max_size=5))
    def name_again(self, data: Any, prompt: list[int]) -> None:
        """Attach a prompt to a sequence that exists: refused when it has tokens or room for them."""
        seq_id = self.pick(data)
        known = self.model[seq_id]
        before = full_state(self.manager)
        try:
            hit = self.manager.attach_prefix(seq_id, prompt, adapter=known.adapter)
        except ContractError:
            assert known.tokens or known.ahead
            assert full_state(self.manager) == before
            return
        assert not known.tokens and not known.ahead
        known.prompt, known.tokens = prompt, prompt[: hit.num_tokens]

    @precondition(lambda self: self.in_pool())
    @rule(
        data=st.data(),
        count=st.integers(1, 6),
        spare=st.integers(0, 3),
        end=st.sampled_from(["commit", "commit", "commit", "unnamed", "abort", "cancel", "open"]),
    )
    def step(self, data: Any, count: int, spare: int, end: str) -> None:
        """Reserve, write, commit; or not."""
        seq_id = self.pick(data)
        known = self.model[seq_id]
        wanted = max(count + spare - known.ahead, 0)
        before = full_state(self.manager)
        evicted = sum(len(event.frames) for event in self.events if type(event).__name__ == "Evicted")
        plan = self.attempt(lambda: self.manager.reserve(seq_id, wanted))
        if plan is None:
            return
        if end == "cancel":
            self.manager.cancel(plan)
            now = sum(len(event.frames) for event in self.events if type(event).__name__ == "Evicted")
            if now == evicted and full_state(self.manager)[5] == before[5]:
                assert full_state(self.manager) == before
            return
        self.copy(plan.src, plan.dst)
        known.ahead += wanted
        if end == "abort":
            self.manager.rollback(seq_id)
            known.ahead = 0
            return
        if end == "open":
            return
        rest = known.prompt[len(known.tokens) : len(known.tokens) + count]
        tokens = rest + [data.draw(st.integers(0, ALPHABET - 1)) for _ in range(count - len(rest))]
        self.write(seq_id, tokens)
        self.manager.commit(seq_id, count, None if end == "unnamed" else tokens)
        known.tokens, known.ahead = known.tokens + tokens, known.ahead - count

    @precondition(lambda self: self.in_pool())
    @rule(data=st.data(), named=st.booleans())
    def decode(self, data: Any, named: bool) -> None:
        """Two steps of a batch, with something in between."""
        live = [i for i in sorted(self.model) if not self.manager.is_swapped(i) and not self.model[i].ahead]
        batch_ids = data.draw(st.lists(st.sampled_from(live), unique=True), label="batch") if live else []
        batch = self.manager.batch(np.array(batch_ids, dtype=np.int64))
        for _ in range(2):
            step = self.attempt(batch.step)
            if step is None:
                return
            self.copy(step.plan.src, step.plan.dst)
            assert step.block_table.tolist() == self.manager.block_table(batch_ids, extra=1).tolist()
            assert step.slot_mapping.tolist() == self.manager.slots(batch_ids, 1).tolist()
            mine, theirs = batch.csr(), self.manager.csr(batch_ids, extra=1)
            assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(mine, theirs))
            tokens = []
            for seq_id, slot in zip(batch_ids, step.slot_mapping.tolist()):
                known = self.model[seq_id]
                rest = known.prompt[len(known.tokens) :]
                known.tokens.append(rest[0] if rest else data.draw(st.integers(0, ALPHABET - 1)))
                self.put(slot, content(known.adapter, known.tokens))
                tokens.append(known.tokens[-1])
            batch.commit(tokens if named else None)

    @precondition(lambda self: self.in_pool())
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        parent = self.pick(data)
        known = self.model[parent]
        if known.ahead:
            return
        child = self.manager.fork(parent)
        made = self.model[child] = Sequence(known.adapter, list(known.prompt))
        made.tokens, made.holes = list(known.tokens), set(known.holes)

    @precondition(lambda self: self.in_pool())
    @rule(data=st.data())
    def truncate(self, data: Any) -> None:
        seq_id = self.pick(data)
        known = self.model[seq_id]
        length = data.draw(st.integers(0, len(known.tokens)))
        before = full_state(self.manager)
        try:
            self.manager.truncate(seq_id, length)
        except PageFault:
            assert length % self.page_size and length // self.page_size in known.holes
            assert full_state(self.manager) == before
            return
        known.tokens, known.ahead = known.tokens[:length], 0
        known.prompt = known.prompt[:length] if len(known.prompt) > length else known.prompt
        pages = -(-length // self.page_size)
        known.holes = {page for page in known.holes if page < pages}
        known.pinned = {page for page in known.pinned if page < pages}

    @precondition(lambda self: self.in_pool())
    @rule(data=st.data(), window=st.integers(1, 5), sinks=st.integers(0, 2))
    def window(self, data: Any, window: int, sinks: int) -> None:
        seq_id = self.pick(data)
        known = self.model[seq_id]
        stop = max(len(known.tokens) - window + 1, 0) // self.page_size
        gone = set(range(-(-sinks // self.page_size), stop)) - known.holes - known.pinned
        assert self.manager.release_window(seq_id, window, sinks=sinks) == len(gone)
        known.holes |= gone

    @precondition(lambda self: self.in_pool())
    @rule(data=st.data(), on=st.booleans())
    def pin(self, data: Any, on: bool) -> None:
        seq_id = self.pick(data)
        known = self.model[seq_id]
        self.manager.pin(seq_id, on=on)
        pages = -(-(len(known.tokens) + known.ahead) // self.page_size)
        known.pinned = set(range(pages)) - known.holes if on else set()

    @precondition(lambda self: self.in_pool())
    @rule(data=st.data(), end=st.sampled_from(["done", "done", "cancel"]))
    def swap_out(self, data: Any, end: str) -> None:
        seq_id = self.pick(data)
        known = self.model[seq_id]
        before = full_state(self.manager)
        try:
            plan = self.manager.swap_out(seq_id, self.store)
        except (ContractError, OutOfFrames) as error:
            assert known.ahead or known.pinned or isinstance(error, OutOfFrames)
            assert full_state(self.manager) == before
            return
        self.manager.audit()
        if end == "cancel":
            self.manager.swap_cancel(plan)
            assert full_state(self.manager) == before
            return
        assert carry_out(plan, self.frames, self.store).all()
        self.manager.swap_done(plan)

    @precondition(lambda self: any(self.manager.is_swapped(i) for i in self.model))
    @rule(data=st.data(), end=st.sampled_from(["done", "done", "cancel", "miss", "pager"]))
    def swap_in(self, data: Any, end: str) -> None:
        seq_id = self.pick(data, swapped=True)
        known = self.model[seq_id]
        for call in (self.manager.csr, self.manager.fork, lambda i: self.manager.reserve(i, 1)):
            before = full_state(self.manager)
            try:
                call(seq_id)
            except PageFault:
                assert full_state(self.manager) == before
            else:
                raise AssertionError("a swapped sequence was touched")
        before = full_state(self.manager)
        if end == "pager":
            self.manager.pager = self.page_in
            self.attempt(lambda: self.manager.slot_mapping(seq_id, 0, 0))
            self.manager.pager = None
            return
        plan = self.attempt(lambda: self.manager.swap_in(seq_id))
        if plan is None:
            return
        self.manager.audit()
        if end == "cancel":
            self.manager.swap_cancel(plan)
            return
        good = carry_out(plan, self.frames, self.store)
        assert good.all()
        if end == "miss" and good.size:
            good[data.draw(st.integers(0, good.size - 1)) :] = False
        length = self.manager.swap_done(plan, good)
        assert length == len(known.tokens) or end == "miss"
        if length < len(known.tokens):
            known.prompt = known.prompt[:length] if len(known.prompt) > length else known.prompt
            known.tokens = known.tokens[:length]
            known.holes = {page for page in known.holes if page < -(-length // self.page_size)}

    def live_slots(self) -> Any:
        """Return which slots hold a live token of somebody, or a page that can be hit: (num_frames, page_size)."""
        live = np.zeros((self.num_frames, self.page_size), dtype=np.bool_)
        if self.manager._publisher is not None:
            live[self.manager._publisher.index.node_of >= 0] = True
        for seq_id, known in self.model.items():
            if not self.manager.is_swapped(seq_id):
                for page, frame in enumerate(self.manager.block_table(seq_id)[0].tolist()):
                    live[frame, : max(len(known.tokens) - page * self.page_size, 0)] |= frame >= 0
        return live

    def page_in(self, seq_id: int) -> None:
        plan = self.manager.swap_in(seq_id)
        self.manager.swap_done(plan, carry_out(plan, self.frames, self.store))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        seq_id = int(data.draw(st.sampled_from(sorted(self.model))))
        self.manager.free(seq_id)
        del self.model[seq_id]

    @rule(n=st.integers(0, 3))
    def evict(self, n: int) -> None:
        cached = self.manager.stats().cached
        assert self.manager.evict(n) == min(n, cached)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def refuse(self, data: Any) -> None:
        """What is wrong changes nothing."""
        seq_id = self.pick(data) if self.in_pool() else 10**6
        before = full_state(self.manager)
        calls: list[Any] = [
            lambda: self.manager.truncate(seq_id, 10**6),
            lambda: self.manager.release_window(seq_id, 0),
            lambda: self.manager.commit(seq_id, 0, [1]),
            lambda: self.manager.commit(seq_id, 0, [0.5]),
            lambda: self.manager.swap_in(seq_id),
            lambda: self.manager.match_prefix([-1]),
            lambda: self.manager.attach_prefix(10**6, [1]),
        ]
        for call in calls:
            try:
                call()
            except PagedRefError:
                assert full_state(self.manager) == before
            else:
                raise AssertionError("accepted")

    # -- what always holds

    @invariant()
    def holds(self) -> None:
        self.manager.audit()
        dead = ~self.live_slots()
        self.k[dead], self.v[dead] = np.nan, np.nan
        stats = self.manager.stats()
        assert stats.free + stats.held + stats.cached == self.num_frames
        assert self.manager.sequences == tuple(sorted(self.model))
        for seq_id, known in self.model.items():
            assert self.manager.seq_len(seq_id) == len(known.tokens)
            if self.manager.is_swapped(seq_id):
                continue
            assert self.manager.reserved(seq_id).tolist() == [known.ahead]
            row = self.manager.block_table(seq_id)[0].tolist()
            assert {page for page, frame in enumerate(row) if frame < 0} == known.holes
            expected = [content(known.adapter, known.tokens[: n + 1]) for n in range(len(known.tokens))]
            if not known.holes:
                k, v = gather_kv(self.k, self.v, *self.manager.csr(seq_id))
                assert k.ravel().tolist() == expected
                assert (-v).ravel().tolist() == expected
                continue
            for position, number in enumerate(expected):
                page, offset = divmod(position, self.page_size)
                assert page in known.holes or self.k[row[page], offset, 0, 0] == number

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.free(sorted(self.model))
            self.manager.clear_prefixes()
            self.manager.audit()
            assert self.manager.num_free == self.num_frames
            assert self.store.num_free == self.store.num_slots
            if self.manager._publisher is not None:
                assert self.manager._publisher.index.num_nodes == 1, "nodes are left"
