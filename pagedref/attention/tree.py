"""One binary tree over absolute positions, in which every addition of ordered attention has its fixed place.

The leaves are the keys of a sequence, in order of position. Neighbours are joined in pairs, pairs in fours, and so on:
a node of height h covers the positions ``j * 2**h .. (j + 1) * 2**h - 1``. Up to a tile of :data:`TILE` keys the nodes
are plain sums; above, they are states ``(top, total, values)`` that are merged. A node depends on its own keys alone,
so it is the same whoever computes it; a key that is not there, or not seen, is a zero, and a node without keys changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.attention.elementary import ordered_exp

__all__ = ["TILE", "Forest", "Partial", "aligned_nodes", "merge", "merge_tiles", "tree_products", "tree_sum"]

Float32 = npt.NDArray[np.float32]

TILE = 32
"""Keys in a tile: positions ``32 t .. 32 t + 31``, the lanes of a warp."""

_ZERO = np.float32(0)


class Partial(NamedTuple):
    """What a node of the tree knows of its keys.

    Attributes
    ----------
    top : array (...,) of float32
        Largest score; ``-inf`` where no key is seen.
    total : array (...,) of float32
        Sum of ``exp(score - top)``; 0 where no key is seen.
    values : array (..., v_head_dim) of float32
        Sum of ``exp(score - top) * value``; 0 where no key is seen.
    """

    top: Float32
    total: Float32
    values: Float32


def tree_sum(terms: Float32) -> Float32:
    """Add up along the first axis: neighbours in pairs, the pairs in pairs, until one is left.

    Parameters
    ----------
    terms : array (n, ...) of float32, n >= 1
        A last one without a neighbour goes up as it is.

    Returns
    -------
    array (...) of float32

    Examples
    --------
    ``((1 + 2) + (3 + 4)) + 5``

    >>> float(tree_sum(np.float32([1, 2, 3, 4, 5])))
    15.0
    """
    if len(terms) == 1:
        single: Float32 = terms[0].copy()
        return single
    half = len(terms) // 2
    sums = np.empty((2, len(terms) - half, *terms.shape[1:]), np.float32)
    return _climb(_level(terms, sums[0]), sums[1])


def _level(terms: Float32, out: Float32) -> Float32:
    """Add neighbours: one level of the tree, written into the first entries of `out`."""
    half, single = divmod(len(terms), 2)
    np.add(terms[0 : 2 * half : 2], terms[1 : 2 * half : 2], out=out[:half])
    if single:
        out[half] = terms[-1]
    return out[: half + single]


def _climb(terms: Float32, spare: Float32) -> Float32:
    """Take the remaining levels of the tree, to and fro between two arrays, which are overwritten."""
    while len(terms) > 1:
        terms, spare = _level(terms, spare), terms
    result: Float32 = terms[0].copy()  # lets go of the arrays
    return result


def tree_products(left: Float32, right: Float32) -> Float32:
    """Return ``tree_sum(left * right)``, each product rounded before it is added.

    Parameters
    ----------
    left, right : arrays (n, ...) of float32
        Broadcast against each other.

    Returns
    -------
    array (...) of float32

    Examples
    --------
    >>> float(tree_products(np.float32([1, 2, 3]), np.float32([4, 5, 6])))
    32.0
    """
    pairs: Float32 = left[0::2] * right[0::2]
    if len(left) == 1:
        return tree_sum(pairs)
    odd = left[1::2] * right[1::2]
    np.add(pairs[: len(odd)], odd, out=pairs[: len(odd)])
    return _climb(pairs, odd)


def merge(left: Partial, right: Partial) -> Partial:
    """Merge two neighbouring nodes.

    Parameters
    ----------
    left, right : Partial
        Of disjoint keys.

    Returns
    -------
    Partial
        ``top = max``, and ``total`` and ``values`` the sum of both, each times ``exp(its top - top)``.

    Notes
    -----
    The one with the larger top is multiplied by exactly 1; a node without keys contributes exactly 0. Only the sign of
    a zero may change, and :func:`pagedref.attention.ordered.ordered_decode` returns no negative zero.

    Examples
    --------
    >>> one = Partial(np.float32([0]), np.float32([1]), np.float32([[5]]))
    >>> none = Partial(np.float32([-np.inf]), np.float32([0]), np.float32([[0]]))
    >>> merge(one, none) == one, float(merge(one, one).total[0])
    (True, 2.0)
    """
    top: Float32 = np.maximum(left.top, right.top)
    shift = np.where(np.isneginf(top), _ZERO, top)  # of nothing: exp(-inf - 0) is 0, not NaN
    scale_left, scale_right = ordered_exp(np.stack([left.top, right.top]) - shift)
    total = left.total * scale_left + right.total * scale_right
    values = left.values * scale_left[..., None] + right.values * scale_right[..., None]
    return Partial(top, total, values)


def merge_tiles(tiles: Partial) -> Partial:
    """Merge neighbouring nodes along the first axis until one is left.

    Parameters
    ----------
    tiles : Partial
        A power of two of them, the first at a multiple of that power.

    Returns
    -------
    Partial
        Without the first axis.
    """
    while len(tiles.top) > 1:
        tiles = merge(Partial(*(part[0::2] for part in tiles)), Partial(*(part[1::2] for part in tiles)))
    return Partial(*(part[0] for part in tiles))


def aligned_nodes(first: int, stop: int, largest: int) -> Iterator[tuple[int, int]]:
    """Cover ``first .. stop - 1`` by the largest nodes of the tree that lie within, in order.

    Parameters
    ----------
    first, stop : int
        Tiles.
    largest : int
        Tiles in a node at most, a power of two.

    Yields
    ------
    first, count : int
        `count` is a power of two that divides `first`.

    Examples
    --------
    >>> list(aligned_nodes(3, 13, 4))
    [(3, 1), (4, 4), (8, 4), (12, 1)]
    """
    while first < stop:
        count = min(first & -first or largest, largest)
        while first + count > stop:
            count //= 2
        yield first, count
        first += count


class Forest:
    """Nodes of the tree in order, merged as soon as their common ancestor is complete.

    The whole sequence, begun at tile 0, is a counter in binary: at most one node of each height waits for its
    neighbour. A part of it that begins elsewhere keeps the nodes whose neighbour lies outside, at most two of each
    height, and hands them over; added in order to the forest of the whole they give the bits of the whole.

    Parameters
    ----------
    start : int
        First tile of the part.

    Attributes
    ----------
    nodes : list of (int, Partial)
        First tile and state of each node that waits.

    Examples
    --------
    Tiles 3 to 7 alone: 3 waits for 2, and 4 to 7 are one node.

    >>> part, tile = Forest(3), Partial(np.float32([0]), np.float32([1]), np.float32([[1]]))
    >>> for number in range(3, 8):
    ...     part.add(number, tile)
    >>> part.close(8)
    >>> [first for first, _ in part.nodes]
    [3, 4]
    """

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self.nodes: list[tuple[int, Partial]] = []

    def add(self, first: int, node: Partial) -> None:
        """Append the node that begins at tile `first`, beyond all others."""
        self.close(first)
        self.nodes.append((first, node))

    def close(self, stop: int) -> None:
        """Merge what is complete when no tile below `stop` is to come."""
        while len(self.nodes) > 1:
            left, right = self.nodes[-2][0], self.nodes[-1][0]
            height = (left ^ right).bit_length()  # of the common ancestor
            if height >= (right ^ stop).bit_length() or (right >> height) << height < self._start:
                return
            self._join()

    def root(self) -> Partial | None:
        """Merge all nodes from the right, as if the tiles that are missing had no keys; None without a node."""
        while len(self.nodes) > 1:
            self._join()
        return self.nodes[0][1] if self.nodes else None

    def _join(self) -> None:
        (first, left), (_, right) = self.nodes[-2:]
        self.nodes[-2:] = [(first, merge(left, right))]
