"""DiskStore: what crashes, failures and flipped bytes leave behind; every guard has a mutant that is caught (S33)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory import _records
from pagedref.memory._page_file import PageFile, difference
from pagedref.memory._records import HEAD_BYTES, RECORD_BYTES, Head, Record
from pagedref.memory.disk import DiskStore
from tests.meta.sources import ROOT
from tests.spec.disk_life import BYTES, NAMES, PATH, SLOTS, complaints, page_of
from tests.spec.faulty_files import Crash, FaultyFiles

POLICIES = ["always", "ordered", "never"]
GEOMETRY = {"page_size": 16, "dtype": "float32", "layout": "k:float32[1,16,1,2]"}
KILLS = int(os.environ.get("PAGEDREF_KILLS", "10"))


def small(path: Path, **options: Any) -> DiskStore:
    return DiskStore(path, 4, 40, **{"geometry": GEOMETRY, "sync": "never", "align": 64} | options)


def rows(*numbers: int) -> Any:
    return np.repeat(np.array(numbers, np.uint8), 40).reshape(-1, 40)


def read(store: DiskStore, *names: bytes) -> list[int | None]:
    pages, good = store.get(list(names))
    assert all((page == page[0]).all() for page in pages)
    return [int(page[0]) if fine else None for page, fine in zip(pages, good, strict=True)]


# Crashes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_old_or_new_never_half(policy: str) -> None:
    """Random lives: failing writes and syncs, deaths, power cuts that keep any part of what was not synced."""
    assert not list(complaints(range(100), policy))


class InPlace(DiskStore):
    """Mutant: a new page goes over the old one."""

    def put(self, names: Any, pages: Any) -> None:
        fresh = [at for at, name in enumerate(names) if name not in self]
        for at, name in enumerate(names):
            if name in self:
                slot = self._names[name]
                record = Record(self._next, name, _records.sha256(pages[at]))
                self._next += 1
                self._unsynced = True
                self._file.write(slot, record, pages[at])
                self._records[slot] = record
        super().put([names[at] for at in fresh], pages[fresh])
        self._sync()


class ScrubsTooEarly(DiskStore):
    """Mutant: the old page goes before the new one is safe."""

    def _settle(self) -> None:
        while self._stale:
            self._unsynced = True
            self._file.scrub(self._stale[-1])
            self._slots.free([self._stale.pop()])


class NeverScrubs(DiskStore):
    """Mutant: a slot is free while its record still counts."""

    def _settle(self) -> None:
        self._slots.free(self._stale)
        self._stale.clear()


class DropsAtOnce(DiskStore):
    """Mutant: a name is dropped while older records of it may still be on the disk."""

    def drop(self, names: Any) -> None:
        for name in names:
            self._forget(name)
        while self._stale:
            self._unsynced = True
            self._file.scrub(self._stale[-1])
            self._slots.free([self._stale.pop()])
        if self._policy == "always":
            self._sync()


class ForgivesSync(DiskStore):
    """Mutant: goes on after a failed sync as if the next one made it good."""

    def _sync(self) -> None:
        try:
            super()._sync()
        finally:
            self._failed = False


class TrustsTheYoungest(DiskStore):
    """Mutant: of two records of a name the younger one counts, whole or not."""

    def _recover(self, num_slots: int) -> None:
        genuine = self._file.read
        self._file.read = lambda slot, record, out: True
        super()._recover(num_slots)
        self._file.read = genuine


class TrustsTheOldest(DiskStore):
    """Mutant: of two records of a name the older one counts."""

    def _recover(self, num_slots: int) -> None:
        genuine = self._file.scan
        self._file.scan = lambda count: {
            slot: record._replace(generation=2**40 - record.generation) for slot, record in genuine(count).items()
        }
        super()._recover(num_slots)


@pytest.mark.parametrize(
    ("policy", "mutant"),
    [
        ("always", InPlace),
        ("ordered", InPlace),
        ("ordered", ScrubsTooEarly),
        ("always", NeverScrubs),
        ("ordered", DropsAtOnce),
        ("ordered", ForgivesSync),
        ("ordered", TrustsTheYoungest),
        ("never", TrustsTheOldest),
    ],
)
def test_lives_catch_a_store_that(policy: str, mutant: type[DiskStore]) -> None:
    assert next(complaints(range(500), policy, mutant), None)


@pytest.mark.parametrize("policy", ["always", "ordered"])
def test_lives_catch_a_disk_that_does_not_sync(policy: str) -> None:
    """The order of the syncs is not for show: without them a power cut does harm."""
    assert next(complaints(range(500), policy, honest=False), None)


def unchecked(self: PageFile, slot: int, record: Record, out: Any) -> bool:
    """Mutant: a page is believed without its checksum."""
    got = self._file.read_into(self._start(slot) + RECORD_BYTES, out.data)
    return self._record(slot) == record and got == out.size


def test_lives_catch_a_page_without_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageFile, "read", unchecked)
    assert next(complaints(range(500), "never"), None)


def script(files: FaultyFiles, policy: str) -> Any:
    """A short life with everything in it; yields what is legal for each name until the next step has returned."""
    legal = {name: {0} for name in NAMES[:4]}
    yield legal
    store = DiskStore(PATH, 4, BYTES, sync=policy, align=64, files=files)
    for names, versions in (([0, 1], [1, 2]), ([0], [3]), ([], []), ([1], [0]), ([2, 3], [4, 5]), ([0], [6])):
        for name, version in zip(names, versions, strict=True):
            legal[NAMES[name]].add(version)
        yield legal
        if not names:
            store.sync()
        elif versions == [0]:
            store.drop([NAMES[name] for name in names])
        else:
            store.put([NAMES[name] for name in names], np.stack([page_of(version) for version in versions]))
        for name, version in zip(names, versions, strict=True):
            legal[NAMES[name]] = {version}
    yield legal
    store.close()


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "injected"), Crash()])
@pytest.mark.parametrize("power", [False, True])
def test_every_write_sync_and_rename_fails_in_turn(power: bool, error: BaseException, torn: bool) -> None:
    whole = FaultyFiles()
    list(script(whole, "always"))
    assert whole.calls > 25
    for call in range(whole.calls):
        for seed in range(6 if power else 1):
            files, legal = FaultyFiles(), {}
            files.fail_at, files.error, files.torn = call, error, torn
            try:
                for legal in script(files, "always"):  # noqa: B007 (used after the loop)
                    pass
            except type(error):
                pass
            if power:
                files.power_cut(Random(seed))
            files.restart()
            store = DiskStore(PATH, 4, BYTES, align=64, files=files)
            pages, good = store.get(NAMES[:4])
            for name, page, fine in zip(NAMES, pages, good, strict=False):
                found = [version for version in legal[name] if fine == bool(version)]
                assert any(not v or (page == page_of(v)).all() for v in found), f"call {call} seed {seed}: {name!r}"
            store.put([b"after"], page_of(9)[None])
            assert store.get([b"after"])[1].all()
            store.audit()


CHILD = """
import sys, struct
import numpy as np
from pagedref.memory.disk import DiskStore

