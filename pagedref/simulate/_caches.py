"""Caches that know only what is in them: LRU, FIFO, LFU, CLOCK. See `policies`."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import TypeAlias

__all__ = ["FIFO", "LFU", "LRU", "Clock", "Names", "Page"]

Page: TypeAlias = Hashable
Names: TypeAlias = "OrderedDict[Page, None]"


class _Queue:
    """Pages in one order; the base of `LRU` and `FIFO`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.pages: Names = OrderedDict()

    def __contains__(self, page: Page) -> bool:
        return page in self.pages

    def __len__(self) -> int:
        return len(self.pages)


class LRU(_Queue):
    """Give up what was used longest ago.

    Parameters
    ----------
    capacity : int
        Pages at most.

    Examples
    --------
    >>> cache = LRU(2)
    >>> [cache.access(page) for page in "abacab"]
    [False, False, True, False, True, False]
    """

    def access(self, page: Page) -> bool:
        """Use a page (see `Cache`)."""
        pages = self.pages
        if page in pages:
            pages.move_to_end(page)
            return True
        if len(pages) >= self.capacity:
            pages.popitem(last=False)
        pages[page] = None
        return False

    def settle(self, pages: Sequence[Page]) -> None:
        """Use the pages of one prompt at once, so that its head is the newest and none of them goes before another's.

        Parameters
        ----------
        pages : sequence
            Head to tail.
        """
        for page in reversed(pages):
            self.pages[page] = None
            self.pages.move_to_end(page)
        while len(self.pages) > self.capacity:
            self.pages.popitem(last=False)


class FIFO(_Queue):
    """Give up what came first.

    Parameters
    ----------
    capacity : int
        Pages at most.

    Examples
    --------
    >>> cache = FIFO(2)
    >>> [cache.access(page) for page in "abacab"]
    [False, False, True, False, False, False]
    """

    def access(self, page: Page) -> bool:
        """Use a page (see `Cache`)."""
        pages = self.pages
        if page in pages:
            return True
        if len(pages) >= self.capacity:
            pages.popitem(last=False)
        pages[page] = None
        return False


class LFU:
    """Give up what was used least often; among equals what entered that frequency first.

    Parameters
    ----------
    capacity : int
        Pages at most.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._count: dict[Page, int] = {}
        self._of: dict[int, Names] = {}  # pages of each frequency
        self._lowest = 1

    def __contains__(self, page: Page) -> bool:
        return page in self._count

    def __len__(self) -> int:
        return len(self._count)

    def access(self, page: Page) -> bool:
        """Use a page (see `Cache`)."""
        count = self._count.get(page, 0)
        if count:
            self._drop(page, count)
            if self._lowest == count and count not in self._of:
                self._lowest = count + 1
        else:
            if len(self._count) >= self.capacity:
                victim = next(iter(self._of[self._lowest]))
                del self._count[victim]
                self._drop(victim, self._lowest)
            self._lowest = 1
        self._count[page] = count + 1
        self._of.setdefault(count + 1, OrderedDict())[page] = None
        return count > 0

    def _drop(self, page: Page, count: int) -> None:
        """Take a page out of its frequency."""
        del self._of[count][page]
        if not self._of[count]:
            del self._of[count]


class Clock:
    """Go round the pages with a hand; one that was used since it last came by is passed over once.

    Parameters
    ----------
    capacity : int
        Pages at most.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used: dict[Page, bool] = {}
        self._ring: deque[Page] = deque()  # the hand is at its left

    def __contains__(self, page: Page) -> bool:
        return page in self._used

    def __len__(self) -> int:
        return len(self._used)

    def access(self, page: Page) -> bool:
        """Use a page (see `Cache`)."""
        if page in self._used:
            self._used[page] = True
            return True
        if len(self._used) >= self.capacity:
            while self._used[self._ring[0]]:
                self._used[self._ring[0]] = False
                self._ring.rotate(-1)
            del self._used[self._ring.popleft()]
        self._used[page] = False
        self._ring.append(page)
        return False
