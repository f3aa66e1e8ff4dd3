"""One address space of slots, given away in runs that never move: first fit, best fit, buddies. See `contiguous`."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol

from pagedref.errors import CorruptionError, OutOfFrames
from pagedref.memory._numbers import MAX_SLOTS, whole_number

__all__ = ["BuddySpace", "FitSpace", "Space"]


class Space(Protocol):
    """One address space of slots, given away in runs that never move."""

    @property
    def num_slots(self) -> int:
        """Slots of the pool."""
        ...

    @property
    def num_allocated(self) -> int:
        """Slots given away, rounding included."""
        ...

    def size_of(self, size: int) -> int:
        """Return the slots that a run of `size` takes."""
        ...

    def num_runs(self, size: int) -> int:
        """Return how many runs of `size` an empty space holds."""
        ...

    def alloc(self, size: int) -> int:
        """Take a run of slots and return its first one, or raise OutOfFrames: no hole is large enough."""
        ...

    def free(self, start: int) -> None:
        """Give the run back that begins at `start`."""
        ...

    def holes(self) -> list[tuple[int, int]]:
        """Return what is free as (start, size), ascending."""
        ...


class FitSpace:
    """Give away runs from the first hole that is large enough, or from the smallest such hole.

    Parameters
    ----------
    num_slots : int
        Slots of the pool, >= 1.
    best : bool
        Whether the smallest hole that is large enough is taken (the lowest among equals) in place of the lowest.

    Examples
    --------
    >>> space = FitSpace(10)
    >>> space.alloc(4), space.alloc(3), space.alloc(3)
    (0, 4, 7)
    >>> space.free(0); space.free(7)
    >>> space.holes(), space.alloc(2)
    ([(0, 4), (7, 3)], 0)
    >>> space.alloc(4)                          # five slots are free, but not in one piece
    Traceback (most recent call last):
    pagedref.errors.OutOfFrames: alloc: size finds no hole, got 4, need at most 3 (5 of 10 slots are free)
    """

    def __init__(self, num_slots: int, *, best: bool = False) -> None:
        self._num_slots = whole_number("FitSpace", "num_slots", num_slots, low=1, high=MAX_SLOTS)
        self.best = best
        self._starts, self._sizes = [0], [self._num_slots]  # holes, ascending
        self._runs: dict[int, int] = {}
        self._allocated = 0

    @property
    def num_slots(self) -> int:
        """Slots of the pool."""
        return self._num_slots

    @property
    def num_allocated(self) -> int:
        """Slots given away."""
        return self._allocated

    def size_of(self, size: int) -> int:
        """Return the slots that a run takes: as many as asked for."""
        return size

    def num_runs(self, size: int) -> int:
        """Return how many runs of a size an empty space holds."""
        return self._num_slots // size

    def alloc(self, size: int) -> int:
        """Take a run of slots.

        Parameters
        ----------
        size : int
            How many, >= 1.

        Returns
        -------
        int
            Its first slot.

        Raises
        ------
        OutOfFrames
            No hole is large enough; nothing was changed.
        """
        size = whole_number("alloc", "size", size, low=1)
        fitting = (at for at, hole in enumerate(self._sizes) if hole >= size)
        at = min(fitting, key=self._sizes.__getitem__, default=-1) if self.best else next(fitting, -1)
        if at < 0:
            largest, free = max(self._sizes, default=0), self._num_slots - self._allocated
            text = f"got {size}, need at most {largest} ({free} of {self._num_slots} slots are free)"
            raise OutOfFrames(f"alloc: size finds no hole, {text}", needed=size, available=largest)
        start = self._starts[at]
        if self._sizes[at] == size:
            del self._starts[at], self._sizes[at]
        else:
            self._starts[at] += size
            self._sizes[at] -= size
        self._runs[start] = size
        self._allocated += size
        return start

    def free(self, start: int) -> None:
        """Give a run back; it joins the holes beside it.

        Parameters
        ----------
        start : int
            What `alloc` returned.

        Raises
        ------
        CorruptionError
            No run begins there: it was freed before, or never taken.
        """
        size = _taken(self._runs, start)
        self._allocated -= size
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and start + size == self._starts[at]:
            size += self._sizes[at]
            del self._starts[at], self._sizes[at]
        if at and self._starts[at - 1] + self._sizes[at - 1] == start:
            self._sizes[at - 1] += size
            return
        self._starts.insert(at, start)
        self._sizes.insert(at, size)

    def holes(self) -> list[tuple[int, int]]:
        """Return what is free as (start, size), ascending."""
        return list(zip(self._starts, self._sizes, strict=True))


class BuddySpace:
    """Give away runs of powers of two, each at a multiple of its size; equal halves join when both are free.

    Parameters
    ----------
    num_slots : int
        Slots of the pool, >= 1; one that is no power of two is a row of smaller powers, the largest first.

    Notes
    -----
    The smallest free run that is large enough is taken, the lowest among equals, and halved until it fits tightly.

    Examples
    --------
    >>> space = BuddySpace(16)
    >>> space.alloc(3), space.alloc(4), space.num_allocated
    (0, 4, 8)
    >>> space.free(0); space.free(4)
    >>> space.holes()
    [(0, 16)]
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = whole_number("BuddySpace", "num_slots", num_slots, low=1, high=MAX_SLOTS)
        orders = self._num_slots.bit_length()
        self._free: list[list[int]] = [[] for _ in range(orders)]  # of each order, the starts of free runs, ascending
        self._runs: dict[int, int] = {}
        self._allocated = start = 0
        for order in range(orders - 1, -1, -1):
            if self._num_slots >> order & 1:
                self._free[order].append(start)
                start += 1 << order

    @property
    def num_slots(self) -> int:
        """Slots of the pool."""
        return self._num_slots

    @property
    def num_allocated(self) -> int:
        """Slots given away, rounding included."""
        return self._allocated

    def size_of(self, size: int) -> int:
        """Return the slots that a run takes: the power of two at or above what is asked for."""
        return 1 << (size - 1).bit_length()

    def num_runs(self, size: int) -> int:
        """Return how many runs of a size an empty space holds."""
        return self._num_slots // self.size_of(size)

    def alloc(self, size: int) -> int:
        """Take a run of slots (see `FitSpace.alloc`)."""
        size = whole_number("alloc", "size", size, low=1)
        order = found = (size - 1).bit_length()
        while found < len(self._free) and not self._free[found]:
            found += 1
        if found >= len(self._free):
            largest = max((1 << order for order, starts in enumerate(self._free) if starts), default=0)
            free = self._num_slots - self._allocated
            text = f"got {size}, need at most {largest} ({free} of {self._num_slots} slots are free)"
            raise OutOfFrames(f"alloc: size finds no hole, {text}", needed=size, available=largest)
        start = self._free[found].pop(0)
        while found > order:
            found -= 1
            insort(self._free[found], start + (1 << found))
        self._runs[start] = order
        self._allocated += 1 << order
        return start

    def free(self, start: int) -> None:
        """Give a run back; it joins its other half as long as that is free (see `FitSpace.free`)."""
        order = _taken(self._runs, start)
        self._allocated -= 1 << order
        while (at := _place(self._free[order], start ^ (1 << order))) >= 0:
            del self._free[order][at]
            start &= ~(1 << order)
            order += 1
        insort(self._free[order], start)

    def holes(self) -> list[tuple[int, int]]:
        """Return what is free as (start, size), ascending; buddies of different parents stay apart."""
        return sorted((start, 1 << order) for order, starts in enumerate(self._free) for start in starts)


def _place(ascending: list[int], start: int) -> int:
    """Return where a number stands in a list, -1 if it does not."""
    at = bisect_left(ascending, start)
    return at if at < len(ascending) and ascending[at] == start else -1


def _taken(runs: dict[int, int], start: int) -> int:
    """Take a run out of the books."""
    if start not in runs:
        raise CorruptionError(f"free: start begins no run, got {start!r}, need what alloc returned (double free)")
    return runs.pop(start)