path, first, policy, size = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
store = DiskStore(path, 9, size, sync=policy)
names = [bytes([65 + at]) for at in range(6)]
random = np.random.default_rng(first)
version = first
while True:
    version += 1
    chosen = random.choice(6, size=2, replace=False)
    drops = bool(random.integers(6) == 0)
    say = lambda word: print(word, version, int(drops), *chosen, flush=True)
    pages = np.stack([np.random.default_rng([version, at]).integers(0, 256, size, np.uint8) for at in chosen])
    pages[:, :8] = np.frombuffer(struct.pack("<q", version), np.uint8)
    say("begin")
    if drops:
        store.drop([names[at] for at in chosen])
    else:
        store.put([names[at] for at in chosen], pages)
    say("end")
"""


def lives_and_dies(path: Path, first: int, policy: str, size: int, delay: float) -> list[tuple[str, ...]]:
    """Let a child write until it is killed; return the lines it managed to say, the last one whole."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, path, str(first), policy, str(size)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    said = process.stdout.readline()  # it is writing now
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.kill()
    said += process.stdout.read()
    process.stdout.close()
    assert process.wait() == -9
    return [tuple(line.decode().split()) for line in said.splitlines(keepends=True) if line.endswith(b"\n")]


def test_kill_9_loses_at_most_what_was_being_written(tmp_path: Path) -> None:
    """PAGEDREF_KILLS times (tox -e crash: 200): no page that is read back is wrong, none that was finished is lost."""
    random, size, version, done, interrupted = Random(KILLS), 64 << 10, 0, 0, 0
    legal: dict[int, set[int]] = {at: {0} for at in range(6)}
    for kill in range(KILLS):
        policy = POLICIES[kill % 3]
        for word, *numbers in lives_and_dies(tmp_path / "pages", version, policy, size, random.uniform(0, 0.06)):
            number, drops, *names = map(int, numbers)
            version = max(version, number)
            for name in names:
                new = 0 if drops else number
                legal[name] = legal[name] | {new} if word == "begin" else {new}
            done += word == "end"
        interrupted += word == "begin"
        with DiskStore(tmp_path / "pages", 9, size, sync=policy) as store:
            store.audit()
            pages, good = store.get([bytes([65 + at]) for at in range(6)])
            for at in range(6):
                found = int(pages[at, :8].view("<i8")[0]) if good[at] else 0
                assert found in legal[at], f"kill {kill}: name {at} has {found}, legal are {legal[at]}"
                if found:
                    expected = np.random.default_rng([found, at]).integers(0, 256, size, np.uint8)
                    assert (pages[at, 8:] == expected[8:]).all(), f"kill {kill}: name {at} is not whole"
                legal[at] = {found}
        version += 1000  # beyond what an unheard line could have said
    assert done >= KILLS and (KILLS < 100 or interrupted >= KILLS // 4)  # it did write, also when it was killed


# Damage -------------------------------------------------------------------------------------------------------------


def stored(path: Path) -> bytes:
    with small(path) as store:
        store.put([b"a", b"b"], rows(1, 2))
        store.put([b"a"], rows(3))
        store.put([b"c"], rows(4))
    return path.read_bytes()


def damage(raw: bytes, at: int, bits: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ bits]) + raw[at + 1 :]


