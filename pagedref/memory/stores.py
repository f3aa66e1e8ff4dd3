"""Where pages can be: frames of the pool, and slots of a slower tier.

A page that moves is a row of bytes: every array of the cache alike, scales included (S18). Nothing here knows what the
bytes mean, so a page comes back with the same bits, whatever the number format (L8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.memory._records import MAX_PAGE
from pagedref.memory._slots import checked_pages, held_slots, take
from pagedref.memory.frames import MAX_FRAMES, FrameAllocator
from pagedref.ragged import int_array

__all__ = ["ArrayFrames", "FrameStore", "HostStore", "PageStore"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Good: TypeAlias = npt.NDArray[np.bool_]


class FrameStore(Protocol):
    """What owns the arrays of a pool: it copies, reads and writes whole frames, every array of the cache alike."""

    @property
    def num_frames(self) -> int:
        """Frames of the pool."""
        ...

    @property
    def bytes_per_frame(self) -> int:
        """Bytes of one frame over all arrays."""
        ...

    def copy(self, src: Any, dst: Any) -> None:
        """Copy frames to others of the same pool."""
        ...

    def read(self, frames: Any) -> Bytes:
        """Return frames as rows of bytes, uint8 (n, bytes_per_frame)."""
        ...

    def write(self, frames: Any, pages: Bytes) -> None:
        """Fill frames with rows of bytes, uint8 (n, bytes_per_frame)."""
        ...


class PageStore(Protocol):
    """A slower tier: slots that hold one page each."""

    @property
    def num_slots(self) -> int:
        """Pages that it can hold."""
        ...

    @property
    def num_free(self) -> int:
        """Slots that `alloc` can give out."""
        ...

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page."""
        ...

    def alloc(self, n: int) -> Int64Array:
        """Take n slots, or raise OutOfFrames and take none (S26)."""
        ...

    def free(self, slots: Any) -> None:
        """Give slots back; what they hold is gone."""
        ...

    def write(self, slots: Any, pages: Bytes) -> None:
        """Fill slots that are taken, uint8 (n, bytes_per_page)."""
        ...

    def read(self, slots: Any) -> tuple[Bytes, Good]:
        """Return pages, uint8 (n, bytes_per_page), and which of them are what was written, bool (n,)."""
        ...


class ArrayFrames:
    """Treat NumPy arrays as a `FrameStore`.

    Parameters
    ----------
    arrays : mapping of str to array (num_frames, ...)
        Everything that belongs to a frame, by name; any strides, any type without objects. The order is the order of
        the bytes.

    Raises
    ------
    ContractError
        There is no array, or they do not have the same number of frames, or one holds objects.

    Examples
    --------
    >>> pool, scale = np.arange(6, dtype=np.int8).reshape(3, 2), np.ones((3, 1), np.float32)
    >>> frames = ArrayFrames({"k": pool, "scale": scale})
    >>> frames.bytes_per_frame, frames.read([2])[0, :2].tolist()
    (6, [4, 5])
    >>> frames.write([0], frames.read([2]))
    >>> pool.tolist()
    [[4, 5], [2, 3], [4, 5]]
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = dict(arrays)
        counts = {name: array.shape[0] if array.ndim else -1 for name, array in self._arrays.items()}
        if not counts or min(counts.values()) < 1 or len(set(counts.values())) > 1:
            raise ContractError(f"ArrayFrames: arrays have no common frames, got {counts}, need the same number >= 1")
        objects = [name for name, array in self._arrays.items() if array.dtype.hasobject]
        if objects:
            raise ContractError(f"ArrayFrames: arrays hold objects, got {objects[0]!r}, need numbers")
        self._num_frames = next(iter(counts.values()))
        self._widths = {name: array[:1].size * array.dtype.itemsize for name, array in self._arrays.items()}
        if not self.bytes_per_frame:
            raise ContractError("ArrayFrames: arrays are empty, got 0 bytes per frame, need at least 1")

    def __repr__(self) -> str:
        return f"ArrayFrames(num_frames={self.num_frames}, bytes_per_frame={self.bytes_per_frame}: {self.layout})"

    @property
    def num_frames(self) -> int:
        """Frames of the pool."""
        return self._num_frames

    @property
    def bytes_per_frame(self) -> int:
        """Bytes of one frame over all arrays."""
        return sum(self._widths.values())

    @property
    def layout(self) -> str:
        """What the bytes of a page are, in order: name, type and shape of each array's part."""
        return " ".join(
            f"{name}:{array.dtype.name}{list(array.shape[1:])}".replace(" ", "") for name, array in self._arrays.items()
        )

    def copy(self, src: Any, dst: Any) -> None:
        """Copy frames to others: all are read before any is written.

        Parameters
        ----------
        src, dst : integer arrays (n,)
            Frames; `dst` names each once.
        """
        source, target = self._frames("copy", "src", src), self._frames("copy", "dst", dst, unique=True)
        if source.size != target.size:
            raise ContractError(f"copy: dst has the wrong length, got {target.size}, need {source.size}")
        for array in self._arrays.values():
            array[target] = array[source]

    def read(self, frames: Any) -> Bytes:
        """Return frames as bytes.

        Parameters
        ----------
        frames : integer array (n,)
            Frames of the pool; one may be named twice.

        Returns
        -------
        uint8 array (n, bytes_per_frame)
            Owned by the caller.
        """
        index = self._frames("read", "frames", frames)
        pages: Bytes = np.empty((index.size, self.bytes_per_frame), np.uint8)
        start = 0
        for name, array in self._arrays.items():
            width = self._widths[name]
            raw = np.ascontiguousarray(array[index]).reshape(-1).view(np.uint8)
            pages[:, start : start + width] = raw.reshape(index.size, width)
            start += width
        return pages

    def write(self, frames: Any, pages: Bytes) -> None:
        """Fill frames with bytes.

        Parameters
        ----------
        frames : integer array (n,)
            Frames of the pool, each named once.
        pages : uint8 array (n, bytes_per_frame)
            What they shall hold.

        Mutates
        -------
        These frames, in every array.
        """
        index = self._frames("write", "frames", frames, unique=True)
        pages = checked_pages("write", pages, index.size, self.bytes_per_frame)
        start = 0
        for name, array in self._arrays.items():
            raw = np.ascontiguousarray(pages[:, start : start + self._widths[name]]).reshape(-1)
            array[index] = raw.view(array.dtype).reshape(index.size, *array.shape[1:])
            start += self._widths[name]

    def _frames(self, function: str, name: str, frames: Any, *, unique: bool = False) -> Int64Array:
        index: Int64Array = int_array(function, name, frames, low=0, high=self.num_frames - 1).astype(np.int64)
        if unique and np.unique(index).size < index.size:
            raise ContractError(f"{function}: {name} names a frame twice, got {index.tolist()}, need each once")
        return index


