"""Caches that know more than what is in them: S3-FIFO and ARC the past, Belady the future. See `policies`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush

from pagedref.simulate._caches import Names, Page

__all__ = ["ARC", "NEVER", "S3FIFO", "Belady"]

NEVER = 2**62


class S3FIFO:
    """Give up early what comes once: a small queue before a main one, and a memory of names.

    Parameters
    ----------
    capacity : int
        Pages at most.

    Notes
    -----
    A tenth of the capacity is the small queue; names of nine tenths of the capacity are remembered; two uses in the
    small queue move a page to the main one; a page of the main queue that was used, counted up to three times, goes
    round once for each.
    """

    MOST, TO_MOVE = 3, 2

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._room = max(1, capacity // 10)
        self._names_kept = capacity * 9 // 10
        self._small: OrderedDict[Page, int] = OrderedDict()  # pages with their uses
        self._main: OrderedDict[Page, int] = OrderedDict()
        self._names: Names = OrderedDict()
        self._filled = False

    def __contains__(self, page: Page) -> bool:
        return page in self._small or page in self._main

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def access(self, page: Page) -> bool:
        """Use a page (see `Cache`)."""
        for queue in (self._small, self._main):
            if page in queue:
                queue[page] += 1
                return True
        known = page in self._names
        if known:
            del self._names[page]
        while len(self) >= self.capacity:
            self._filled = True
            self._give_up()
        main = known or (not self._filled and len(self._small) >= self._room)
        (self._main if main else self._small)[page] = 0
        return False

    def _give_up(self) -> None:
        """Let one page go, or empty the small queue into the main one."""
        if len(self._main) <= self.capacity - self._room:
            while self._small:
                page, uses = self._small.popitem(last=False)
                if uses < self.TO_MOVE:
                    self._names[page] = None
                    if len(self._names) > self._names_kept:
                        self._names.popitem(last=False)
                    return
                self._main[page] = 0
        while self._main:
            page, uses = self._main.popitem(last=False)
            if not uses:
                return
            self._main[page] = min(uses, self.MOST) - 1


class ARC:
    """Balance what was used once against what was used again, by hits on names of what has gone.

    Parameters
    ----------
    capacity : int
        Pages at most.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._target = 0.0  # pages that were used once
        self._once: Names = OrderedDict()
        self._again: Names = OrderedDict()
        self._once_gone: Names = OrderedDict()
        self._again_gone: Names = OrderedDict()

    def __contains__(self, page: Page) -> bool:
        return page in self._once or page in self._again

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def access(self, page: Page) -> bool:
        """Use a page (see `Cache`)."""
        once, again, once_gone, again_gone = self._once, self._again, self._once_gone, self._again_gone
        if page in once:
            del once[page]
            again[page] = None
            return True
        if page in again:
            again.move_to_end(page)
            return True
        if page in once_gone:
            self._target = min(self.capacity, self._target + max(len(again_gone) / len(once_gone), 1))
            self._give_up(False)
            del once_gone[page]
            again[page] = None
            return False
        if page in again_gone:
            self._target = max(0, self._target - max(len(once_gone) / len(again_gone), 1))
            self._give_up(True)
            del again_gone[page]
            again[page] = None
            return False
        if len(once) + len(once_gone) == self.capacity:
            if once_gone:
                once_gone.popitem(last=False)
                self._give_up(False)
            else:
                once.popitem(last=False)
        else:
            known = len(self) + len(once_gone) + len(again_gone)
            if known >= self.capacity:
                if known == 2 * self.capacity:
                    again_gone.popitem(last=False)
                self._give_up(False)
        once[page] = None
        return False

    def _give_up(self, again_gone: bool) -> None:
        """Let a page go and remember its name."""
        over = len(self._once) - self._target
        if self._once and (over > 0 or (again_gone and over == 0)):
            self._once_gone[self._once.popitem(last=False)[0]] = None
        else:
            self._again_gone[self._again.popitem(last=False)[0]] = None


class Belady:
    """Give up what is used next in the most distant future; accesses must come as announced.

    Parameters
    ----------
    capacity : int
        Pages at most.
    future : sequence
        All accesses to come, in order.
    """

    def __init__(self, capacity: int, future: Sequence[Page]) -> None:
        self.capacity = capacity
        self._next_use = [NEVER] * len(future)
        seen: dict[Page, int] = {}
        for at in range(len(future) - 1, -1, -1):
            self._next_use[at] = seen.get(future[at], NEVER)
            seen[future[at]] = at
        self._now = 0
        self._use: dict[Page, int] = {}
        self._far: list[tuple[int, int, Page]] = []  # a heap; entries that are out of date are passed over

    def __contains__(self, page: Page) -> bool:
        return page in self._use

    def __len__(self) -> int:
        return len(self._use)

    def access(self, page: Page) -> bool:
        """Use a page, the next one announced (see `Cache`)."""
        there = page in self._use
        if not there and len(self._use) >= self.capacity:
            while self._use.get(self._far[0][2]) != -self._far[0][0]:
                heappop(self._far)
            del self._use[heappop(self._far)[2]]
        use = self._next_use[self._now]
        self._use[page] = use
        heappush(self._far, (-use, self._now, page))
        self._now += 1
        return there
