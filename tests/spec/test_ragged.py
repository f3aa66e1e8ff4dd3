"""CSR, block_table with seq_lens, and slot_mapping, one into the other (S19-S22)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError, PageFault
from pagedref.ragged import (
    CSR,
    block_table_from_csr,
    concat_ranges,
    csr_from_block_table,
    csr_from_slot_mapping,
    indptr_from_lens,
    int_array,
    rows_from_indptr,
    seq_lens,
    slot_mapping_from_block_table,
    slot_mapping_from_csr,
)


@st.composite
def batches(draw: Any) -> tuple[list[list[int]], list[int], int]:
    """Draw frames of each sequence (each frame used once), lengths, page_size."""
    page_size = draw(st.integers(1, 5))
    lens = draw(st.lists(st.integers(0, 3 * page_size), max_size=5))
    frames = draw(st.permutations(range(20)))
    rows = []
    for length in lens:
        pages = -(-length // page_size)
        rows.append([int(frame) for frame in frames[:pages]])
        frames = frames[pages:]
    return rows, lens, page_size


def csr_of(rows: list[list[int]], lens: list[int], page_size: int) -> CSR:
    """Build the CSR the slow way."""
    indptr = [0]
    for row in rows:
        indptr.append(indptr[-1] + len(row))
    last = [length - (len(row) - 1) * page_size if row else 0 for row, length in zip(rows, lens)]
    frames = [frame for row in rows for frame in row]
    return CSR(*(np.array(part, dtype=np.int32) for part in (indptr, frames, last)))


def same(left: CSR, right: CSR) -> bool:
    return all(a.dtype == b.dtype == np.int32 and np.array_equal(a, b) for a, b in zip(left, right))


@given(batches())
def test_csr_and_block_table_are_inverse(batch: tuple[list[list[int]], list[int], int]) -> None:
    rows, lens, page_size = batch
    csr = csr_of(rows, lens, page_size)
    table = block_table_from_csr(csr.kv_indptr, csr.kv_indices)
    assert table.dtype == np.int32
    assert [row[row >= 0].tolist() for row in table] == rows
    assert table.shape == (len(rows), max(map(len, rows), default=0))
    assert seq_lens(csr.kv_indptr, csr.kv_last_page_len, page_size).tolist() == lens
    assert same(csr_from_block_table(table, lens, page_size), csr)
    wide = block_table_from_csr(csr.kv_indptr, csr.kv_indices, max_pages=7)
    wide[wide < 0] = 19  # a reserved frame as padding is accepted: padding is never read (S21)
    assert same(csr_from_block_table(wide, lens, page_size), csr)


@given(batches())
def test_slots_and_back(batch: tuple[list[list[int]], list[int], int]) -> None:
    rows, lens, page_size = batch
    expected = [rows[i][p // page_size] * page_size + p % page_size for i in range(len(lens)) for p in range(lens[i])]
    csr = csr_of(rows, lens, page_size)
    slots = slot_mapping_from_csr(*csr, page_size)
    assert slots.dtype == np.int64
    assert slots.tolist() == expected
    indptr = indptr_from_lens(lens)
    table = block_table_from_csr(csr.kv_indptr, csr.kv_indices)
    positions = concat_ranges([0] * len(lens), lens)
    assert slot_mapping_from_block_table(table, rows_from_indptr(indptr), positions, page_size).tolist() == expected
    assert same(csr_from_slot_mapping(slots, indptr, page_size), csr)


@given(batches(), st.data())
def test_slots_of_the_last_tokens(batch: tuple[list[list[int]], list[int], int], data: Any) -> None:
    rows, lens, page_size = batch
    counts = [data.draw(st.integers(0, length)) for length in lens]
    csr = csr_of(rows, lens, page_size)
    everything = slot_mapping_from_csr(*csr, page_size).tolist()
    expected, start = [], 0
    for length, count in zip(lens, counts):
        expected += everything[start + length - count : start + length]
        start += length
    assert slot_mapping_from_csr(*csr, page_size, qo_indptr=indptr_from_lens(counts)).tolist() == expected


@given(st.lists(st.tuples(st.integers(-5, 50), st.integers(0, 6)), max_size=8))
def test_concat_ranges(ranges: list[tuple[int, int]]) -> None:
    expected = [start + i for start, count in ranges for i in range(count)]
    assert concat_ranges([r[0] for r in ranges], [r[1] for r in ranges]).tolist() == expected


def test_no_argument_is_modified() -> None:
    table, lens = np.array([[3, 8, -1], [2, 5, 6]], dtype=np.int32), np.array([5, 12], dtype=np.int32)
    for array in (table, lens):
        array.flags.writeable = False
    csr = csr_from_block_table(table, lens, 4)
    for part in csr:
        part.flags.writeable = False
    block_table_from_csr(csr.kv_indptr, csr.kv_indices)
    slot_mapping_from_csr(*csr, 4)
    assert seq_lens(csr.kv_indptr, csr.kv_last_page_len, 4).tolist() == [5, 12]


def test_slots_are_64_bits_wide_from_an_int32_table() -> None:
    """P01: frame * page_size leaves 32 bits."""
    table = np.array([[2**31 - 1]], dtype=np.int32)
    slots = slot_mapping_from_block_table(table, np.zeros(1, np.int32), np.array([15], np.int32), 16)
    assert slots.tolist() == [(2**31 - 1) * 16 + 15]
    assert slot_mapping_from_csr([0, 1], table[0], [16], 16)[-1] == slots[0]


def test_skipped_tokens_keep_their_mark() -> None:
    """P36, S22: -1 stays -1; floor arithmetic would name the last slot of the frame before."""
    slots = slot_mapping_from_block_table([[1, 0], [2, 3]], [0, 0, 1], [-1, 5, -1], 4)
    assert slots.tolist() == [-1, 1, -1]
    assert slot_mapping_from_block_table(np.zeros((0, 0), np.int32), [], [], 4).tolist() == []


def test_holes_pass_through_and_fault_when_they_are_addressed() -> None:
    csr = csr_from_block_table([[-1, 8, 5]], [10], 4)
    assert csr.kv_indices.tolist() == [-1, 8, 5]
    assert slot_mapping_from_csr(*csr, 4, qo_indptr=[0, 6]).tolist() == [32, 33, 34, 35, 20, 21]
    with pytest.raises(PageFault, match="position 3 of sequence 0 is in an unmapped page"):
        slot_mapping_from_csr(*csr, 4, qo_indptr=[0, 7])
    with pytest.raises(PageFault, match="position 2 of sequence 0"):
        slot_mapping_from_block_table([[-1, 8]], [0, 0], [4, 2], 4)


def test_p15_lengths() -> None:
    csr = csr_from_block_table(np.arange(24).reshape(3, 8), [100, 32, 0], 16)
    assert csr.kv_last_page_len.tolist() == [4, 16, 0]
    assert np.diff(csr.kv_indptr).tolist() == [7, 2, 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: seq_lens([0, 1], [17], 16), "kv_last_page_len of sequence 0 is out of range, got 17, need 1 to 16"),
        (lambda: seq_lens([0, 1, 1], [3, 2], 16), "sequence 1 is out of range, got 2, need 0"),
        (lambda: seq_lens([0, 1], [0], 16), "got 0, need 1 to 16"),
        (lambda: seq_lens([0, 1], [-1], 16), "got -1"),
        (lambda: seq_lens([0, 1], [1, 1], 16), "wrong length, got 2, need 1"),
        (lambda: seq_lens([0, 2, 1], [1, 1], 16), "kv_indptr falls after entry 1, got 1, need at least 2"),
        (lambda: seq_lens([1, 2], [1], 16), "kv_indptr starts wrongly"),
        (lambda: seq_lens([], [], 16), "kv_indptr starts wrongly"),
        (lambda: seq_lens([0, 1], [1], 0), "page_size is wrong, got 0"),
        (lambda: seq_lens([0, 1], [1], True), "page_size is wrong, got True"),
        (lambda: seq_lens([0.0, 1.0], [1], 4), "kv_indptr has the wrong dtype, got float64"),
        (lambda: csr_from_block_table([[1]], [5], 4), "seq_lens is out of range, got 5, need at most 4"),
        (lambda: csr_from_block_table([[1]], [-1], 4), "seq_lens is out of range, got -1"),
        (lambda: csr_from_block_table([[1]], [1, 1], 4), "seq_lens has the wrong length, got 2, need 1"),
        (lambda: csr_from_block_table([[-2]], [4], 4), "block_table is out of range, got -2, need at least -1"),
        (lambda: csr_from_block_table([1], [4], 4), "block_table has the wrong shape, got \\(1,\\), need 2 axes"),
        (lambda: block_table_from_csr([0, 2], [1, 2], max_pages=1), "max_pages is too small, got 1, need at least 2"),
        (lambda: block_table_from_csr([0, 2], [1]), "kv_indices has the wrong length, got 1, need 2"),
        (lambda: slot_mapping_from_csr([0, 1], [3], [2], 4, qo_indptr=[0, 3]), "sequence 0, got 3, need at most 2"),
        (lambda: slot_mapping_from_csr([0, 1], [3], [2], 4, qo_indptr=[0]), "qo_indptr has the wrong length"),
        (lambda: slot_mapping_from_csr([0, 1], [-2], [2], 4), "kv_indices is out of range, got -2"),
        (lambda: slot_mapping_from_csr([0, 2], [3], [2], 4), "kv_indices has the wrong length, got 1, need 2"),
        (lambda: slot_mapping_from_block_table([[1]], [0], [4], 4), "positions is out of range, got 4, need at most 3"),
        (lambda: slot_mapping_from_block_table([[1]], [1], [0], 4), "rows is out of range, got 1, need at most 0"),
        (lambda: slot_mapping_from_block_table([[1]], [0], [-2], 4), "positions is out of range, got -2"),
        (lambda: slot_mapping_from_block_table([[1]], [0, 0], [0], 4), "rows has the wrong length, got 2, need 1"),
        (lambda: csr_from_slot_mapping([5], [0, 1], 4), "breaks a page at token 0, got 5, need 4"),
        (lambda: csr_from_slot_mapping([4, 9], [0, 2], 4), "breaks a page at token 1, got 9, need 5"),
        (lambda: csr_from_slot_mapping([4, -1], [0, 2], 4), "slot_mapping is out of range, got -1"),
        (lambda: csr_from_slot_mapping([4], [0, 2], 4), "slot_mapping has the wrong length, got 1, need 2"),
        (lambda: indptr_from_lens([1, -1]), "lens is out of range, got -1"),
        (lambda: indptr_from_lens([2**30, 2**30]), "sum of lens does not fit 32 bits, got 2147483648"),
        (lambda: rows_from_indptr([0, 3, 2]), "indptr falls after entry 1"),
        (lambda: int_array("f", "x", [True]), "x has the wrong dtype, got bool"),
    ],
)
def test_errors_name_function_value_and_rule(call: Any, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        call()