class HostStore:
    """Keep pages in host memory, one row of bytes for each slot.

    Parameters
    ----------
    num_slots : int
        Pages that it can hold; memory is taken when a slot is first written.
    bytes_per_page : int
        The `bytes_per_frame` of the pool.

    Examples
    --------
    >>> store = HostStore(2, bytes_per_page=3)
    >>> slots = store.alloc(1)
    >>> store.write(slots, np.array([[7, 8, 9]], np.uint8))
    >>> pages, good = store.read(slots)
    >>> pages.tolist(), good.tolist(), store.num_free
    ([[7, 8, 9]], [True], 1)
    """

    def __init__(self, num_slots: int, bytes_per_page: int) -> None:
        whole_number("HostStore", "num_slots", num_slots, low=1, high=MAX_FRAMES)
        whole_number("HostStore", "bytes_per_page", bytes_per_page, low=1, high=MAX_PAGE)
        self._slots = FrameAllocator(num_slots)
        self._pages: Bytes = np.zeros((num_slots, bytes_per_page), np.uint8)

    def __repr__(self) -> str:
        return f"HostStore(num_slots={self.num_slots}, bytes_per_page={self.bytes_per_page}: {self.num_free} free)"

    @property
    def num_slots(self) -> int:
        """Pages that it can hold."""
        return self._slots.num_frames

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return self._slots.num_free

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page."""
        return int(self._pages.shape[1])

    def alloc(self, n: int) -> Int64Array:
        """Take slots.

        Parameters
        ----------
        n : int
            How many.

        Returns
        -------
        int64 array (n,)

        Raises
        ------
        OutOfFrames
            Fewer are free; none was taken (S26).
        """
        return take("HostStore", self._slots, n, self._slots.num_free)

    def free(self, slots: Any) -> None:
        """Give slots back.

        Parameters
        ----------
        slots : integer array (n,)
            Slots that are taken.

        Raises
        ------
        CorruptionError
            One was not; nothing was changed.
        """
        self._slots.free(slots)

    def write(self, slots: Any, pages: Bytes) -> None:
        """Fill slots.

        Parameters
        ----------
        slots : integer array (n,)
            Slots that are taken, each named once.
        pages : uint8 array (n, bytes_per_page)
            What they shall hold.
        """
        index = held_slots("write", self._slots, slots, unique=True)
        self._pages[index] = checked_pages("write", pages, index.size, self.bytes_per_page)

    def read(self, slots: Any) -> tuple[Bytes, Good]:
        """Return what slots hold.

        Parameters
        ----------
        slots : integer array (n,)
            Slots that are taken.

        Returns
        -------
        pages : uint8 array (n, bytes_per_page)
        good : bool array (n,)
            All True: host memory is trusted.
        """
        index = held_slots("read", self._slots, slots)
        return self._pages[index], np.ones(index.size, np.bool_)

    def audit(self) -> None:
        """Prove that free and taken slots balance (S25), or raise CorruptionError."""
        self._slots.audit()
