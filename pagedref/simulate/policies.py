"""Caches of pages under one eviction policy each, for replays of page names: what is hit, and what would be at best.

==========  ==========================================================  =======================================
name        gives up                                                    parameters
==========  ==========================================================  =======================================
`lru`       what was used longest ago
`fifo`      what came first
`lfu`       what was used least often; of those what entered that
            frequency first
`clock`     what the hand meets without its bit; a use sets the bit     one bit
`s3fifo`    from a small queue what was not used twice, else from a     small queue a tenth, names of nine tenths
            main queue what was not used; names of what left the        remembered, two uses to move, counts up to
            small queue are remembered, and come back to the main one   3; until the first page is given up, what
                                                                        finds the small queue full goes to the main
`arc`       from what was used once or from what was used again,        none: the balance adapts
            in a balance that follows hits on remembered names
`belady`    what is used next in the most distant future: no policy     knows the future
            has more hits
==========  ==========================================================  =======================================

A cache is a plug-in: anything with `access`, as `Cache` says. These see names of pages; the policies of the memory
manager, which see frames, are in :mod:`pagedref.memory.eviction`.

References
----------
J. Yang et al., *FIFO queues are all you need for cache eviction*, SOSP 2023 (S3-FIFO); N. Megiddo, D. Modha, *ARC*,
FAST 2003; L. Belady, *A study of replacement algorithms*, IBM Systems Journal 1966.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.simulate._caches import FIFO, LFU, LRU, Clock, Page
from pagedref.simulate._ghosts import ARC, S3FIFO, Belady

__all__ = ["ARC", "CACHES", "FIFO", "LFU", "LRU", "S3FIFO", "Belady", "Cache", "Clock", "make_cache"]


class Cache(Protocol):
    """Hold at most `capacity` pages."""

    def __contains__(self, page: Page) -> bool:
        """Tell whether a page is there; nothing changes."""
        ...

    def __len__(self) -> int:
        """Return how many pages are there."""
        ...

    def access(self, page: Page) -> bool:
        """Use a page; if it is not there it enters, and if the cache is full another goes.

        Parameters
        ----------
        page : hashable
            Its name.

        Returns
        -------
        bool
            Whether it was there.
        """
        ...


CACHES: dict[str, Callable[[int], Cache]] = {
    "lru": LRU, "fifo": FIFO, "lfu": LFU, "clock": Clock, "s3fifo": S3FIFO, "arc": ARC,
}  # fmt: skip
"""The policies that need no future, by name."""


def make_cache(policy: str | Callable[[int], Cache], capacity: int) -> Cache:
    """Return an empty cache.

    Parameters
    ----------
    policy : str or callable
        A name of `CACHES`, or a function of the capacity.
    capacity : int
        Pages at most, >= 1.

    Returns
    -------
    Cache

    Raises
    ------
    ContractError
        There is no policy of that name.
    """
    capacity = whole_number("make_cache", "capacity", capacity, low=1)
    if callable(policy):
        return policy(capacity)
    if policy not in CACHES:
        text = f"got {policy!r}, need one of {', '.join(CACHES)}, or belady"
        raise ContractError(f"make_cache: policy is unknown, {text}")
    return CACHES[policy](capacity)
