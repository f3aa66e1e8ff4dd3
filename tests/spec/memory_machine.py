"""A state machine that drives a KVManager against a plain dictionary model **with contents**.

The model knows a history for every sequence (a list of numbers, each written once in the whole run) and, for every
page, a cell: an object that several sequences may share. The pool is one array of numbers with a poison value in every
slot that holds no live token. After each rule: the audit passes, every live token of every sequence reads back through
the manager as its history, and cells and frames correspond one to one.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory import KVManager
from pagedref.ragged import seq_lens, slot_mapping_from_block_table, slot_mapping_from_csr

POISON = -1
counts = st.integers(0, 9)


def state_of(manager: KVManager) -> list[Any]:
    """Return every bit that an operation may change, room for growth aside."""
    frames, sequences, tables = manager._frames, manager._sequences, manager._tables
    rows = [
        (int(seq_id), int(length), int(end), entries[: int(pages)].tolist())
        for seq_id, length, end, pages, entries in zip(
            sequences.seq_id, sequences.length, sequences.end, tables.num_pages, tables.entries
        )
        if seq_id >= 0
    ]
    return [rows, frames._stack[: frames._top].tolist(), frames.refcount.tolist(), sequences.next_id]


class Model:
    """What the manager should hold: histories, reserved tokens, and cells in place of frames."""

    def __init__(self, num_frames: int, page_size: int) -> None:
        self.num_frames, self.page_size = num_frames, page_size
        self.history: dict[int, list[int]] = {}
        self.ahead: dict[int, list[int | None]] = {}  # reserved tokens: what was written there, None before that
        self.cells: dict[int, list[int]] = {}
        self.fresh = itertools.count()

    def holders(self, cell: int) -> int:
        return sum(cell in cells for cells in self.cells.values())

    def num_held(self) -> int:
        return len({cell for cells in self.cells.values() for cell in cells})

    def end(self, seq_id: int) -> int:
        return len(self.history[seq_id]) + len(self.ahead[seq_id])

    def reserve(self, wanted: dict[int, int]) -> tuple[int, int]:
        """Reserve one sequence after the other; return how many new cells and how many copies that took."""
        new = copies = 0
        for seq_id, count in wanted.items():
            cells = self.cells[seq_id]
            for position in range(self.end(seq_id), self.end(seq_id) + count):
                page, offset = divmod(position, self.page_size)
                if offset == 0:
                    cells.append(next(self.fresh))
                    new += 1
                elif self.holders(cells[page]) > 1:
                    cells[page] = next(self.fresh)
                    copies += 1
            self.ahead[seq_id] += [None] * count
        return new, copies

    def rollback(self, seq_id: int) -> None:
        self.ahead[seq_id] = []
        del self.cells[seq_id][-(-len(self.history[seq_id]) // self.page_size) :]


class ManagerMachine(RuleBasedStateMachine):
    """Drive all public operations; `manager_class` is what is tested."""

    manager_class: type[KVManager] = KVManager

    @initialize(
        data=st.data(),
        page_size=st.sampled_from([4, 3, 2, 1, 5]),
        num_frames=st.integers(1, 12),
        length=st.integers(0, 9),
        forks=st.integers(0, 2),
    )
    def start(self, data: Any, page_size: int, num_frames: int, length: int, forks: int) -> None:
        """Begin with one sequence, if it fits, and forks of it: sharing is where the faults are."""
        order = data.draw(st.permutations(range(num_frames)), label="frame_order")
        self.manager = self.manager_class(num_frames, page_size, frame_order=order)
        self.model = Model(num_frames, page_size)
        self.pool = np.full(num_frames * page_size, POISON, dtype=np.int64)
        self.numbers = itertools.count(1)
        first = self.add(None)
        if length <= num_frames * page_size:
            self.model.reserve({first: length})
            self.manager.reserve(first, length)
            self.write([first])
            self.model.history[first], self.model.ahead[first] = list(self.model.ahead[first]), []
            self.manager.commit(first, length)
        for _ in range(forks):
            self.fork_of(first)

    def draw_batch(self, data: Any) -> list[int]:
        live = sorted(self.model.history)
        return [int(i) for i in data.draw(st.lists(st.sampled_from(live), unique=True, max_size=4), label="seq_ids")]

    def perform(self, src: Any, dst: Any) -> None:
        cells = self.pool.reshape(self.model.num_frames, self.model.page_size)
        cells[dst] = cells[src]

    def poison_free_slots(self) -> None:
        self.pool.reshape(self.model.num_frames, -1)[self.manager.refcount == 0] = POISON

    # -- rules

    @rule(number=st.none() | st.integers(0, 40))
    def add_one(self, number: int | None) -> None:
        if number in self.model.history:
            before = state_of(self.manager)
            try:
                self.manager.add(number)
            except ContractError:
                assert state_of(self.manager) == before
                return
            raise AssertionError("an id in use was accepted")
        self.add(number)

    def add(self, number: int | None) -> int:
        seq_id = self.manager.add(number)
        assert number is None or seq_id == number
        assert seq_id not in self.model.history
        self.model.history[seq_id], self.model.ahead[seq_id], self.model.cells[seq_id] = [], [], []
        return seq_id

    @precondition(lambda self: self.model.history)
    @rule(data=st.data(), end=st.sampled_from(["write and commit", "write", "leave open", "cancel", "abort"]))
    def step(self, data: Any, end: str) -> None:
        batch = self.draw_batch(data)
        same = data.draw(st.booleans(), label="one number for all")
        wanted = [data.draw(counts)] * len(batch) if same else [data.draw(counts) for _ in batch]
        model, before = copy.deepcopy(self.model), state_of(self.manager)
        new, copies = model.reserve(dict(zip(batch, wanted)))
        try:
            plan = self.manager.reserve(np.array(batch, dtype=np.int64), wanted[0] if same and batch else wanted)
        except OutOfFrames as error:
            available = self.model.num_frames - self.model.num_held()
            assert new + copies > available, "refused although it fits"
            assert (error.needed, error.available) == (new + copies, available)
            assert state_of(self.manager) == before
            return
        assert plan.src.size == plan.dst.size == copies
        if end == "cancel":
            self.perform(plan.dst, plan.dst)
            self.manager.cancel(plan)
            assert state_of(self.manager) == before
            return
        self.model = model
        self.perform(plan.src, plan.dst)
        if end == "abort":
            for seq_id in batch:
                self.model.rollback(seq_id)
            self.manager.rollback(batch)
        elif end != "leave open":
            self.write(batch)
            if end == "write and commit":
                self.commit(batch, data)

    def write(self, batch: list[int]) -> None:
        ahead = [len(self.model.ahead[seq_id]) for seq_id in batch]
        slots = self.manager.slots(batch, ahead)
        assert slots.dtype == np.int64 and slots.size == sum(ahead)
        numbers = [[next(self.numbers) for _ in range(count)] for count in ahead]
        self.pool[slots] = [number for row in numbers for number in row]
        for seq_id, row in zip(batch, numbers):
            self.model.ahead[seq_id] = list(row)

    def commit(self, batch: list[int], data: Any) -> None:
        done = []
        for seq_id in batch:
            written = list(itertools.takewhile(lambda number: number is not None, self.model.ahead[seq_id]))
            done.append(data.draw(st.integers(0, len(written)) | st.just(len(written)), label="committed"))
            self.model.history[seq_id] += written[: done[-1]]
            del self.model.ahead[seq_id][: done[-1]]
        self.manager.commit(batch, done)

    @precondition(lambda self: any(self.model.ahead.values()))
    @rule(data=st.data(), action=st.sampled_from(["commit", "write", "rollback"]))
    def finish(self, data: Any, action: str) -> None:
        batch = self.draw_batch(data)
        if action == "write":
            self.write(batch)
        elif action == "commit":
            self.commit(batch, data)
        else:
            for seq_id in batch:
                self.model.rollback(seq_id)
            self.manager.rollback(batch)

    @precondition(lambda self: self.model.history)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        parent = int(data.draw(st.sampled_from(sorted(self.model.history)), label="parent"))
        before = state_of(self.manager)
        if self.model.ahead[parent]:
            try:
                self.manager.fork(parent)
            except ContractError:
                assert state_of(self.manager) == before
                return
            raise AssertionError("a sequence with reserved tokens was forked")
        self.fork_of(parent)

    def fork_of(self, parent: int) -> None:
        child = self.manager.fork(parent)
        assert child not in self.model.history
        self.model.history[child] = list(self.model.history[parent])
        self.model.cells[child] = list(self.model.cells[parent])
        self.model.ahead[child] = []

    @precondition(lambda self: self.model.history)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        batch = self.draw_batch(data)
        self.manager.free(batch)
        for seq_id in batch:
            del self.model.history[seq_id], self.model.ahead[seq_id], self.model.cells[seq_id]
        for seq_id in batch:
            before = state_of(self.manager)
            try:
                self.manager.free(seq_id)
            except CorruptionError:
                assert state_of(self.manager) == before
            else:
                raise AssertionError("a double free went through")

    @rule(data=st.data(), name=st.sampled_from(["reserve", "slots", "commit", "rollback", "free", "csr", "fork"]))
    def refuse(self, data: Any, name: str) -> None:
        """Unknown ids, repeated ids, and more tokens than are reserved change nothing."""
        before, live = state_of(self.manager), sorted(self.model.history)
        unknown = data.draw(st.integers(-3, 60).filter(lambda seq_id: seq_id not in self.model.history))
        calls: list[tuple[Any, ...]] = [([*live, unknown],)] if name != "fork" else [(unknown,)]
        if live and name not in ("csr", "fork"):
            calls.append(([live[0], *live],))
        if live and name in ("slots", "commit"):
            calls.append((live[-1], len(self.model.ahead[live[-1]]) + 1))
        for arguments in calls:
            extra = (1,) if name in ("reserve", "slots", "commit") and len(arguments) == 1 else ()
            try:
                getattr(self.manager, name)(*arguments, *extra)
            except (ContractError, CorruptionError):
                assert state_of(self.manager) == before
            else:
                raise AssertionError(f"{name}{arguments} was accepted")

    # -- what always holds

    @invariant()
    def holds(self) -> None:
        manager, model = self.manager, self.model
        manager.audit()
        self.poison_free_slots()
        live = sorted(model.history)
        assert manager.sequences == tuple(live) and len(manager) == len(live)
        self.check_contents(live)
        self.check_frames(live)
        stats = manager.stats()
        assert stats.free + stats.held + stats.cached == stats.num_frames == model.num_frames
        assert (stats.held, stats.pages) == (model.num_held(), sum(map(len, model.cells.values())))
        assert stats.tokens == sum(map(len, model.history.values()))
        assert stats.reserved_tokens == sum(map(len, model.ahead.values()))
        stored = {
            (model.cells[seq_id][position // model.page_size], position % model.page_size)
            for seq_id, history in model.history.items()
            for position in range(len(history))
        }
        assert stats.stored_tokens == len(stored), "shared tokens count once, copied ones for each copy"
        assert stats.internal_waste_tokens == stats.held * model.page_size - len(stored)

    def check_contents(self, live: list[int]) -> None:
        """Every live token reads back as its history, in every form in which a batch can be asked for."""
        manager, model = self.manager, self.model
        lens = [len(model.history[seq_id]) for seq_id in live]
        expected = [number for seq_id in live for number in model.history[seq_id]]
        assert manager.seq_lens(live).tolist() == lens
        slots = manager.slot_mapping(live, 0, lens)
        assert self.pool[slots].tolist() == expected
        csr = manager.csr(live)
        assert seq_lens(csr.kv_indptr, csr.kv_last_page_len, model.page_size).tolist() == lens
        assert slot_mapping_from_csr(*csr, model.page_size).tolist() == slots.tolist()
        ahead = [len(model.ahead[seq_id]) for seq_id in live]
        ends = [model.end(seq_id) for seq_id in live]
        every = manager.slot_mapping(live, 0, ends)
        held = [number for seq_id in live for number in [*model.history[seq_id], *model.ahead[seq_id]]]
        assert all(number in (None, found) for number, found in zip(held, self.pool[every].tolist()))
        assert slot_mapping_from_csr(*manager.csr(live, ahead), model.page_size).tolist() == every.tolist()
        table = manager.block_table(live, extra=ahead)
        rows = np.repeat(np.arange(len(live)), ends)
        positions = np.array([position for end in ends for position in range(end)], dtype=np.int64)
        assert slot_mapping_from_block_table(table, rows, positions, model.page_size).tolist() == every.tolist()
        assert (table >= 0).sum() == sum(-(-end // model.page_size) for end in ends)
        assert (manager.block_table(live) >= 0).sum() == sum(-(-length // model.page_size) for length in lens)

    def check_frames(self, live: list[int]) -> None:
        """Cells and frames correspond one to one: exactly what should be shared is shared."""
        pairs = set()
        for seq_id in live:
            frames = self.manager.table(seq_id).frames().tolist()
            assert len(frames) == len(self.model.cells[seq_id])
            pairs |= set(zip(self.model.cells[seq_id], frames))
        assert len(pairs) == len({cell for cell, _ in pairs}) == len({frame for _, frame in pairs})

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.free(sorted(self.model.history))
            self.manager.audit()
            assert self.manager.num_free == self.model.num_frames
