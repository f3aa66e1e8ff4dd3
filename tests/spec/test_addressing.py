"""Position, page, offset, frame, slot (S19, S20, S24), against Python's own integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref import addressing
from pagedref.addressing import (
    element_of,
    frame_of_slot,
    kv_len,
    last_page_len,
    num_pages,
    offset_of,
    offset_of_slot,
    page_of,
    slot_of,
)

page_sizes = st.integers(1, 2**20)
tokens = st.integers(0, 2**40)
DTYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64]


@given(tokens, page_sizes)
def test_position_is_page_and_offset(position: int, page_size: int) -> None:
    page, offset = page_of(position, page_size), offset_of(position, page_size)
    assert (int(page), int(offset)) == divmod(position, page_size)
    assert page * page_size + offset == position


@given(st.integers(0, 2**31 - 1), st.data())
def test_slot_is_frame_and_offset(frame: int, data: Any) -> None:
    page_size = data.draw(page_sizes)
    offset = data.draw(st.integers(0, page_size - 1))
    slot = slot_of(frame, offset, page_size)
    assert int(slot) == frame * page_size + offset
    assert (int(frame_of_slot(slot, page_size)), int(offset_of_slot(slot, page_size))) == (frame, offset)


@given(tokens, page_sizes)
def test_lengths_go_there_and_back(num_tokens: int, page_size: int) -> None:
    pages, last = num_pages(num_tokens, page_size), last_page_len(num_tokens, page_size)
    assert kv_len(pages, last, page_size) == num_tokens
    assert int(pages) == -(-num_tokens // page_size)
    assert (1 <= last <= page_size) if num_tokens else (pages, last) == (0, 0)


@given(st.lists(tokens, max_size=20), page_sizes)
def test_arrays_give_what_scalars_give(numbers: list[int], page_size: int) -> None:
    array = np.array(numbers, dtype=np.int64)
    for function in (page_of, offset_of, frame_of_slot, offset_of_slot, num_pages, last_page_len):
        result = function(array, page_size)
        assert result.dtype == np.int64
        assert result.tolist() == [int(function(number, page_size)) for number in numbers]
        assert array.tolist() == numbers


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_result_is_64_bits_wide(dtype: type) -> None:
    array, size = np.array([0, 1, 100], dtype=dtype), dtype(100)
    results = [f(array, size) for f in (page_of, offset_of, frame_of_slot, offset_of_slot, num_pages, last_page_len)]
    results += [slot_of(array, array, size), kv_len(array, array, size), element_of(array, array, size, size)]
    assert {result.dtype for result in results} == {np.dtype(np.int64)}
    assert slot_of(array, 3, size).tolist() == [3, 103, 10_003]
    assert kv_len(array, array, size).tolist() == [0, 1, 10_000]
    assert num_pages(array, size).tolist() == [0, 1, 1]


def test_p01_page_65_536_reads_its_own_data() -> None:
    """int32 table, page 16, K and V interleaved, 8 heads of 128: 2**31 // (16 * 2 * 8 * 128) = 65,536 pages fit."""
    block_table = np.array([65_535, 65_536, 65_537, 2**31 - 1], dtype=np.int32)
    slots = slot_of(block_table, 0, 16)
    assert slots.tolist() == [frame * 16 for frame in block_table.tolist()]
    elements = element_of(block_table, 15, 16 * 2 * 8 * 128, 2 * 8 * 128)
    assert elements.tolist() == [(frame * 16 + 15) * 2 * 8 * 128 for frame in block_table.tolist()]
    assert (block_table * 32_768)[1] < 0, "NumPy itself wraps here: the reason for this module"


def test_p01_scalars_of_32_bits_do_not_wrap() -> None:
    assert int(slot_of(np.int32(2**30), np.int32(3), np.int32(16))) == 2**34 + 3
    assert int(kv_len(np.int32(2**30), np.int32(3), np.int32(16))) == (2**30 - 1) * 16 + 3
    assert int(num_pages(np.int32(2**31 - 1), np.int32(16))) == 2**27


def test_p02_strides_over_a_larger_pool() -> None:
    offsets = element_of(np.array([2065, 2066], dtype=np.int32), 0, np.int32(1_039_680), np.int32(64))
    assert offsets.tolist() == [2_146_939_200, 2_147_978_880]
    assert int(element_of(np.uint32(2**20), 0, np.uint32(16_384), np.uint32(1))) == 2**34


@pytest.mark.parametrize(
    ("length", "page_size", "pages", "last"),
    [(100, 16, 7, 4), (32, 16, 2, 16), (0, 16, 0, 0), (8, 4, 2, 4), (1, 1, 1, 1), (5, 1, 5, 1), (3, 100, 1, 3)],
)
def test_p15_p48_last_page(length: int, page_size: int, pages: int, last: int) -> None:
    assert (int(num_pages(length, page_size)), int(last_page_len(length, page_size))) == (pages, last)


def test_p49_a_write_takes_a_page_iff_its_offset_is_zero() -> None:
    grown = [t for t in range(12) if num_pages(t + 1, 4) > num_pages(t, 4)]
    assert grown == [t for t in range(12) if offset_of(t, 4) == 0] == [0, 4, 8]


def count_faults(last: Any) -> int:
    """Count the lengths up to three pages that a formula for the last page gets wrong."""
    return sum(
        int(kv_len(num_pages(n, size), last(n, size), size)) != n for size in (1, 4, 16) for n in range(3 * size + 1)
    )


@pytest.mark.parametrize(
    "mutant",
    [
        lambda n, size: n % size,  # 0 for a full page (P48)
        lambda n, size: (num_pages(n, size) - 1) % size + 1,  # of the number of pages (P15)
        lambda n, size: (n - 1) % size + 1,  # a full page for no token
        lambda n, size: size,
    ],
)
def test_wrong_last_pages_are_caught(mutant: Any) -> None:
    assert count_faults(last_page_len) == 0
    assert count_faults(mutant) > 0


def test_bodies_are_one_expression_that_compilers_of_kernels_take() -> None:
    """No branch, no call but ``np.int64``: the same source runs in a kernel."""
    for name in addressing.__all__:
        names = getattr(addressing, name).__code__.co_names
        assert set(names) <= {"np", "int64"}, name