def harmed(raw: bytes) -> set[bytes]:
    """Open a file of these bytes and return the names that are lost; any other must have its page."""
    files = FaultyFiles()
    files.open(PATH, "create").write_at(0, raw)
    with small(PATH, files=files) as store:
        seen = read(store, b"a", b"b", b"c")
        assert all(page in (None, right) for page, right in zip(seen, [3, 2, 4], strict=True))
        store.put([b"d"], rows(5))
        assert read(store, b"d") == [5]
        store.audit()
    return {name for name, page in zip([b"a", b"b", b"c"], seen, strict=True) if page is None}


def test_a_flipped_byte_anywhere_costs_at_most_one_page(tmp_path: Path) -> None:
    raw = stored(tmp_path / "pages")
    lost = [harmed(damage(raw, at, 1 << at % 8)) for at in range(len(raw))]
    assert max(map(len, lost)) == 1
    first, stride = 2 * HEAD_BYTES, 192
    assert not any(lost[:first])  # the head is there twice
    for start in range(first, len(raw), stride):
        in_use = {frozenset(names) for names in lost[start : start + RECORD_BYTES + 40]}
        assert len(in_use) == 1  # every byte of a record and of its page is covered
        assert not any(lost[start + RECORD_BYTES + 40 : start + stride])  # what fills up to the next slot is nothing
    assert set().union(*lost) == {b"a", b"b", b"c"}


