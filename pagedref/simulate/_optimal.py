"""The best that a cache of prefixes can do when it knows all requests: Belady's rule on the leaves of chains."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from pagedref.simulate._ghosts import NEVER

__all__ = ["Optimal"]


class Optimal:
    """Keep pages whose next request is near; a page stays as long as a page behind it does.

    Parameters
    ----------
    capacity : int
        Pages at most.
    future : sequence of sequence of int
        The pages of all requests to come, head to tail.

    Notes
    -----
    Victims are leaves (no page behind them is there) outside the present request, the most distant next use first,
    counted in requests. A missing page enters only where its victim is used strictly later than itself; the first one
    that may not enter ends the insertion.
    """

    def __init__(self, capacity: int, future: Sequence[Sequence[int]]) -> None:
        self.capacity = capacity
        self._uses: list[list[int]] = [[] for _ in future]  # the next request of each page of each request
        seen: dict[int, int] = {}
        for number in range(len(future) - 1, -1, -1):
            self._uses[number] = [seen.get(page, NEVER) for page in future[number]]
            seen.update(dict.fromkeys(future[number], number))
        self._now = 0
        self._use: dict[int, int] = {}
        self._behind: dict[int, int] = {}  # pages behind each that are there
        self._before: dict[int, int | None] = {}
        self._leaves: list[tuple[int, int]] = []  # a heap; entries that are out of date are passed over

    def __contains__(self, page: int) -> bool:
        return page in self._use

    def __len__(self) -> int:
        return len(self._use)

    def settle(self, pages: Sequence[int]) -> None:
        """Use the pages of the next request.

        Parameters
        ----------
        pages : sequence of int
            As announced.
        """
        uses, mine = self._uses[self._now], set(pages)
        own: list[int] = []
        self._now += 1
        for page, use in zip(pages, uses, strict=True):
            if page in self._use:
                self._use[page] = use
        before: int | None = None
        for page, use in zip(pages, uses, strict=True):
            if page not in self._use:
                if len(self._use) >= self.capacity and not self._give_up(use, mine, own):
                    break
                self._use[page], self._behind[page], self._before[page] = use, 0, before
                if before is not None:
                    self._behind[before] += 1
            before = page
        for page in {*own, *pages[-1:], *([] if before is None else [before])}:
            if self._behind.get(page) == 0:
                heappush(self._leaves, (-self._use[page], page))

    def _give_up(self, use: int, mine: set[int], own: list[int]) -> bool:
        """Let the leaf go that is used last, if that is later than `use`."""
        while self._leaves:
            later, page = self._leaves[0]
            if self._behind.get(page) != 0 or self._use[page] != -later:
                heappop(self._leaves)  # out of date
            elif page in mine:
                own.append(heappop(self._leaves)[1])
            elif -later <= use:
                return False
            else:
                heappop(self._leaves)
                del self._use[page], self._behind[page]
                before = self._before.pop(page)
                if before is not None:
                    self._behind[before] -= 1
                    if not self._behind[before]:
                        heappush(self._leaves, (-self._use[before], before))
                return True
        return False
