"""The slots of the tokens of a batch, from either form of its pages, and back (S19, S22)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedref.addressing import frame_of_slot, last_page_len, num_pages, offset_of, offset_of_slot, page_of, slot_of
from pagedref.errors import ContractError, PageFault
from pagedref.ragged._integers import (
    Int64Array,
    checked_indptr,
    checked_page_size,
    concat_ranges,
    indptr_from_lens,
    int_array,
    narrowed,
)
from pagedref.ragged._tables import CSR, checked_csr

__all__ = ["csr_from_slot_mapping", "slot_mapping_from_block_table", "slot_mapping_from_csr"]


def slot_mapping_from_block_table(block_table: Any, rows: Any, positions: Any, page_size: int) -> Int64Array:
    """Return the slots of any tokens of a padded table (S19, S22).

    Parameters
    ----------
    block_table : integer array (num_seqs, max_pages)
        Frame of each page, -1 for unmapped.
    rows : integer array (tokens,)
        Row of the table that each token belongs to.
    positions : integer array (tokens,)
        Position of each token in its sequence; -1 marks a token to skip.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    int64 array (tokens,)
        Slots; -1 for the skipped ones.

    Raises
    ------
    ContractError
        Shapes that differ, or a row or position outside the table.
    PageFault
        A position in an unmapped page.

    Examples
    --------
    >>> slot_mapping_from_block_table([[3, 8], [2, -1]], [0, 0, 1, 1], [3, 4, 1, -1], 4).tolist()
    [15, 32, 9, -1]
    """
    function = "slot_mapping_from_block_table"
    size = checked_page_size(function, page_size)
    table = int_array(function, "block_table", block_table, ndim=2)
    num_seqs, max_pages = table.shape
    position = int_array(function, "positions", positions, low=-1, high=max_pages * size - 1)
    row = int_array(function, "rows", rows, low=0, high=num_seqs - 1)
    if row.size != position.size:
        raise ContractError(f"{function}: rows has the wrong length, got {row.size}, need {position.size}")
    live = position >= 0
    slots = np.full(position.size, -1, dtype=np.int64)
    row, position = row[live], position[live]
    slots[live] = _slots(function, table[row, page_of(position, size)], row, position, size)
    return slots


def slot_mapping_from_csr(
    kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, page_size: int, *, qo_indptr: Any = None
) -> Int64Array:
    """Return the slots of the last tokens of every sequence: those a step appends (S3, S19).

    Parameters
    ----------
    kv_indptr, kv_indices, kv_last_page_len : integer arrays
        The batch in CSR form, the appended tokens included.
    page_size : int
        Slots in a page, >= 1.
    qo_indptr : integer array (num_seqs + 1,), optional
        How many of the last tokens of each sequence are meant; by default all of them.

    Returns
    -------
    int64 array (qo_indptr[-1],)
        Sequence after sequence, in order of position.

    Raises
    ------
    ContractError
        The arrays do not fit each other, or a sequence has fewer tokens than asked for.
    PageFault
        A token in a hole.

    Examples
    --------
    >>> slot_mapping_from_csr([0, 2, 3], [3, 8, 2], [1, 4], 4, qo_indptr=[0, 2, 3]).tolist()
    [15, 32, 11]
    """
    function = "slot_mapping_from_csr"
    indptr, frames, lens = checked_csr(function, kv_indptr, kv_indices, kv_last_page_len, page_size)
    counts = lens if qo_indptr is None else np.diff(checked_indptr(function, "qo_indptr", qo_indptr))
    if counts.size != lens.size:
        raise ContractError(f"{function}: qo_indptr has the wrong length, got {counts.size + 1}, need {lens.size + 1}")
    short = np.flatnonzero(counts > lens)
    if short.size:
        row = int(short[0])
        raise ContractError(
            f"{function}: qo_indptr asks too much of sequence {row}, got {counts[row]}, need at most {lens[row]}"
        )
    rows = np.repeat(np.arange(lens.size), counts)  # (tokens,)
    positions = concat_ranges(lens - counts, counts)  # (tokens,)
    pages = page_of(positions, page_size)
    return _slots(function, frames[indptr[rows] + pages], rows, positions, page_size)


def _slots(function: str, frames: Any, rows: Any, positions: Any, page_size: int) -> Int64Array:
    """Return the slots of positions whose frames were looked up; a hole is a fault."""
    holes = np.flatnonzero(frames < 0)
    if holes.size:
        at = int(holes[0])
        raise PageFault(
            f"{function}: position {int(positions[at])} of sequence {int(rows[at])} is in an unmapped page, "
            f"got frame {int(frames[at])}, need a frame >= 0"
        )
    slots: Int64Array = slot_of(frames, offset_of(positions, page_size), page_size)
    return slots


def csr_from_slot_mapping(slot_mapping: Any, indptr: Any, page_size: int) -> CSR:
    """Return the CSR of sequences whose every token's slot is known, from position 0 on (S19, S20).

    Parameters
    ----------
    slot_mapping : integer array (tokens,)
        Slots, sequence after sequence; none is skipped.
    indptr : integer array (num_seqs + 1,)
        Where the tokens of each sequence start and end.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    CSR

    Raises
    ------
    ContractError
        The slots are not those of whole pages filled from offset 0 on.

    Examples
    --------
    >>> csr = csr_from_slot_mapping([12, 13, 14, 15, 32], [0, 5], 4)
    >>> csr.kv_indices.tolist(), csr.kv_last_page_len.tolist()
    ([3, 8], [1])
    """
    function = "csr_from_slot_mapping"
    size = checked_page_size(function, page_size)
    starts = checked_indptr(function, "indptr", indptr)
    slots = int_array(function, "slot_mapping", slot_mapping, low=0).astype(np.int64)
    if slots.size != starts[-1]:
        raise ContractError(f"{function}: slot_mapping has the wrong length, got {slots.size}, need {starts[-1]}")
    lens = np.diff(starts)
    positions = concat_ranges(np.zeros_like(lens), lens)
    offsets = offset_of(positions, size)
    first = np.arange(slots.size) - offsets  # the token at offset 0 of the same page
    frames = frame_of_slot(slots, size)
    wrong = np.flatnonzero((offset_of_slot(slots, size) != offsets) | (frames != frames[first]))
    if wrong.size:
        at = int(wrong[0])
        expected = int(slot_of(frames[first[at]], offsets[at], size))
        raise ContractError(f"{function}: slot_mapping breaks a page at token {at}, got {slots[at]}, need {expected}")
    kv_indices = narrowed(function, "frame", frames[offsets == 0])
    return CSR(indptr_from_lens(num_pages(lens, size)), kv_indices, last_page_len(lens, size).astype(np.int32))
