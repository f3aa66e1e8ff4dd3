"""Which kernel serves a call and how it is launched: one table for each architecture, as data.

Nothing is taken from the batch: two calls of one geometry get one kernel and one split, so that neighbours change no
bit of a sequence (L2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["TABLE", "Architecture", "Launch", "architecture"]


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched.

    Attributes
    ----------
    warps : int
        Warps of a block.
    stages : int
        Tiles that are in shared memory or on their way there.
    blocks : int
        Blocks that share a multiprocessor at least: the compiler is held to the registers that this leaves, the tests
        hold shared memory to it.
    split : int
        Keys of a unit of work (decode), of a tile (prefill).
    """

    warps: int
    stages: int
    blocks: int
    split: int


@dataclass(frozen=True)
class Architecture:
    """A multiprocessor, and the launches of the kernels on it.

    Attributes
    ----------
    compute_capability : pair of int
        From which on this entry holds.
    registers, shared_bytes : int
        Of a multiprocessor; a block pays 1 KiB of shared memory extra.
    launches : mapping of str to Launch
        By kernel: ``decode_warp`` is rung 2, ``decode_async`` rung 3 (``_wide``: four heads a warp), ``decode_mma``
        rung 4 (``_wide``: 16 heads), each with the split of rung 5; ``prefill_mma`` the tiles of prefill.
    """

    compute_capability: tuple[int, int]
    registers: int
    shared_bytes: int
    launches: Mapping[str, Launch]

    def registers_of(self, launch: Launch) -> int:
        """Return the registers that a thread may have, so that the blocks of the table fit.

        Parameters
        ----------
        launch : Launch
            One of `launches`.

        Returns
        -------
        int
            A multiple of 8, at most 255.
        """
        return min(255, self.registers // (32 * launch.warps * launch.blocks) // 8 * 8)

    def holds(self, launch: Launch, shared_bytes: int) -> bool:
        """Tell whether the blocks of the table fit by their shared memory.

        Parameters
        ----------
        launch : Launch
            One of `launches`.
        shared_bytes : int
            Of a block.

        Returns
        -------
        bool
        """
        return launch.blocks * (shared_bytes + 1024) <= self.shared_bytes


def _launches(**rows: tuple[int, int, int, int]) -> Mapping[str, Launch]:
    return MappingProxyType({name: Launch(*row) for name, row in rows.items()})


_HOPPER = _launches(  # warps, stages, blocks, split
    decode_warp=(4, 1, 3, 512),
    decode_async=(4, 3, 3, 512),
    decode_async_wide=(4, 6, 3, 512),
    decode_mma=(4, 3, 2, 512),
    decode_mma_wide=(4, 3, 2, 512),
    prefill_mma=(4, 2, 2, 32),
)
# Narrow tiles leave fewer numbers for that compiler to keep in local memory.
_BLACKWELL = MappingProxyType({**_HOPPER, "prefill_mma": Launch(4, 2, 2, 16)})
# sm_80 has no uniform registers for addresses: a thread needs more of its own.
_AMPERE = MappingProxyType(
    {
        **_HOPPER,
        **_launches(
            decode_warp=(4, 1, 2, 512),
            decode_async=(4, 3, 2, 512),
            decode_async_wide=(4, 6, 2, 512),
            decode_mma=(2, 3, 3, 512),
            decode_mma_wide=(2, 3, 3, 512),
        ),
    }
)

TABLE = (
    Architecture((8, 0), 65536, 164 * 1024, _AMPERE),
    Architecture((9, 0), 65536, 228 * 1024, _HOPPER),
    Architecture((10, 0), 65536, 228 * 1024, _BLACKWELL),
)
"""sm_80, sm_90, sm_100; oldest first. A newer device takes the newest entry that it has reached."""


def architecture(compute_capability: tuple[int, int]) -> Architecture | None:
    """Return the entry of the table for a device.

    Parameters
    ----------
    compute_capability : pair of int
        Such as (9, 0).

    Returns
    -------
    Architecture or None
        None for a device that is older than the table.

    Examples
    --------
    >>> architecture((8, 9)).compute_capability, architecture((7, 5))
    ((8, 0), None)
    """
    reached = [row for row in TABLE if row.compute_capability <= compute_capability]
    return reached[-1] if reached else None
