"""KVManager (S19-S27, S31; L1, L7, L16): a state machine with contents, its mutants, and the cases of the reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory import ACCESSED, DIRTY, SHARED, WRITABLE, CopyPlan, KVManager, _plans, manager
from pagedref.memory._entries import pack
from pagedref.ragged import CSR
from tests.spec.memory_machine import ManagerMachine, state_of

ManagerMachine.TestCase.settings = settings(
    max_examples=300, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestManager = ManagerMachine.TestCase


def filled(num_frames: int, page_size: int, *lens: int, **options: Any) -> tuple[KVManager, list[int]]:
    """Return a manager with committed sequences of the given lengths."""
    made = KVManager(num_frames, page_size, **options)
    seq_ids = [made.add() for _ in lens]
    made.reserve(seq_ids, list(lens))
    made.commit(seq_ids, list(lens))
    return made, seq_ids


# -- mutants: each is a fault that was once somebody's bug; the machine finds every one of them


class StaleFrameAfterCopy(KVManager):
    """The copy is made, the table still names the source."""

    def reserve(self, seq_ids: Any, num_tokens: Any) -> CopyPlan:
        plan = super().reserve(seq_ids, num_tokens)
        for src, dst in zip(plan.src, plan.dst):
            frames = self._tables.entries >> np.uint64(32)
            self._tables.entries[frames == np.uint64(dst)] = pack(src, 3)
        return plan


class CopyForgotten(KVManager):
    """The table names a new frame, nobody is told to copy."""

    def reserve(self, seq_ids: Any, num_tokens: Any) -> CopyPlan:
        super().reserve(seq_ids, num_tokens)
        return CopyPlan(np.empty(0, np.int64), np.empty(0, np.int64))


class SharedPageWritten(KVManager):
    """No copy on write: a partly filled page goes to two writers (P39)."""

    def _shared_writes(self, rows: Any, end: Any, counts: Any) -> Any:
        where, entries, alone = super()._shared_writes(rows, end, counts)
        return tuple(part[:0] for part in where), entries[:0], alone[:0]


class LastHolderCopies(KVManager):
    """Every writer of a once shared page copies, the last holder too: frames get lost from its count."""

    def _shared_writes(self, rows: Any, end: Any, counts: Any) -> Any:
        where, entries, alone = super()._shared_writes(rows, end, counts)
        return where, entries, np.zeros_like(alone)


class EveryoneInPlace(KVManager):
    """Two forks of one page reserve in one call, and each takes itself for the last holder."""

    def _shared_writes(self, rows: Any, end: Any, counts: Any) -> Any:
        where, entries, alone = super()._shared_writes(rows, end, counts)
        return where, entries, np.ones_like(alone)


class LastPageLenModulo(KVManager):
    """``kv_len % page_size``: 0 for a full page (P48)."""

    def csr(self, seq_ids: Any, extra: Any = None) -> CSR:
        csr = super().csr(seq_ids, extra)
        return csr._replace(kv_last_page_len=csr.kv_last_page_len % np.int32(self.page_size))


class TakesBeforeItChecks(KVManager):
    """What could be had stays taken when the batch as a whole is refused (P41)."""

    def reserve(self, seq_ids: Any, num_tokens: Any) -> CopyPlan:
        try:
            return super().reserve(seq_ids, num_tokens)
        except OutOfFrames:
            self._frames.alloc(self.num_free)
            raise


class ForkCountsNothing(KVManager):
    """A fork shares frames without a second holder."""

    def fork(self, seq_id: int) -> int:
        child = super().fork(seq_id)
        self._frames.free(self.table(child).frames())
        return child


class ForkStaysWritable(KVManager):
    """A fork leaves the parent's pages WRITABLE."""

    def fork(self, seq_id: int) -> int:
        child = super().fork(seq_id)
        row = self._sequences.rows("fork", seq_id)[0]
        pages = self._tables.num_pages[row]
        self._tables.entries[row, :pages] = (self._tables.entries[row, :pages] | WRITABLE) & ~SHARED
        return child


