"""What happens in the memory, as typed records: for logs, metrics, routers and tests.

A manager with ``on_event=f`` calls ``f(event)`` after each change; without it nothing is built and nothing is paid.
Frames and ids are tuples of int, so an event stays true when the arrays of the manager move on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Copied", "Event", "Evicted", "Freed", "Hit", "Published", "Reserved", "Shared", "Swapped"]

Ints: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Reserved:
    """Room was made for tokens: `frames` were taken for new pages."""

    seq_ids: Ints
    num_tokens: Ints
    frames: Ints


@dataclass(frozen=True)
class Shared:
    """A sequence came to share `frames` with others, by a fork or a prefix hit."""

    seq_id: int
    frames: Ints


@dataclass(frozen=True)
class Copied:
    """Frames `src` are to be copied to `dst` before a write (S27)."""

    src: Ints
    dst: Ints


@dataclass(frozen=True)
class Published:
    """Pages of a sequence, `first_page` and on, can be hit from now on (S30)."""

    seq_id: int
    first_page: int
    frames: Ints


@dataclass(frozen=True)
class Hit:
    """A request of `queried` tokens found `num_tokens` of them (S29)."""

    seq_id: int
    num_tokens: int
    queried: int


@dataclass(frozen=True)
class Evicted:
    """Cached frames were given up: what they held can no longer be hit (S31)."""

    frames: Ints


@dataclass(frozen=True)
class Swapped:
    """Pages of a sequence left the pool (``out``), or came back, and that is done (S33)."""

    seq_id: int
    out: bool
    pages: Ints
    frames: Ints


@dataclass(frozen=True)
class Freed:
    """Sequences let go of pages; `frames` lost their last holder, and are free or cached."""

    seq_ids: Ints
    frames: Ints


Event: TypeAlias = Reserved | Shared | Copied | Published | Hit | Evicted | Swapped | Freed
"""Any of these records."""
