"""Checks of metadata on the device: what :mod:`pagedref.validate` and :mod:`pagedref.call` check on the host.

Each raises one flag; which rule was broken, and where, is found out on the host if it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref_cuda import _runtime
from pagedref_cuda._device import page_of
from pagedref_cuda._runtime import device_function, kernel
from pagedref_cuda.tiles import PAGES, RULES, Pages, Rules, visible

__all__ = ["Index", "check_batch_1", "check_rows_1", "check_slots_1", "index"]

Array = npt.NDArray[Any]


class Index(NamedTuple):
    """Indices of 32 or 64 bits: the one of two arrays that has elements.

    Attributes
    ----------
    narrow, wide : arrays (n,) of int32 and int64
        Indices.
    """

    narrow: Array
    wide: Array


INDEX = (Index, ("int32[:]", "int64[:]"))
"""Type of :class:`Index` in the signature of a kernel."""


def index(array: Any) -> Index:
    """Return indices as kernels see them.

    Parameters
    ----------
    array : array (n,) of int32 or int64
        On the host or on the device.

    Returns
    -------
    Index
    """
    lent = _runtime.readable(array)
    empty = _runtime.readable(np.empty(0, np.int32 if array.dtype == np.int64 else np.int64))
    return Index(empty, lent) if array.dtype == np.int64 else Index(lent, empty)


@device_function
def _entry(indices: Index, i: int) -> Any:
    return indices.wide[i] if indices.wide.shape[0] > 0 else np.int64(indices.narrow[i])


@device_function
def _bad_scales(scales: Array, frame: int) -> bool:
    """Tell whether a frame has a scale that is none (S17); one element stands for no scales of frames."""
    if scales.shape[0] == 1 and scales.shape[2] == 1 and scales[0, 0, 0, 0] == np.float32(1):
        return False
    for head in range(scales.shape[2]):
        scale = scales[frame, 0, head, 0]
        if not scale > np.float32(0) or scale - scale != np.float32(0):
            return True
    return False


@device_function
def _keys(kv_indptr: Index, kv_last_page_len: Index, sequence: int, page_size: int) -> int:
    """Return the number of keys of a sequence, whatever the metadata says."""
    num_pages = _entry(kv_indptr, sequence + 1) - _entry(kv_indptr, sequence)
    return (num_pages - 1) * page_size + _entry(kv_last_page_len, sequence) if num_pages > 0 else 0


@kernel(
    (
        *(INDEX, INDEX, INDEX, INDEX, PAGES, "int64", "int64", "int64"),
        *("float32[:, :, :, :]", "float32[:, :, :, :]", "int32[:]"),
    )
)
def check_batch_1(
    qo_indptr: Index,
    kv_indptr: Index,
    kv_indices: Index,
    kv_last_page_len: Index,
    wide: Pages,
    num_frames: int,
    num_tokens: int,
    masked: int,
    k_scale: Array,
    v_scale: Array,
    flag: Array,
) -> None:
    """Check pages and sequences of a batch (S20, S21), and widen them to 64 bits.

    Launch: a thread owns the page and the sequence of its number. Reads: both, all lengths before its own where there
    is a mask, scales of its frame. Writes: their entries of `wide`; the flag. Barriers: none. Rung: 1, the reference
    line by line.
    """
    item = cuda.grid(1)
    num_pages = wide.kv_indices.shape[0]
    num_seqs = wide.kv_lens.shape[0]
    if item >= max(num_pages, num_seqs, 1):
        return
    wrong = False
    if item < num_pages:
        frame = _entry(kv_indices, item)
        wide.kv_indices[item] = frame
        wrong = frame < -1 or frame >= num_frames
        if frame >= 0 and not wrong:
            wrong = _bad_scales(k_scale, frame) or _bad_scales(v_scale, frame)
    if item == 0:
        wide.qo_indptr[num_seqs] = num_tokens
        wide.kv_indptr[num_seqs] = num_pages
        if _entry(kv_indptr, num_seqs) != num_pages or _entry(qo_indptr, num_seqs) != num_tokens:
            wrong = True
        if _entry(kv_indptr, 0) != 0 or _entry(qo_indptr, 0) != 0:
            wrong = True
    if item < num_seqs:
        first_page = _entry(kv_indptr, item)
        first_row = _entry(qo_indptr, item)
        pages = _entry(kv_indptr, item + 1) - first_page
        last = _entry(kv_last_page_len, item)
        wide.kv_indptr[item] = first_page
        wide.qo_indptr[item] = first_row
        wide.kv_lens[item] = _keys(kv_indptr, kv_last_page_len, item, wide.page_size)
        if pages < 0 or last < 0 or last > wide.page_size or (last == 0) != (pages == 0):
            wrong = True
        if first_page < 0 or first_page > num_pages or first_row < 0 or first_row > num_tokens:
            wrong = True
        if _entry(qo_indptr, item + 1) < first_row:
            wrong = True
        if masked:
            pairs = np.int64(0)
            for before in range(item):
                rows = _entry(qo_indptr, before + 1) - _entry(qo_indptr, before)
                pairs += rows * _keys(kv_indptr, kv_last_page_len, before, wide.page_size)
            wide.first_pair[item] = pairs
            rows = _entry(qo_indptr, item + 1) - first_row
            if item == num_seqs - 1 and pairs + rows * wide.kv_lens[item] != wide.mask.shape[0]:
                wrong = True
    if wrong:
        cuda.atomic.max(flag, 0, 1)


@kernel((PAGES, RULES, "int64[:]", "int32[:]"))
def check_rows_1(pages: Pages, rules: Rules, owner: Array, flag: Array) -> None:
    """Find the sequence of each query row, and look for unmapped pages with a key that it sees (S21).

    Launch: a thread owns one row. Reads: the batch, as `check_batch_1` has widened it; nothing if that has raised the
    flag. Writes: its entry of `owner`; the flag. Barriers: none. Rung: 1, the reference line by line.
    """
    row = cuda.grid(1)
    if row >= owner.shape[0]:
        return
    if pages.flag[0] != 0:
        return
    low = 0
    high = pages.kv_lens.shape[0] - 1
    while low < high:  # the last sequence that begins at or before the row
        middle = (low + high + 1) // 2
        if pages.qo_indptr[middle] <= row:
            low = middle
        else:
            high = middle - 1
    owner[row] = low
    _, start, stop, first_pair = visible(low, row, pages, rules)
    first_page = pages.kv_indptr[low]
    key = start
    while key < stop:
        page = page_of(key, pages.page_size)
        unmapped = pages.kv_indices[first_page + page] < 0
        end = min((page + 1) * pages.page_size, stop)
        if unmapped:
            seen = pages.mask.shape[0] == 0
            for at in range(key, end):
                if pages.mask.shape[0] > 0 and pages.mask[first_pair + at] != 0:
                    seen = True
            if seen:
                cuda.atomic.max(flag, 0, 1)
        key = end


@kernel((INDEX, "int64[:]", "int64", "int64", "float32[:, :, :, :]", "float32[:, :, :, :]", "int32[:]"))
def check_slots_1(
    slot_mapping: Index, wide: Array, num_slots: int, page_size: int, k_scale: Array, v_scale: Array, flag: Array
) -> None:
    """Check the slots of a write (S22), and widen them to 64 bits.

    Launch: a thread owns one token. Reads: its slot and those before it, scales of its frame. Writes: its entry of
    `wide`; the flag. Barriers: none. Rung: 1, the reference line by line.
    """
    token = cuda.grid(1)
    if token >= wide.shape[0]:
        return
    slot = _entry(slot_mapping, token)
    wide[token] = slot
    wrong = slot < -1 or slot >= num_slots
    if slot >= 0 and not wrong:
        for before in range(token):
            if _entry(slot_mapping, before) == slot:
                wrong = True
        frame = page_of(slot, page_size)
        wrong = wrong or _bad_scales(k_scale, frame) or _bad_scales(v_scale, frame)
    if wrong:
        cuda.atomic.max(flag, 0, 1)
