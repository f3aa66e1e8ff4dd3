"""Nodes of the prefix index as rows of arrays, and the hash table that finds them by their codes.

The table is an array of node numbers, probed place by place from the low bits of a code on. Everything is vectorised:
a round of probing moves all that have not found their place yet by one.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY", "Codes", "Int32Array", "Int64Array", "NodeStore"]

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.uint64]

FIRST_NODES = 64
EMPTY, GONE = -1, -2


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
    Memory for each node: 20 bytes, 4 for each token, and on average 8 in the table.
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
        self._num_spare -= old
        spare = self._spare[self._num_spare : self._num_spare + old]
        nodes = np.concatenate([spare, np.arange(self._used, self._used + fresh)]).astype(np.int64)
        self._used += fresh
        return nodes

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

    def by_code(self, codes: Codes) -> Int64Array:
        """Return a node for each code, -1 where none has it.

        Parameters
        ----------
        codes : uint64 array (n,)
            Codes.

        Returns
        -------
        int64 array (n,)
        """
        mask = np.uint64(self._table.size - 1)
        found = self._table[codes & mask]
        place = None
        right = (found == EMPTY) | ((found >= 0) & (self.code[found] == codes))
        while not right.all():
            at = np.flatnonzero(~right)
            place = (codes & mask).astype(np.int64) if place is None else place
            place[at] = (place[at] + 1) & np.int64(mask)
            found[at] = self._table[place[at]]
            right[at] = (found[at] == EMPTY) | ((found[at] >= 0) & (self.code[found[at]] == codes[at]))
        nodes: Int64Array = found.astype(np.int64)
        return nodes

    def enter(self, nodes: Int64Array, codes: Codes) -> None:
        """Put nodes into the table; it is made anew when five eighths of it are taken.

        Parameters
        ----------
        nodes : int64 array (n,)
            Nodes that are not in it.
        codes : uint64 array (n,)
            Their codes.
        """
        self._taken += int(nodes.size)
        if 8 * self._taken > 5 * self._table.size:
            live = self._table[self._table >= 0].astype(np.int64)
            nodes = np.concatenate([live, nodes])
            codes, self._taken = self.code[nodes], int(nodes.size)
            self._table = np.full(1 << max(8, (2 * self._taken - 1).bit_length()), EMPTY, dtype=np.int32)
        mask = np.uint64(self._table.size - 1)
        place = (codes & mask).astype(np.int64)
        while nodes.size:
            open_ = self._table[place] < 0
            self._table[place[open_]] = nodes[open_]
            lost = self._table[place] != nodes
            nodes, place = nodes[lost], (place[lost] + 1) & np.int64(mask)

    def take_out(self, nodes: Int64Array) -> None:
        """Take nodes out of the table.

        Parameters
        ----------
        nodes : int64 array (n,)
            Nodes that are in it.
        """
        mask = np.int64(self._table.size - 1)
        place = (self.code[nodes] & np.uint64(mask)).astype(np.int64)
        wrong = np.flatnonzero(self._table[place] != nodes)
        while wrong.size:
            place[wrong] = (place[wrong] + 1) & mask
            wrong = wrong[self._table[place[wrong]] != nodes[wrong]]
        self._table[place] = GONE

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