def test_a_flipped_byte_while_open_is_a_miss(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    raw = stored(path)
    for at in range(2 * HEAD_BYTES, len(raw), 7):
        path.write_bytes(raw)
        with small(path) as store:
            path.write_bytes(damage(raw, at, 0x80))
            seen = read(store, b"a", b"b", b"c")
            assert sum(page is None for page in seen) == store.num_damaged <= 1
            assert all(page in (None, right) for page, right in zip(seen, [3, 2, 4], strict=True))
            store.put([b"b"], rows(8))  # and the store goes on
            assert read(store, b"b") == [8]


def test_a_truncated_file_loses_its_end_only(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    raw = stored(path)
    for size in range(0, len(raw), 11):
        if 0 < size < HEAD_BYTES:
            path.write_bytes(raw[:size])
            with pytest.raises(ContractError, match="is no page file"):
                small(path)
            continue
        harmed(raw[:size])


def test_flips_catch_a_page_without_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageFile, "read", unchecked)
    with pytest.raises(AssertionError):
        test_a_flipped_byte_while_open_is_a_miss(tmp_path)


def test_flips_catch_a_record_without_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(raw: bytes, slot: int, signature: bytes) -> Record | None:
        if len(raw) != RECORD_BYTES or not any(raw):
            return None
        _, generation, _, length, name, digest = _records._RECORD.unpack_from(raw)
        return Record(generation, name[:length], digest)

    monkeypatch.setattr("pagedref.memory._page_file.unpack_record", believe)
    with pytest.raises(AssertionError):
        test_a_flipped_byte_anywhere_costs_at_most_one_page(tmp_path)


def test_a_page_in_another_slot_or_file_does_not_count(tmp_path: Path) -> None:
    path, other = tmp_path / "pages", tmp_path / "other"
    raw = stored(path)
    first, stride = 2 * HEAD_BYTES, 192
    youngest = raw[first + 2 * stride :].ljust(stride, b"\0")
    path.write_bytes(raw[: first + stride] + youngest + raw[first + 2 * stride :])
    with small(path) as store:
        assert len(store) == 2  # the copy in slot 1 is not taken for a page
    with small(other, geometry={"page_size": 8}) as store:
        assert not store.names
    other.write_bytes(other.read_bytes()[:first] + raw[first:])
    with small(other, geometry={"page_size": 8}) as store:
        assert not store.names


# Refusals -----------------------------------------------------------------------------------------------------------


def test_geometry_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    small(path).close()
    with pytest.raises(ContractError, match="geometry does not fit pages, got page_size 8, need page_size 16"):
        small(path, geometry={**GEOMETRY, "page_size": 8})
    with pytest.raises(ContractError, match="bytes_per_page does not fit pages, got 41, need 40"):
        DiskStore(path, 4, 41, geometry=GEOMETRY)
    with pytest.raises(ContractError, match=r"got scale None, need scale 'per head'"):
        small(tmp_path / "scaled", geometry={**GEOMETRY, "scale": "per head"}).close()
        small(tmp_path / "scaled")
    with DiskStore(path, 4, 40, geometry=GEOMETRY, align=4096) as store:
        assert store._file.head.align == 64  # the file knows where its slots are


def test_hostile_files_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    raw = stored(path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # sparse: a terabyte of slots
    with pytest.raises(ContractError, match="num_slots is too small for pages, got 4, need at least"):
        small(path)
    for head in (
        Head(64, 1 << 60, "{}"),
        Head(64, 0, "{}"),
        Head(96, 40, "{}"),
        Head(1 << 31, 40, "{}"),
    ):
        front = _records._HEAD.pack(_records._HEAD_MAGIC, 1, head.align, head.bytes_per_page, 2)
        front = (front + b"{}").ljust(992, b"\0")
        path.write_bytes((front + _records.sha256(front)) * 2)
        with pytest.raises(ContractError, match="is no page file"):
            small(path)
    front = _records._HEAD.pack(_records._HEAD_MAGIC, 2, 64, 40, 2).ljust(992, b"\0")
    path.write_bytes(front + _records.sha256(front))
    with pytest.raises(ContractError, match="version of the file is unknown, got 2, need 1"):
        small(path)
    for text in ("[" * 400, "[1]", "{", '{"page_size":16,"page_size":16}'):
        path.write_bytes(_records.pack_head(Head(64, 40, text)) * 2 + raw[2 * HEAD_BYTES :])
        with pytest.raises(ContractError, match="geometry does not fit"):
            small(path)
    path.write_bytes(b"my shopping list")
    with pytest.raises(ContractError, match="is no page file, got 16 bytes"):
        small(path)
    assert path.read_bytes() == b"my shopping list"


def test_a_record_beyond_all_generations_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    raw = stored(path)
    signature = Head(64, 40, _records.geometry_text(GEOMETRY)).signature
    last = 2 * HEAD_BYTES + 3 * 192
    record = _records.pack_record(Record(2**63, b"b", _records.sha256(rows(7))), 3, signature)
    path.write_bytes(raw[:last].ljust(last, b"\0") + record + rows(7).tobytes())
    with small(path) as store:
        assert read(store, b"b") == [2]
        store.put([b"b"], rows(6))
    with small(path) as store:
        assert read(store, b"b") == [6]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sync": "often"}, "sync is unknown, got 'often'"),
        ({"align": 100}, "align is wrong, got 100"),
        ({"align": 32}, "align is wrong, got 32"),
        ({"geometry": {"x": object()}}, "geometry is not plain"),
        ({"geometry": {"x": float("nan")}}, "geometry is not plain"),
        ({"geometry": {"x": "y" * 1000}}, "geometry is too long, got 1008 bytes, need at most 960"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: Any, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        small(tmp_path / "pages", **options)
    assert not list(tmp_path.iterdir())


def test_wrong_calls_change_nothing(tmp_path: Path) -> None:
    for slots, size in ((0, 40), (True, 40), (4, 0), (4, 2.5)):
        with pytest.raises(ContractError, match=r"DiskStore: .* is wrong"):
            DiskStore(tmp_path / "pages", slots, size)
    store = small(tmp_path / "pages")
    store.put([b"a", b"b", b"c"], rows(1, 2, 3))
    for names, pages in (
        ([b""], rows(1)), ([b"x" * 33], rows(1)), (["a"], rows(1)), ([b"d", b"d"], rows(1, 2)), ([b"d"], rows(1, 2)),
        ([b"d"], rows(1).astype(np.int8)), ([b"d"], rows(1)[:, :39]),
    ):  # fmt: skip
        with pytest.raises(ContractError):
            store.put(names, pages)
    with pytest.raises(OutOfFrames) as caught:
        store.put([b"a", b"d"], rows(4, 5))
    assert (caught.value.needed, caught.value.available) == (2, 1)
    assert read(store, b"a", b"b", b"c", b"d") == [1, 2, 3, None]
    (slot,) = store.alloc(1)
    with pytest.raises(OutOfFrames):
        store.put([b"a"], rows(4))
    with pytest.raises(CorruptionError, match="a page with a name"):
        store.write([store._names[b"a"]], rows(9))
    with pytest.raises(CorruptionError, match="a page with a name"):
        store.free([store._names[b"a"]])
    assert not store.read([slot])[1].any() and not store.num_damaged
    store.write([slot], rows(9))
    assert store.read([slot, slot])[0].tolist() == rows(9, 9).tolist()
    store.free([slot])
    with pytest.raises(CorruptionError):
        store.read([slot])
    store.audit()
    store.close()
    store.close()
    for call in (lambda: store.put([b"a"], rows(1)), lambda: store.get([b"a"]), lambda: store.alloc(1), store.sync):
        with pytest.raises(ContractError, match="the store is closed"):
            call()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with small(tmp_path / "pages"), pytest.raises(OSError, match="another process has the page file open"):
        small(tmp_path / "pages")
    small(tmp_path / "pages").close()


def test_after_a_failed_sync_it_only_reads(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = DiskStore(PATH, SLOTS, BYTES, align=64, files=files)
    store.put([b"a"], page_of(1)[None])
    files.fail_at = files.calls + 2  # page, record, sync
    with pytest.raises(OSError, match="injected"):
        store.put([b"a"], page_of(2)[None])
    assert (store.get([b"a"])[0] == page_of(1)).all()
    for call in (lambda: store.put([b"b"], page_of(3)[None]), lambda: store.drop([b"a"]), store.sync):
        with pytest.raises(OSError, match="failed to sync"):
            call()
    store.close()
    assert len(DiskStore(PATH, SLOTS, BYTES, align=64, files=files)) == 1


def test_audit_sees_what_is_wrong(tmp_path: Path) -> None:
    for spoil in (
        lambda store: store._stale.append(store._names[b"a"]),
        lambda store: store._names.update(z=3),
        lambda store: store._records.clear(),
    ):
        with small(tmp_path / "pages") as store:
            store.put([b"a"], rows(1))
            store.audit()
            kept = dict(store._names), dict(store._records), list(store._stale)
            spoil(store)
            with pytest.raises(CorruptionError, match="the disk store is corrupt"):
                store.audit()
            store._names, store._records, store._stale = kept


# Behaviour ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["put", "drop", "reopen"]), st.integers(0, 5), st.integers(0, 255))))
@settings(max_examples=60, deadline=None)
def test_agrees_with_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    files, model = FaultyFiles(), {}
    options: dict[str, Any] = {"align": 64, "files": files, "sync": "ordered"}
    store = DiskStore(PATH, 7, 1, **options)
    names = [bytes([at]) * (at + 1) for at in range(6)]
    for action, at, number in steps:
        if action == "put":
            store.put([names[at]], np.array([[number]], np.uint8))
            model[names[at]] = number
        elif action == "drop":
            store.drop([names[at]])
            model.pop(names[at], None)
        else:
            store.close()
            store = DiskStore(PATH, 7, 1, **options)
        pages, good = store.get(names)
        assert {name: int(page[0]) for name, page, fine in zip(names, pages, good, strict=True) if fine} == model
        assert set(store.names) == set(model) and len(store) == len(model) and store.num_free == 7 - len(model)
        store.audit()
    assert len(files.names[PATH].data) <= 2 * HEAD_BYTES + 7 * 192


def test_the_file_does_not_grow(tmp_path: Path) -> None:
    with small(tmp_path / "pages", sync="ordered") as store:
        for number in range(100):
            store.put([b"a", b"b"], rows(number, number + 1))
        assert read(store, b"a", b"b") == [99, 100]
    assert (tmp_path / "pages").stat().st_size <= 2 * HEAD_BYTES + 4 * 192


def test_pages_without_a_name_do_not_come_back(tmp_path: Path) -> None:
    with small(tmp_path / "pages") as store:
        store.write(store.alloc(2), rows(1, 2))
        store.put([b"a"], rows(3))
        assert store.num_free == 1
    with small(tmp_path / "pages") as store:
        assert (store.num_free, store.names) == (3, (b"a",))


def test_a_damaged_head_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    raw = stored(path)
    for at in (3, HEAD_BYTES + 3):
        path.write_bytes(damage(raw, at, 1))
        small(path).close()
        assert path.read_bytes() == raw
    path.write_bytes(damage(damage(raw, 3, 1), HEAD_BYTES + 3, 1))
    with pytest.raises(ContractError, match="is no page file"):
        small(path)


def test_layout_is_what_the_chapter_says(tmp_path: Path) -> None:
    raw = stored(tmp_path / "pages")
    assert raw[:HEAD_BYTES] == raw[HEAD_BYTES : 2 * HEAD_BYTES]
    assert json.loads(raw[32:992].rstrip(b"\0")) == GEOMETRY
    record = raw[2 * HEAD_BYTES + 192 :]  # slot 1: page b
    assert record[32:64] == b"b".ljust(32, b"\0") and record[24:32] == (1).to_bytes(8, "little")
    assert record[8:16] == (2).to_bytes(8, "little") and record[16:24] == (1).to_bytes(8, "little")
    assert record[128:168] == b"\2" * 40


def test_difference_of_geometries() -> None:
    assert difference('{"a":1}', '{"a":1,"b":2}') == ("b None", "b 2")
    assert difference('{"a":1}', "[]")[1] == "'[]'"
