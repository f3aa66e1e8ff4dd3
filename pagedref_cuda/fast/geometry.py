"""Shapes that a decode kernel is compiled for, and what follows from them: pieces of rows, bytes of shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from pagedref_cuda.fast.halves import BITS
from pagedref_cuda.fast.words import CacheWords

__all__ = ["CACHES", "DECODE_SIGNATURE", "FINISH_SIGNATURE", "Geometry"]

_CACHE = (CacheWords, ("uint32[::1]", "int64", "int64", "int64"))
CACHES = (
    *("uint32[::1]", _CACHE, _CACHE, _CACHE, _CACHE),
    *("int64[::1]", "int64[::1]", "int32", "int32", "int32"),
    *("float32", "float32", "float32[::1]", "float32[::1]"),
)
"""Argument types of what a step reads: queries; keys, values and the scales of both; pages; page size, group size and
query heads; factor, softcap, slopes and sinks in base 2."""
_RESULTS = ("uint32[::1]", "float32[::1]", "uint32[::1]", "float32[:, ::1]")
DECODE_SIGNATURE = ("int32[:, ::1]", *CACHES, *_RESULTS)
"""Argument types of a decode kernel: work, what it reads, output, lse, parts and their maxima and sums."""
FINISH_SIGNATURE = ("int32[:, ::1]", *CACHES, "uint8[::1]", "int64[::1]", *_RESULTS)
"""Argument types of the second kernel of a step: the same with the masks, flat, and where that of each row begins."""


@dataclass(frozen=True)
class Geometry:
    """What a decode kernel on tensor cores is compiled for.

    Parameters
    ----------
    head_dim, v_head_dim : int
        Multiples of 16 whose rows make whole pieces; see :meth:`fits`.
    heads : int
        Query heads of a unit, 8 or 16.
    kind, query : str
        Stored form of the cache; type of queries and output.
    warps, stages : int
        Warps of a block; tiles of 16 keys that a warp has room for.
    blocks : int
        Blocks that share a multiprocessor.
    """

    head_dim: int
    v_head_dim: int
    heads: int
    kind: str
    query: str
    warps: int
    stages: int
    blocks: int

    @staticmethod
    def fits(head_dim: int, kind: str) -> bool:
        """Tell whether rows make whole pieces of 4, 8 or 16 bytes for 4 lanes and for 8, and sums fit into registers.

        Parameters
        ----------
        head_dim : int
            Numbers of a row.
        kind : str
            Stored form.

        Returns
        -------
        bool
        """
        size = head_dim * BITS[kind] // 8
        return head_dim % 32 == 0 and size % 32 == 0 and head_dim <= 128

    def _piece(self, dim: int, lanes: int) -> int:
        """Return the bytes of a row that a lane loads at once, if `lanes` lanes stand side by side."""
        size = dim * BITS[self.kind] // 8
        return next(piece for piece in (16, 8, 4) if size % (lanes * piece) == 0)

    @property
    def k_words(self) -> int:
        """Words of a key that a lane loads at once."""
        return self._piece(self.head_dim, 4) // 4

    @property
    def k_pieces(self) -> int:
        """Loads of a key."""
        return self.head_dim * BITS[self.kind] // 8 // (16 * self.k_words)

    @property
    def k_each(self) -> int:
        """Numbers of a key that a lane loads at once."""
        return 32 * self.k_words // BITS[self.kind]

    @property
    def v_words(self) -> int:
        """Words of a value that a lane loads at once."""
        return self._piece(self.v_head_dim, 8) // 4

    @property
    def v_pieces(self) -> int:
        """Loads of a value."""
        return self.v_head_dim * BITS[self.kind] // 8 // (32 * self.v_words)

    @property
    def v_each(self) -> int:
        """Numbers of a value that a lane loads at once."""
        return 32 * self.v_words // BITS[self.kind]

    @property
    def stage_words(self) -> int:
        """Words of a tile: 16 keys, their values, 16 factors of either."""
        return 64 * self.k_pieces * self.k_words + 128 * self.v_pieces * self.v_words + 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return 4 * self.stage_words * self.stages * self.warps

    @property
    def name(self) -> str:
        """Name that tells the geometries apart."""
        dims = f"{self.head_dim}_{self.v_head_dim}_{self.heads}"
        return f"{dims}_{self.kind}_{self.query}_w{self.warps}s{self.stages}b{self.blocks}"
