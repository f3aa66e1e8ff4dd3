"""A random life of a disk store with failures, deaths and power cuts, against a plain dictionary of what is legal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pagedref.errors import OutOfFrames
from pagedref.memory.disk import DiskStore
from tests.spec.faulty_files import Crash, FaultyFiles

NAMES = [b"a", b"bb", b"c" * 32, b"\0", b"\0\0"]
BYTES = 150  # two sectors and a bit
SLOTS = 7
PATH = Path("pages")


def page_of(version: int) -> Any:
    """The page of a version: no two share a byte more than chance has it."""
    return np.random.default_rng(version).integers(0, 256, BYTES, np.uint8)


class DiskLife:
    """One store and its model.

    For each name: `now` is the version that this process must read, `kill` holds what may be there after its death,
    `cut` what may be there after a power cut. Version 0 is no page.
    """

    def __init__(
        self, seed: int, policy: str, store_class: type[DiskStore] = DiskStore, *, honest: bool = True
    ) -> None:
        self.random = Random(f"{seed} {policy}")
        self.policy, self.store_class = policy, store_class
        self.files = FaultyFiles()
        self.version = 0
        self.pages = {0: b""}
        self.now = dict.fromkeys(NAMES, 0)
        self.kill = {name: {0} for name in NAMES}
        self.cut = {name: {0} for name in NAMES}
        self.ever = {name: {0} for name in NAMES}
        self.complaints: list[str] = []
        self.open()
        self.files.honest = honest

    def open(self) -> None:
        self.store = self.store_class(PATH, SLOTS, BYTES, sync=self.policy, align=64, files=self.files)

    def run(self, steps: int) -> list[str]:
        for _ in range(steps):
            weights = {self.put: 6, self.drop: 2, self.sync: 1, self.swap: 1, self.death: 1, self.power: 1}
            (action,) = self.random.choices(list(weights), list(weights.values()))
            if self.random.random() < 0.2:
                self.files.fail_at = self.files.calls + self.random.randrange(6)
                self.files.torn = self.random.random() < 0.5
                self.files.error = self.random.choice([OSError(28, "no space"), Crash()])
            try:
                action()
            except Crash:
                self.end(power=self.random.random() < 0.5)
            except OSError:
                self.files.fail_at = -1
                if self.store._failed:
                    self.kill = {name: set(versions) for name, versions in self.cut.items()}
                    self.look(self.now_only(), "after a failed sync")
                    self.end(power=self.random.random() < 0.5)
            self.files.fail_at = -1
            self.look(self.now_only(), "in this process")
            self.store.audit()
            if self.complaints:
                break
        return self.complaints

    def now_only(self) -> dict[bytes, set[int]]:
        return {name: {version} for name, version in self.now.items()}

    def some(self) -> list[bytes]:
        return self.random.sample(NAMES, self.random.randint(1, 3))

    def put(self) -> None:
        names = self.some()
        versions = {name: self.version + at + 1 for at, name in enumerate(names)}
        self.version += len(names)
        for name, version in versions.items():
            self.pages[version] = page_of(version).tobytes()
            self.kill[name].add(version)
            self.cut[name].add(version)
            self.ever[name].add(version)
        try:
            self.store.put(names, np.stack([page_of(version) for version in versions.values()]))
        except OutOfFrames as error:
            assert error.needed > error.available == self.store.num_free
            return
        self.now.update(versions)
        for name, version in versions.items():
            self.kill[name] = {version}
            if self.policy == "always":
                self.cut[name] = {version}

    def drop(self) -> None:
        names = self.some()
        for name in names:
            self.kill[name].add(0)
            self.cut[name].add(0)
        try:
            self.store.drop(names)
        finally:
            if not self.files.dead:
                self.now.update((name, 0) for name in names if name not in self.store)
        for name in names:
            self.kill[name] = {0}
            if self.policy == "always":
                self.cut[name] = {0}

    def sync(self) -> None:
        self.store.sync()
        self.cut = self.now_only()
        self.kill = self.now_only()

    def swap(self) -> None:
        """Pages without a name: they come back, and no restart finds them."""
        if self.store.num_free < 2:
            return
        slots = self.store.alloc(2)
        try:
            self.store.write(slots, np.stack([page_of(10**6), page_of(10**6 + 1)]))
            pages, good = self.store.read(slots)
            if not good.all() or (pages[1] != page_of(10**6 + 1)).any():
                self.complaints.append("a swapped page did not come back")
        finally:
            self.store.free(slots)

    def death(self) -> None:
        self.end(power=False)

    def power(self) -> None:
        self.end(power=True)

    def end(self, *, power: bool) -> None:
        """End the process, perhaps with the power, and look at what the next one finds."""
        if power:
            self.files.power_cut(self.random)
            legal = self.ever if self.policy == "never" else self.cut
        else:
            self.files.restart()
            legal = self.kill
        self.open()
        seen = self.look(legal, "after a power cut" if power else "after a death")
        self.now = seen
        self.kill = self.now_only()
        if power or self.policy != "never":
            self.cut = self.now_only()
        else:
            for name, version in seen.items():
                self.cut[name].add(version)

    def look(self, legal: dict[bytes, set[int]], when: str) -> dict[bytes, int]:
        pages, good = self.store.get(NAMES)
        seen = {}
        for name, page, fine in zip(NAMES, pages, good.tolist(), strict=True):
            raw = page.tobytes() if fine else b""
            matches = [version for version in self.ever[name] if self.pages[version] == raw]
            seen[name] = matches[0] if matches else -1
            if seen[name] not in legal[name]:
                self.complaints.append(f"{when}: {name!r} has version {seen[name]}, legal are {legal[name]}")
        return seen


def complaints(seeds: range, policy: str, store_class: type[DiskStore] = DiskStore, **options: Any) -> Iterator[str]:
    """Yield what is wrong in many lives."""
    for seed in seeds:
        for line in DiskLife(seed, policy, store_class, **options).run(40):
            yield f"seed {seed}: {line}"
