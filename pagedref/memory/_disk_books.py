"""The books of a disk store: which slot holds which name, what must be scrubbed, what the disk is known to hold.

The order of writes that makes a crash harmless is decided here and nowhere else:

1. a page goes to a slot that no record counts for;
2. once it is safe (synced, where the policy says so) its name points there, and the slot of its predecessor is stale;
3. a stale slot is scrubbed, and only then free. What replaced it is synced before, so that never both are lost; and a
   name is dropped only after every older record of it is scrubbed for good, so that none of them comes back.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError, CorruptionError
from pagedref.memory._page_file import PageFile
from pagedref.memory._records import Record
from pagedref.memory._slots import take
from pagedref.memory.frames import FrameAllocator

__all__ = ["DiskBooks", "Sync"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
Sync: TypeAlias = Literal["always", "ordered", "never"]


class DiskBooks:
    """Keep the books; `DiskStore` adds what a user calls.

    Parameters
    ----------
    num_slots : int
    policy : {"always", "ordered", "never"}
        When to wait for the disk.
    opener : callable
        Gives the page file, once the other arguments are checked.

    Attributes
    ----------
    num_damaged : int
        Pages that could not be read back as they were written.
    """

    def __init__(self, num_slots: int, policy: Sync, opener: Callable[[], PageFile]) -> None:
        if policy not in ("always", "ordered", "never"):
            raise ContractError(f"DiskStore: sync is unknown, got {policy!r}, need 'always', 'ordered' or 'never'")
        self._policy = policy
        self._names: dict[bytes, int] = {}  # name -> slot
        self._records: dict[int, Record] = {}  # slot -> what its record must be
        self._stale: list[int] = []  # slots whose record must not count any more, but may still lie on the disk
        self._failed = False
        self._unsynced = False  # whether anything was written since the last sync
        self.num_damaged = 0
        self._file = opener()
        try:
            self._recover(int(num_slots))
        except BaseException:
            self._file.close()
            raise

    def _recover(self, num_slots: int) -> None:
        """Find the youngest intact page of every name."""
        if self._policy != "never":
            self._file.refresh()  # what is found now is on the disk, not only in a cache of the system
        found = self._file.scan(num_slots)
        self._next = max((record.generation for record in found.values()), default=0) + 1
        rivals: dict[bytes, list[int]] = {}
        for slot, record in found.items():
            if record.name:
                rivals.setdefault(record.name, []).append(slot)
        buffer = np.empty(self.bytes_per_page, np.uint8)
        for name, slots in rivals.items():
            slots.sort(key=lambda slot: found[slot].generation, reverse=True)
            if len(slots) > 1:  # a crash between two versions: the younger one counts if it is whole
                slots.sort(key=lambda slot: not self._file.read(slot, found[slot], buffer))
            self._names[name], self._records[slots[0]] = slots[0], found[slots[0]]
            self._stale += slots[1:]
        taken = [*self._names.values(), *self._stale]
        order = np.concatenate([taken, np.setdiff1d(np.arange(num_slots), taken)]).astype(np.int64)
        self._slots = FrameAllocator(num_slots, frame_order=order)
        self._slots.alloc(len(taken))

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @property
    def names(self) -> tuple[bytes, ...]:
        """Names that have a page; whether it is intact shows when it is read."""
        return tuple(self._names)

    @property
    def num_slots(self) -> int:
        """Pages that it can hold."""
        return self._slots.num_frames

    @property
    def num_free(self) -> int:
        """Slots that hold nothing that counts."""
        return self._slots.num_free + len(self._stale)

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page."""
        return self._file.head.bytes_per_page

    def audit(self) -> None:
        """Prove that slots, names and records agree, or raise CorruptionError with what is wrong (S25)."""
        self._slots.audit()
        listed = Counter([*self._names.values(), *self._stale])
        wrong = [f"slot {slot} is listed {times} times" for slot, times in listed.items() if times > 1]
        wrong += [f"slot {slot} is listed and not taken" for slot in listed if self._slots.refcount[slot] != 1]
        wrong += [
            f"the record of slot {slot} does not name {name!r}"
            for name, slot in self._names.items()
            if slot not in self._records or self._records[slot].name != name
        ]
        if wrong:
            raise CorruptionError("audit: the disk store is corrupt: " + "; ".join(wrong[:10]))

    def _sync(self) -> None:
        """Wait for the disk; a failure is final, since what a failed sync has dropped a second one does not bring."""
        if self._unsynced:
            try:
                self._file.sync()
            except BaseException:
                self._failed = True
                raise
            self._unsynced = False

    def _settle(self) -> None:
        """Scrub the records that must not count any more; what replaced them is made safe first."""
        if not self._stale:
            return
        self._need_sound()
        if self._policy != "never":
            self._sync()
        while self._stale:
            self._unsynced = True
            self._file.scrub(self._stale[-1])
            self._slots.free([self._stale.pop()])

    def _take(self, n: int) -> Int64Array:
        """Take slots out of the free ones, settling where those do not suffice."""
        self._need_sound()
        if self._slots.num_free < n <= self.num_free:
            self._settle()
        return take("DiskStore", self._slots, n, self.num_free)

    def _forget(self, name: bytes) -> None:
        """Take a page's name away; its slot is to be scrubbed."""
        slot = self._names.pop(name, None)
        if slot is not None:
            del self._records[slot]
            self._stale.append(slot)

    def _need_open(self) -> None:
        if self._file.closed:
            raise ContractError("DiskStore: the store is closed, got a call, need an open one")

    def _need_sound(self) -> None:
        self._need_open()
        if self._failed:
            raise OSError(errno.EIO, "the store has failed to sync: open it again to write", self._file.path.name)
