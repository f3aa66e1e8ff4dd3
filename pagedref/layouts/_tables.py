"""Page tables of other systems: padded tables, those of JAX, and pages of a kernel inside pages of an allocator."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.ragged import CSR, block_table_from_csr, csr_from_block_table, int_array, seq_lens

Int32Array = npt.NDArray[np.int32]


class RaggedJax(NamedTuple):
    """The metadata of JAX ragged paged attention.

    Attributes
    ----------
    kv_lens : int32 array (max_num_seqs,)
        Keys of each sequence, 0 behind the last one.
    page_indices : int32 array (max_num_seqs, pages_per_seq)
        Frame of each page, padded.
    cu_q_lens : int32 array (max_num_seqs + 1,)
        Where the queries of each sequence start.
    num_seqs : int32 array (1,)
        Sequences that are meant.
    """

    kv_lens: Int32Array
    page_indices: Int32Array
    cu_q_lens: Int32Array
    num_seqs: Int32Array


def padded_table_from_csr(
    kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, page_size: int, *, padding: int = 0, min_width: int = 1
) -> tuple[Int32Array, Int32Array]:
    """Return ``block_table`` and ``cache_seqlens``: flash-attention, vLLM (S19, S20).

    Parameters
    ----------
    kv_indptr, kv_indices, kv_last_page_len : integer arrays
        The batch in CSR form.
    page_size : int
        Slots in a page, >= 1.
    padding : int
        What stands behind the last page and for an unmapped one: 0 as in vLLM, whose frame 0 belongs to nobody, or -1.
    min_width : int
        Columns at least; kernels that read the first entry need one.

    Returns
    -------
    block_table : int32 array (num_seqs, max_pages)
        A copy.
    cache_seqlens : int32 array (num_seqs,)
        Keys of each sequence.

    Raises
    ------
    ContractError
        The CSR is not sound.

    Examples
    --------
    >>> table, lens = padded_table_from_csr([0, 2, 3], [7, 4, 9], [1, 3], 4)
    >>> table.tolist(), lens.tolist()
    ([[7, 4], [9, 0]], [5, 3])
    """
    lens = seq_lens(kv_indptr, kv_last_page_len, page_size)
    table = block_table_from_csr(kv_indptr, kv_indices)
    wide = np.full((table.shape[0], max(table.shape[1], min_width)), padding, np.int32)
    wide[:, : table.shape[1]] = np.where(table < 0, padding, table)
    return wide, lens.astype(np.int32)


def csr_from_padded_table(block_table: Any, cache_seqlens: Any, page_size: int) -> CSR:
    """Return the CSR of ``block_table`` and ``cache_seqlens``, whatever stands behind the last pages (S19, S20).

    Parameters
    ----------
    block_table : integer array (num_seqs, max_pages)
        Frame of each page; entries behind the last page are not read.
    cache_seqlens : integer array (num_seqs,)
        Keys of each sequence, the new ones included.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    CSR
        A copy.

    Raises
    ------
    ContractError
        A row is too short for its length.

    Examples
    --------
    >>> csr_from_padded_table(np.array([[7, 4], [9, 0]]), [5, 3], 4).kv_indices.tolist()
    [7, 4, 9]
    """
    lens = int_array("csr_from_padded_table", "cache_seqlens", cache_seqlens, low=0)
    table = int_array("csr_from_padded_table", "block_table", block_table, ndim=2)
    pages = -(-lens.astype(np.int64) // max(int(page_size), 1))
    live = np.arange(table.shape[1]) < pages[:, None] if len(table) == len(lens) else np.ones(table.shape, bool)
    return csr_from_block_table(np.where(live, table, -1), lens, page_size)


def ragged_jax_from_csr(
    qo_indptr: Any,
    kv_indptr: Any,
    kv_indices: Any,
    kv_last_page_len: Any,
    page_size: int,
    *,
    padding: int = 0,
    max_num_seqs: int | None = None,
) -> RaggedJax:
    """Return the metadata of JAX ragged paged attention (S3, S19, S20).

    Parameters
    ----------
    qo_indptr : integer array (num_seqs + 1,)
        Queries of each sequence.
    kv_indptr, kv_indices, kv_last_page_len : integer arrays
        The batch in CSR form.
    page_size : int
        Slots in a page, >= 1.
    padding : int
        What stands behind the last page and in rows of nobody.
    max_num_seqs : int, optional
        Rows of the tables; by default those of the batch, at least 1.

    Returns
    -------
    RaggedJax
        Copies.

    Raises
    ------
    ContractError
        The CSR is not sound, or there are more sequences than rows.

    Examples
    --------
    >>> ragged = ragged_jax_from_csr([0, 1, 4], [0, 2, 3], [7, 4, 9], [1, 3], 4, max_num_seqs=3)
    >>> ragged.kv_lens.tolist(), ragged.page_indices.tolist(), ragged.cu_q_lens.tolist(), ragged.num_seqs.tolist()
    ([5, 3, 0], [[7, 4], [9, 0], [0, 0]], [0, 1, 4, 4], [2])
    """
    starts = int_array("ragged_jax_from_csr", "qo_indptr", qo_indptr, low=0).astype(np.int32)
    table, lens = padded_table_from_csr(kv_indptr, kv_indices, kv_last_page_len, page_size, padding=padding)
    if len(starts) != len(lens) + 1:
        validate.fail("ragged_jax_from_csr", "qo_indptr", "has the wrong length", len(starts), str(len(lens) + 1))
    rows = max(len(lens), 1) if max_num_seqs is None else int(max_num_seqs)
    if rows < len(lens):
        validate.fail("ragged_jax_from_csr", "max_num_seqs", "is too small", rows, f"at least {len(lens)}")
    behind = rows - len(lens)
    return RaggedJax(
        np.pad(lens, (0, behind)),
        np.pad(table, ((0, behind), (0, 0)), constant_values=padding),
        np.pad(starts, (0, behind), mode="edge"),
        np.array([len(lens)], np.int32),
    )


def csr_from_ragged_jax(ragged: RaggedJax, page_size: int) -> tuple[Int32Array, CSR]:
    """Return qo_indptr and CSR of the metadata of JAX ragged paged attention (S19, S20).

    Parameters
    ----------
    ragged : RaggedJax
        Any four arrays in this order.
    page_size : int
        Slots in a page, >= 1.

    Returns
    -------
    qo_indptr : int32 array (num_seqs + 1,)
        Queries of each sequence.
    csr : CSR
        Pages of each sequence. Copies.

    Raises
    ------
    ContractError
        A row is too short for its length.

    Examples
    --------
    >>> ragged = RaggedJax(*map(np.array, ([5, 3, 0], [[7, 4], [9, 0], [0, 0]], [0, 1, 4, 4], [2])))
    >>> qo_indptr, csr = csr_from_ragged_jax(ragged, 4)
    >>> qo_indptr.tolist(), csr.kv_indices.tolist()
    ([0, 1, 4], [7, 4, 9])
    """
    kv_lens, pages, starts, number = (np.asarray(part) for part in ragged)
    count = int(number.reshape(-1)[0])
    return starts[: count + 1].astype(np.int32), csr_from_padded_table(pages[:count], kv_lens[:count], page_size)


def kernel_pages_from_pages(frames: Any, ratio: int) -> npt.NDArray[np.int64]:
    """Return the frames of a kernel whose pages are smaller than those of the allocator (vLLM).

    Parameters
    ----------
    frames : integer array (n,)
        Frames of the allocator, -1 = unmapped.
    ratio : int
        Pages of the kernel in one of the allocator, >= 1.

    Returns
    -------
    int64 array (n * ratio,)
        ``frame * ratio + 0 .. ratio - 1``; -1 stays -1. Slots are the same in both.

    Raises
    ------
    ContractError
        Not integers, or a ratio below 1.

    Examples
    --------
    >>> kernel_pages_from_pages([5, -1], 2).tolist()
    [10, 11, -1, -1]
    """
    wide = int_array("kernel_pages_from_pages", "frames", frames, low=-1).astype(np.int64)
    times = _ratio("kernel_pages_from_pages", ratio)
    small = wide[:, None] * times + np.arange(times)
    return np.asarray(np.where(wide[:, None] < 0, -1, small).reshape(-1))


def pages_from_kernel_pages(frames: Any, ratio: int) -> npt.NDArray[np.int64]:
    """Return the frames of the allocator that hold runs of small pages of a kernel.

    Parameters
    ----------
    frames : integer array (n * ratio,)
        Runs of `ratio` neighbours, the first a multiple of it; or of -1.
    ratio : int
        Pages of the kernel in one of the allocator, >= 1.

    Returns
    -------
    int64 array (n,)

    Raises
    ------
    ContractError
        The entries are no such runs.

    Examples
    --------
    >>> pages_from_kernel_pages([10, 11, -1, -1], 2).tolist()
    [5, -1]
    """
    wide = int_array("pages_from_kernel_pages", "frames", frames, low=-1).astype(np.int64)
    times = _ratio("pages_from_kernel_pages", ratio)
    first = wide[::times]
    large = np.where(first < 0, -1, first // times)
    if len(wide) % times or not np.array_equal(kernel_pages_from_pages(large, times), wide):
        need = f"runs of {times} neighbours, the first a multiple of {times}"
        validate.fail("pages_from_kernel_pages", "frames", "are no whole pages", wide.tolist(), need)
    return large


def _ratio(function: str, ratio: object) -> int:
    if isinstance(ratio, bool) or not isinstance(ratio, int | np.integer) or ratio < 1:
        validate.fail(function, "ratio", "is wrong", repr(ratio), "an integer >= 1")
    return int(ratio)
