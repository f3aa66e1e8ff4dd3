"""The binary tree of ordered arithmetic, on the device: sums in place, and nodes that wait for their neighbours.

The twin of :mod:`pagedref.attention.tree`. A thread owns a row of each array; what NumPy does with lists of arrays is
done here in these rows, in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref_cuda._runtime import device_function
from pagedref_cuda.elementary import ordered_exp

__all__ = ["FOREST", "TILE", "Forest", "add_node", "close", "join", "maximum", "tree_sum"]

Array = npt.NDArray[Any]

TILE = 32
"""Keys in a tile: positions ``32 t .. 32 t + 31``."""
_ZERO, _MINUS_INFINITY = np.float32(0), np.float32(-np.inf)


class Forest(NamedTuple):
    """Nodes of the tree that wait for their neighbours, a row for each thread.

    Attributes
    ----------
    firsts : array (threads, depth) of int64
        First tile of each node.
    nodes : array (threads, depth, 2 + v_head_dim) of float32
        Largest score, total weight, weighted values.
    """

    firsts: Array
    nodes: Array


FOREST = (Forest, ("int64[:, :]", "float32[:, :, :]"))
"""Type of :class:`Forest` in the signature of a kernel."""


@device_function
def maximum(a: np.float32, b: np.float32) -> np.float32:
    """Return the larger number, or a NaN if there is one: ``np.maximum``."""
    return a if a > b or a != a else b


@device_function
def tree_sum(work: Array, item: int, first: int, count: int) -> Any:
    """Add up ``work[item, first : first + count]``, which is overwritten: neighbours in pairs, the pairs in pairs."""
    while count > 1:
        half = count // 2
        for i in range(half):
            work[item, first + i] = work[item, first + 2 * i] + work[item, first + 2 * i + 1]
        if count % 2 == 1:
            work[item, first + half] = work[item, first + count - 1]
        count -= half
    return work[item, first]


@device_function
def _bit_length(number: int) -> int:
    length = 0
    while number > 0:
        number >>= 1
        length += 1
    return length


@device_function
def join(forest: Forest, item: int, left: int) -> None:
    """Merge node ``left + 1`` into node `left` (``tree.merge``)."""
    nodes = forest.nodes
    right = left + 1
    top = maximum(nodes[item, left, 0], nodes[item, right, 0])
    shift = _ZERO if top == _MINUS_INFINITY else top
    scale_left = ordered_exp(nodes[item, left, 0] - shift)
    scale_right = ordered_exp(nodes[item, right, 0] - shift)
    nodes[item, left, 0] = top
    for i in range(1, nodes.shape[2]):  # the total, then the values
        nodes[item, left, i] = nodes[item, left, i] * scale_left + nodes[item, right, i] * scale_right


@device_function
def close(forest: Forest, item: int, count: int, start: int, stop: int) -> int:
    """Merge what is complete when no tile below `stop` is to come; return how many nodes are left."""
    while count > 1:
        left = forest.firsts[item, count - 2]
        right = forest.firsts[item, count - 1]
        height = _bit_length(left ^ right)  # of the common ancestor
        if height >= _bit_length(right ^ stop) or (right >> height) << height < start:
            break
        join(forest, item, count - 2)
        count -= 1
    return count


@device_function
def add_node(forest: Forest, item: int, count: int, first: int, source: Forest, owner: int, at: int) -> int:
    """Append a copy of node `at` of another row to the whole tree; return how many nodes there are."""
    count = close(forest, item, count, 0, first)
    forest.firsts[item, count] = first
    for i in range(forest.nodes.shape[2]):
        forest.nodes[item, count, i] = source.nodes[owner, at, i]
    return count + 1
