"""What a cache hands out: the arrays of one step, and the report of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.cache_spec import CacheSpec
from pagedref.memory import MemoryStats

__all__ = ["MemoryReport", "Step", "make_step", "report"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Step:
    """The new tokens of some sequences, and where everything lies while they are computed.

    Attributes
    ----------
    seq_ids : tuple of int
        The sequences, in the order of all arrays.
    num_tokens : tuple of int
        New tokens of each.
    qo_indptr : array (num_seqs + 1,) of int32
        Where the new tokens of each sequence start.
    positions : array (tokens,) of int64
        Position of each new token in its sequence.
    slot_mapping : array (tokens,) of int64
        Slot of each new token.
    kv_indptr, kv_indices, kv_last_page_len : arrays of int32
        The pages of each sequence, the new tokens included.
    """

    seq_ids: tuple[int, ...]
    num_tokens: tuple[int, ...]
    qo_indptr: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    slot_mapping: npt.NDArray[np.int64]
    kv_indptr: Array
    kv_indices: Array
    kv_last_page_len: Array


@dataclass(frozen=True)
class MemoryReport:
    """Where the memory of a cache is.

    Attributes
    ----------
    num_frames, frames_held, frames_peak : int
        Size of the pool, frames in use now, and the most that were in use at once.
    page_size, num_sequences, num_tokens, num_pages : int
        Of the live sequences; a shared page counts once for each sequence that has it.
    bytes_per_token : int
        All layers, keys and values.
    bytes_held : int
        Bytes of the frames in use.
    bytes_wasted : int
        Bytes of slots in use that hold no token: the ends of last pages.
    bytes_contiguous : int or None
        What one contiguous region of the model's maximum length for each sequence would take.
    """

    num_frames: int
    frames_held: int
    frames_peak: int
    page_size: int
    num_sequences: int
    num_tokens: int
    num_pages: int
    bytes_per_token: int
    bytes_held: int
    bytes_wasted: int
    bytes_contiguous: int | None

    @property
    def waste(self) -> float:
        """Share of the held bytes that holds no token, 0 to 1."""
        return self.bytes_wasted / self.bytes_held if self.bytes_held else 0.0


def make_step(manager: Any, ids: Array, counts: Array, **group: str) -> Step:
    """Say where tokens go that a manager has reserved.

    Parameters
    ----------
    manager : KVManager or GroupedKVManager
        Tables and lengths.
    ids, counts : int arrays (num_seqs,)
        Sequences, and new tokens of each.
    **group
        Of a grouped manager, whose tables.

    Returns
    -------
    Step
    """
    csr = manager.csr(ids, extra=counts, **group)
    ends = np.cumsum(counts)
    first = np.repeat(manager.seq_lens(ids) - (ends - counts), counts)
    return Step(
        seq_ids=tuple(ids.tolist()),
        num_tokens=tuple(counts.tolist()),
        qo_indptr=np.concatenate([[0], ends]).astype(np.int32),
        positions=first + np.arange(first.size),
        slot_mapping=manager.slots(ids, counts, **group),
        kv_indptr=csr.kv_indptr,
        kv_indices=csr.kv_indices,
        kv_last_page_len=csr.kv_last_page_len,
    )


def report(stats: MemoryStats, spec: CacheSpec, peak: int, max_model_len: int | None) -> MemoryReport:
    """Put what the manager counts into bytes.

    Parameters
    ----------
    stats : MemoryStats
        Of the manager.
    spec : CacheSpec
        Geometry.
    peak : int
        The most frames that were in use at once.
    max_model_len : int, optional
        Maximum length of a sequence.

    Returns
    -------
    MemoryReport
    """
    return MemoryReport(
        num_frames=stats.num_frames,
        frames_held=stats.held,
        frames_peak=max(peak, stats.held),
        page_size=spec.page_size,
        num_sequences=stats.sequences,
        num_tokens=stats.tokens,
        num_pages=stats.pages,
        bytes_per_token=spec.bytes_per_token,
        bytes_held=stats.held * spec.bytes_per_frame,
        bytes_wasted=stats.internal_waste_tokens * spec.bytes_per_token,
        bytes_contiguous=None if max_model_len is None else stats.sequences * max_model_len * spec.bytes_per_token,
    )
