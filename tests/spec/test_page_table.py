"""PageTable: packed entries, walks, translations, faults (S19, S21, S24, S27)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError, PageFault
from pagedref.memory import ACCESSED, DIRTY, PRESENT, SHARED, UNMAPPED, WRITABLE, FrameAllocator, PageTable
from pagedref.memory._entries import flag_letters, frames_of, pack
from pagedref.memory._tables import HIGH_WORD


def filled(*frames: int, page_size: int = 4, flags: Any = PRESENT | WRITABLE) -> PageTable:
    table = PageTable(page_size)
    table.map(np.arange(len(frames)), np.array(frames), flags)
    return table


def test_the_bits_are_where_the_drawing_has_them() -> None:
    assert [int(flag) for flag in (PRESENT, WRITABLE, SHARED, ACCESSED, DIRTY)] == [1, 2, 4, 8, 16]
    assert int(UNMAPPED) == 0xFFFF_FFFF_0000_0000
    entry = filled(0x1234).entry(0)
    assert entry == 0x1234_0000_0003
    assert flag_letters(entry) == "PW..."
    assert filled(7).entry(5) == int(UNMAPPED)


@given(st.lists(st.integers(0, 2**31 - 2), max_size=9), st.integers(0, 31))
def test_entries_hold_frames_and_flags(frames: list[int], flags: int) -> None:
    entries = pack(np.array(frames, dtype=np.int64), np.uint64(flags))
    assert frames_of(entries).tolist() == frames
    assert (entries & np.uint64(0xFFFF_FFFF)).tolist() == [flags] * len(frames)
    assert entries.view(np.int32)[HIGH_WORD::2].tolist() == frames, "every other int32 word is a row of a block_table"


def test_unmapped_reads_as_minus_one() -> None:
    assert frames_of(np.array([UNMAPPED])).tolist() == [-1]
    assert np.array([UNMAPPED]).view(np.int32)[HIGH_WORD] == -1
    assert not int(UNMAPPED) & int(PRESENT)


@given(st.data())
def test_translate_agrees_with_a_dictionary(data: Any) -> None:
    page_size = data.draw(st.integers(1, 5))
    pages = data.draw(st.lists(st.integers(0, 30), unique=True, max_size=12))
    frames = data.draw(st.lists(st.integers(0, 2**31 - 2), min_size=len(pages), max_size=len(pages)))
    table, model = PageTable(page_size), dict(zip(pages, frames))
    table.map(pages, frames)
    assert table.num_pages == max(pages, default=-1) + 1
    positions = data.draw(st.lists(st.integers(0, 31 * page_size + 3), max_size=12))
    if all(position // page_size in model for position in positions):
        slots = table.translate(positions, write=data.draw(st.booleans()))
        assert slots.dtype == np.int64
        assert slots.tolist() == [model[p // page_size] * page_size + p % page_size for p in positions]
        touched = {p // page_size for p in positions}
        assert {page for page in model if table.entry(page) & int(ACCESSED)} == touched
    else:
        before = table._entries.copy()
        with pytest.raises(PageFault, match=r"translate: page \d+ has no frame"):
            table.translate(positions)
        assert np.array_equal(table._entries, before)
    assert table.frames().tolist() == [model[page] for page in sorted(model)]
    assert table.walk(range(40)).tolist() == [
        table.entry(page) if page in model else int(UNMAPPED) for page in range(40)
    ]


def test_reads_and_writes_leave_their_marks() -> None:
    table = filled(3, 8)
    table.translate([0])
    assert (flag_letters(table.entry(0)), flag_letters(table.entry(1))) == ("PW.A.", "PW...")
    table.translate([4, 5], write=True)
    assert flag_letters(table.entry(1)) == "PW.AD"


def test_slots_leave_32_bits() -> None:
    assert filled(2**31 - 2, page_size=100).translate([99]).tolist() == [(2**31 - 2) * 100 + 99]


def test_a_shared_page_is_not_written() -> None:
    """S27: after a fork neither side may write in place, and a refused write marks nothing."""
    parent = filled(3, 8)
    child = parent.fork()
    for table in (parent, child):
        assert table.frames().tolist() == [3, 8]
        with pytest.raises(PageFault, match=r"translate: page 1 is not writable, got P\.S\.\."):
            table.translate([4], write=True)
        assert table.translate([4]).tolist() == [32]
    child.unmap(1)
    child.map(1, 5)
    child.translate([4], write=True)
    assert parent.frames().tolist() == [3, 8], "a writer never changes its sibling (L7)"


def test_holes() -> None:
    table = filled(3, 8, 5)
    assert table.unmap([0, 1]).tolist() == [3, 8]
    assert (table.num_pages, table.frames().tolist()) == (3, [5])
    assert table.translate([8]).tolist() == [20]
    with pytest.raises(PageFault, match="unmap: page 1 has no frame"):
        table.unmap([2, 1])
    assert table.unmap(2).tolist() == [5]
    assert table.num_pages == 0
    table.fork()


def test_wrong_arguments_change_nothing() -> None:
    table = filled(3, 8)
    before = table._entries.copy()
    for call, text in [
        (lambda: table.map(1, 5), "map: page is mapped already, got 1"),
        (lambda: table.map([2, 2], [5, 6]), "map: page is named twice"),
        (lambda: table.map([2, 3], [5]), "map: frame has the wrong length, got 1, need 2"),
        (lambda: table.map(2, -1), "map: frame is out of range, got -1"),
        (lambda: table.map(2, 2**31 - 1), "map: frame is out of range"),
        (lambda: table.map(-1, 5), "map: page is out of range, got -1"),
        (lambda: table.map(2, 5, WRITABLE | SHARED), "map: flags contradict each other, got 0x7"),
        (lambda: table.map(2, 5, 64), "map: flags contradict each other, got 0x41"),
        (lambda: table.unmap([0, 0]), "unmap: page is named twice"),
        (lambda: table.translate([-1]), "translate: positions is out of range, got -1"),
        (lambda: table.walk([-1]), "walk: pages is out of range, got -1"),
        (lambda: PageTable(0), "PageTable: page_size is wrong, got 0"),
    ]:
        with pytest.raises(ContractError, match=text):
            call()
    assert np.array_equal(table._entries, before)


def test_p49_on_demand() -> None:
    """S24: writing position t takes a frame iff t % page_size == 0."""
    allocator, table, taken = FrameAllocator(8), PageTable(4), []
    for t in range(9):
        try:
            table.translate([t], write=True)
        except PageFault:
            table.map(t // 4, allocator.alloc(1)[0])
            taken.append(t)
            table.translate([t], write=True)
    assert taken == [0, 4, 8]
    allocator.free(table.frames()[::-1])
    allocator.audit()


def test_repr_fits_a_line() -> None:
    table = filled(*range(10, 20))
    table.unmap(1)
    assert repr(table) == (
        "PageTable(page_size=4, pages=10: 0->10 PW..., 1->hole, 2->12 PW..., 3->13 PW..., 4->14 PW..., "
        "5->15 PW..., ...)"
    )
    assert repr(PageTable(4)) == "PageTable(page_size=4, pages=0: )"
    assert table.page_size == 4
