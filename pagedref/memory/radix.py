"""A radix tree of token sequences: long runs in one node, split where they part; pinned paths, leaves evicted whole.

The prefix index of a manager is a tree of single pages. The radix view of the same pages joins runs without branches,
and says how far a prompt matches to the token (`KVManager.radix`). By itself the tree is a model of radix caches.

Lookups change it: a match that ends inside a node splits it there, and every node on the way is refreshed, also the
lower half of a split one. A pin protects a node and all above it. `evict` takes whole leaves, as the policy has it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.memory.prefix import token_array

__all__ = ["RadixNode", "RadixTree"]


class RadixNode:
    """A run of tokens below its parent.

    Parameters
    ----------
    now : int
        The count at its creation. The others are attributes.

    Attributes
    ----------
    tokens : int32 array (n,)
        The run, whole pages; empty for a root.
    parent : RadixNode or None
        The node above.
    children : dict
        Nodes below, by their first page.
    pins : int
        Handles on this node and below.
    used, made, priority : int
        When it was last refreshed and when created (a count), and what it is worth.
    """

    __slots__ = ("children", "made", "parent", "pins", "priority", "tokens", "used")

    def __init__(self, tokens: npt.NDArray[np.int32], parent: RadixNode | None, now: int, priority: int = 0) -> None:
        self.tokens, self.parent = tokens, parent
        self.children: dict[bytes, RadixNode] = {}
        self.pins, self.used, self.made, self.priority = 0, now, now, priority


POLICIES: dict[str, Callable[[RadixNode], tuple[int, ...]]] = {
    "lru": lambda node: (node.used,),
    "mru": lambda node: (-node.used,),
    "fifo": lambda node: (node.made,),
    "filo": lambda node: (-node.made,),
    "priority": lambda node: (node.priority, node.used),
}


class RadixTree:
    """Hold token sequences.

    Parameters
    ----------
    page_size : int
        Sequences are cut to whole pages of this size.
    policy : str or callable
        ``"lru"``, ``"mru"``, ``"fifo"``, ``"filo"``, ``"priority"``, or a function of a node: the least goes first.

    Examples
    --------
    >>> tree = RadixTree(page_size=1)
    >>> tree.insert([1, 2, 3, 4]), tree.insert([1, 2, 9])
    (0, 2)
    >>> tree.match([1, 2, 3, 5]), tree.evictable
    (3, 5)
    >>> pin = tree.pin([1, 2, 9])
    >>> tree.evict(10), tree.evictable, tree.protected
    (2, 0, 3)
    """

    def __init__(self, page_size: int = 1, policy: Any = "lru") -> None:
        if isinstance(policy, str) and policy not in POLICIES:
            raise ContractError(f"RadixTree: policy is unknown, got {policy!r}, need one of {', '.join(POLICIES)}")
        self.page_size = whole_number("RadixTree", "page_size", page_size, low=1)
        self._rank = POLICIES[policy] if isinstance(policy, str) else policy
        self._roots: dict[Any, RadixNode] = {}
        self._now = 0
        self.evictable = 0
        self.protected = 0

    def __repr__(self) -> str:
        return f"RadixTree(page_size={self.page_size}: {self.evictable} tokens evictable, {self.protected} protected)"

    def insert(self, tokens: Any, *, namespace: Any = None, priority: int = 0) -> int:
        """Add a sequence.

        Parameters
        ----------
        tokens : integer array (n,)
            Token ids.
        namespace : hashable
            Sequences of different namespaces share nothing.
        priority : int
            Raises that of all nodes on its path.

        Returns
        -------
        int
            Tokens that were there before, whole pages.
        """
        array = self._whole("insert", tokens)
        node, done = self._walk(array, namespace, priority)
        if done < array.size:
            leaf = RadixNode(array[done:], node, self._tick(), priority)
            node.children[self._head(array[done:])] = leaf
            self.evictable += int(leaf.tokens.size)
        return done

    def match(self, tokens: Any, *, namespace: Any = None) -> int:
        """Say how much of a sequence is there, and refresh that.

        Parameters
        ----------
        tokens : integer array (n,)
            Token ids.
        namespace : hashable
            Where to look.

        Returns
        -------
        int
            Tokens, whole pages.
        """
        return self._walk(self._whole("match", tokens), namespace)[1]

    def pin(self, tokens: Any, *, namespace: Any = None) -> RadixNode:
        """Match, and protect what was reached, and all above it.

        Parameters
        ----------
        tokens : integer array (n,)
            Token ids.
        namespace : hashable
            Where to look.

        Returns
        -------
        RadixNode
            To be given to `unpin`.
        """
        node, _ = self._walk(self._whole("pin", tokens), namespace)
        self._count(node, 1)
        return node

    def unpin(self, node: RadixNode) -> None:
        """Take a pin back.

        Parameters
        ----------
        node : RadixNode
            The result of `pin`.

        Raises
        ------
        ContractError
            It has no pins.
        """
        if node.pins < 1:
            raise ContractError(f"unpin: node has no pins, got {node.pins}, need a node that pin returned")
        self._count(node, -1)

    def evict(self, num_tokens: int) -> int:
        """Remove unpinned leaves until enough tokens are gone; more go when the last leaf is longer.

        Parameters
        ----------
        num_tokens : int
            How many at least.

        Returns
        -------
        int
            How many it was; fewer than asked for when everything else is pinned.
        """
        num_tokens = whole_number("evict", "num_tokens", num_tokens)
        leaves = [(self._rank(node), id(node), node) for node in self.nodes() if not node.children and not node.pins]
        heapq.heapify(leaves)
        gone = 0
        while gone < num_tokens and leaves:
            node = heapq.heappop(leaves)[2]
            parent = node.parent
            assert parent is not None
            del parent.children[self._head(node.tokens)]
            gone += int(node.tokens.size)
            if parent.parent is not None and not parent.children and not parent.pins:
                heapq.heappush(leaves, (self._rank(parent), id(parent), parent))
        self.evictable -= gone
        return gone

    def nodes(self) -> list[RadixNode]:
        """Return all nodes but the roots.

        Returns
        -------
        list of RadixNode
        """
        found, stack = [], [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            found.append(node)
            stack += node.children.values()
        return found

    def longest_match(self, tokens: Any, *, namespace: Any = None) -> int:
        """Say how much of a sequence is there **to the token**; changes nothing.

        Parameters
        ----------
        tokens : integer array (n,)
            Token ids.
        namespace : hashable
            Where to look.

        Returns
        -------
        int
            Tokens: whole pages, and those that agree with the best page behind them.
        """
        array = token_array("longest_match", tokens)
        node, done = self._roots.get(namespace), 0
        while node is not None:
            below = node.children.get(self._head(array[done:])) if array.size - done >= self.page_size else None
            if below is None:
                return done + max((_common(child.tokens, array[done:]) for child in node.children.values()), default=0)
            same = _common(below.tokens, array[done:])
            done += same
            node = below if same == below.tokens.size else None
        return done

    def _whole(self, function: str, tokens: Any) -> npt.NDArray[np.int32]:
        """Return tokens cut to whole pages."""
        array = token_array(function, tokens)
        return array[: array.size // self.page_size * self.page_size]

    def _head(self, tokens: npt.NDArray[np.int32]) -> bytes:
        """Return what a node is found by: its first page."""
        return tokens[: self.page_size].tobytes()

    def _tick(self) -> int:
        """Return the time, which never stands still."""
        self._now += 1
        return self._now

    def _walk(
        self, tokens: npt.NDArray[np.int32], namespace: Any, priority: int | None = None
    ) -> tuple[RadixNode, int]:
        """Go down as far as tokens match, refresh what is passed, split where they part."""
        node = self._roots.setdefault(namespace, RadixNode(tokens[:0], None, 0))
        done = 0
        while done < tokens.size and (below := node.children.get(self._head(tokens[done:]))) is not None:
            below.used = self._tick()
            same = _common(below.tokens, tokens[done:]) // self.page_size * self.page_size
            done += same
            node = below if same == below.tokens.size else self._split(below, same)
            if priority is not None:
                node.priority = max(node.priority, priority)
            if node is not below:
                break
        return node, done

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Put a new node above the rest of a node; pins are on both."""
        parent = node.parent
        assert parent is not None
        upper = RadixNode(node.tokens[:at], parent, self._tick(), node.priority)
        upper.pins = node.pins
        parent.children[self._head(node.tokens)] = upper
        node.tokens, node.parent = node.tokens[at:], upper
        upper.children[self._head(node.tokens)] = node
        return upper

    def _count(self, node: RadixNode, by: int) -> None:
        """Add pins to a node and all above it, and move their tokens between the totals."""
        here: RadixNode | None = node
        while here is not None:
            before = here.pins
            here.pins += by
            if (before == 0) != (here.pins == 0):
                moved = int(here.tokens.size) * by
                self.evictable -= moved
                self.protected += moved
            here = here.parent


def _common(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int:
    """Return how many first tokens are equal."""
    n = min(a.size, b.size)
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if differ.size else n
