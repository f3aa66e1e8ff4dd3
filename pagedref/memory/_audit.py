"""Prove every cross-reference of the memory, and name whatever does not balance (S25)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages
from pagedref.memory._entries import (
    AWAY,
    FLAGS,
    NO_FLAG,
    PINNED,
    PRESENT,
    SHARED,
    SWAPPED,
    UNMAPPED,
    WRITABLE,
    frames_of,
)
from pagedref.memory._sequences import Sequences
from pagedref.memory._tables import TableStore
from pagedref.memory.frames import FrameAllocator

__all__ = ["problems"]

SHOWN = 8  # places named for each kind of fault


def problems(
    frames: FrameAllocator,
    sequences: Sequences,
    tables: TableStore,
    page_size: int,
    moving: npt.NDArray[np.int64] | None = None,
) -> list[str]:
    """List what contradicts S25 anywhere in the state of a manager; costs O(frames + entries).

    Parameters
    ----------
    frames, sequences, tables
        The state of a manager.
    page_size : int
        Slots in a page.
    moving : int64 array, optional
        Frames that are held for pages on their way back from a slower tier.

    Returns
    -------
    list of str
        One line for each kind of fault; empty when all is well.
    """
    found = frames.problems()
    found += _lengths(sequences, tables, page_size)
    used = np.arange(tables.entries.shape[1]) < tables.num_pages[:, None]  # (num_rows, width)
    numbers = frames_of(tables.entries)
    mapped = numbers != -1
    found += _named("entries beyond the end of a table", (tables.entries != UNMAPPED) & ~used, sequences)
    found += _named("unmapped pages have flags", ~mapped & ((tables.entries | SWAPPED) != AWAY), sequences)
    away = (tables.entries == AWAY).any(axis=1)
    full = (np.arange(tables.entries.shape[1]) + 1) * page_size <= sequences.length[:, None]  # may be holes (S32)
    found += _named("pages without a frame", used & ~mapped & ~full & ~away[:, None], sequences)
    inside = mapped & (numbers >= 0) & (numbers < frames.num_frames)
    found += _named("entries with a frame that is none of the pool", mapped & ~inside, sequences)
    found += _counts(frames, numbers[inside] if moving is None else np.concatenate([numbers[inside], moving]))
    found += _owners(numbers, inside)
    found += _flags(frames, sequences, tables, page_size, inside)
    return found


def _named(what: str, wrong: npt.NDArray[np.bool_], sequences: Sequences) -> list[str]:
    """Say where entries are wrong: sequence and page."""
    places = [f"page {page} of sequence {sequences.seq_id[row]}" for row, page in np.argwhere(wrong)[:SHOWN]]
    return [f"{what}: {', '.join(places)}"] if places else []


def _lengths(sequences: Sequences, tables: TableStore, page_size: int) -> list[str]:
    """Compare ids, lengths and numbers of pages."""
    found = []
    for row in np.flatnonzero(sequences.seq_id >= 0).tolist():
        if sequences.find(int(sequences.seq_id[row])) != row:
            found.append(f"sequence {sequences.seq_id[row]} is not found in its row {row}")
    free = sequences.seq_id < 0
    pages = tables.num_pages[: sequences.num_rows]
    if int(np.count_nonzero(~free)) != sequences.num_live:
        found.append(f"{np.count_nonzero(~free)} rows have ids, {sequences.num_live} sequences live")
    for what, wrong in (
        ("rows without a sequence have tokens or pages", free & ((sequences.end != 0) | (pages != 0))),
        ("rows have more live tokens than room", (sequences.length < 0) | (sequences.length > sequences.end)),
        ("rows have too many or too few pages for their tokens", pages != num_pages(sequences.end, page_size)),
    ):
        if wrong.any():
            found.append(f"{what}: {np.flatnonzero(wrong)[:SHOWN].tolist()}")
    return found


def _counts(frames: FrameAllocator, named: npt.NDArray[np.int64]) -> list[str]:
    """Compare reference counts with the table entries that name each frame."""
    entries = np.bincount(named, minlength=frames.num_frames)
    wrong = np.flatnonzero(entries != frames.refcount)[:SHOWN].tolist()
    texts = [f"frame {frame} has count {frames.refcount[frame]} and {entries[frame]} table entries" for frame in wrong]
    return [", ".join(texts)] if texts else []


def _owners(numbers: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_]) -> list[str]:
    """Find frames that stand twice in one table, or at different pages of different tables."""
    rows, pages = np.nonzero(inside)
    named = numbers[inside]
    order = np.argsort(named, kind="stable")
    rows, pages, named = rows[order], pages[order], named[order]
    same = named[1:] == named[:-1]
    twice = np.unique(named[1:][same & (rows[1:] == rows[:-1])])[:SHOWN].tolist()
    moved = np.unique(named[1:][same & (pages[1:] != pages[:-1])])[:SHOWN].tolist()
    found = [f"frames {twice} stand in one table twice"] if twice else []
    return found + ([f"frames {moved} are different pages of different sequences"] if moved else [])


def _flags(
    frames: FrameAllocator, sequences: Sequences, tables: TableStore, page_size: int, inside: npt.NDArray[np.bool_]
) -> list[str]:
    """Compare the flags with the counts, and with what is about to be written (S27)."""
    entries = tables.entries

    def has(flag: np.uint64) -> npt.NDArray[np.bool_]:
        flagged: npt.NDArray[np.bool_] = inside & ((entries & flag) != NO_FLAG)
        return flagged

    holders = np.where(inside, frames.refcount[np.where(inside, frames_of(entries), 0)], 1)
    pages: Any = np.arange(entries.shape[1])
    reserved = (pages + 1) * page_size > sequences.length[:, None]  # pages with a position that is not live
    reserved &= pages * page_size < sequences.end[:, None]
    reserved &= (sequences.end > sequences.length)[:, None]
    found = _named("frames without PRESENT", inside & ~has(PRESENT), sequences)
    known = FLAGS | PINNED
    found += _named("unknown flag bits", inside & ((entries & np.uint64(0xFFFF_FFFF) & ~known) != NO_FLAG), sequences)
    found += _named("WRITABLE frames with other holders", has(WRITABLE) & (holders > 1), sequences)
    found += _named("pages neither or both of WRITABLE and SHARED", inside & (has(WRITABLE) == has(SHARED)), sequences)
    found += _named("reserved tokens in a page that is not WRITABLE", reserved & inside & ~has(WRITABLE), sequences)
    return found
