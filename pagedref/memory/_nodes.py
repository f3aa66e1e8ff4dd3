"""Nodes of the prefix index as rows of arrays, and the hash table that finds them by their codes.

A chain that is published at once gets consecutive numbers: a node whose number is one more than that of its parent is
found so. All others, the *loose* ones, are in a table, an array of node numbers. A search begins at the low bits of a
code and moves by a step that its high bits give. Everything is vectorised: a round of probing moves all that have not
found their place yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY", "Codes", "Int32Array", "Int64Array", "NodeStore", "distinct"]

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.uint64]

FIRST_NODES = 64
EMPTY, GONE = -1, -2
FEW = 8  # searches that are faster one by one


class NodeStore:
    """Hold nodes and find them.

    Parameters
    ----------
    num_frames, page_size : int
        Geometry of the pool.

    Attributes
    ----------
    parent, children, first_frame : int32 arrays (nodes,)
        Of each node: its parent, how many nodes hang below it and sequences stand on it, and its first frame or -1.
    code : uint64 array (nodes,)
        What the table goes by.
    tokens : int32 array (nodes, page_size)
        Tokens of each node.

    Notes
    -----
    Memory for each node: 20 bytes, 4 for each token, and on average 8 in the table if it is loose.
    """

    parent: Int32Array
    children: Int32Array
    first_frame: Int32Array
    code: Codes
    tokens: Int32Array

    def __init__(self, num_frames: int, page_size: int) -> None:
        self.num_frames, self.page_size = num_frames, page_size
        self._room(FIRST_NODES)
        self._used = 0
        self._spare: Int32Array = np.empty(FIRST_NODES, dtype=np.int32)  # numbers given back: a stack
        self._num_spare = 0
        self._table: Int32Array = np.full(4 * FIRST_NODES, EMPTY, dtype=np.int32)
        self._taken = 0  # places of the table that are not EMPTY

    @property
    def num_nodes(self) -> int:
        """Nodes in use."""
        return self._used - self._num_spare

    @property
    def num_numbers(self) -> int:
        """Numbers ever given to nodes."""
        return self._used

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.parent, self.children, self.first_frame, self.code, self.tokens, self._table, self._spare)
        return sum(array.nbytes for array in arrays)

    def new_nodes(self, n: int) -> Int64Array:
        """Take numbers for nodes.

        Parameters
        ----------
        n : int
            How many.

        Returns
        -------
        int64 array (n,)
        """
        old = min(n, self._num_spare)
        fresh = n - old
        if self._used + fresh > self.parent.size:
            limit = self.num_frames + self.num_frames // 32 + FIRST_NODES
            self._room(max(self._used + fresh, min(2 * self.parent.size, limit)))
        nodes = np.arange(self._used - old, self._used + fresh, dtype=np.int64)
        if old:
            self._num_spare -= old
            nodes[:old] = self._spare[self._num_spare : self._num_spare + old]
        self._used += fresh
        return nodes

    def _plant(
        self, nodes: Int64Array, parents: Int64Array, codes: Codes, tokens: Int32Array, children: int
    ) -> None:
        """Fill in new nodes; `children` is 1 for those of a chain."""
        loose = (nodes - parents != 1).nonzero()[0]
        at: Any = nodes
        if children and (loose.size == 0 or (loose.size == 1 and loose[0] == 0)):  # numbered one after the other
            at = slice(int(nodes[0]), int(nodes[-1]) + 1)
        self.parent[at], self.children[at], self.first_frame[at] = parents, children, EMPTY
        self.code[at], self.tokens[at] = codes, tokens
        if loose.size:
            self.enter(nodes[loose], codes[loose])

    def give_back(self, nodes: Int64Array) -> None:
        """Make numbers of nodes free for others.

        Parameters
        ----------
        nodes : int64 array (n,)
            Nodes.
        """
        if self._num_spare + nodes.size > self._spare.size:
            self._spare = np.concatenate([self._spare, np.empty(self._num_spare + nodes.size, dtype=np.int32)])
        self._spare[self._num_spare : self._num_spare + nodes.size] = nodes
        self._num_spare += int(nodes.size)

    def _is_next(self, node: int, code: Any) -> bool:
        """Tell whether the number after that of a node belongs to a child of it with a certain code."""
        at = node + 1
        return bool(at < self._used and self.parent[at] == node and self.code[at] == code)

    def by_code(self, codes: Codes) -> Int64Array:
        """Return a loose node for each code, -1 where none has it.

        Parameters
        ----------
        codes : uint64 array (n,)
            Codes.

        Returns
        -------
        int64 array (n,)
        """
        place, step, mask = self._places(codes)
        found = self._table[place]
        again = np.flatnonzero((found != EMPTY) & ((found < 0) | (self.code[found] != codes)))
        while again.size > FEW:
            place[again] = at = (place[again] + step[again]) & mask
            found[again] = here = self._table[at]
            again = again[(here != EMPTY) & ((here < 0) | (self.code[here] != codes[again]))]
        for one in again.tolist():
            found[one] = next((node for node in self.probe(int(codes[one])) if self.code[node] == codes[one]), EMPTY)
        nodes: Int64Array = found.astype(np.int64)
        return nodes

    def enter(self, nodes: Int64Array, codes: Codes) -> None:
        """Put nodes into the table; it is made anew when half of it is taken.

        Parameters
        ----------
        nodes : int64 array (n,)
            Loose nodes that are not in it.
        codes : uint64 array (n,)
            Their codes.
        """
        self._taken += int(nodes.size)
        if 2 * self._taken > self._table.size:
            live = self._table[self._table >= 0].astype(np.int64)
            nodes = np.concatenate([live, nodes])
            codes, self._taken = self.code[nodes], int(nodes.size)
            self._table = np.full(1 << max(8, (2 * self._taken - 1).bit_length()), EMPTY, dtype=np.int32)
        if not nodes.size:
            return
        place, step, mask = self._places(codes)
        while nodes.size > 4 * FEW:
            vacant = self._table[place] < 0
            self._table[place[vacant]] = nodes[vacant]
            lost = np.flatnonzero(self._table[place] != nodes)
            nodes, step = nodes[lost], step[lost]
            place = (place[lost] + step) & mask
        for node, here, move in zip(nodes.tolist(), place.tolist(), step.tolist()):
            while self._table[here] >= 0:
                here = (here + move) & int(mask)
            self._table[here] = node

    def _places(self, codes: Codes) -> tuple[Int64Array, Int64Array, np.int64]:
        """Return where the search for each code begins, how far it moves each time, and the mask of both."""
        mask = np.int64(self._table.size - 1)
        words = codes.view(np.int64)
        return words & mask, (words >> np.int64(40)) | np.int64(1), mask

    def take_out(self, nodes: Int64Array) -> None:
        """Take those of some nodes that are loose out of the table.

        Parameters
        ----------
        nodes : int64 array (n,)
            Nodes, no roots.
        """
        nodes = nodes[self.parent[nodes] != nodes - 1]
        if not nodes.size:
            return
        place, step, mask = self._places(self.code[nodes])
        wrong = np.flatnonzero(self._table[place] != nodes)
        while wrong.size:
            place[wrong] = (place[wrong] + step[wrong]) & mask
            wrong = wrong[self._table[place[wrong]] != nodes[wrong]]
        self._table[place] = GONE

    def alive(self) -> npt.NDArray[np.bool_]:
        """Return which numbers are those of nodes: bool (numbers ever given,)."""
        alive = np.ones(self._used, dtype=np.bool_)
        alive[self._spare[: self._num_spare]] = False
        return alive

    def table_problems(self, alive: npt.NDArray[np.bool_]) -> list[str]:
        """List what is wrong with the table, for audits."""
        inside = self._table[self._table >= 0]
        found = []
        if np.unique(inside).size != inside.size or not alive[inside].all():
            found.append("the table of nodes names some twice, or some that are gone")
        numbers = np.flatnonzero(alive)
        loose = numbers[(self.parent[numbers] != numbers - 1) & (self.parent[numbers] > 0)]  # neither 0 nor a root
        lost = [node for node in {*inside.tolist(), *loose.tolist()} if node not in self.probe(int(self.code[node]))]
        if lost:
            found.append(f"nodes {lost[:8]} are not found by their codes")
        return found

    def probe(self, code: int) -> Iterator[int]:
        """Return the loose nodes that a search for a code meets, one after the other.

        Parameters
        ----------
        code : int
            In ``[0, 2**64)``.

        Yields
        ------
        int
        """
        mask, table = self._table.size - 1, self._table
        place, step = code & mask, (code >> 40) | 1
        while (at := int(table[place])) != EMPTY:
            if at >= 0:
                yield at
            place = (place + step) & mask

    def _room(self, nodes: int) -> None:
        """Make the arrays of nodes longer."""
        for name, dtype, shape in (
            ("parent", np.int32, ()),
            ("children", np.int32, ()),
            ("first_frame", np.int32, ()),
            ("code", np.uint64, ()),
            ("tokens", np.int32, (self.page_size,)),
        ):
            array = np.empty((nodes, *shape), dtype=dtype)
            old = getattr(self, name, array[:0])
            array[: len(old)] = old
            setattr(self, name, array)


def distinct(nodes: Int64Array) -> Int64Array:
    """Return nodes in ascending order, each once: several times faster than `unique` where each is named once.

    Parameters
    ----------
    nodes : int64 array (n,)
        Nodes.

    Returns
    -------
    int64 array
    """
    found = np.sort(nodes)
    return np.unique(found) if np.count_nonzero(found[1:] == found[:-1]) else found
