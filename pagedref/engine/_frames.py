"""Who holds which frame: a picture of the pool at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagedref.engine._request import Request
from pagedref.grouped_cache import GroupedKVCache
from pagedref.kv_cache import PagedKVCache

__all__ = ["FrameUse", "frame_uses"]


@dataclass(frozen=True)
class FrameUse:
    """Say what a frame holds.

    Attributes
    ----------
    holders : tuple of (int, int, int)
        Request, sample and page of everybody whose table names it; more than one where it is shared.
    cached : bool
        Whether it is kept for prefix hits alone.
    """

    holders: tuple[tuple[int, int, int], ...]
    cached: bool

    @property
    def is_free(self) -> bool:
        """Whether nobody holds it and it keeps nothing."""
        return not self.holders and not self.cached

    @property
    def is_shared(self) -> bool:
        """Whether several hold it."""
        return len(self.holders) > 1


def frame_uses(cache: PagedKVCache, requests: Sequence[Request]) -> list[FrameUse]:
    """Return what every frame holds.

    Parameters
    ----------
    cache : PagedKVCache
        The pool.
    requests : sequence of Request
        Those that have not ended.

    Returns
    -------
    list of FrameUse
        One for each frame.
    """
    manager = cache.manager
    holders: list[list[tuple[int, int, int]]] = [[] for _ in range(manager.num_frames)]
    groups = [{"group": group.name} for group in cache.groups] if isinstance(cache, GroupedKVCache) else [{}]
    for request in requests:
        for branch in request.branches:
            if branch.seq_id is None or request.ticket.state == "swapped":
                continue
            for group in groups:
                frames = manager.block_table([branch.seq_id], **group)[0]
                for page in np.flatnonzero(frames >= 0).tolist():
                    holders[int(frames[page])].append((request.number, branch.sample, page))
    cached = manager.occupied & (manager.refcount == 0)
    return [FrameUse(tuple(own), bool(kept)) for own, kept in zip(holders, cached, strict=True)]