class RollbackKeepsPages(KVManager):
    """Reserved pages stay after an abort."""

    def rollback(self, seq_ids: Any) -> None:
        rows = self._sequences.rows("rollback", seq_ids)
        self._sequences.end[rows] = self._sequences.length[rows]


class SlotsOfTheEnd(KVManager):
    """The slots of the last reserved tokens in place of the first."""

    def slots(self, seq_ids: Any, num_tokens: Any) -> Any:
        start = self.seq_lens(seq_ids) + 1
        ends = np.minimum(start + num_tokens, self.seq_lens(seq_ids) + self.reserved(seq_ids))
        return self.slot_mapping(seq_ids, np.minimum(start, ends), ends)


MUTANTS = [
    StaleFrameAfterCopy,
    CopyForgotten,
    SharedPageWritten,
    LastHolderCopies,
    EveryoneInPlace,
    LastPageLenModulo,
    TakesBeforeItChecks,
    ForkCountsNothing,
    ForkStaysWritable,
    RollbackKeepsPages,
    SlotsOfTheEnd,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_machine_catches(mutant: type[KVManager]) -> None:
    machine = type("MutantMachine", (ManagerMachine,), {"manager_class": mutant})
    with pytest.raises((AssertionError, CorruptionError, ContractError)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=1000,
                stateful_step_count=15,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_the_machine_catches_a_page_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """P49 the wrong way round: a page for token t when (t + 1) % page_size == 0."""
    monkeypatch.setattr(manager, "num_pages", lambda tokens, page_size: np.int64(tokens) // page_size + 1)
    test_the_machine_catches(KVManager)


# -- sharing and copies


def test_last_holder_writes_in_place() -> None:
    """S27: a fork's partial page is copied by whoever writes first; the other one then writes in place."""
    made, (a,) = filled(8, 4, 6)
    b = made.fork(a)
    assert made.num_free == 6
    plan = made.reserve(b, 1)
    assert (plan.src.tolist(), plan.dst.tolist()) == ([1], [2])
    made.commit(b, 1)
    assert made.reserve(a, 1).src.size == 0, "the other holder is gone"
    assert made.block_table([a, b], extra=[1, 0]).tolist() == [[0, 1], [0, 2]]
    made.commit(a, 1)
    made.audit()


def test_last_holder_after_a_free() -> None:
    made, (a,) = filled(8, 4, 6)
    made.free(made.fork(a))
    assert made.table(a).entry(1) & int(SHARED), "the hint is stale"
    assert made.reserve(a, 1).src.size == 0
    assert made.table(a).entry(1) & int(WRITABLE)
    made.audit()


@pytest.mark.parametrize("forks", [1, 2, 3])
@pytest.mark.parametrize("writers", [1, 2, 3, 4])
def test_forks_that_reserve_in_one_call(forks: int, writers: int) -> None:
    """Of k holders of a page of whom w write, w copy if w < k, and w - 1 if all of them write."""
    made, (a,) = filled(16, 4, 6)
    family = [a, *(made.fork(a) for _ in range(forks))]
    batch = family[:writers][::-1]
    plan = made.reserve(batch, 1)
    assert plan.src.tolist() == [1] * (len(batch) - (len(batch) == len(family)))
    assert len(set(plan.dst.tolist()) | {1}) == plan.dst.size + 1
    tails = made.block_table(batch, extra=1)[:, 1].tolist()
    assert len(set(tails)) == len(batch)
    assert tails[-1] == 1 or len(batch) < len(family), "in the order of the call, the last one keeps the page"
    made.commit(batch, 1)
    made.audit()


def test_a_full_last_page_needs_no_copy() -> None:
    made, (a,) = filled(8, 4, 8)
    b = made.fork(a)
    assert made.reserve([a, b], 1).src.size == 0
    assert made.block_table([a, b], extra=1).tolist() == [[0, 1, 2], [0, 1, 3]]
    made.commit([a, b], 1)
    made.audit()


def test_nothing_reserved_copies_nothing() -> None:
    made, (a,) = filled(8, 4, 6)
    b = made.fork(a)
    assert made.reserve([a, b], 0).src.size == 0
    assert made.num_free == 6
    assert made.reserve([], []).src.size == 0
    made.audit()


def test_copies_count_in_the_need_of_a_batch() -> None:
    """Joint accounting: two forks and a third sequence need one copy and one page, or nothing happens at all."""
    made, (a, c) = filled(4, 4, 6, 4)
    b = made.fork(a)
    before = state_of(made)
    with pytest.raises(OutOfFrames, match=r"reserve: .*, got 2 \(1 for copies\), need at most 1 \(of 4\)") as caught:
        made.reserve([a, b, c], 1)
    assert (caught.value.needed, caught.value.available) == (2, 1)
    assert state_of(made) == before
    assert made.reserve([a, b], 1).src.size == 1, "one copy: b is the last holder"
    made.audit()


def test_cancel_restores_every_bit() -> None:
    made, (a, c) = filled(16, 4, 6, 4, frame_order=np.random.default_rng(0).permutation(16))
    b, d = made.fork(a), made.fork(a)
    before = state_of(made)
    plan = made.reserve([a, b, c, d], [1, 7, 5, 2])
    assert plan.src.size == 2
    made.slots([c, b], [2, 7])
    made.cancel(plan)
    assert state_of(made) == before
    made.audit()
    with pytest.raises(ContractError, match="cancel: plan is out of date"):
        made.cancel(plan)
    plan = made.reserve(a, 1)
    made.add()
    with pytest.raises(ContractError, match="cancel: plan is out of date"):
        made.cancel(plan)
    made.audit()


def test_rollback_restores_the_free_list() -> None:
    made, (a, b) = filled(16, 4, 4, 8, frame_order=np.random.default_rng(0).permutation(16))
    before = state_of(made)
    made.reserve([a, b], [9, 5])
    made.rollback([a, b])
    assert state_of(made) == before
    made.audit()


def test_rollback_keeps_a_copied_page() -> None:
    made, (a,) = filled(8, 4, 6)
    b = made.fork(a)
    made.reserve(b, 4)
    made.rollback(b)
    assert made.block_table([a, b]).tolist() == [[0, 1], [0, 2]]
    assert made.reserve([a, b], 1).src.size == 0
    made.audit()


# -- cases of the reports


def test_p38_fork_append_free() -> None:
    made, (a,) = filled(8, 1, 4)
    b = made.fork(a)
    made.reserve([a, b], 1)
    made.commit([a, b], 1)
    made.free([a, b])
    assert made.num_free == 8
    assert not made.refcount.any()
    made.audit()


def test_p39_two_writers_of_one_tail_page(manager_class: type[KVManager] = KVManager) -> None:
    """Donor holds 6 tokens, its fork appends 9, the donor 8: the donor's tokens stay what they are."""
    made = manager_class(16, 4)
    donor = made.add()
    made.reserve(donor, 6)
    made.commit(donor, 6)
    pool = np.full(64, -1)
    pool[made.slot_mapping(donor, 0, 6)] = range(6)
    other = made.fork(donor)
    for seq_id, count, base in [(other, 9, 200), (donor, 8, 100)]:
        plan = made.reserve(seq_id, count)
        pool.reshape(16, 4)[plan.dst] = pool.reshape(16, 4)[plan.src]
        pool[made.slots(seq_id, count)] = np.arange(base, base + count)
        made.commit(seq_id, count)
    assert pool[made.slot_mapping(donor, 0, 14)].tolist() == [*range(6), *range(100, 108)]
    assert pool[made.slot_mapping(other, 0, 15)].tolist() == [*range(6), *range(200, 209)]
    made.audit()


def test_p39_catches_a_tail_page_without_a_copy() -> None:
    with pytest.raises((AssertionError, CorruptionError)):
        test_p39_two_writers_of_one_tail_page(SharedPageWritten)


def test_p41_a_refused_batch_leaves_nothing_behind() -> None:
    made, seq_ids = filled(5, 4, 4, 4)
    before = state_of(made)
    for _ in range(3):
        with pytest.raises(OutOfFrames):
            made.reserve(seq_ids, [4, 9])
        assert state_of(made) == before
    made.reserve(seq_ids, [4, 8])
    made.audit()


def test_p43_an_abort_leaves_nothing_live() -> None:
    """What was reserved and never committed is neither counted nor listed, and its frames come back."""
    made, (a,) = filled(8, 4, 3)
    made.reserve(a, 6)
    made.rollback(a)
    assert (made.seq_len(a), made.reserved(a).tolist(), made.num_free) == (3, [0], 7)
    assert made.csr(a).kv_indices.tolist() == [0]
    made.audit()


def test_p48_p49_pages_on_demand() -> None:
    """Page 4: a prompt of exactly 4, then the first decode allocates once; writes at 0, 4, 8 take frames."""
    made, (a,) = filled(8, 4, 4)
    assert made.num_free == 7
    taken = []
    for t in range(4, 12):
        before = made.num_free
        made.reserve(a, 1)
        made.commit(a, 1)
        taken += [t] * (before - made.num_free)
    assert taken == [4, 8]
    assert made.csr(a).kv_last_page_len.tolist() == [4]
    made.free(a)
    assert made.num_free == 8
    made.audit()


def test_s31_freeing_is_tail_first() -> None:
    made, (a,) = filled(8, 4, 12)
    frames = made.table(a).frames().tolist()
    made.free(a)
    assert made._frames._stack[5:8].tolist() == frames[::-1]
    b = made.add()
    made.reserve(b, 12)
    assert made.table(b).frames().tolist() == frames
    made.audit()


# -- views


def test_reserved_pages_are_listed_only_where_they_are_asked_for() -> None:
    made, (a, b) = filled(16, 4, 4, 9)
    made.reserve([a, b], [6, 1])
    assert made.block_table([a, b]).tolist() == [[0, -1, -1], [1, 2, 3]]
    assert made.block_table([a, b], extra=[1, 0]).tolist() == [[0, 4, -1], [1, 2, 3]]
    assert made.block_table([b, a, b], extra=[0, 6, 1]).tolist() == [[1, 2, 3], [0, 4, 5], [1, 2, 3]]
    csr = made.csr([a, b], extra=[5, 1])
    assert (csr.kv_indptr.tolist(), csr.kv_last_page_len.tolist()) == ([0, 3, 6], [1, 2])
    assert [part.dtype for part in csr] == [np.int32] * 3
    assert made.block_table([]).shape == (0, 0)
    made.audit()


def test_slots_mark_pages() -> None:
    made, (a,) = filled(16, 4, 4)
    made.reserve(a, 5)
    made.slots(a, 1)
    made.slot_mapping(a, 0, 1)
    flags = [entry & int(ACCESSED | DIRTY) for entry in made.table(a).walk(range(3)).tolist()]
    assert flags == [int(ACCESSED), int(ACCESSED | DIRTY), 0]
    made.audit()


def test_slots_leave_32_bits() -> None:
    made, (a,) = filled(4, 2**31, 3 * 2**31, frame_order=[0, 1, 3, 2])
    assert made.slot_mapping(a, 2**32 + 7, 2**32 + 9).tolist() == [3 * 2**31 + 7, 3 * 2**31 + 8]
    made.audit()


def test_stats_see_sharing_and_waste() -> None:
    made, (a, _) = filled(16, 4, 6, 4)
    made.fork(a)
    made.reserve(a, 1)
    stats = made.stats()
    assert (stats.free, stats.held, stats.cached, stats.shared) == (12, 4, 0, 1)
    assert (stats.sequences, stats.tokens, stats.reserved_tokens, stats.pages) == (3, 16, 1, 5)
    assert (stats.stored_tokens, stats.internal_waste_tokens, stats.saved_frames) == (12, 4, 1)
    assert stats.utilization == 12 / 16
    assert KVManager(4, 4).stats().utilization == 1.0
    made.audit()


# -- ids and arguments


def test_ids_are_never_reused() -> None:
    made = KVManager(4, 4)
    first = [made.add() for _ in range(3)]
    made.free(first[1])
    assert (first, made.add(), made.sequences) == ([0, 1, 2], 3, (0, 2, 3))
    assert made.add(10) == 10
    assert made.add() == 11
    assert 2 in made and 1 not in made and "x" not in made
    wrong: Any
    for wrong in (10, -1, 2**62, 1.0, True):
        with pytest.raises(ContractError, match="add: seq_id is"):
            made.add(wrong)
    made.audit()


def test_thousands_of_sequences_and_far_apart_ids() -> None:
    """Ids that fall on the same place of the ring are found all the same, before and after it grows."""
    made = KVManager(4000, 4)
    far = [made.add(number * 2**32) for number in range(1, 40)]
    near = [made.add() for _ in range(2000)]
    everybody = np.array([*near, *far])
    made.reserve(everybody, 1)
    made.commit(everybody, 1)
    assert made.seq_lens(everybody[::-1]).tolist() == [1] * 2039
    assert np.unique(made.slot_mapping(everybody, 0, 1)).size == 2039
    made.audit()
    made.free(everybody[::2])
    made.audit()
    assert made.seq_lens(everybody[1::2]).sum() == 1019
    made.free(everybody[1::2])
    assert (len(made), made.num_free) == (0, 4000)
    made.audit()


def test_errors_name_the_id_and_change_nothing() -> None:
    made, (a, b) = filled(8, 4, 6, 2)
    made.reserve(b, 1)
    gone = made.add()
    made.free(gone)
    before = state_of(made)
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: made.reserve([a, 99], 1), ContractError, "reserve: seq_ids names no live sequence, got 99"),
        (lambda: made.reserve([a, -1], 1), ContractError, "got -1"),
        (lambda: made.reserve([a, b, a], 1), ContractError, "reserve: seq_ids names a sequence twice, got 0"),
        (lambda: made.reserve([a, b], [1]), ContractError, "num_tokens has the wrong length, got 1, need 2"),
        (lambda: made.reserve(a, -1), ContractError, "reserve: num_tokens is out of range, got -1, need at least 0"),
        (lambda: made.reserve(a, 2**40 + 1), ContractError, "num_tokens is out of range"),
        (lambda: made.reserve(a, 1.5), ContractError, "num_tokens has the wrong dtype"),
        (lambda: made.reserve("a", 1), ContractError, "seq_ids has the wrong dtype"),
        (lambda: made.reserve([a, b], 2**40), OutOfFrames, "need at most 5"),
        (
            lambda: made.commit([a, b], [0, 2]),
            ContractError,
            "commit: num_tokens of sequence 1 .*got 2",
        ),
        (lambda: made.slots(a, 1), ContractError, "slots: num_tokens of sequence 0 .*got 1, need at most 0"),
        (lambda: made.csr([a, b], extra=[0, 2]), ContractError, "csr: extra of sequence 1 .*got 2, need at most 1"),
        (lambda: made.block_table([a, b], extra=1), ContractError, "block_table: extra of sequence 0"),
        (lambda: made.slot_mapping(a, 3, 2), ContractError, r"slot_mapping: stop of sequence 0 .*got \[3, 2\)"),
        (lambda: made.slot_mapping([b, a], 0, 7), ContractError, r"sequence 1 .*need a range within \[0, 3\)"),
        (lambda: made.fork(b), ContractError, "fork: seq_id 1 has reserved tokens, got 1"),
        (lambda: made.fork(7), ContractError, "fork: seq_ids names no live sequence, got 7"),
        (lambda: made.free([a, gone]), CorruptionError, r"free: .*\(double free\), got 2"),
        (lambda: made.free([a, 99]), ContractError, "free: seq_ids names no live sequence, got 99"),
        (lambda: made.free([a, a]), ContractError, "free: seq_ids names a sequence twice"),
        (lambda: made.seq_len(gone), ContractError, "seq_len: seq_ids names no live sequence, got 2"),
        (lambda: made.table(gone), ContractError, "table: seq_ids"),
        (lambda: made.rollback([gone]), ContractError, "rollback: seq_ids"),
        (lambda: KVManager(8, 0), ContractError, "KVManager: page_size is wrong, got 0"),
        (lambda: KVManager(0, 4), ContractError, "num_frames is out of range"),
    ]
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()
        assert state_of(made) == before
    made.audit()


def test_the_audit_names_what_is_wrong() -> None:
    def entries(made: KVManager) -> Any:
        return made._tables.entries

    faults: dict[str, Any] = {
        "frame 0 has count 3 and 2 table entries": lambda m: m._frames.share([0]),
        "frame 3 has count 1 and 0 table entries": lambda m: m._frames.alloc(1),
        "entries beyond the end of a table: page 3 of sequence 0": lambda m: entries(m).__setitem__((0, 3), pack(5, 3)),
        "pages without a frame: page 1 of sequence 1": lambda m: entries(m).__setitem__((1, 1), 0xFFFFFFFF << 32),
        "none of the pool: page 0 of sequence 0": lambda m: entries(m).__setitem__((0, 0), pack(99, 3)),
        "frames \\[0\\] stand in one table twice": lambda m: entries(m).__setitem__((0, 1), pack(0, 5)),
        "frames \\[1\\] are different pages": lambda m: entries(m).__setitem__((1, 0), pack(1, 5)),
        "frames without PRESENT: page 0 of sequence 2": lambda m: entries(m).__setitem__((2, 0), pack(2, 2)),
        "unknown flag bits: page 0 of sequence 2": lambda m: entries(m).__setitem__((2, 0), pack(2, 3 + 64)),
        "WRITABLE frames with other holders: page 0 of seq": lambda m: entries(m).__setitem__((0, 0), pack(0, 3)),
        "neither or both of WRITABLE": lambda m: entries(m).__setitem__((2, 0), pack(2, 1)),
        "reserved tokens in a page that is not WRITABLE": lambda m: entries(m).__setitem__((2, 0), pack(2, 5)),
        "rows have more live tokens than room": lambda m: m._sequences.length.__setitem__(0, 7),
        "too many or too few pages": lambda m: m._sequences.end.__setitem__(0, 9),
        "rows without a sequence have tokens": lambda m: m._sequences.end.__setitem__(9, 1),
        "sequence 2 is not found in its row": lambda m: m._sequences._ring_id.__setitem__(2, ~2),
        "rows have ids, 3 sequences live": lambda m: m._sequences.seq_id.__setitem__(9, 77),
    }
    for text, tamper in faults.items():
        made, (a,) = filled(8, 4, 6)
        made.fork(a)
        made.reserve(made.add(), 2)
        made.audit()
        tamper(made)
        with pytest.raises(CorruptionError, match=text):
            made.audit()


def test_repr() -> None:
    made, (a,) = filled(8, 4, 6)
    assert repr(made) == "KVManager(num_frames=8, page_size=4: 1 sequences, 6 frames free, 2 held)"
    assert repr(made.table(a)) == "PageTable(page_size=4, pages=2: 0->0 PW..., 1->1 PW...)"
    made.audit()


def test_l1_frame_order_changes_frames_only() -> None:
    """The same history in another frame order: same lengths, same sharing, frames renamed one to one."""

    def run(order: Any) -> KVManager:
        made, (a, b) = filled(32, 4, 6, 11, frame_order=order)
        c = made.fork(b)
        made.reserve([a, c, b], [3, 2, 1])
        made.commit([a, c, b], [3, 2, 1])
        made.free(a)
        made.reserve([made.add(), b], [9, 9])
        made.audit()
        return made

    order = np.random.default_rng(3).permutation(32)
    plain, renamed = run(None), run(order)
    table, other = plain.block_table([1, 2, 3]), renamed.block_table([1, 2, 3])
    assert np.array_equal(np.where(table < 0, -1, order[table]), other)


def test_last_holders_by_turns() -> None:
    """The pure rule against taking turns, for every small case."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        frames = rng.integers(0, 3, rng.integers(0, 6))
        holders = np.bincount(frames, minlength=3) + rng.integers(0, 2, 3)
        left, expected = holders.copy(), []
        for frame in frames:
            expected.append(left[frame] == 1)
            left[frame] -= left[frame] > 1
        assert _plans.last_holders(frames, holders[frames]).tolist() == expected
