"""TwoLevelTable: the flat table in another shape, and no larger than what is mapped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import PagedRefError
from pagedref.memory import PRESENT, WRITABLE, PageTable
from pagedref.memory.directory import LEAF_PAGES, TwoLevelTable, make_table

pages = st.lists(st.sampled_from([0, 1, 2, 511, 512, 513, 1023, 1024, 62_499]), unique=True, max_size=5)


def perform(table: PageTable, what: str, chosen: list[int], write: bool) -> Any:
    """Do something; return what came of it, or the error and its text."""
    calls = {
        "map": lambda: table.map(chosen, list(range(10, 10 + len(chosen))), PRESENT | WRITABLE),
        "unmap": lambda: table.unmap(chosen),
        "translate": lambda: table.translate([4 * page + 1 for page in chosen], write=write),
        "fork": lambda: table.fork().frames(),
    }
    try:
        found = calls[what]()
    except PagedRefError as error:
        return type(error), str(error)
    return found.tolist() if isinstance(found, np.ndarray) else found


@settings(max_examples=150)
@given(st.data())
def test_it_agrees_with_the_flat_table(data: Any) -> None:
    flat, deep = PageTable(4), TwoLevelTable(4)
    for _ in range(data.draw(st.integers(1, 8))):
        chosen = data.draw(pages)
        what, write = data.draw(st.sampled_from(["map", "map", "unmap", "translate", "fork"])), data.draw(st.booleans())
        assert perform(flat, what, chosen, write) == perform(deep, what, chosen, write)
        assert deep.num_pages == flat.num_pages
        assert deep.frames().tolist() == flat.frames().tolist()
        assert deep.walk(range(1100)).tolist() == flat.walk(range(1100)).tolist()
        assert repr(deep) == repr(flat)
        assert deep.num_leaves == len({page // LEAF_PAGES for page in deep._listed()[0].tolist()})


def test_memory_follows_what_is_mapped() -> None:
    """A million tokens through a window of 4,096: the flat table has half a megabyte, this one a few leaves."""
    table = make_table(16, 62_500)
    assert isinstance(table, TwoLevelTable)
    for first in range(0, 62_500, 256):
        last = min(first + 256, 62_500)
        table.map(np.arange(first, last), np.arange(last - first))
        if first:
            table.unmap(np.arange(first - 256, first))
        assert table.num_leaves <= 2
    assert table.nbytes <= 2 * 8 * LEAF_PAGES + 4 * 62_500 // LEAF_PAGES + 64
    assert table.translate([999_999]).tolist() == [(62_499 - 62_464) * 16 + 15]


@pytest.mark.parametrize("size", [1, 8191])
def test_short_sequences_stay_flat(size: int) -> None:
    assert type(make_table(4, size)) is PageTable
