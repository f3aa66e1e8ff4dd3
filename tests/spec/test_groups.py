"""Groups of layers with different windows over one pool (S5, S26, S29, S32)."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pagedref.errors import ContractError, CorruptionError, OutOfFrames, PagedRefError, PageFault
from pagedref.memory import GroupedKVManager, KVManager, LayerGroup, Media, equal_groups
from tests.spec.cache_machine import full_state
from tests.spec.group_machine import GroupMachine, grouped_state

STEPS = int(os.environ.get("PAGEDREF_SOAK_STEPS", "5000"))

GroupMachine.TestCase.settings = settings(
    max_examples=STEPS // 50, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestGroups = GroupMachine.TestCase

FULL, LOCAL = LayerGroup("full", 2), LayerGroup("local", 2, window=4)


def made_of(*windows: int | None, num_frames: int = 40, page_size: int = 2, **options: Any) -> GroupedKVManager:
    groups = [LayerGroup(f"g{at}", 1, window) for at, window in enumerate(windows)]
    return GroupedKVManager(num_frames, page_size, groups, **options)


def filled(made: Any, prompt: Any, **keys: Any) -> int:
    """Admit a prompt and write it."""
    seq_id = made.admit(prompt, **keys).seq_id
    made.commit(seq_id, made.reserved(seq_id))
    return int(seq_id)


# -- mutants of the machine


class LongestOfOne(GroupedKVManager):
    """The hit is what the first group can give."""

    def _find(self, function: str, tokens: Any, recompute_last: bool, fields: dict[str, Any]) -> Any:
        matches = [member.find(function, tokens, recompute_last, fields) for member in self._members]
        most = max(int(matches[0].tokens.size) - recompute_last, 0) // self.page_size
        return matches, int(np.flatnonzero(self._first.lengths(matches[0], most))[-1])


class StopsAtHoles(GroupedKVManager):
    """A window group needs all pages up to the hit, too."""

    def _find(self, *args: Any) -> Any:
        matches, _ = super()._find(*args)
        most = max(int(matches[0].tokens.size) - args[2], 0) // self.page_size
        there = [np.append(match.frames, -1) >= 0 for match in matches]
        return matches, min(most, *(int(np.argmin(mask)) for mask in there))


class WindowShort(GroupedKVManager):
    """Windows are taken to be a page shorter."""

    step = -1

    def __init__(self, num_frames: int, page_size: int, groups: Any, **options: Any) -> None:
        super().__init__(num_frames, page_size, groups, **options)
        for member in self._members:
            if member.window is not None:
                member.window = max(member.window + self.step * page_size, 1)


class WindowLong(WindowShort):
    """Windows are taken to be a page longer."""

    step = 1


class HitPageShort(GroupedKVManager):
    """A hit is granted that lacks the first page of a window."""

    step = -1

    def __init__(self, num_frames: int, page_size: int, groups: Any, **options: Any) -> None:
        super().__init__(num_frames, page_size, groups, **options)
        for member in self._members:
            if member.window is not None:
                member.lengths = partial(self.other_lengths, member)

    def other_lengths(self, member: Any, match: Any, pages: int) -> Any:
        window, member.window = member.window, max(member.window + self.step * self.page_size, 1)
        good = type(member).lengths(member, match, pages)
        member.window = window
        return good


class HitPageLong(HitPageShort):
    """A hit is refused that has all its window, for a page before it."""

    step = 1


class NeverReleases(GroupedKVManager):
    """Pages behind the window stay."""

    def commit(self, seq_ids: Any, num_tokens: Any, tokens: Any = None) -> None:
        for member in self._members:
            member.commit(seq_ids, num_tokens, tokens)


class ReleasesEarly(GroupedKVManager):
    """Reserved tokens count as passed."""

    def reserve(self, seq_ids: Any, num_tokens: Any) -> Any:
        plan = super().reserve(seq_ids, num_tokens)
        for member in self._members:
            if member.window is not None:
                member.release_window(seq_ids, max(member.window - int(np.max(num_tokens, initial=0)), 1))
        return plan


class CountsOneGroup(GroupedKVManager):
    """A reservation is checked group by group: the first may have acted when the second is refused."""

    def reserve(self, seq_ids: Any, num_tokens: Any) -> Any:
        everything = self._members
        self._members = everything[:1]
        try:
            super().reserve(seq_ids, num_tokens)
        finally:
            self._members = everything
        for member in self._members[1:]:
            member.reserve(seq_ids, num_tokens)


class NeedsOneGroup(GroupedKVManager):
    """An admission counts one group."""

    def _need(self, matches: Any, pages: int, num_tokens: Any, watermark: int) -> Any:
        need = super()._need(matches, pages, num_tokens, watermark)
        return need._replace(new=need.new // len(self._members))


class CutsIntoHoles(GroupedKVManager):
    """A sequence is cut off where its window has released the pages it needs."""

    def truncate(self, seq_ids: Any, lengths: Any) -> None:
        for member in self._members:
            member.truncate(seq_ids, lengths)


MUTANTS = [
    LongestOfOne, StopsAtHoles, HitPageShort, HitPageLong, WindowShort, WindowLong, NeverReleases, ReleasesEarly,
    CountsOneGroup, NeedsOneGroup, CutsIntoHoles,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_machine_catches(mutant: type[GroupedKVManager]) -> None:
    machine = type("MutantMachine", (GroupMachine,), {"manager_class": mutant})
    quick = settings(
        max_examples=1000,
        stateful_step_count=20,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, PagedRefError, ValueError, IndexError)):
        run_state_machine_as_test(machine, settings=quick)


# -- one group without a window is a KVManager


class Twins:
    """Call the same on two managers; results and refusals are the same."""

    def __init__(self, *managers: Any) -> None:
        self.managers = managers
        self.refused = 0

    def __call__(self, verb: str, *args: Any, **fields: Any) -> Any:
        results: list[Any] = []
        for manager in self.managers:
            try:
                results.append(getattr(manager, verb)(*args, **fields))
            except PagedRefError as error:
                results.append((type(error), getattr(error, "needed", None), getattr(error, "available", None)))
        assert str(results[0]) == str(results[1])
        wrong = isinstance(results[0], tuple) and isinstance(results[0][0], type)
        self.refused += wrong
        return None if wrong else results[0]

    def reserve_and_cancel(self, seq_ids: Any, count: int) -> None:
        if self("reserve", seq_ids, 0) is not None and self.managers[0].num_available > count * len(seq_ids):
            for manager in self.managers:
                manager.cancel(manager.reserve(seq_ids, count))


@pytest.mark.parametrize("seed", range(12))
def test_one_group_is_a_manager(seed: int) -> None:
    """The same random operations on both: every bit of the state, every result and every refusal is the same."""
    rng = np.random.default_rng(seed)
    page_size, frames = int(rng.integers(1, 5)), int(rng.integers(8, 24))
    options: dict[str, Any] = {
        "policy": ["lru", "fifo", "clock", "priority"][seed % 4],
        "deduplicate": seed % 3 == 0,
        "frame_order": rng.permutation(frames),
    }
    one = KVManager(frames, page_size, **options)
    other = made_of(None, num_frames=frames, page_size=page_size, **options)
    both = Twins(one, other)
    actions = ["admit", "attach", "step", "step", "step", "abort", "cancel", "fork", "cut", "free", "evict"]
    hits = 0
    for _ in range(300):
        live, prompt = list(one.sequences), (rng.random(rng.integers(0, 4 * page_size + 2)) < 0.1).astype(int)
        seq_id, count = int(rng.choice(live or [0])), int(rng.integers(0, 7))
        action = rng.choice(actions)
        if action == "admit":
            both("need", prompt, count)
            both("admit", prompt, count, watermark=1)
        elif action == "attach":
            both("match_prefix", prompt)
            hits += both("attach_prefix", both("add"), prompt).num_tokens
        elif action == "cancel":
            both.reserve_and_cancel(live, count)
        elif action in ("step", "abort"):
            if both("reserve", live, count) is not None:
                both("slots", live, count)
                both("block_table", live, count)
                tokens = (rng.random(count * len(live)) < 0.1).astype(int)
                both(*(("commit", live, count, tokens) if action == "step" else ("rollback", live)))
        elif action == "fork":
            both("fork", seq_id)
        elif action == "cut":
            both("truncate", seq_id, count)
        elif action == "free":
            both("free", seq_id)
        else:
            both("evict", count)
        both("audit")
        both("stats")
        both("csr", live[:0] if action == "free" else live)
        states = [full_state(one), full_state(other._first)]
        for state in states:
            del state[6]  # counts of requests: those of the groups are kept in one place
        assert states[0] == states[1]
        assert (one.num_free, one.num_available) == (other.num_free, other.num_available)
        assert one.prefix_stats == other.prefix_stats
    assert both.refused
    assert hits


# -- cases


def test_a_hit_is_what_all_groups_have() -> None:
    """20 tokens, page 2: of a full group and a window of 4, which needs 2 pages, whatever is missing before them."""
    made = made_of(None, 4, num_frames=40)
    prompt = list(range(20))
    a = filled(made, prompt)
    assert made.block_table(a, group="g1")[0].tolist()[:8] == [-1] * 8
    made.free(a)
    assert made.match_prefix(prompt).num_tokens == 18
    assert made.match_prefix([*prompt, 1]).frames.size == 10 + 2
    local, full = made._by_name["g1"], made._by_name["g0"]
    nodes = full.find("test", [*prompt, 1], True, {})
    made._frames.revive(nodes.frames[:6])  # what follows is given up first of the full group's
    while full.find("test", [*prompt, 1], True, {}).frames.size > 7:
        made.evict(1)
    pages = full.find("test", [*prompt, 1], True, {}).frames.size
    there = np.append(local.find("test", [*prompt, 1], True, {}).frames, -1) >= 0
    best = max((p for p in range(pages + 1) if there[max(p - 2, 0) : p].all()), default=0)
    assert made.match_prefix([*prompt, 1]).num_tokens == 2 * best
    made._frames.free(nodes.frames[:6])
    made.audit()


def test_two_windows_fix_a_length_that_neither_has_alone() -> None:
    """One group can give 0, 2 and 5 pages, the other 0, 2 and 4: the hit is 2."""
    made = made_of(3, 3, num_frames=40, page_size=2)
    prompt = list(range(11))
    made.free(filled(made, prompt))
    for name, lost in (("g0", [2, 3]), ("g1", [4, 2])):
        member = made._by_name[name]
        frames = member.find("test", prompt, True, {}).frames[lost]
        made._frames.forget(frames)
        member._prefix_evicted(frames)
    made.audit()
    good = [np.flatnonzero(m.lengths(m.find("test", prompt, True, {}), 5)).tolist() for m in made._members]
    assert good == [[0, 1, 2, 5], [0, 1, 2, 4]]
    hit = made.attach_prefix(b := made.add(), prompt)
    assert hit.num_tokens == 4
    assert [made.block_table(b, group=name)[0].tolist()[0] for name in ("g0", "g1")] == [-1, -1]
    made.audit()


def test_a_window_is_released_exactly_when_nobody_sees_the_page() -> None:
    for window in (1, 2, 3, 4, 5, 8):
        made = made_of(window, page_size=4)
        a = made.add()
        for length in range(1, 20):
            made.reserve(a, 1)
            made.commit(a, 1)
            row = made.block_table(a)[0]
            for page, frame in enumerate(row.tolist()):
                visible = page * 4 + 3 >= length - window + 1  # from position `length` on
                assert (frame >= 0) == visible, (window, length, page)
        made.audit()


def test_a_released_page_can_still_be_hit() -> None:
    """It was published before it was released; another sequence that is shorter takes it back."""
    made = made_of(4)
    a = filled(made, range(20))
    assert made.held() == 2
    b = made.admit([*range(8), 99]).hit
    assert (b.num_tokens, b.frames.size) == (8, 2)
    assert made.seq_len(a) == 20
    made.audit()


def test_a_window_of_one_key_needs_no_page() -> None:
    """A group of window 1 never limits a hit, even when nothing of it is cached or known."""
    made = made_of(None, 1, num_frames=12)
    made.free(filled(made, range(9)))
    member = made._by_name["g1"]
    frames = np.flatnonzero(member.published())
    made._frames.forget(frames)
    member._prefix_evicted(frames)
    made.audit()
    assert member.prefix_stats.nodes == 0
    media = [Media(2, 3, "cat")]
    assert made.match_prefix(range(9), media=media).num_tokens == 2
    got = made.admit(range(9))
    assert got.hit.num_tokens == 8
    assert made.block_table(got.seq_id, group="g1").tolist() == [[-1] * 4]
    made.commit(got.seq_id, 1)
    made.audit()
    made.free(got.seq_id)
    made.clear_prefixes()
    made.audit()
    assert made.prefix_stats.nodes == 0


@pytest.mark.parametrize("left", range(7))
@pytest.mark.parametrize(("needed", "verb"), [(2, "copy"), (4, "admit"), (6, "both")])
def test_s26_a_joint_refusal_changes_no_bit(left: int, needed: int, verb: str) -> None:
    """With every number of frames too few, also such that one group alone would fit."""
    made = made_of(None, 4, num_frames=21 + left)
    a = filled(made, range(5))
    b = made.fork(a)
    made.evict(1)  # the page that left the window
    made.reserve(made.add(), 16)
    assert made.num_available == left
    call = {
        "copy": lambda: made.reserve(a, 1),  # a copy in each group
        "admit": lambda: made.admit([7, 7, 7]),
        "both": lambda: made.reserve([a, b], 2),  # in each group two pages and a copy: one holder writes in place
    }[verb]
    before = grouped_state(made)
    if needed > left:
        with pytest.raises(OutOfFrames) as caught:
            call()
        assert (caught.value.needed, caught.value.available) == (needed, left)
        assert grouped_state(made) == before
    else:
        call()
        assert made.num_available == left - needed
    made.audit()


def test_cancel_restores_every_bit() -> None:
    made = made_of(None, 3, 5)
    a = filled(made, range(7))
    b = made.fork(a)
    before = grouped_state(made)
    plan = made.reserve([a, b], [3, 4])
    assert plan.src.size == 3
    assert np.unique(np.concatenate([plan.src, plan.dst])).size == 6
    made.cancel(plan)
    assert grouped_state(made) == before
    with pytest.raises(ContractError, match=r"^cancel: plan is out of date"):
        made.cancel(plan)
    made.audit()


def test_a_cut_into_what_a_window_released_is_a_fault() -> None:
    made = made_of(None, 4)
    a = filled(made, range(20))
    before = grouped_state(made)
    with pytest.raises(PageFault, match=r"^truncate: lengths of sequence 0 need pages that the window of group 'g1'"):
        made.truncate(a, 17)
    assert grouped_state(made) == before
    made.truncate(a, 19)
    made.truncate(a, 0)
    assert made.stats().pages == 0
    made.audit()


def test_requests_count_once() -> None:
    made = made_of(None, 4)
    made.free(filled(made, range(8)))
    made.free(filled(made, range(8), resumed=True))
    filled(made, range(8))
    stats = made.prefix_stats
    assert (stats.requests, stats.queried, stats.hit_tokens, stats.published) == (2, 16, 6, 12)
    made.audit()


def test_events_name_their_group() -> None:
    seen: list[Any] = []
    made = made_of(None, 4, on_event=lambda name, event: seen.append((name, type(event).__name__)))
    filled(made, range(8))
    assert seen.count(("g0", "Published")) == seen.count(("g1", "Published")) == 1
    assert ("g1", "Freed") in seen
    assert ("g0", "Freed") not in seen
    made.audit()


def test_the_tables_of_groups_agree_with_csr_and_slots() -> None:
    made = made_of(None, 4)
    a = filled(made, range(11))
    made.reserve(a, 2)
    for name in ("g0", "g1"):
        csr, table = made.csr(a, 2, group=name), made.block_table(a, 2, group=name)
        assert csr.kv_indices.tolist() == table[0].tolist()
        held = made.table(a, group=name).frames().tolist()
        assert held == [frame for frame in table[0].tolist() if frame >= 0]
        assert csr.kv_last_page_len.tolist() == [1]
        assert made.slots(a, 2, group=name).tolist() == made.slot_mapping(a, 11, 13, group=name).tolist()
    with pytest.raises(PageFault):
        made.slot_mapping(a, 0, 1, group="g1")
    made.audit()


def test_groups_of_equal_layers() -> None:
    assert equal_groups([FULL, LOCAL]) == (FULL, LOCAL)
    sets = equal_groups([LayerGroup("full", 10), LayerGroup("local", 52, window=1024)])  # 62 layers: 31 sets of 2
    assert [group.num_layers for group in sets] == [2] * 31
    assert [group.name for group in sets][4:6] == ["full.4", "local.0"]
    assert {group.window for group in sets[5:]} == {1024}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: GroupedKVManager(8, 2, []), "^GroupedKVManager: groups are none or share a name"),
        (lambda: GroupedKVManager(8, 2, [FULL, FULL]), "^GroupedKVManager: groups are none or share a name"),
        (lambda: GroupedKVManager(8, 2, [FULL, LayerGroup("x", 3)]), r"got \[2, 3\], need equally many"),
        (lambda: GroupedKVManager(8, 0, [FULL]), "page_size is wrong"),
        (lambda: LayerGroup("", 1), "^LayerGroup: name is no name"),
        (lambda: LayerGroup("x", 0), "^LayerGroup: num_layers is out of range, got 0"),
        (lambda: LayerGroup("x", 1, window=0), "^LayerGroup: window is out of range, got 0"),
        (lambda: GroupedKVManager(8, 2, [FULL, LOCAL]).csr([]), "^csr: group is unknown, got None, need one of 'full'"),
    ],
)
def test_refusals(make: Any, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        make()


def test_the_audit_sees_groups() -> None:
    def tamper(what: Any) -> GroupedKVManager:
        made = made_of(None, 4)
        filled(made, range(6))
        what(made)
        return made

    def swap_entries(made: GroupedKVManager) -> None:
        one, two = (member._tables.entries for member in made._members)
        one[0, 2], two[0, 2] = two[0, 2], one[0, 2]

    def name_twice(made: GroupedKVManager) -> None:
        made._members[1]._tables.entries[0, 2] = made._members[0]._tables.entries[0, 2]

    faults = {
        "group g1 has other sequences than group g0": lambda made: made._members[1].add(),
        r"frames \[2\] are in two groups": name_twice,
        "are in two groups": swap_entries,
        "published and not kept": lambda made: made._frames._kept.__setitem__(0, False),
    }
    for text, what in faults.items():
        with pytest.raises(CorruptionError, match=text):
            tamper(what).audit()
    assert repr(tamper(lambda made: None)) == "GroupedKVManager(g0, g1: 1 sequences, 34 of 40 frames free)"
