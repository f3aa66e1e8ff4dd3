"""One page file: its head, its slots, and nothing about what they are used for."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref._files import Files, write_atomic
from pagedref.errors import ContractError
from pagedref.memory._records import (
    HEAD_BYTES,
    MAX_ALIGN,
    MIN_ALIGN,
    RECORD_BYTES,
    Head,
    Record,
    geometry_text,
    pack_head,
    pack_record,
    sha256,
    unpack_head,
    unpack_record,
)

__all__ = ["PageFile"]


class PageFile:
    """Open a page file, or make it.

    Parameters
    ----------
    path : Path
    bytes_per_page : int
    geometry : mapping of str to str, int or None
    align : int
        For a new file.
    files : Files

    Raises
    ------
    ContractError
        An argument is wrong, or the file is none of ours or of another geometry.
    OSError
        The file cannot be opened, or another process has it open.
    """

    def __init__(self, path: Path, bytes_per_page: int, geometry: Mapping[str, Any], align: int, files: Files) -> None:
        if not isinstance(align, int) or not MIN_ALIGN <= align <= MAX_ALIGN or align & (align - 1):
            need = f"a power of two in [{MIN_ALIGN}, {MAX_ALIGN}]"
            raise ContractError(f"DiskStore: align is wrong, got {align!r}, need {need}")
        want = Head(align, int(bytes_per_page), geometry_text(geometry))
        if not files.size(path):
            head = pack_head(want)
            write_atomic(files, path, [head.ljust(want.copy, b"\0"), head.ljust(want.copy, b"\0")])
        self.path = path
        self.closed = False
        self._file = files.open(path, "update")
        try:
            if not self._file.lock():
                raise OSError(errno.EBUSY, "another process has the page file open", path.name)
            self.head = self._checked_head(want)
        except BaseException:
            self.close()
            raise
        self._signature = self.head.signature

    def _checked_head(self, want: Head) -> Head:
        """Return the head of the file if it fits; a damaged copy is written anew."""
        raw = self._file.read_at(0, HEAD_BYTES)
        head, places = unpack_head(raw), [0]
        if head is None:  # where the second copy stands depends on the alignment: a power of two
            places = sorted({max(HEAD_BYTES, 1 << bit) for bit in range(MAX_ALIGN.bit_length())})
            found = ((unpack_head(self._file.read_at(place, HEAD_BYTES)), place) for place in places)
            head = next((copy for copy, place in found if copy is not None and copy.copy == place), None)
        if head is None:
            size = self._file.size()
            raise ContractError(f"DiskStore: {self.path.name} is no page file, got {size} bytes, need an intact head")
        if head.bytes_per_page != want.bytes_per_page:
            got = f"{want.bytes_per_page}, need {head.bytes_per_page}"
            raise ContractError(f"DiskStore: bytes_per_page does not fit {self.path.name}, got {got}")
        if head.text != want.text:
            ours, theirs = difference(want.text, head.text)
            raise ContractError(f"DiskStore: geometry does not fit {self.path.name}, got {ours}, need {theirs}")
        packed = pack_head(head)
        for place in (0, head.copy):
            if self._file.read_at(place, HEAD_BYTES) != packed:
                with contextlib.suppress(OSError):
                    self._file.write_at(place, packed)
        return head

    def scan(self, num_slots: int) -> dict[int, Record]:
        """Read the records of all slots; the pages behind them are not read.

        Parameters
        ----------
        num_slots : int
            The most that the file may have.

        Returns
        -------
        dict of int to Record
            Sound records by slot.

        Raises
        ------
        ContractError
            The file has more slots.
        """
        slots = max(0, -(-(self._file.size() - self.head.first) // self.head.stride))
        if slots > num_slots:
            need = f"at least {slots}"
            raise ContractError(f"DiskStore: num_slots is too small for {self.path.name}, got {num_slots}, need {need}")
        found = {}
        for slot in range(slots):
            record = self._record(slot)
            if record is not None:
                found[slot] = record
        return found

    def write(self, slot: int, record: Record, page: npt.NDArray[np.uint8]) -> None:
        """Fill a slot: the page, then the record that makes it count.

        Parameters
        ----------
        slot : int
        record : Record
        page : uint8 array (bytes_per_page,)
        """
        start = self._start(slot)
        self._file.write_at(start + RECORD_BYTES, page.data)
        self._file.write_at(start, pack_record(record, slot, self._signature))

    def scrub(self, slot: int) -> None:
        """Make a record count no more.

        Parameters
        ----------
        slot : int
        """
        self._file.write_at(self._start(slot), bytes(RECORD_BYTES))

    def read(self, slot: int, record: Record, out: npt.NDArray[np.uint8]) -> bool:
        """Read a page and check it.

        Parameters
        ----------
        slot : int
        record : Record
            What its record must be.
        out : uint8 array (bytes_per_page,)
            Where it goes.

        Returns
        -------
        bool
            Whether the disk gave back exactly what was written; otherwise `out` holds anything.
        """
        try:
            if self._record(slot) != record:
                return False
            got = self._file.read_into(self._start(slot) + RECORD_BYTES, out.data)
        except OSError:
            return False
        return got == out.size and sha256(out.data) == record.digest

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        self._file.sync()

    def refresh(self) -> None:
        """Sync, and read from the disk what is read from now on."""
        self._file.refresh()

    def close(self) -> None:
        """Let go of the file."""
        self.closed = True
        self._file.close()

    def _start(self, slot: int) -> int:
        return self.head.first + slot * self.head.stride

    def _record(self, slot: int) -> Record | None:
        return unpack_record(self._file.read_at(self._start(slot), RECORD_BYTES), slot, self._signature)


def difference(ours: str, theirs: str) -> tuple[str, str]:
    """Return the first entry in which two geometries differ, as each of them has it.

    Parameters
    ----------
    ours, theirs : str
        JSON; `theirs` comes from a file and may be anything.

    Returns
    -------
    ours, theirs : str

    Examples
    --------
    >>> difference('{"dtype":"float32","page_size":16}', '{"dtype":"float32","page_size":8}')
    ('page_size 16', 'page_size 8')
    """
    try:
        one, other = json.loads(ours), json.loads(theirs)
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                return f"{name} {one.get(name)!r}", f"{name} {other.get(name)!r}"[:80]
    except (ValueError, AttributeError, TypeError, RecursionError):
        pass
    return ours[:80], ascii(theirs)[:80]
