"""Levels of a cascade: which rows share which pages, and how much work a way of sharing takes.

A level is a batch of its own: segments of pages, each with the consecutive query rows that see it. The flat form is one
level; a shared prompt is two; a split of long sequences is several levels with the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.addressing import num_pages, page_of
from pagedref.attention._level_checks import CheckedBatch, checked_batch, flag, whole_number
from pagedref.options import AttentionOptions

__all__ = [
    "CascadeLevel", "Segment", "Work", "cascade_levels", "cascade_work", "checked_levels", "segments", "split_levels",
]  # fmt: skip

Array = npt.NDArray[Any]
IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class CascadeLevel(NamedTuple):
    """One level: segments of pages and the query rows that see them.

    Attributes
    ----------
    qo_indptr : array (num_segments + 1,) of int32 or int64
        Where the rows of each segment start; together the segments cover all rows.
    kv_indptr, kv_indices, kv_last_page_len : arrays of int32 or int64
        Their pages (S20); a segment may have none.
    """

    qo_indptr: Array
    kv_indptr: Array
    kv_indices: Array
    kv_last_page_len: Array


class Work(NamedTuple):
    """What attention costs, counted and not measured.

    Attributes
    ----------
    keys_read : int
        Live tokens of the pages that are read, each once a segment: memory traffic, in tokens.
    products : int
        Pairs of a query row and a key that it sees: arithmetic, in dot products of one head.
    """

    keys_read: int
    products: int


@dataclass(frozen=True)
class Segment:
    """One segment of a level in absolute positions.

    Attributes
    ----------
    rows : slice
        Its query rows.
    first : int
        Position of its first key.
    keys : int
        Number of its keys.
    positions : array (rows,) of int64
        Positions of the rows.
    start, stop : arrays (rows,) of int64
        Keys that each row sees, counted from `first`.
    """

    rows: slice
    first: int
    keys: int
    positions: IndexArray
    start: IndexArray
    stop: IndexArray

    @property
    def local(self) -> IndexArray:
        """Where the rows would stand if the sequence ended with this segment (S3)."""
        return np.arange(len(self.positions)) + (self.keys - len(self.positions))

    def mask(self) -> BoolArray:
        """Return who sees which key, (rows, keys)."""
        keys = np.arange(self.keys)
        return (keys >= self.start[:, None]) & (keys < self.stop[:, None])


def checked_levels(
    function: str, levels: object, page_size: int, *, num_tokens: int | None = None, num_frames: int | None = None
) -> list[CheckedBatch]:
    """Check the levels of a cascade.

    Parameters
    ----------
    function : str
        Name for error texts.
    levels : object
        As given: levels, outermost first; each level's row borders are among those of the next.
    page_size : int
        Positions in a page.
    num_tokens, num_frames : int, optional
        Rows and frames; by default as many as the first level has rows, and as the levels name.

    Returns
    -------
    list of CheckedBatch
        By level.

    Raises
    ------
    ContractError
        Levels are missing, not nested, or not sound.
    """
    if not isinstance(levels, list | tuple) or isinstance(levels, CascadeLevel):
        validate.fail(function, "levels", "is no list of levels", type(levels).__name__, "a list of CascadeLevel")
    if not levels:
        validate.fail(function, "levels", "is empty", len(levels), "one level or more")
    checked: list[CheckedBatch] = []
    for depth, level in enumerate(levels):
        where = f"{function}: levels[{depth}]"
        batch = checked_batch(where, level, page_size, num_tokens=num_tokens, num_frames=num_frames)
        num_tokens = int(batch.qo_indptr[-1])
        missing = np.setdiff1d(checked[-1].qo_indptr, batch.qo_indptr) if checked else np.empty(0, np.int64)
        if missing.size:
            border = f"no border at row {missing[0]}"
            validate.fail(where, "qo_indptr", "is not nested", border, "those of the level above")
        checked.append(batch)
    return checked


def segments(levels: Sequence[CheckedBatch], rules: AttentionOptions) -> list[list[Segment]]:
    """Place every segment and every row on the axis of positions.

    Parameters
    ----------
    levels : sequence of CheckedBatch
        Of :func:`checked_levels`.
    rules : AttentionOptions
        Which positions a row sees.

    Returns
    -------
    list of lists of Segment
        By level.
    """
    spans = [(level.qo_indptr, level.kv_lens) for level in levels]
    num_tokens = int(spans[-1][0][-1])
    row = np.arange(num_tokens)
    owners = [np.searchsorted(rows, row, "right") - 1 for rows, _ in spans]  # (num_tokens,) each
    lengths = [lens[owner] for (_, lens), owner in zip(spans, owners, strict=True)]
    position = np.sum(lengths, axis=0, dtype=np.int64) - (spans[-1][0][owners[-1] + 1] - row)
    result: list[list[Segment]] = []
    before = np.zeros(num_tokens, np.int64)
    for (rows, lens), length in zip(spans, lengths, strict=True):
        placed = []
        for begin, end, keys in zip(rows[:-1].tolist(), rows[1:].tolist(), lens.tolist(), strict=True):
            first = int(before[begin]) if end > begin else 0
            start, stop = rules.intervals(position[begin:end], first + keys)
            start, stop = (np.clip(bound - first, 0, keys) for bound in (start, stop))
            placed.append(Segment(slice(begin, end), first, keys, position[begin:end], start, stop))
        result.append(placed)
        before = before + length
    return result


def cascade_work(levels: Sequence[CascadeLevel], page_size: int, *, causal: bool = True) -> Work:
    """Count the work of a cascade; of the flat form if there is one level.

    Parameters
    ----------
    levels : sequence of CascadeLevel
        Outermost first.
    page_size : int
        Positions in a page.
    causal : bool
        Key position <= query position.

    Returns
    -------
    Work
        The products do not depend on the levels; the keys read do.

    Raises
    ------
    ContractError
        The levels are not sound.

    Examples
    --------
    Three queries over a shared page of two and one own key each, flat and in two levels:

    >>> row = np.array
    >>> flat = CascadeLevel(row([0, 1, 2, 3]), row([0, 2, 4, 6]), row([9, 1, 9, 2, 9, 3]), row([1, 1, 1]))
    >>> cascade_work([flat], 2)
    Work(keys_read=9, products=9)
    >>> cascade_work(cascade_levels(*flat, page_size=2), 2)
    Work(keys_read=5, products=9)
    """
    page_size = whole_number("cascade_work", "page_size", page_size)
    rules = AttentionOptions(1.0, flag("cascade_work", "causal", causal))
    read = products = 0
    for level in segments(checked_levels("cascade_work", levels, page_size), rules):
        for part in level:
            counts = np.maximum(part.stop - part.start, 0)
            if counts.any():
                low, high = int(part.start[counts > 0].min()), int(part.stop[counts > 0].max())
                last_page = int(num_pages(high, page_size))
                read += min(last_page * page_size, part.keys) - int(page_of(low, page_size)) * page_size
                products += int(counts.sum())
    return Work(read, products)


def cascade_levels(
    qo_indptr: Array, kv_indptr: Array, kv_indices: Array, kv_last_page_len: Array, *, page_size: int
) -> list[CascadeLevel]:
    """Find what neighbouring sequences of a batch share, by the frames that their tables name.

    Parameters
    ----------
    qo_indptr, kv_indptr, kv_indices, kv_last_page_len : arrays
        A batch as ``paged_prefill`` takes it; sequences that share a prefix stand next to each other.
    page_size : int
        Positions in a page.

    Returns
    -------
    list of CascadeLevel
        Outermost first: a level for each depth at which runs of two or more sequences name the same full pages, which
        hold none of their query rows; the last level holds what each has for itself. One level if nothing is shared.

    Raises
    ------
    ContractError
        The batch is not sound.

    Examples
    --------
    >>> row = np.array
    >>> levels = cascade_levels(row([0, 1, 2]), row([0, 2, 4]), row([5, 0, 5, 1]), row([3, 1]), page_size=4)
    >>> [level.kv_indices.tolist() for level in levels]
    [[5], [0, 1]]
    """
    page_size = whole_number("cascade_levels", "page_size", page_size)
    batch = checked_batch("cascade_levels", (qo_indptr, kv_indptr, kv_indices, kv_last_page_len), page_size)
    rows, indptr, frames, last_page_len, lengths = batch
    tables = [frames[begin:end].tolist() for begin, end in pairwise(indptr)]
    full = (np.maximum(lengths - np.diff(rows), 0) // page_size).tolist()  # pages before the first query row
    groups = [range(len(tables))] if tables else []
    taken = [0] * len(tables)
    levels: list[CascadeLevel] = []
    while True:
        runs: list[range] = []
        for group in groups:
            begin = group.start
            for at in range(group.start + 1, group.stop + 1):
                if at == group.stop or _next(tables, taken, full, at) != _next(tables, taken, full, begin):
                    runs.append(range(begin, at))
                    begin = at
        shared = [_common(tables, taken, full, run) for run in runs]
        if not any(shared):
            break
        edges = [rows[run.start] for run in runs] + [rows[-1]]
        levels.append(_level(np.array(edges), shared, [page_size if pages else 0 for pages in shared]))
        for run, pages in zip(runs, shared, strict=True):
            for at in run:
                taken[at] += len(pages)
        groups = runs
    own = [table[start:] for table, start in zip(tables, taken, strict=True)]
    last = [int(size) if pages else 0 for pages, size in zip(own, last_page_len, strict=True)]
    return [*levels, _level(rows, own, last)]


def _next(tables: list[list[int]], taken: list[int], full: list[int], at: int) -> int:
    """Return the frame with which a sequence would go on sharing; a number of its own if it cannot."""
    return tables[at][taken[at]] if taken[at] < full[at] else -2 - at


def _common(tables: list[list[int]], taken: list[int], full: list[int], run: range) -> list[int]:
    """Return the pages that all sequences of a run name next; none for a run of one."""
    if len(run) < 2:
        return []
    ahead = [tables[at][taken[at] : full[at]] for at in run]
    count = 0
    while all(len(pages) > count and pages[count] == ahead[0][count] for pages in ahead):
        count += 1
    return ahead[0][:count]


def _level(rows: IndexArray, pages: list[list[int]], last: list[int]) -> CascadeLevel:
    """Put segments into CSR form."""
    indptr = np.concatenate([[0], np.cumsum([len(part) for part in pages], dtype=np.int64)])
    return CascadeLevel(rows, indptr, np.array(list(chain.from_iterable(pages)), np.int64), np.array(last, np.int64))


def split_levels(level: CascadeLevel, *, page_size: int, pages_per_part: int) -> list[CascadeLevel]:
    """Cut the pages of each segment into parts, one level for each part (split-KV).

    Parameters
    ----------
    level : CascadeLevel
        A batch in flat form.
    page_size : int
        Positions in a page.
    pages_per_part : int
        Pages in a part, >= 1; the last part of a segment may have fewer. The cuts of a sequence depend on it alone.

    Returns
    -------
    list of CascadeLevel
        As many as the longest segment needs, and one at least; parts that a segment does not have are empty.

    Raises
    ------
    ContractError
        `pages_per_part` is below 1, or the batch is not sound.

    Examples
    --------
    >>> row = np.array
    >>> flat = CascadeLevel(row([0, 1, 2]), row([0, 3, 4]), row([7, 8, 9, 4]), row([2, 1]))
    >>> parts = split_levels(flat, page_size=4, pages_per_part=2)
    >>> [(part.kv_indices.tolist(), part.kv_last_page_len.tolist()) for part in parts]
    [([7, 8, 4], [4, 1]), ([9], [2, 0])]
    """
    page_size = whole_number("split_levels", "page_size", page_size)
    pages_per_part = whole_number("split_levels", "pages_per_part", pages_per_part, most=None)
    rows, indptr, frames, last_page_len, _ = checked_batch("split_levels: level", level, page_size)
    starts, counts = indptr[:-1], np.diff(indptr)
    parts = []
    for first in range(0, max(int(counts.max(initial=0)), 1), pages_per_part):
        pages = [
            frames[start + min(first, count) : start + min(first + pages_per_part, count)].tolist()
            for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
        ]
        ends = first + np.array([len(part) for part in pages], np.int64) == counts
        last = np.where(ends, last_page_len, page_size) * np.array([len(part) > 0 for part in pages], np.int64)
        parts.append(_level(rows, pages, last.tolist()))
    return parts
