"""A file system in memory that fails where it is told to, and forgets what was not synced when the power goes."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import Any

SECTOR = 64
"""What such a disk writes in one piece: small, so that small pages are torn often."""


class Crash(BaseException):
    """The process ends here: nothing of it may run any more that writes."""


class Inode:
    def __init__(self) -> None:
        self.data = bytearray()  # what processes see
        self.disk = bytearray()  # what a power cut leaves
        self.pending: list[tuple[int, bytes]] = []  # written since the last sync, sector by sector

    def write(self, offset: int, data: bytes) -> None:
        put(self.data, offset, data)
        while data:
            size = SECTOR - offset % SECTOR
            self.pending.append((offset, data[:size]))
            offset, data = offset + size, data[size:]

    def sync(self) -> None:
        for offset, data in self.pending:
            put(self.disk, offset, data)
        self.pending.clear()

    def cut(self, random: Random) -> None:
        """Keep any part of what was not synced; a later write of a sector only over an earlier one of it."""
        share = random.choice([0.0, 0.3, 0.7, 1.0])
        for offset, data in self.pending:
            if random.random() < share:
                put(self.disk, offset, data)
        self.data, self.pending = bytearray(self.disk), []


def put(target: bytearray, offset: int, data: bytes) -> None:
    target.extend(bytes(max(0, offset + len(data) - len(target))))
    target[offset : offset + len(data)] = data


class FaultyFiles:
    """Files in memory.

    `fail_at` counts the calls that change something; that call raises `error`, a write after half of its bytes where
    `torn` is set. `honest` is False for a disk whose sync does nothing.
    """

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable: dict[Path, Inode] = {}
        self.calls = 0
        self.fail_at = -1
        self.torn = False
        self.error: BaseException = OSError(errno.EIO, "injected")
        self.dead = False
        self.honest = True

    def count(self) -> bool:
        """Count a call; tell whether it is to fail."""
        if self.dead:
            raise Crash
        self.calls += 1
        failing = self.calls - 1 == self.fail_at
        self.dead = failing and isinstance(self.error, Crash)
        return failing

    def power_cut(self, random: Random) -> None:
        for inode in {*self.names.values(), *self.durable.values()}:
            inode.cut(random)
        if random.random() < 0.5:  # names may be on the disk without a sync of their folder
            self.durable = dict(self.names)
        self.names = dict(self.durable)
        self.restart()

    def restart(self) -> None:
        """Begin another process; what was written is there."""
        self.fail_at, self.dead = -1, False

    def size(self, path: Path) -> int | None:
        return len(self.names[path].data) if path in self.names else None

    def open(self, path: Path, mode: str) -> FaultyFile:
        if mode == "create":
            if self.count():
                raise self.error
            self.names[path] = Inode()
        elif path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path.name)
        return FaultyFile(self, self.names[path])

    def replace(self, source: Path, target: Path) -> None:
        if self.count():
            raise self.error
        self.names[target] = self.names.pop(source)

    def remove(self, path: Path) -> None:
        if self.count():
            raise self.error
        self.names.pop(path, None)

    def sync_folder(self, folder: Path) -> None:
        if self.count():
            raise self.error
        if self.honest:
            self.durable = dict(self.names)


class FaultyFile:
    def __init__(self, files: FaultyFiles, inode: Inode) -> None:
        self.files, self.inode = files, inode

    def size(self) -> int:
        return len(self.inode.data)

    def read_at(self, offset: int, count: int) -> bytes:
        return bytes(self.inode.data[offset : offset + count])

    def read_into(self, offset: int, buffer: Any) -> int:
        data = self.read_at(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write_at(self, offset: int, data: Any) -> None:
        data = bytes(data)
        if self.files.count():
            if self.files.torn:
                self.inode.write(offset, data[: len(data) // 2])
            raise self.files.error
        self.inode.write(offset, data)

    def sync(self) -> None:
        if self.files.count():
            if not self.files.dead:
                self.inode.pending.clear()  # as Linux does: a later sync reports success without these bytes
            raise self.files.error
        if self.files.honest:
            self.inode.sync()

    def refresh(self) -> None:
        self.sync()
        self.inode.data = bytearray(self.inode.disk if self.files.honest else self.inode.data)

    def lock(self) -> bool:
        return True

    def close(self) -> None:
        return None
