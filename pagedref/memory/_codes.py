"""The codes by which the prefix index finds pages: fast by default, or the keys of a hash function that is given.

A code only says where to look; what is found is compared in full. So the default is a sum of products in 64 bits that
NumPy computes for all pages of a prompt at once: with ``h`` the mixed sum of a page's tokens times odd constants and
``w`` an odd constant for each page number, a page's code is its parent's code plus ``h * w``. The constants are drawn
anew for each index: which codes are equal cannot be known from outside, and no result rests on it.

The SHA-256 keys of `prefix` are the names of pages elsewhere (a disk, another process). Given as `hash_function`, they
are the codes, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref.memory._index import PrefixIndex
from pagedref.memory.prefix import page_message, sha256

__all__ = ["Coder", "FastCoder", "KeyCoder", "key_of"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
Tokens: TypeAlias = npt.NDArray[np.int32]
Codes: TypeAlias = npt.NDArray[np.uint64]

SHIFT = np.uint64(29)
FACTOR = np.uint64(0xBF58476D1CE4E5B9)


class Coder(Protocol):
    """Give codes to pages."""

    def root(self, name: bytes) -> int:
        """Return the code of a root."""
        ...

    def chain(self, index: PrefixIndex, node: int, first: int, tokens: Tokens, media: dict[int, bytes]) -> Codes:
        """Return the codes of pages `first`, `first` + 1, ... below a node."""
        ...

    def heads(self, index: PrefixIndex, nodes: Int64Array, pages: Int64Array, tokens: Tokens) -> Codes:
        """Return the codes of one page below each of several nodes."""
        ...


class FastCoder:
    """Sum products in 64 bits, all pages at once.

    Parameters
    ----------
    page_size : int
        Tokens in a page.
    """

    def __init__(self, page_size: int) -> None:
        self._seed = int.from_bytes(os.urandom(8), "little")
        self._columns = self._constants(page_size, self._seed)
        self._rows = self._constants(64, self._seed + 1)

    @staticmethod
    def _constants(n: int, seed: int) -> Codes:
        """Return odd constants."""
        count = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed % 2**64)
        count = (count ^ (count >> np.uint64(30))) * FACTOR
        return (count ^ (count >> np.uint64(27))) | np.uint64(1)

    def _weights(self, last: int) -> Codes:
        """Return a constant for each page number up to one."""
        if last >= self._rows.size:
            self._rows = self._constants(2 * last, self._seed + 1)
        return self._rows

    def _mixed(self, tokens: Tokens) -> Codes:
        """Return a number for each row of tokens."""
        sums: Codes = tokens.astype(np.uint64) @ self._columns
        sums ^= sums >> SHIFT
        sums *= FACTOR
        sums ^= sums >> SHIFT
        return sums

    def root(self, name: bytes) -> int:
        """Return the code of a root (see `Coder`)."""
        return int.from_bytes(sha256(name)[:8], "little")

    def chain(self, index: PrefixIndex, node: int, first: int, tokens: Tokens, media: dict[int, bytes]) -> Codes:
        """Return the codes of a chain (see `Coder`)."""
        mixed = self._mixed(tokens)
        for page, items in media.items():
            mixed[page] ^= np.uint64(int.from_bytes(sha256(items)[:8], "little"))
        mixed *= self._weights(first + mixed.size)[first : first + mixed.size]
        codes: Codes = np.add.accumulate(mixed)
        codes += index.code[node]
        return codes

    def heads(self, index: PrefixIndex, nodes: Int64Array, pages: Int64Array, tokens: Tokens) -> Codes:
        """Return the codes of single pages (see `Coder`)."""
        weights = self._weights(int(pages.max()) if pages.size else 0)[pages]
        codes: Codes = index.code[nodes] + self._mixed(tokens) * weights
        return codes


class KeyCoder:
    """Take the first 8 bytes of the keys of a hash function.

    Parameters
    ----------
    hash_function : callable
        Bytes to bytes, at least 8 of them.
    """

    def __init__(self, hash_function: Callable[[bytes], bytes]) -> None:
        self._hash = hash_function

    def root(self, name: bytes) -> int:
        """Return the code of a root (see `Coder`)."""
        return int.from_bytes(self._hash(name)[:8], "little")

    def chain(self, index: PrefixIndex, node: int, first: int, tokens: Tokens, media: dict[int, bytes]) -> Codes:
        """Return the codes of a chain (see `Coder`)."""
        key, digest, head = key_of(index, node, self._hash), self._hash, index.page_size.to_bytes(4, "little")
        width, tail = 4 * index.page_size, b"\x00\x00\x00\x00P"
        words, keys = tokens.astype("<u4", copy=False).tobytes(), []
        for page, at in enumerate(range(0, len(words), width)):
            items = media[page] + b"P" if page in media else tail
            key = digest(key + head + words[at : at + width] + items)
            keys.append(key[:8])
        return np.frombuffer(b"".join(keys), dtype="<u8").astype(np.uint64)

    def heads(self, index: PrefixIndex, nodes: Int64Array, pages: Int64Array, tokens: Tokens) -> Codes:
        """Return the codes of single pages (see `Coder`)."""
        none: dict[int, bytes] = {}
        parts = [self.chain(index, node, 0, tokens[at : at + 1], none) for at, node in enumerate(nodes.tolist())]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def key_of(index: PrefixIndex, node: int, digest: Callable[[bytes], bytes] = sha256) -> bytes:
    """Return the key of a page of the index, computed along its chain.

    Parameters
    ----------
    index : PrefixIndex
        The index.
    node : int
        A node.
    digest : callable
        Hash function.

    Returns
    -------
    bytes
    """
    chain = []
    while (name := index.root_name(node)) is None:
        chain.append(node)
        node = int(index.parent[node])
    key = digest(name)
    for page in reversed(chain):
        items = index.media.get(page)
        key = digest(page_message(key, index.tokens[page], *([] if items is None else [items])))
    return key
