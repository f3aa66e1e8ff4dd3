"""A look at the memory at one moment: what each frame is, who holds it, and what each table says.

Pictures, notebooks and the interactive page are drawn from a snapshot, never from the insides of a manager. It is made
of plain tuples and strings, so it stays true when the manager moves on, and it can be written as JSON.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pagedref.memory._entries import flag_letters, frames_of

if TYPE_CHECKING:
    from pagedref.memory._views import MemoryViews

__all__ = ["FrameView", "MemorySnapshot", "SequenceView", "snapshot"]

# Background and border of a frame in the notebook; both readable on light and on dark.
_STYLE = {
    "free": "border:1px dashed #8888",
    "held": "border:1px solid #3b7dd8;background:#3b7dd844",
    "shared": "border:2px solid #d97706;background:#d9770644",
    "cached": "border:1px solid #6b9e3f;background:#6b9e3f33",
}


class FrameView(NamedTuple):
    """One frame of the pool.

    Attributes
    ----------
    state : str
        ``"free"``, ``"held"`` or ``"cached"`` (S25).
    holders : tuple of (int, int)
        Sequence and page of each table entry that names this frame; two or more when it is shared.
    live : int
        Slots that hold a live token, ``0 .. page_size``; those of a cached frame are all live.
    """

    state: str
    holders: tuple[tuple[int, int], ...]
    live: int


class SequenceView(NamedTuple):
    """One sequence and its page table.

    Attributes
    ----------
    seq_id : int
        Its id.
    seq_len, reserved : int
        Live tokens, and tokens reserved beyond them.
    frames : tuple of int
        Frame of each page, -1 where none is mapped.
    flags : tuple of str
        Flags of each entry, as `PageTable` prints them: P W S A D, a dot for each that is off.
    """

    seq_id: int
    seq_len: int
    reserved: int
    frames: tuple[int, ...]
    flags: tuple[str, ...]


class MemorySnapshot(NamedTuple):
    """The pool and all tables at one moment.

    Attributes
    ----------
    page_size : int
        Slots in a frame.
    frames : tuple of FrameView
        By number.
    sequences : tuple of SequenceView
        Live ones, by id.
    """

    page_size: int
    frames: tuple[FrameView, ...]
    sequences: tuple[SequenceView, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the same as dicts and tuples, ready for JSON.

        Returns
        -------
        dict
            With the names of the attributes as keys.
        """
        return {
            "page_size": self.page_size,
            "frames": [frame._asdict() for frame in self.frames],
            "sequences": [sequence._asdict() for sequence in self.sequences],
        }

    def _repr_html_(self) -> str:
        """Draw the pool and the tables; notebooks call this."""
        cells = "".join(self._frame_html(number) for number in range(len(self.frames)))
        counts = {state: sum(frame.state == state for frame in self.frames) for state in ("free", "held", "cached")}
        rows = "".join(self._sequence_html(sequence) for sequence in self.sequences)
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("sequence", "tokens", "frames of pages"))
        table = f"<table><tr>{head}</tr>{rows}</table>" if rows else ""
        summary = ", ".join(f"{count} {state}" for state, count in counts.items())
        return (
            f"<div><div>{len(self.frames)} frames of {self.page_size} slots: {summary}</div>"
            f"<div style='display:flex;flex-wrap:wrap;gap:4px;margin:6px 0'>{cells}</div>{table}</div>"
        )

    def _frame_html(self, number: int) -> str:
        """Draw one frame."""
        frame = self.frames[number]
        state = "shared" if len(frame.holders) > 1 else frame.state
        names = escape(", ".join(f"{seq_id}:{page}" for seq_id, page in frame.holders)) or frame.state
        style = f"{_STYLE[state]};border-radius:4px;padding:2px 6px;min-width:4em;text-align:center;font-size:85%"
        title = f"frame {number}: {frame.state}, {frame.live} of {self.page_size} slots live"
        return f"<div style='{style}' title='{title}'><b>{number}</b><br>{names}</div>"

    def _sequence_html(self, sequence: SequenceView) -> str:
        """Draw the table of one sequence as one row."""
        pages = " ".join("·" if frame < 0 else str(frame) for frame in sequence.frames)
        ahead = f" + {sequence.reserved}" if sequence.reserved else ""
        cells = (str(sequence.seq_id), f"{sequence.seq_len}{ahead}", f"<code>{pages}</code>")
        return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"


def snapshot(manager: MemoryViews) -> MemorySnapshot:
    """Look at a manager; nothing changes.

    Parameters
    ----------
    manager : KVManager
        Of any size: the cost is O(frames + pages).

    Returns
    -------
    MemorySnapshot

    Notes
    -----
    Mutates: nothing.

    Examples
    --------
    >>> from pagedref.memory import KVManager
    >>> manager = KVManager(num_frames=3, page_size=4)
    >>> a = manager.add()
    >>> plan = manager.reserve(a, 6)
    >>> manager.commit(a, 6)
    >>> b = manager.fork(a)
    >>> for frame in snapshot(manager).frames:
    ...     print(frame.state, frame.holders, frame.live)
    held ((0, 0), (1, 0)) 4
    held ((0, 1), (1, 1)) 2
    free () 0
    >>> snapshot(manager).sequences[1]
    SequenceView(seq_id=1, seq_len=6, reserved=0, frames=(0, 1), flags=('P.S..', 'P.S..'))
    """
    page_size, refcount, occupied = manager.page_size, manager.refcount, manager.occupied
    holders: dict[int, list[tuple[int, int]]] = {}
    live = np.where(occupied & (refcount == 0), page_size, 0)
    sequences = []
    for seq_id in manager.sequences:
        table = manager.table(seq_id)
        entries = table.walk(range(table.num_pages))
        frames = frames_of(entries).tolist()
        seq_len = manager.seq_len(seq_id)
        for page, frame in enumerate(frames):
            if frame >= 0:
                holders.setdefault(frame, []).append((seq_id, page))
                live[frame] = max(live[frame], min(page_size, max(0, seq_len - page * page_size)))
        flags = tuple(flag_letters(entry) for entry in entries)
        sequences.append(SequenceView(seq_id, seq_len, int(manager.reserved(seq_id)[0]), tuple(frames), flags))
    views = []
    for frame in range(manager.num_frames):
        state = "held" if refcount[frame] else "cached" if occupied[frame] else "free"
        views.append(FrameView(state, tuple(holders.get(frame, ())), int(live[frame])))
    return MemorySnapshot(page_size, tuple(views), tuple(sequences))
