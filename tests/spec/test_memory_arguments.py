"""What a manager and its stores are given is checked before anything changes; nothing foreign is raised (S26)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory import GroupedKVManager, KVManager, LayerGroup, Need, PageTable, equal_groups, page_keys
from pagedref.memory._queue import FrameQueue
from pagedref.memory.disk import DiskStore
from pagedref.memory.eviction import FIFO, LRU, Clock, Priority
from pagedref.memory.frames import FrameAllocator
from pagedref.memory.prefix import encode_field, root_message
from pagedref.memory.pressure import Claim, choose_victims, largest_need, refuse_if_never
from pagedref.memory.radix import RadixTree
from pagedref.memory.stores import HostStore
from pagedref.ragged import int_array
from tests.spec.cache_machine import full_state

NO_NUMBERS = [-1, -100, 1.5, float("nan"), "a", True, [1]]
FORM = r"^\w+(\.\w+)?: .+, got .+, need "


def grouped() -> GroupedKVManager:
    return GroupedKVManager(8, 2, [LayerGroup("all", 1), LayerGroup("near", 1, window=3)])


def cached(num_frames: int = 8, page_size: int = 2) -> KVManager:
    made = KVManager(num_frames, page_size)
    a = made.admit([1, 2, 3, 4, 5]).seq_id
    made.commit(a, 5)
    made.free(a)
    return made


@pytest.mark.parametrize("n", NO_NUMBERS)
def test_numbers_of_frames_to_give_up(n: Any) -> None:
    made = cached()
    before = full_state(made)
    for call in (made.evict, grouped().evict, FrameQueue(4).pop, FrameAllocator(4).give_up, HostStore(2, 1).alloc):
        with pytest.raises(ContractError, match=FORM):
            call(n)
    assert full_state(made) == before
    assert made.evict(np.int64(99)) == 2
    made.audit()


@pytest.mark.parametrize("policy", [LRU, FIFO, Clock, Priority])
def test_policies_give_up_no_more_than_they_have(policy: Any) -> None:
    made = policy(8)
    made.enter(np.array([3, 5]), np.array([-1, -1]))
    for n in (-1, 3):
        with pytest.raises(ContractError, match="n is wrong"):
            made.victims(n)
    assert sorted(made.victims(2).tolist()) == [3, 5]


@pytest.mark.parametrize("wrong", NO_NUMBERS)
@pytest.mark.parametrize("name", ["watermark", "num_tokens"])
@pytest.mark.parametrize("make", [cached, grouped])
def test_an_admission_that_is_refused_changes_nothing(make: Callable[[], Any], name: str, wrong: Any) -> None:
    made = make()
    for function in ("admit", "need"):
        with pytest.raises(ContractError, match=rf"^{function}: {name} is wrong, got .*, need an integer >= 0"):
            getattr(made, function)([1, 2, 3], **{name: wrong})
    assert len(made) == 0
    made.audit()


def test_a_negative_watermark_does_not_hide_that_frames_are_missing() -> None:
    made = KVManager(4, 2)
    with pytest.raises(ContractError, match="watermark"):
        made.admit(range(20), watermark=-100)
    with pytest.raises(OutOfFrames):
        made.admit(range(20))
    assert (len(made), made.num_free) == (0, 4)
    assert made.need([1, 2, 3], np.int32(1), watermark=np.int64(2)) == Need(1, 0, 4, 2)
    made.audit()


@pytest.mark.parametrize(
    "media",
    [[(0, 2**30, "x")], [(0, 4, "x")], [(0, 2**80, "x")], [(0, 1)], 5, 0, "ab", [5], [(0.0, 1.0, "x")],
     [("a", "b", "x")], [(1, 1, "x")], [(-1, 1, "x")], [(False, True, "x")], [(0, 1, 1.5)], [(None, 2, 3)]],
)  # fmt: skip
def test_media_are_runs_of_the_prompt(media: Any) -> None:
    made, groups = cached(), grouped()
    a, b = made.add(), groups.add()
    before = full_state(made)
    calls: list[Callable[[], Any]] = [
        lambda: made.admit([1, 2, 9], media=media),
        lambda: made.need([1, 2, 9], media=media),
        lambda: made.match_prefix([1, 2, 9], media=media),
        lambda: made.attach_prefix(a, [1, 2, 9], media=media),
        lambda: groups.admit([1, 2, 9], media=media),
        lambda: groups.match_prefix([1, 2, 9], media=media),
        lambda: groups.attach_prefix(b, [1, 2, 9], media=media),
        lambda: page_keys([1, 2, 9], 2, media=media),
    ]
    for call in calls:
        with pytest.raises(ContractError, match=FORM):
            call()
    assert full_state(made) == before
    assert made.match_prefix([1, 2, 9], media=((0, 3, "x"),)).num_tokens == 0
    made.audit()


def test_victims_are_chosen_among_sequences_that_are_named_once() -> None:
    made = KVManager(12, 1)
    ids = []
    for token in range(3):
        ids.append(made.admit([token, 9]).seq_id)
        made.commit(ids[-1], 2)
    for missing, named, priorities in [
        (99, ids, [0]),
        (99, ids, [0, 0, 0, 0]),
        (99, [*ids, ids[0]], None),
        (99, ids, [0.5, 0, 0]),
        (99, ids, ["a", 0, 0]),
        (99, ids, [[0], [0, 1], 0]),
        (99, ["a"], None),
        (99, [2**70], None),
        (99, [1.5], None),
        (1.5, ids, None),
        (-1, ids, None),
    ]:
        with pytest.raises(ContractError, match=FORM):
            made.preemption(missing, named, priorities)
    assert made.preemption(99, np.array(ids), np.array([0, 0, 1])) == ids[1::-1]
    assert made.preemption(99, []) == []
    with pytest.raises(ContractError, match="claims name a sequence twice"):
        choose_victims([Claim(7, 0, 0, 1), Claim(8, 0, 1, 1), Claim(7, 0, 2, 1)], 9)
    made.audit()


@pytest.mark.parametrize("wrong", ["a", ["a"], 2**70, [2**70], -(2**70), [[1], [2, 3]], None, 1.5, [True], b"x", {}])
def test_ids_that_are_none(wrong: Any) -> None:
    made = KVManager(4, 2)
    made.add()
    for name in ("free", "rollback", "seq_lens", "reserved", "csr", "block_table", "batch", "pin", "frames_released_by",
                 "seq_len", "fork", "is_pinned", "is_swapped", "table", "page_keys"):  # fmt: skip
        with pytest.raises(ContractError, match=FORM):
            getattr(made, name)(wrong)
    for name in ("reserve", "commit", "truncate", "slots"):
        for ids, count in ((wrong, 1), (0, "a"), (0, [[1], [2, 3]]), (0, 2**70), (0, 1.5)):
            with pytest.raises(ContractError, match=FORM):
                getattr(made, name)(ids, count)
    if wrong is not None:
        with pytest.raises(ContractError, match=FORM):
            made.admit([1], seq_id=wrong)
        with pytest.raises(ContractError, match=FORM):
            made.add(wrong)
    assert len(made) == 1
    made.audit()


@pytest.mark.parametrize("wrong", [[[1], [2, 3]], "ab", [2**31], [-1], 5, [None], [1.5], [[1, 2]]])
def test_tokens_that_are_none(wrong: Any) -> None:
    made = KVManager(4, 2)
    for call in (made.admit, made.need, made.match_prefix, grouped().admit, lambda tokens: page_keys(tokens, 2)):
        with pytest.raises(ContractError, match=FORM):
            call(wrong)
    with pytest.raises(ContractError, match=r"f: x is no array, got .*, need integers"):
        int_array("f", "x", [[1], [2, 3]])
    assert len(made) == 0
    made.audit()


def test_names_that_have_no_bytes() -> None:
    made = KVManager(4, 2)
    deep: tuple[Any, ...] = ()
    for _ in range(3000):
        deep = (deep,)
    for wrong in (deep, "\ud800", ("a", "\udfff"), 1.5, True, ["a"]):
        for call in (encode_field, root_message, lambda salt: made.admit([1, 2], salt=salt)):
            with pytest.raises(ContractError, match="encode_field: field has no"):
                call(wrong)
    assert len(made) == 0
    made.audit()


def test_sizes() -> None:
    for wrong in (0, -1, 2**63, 1.5, "a", True):
        with pytest.raises(ContractError, match="KVManager: page_size is wrong"):
            KVManager(4, wrong)
        with pytest.raises(ContractError, match="page_keys: page_size is wrong"):
            page_keys([1, 2], wrong)
        for made_by in (RadixTree, PageTable):
            with pytest.raises(ContractError, match=r"\w+: page_size is wrong"):
                made_by(wrong if wrong != 2**63 else 0)
    with pytest.raises(ContractError, match="KVManager: page_size gives slots beyond 64 bits"):
        KVManager(2**23, 2**40)
    for slots, size in ((2, -1), (2, 0), (2, 1.5), (2, 2**41), (2, "a"), (0, 1), (-1, 1), (1.5, 1), (2**31, 1)):
        with pytest.raises(ContractError, match="HostStore: "):
            HostStore(slots, size)
    for wrong in (0, -1, 1.5, "a", True):
        made = KVManager(4, 2)
        a = made.add()
        with pytest.raises(ContractError, match="release_window: window is wrong"):
            made.release_window(a, wrong)
        if wrong != 0:
            with pytest.raises(ContractError, match="release_window: sinks is wrong"):
                made.release_window(a, 1, sinks=wrong)
        made.audit()


def test_a_window_larger_than_any_number() -> None:
    made = KVManager(4, 2)
    a = made.add()
    made.reserve(a, 6)
    made.commit(a, 6)
    assert made.release_window(a, 2**70) == made.release_window(a, 1, sinks=2**70) == 0
    assert made.release_window(a, np.int64(2**63 - 1)) == 0
    assert made.release_window(a, 2) == 2
    made.audit()
    groups = GroupedKVManager(4, 2, [LayerGroup("near", 1, window=2**70)])
    b = groups.admit([1, 2, 3]).seq_id
    groups.commit(b, 3)
    assert groups.held() == 2
    groups.truncate(b, 1)
    groups.audit()


def test_a_disk_store_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    for slots, size in ((1, 2**41), (2**31 - 1, 2**40), (2**31, 4), (0, 4), (1, 0), (1.5, 4), (1, 1.5)):
        with pytest.raises(ContractError, match=r"DiskStore: (num_slots|bytes_per_page) is wrong"):
            DiskStore(path, slots, size)
    for wrong in (str(path) + "\0x", str(path) + "\ud800", 5, None, b"pages"):
        with pytest.raises(ContractError, match="DiskStore: path names no file"):
            DiskStore(wrong, 1, 4)
    assert list(tmp_path.iterdir()) == []
    with DiskStore(path, np.int64(1), np.int64(4)) as store:
        for names in (5, None, "a", ["a"], [b""]):
            with pytest.raises(ContractError, match="get: names are"):
                store.get(names)


def test_pages_that_are_no_bytes() -> None:
    store = HostStore(2, 1)
    slots = store.alloc(2)
    for wrong in ([[1], [2, 3]], "ab", [[1], [2]], None, np.zeros((2, 2), np.uint8), np.zeros((1, 1), np.uint8)):
        with pytest.raises(ContractError, match="write: pages"):
            store.write(slots, wrong)
    store.audit()


@pytest.mark.parametrize("good", [[True], [True] * 3, [], True, [1, 1], [[True, True]], "ab", [[True], [True, False]]])
def test_what_arrived_is_checked_before_it_is_booked(good: Any) -> None:
    made, store = KVManager(4, 2), HostStore(4, 1)
    a = made.add()
    made.reserve(a, 3)
    made.commit(a, 3)
    for direction in ("out", "in"):
        plan = made.swap_out(a, store) if direction == "out" else made.swap_in(a)
        with pytest.raises(ContractError, match=r"swap_done: good .*, got .*, need (bool \(2,\)|rows)"):
            made.swap_done(plan, good)
        assert made.swaps.pending == (plan,)
        assert made.swap_done(plan, np.array([True, True])) == 3
        made.audit()


def test_a_sequence_that_cannot_come_back() -> None:
    made, store = KVManager(4, 2), HostStore(4, 1)
    a = made.add()
    made.reserve(a, 3)
    made.commit(a, 3)
    with pytest.raises(ContractError, match="swap_out: store is none"):
        made.swap_out(a, None)
    with pytest.raises(ContractError, match=r"swap_in: seq_id 0 is not swapped out, got .* need one in a store"):
        made.swap_in(a)
    made.swap_done(made.swap_out(a, store))
    for wrong in NO_NUMBERS:
        with pytest.raises(ContractError, match="swap_in: num_tokens is wrong"):
            made.swap_in(a, num_tokens=wrong)
    made.swap_done(made.swap_in(a, num_tokens=np.int64(1)))
    made.audit()


def test_the_radix_view_has_what_can_be_hit() -> None:
    made = KVManager(8, 2)
    prompt, name = [1, 2, 3, 4, 5, 6, 7], root_message()
    a = made.admit(prompt).seq_id
    made.commit(a, 7)
    keys = page_keys(prompt, 2)
    assert made.radix().longest_match(prompt, namespace=name) == 6
    made.release_window(a, 2)
    made.evict(2)
    assert made.match_prefix(prompt, recompute_last=False).num_tokens == 2
    assert made.radix().longest_match(prompt, namespace=name) == 2
    assert made.page_keys(a) == keys, "keys name contents, with a frame or not"
    made.evict(9)
    assert made.radix().longest_match(prompt, namespace=name) == 0
    assert made.page_keys(a) == keys
    made.audit()


def test_the_radix_view_after_a_swap_and_with_media() -> None:
    made, store, name = KVManager(8, 2), HostStore(8, 1), root_message()
    a = made.admit([1, 2, 3, 4, 5]).seq_id
    made.commit(a, 5)
    made.swap_done(made.swap_out(a, store))
    made.clear_prefixes()
    assert made.match_prefix([1, 2, 3, 4, 5]).num_tokens == 0
    assert made.radix().longest_match([1, 2, 3, 4], namespace=name) == 0
    b = made.admit([1, 2, 8, 8, 9], media=[(2, 4, "image")]).seq_id
    made.commit(b, 5)
    assert made.match_prefix([1, 2, 8, 8, 9]).num_tokens == 2
    assert made.radix().longest_match([1, 2, 8, 8, 9], namespace=name) == 2
    made.audit()


def test_what_cancel_brings_back_and_what_not() -> None:
    made = cached(3, 2)
    a = made.add()
    before = made.table(a).num_pages, made.num_available, made.reserved(a).tolist()
    made.cancel(made.reserve(a, 6))
    assert (made.table(a).num_pages, made.num_available, made.reserved(a).tolist()) == before
    assert (made.num_free, made.match_prefix([1, 2, 3]).num_tokens) == (3, 0), "what was evicted stays lost"
    made.audit()


@pytest.mark.parametrize(
    "call",
    [
        lambda: KVManager(4, 2).admit([1], recompute_last="x"),
        lambda: KVManager(4, 2).match_prefix([1, 2, 3], recompute_last=-9),
        lambda: RadixTree().evict(-1),
        lambda: RadixTree().evict("x"),
        lambda: refuse_if_never("a", 1, 2, 3),
        lambda: refuse_if_never(5, 1, 2, 3, -40),
        lambda: largest_need(-5, 1, 2),
        lambda: largest_need(5, 0, 2),
        lambda: largest_need(5, 1, 0),
        lambda: PageTable.from_entries([[1], [2, 3]], 2),
        lambda: PageTable.from_entries([-1], 2),
        lambda: Priority(8).grade([[1], [2, 3]]),
        lambda: Priority(8).grade([99]),
        lambda: Priority(8).grade([-1]),
        lambda: Priority(8).grade([1], priority=1.5),
        lambda: Priority(8).grade([1], ttl=float("nan")),
        lambda: Priority(8).grade([1], ttl="a"),
        lambda: equal_groups([5]),
        lambda: equal_groups(5),
        lambda: GroupedKVManager(4, 2, 5),
        lambda: GroupedKVManager(4, 2, [5]),
    ],
)
def test_what_else_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ContractError, match=FORM):
        call()
