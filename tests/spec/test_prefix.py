"""Prefix sharing, eviction, swapping and windows in one state machine, and the cases of the reports (S28-S34)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory import LRU, KVManager, _match
from pagedref.memory._index import PrefixIndex
from pagedref.memory._publish import Publisher
from pagedref.memory.prefix import Media, encode_field, page_keys, page_message, root_message
from pagedref.memory.pressure import Need
from pagedref.memory.stores import HostStore
from tests.spec.cache_machine import CacheMachine, full_state

STEPS = int(os.environ.get("PAGEDREF_SOAK_STEPS", "5000"))

CacheMachine.TestCase.settings = settings(
    max_examples=STEPS // 25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCache = CacheMachine.TestCase

Make = Callable[..., KVManager]


def filled(made: KVManager, *prompts: Any, **keys: Any) -> list[int]:
    """Admit prompts and write them."""
    ids = []
    for prompt in prompts:
        ids.append(made.admit(prompt, **keys).seq_id)
        made.commit(ids[-1], made.reserved(ids[-1]))
    return ids


def hits(made: KVManager, prompt: Any, **keys: Any) -> int:
    return made.match_prefix(prompt, **keys).num_tokens


# -- the cases, each a function of what makes a manager


def p41_pinned_before_the_check(make: Make) -> None:
    """(a) A refused admission leaves nothing pinned."""
    made = make(5, 2)
    made.free(filled(made, [1, 2, 3, 4]))
    before = full_state(made)
    with pytest.raises(OutOfFrames):
        made.admit(list(range(1, 5)) + [9] * 8)
    assert full_state(made) == before


def p41_hits_counted_as_available(make: Make) -> None:
    """(b) Need 4 new, 5 available, of which 2 are the hits: refused, with the numbers, and nothing changed."""
    made = make(5, 2)
    made.free(filled(made, [1, 2, 3, 4]))
    before = full_state(made)
    with pytest.raises(OutOfFrames, match=r"^admit: .* got 6 \(4 new, 2 cached hits, 0 to be left\), need at most 5"):
        made.admit([1, 2, 3, 4] + [9] * 8)
    assert full_state(made) == before
    made.admit([1, 2, 3, 4] + [9] * 6)
    made.audit()


def p42_life_of_a_key(make: Make) -> None:
    """One page: recycled, its key is gone; hit while cached, it is revived with key and tokens."""
    made = make(1, 2)
    made.free(filled(made, [1, 2]))
    made.free(filled(made, [3, 4]))
    assert hits(made, [1, 2, 0]) == 0
    assert hits(made, [3, 4, 0]) == 2
    again = made.add()
    assert made.attach_prefix(again, [3, 4, 0]).num_tokens == 2
    assert made.refcount.tolist() == [1]
    made.audit()
    made.free(again)
    assert hits(made, [3, 4, 0]) == 2
    made.audit()


def p43_published_before_it_is_written(make: Make) -> None:
    """An abort between reserve and commit leaves nothing to hit."""
    made = make(8, 2)
    a = made.add()
    made.attach_prefix(a, [1, 2, 3, 4])
    made.reserve(a, 4)
    assert hits(made, [1, 2, 3, 4, 5]) == 0
    made.rollback(a)
    made.free(a)
    assert hits(made, [1, 2, 3, 4, 5]) == 0
    made.audit()


def p45_deepest_first(make: Make) -> None:
    """Of a cached chain of three, one page goes: the deepest; two still hit. A hole stops the count."""
    made = make(3, 1)
    made.free(filled(made, [1, 2, 3]))
    filled(made, [9])
    assert hits(made, [1, 2, 3, 4]) == 2
    made.audit()


def p50_fields_have_tags(make: Make) -> None:
    """Adapter X, salt X, image X and none are four worlds, on the first page and behind it."""
    worlds: list[dict[str, Any]] = [{}, {"adapter": "X"}, {"salt": "X"}, {"media": [Media(0, 1, "X")]}]
    prompt = [1, 2, 3, 4]
    for at, world in enumerate(worlds):
        made = make(16, 2)
        filled(made, prompt, **world)
        found = [hits(made, [*prompt, 5], **other) for other in worlds]
        assert found == [4 if other == at else 0 for other in range(4)]
        made.audit()


def p51_equal_hashes(make: Make) -> None:
    """A constant hash gives no false hit."""
    made = make(16, 2, hash_function=lambda message: bytes(32))
    filled(made, [1, 2, 5, 6], [7, 8])
    assert hits(made, [3, 4, 0]) == 0
    assert hits(made, [1, 2, 5, 6, 0]) == 4
    assert hits(made, [7, 8, 5, 6, 0]) == 2, "the right page below the wrong parent"
    assert hits(made, [5, 6, 0]) == 0
    made.audit()


def p52_one_token_is_computed(make: Make) -> None:
    """8 tokens, page 4, all cached: 4 hit. 465 tokens of which 256 are there: 209 are left."""
    made = make(40, 4)
    filled(made, list(range(8)))
    assert hits(made, list(range(8))) == 4
    assert hits(made, list(range(9))) == 8
    made = make(60, 16)
    filled(made, list(range(256)))
    admitted = made.admit(list(range(465)))
    assert (admitted.hit.num_tokens, made.reserved(admitted.seq_id).tolist()) == (256, [209])
    made.audit()


def p56_swap_in_counts_everything(make: Make) -> None:
    """Ten pages are wanted back, eight frames are left, whether what is in them was once theirs or not."""
    made = make(10, 1)
    store = HostStore(16, bytes_per_page=1)
    (a,) = filled(made, list(range(10)))
    made.swap_done(made.swap_out(a, store))
    b = made.add()
    made.reserve(b, 2)
    assert made.stats().cached == 8, "eight of its pages are still cached, and they are all that is free"
    before = full_state(made)
    with pytest.raises(OutOfFrames, match="got 10, need at most 8") as caught:
        made.swap_in(a)
    assert (caught.value.needed, caught.value.available) == (10, 8)
    assert full_state(made) == before
    made.free(b)
    with pytest.raises(OutOfFrames, match="got 11, need at most 10"):
        made.swap_in(a, num_tokens=1)
    made.swap_done(made.swap_in(a))
    made.audit()


CASES = [
    p41_pinned_before_the_check,
    p41_hits_counted_as_available,
    p42_life_of_a_key,
    p43_published_before_it_is_written,
    p45_deepest_first,
    p50_fields_have_tags,
    p51_equal_hashes,
    p52_one_token_is_computed,
    p56_swap_in_counts_everything,
]


@pytest.mark.parametrize("case", CASES)
def test_case(case: Callable[[Make], None]) -> None:
    case(KVManager)


# -- mutants: each has the fault of a report


class PinsFirst(KVManager):
    """Hit pages are held before it is known whether the rest fits."""

    def admit(self, tokens: Any, *arguments: Any, **options: Any) -> Any:
        self.attach_prefix(self.add(), tokens)
        return super().admit(tokens, *arguments, **options)


class CountsHitsAsAvailable(KVManager):
    def _need(self, *arguments: Any) -> Need:
        return super()._need(*arguments)._replace(revived=0)


class KeepsOldKeys(KVManager):
    """A recycled page keeps its key."""

    def _prefix_evicted(self, frames: Any) -> None:
        pass


class ForgetsOnRevival(KVManager):
    """A hit on a cached page resets it."""

    def attach_prefix(self, *arguments: Any, **options: Any) -> Any:
        hit = super().attach_prefix(*arguments, **options)
        self._unpublish(hit.frames)
        return hit


class PublishesEarly(KVManager):
    """Keys are published when pages are reserved."""

    def reserve(self, seq_ids: Any, num_tokens: Any) -> Any:
        plan = super().reserve(seq_ids, num_tokens)
        row = self._sequences.rows("reserve", seq_ids)
        before, length = self._sequences.length[row], self._sequences.end[row]
        self._sequences.length[row] = length
        self._learn(row, before, length - before, None)
        self._sequences.length[row] = before
        return plan


class HeadFirst(LRU):
    """Eviction takes the head of a chain first."""

    def enter(self, frames: Any, above: Any) -> None:
        super().enter(frames[::-1], above[::-1])


class AllMayHit(KVManager):
    def match_prefix(self, *arguments: Any, **options: Any) -> Any:
        return super().match_prefix(*arguments, **{**options, "recompute_last": False})


class CountsOnlyWhatIsGone(KVManager):
    """Pages that are still cached are not counted when a sequence comes back."""

    def swap_in(self, seq_id: int, *, num_tokens: int = 0) -> Any:
        row = int(self._sequences.rows("swap_in", [seq_id])[0])
        needed = int(self._away[row].pages.size) - self.stats().cached
        if needed > self.num_available:
            return super().swap_in(seq_id, num_tokens=num_tokens)
        return self._frames.alloc(min(needed, self.num_available))


MUTANTS: list[tuple[Callable[[Make], None], Make]] = [
    (p41_pinned_before_the_check, PinsFirst),
    (p41_hits_counted_as_available, CountsHitsAsAvailable),
    (p42_life_of_a_key, KeepsOldKeys),
    (p42_life_of_a_key, ForgetsOnRevival),
    (p43_published_before_it_is_written, PublishesEarly),
    (p45_deepest_first, lambda *arguments: KVManager(*arguments, policy=HeadFirst)),
    (p52_one_token_is_computed, AllMayHit),
    (p56_swap_in_counts_everything, CountsOnlyWhatIsGone),
]


@pytest.mark.parametrize(("case", "mutant"), MUTANTS)
def test_case_catches(case: Callable[[Make], None], mutant: Make) -> None:
    with pytest.raises((AssertionError, CorruptionError, ContractError, pytest.fail.Exception)):
        case(mutant)


def test_p50_catches_fields_without_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_match, "root_message", lambda adapter, salt: f"{adapter or ''}{salt or ''}".encode())
    with pytest.raises(AssertionError):
        p50_fields_have_tags(KVManager)


def test_p51_catches_an_index_that_trusts_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixIndex, "is_page", lambda *arguments: True)
    with pytest.raises((AssertionError, CorruptionError)):
        p51_equal_hashes(KVManager)


class HitsUnwrittenPages(KVManager):
    """A page is published although it is not full."""

    def _learn(self, rows: Any, before: Any, counts: Any, tokens: Any) -> None:
        self._sequences.length[rows] += 1
        super()._learn(rows, before, counts, tokens)
        self._sequences.length[rows] -= 1


class SharesWithoutHolding(KVManager):
    """A prefix hit takes no hold of what it found."""

    def _attach(self, row: int, match: Any, *arguments: Any) -> Any:
        hit = super()._attach(row, match, *arguments)
        self._frames.free(hit.frames)
        return hit


class WindowKeepsOneTooFew(KVManager):
    """A window that does not count the own position."""

    def release_window(self, seq_ids: Any, window: int, *, sinks: int = 0) -> int:
        return super().release_window(seq_ids, max(window - 1, 1), sinks=sinks)


class TruncateKeepsTokens(KVManager):
    """What is known of tokens outlives their removal, so that wrong pages are published."""

    def truncate(self, seq_ids: Any, lengths: Any) -> None:
        publisher, self._publisher = self._publisher, None
        super().truncate(seq_ids, lengths)
        self._publisher = publisher


class FreesBeforeDone(KVManager):
    """The source of a swap is given back when the plan is made."""

    def swap_out(self, seq_id: int, store: Any) -> Any:
        plan = super().swap_out(seq_id, store)
        self._frames.free(plan.frames)
        return plan


MACHINE_MUTANTS = [
    HitsUnwrittenPages,
    SharesWithoutHolding,
    WindowKeepsOneTooFew,
    TruncateKeepsTokens,
    FreesBeforeDone,
    KeepsOldKeys,
]


@pytest.mark.parametrize("mutant", MACHINE_MUTANTS)
def test_the_machine_catches(mutant: type[KVManager]) -> None:
    machine = type("MutantMachine", (CacheMachine,), {"manager_class": mutant})
    with pytest.raises((AssertionError, CorruptionError, ContractError, IndexError)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=1000,
                stateful_step_count=20,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )


# -- keys


def test_vectors() -> None:
    """The bytes of the drawing, written out by hand."""
    assert root_message(None, "x").hex() == (b"pagedref prefix 1".hex() + "00" + "0201000000" + "78" + "52")
    assert page_message(bytes(32), [1, 2]).hex() == "00" * 32 + "02000000" + "01000000" + "02000000" + "00000000" + "50"
    root = hashlib.sha256(root_message()).digest()
    first = hashlib.sha256(root + bytes.fromhex("0200000001000000020000000000000050")).digest()
    second = hashlib.sha256(first + bytes.fromhex("0200000003000000040000000000000050")).digest()
    assert page_keys([1, 2, 3, 4, 5], 2) == [first, second]
    assert encode_field(("a", 1)).hex() == "0402000000" + "020100000061" + "010100000001"
    assert [encode_field(n)[5:].hex() for n in (0, 127, 128, -128, -129)] == ["00", "7f", "8000", "80", "7fff"]


def test_no_two_fields_share_an_encoding() -> None:
    fields = [None, 0, 1, -1, 256, "", "x", b"x", b"", (), (None,), ("x",), (("x",),), ("x", None), "1", b"\x01"]
    assert len({encode_field(field) for field in fields}) == len(fields)
    for wrong in (1.5, True, [1], object()):
        with pytest.raises(ContractError, match="encode_field: field has no canonical form"):
            encode_field(wrong)


def test_the_keys_of_a_sequence_are_those_of_its_tokens() -> None:
    made = KVManager(16, 4)
    media = [Media(2, 6, b"cat")]
    (a,) = filled(made, list(range(10)), adapter=("lora", 7), media=media)
    assert made.page_keys(a) == page_keys(list(range(10)), 4, adapter=("lora", 7), media=media)
    made.reserve(a, 2)
    made.commit(a, 2, [10, 11])
    assert made.page_keys(a) == page_keys(list(range(12)), 4, adapter=("lora", 7), media=media)
    made.audit()


def test_media_in_the_last_page_of_a_prompt() -> None:
    """A page that is completed by generated tokens keeps the name of the image in it."""
    for image in ([], [Media(4, 6, "cat")]):
        made = KVManager(16, 4)
        (a,) = filled(made, [0] * 6, media=image)
        made.reserve(a, 2)
        made.commit(a, 2, [0, 0])
        assert hits(made, [0] * 9) == (4 if image else 8)
        assert hits(made, [0] * 9, media=[Media(4, 6, "cat")]) == (8 if image else 4)
        made.truncate(a, 5)
        made.reserve(a, 3)
        made.commit(a, 3, [0, 0, 0])
        assert hits(made, [0] * 9) == (4 if image else 8), "what is left of an image has no name"
        made.audit()


# -- options


def test_sha256_as_codes_finds_the_same() -> None:
    for options in ({}, {"hash_function": lambda message: hashlib.sha256(message).digest()}):
        made = KVManager(64, 4, **options)
        filled(made, list(range(20)), [0, 1, 2, 3, 9, 9, 9, 9, 1])
        assert [hits(made, p) for p in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 9, 9, 9, 9, 8], [1, 2, 3, 4, 5])] == [4, 8, 0]
        made.audit()


def test_a_partly_matching_tail_is_copied() -> None:
    made = KVManager(8, 4)
    filled(made, [1, 2, 3, 4, 5, 6, 7, 8])
    b = made.add()
    hit = made.attach_prefix(b, [1, 2, 3, 4, 5, 6, 9], partial_tail=True)
    assert (hit.num_tokens, hit.frames.tolist(), hit.src.tolist(), hit.dst.tolist()) == (6, [0], [1], [2])
    c = made.add()
    hit = made.attach_prefix(c, [1, 2, 3, 4, 5, 6], partial_tail=True)
    assert hit.num_tokens == 5, "still at most n - 1"
    made.audit()


def test_duplicates() -> None:
    """Equal pages completed twice: the first one cached is given out; tables change only where that is asked for."""
    for deduplicate in (False, True):
        made = KVManager(8, 2, deduplicate=deduplicate)
        a, b = made.admit([1, 2, 3]).seq_id, made.admit([1, 2, 4]).seq_id
        made.commit([a, b], 3)
        assert made.stats().held == (3 if deduplicate else 4)
        assert made.match_prefix([1, 2, 5]).frames.tolist() == [0]
        made.free(a)
        made.evict(1)
        assert hits(made, [1, 2, 5]) == 2, "the other one takes its place"
        made.audit()


def test_hits_count_once() -> None:
    made = KVManager(8, 2)
    prompt = list(range(8))
    made.free(filled(made, prompt))
    a = made.admit(prompt).seq_id
    for _ in range(3):
        made.match_prefix(prompt)
        with pytest.raises(OutOfFrames):
            made.admit(list(range(50, 70)))
    made.free(a)
    made.admit(prompt, resumed=True)
    stats = made.prefix_stats
    assert (stats.requests, stats.queried, stats.hit_tokens, stats.hit_rate) == (2, 16, 6, 6 / 16)


def test_s27_a_published_page_is_not_written_into() -> None:
    """A cut into a published page: alone, it is written in place and its key goes; hit by others, it is copied."""
    for others in (0, 1):
        made = KVManager(8, 4)
        (a,) = filled(made, list(range(8)))
        if others:
            made.attach_prefix(made.add(), list(range(9)))
        made.truncate(a, 6)
        plan = made.reserve(a, 2)
        assert plan.src.size == others
        made.commit(a, 2, [70, 71])
        assert hits(made, list(range(9))) == (8 if others else 4)
        assert hits(made, [0, 1, 2, 3, 4, 5, 70, 71, 0]) == 8
        made.audit()


def test_the_audit_sees_the_index() -> None:
    def tamper(what: Callable[[Publisher, KVManager], None]) -> KVManager:
        made = KVManager(8, 2)
        filled(made, [1, 2, 3, 4, 5], [1, 2, 6, 6])
        assert made._publisher is not None
        what(made._publisher, made)
        return made

    faults: dict[str, Callable[[Publisher, KVManager], None]] = {
        "published and not kept": lambda p, m: m._frames._kept.__setitem__(0, False),
        "hang on no node": lambda p, m: p.index.first_frame.__setitem__(int(p.index.node_of[0]), -1),
        "miscount": lambda p, m: p.index.children.__setitem__(int(p.index.node_of[0]), 5),
        "not found by their codes": lambda p, m: p.index.code.__setitem__(int(p.index.node_of[3]), 5),
        "stands 2 pages deep and has 1": lambda p, m: p.streams.published.__setitem__(0, 1),
    }
    for text, what in faults.items():
        with pytest.raises(CorruptionError, match=text):
            tamper(what).audit()


def test_a_sequence_without_tokens_may_be_named_again() -> None:
    """The last name counts, and the index does not keep what the first one stood on."""
    first: list[Callable[[KVManager, int], Any]] = [
        lambda made, a: made.attach_prefix(a, [7, 7, 7], adapter="x"),
        lambda made, a: made.commit(a, 0, []),
        lambda made, a: (made.reserve(a, 5), made.commit(a, 5, [7, 7, 7, 7, 7]), made.truncate(a, 0)),
    ]
    for before in first:
        made = KVManager(8, 2)
        (other,) = filled(made, [1, 2, 3])
        a = made.add()
        before(made, a)
        assert made.attach_prefix(a, [1, 2, 3]).num_tokens == 2
        made.audit()
        made.free([a, other])
        made.clear_prefixes()
        assert made._publisher is not None and made._publisher.index.num_nodes == 1
        made.audit()


def agreement(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
    constant=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_chains_are_found_however_their_nodes_are_numbered(
    prompts: list[list[int]], order: Any, constant: bool
) -> None:
    """Prompts that grow in turns: a node may follow its parent in number or not, and numbers are given again."""
    made = KVManager(200, 1, **({"hash_function": lambda message: bytes(32)} if constant else {}))
    for stale in range(2):
        ids = [made.add() for _ in prompts]
        left = [list(prompt) for prompt in prompts]
        while any(left):
            one = order.choice([at for at, rest in enumerate(left) if rest])
            some = [left[one].pop(0) for _ in range(min(order.choice([1, 1, 2, 5]), len(left[one])))]
            made.reserve(ids[one], len(some))
            made.commit(ids[one], len(some), some)
        for prompt in prompts:
            for cut in {len(prompt), order.randrange(len(prompt) + 1)}:
                wanted = [*prompt[:cut], *([order.randrange(3)] * 8)]
                assert hits(made, wanted) == max(agreement(wanted[:-1], prompt) for prompt in prompts)
        made.audit()
        made.free(ids)
        if not stale:
            made.evict(order.randrange(made.stats().cached + 1))
    made.clear_prefixes()
    made.audit()


def test_bytes_for_each_cached_page() -> None:
    """At most 32 bytes a frame for counts, links and flags; 128 with every page cached at page size 16."""
    made = KVManager(2**14, 16)
    queue: Any = made._frames.policy
    (a,) = filled(made, np.arange(2**18))
    made.free(a)
    assert made.stats().cached == 2**14
    bare = made._frames.nbytes + queue._queue.nbytes
    assert bare <= 32 * 2**14
    assert made._publisher is not None
    assert bare + made._publisher.index.nbytes <= 128 * 2**14
    made.audit()


# -- failure injection: every operation with every number of frames too few (S26)


def _crowd(made: KVManager) -> dict[str, int]:
    """Return sequences in all states: shared tails, cached prefixes, swapped, at the end of a page."""
    store = HostStore(8, bytes_per_page=1)
    a, b, away = filled(made, [1, 2, 3, 4, 5], [6, 7, 8, 9], [3, 3, 3, 3, 3, 3])
    child = made.fork(a)
    gone = filled(made, [5, 5, 5, 5, 5])[0]
    made.free(gone)
    made.swap_done(made.swap_out(away, store))
    return {"a": a, "b": b, "child": child, "away": away}


OPERATIONS: dict[str, tuple[int, Callable[[KVManager, dict[str, int]], Any]]] = {
    "copy": (1, lambda made, ids: made.reserve(ids["a"], 1)),
    "copies and pages": (5, lambda made, ids: made.reserve([ids["a"], ids["b"]], [3, 6])),
    "both holders": (3, lambda made, ids: made.reserve([ids["a"], ids["child"]], 3)),
    "admit, nothing there": (3, lambda made, ids: made.admit([9, 9, 9, 9, 9])),
    "admit, held hits": (1, lambda made, ids: made.admit([1, 2, 3, 4, 9])),
    "admit, cached hits": (3, lambda made, ids: made.admit([5, 5, 5, 5, 9])),
    "admit, watermark": (3, lambda made, ids: made.admit([9, 9], watermark=2)),
    "swap in": (3, lambda made, ids: made.swap_in(ids["away"])),
    "swap in and more": (4, lambda made, ids: made.swap_in(ids["away"], num_tokens=1)),
    "decode": (1, lambda made, ids: made.batch([ids["b"]]).step()),
    "decode with a copy": (2, lambda made, ids: made.batch([ids["b"], ids["a"]]).step()),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("policy", ["lru", "fifo", "clock", "priority"])
def test_every_operation_with_too_few_frames(name: str, policy: str) -> None:
    needed, call = OPERATIONS[name]
    for left in range(needed + 1):
        made = KVManager(20, 2, policy=policy)
        ids = _crowd(made)
        filler = made.add()
        cached = made.stats().cached
        made.reserve(filler, 2 * (made.num_available - max(left, cached)))
        if left < cached:
            made.evict(cached - left)
            made.reserve(filler, 2 * (cached - left))
        assert made.num_available == left
        if name == "admit, cached hits" and made.match_prefix([5, 5, 5, 5, 9]).num_tokens < 4:
            continue  # what should be hit had to go
        made.commit(filler, made.reserved(filler))
        before = full_state(made)
        if left < needed:
            with pytest.raises(OutOfFrames) as caught:
                call(made, ids)
            assert caught.value.available == left
            assert full_state(made) == before
        else:
            call(made, ids)
        made.audit()


def test_a_full_store_changes_nothing() -> None:
    made = KVManager(8, 1)
    (a,) = filled(made, [1, 2, 3])
    before = full_state(made)
    for size in (1, 2):
        with pytest.raises(OutOfFrames):
            made.swap_out(a, HostStore(size, bytes_per_page=1))
        assert full_state(made) == before
    made.audit()
