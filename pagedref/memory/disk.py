"""Pages on disk that survive a crash: after it each name has its old page or its new one, never half of one (S33).

A page is never written over another that counts. It goes to a free slot together with a record that vouches for both
(the layout is in the chapter); only when it is safe is the slot of its predecessor scrubbed and
used again. Every read checks the record and the page; what fails is a miss, and harms nobody else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref._files import LOCAL, Files
from pagedref.errors import ContractError, CorruptionError
from pagedref.memory._disk_books import DiskBooks, Sync
from pagedref.memory._numbers import MAX_SLOTS, whole_number
from pagedref.memory._page_file import PageFile
from pagedref.memory._records import MAX_ALIGN, MAX_NAME, MAX_PAGE, Record, sha256
from pagedref.memory._slots import checked_pages, held_slots
from pagedref.memory.frames import MAX_FRAMES

__all__ = ["DiskStore"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Good: TypeAlias = npt.NDArray[np.bool_]


class DiskStore(DiskBooks):
    """Keep pages in one file: by name across restarts, or by slot until the end of the process.

    Parameters
    ----------
    path : str or Path
        The file; made where there is none. One process at a time may have it open.
    num_slots : int
        Pages that it may hold: the file never grows beyond ``first + num_slots * stride`` bytes.
    bytes_per_page : int
        The `bytes_per_frame` of the pool.
    geometry : mapping of str to str, int or None, optional
        What the bytes of a page mean, as PagedKVCache.geometry gives it. A file of another geometry is refused.
    sync : {"always", "ordered", "never"}
        "always": a page that `put` has returned from survives a power cut. "ordered": it survives the death of the
        process, and after a power cut there is the page of the last `sync` or a later one. "never": it survives the
        death of the process only; a power cut may cost any page or bring back an older one of the same name.
        Under every policy a page that is read back is one that was put, whole, under that name.
    align : int
        For a new file: slots start on multiples of it, a power of two of at least 64; not less than a disk sector. A
        new file's head is synced under every policy.
    files : Files
        The file system.

    Raises
    ------
    ContractError
        The file is none of ours, of another geometry, or larger than `num_slots` allows; or an argument is wrong.
    OSError
        The file cannot be opened, or another process has it open.

    Notes
    -----
    It is a `PageStore`: `alloc`, `write`, `read`, `free` serve swapping, whose pages nobody wants back after a restart.
    `put`, `get`, `drop` serve pages that have a name, such as their prefix key (S28). Both share the slots. Replacing a
    page needs one free slot. After a failed sync nobody knows what the disk holds: the store then refuses to write
    until it is opened again, and still reads. Used from one thread.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with DiskStore(folder.name + "/pages", num_slots=4, bytes_per_page=3, sync="ordered") as store:
    ...     store.put([b"a", b"b"], np.array([[1, 2, 3], [4, 5, 6]], np.uint8))
    >>> store = DiskStore(folder.name + "/pages", num_slots=4, bytes_per_page=3)
    >>> pages, good = store.get([b"b", b"c"])
    >>> pages[0].tolist(), good.tolist()
    ([4, 5, 6], [True, False])
    >>> store.close(); folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        num_slots: int,
        bytes_per_page: int,
        *,
        geometry: Any = None,
        sync: Sync = "always",
        align: int = 4096,
        files: Files = LOCAL,
    ) -> None:
        geometry = {} if geometry is None else geometry
        _check_file(path, num_slots, bytes_per_page)
        super().__init__(num_slots, sync, lambda: PageFile(Path(path), bytes_per_page, geometry, align, files))

    def __repr__(self) -> str:
        return (
            f"DiskStore({self._file.path.name!r}, num_slots={self.num_slots}, bytes_per_page={self.bytes_per_page}, "
            f"sync={self._policy!r}: {len(self)} names, {self.num_free} slots free, {self.num_damaged} pages damaged)"
        )

    def __enter__(self) -> DiskStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def put(self, names: Sequence[bytes], pages: Bytes) -> None:
        """Keep pages under names, each in place of the page that had its name.

        Parameters
        ----------
        names : sequence of bytes
            1 to 32 bytes each, each once.
        pages : uint8 array (n, bytes_per_page)
            What they hold.

        Raises
        ------
        OutOfFrames
            The pages need more slots than are free; nothing was changed (S26).
        OSError
            The disk refused; every name has the page that it had. After a restart it may have the new one.
        """
        named = self._named("put", names, unique=True)
        pages = checked_pages("put", pages, len(named), self.bytes_per_page)
        slots = self._take(len(named))
        records = [Record(self._next + at, name, sha256(page)) for at, (name, page) in enumerate(zip(named, pages))]
        self._next += len(named)
        self._stale += slots.tolist()  # until they count
        for slot, record, page in zip(slots.tolist(), records, pages):
            self._unsynced = True
            self._file.write(slot, record, page)
        if self._policy == "always":
            self._sync()
        del self._stale[len(self._stale) - len(named) :]
        for slot, record in zip(slots.tolist(), records):
            self._forget(record.name)
            self._names[record.name], self._records[slot] = slot, record
        if self._policy != "ordered":
            with contextlib.suppress(OSError):  # the new pages count; old records are scrubbed later
                self._settle()

    def get(self, names: Sequence[bytes]) -> tuple[Bytes, Good]:
        """Read pages by name; what is not there, or not intact, is a miss, and a damaged page loses its name.

        Parameters
        ----------
        names : sequence of bytes
            Known or not.

        Returns
        -------
        pages : uint8 array (n, bytes_per_page)
            Zeros where there is a miss.
        good : bool array (n,)
            Which are the pages that were put last.
        """
        named = self._named("get", names)
        pages, good = self._read([self._names.get(name, -1) for name in named])
        for name, fine in zip(named, good.tolist()):
            if not fine:
                self._forget(name)
        return pages, good

    def drop(self, names: Sequence[bytes]) -> None:
        """Remove pages by name.

        Parameters
        ----------
        names : sequence of bytes
            Unknown ones are passed over.

        Raises
        ------
        OSError
            The disk refused: the pages are gone for this process, but may be back after a restart.
        """
        named = [name for name in self._named("drop", names) if name in self._names]
        self._need_sound()
        self._settle()  # older pages of these names go first, lest they come back
        for name in named:
            self._forget(name)
        self._settle()
        if self._policy == "always":
            self._sync()

    def alloc(self, n: int) -> Int64Array:
        """Take slots for pages without a name.

        Parameters
        ----------
        n : int
            How many, >= 0.

        Returns
        -------
        int64 array (n,)

        Raises
        ------
        OutOfFrames
            Fewer are free; none was taken (S26).
        OSError
            The disk refused to scrub a slot.
        """
        return self._take(n)

    def free(self, slots: Any) -> None:
        """Give slots back.

        Parameters
        ----------
        slots : integer array (n,)
            Slots from `alloc`.

        Raises
        ------
        CorruptionError
            One of them is not taken; nothing was changed.
        """
        index = self._anonymous("free", slots)
        self._slots.free(index)
        for slot in index.tolist():
            self._records.pop(slot, None)

    def write(self, slots: Any, pages: Bytes) -> None:
        """Fill slots with pages that need not survive the process.

        Parameters
        ----------
        slots : integer array (n,)
            Slots from `alloc`, each named once.
        pages : uint8 array (n, bytes_per_page)
            What they shall hold.

        Raises
        ------
        OSError
            The disk refused; none of these slots holds a page that will be read.
        """
        index = self._anonymous("write", slots).tolist()
        pages = checked_pages("write", pages, len(index), self.bytes_per_page)
        self._need_sound()
        records = [Record(self._next + at, b"", sha256(page)) for at, page in enumerate(pages)]
        self._next += len(index)
        for slot in index:
            self._records.pop(slot, None)
        for slot, record, page in zip(index, records, pages):
            self._file.write(slot, record, page)
        self._records.update(zip(index, records))

    def read(self, slots: Any) -> tuple[Bytes, Good]:
        """Return what slots hold.

        Parameters
        ----------
        slots : integer array (n,)
            Slots from `alloc`.

        Returns
        -------
        pages : uint8 array (n, bytes_per_page)
            Zeros where there is a miss.
        good : bool array (n,)
            Which are the pages that were written last.
        """
        return self._read(self._anonymous("read", slots, unique=False).tolist())

    def sync(self) -> None:
        """Return when all pages that were put are on the disk.

        Raises
        ------
        OSError
            The disk refused: it may have lost pages, and the store writes no more until it is opened again.
        """
        self._need_sound()
        self._settle()
        self._sync()

    def close(self) -> None:
        """Put everything in order and let go of the file; a second time does nothing."""
        if self._file.closed:
            return
        try:
            if not self._failed:
                self._settle()
                if self._policy != "never":
                    self._sync()
        finally:
            self._file.close()

    def _read(self, slots: list[int]) -> tuple[Bytes, Good]:
        """Read slots, -1 for none; what is not exactly what was written last is a miss."""
        self._need_open()
        pages: Bytes = np.zeros((len(slots), self.bytes_per_page), np.uint8)
        good: Good = np.zeros(len(slots), np.bool_)
        for at, slot in enumerate(slots):
            record = self._records.get(slot)
            if record is not None:
                good[at] = self._file.read(slot, record, pages[at])
                self.num_damaged += not good[at]
        pages[~good] = 0
        return pages, good

    def _anonymous(self, function: str, slots: Any, *, unique: bool = True) -> Int64Array:
        """Return slots that are taken and hold no page with a name."""
        self._need_open()
        index = held_slots(function, self._slots, slots, unique=unique)
        named = {*self._names.values(), *self._stale}
        if strangers := [slot for slot in index.tolist() if slot in named]:
            text = f"{function}: slots names one of a page with a name, got {strangers[0]}, need slots from alloc"
            raise CorruptionError(text)
        return index

    def _named(self, function: str, names: Sequence[bytes], *, unique: bool = False) -> list[bytes]:
        """Return checked names."""
        self._need_open()
        if not isinstance(names, Iterable):
            raise ContractError(f"{function}: names are none, got {names!r}, need a sequence of bytes")
        names = list(names)
        listed = [bytes(name) if isinstance(name, bytes | bytearray | memoryview) else b"" for name in names]
        if not all(1 <= len(name) <= MAX_NAME for name in listed):
            raise ContractError(f"{function}: names are wrong, got {list(names)[:3]}, need 1 to {MAX_NAME} bytes each")
        if unique and len(set(listed)) < len(listed):
            raise ContractError(f"{function}: names has one twice, got {len(listed)} names, need each once")
        return listed


def _check_file(path: Any, num_slots: Any, bytes_per_page: Any) -> None:
    """Refuse what names no file on any disk, and sizes that no file can have."""
    slots = whole_number("DiskStore", "num_slots", num_slots, low=1, high=MAX_FRAMES)
    size = whole_number("DiskStore", "bytes_per_page", bytes_per_page, low=1, high=MAX_PAGE)
    if slots * (size + 2 * MAX_ALIGN) > MAX_SLOTS:
        need = "a file below 2**63 bytes"
        raise ContractError(f"DiskStore: num_slots is wrong, got {slots} of {size} bytes, need {need}")
    try:
        sound = isinstance(path, str | os.PathLike) and "\0" not in str(path) and bool(os.fsencode(path))
    except (TypeError, UnicodeEncodeError):
        sound = False
    if not sound:
        raise ContractError(f"DiskStore: path names no file, got {path!a}, need a path without NUL")
