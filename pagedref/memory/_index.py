"""The index of published pages: a tree of nodes in arrays, found by their numbers or through a hash table (S28, S30).

A node is a page as content: its tokens, below its parent. The frames that hold this content hang on it, the first one
published in front. A node without frames stays as long as there are pages below it or a sequence stands on it; so a
parent's number always means the same content, and comparing it compares the whole prefix.

Nodes are found by a 64-bit code and proved by comparing parent, tokens and media. A code that is equal by chance, or an
injected hash function that is constant, costs time and never gives a false hit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.memory._nodes import Codes, Int32Array, Int64Array, NodeStore, distinct

__all__ = ["PrefixIndex"]

NONE = np.int32(-1)


class PrefixIndex(NodeStore):
    """Hold the tree of published pages.

    Parameters
    ----------
    num_frames, page_size : int
        Geometry of the pool.

    Attributes
    ----------
    node_of : int32 array (num_frames,)
        Node whose content a frame holds, -1 where it is not published.

    Notes
    -----
    Node 0 is above all roots.
    """

    def __init__(self, num_frames: int, page_size: int) -> None:
        super().__init__(num_frames, page_size)
        self.node_of: Int32Array = np.full(num_frames, NONE, dtype=np.int32)
        self.new_nodes(1)
        self.parent[0], self.children[0], self.first_frame[0] = 0, 1, -1
        self.roots: dict[bytes, int] = {}
        self._root_name: dict[int, bytes] = {}
        self.media: dict[int, bytes] = {}
        self._more: dict[int, list[int]] = {}  # further frames of a node, in order of publication

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return super().nbytes + self.node_of.nbytes

    # -- roots

    def root(self, name: bytes, code: int) -> int:
        """Return the root of a name, made when there is none.

        Parameters
        ----------
        name : bytes
            Its message.
        code : int
            Its code, in ``[0, 2**64)``.

        Returns
        -------
        int
        """
        found = self.roots.get(name)
        if found is None:
            found = int(self.new_nodes(1)[0])
            self.parent[found], self.children[found], self.first_frame[found] = 0, 0, -1
            self.children[0] += 1
            self.code[found] = code
            self.roots[name], self._root_name[found] = found, name
        return found

    def root_name(self, node: int) -> bytes | None:
        """Return the message of a root, None for any other node."""
        return self._root_name.get(node)

    # -- looking

    def chain(self, node: int, codes: Codes, tokens: npt.NDArray[np.int32], media: dict[int, bytes]) -> Int64Array:
        """Return the nodes of the longest chain below a node.

        Parameters
        ----------
        node : int
            Where the chain begins.
        codes : uint64 array (n,)
            Codes of its pages.
        tokens : int32 array (n, page_size)
            Their tokens.
        media : dict
            Media of pages, by their place in `codes`.

        Returns
        -------
        int64 array (k,)
            Nodes of the first k pages.
        """
        parts: list[Int64Array] = []
        page = 0
        while page < codes.size:
            run = None
            if self._is_next(node, codes[page]):
                run = self._run(node + 1, tokens[page:], media, page, proved=False)
            if run is None or not run.size:
                first = self._loose_child(node, int(codes[page]), tokens[page], media.get(page))
                if first < 0:
                    break
                run = self._run(first, tokens[page:], media, page, proved=True)
            parts.append(run)
            page += int(run.size)
            node = int(run[-1])
            if len(parts) > 4 and 2 * len(parts) > page:  # scattered nodes: look all of them up at once
                parts.append(self._scattered(node, codes[page:], tokens[page:], media, page))
                break
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def _run(
        self, first: int, tokens: npt.NDArray[np.int32], media: dict[int, bytes], page: int, *, proved: bool
    ) -> Int64Array:
        """Return as many nodes from `first` on as are chained by their numbers and match; the first may be proved."""
        n = min(tokens.shape[0], self._used - first)
        numbers = np.arange(first - 1, first + n)
        same = self.tokens[first : first + n] == tokens[:n]  # (n, page_size)
        same[:, 0] &= self.parent[first : first + n] == numbers[:-1]
        if self.media or media:
            same[:, 0] &= [self.media.get(first + at) == media.get(page + at) for at in range(n)]
        if proved:
            same[0] = True
        if np.count_nonzero(same) < same.size:
            n = int(np.argmin(same.all(axis=1)))
        return numbers[1 : n + 1]

    def _scattered(
        self, node: int, codes: Codes, tokens: npt.NDArray[np.int32], media: dict[int, bytes], page: int
    ) -> Int64Array:
        """Return the longest chain below a node by the codes of all pages at once, step by step where two are equal."""
        found = self.by_code(codes)
        place = np.arange(1, found.size + 1)
        last = np.maximum.accumulate(np.where(found < 0, 0, place))  # the last one before or at each that is loose
        found = np.concatenate([[node], found])[last] + (place - last)  # those between are chained by their numbers
        found = np.minimum(found, self._used - 1)
        same = (self.tokens[found] == tokens).all(axis=1)
        same &= self.parent[found] == np.concatenate([[node], found[:-1]])[: found.size]
        if self.media or media:
            same &= [self.media.get(at) == media.get(page + i) for i, at in enumerate(found.tolist())]
        if same.all():
            return found
        nodes = found[: int(np.argmin(same))].tolist()
        for at in range(len(nodes), codes.size):
            below = self.child(nodes[-1] if nodes else node, int(codes[at]), tokens[at], media.get(page + at))
            if below < 0:
                break
            nodes.append(below)
        return np.array(nodes, dtype=np.int64)

    def child(self, node: int, code: int, tokens: Any, media: bytes | None = None) -> int:
        """Return the child of a node that is a certain page, -1 when there is none.

        Parameters
        ----------
        node : int
            Parent.
        code : int
            Code of the page.
        tokens : int32 array (page_size,)
            Its tokens.
        media : bytes, optional
            Its media.

        Returns
        -------
        int
        """
        if self._is_next(node, code) and self.is_page(node + 1, node, tokens, media):
            return node + 1
        return self._loose_child(node, code, tokens, media)

    def _loose_child(self, node: int, code: int, tokens: Any, media: bytes | None) -> int:
        """Return the child of a node that is a certain page, if it is in the table."""
        for at in self.probe(code):
            if self.is_page(at, node, tokens, media):
                return at
        return -1

    def children_of(self, nodes: Int64Array, codes: Codes, tokens: npt.NDArray[np.int32]) -> Int64Array:
        """Return, for each of several nodes, the child that is a certain page without media, -1 where none is.

        Parameters
        ----------
        nodes : int64 array (n,)
            Parents.
        codes : uint64 array (n,)
            Codes of the pages.
        tokens : int32 array (n, page_size)
            Their tokens.

        Returns
        -------
        int64 array (n,)
        """
        found = np.minimum(nodes + 1, self._used - 1)
        loose = np.flatnonzero((self.parent[found] != nodes) | (self.code[found] != codes))
        if loose.size:
            found[loose] = self.by_code(codes[loose])
        wrong = (self.parent[found] != nodes) | (self.tokens[found] != tokens).any(axis=1)
        if self.media:
            wrong |= [at in self.media for at in found.tolist()]
        for at in np.flatnonzero(wrong & (found >= 0)).tolist():
            found[at] = self.child(int(nodes[at]), int(codes[at]), tokens[at])
        return found

    def is_page(self, at: int, node: int, tokens: Any, media: bytes | None) -> bool:
        """Tell whether a node is a certain page below another: the proof of a hit."""
        if int(self.parent[at]) != node or self.media.get(at) != media:
            return False
        return bool((self.tokens[at] == tokens).all())

    # -- changing

    def grow(self, node: int, codes: Codes, tokens: npt.NDArray[np.int32], media: dict[int, bytes]) -> Int64Array:
        """Hang a chain of new pages below a node.

        Parameters
        ----------
        node, codes, tokens, media
            As for `chain`, of pages that are not there.

        Returns
        -------
        int64 array (n,)
            The new nodes, each the parent of the next.
        """
        nodes = self.new_nodes(codes.size)
        parents = np.empty_like(nodes)
        parents[0], parents[1:] = node, nodes[:-1]
        self._plant(nodes, parents, codes, tokens, 1)
        self.children[nodes[-1]] = 0
        self.children[node] += 1
        for page, items in media.items():
            self.media[int(nodes[page])] = items
        return nodes

    def sprout(self, parents: Int64Array, codes: Codes, tokens: npt.NDArray[np.int32]) -> Int64Array:
        """Hang one new page below each of several nodes.

        Parameters
        ----------
        parents, codes, tokens
            As for `children_of`, of pages that are not there and all different.

        Returns
        -------
        int64 array (n,)
        """
        nodes = self.new_nodes(codes.size)
        self._plant(nodes, parents, codes, tokens, 0)
        np.add.at(self.children, parents, np.int32(1))
        return nodes

    def hang(self, nodes: Int64Array, frames: Int64Array) -> None:
        """Say that frames hold the content of nodes.

        Parameters
        ----------
        nodes, frames : int64 arrays (n,)
            Nodes, and a frame of each that is not published.
        """
        self.node_of[frames] = nodes
        bare = self.first_frame[nodes] < 0
        if np.count_nonzero(bare) == nodes.size:
            self.first_frame[nodes] = frames
            return
        self.first_frame[nodes[bare]] = frames[bare]
        for at in np.flatnonzero(self.first_frame[nodes] != frames).tolist():
            self._more.setdefault(int(nodes[at]), []).append(int(frames[at]))

    def drop(self, frames: Int64Array) -> None:
        """Forget what frames hold; nodes that nothing needs any more go, too.

        Parameters
        ----------
        frames : int64 array (n,)
            Published frames, each named once.
        """
        nodes = self.node_of[frames].astype(np.int64)
        self.node_of[frames] = NONE
        if self._more:
            for node, frame in zip(nodes.tolist(), frames.tolist()):
                self._unhang(node, frame)
        else:
            self.first_frame[nodes] = NONE
        self._collect(nodes)

    def _unhang(self, node: int, frame: int) -> None:
        """Take one frame off a node."""
        more = self._more.get(node, [])
        if self.first_frame[node] == frame:
            self.first_frame[node] = more.pop(0) if more else NONE
        else:
            more.remove(frame)
        if not more:
            self._more.pop(node, None)

    def frames_of(self, node: int) -> list[int]:
        """Return all frames of a node, in order of publication."""
        first = int(self.first_frame[node])
        return [first, *self._more.get(node, [])] if first >= 0 else []

    def hold(self, node: int, by: int) -> None:
        """Count a sequence that comes to stand on a node (1) or leaves it (-1)."""
        self.children[node] += by
        if by < 0:
            self._collect(np.array([node]))

    def _collect(self, nodes: Int64Array) -> None:
        """Remove nodes without frames and without anything below, then parents that are left so."""
        while True:
            dead = distinct(nodes[(self.first_frame[nodes] < 0) & (nodes > 0)])
            np.subtract.at(self.children, self.parent[dead], np.int32(1))  # as if all of them went
            while (stay := self.children[dead] > 0).any():
                np.add.at(self.children, self.parent[dead[stay]], np.int32(1))
                dead = dead[~stay]
            if not dead.size:
                return
            nodes = self.parent[dead].astype(np.int64)
            self._remove(dead)
            nodes = nodes[self.parent[nodes] >= 0]

    def _remove(self, nodes: Int64Array) -> None:
        """Take nodes out of the table and give their numbers back."""
        roots = nodes[self.parent[nodes] == 0].tolist()
        for node in roots:
            del self.roots[self._root_name.pop(node)]
        inside = nodes[~np.isin(nodes, roots)] if roots else nodes
        self.take_out(inside)
        self.parent[nodes] = NONE
        self.give_back(nodes)
        if self.media:
            for node in nodes.tolist():
                self.media.pop(node, None)
