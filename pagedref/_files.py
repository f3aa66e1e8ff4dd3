"""The few things that we ask of a file system, named so that a test can put a failing one in their place.

`LocalFiles` is the real one. Everything that must survive a crash goes through it: `write_atomic` writes a whole file
completely or not at all; `pagedref.memory.disk` writes single pages.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol

__all__ = ["LOCAL", "Files", "LocalFiles", "RawFile", "write_atomic"]

Mode = Literal["read", "update", "create"]

_MODES = {"read": "rb", "update": "r+b", "create": "w+b"}


class RawFile(Protocol):
    """An open file without a buffer of our own: what `write_at` has written survives the death of the process."""

    def size(self) -> int:
        """Return the bytes of the file."""
        ...

    def read_at(self, offset: int, count: int) -> bytes:
        """Return bytes from a place; fewer where the file ends."""
        ...

    def read_into(self, offset: int, buffer: Any) -> int:
        """Fill a writable buffer of bytes from a place; return how many there were."""
        ...

    def write_at(self, offset: int, data: Any) -> None:
        """Write all of a buffer at a place, or raise OSError after any part of it."""
        ...

    def sync(self) -> None:
        """Return when all that was written is on the disk (it survives a power cut)."""
        ...

    def refresh(self) -> None:
        """Sync, and read from the disk what is read from now on.

        After a failed sync a system may show bytes that the disk never got, to the next process too, and count them as
        written.
        """
        ...

    def lock(self) -> bool:
        """Claim the file for this process until it is closed; False where another process has it."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class Files(Protocol):
    """A file system."""

    def size(self, path: Path) -> int | None:
        """Return the bytes of a file, None where there is none."""
        ...

    def open(self, path: Path, mode: Mode) -> RawFile:
        """Open a file to read, to update in place, or created empty."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, in one step, over what had it."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens where there is none."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder are on the disk."""
        ...


class LocalFile:
    """A file of this machine.

    Parameters
    ----------
    path : Path
    mode : {"read", "update", "create"}
    """

    def __init__(self, path: Path, mode: Mode) -> None:
        self._file: Any = open(path, _MODES[mode], buffering=0)  # noqa: SIM115 (closed by close)

    def size(self) -> int:
        """Return the bytes of the file."""
        return os.fstat(self._file.fileno()).st_size

    def read_at(self, offset: int, count: int) -> bytes:
        """Return bytes from a place; fewer where the file ends."""
        buffer = bytearray(count)
        return bytes(buffer[: self.read_into(offset, buffer)])

    def read_into(self, offset: int, buffer: Any) -> int:
        """Fill a writable buffer of bytes from a place; return how many there were."""
        view, got = memoryview(buffer), 0
        self._file.seek(offset)
        while got < len(view) and (more := self._file.readinto(view[got:])):
            got += more
        return got

    def write_at(self, offset: int, data: Any) -> None:
        """Write all of a buffer at a place."""
        view = memoryview(data)
        self._file.seek(offset)
        while len(view):
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        _sync(self._file.fileno())

    def refresh(self) -> None:
        """Sync, and read from the disk what is read from now on, where the system can be asked to."""
        self.sync()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def lock(self) -> bool:
        """Claim the file for this process, where the system knows how; the claim ends with the process."""
        try:
            import fcntl
        except ImportError:
            return True
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class LocalFiles:
    """The file system of this machine."""

    def size(self, path: Path) -> int | None:
        """Return the bytes of a file, None where there is none."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def open(self, path: Path, mode: Mode) -> RawFile:
        """Open a file."""
        return LocalFile(path, mode)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, in one step."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens where there is none."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder are on the disk; only POSIX systems can be asked."""
        if os.name != "posix":
            return
        number = os.open(folder, os.O_RDONLY)
        try:
            _sync(number)
        finally:
            os.close(number)


LOCAL = LocalFiles()
"""The file system of this machine."""


def write_atomic(files: Files, path: Path, parts: Iterable[Any], *, sync: bool = True) -> None:
    """Write a file completely or not at all: under a temporary name in the same folder, then renamed.

    Parameters
    ----------
    files : Files
    path : Path
        The file; what was there stays until the new one is complete.
    parts : iterable of buffers
        Its bytes, in order.
    sync : bool
        Whether the bytes are on the disk before the name is given, and the name before this returns: with it a power
        cut leaves the old file or the new one, without it only the death of the process does.

    Raises
    ------
    OSError
        The old file is as it was (or, where only the last sync of the folder failed, the new one has its name).

    Mutates
    -------
    The file system only.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        file = files.open(temporary, "create")
        try:
            offset = 0
            for part in parts:
                file.write_at(offset, part)
                offset += len(part)
            if sync:
                file.sync()
        finally:
            file.close()
        files.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    if sync:
        files.sync_folder(path.parent)


def _sync(number: int) -> None:
    """Flush a file to the disk, through the drive's own cache where macOS would stop before it."""
    try:
        import fcntl
    except ImportError:
        os.fsync(number)
        return
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(number)
    else:
        fcntl.fcntl(number, full)
