"""Looking a prompt up in the index, and what is counted about it (S29)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory._codes import key_of
from pagedref.memory._index import PrefixIndex
from pagedref.memory._publish import Publisher
from pagedref.memory.prefix import media_by_page, root_message, token_array

__all__ = ["Match", "PrefixStats", "find_match", "keys_of", "longest_child"]

Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PrefixStats:
    """What prefix sharing saved so far.

    Attributes
    ----------
    requests, queried, hit_tokens : int
        Prompts that were attached, their tokens, and those of them that were found. Each request counts once: neither
        a lookup, nor a request that was refused and tries again, nor one that comes back after a preemption.
    published, evicted : int
        Pages that became hittable, and cached pages that were given up.
    nodes : int
        Different pages in the index now, roots included.
    """

    requests: int = 0
    queried: int = 0
    hit_tokens: int = 0
    published: int = 0
    evicted: int = 0
    nodes: int = 0

    @property
    def hit_rate(self) -> float:
        """Part of the queried tokens that was found, in [0, 1]."""
        return self.hit_tokens / self.queried if self.queried else 0.0


class Match(NamedTuple):
    """A prompt and how much of it is in the index."""

    name: bytes
    tokens: Any  # int32 (n,)
    pages: Any  # int32 (n // page_size, page_size)
    media: dict[int, bytes]
    root: int  # -1 when nothing of the kind was ever published
    codes: Any  # uint64 (n // page_size,)
    nodes: Int64Array
    frames: Int64Array


def find_match(
    publisher: Publisher, function: str, tokens: Any, *, adapter: Any, salt: Any, media: Any, recompute_last: bool
) -> Match:
    """Look a prompt up; nothing changes.

    Parameters
    ----------
    publisher : Publisher
        The index, and what belongs to it.
    function : str
        What error texts name.
    tokens, adapter, salt, media, recompute_last
        See `KVManager.attach_prefix`.

    Returns
    -------
    Match
    """
    if not isinstance(recompute_last, bool | np.bool_):
        raise ContractError(f"{function}: recompute_last is no truth value, got {recompute_last!r}, need True or False")
    size, array = publisher.index.page_size, token_array(function, tokens)
    whole = array.size // size
    pages = array[: whole * size].reshape(whole, size)  # (pages, page_size)
    items = media_by_page(function, media, size, array.size) if media != () else {}
    name = root_message(adapter, salt)
    root = publisher.index.roots.get(name, -1)
    none = np.empty(0, dtype=np.int64)
    if root < 0:
        return Match(name, array, pages, items, root, None, none, none)
    inside = {page: item for page, item in items.items() if page < whole} if items else items
    codes = publisher.coder.chain(publisher.index, root, 0, pages, inside)
    usable = max(array.size - recompute_last, 0) // size
    nodes = publisher.index.chain(root, codes[:usable], pages[:usable], items)
    frames = publisher.index.first_frame[nodes].astype(np.int64)
    if frames.size and frames.min() < 0:  # a page that was given up before those behind it: counting stops (S29)
        stop = int(np.argmax(frames < 0))
        nodes, frames = nodes[:stop], frames[:stop]
    return Match(name, array, pages, items, root, codes, nodes, frames)


def keys_of(publisher: Publisher, node: int) -> list[bytes]:
    """Return the keys of all pages from the first one to a node.

    Parameters
    ----------
    publisher : Publisher
        The index, and what belongs to it.
    node : int
        A node, -1 for none.

    Returns
    -------
    list of bytes
    """
    index, nodes = publisher.index, []
    while node >= 0 and index.root_name(node) is None:
        nodes.append(node)
        node = int(index.parent[node])
    return [key_of(index, page) for page in reversed(nodes)]


def longest_child(index: PrefixIndex, node: int, tokens: npt.NDArray[np.int32]) -> tuple[int, int]:
    """Return the child with frames that shares most first tokens with `tokens`, and how many; (-1, 0) for none.

    Parameters
    ----------
    index : PrefixIndex
        The index.
    node : int
        Parent.
    tokens : int32 array (n,)
        At most a page of tokens.

    Returns
    -------
    child, num_tokens : int

    Notes
    -----
    Looks at all nodes: cost grows with the number of published pages.
    """
    below = np.flatnonzero((index.parent[: index.num_numbers] == node) & (index.first_frame[: index.num_numbers] >= 0))
    below = below[below > 0]
    if index.media:
        below = np.array([at for at in below.tolist() if at not in index.media], dtype=np.int64)
    if not below.size or not tokens.size:
        return -1, 0
    same = index.tokens[below, : tokens.size] == tokens  # (children, n)
    lengths = np.where(same.all(axis=1), tokens.size, np.argmin(same, axis=1))
    best = int(np.argmax(lengths))
    return (int(below[best]), int(lengths[best])) if lengths[best] else (-1, 0)
