"""The compressed rows of a batch, and the padded table: one into the other, and into lengths (S20, S21)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.addressing import kv_len, last_page_len, num_pages
from pagedref.errors import ContractError
from pagedref.ragged._integers import (
    INT32_MAX,
    Int32Array,
    Int64Array,
    checked_indptr,
    checked_page_size,
    indptr_from_lens,
    int_array,
)

__all__ = ["CSR", "block_table_from_csr", "csr_from_block_table", "seq_lens"]


class CSR(NamedTuple):
    """The pages of a batch in compressed rows (S20).

    Attributes
    ----------
    kv_indptr : int32 array (num_seqs + 1,)
        Where the pages of each sequence start and end; starts with 0, never falls.
    kv_indices : int32 array (num_pages,)
        Frames, sequence after sequence, in page order; -1 is a hole (S21).
    kv_last_page_len : int32 array (num_seqs,)
        Tokens in the last page, in ``[1, page_size]``; 0 iff the sequence has no page.
    """

    kv_indptr: Int32Array
    kv_indices: Int32Array
    kv_last_page_len: Int32Array


def checked_csr(
    function: str, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, page_size: Any
) -> tuple[Int64Array, npt.NDArray[Any], Int64Array]:
    """Return (indptr, frames, length of each sequence) of a CSR whose parts agree with each other (S20)."""
    size = checked_page_size(function, page_size)
    indptr = checked_indptr(function, "kv_indptr", kv_indptr)
    lens = seq_lens(indptr, kv_last_page_len, size)
    frames = int_array(function, "kv_indices", kv_indices, low=-1)
    if frames.size != indptr[-1]:
        raise ContractError(f"{function}: kv_indices has the wrong length, got {frames.size}, need {indptr[-1]}")
    return indptr, frames, lens


def seq_lens(kv_indptr: Any, kv_last_page_len: Any, page_size: int) -> Int64Array:
    """Return the length of every sequence of a CSR (S20).

    Parameters
    ----------
    kv_indptr : integer array (num_seqs + 1,)
        Starts with 0, never falls.
    kv_last_page_len : integer array (num_seqs,)
        In ``[1, page_size]``, and 0 exactly where the sequence has no page.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    int64 array (num_seqs,)
        Tokens.

    Raises
    ------
    ContractError
        The arrays do not fit each other, or a last page is empty or overfull.

    Examples
    --------
    >>> seq_lens([0, 7, 7, 8], [4, 0, 16], 16).tolist()
    [100, 0, 16]
    """
    size = checked_page_size("seq_lens", page_size)
    pages = np.diff(checked_indptr("seq_lens", "kv_indptr", kv_indptr))
    last = int_array("seq_lens", "kv_last_page_len", kv_last_page_len)
    if last.size != pages.size:
        raise ContractError(f"seq_lens: kv_last_page_len has the wrong length, got {last.size}, need {pages.size}")
    wrong = np.flatnonzero((last > size) | (last < 0) | ((last == 0) != (pages == 0)))
    if wrong.size:
        row = int(wrong[0])
        need = f"1 to {size}" if pages[row] else "0 (no page)"
        raise ContractError(
            f"seq_lens: kv_last_page_len of sequence {row} is out of range, got {int(last[row])}, need {need}"
        )
    lens: Int64Array = kv_len(pages, last, size)
    return lens


def csr_from_block_table(block_table: Any, seq_lens: Any, page_size: int) -> CSR:
    """Return the CSR of a padded table (S20, S21).

    Parameters
    ----------
    block_table : integer array (num_seqs, max_pages)
        Frame of each page; -1 is a hole; what stands beyond the last page of a row is padding and never looked at.
    seq_lens : integer array (num_seqs,)
        Tokens of each sequence, in ``[0, max_pages * page_size]``.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    CSR

    Raises
    ------
    ContractError
        Shapes that differ, a length beyond the table, a frame below -1 within a row.

    Examples
    --------
    >>> csr = csr_from_block_table([[3, 8, 5], [2, -1, -1]], [9, 4], 4)
    >>> csr.kv_indptr.tolist(), csr.kv_indices.tolist(), csr.kv_last_page_len.tolist()
    ([0, 3, 4], [3, 8, 5, 2], [1, 4])
    """
    function = "csr_from_block_table"
    size = checked_page_size(function, page_size)
    table = int_array(function, "block_table", block_table, ndim=2)
    num_seqs, max_pages = table.shape
    lens = int_array(function, "seq_lens", seq_lens, low=0, high=max_pages * size)
    if lens.size != num_seqs:
        raise ContractError(f"{function}: seq_lens has the wrong length, got {lens.size}, need {num_seqs}")
    pages = num_pages(lens, size)
    mapped = np.arange(max_pages) < pages[:, None]  # (num_seqs, max_pages)
    frames = int_array(function, "block_table", table[mapped], low=-1, high=INT32_MAX)
    return CSR(indptr_from_lens(pages), frames.astype(np.int32), last_page_len(lens, size).astype(np.int32))


def block_table_from_csr(kv_indptr: Any, kv_indices: Any, *, max_pages: int | None = None) -> Int32Array:
    """Return the padded table of a CSR (S21); `seq_lens` gives the lengths that belong beside it.

    Parameters
    ----------
    kv_indptr : integer array (num_seqs + 1,)
        Starts with 0, never falls.
    kv_indices : integer array (num_pages,)
        Frames, -1 for a hole.
    max_pages : int, optional
        Width of the table, at least the longest row; by default exactly that.

    Returns
    -------
    int32 array (num_seqs, max_pages)
        Padded with -1.

    Raises
    ------
    ContractError
        The arrays do not fit each other, or a row is longer than `max_pages`.

    Examples
    --------
    >>> block_table_from_csr([0, 3, 3, 4], [3, 8, 5, 2]).tolist()
    [[3, 8, 5], [-1, -1, -1], [2, -1, -1]]
    """
    function = "block_table_from_csr"
    indptr = checked_indptr(function, "kv_indptr", kv_indptr)
    frames = int_array(function, "kv_indices", kv_indices, low=-1, high=INT32_MAX)
    if frames.size != indptr[-1]:
        raise ContractError(f"{function}: kv_indices has the wrong length, got {frames.size}, need {indptr[-1]}")
    pages = np.diff(indptr)
    longest = int(pages.max()) if pages.size else 0
    width = longest if max_pages is None else int(max_pages)
    if width < longest:
        raise ContractError(f"{function}: max_pages is too small, got {width}, need at least {longest}")
    table = np.full((pages.size, width), -1, dtype=np.int32)
    table[np.arange(width) < pages[:, None]] = frames  # rows of the mask are filled in page order
    return table
