"""Pictures of live objects: the pool with its owners, page tables with arrows, an entry bit by bit, weights over pages.

Each function draws into axes that the caller made, from a `MemorySnapshot` or from plain numbers, and returns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.memory.snapshot import MemorySnapshot
from pagedref.plotting._style import COLOURS

__all__ = ["draw_entry", "draw_pool", "draw_tables", "draw_timeline", "draw_weights"]

_FREE, _CACHED, _INK = "#ffffff", "#d9d9d9", "#333333"
_FLAGS = ("present", "writable", "shared", "accessed", "dirty", "pinned", "swapped")


def _colour(index: int) -> str:
    """Return the colour of the sequence at this place in the list."""
    return COLOURS[index % len(COLOURS)]


def _blank(axes: Any) -> None:
    """Take away everything but what is drawn."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.autoscale_view()


def _box(axes: Any, x: float, y: float, width: float, height: float, **look: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, height, **{"edgecolor": _INK, "linewidth": 0.8, **look}))


def _frame(axes: Any, look: MemorySnapshot, number: int, x: float, y: float, words: Sequence[str] | None) -> None:
    """Draw a frame with its slots, its number and its holders."""
    frame, size = look.frames[number], look.page_size
    place = {sequence.seq_id: index for index, sequence in enumerate(look.sequences)}
    holders = [_colour(place[seq_id]) for seq_id, _ in frame.holders if seq_id in place]
    for offset in range(size):
        live = offset < frame.live
        fill = _FREE if not live else holders[0] if holders else _CACHED
        _box(axes, x + offset, y, 1, 1, facecolor=fill, alpha=0.55 if live and holders else 1.0, linewidth=0)
        _box(axes, x + offset, y, 1, 1, facecolor="none", linestyle=":" if frame.state == "free" else "-")
        if words and live:
            word = words[number * size + offset]
            turned = 35 * (len(word) > 5)
            axes.text(x + offset + 0.5, y + 0.5, word, ha="center", va="center", fontsize=7, rotation=turned)
    for index, colour in enumerate(holders[1:]):  # further holders: a stripe each below the slots
        _box(axes, x, y - 0.16 * (index + 1), size, 0.12, facecolor=colour, linewidth=0)
    axes.text(x - 0.12, y + 0.5, str(number), ha="right", va="center", fontsize=9, color=_INK)


def draw_pool(axes: Any, look: MemorySnapshot, *, words: Sequence[str] | None = None, columns: int = 4) -> None:
    """Draw the frames of a pool: filled slots in the colour of their holder, a stripe for each further one.

    Cached content is grey, free frames have dotted borders. The number of a frame stands at its left.

    Parameters
    ----------
    axes : matplotlib axes
        Where to draw.
    look : MemorySnapshot
        What to draw.
    words : sequence of str (num_frames * page_size,), optional
        What lies in each slot, written into it.
    columns : int
        Frames in a row, >= 1.

    Notes
    -----
    Mutates: `axes`.
    """
    from matplotlib.patches import Patch

    width = look.page_size + 1.1
    for number in range(len(look.frames)):
        _frame(axes, look, number, (number % columns) * width, -1.6 * (number // columns), words)
    names = [f"sequence {sequence.seq_id}" for sequence in look.sequences]
    kinds = [Patch(facecolor=_colour(index), alpha=0.55, label=name) for index, name in enumerate(names)]
    if any(frame.state == "cached" for frame in look.frames):
        kinds.append(Patch(facecolor=_CACHED, edgecolor=_INK, label="cached"))
    if kinds:
        axes.legend(handles=kinds, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=len(kinds), frameon=False)
    _blank(axes)


def draw_tables(axes: Any, look: MemorySnapshot, *, words: Sequence[str] | None = None) -> None:
    """Draw the page tables at the left, the pool at the right, and an arrow from each entry to its frame.

    Parameters
    ----------
    axes : matplotlib axes
        Where to draw.
    look : MemorySnapshot
        What to draw.
    words : sequence of str (num_frames * page_size,), optional
        What lies in each slot.

    Notes
    -----
    Mutates: `axes`.
    """
    step, right = 1.45, 8.5
    y = 0.0
    for index, sequence in enumerate(look.sequences):
        title = f"sequence {sequence.seq_id}: {sequence.seq_len} tokens"
        axes.text(0, y + 0.35, title, fontsize=9, fontweight="bold", color=_INK)
        for page, (frame, flags) in enumerate(zip(sequence.frames, sequence.flags, strict=True)):
            y -= 1
            _box(axes, 0, y, 4.4, 1, facecolor=_colour(index), alpha=0.35)
            shown = f"page {page}  →  {frame if frame >= 0 else 'none'}   {flags}"
            axes.text(0.15, y + 0.5, shown, va="center", fontsize=8, family="monospace", color=_INK)
            if frame >= 0:
                target = (right - 0.75, -step * frame - 0.5)
                line = {"arrowstyle": "-|>", "color": _colour(index), "shrinkA": 0, "shrinkB": 2}
                axes.annotate("", target, (4.4, y + 0.5), arrowprops={**line, "connectionstyle": "arc3,rad=0.08"})
        y -= 1.6
    for number in range(len(look.frames)):
        _frame(axes, look, number, right, -step * number - 1, words)
    _blank(axes)


def draw_entry(axes: Any, entry: int) -> None:
    """Draw one page table entry: 32 bits of frame, and the flags bit by bit.

    Parameters
    ----------
    axes : matplotlib axes
        Where to draw.
    entry : int
        Packed entry, in ``[0, 2**64)``.

    Raises
    ------
    ContractError
        The entry does not fit into 64 bits.

    Notes
    -----
    Mutates: `axes`.
    """
    if not 0 <= int(entry) < 1 << 64:
        raise ContractError(f"draw_entry: entry is out of range, got {entry}, need 0..2**64 - 1")
    number = int(entry) >> 32
    _box(axes, 0, 0, 8, 1, facecolor=COLOURS[4], alpha=0.5)
    named = "no frame" if number == 0xFFFF_FFFF else f"frame {number}"
    axes.text(4, 0.5, named, ha="center", va="center", fontsize=11)
    axes.text(0, 1.15, "63", fontsize=8, va="bottom")
    axes.text(8, 1.15, "32", fontsize=8, va="bottom", ha="right")
    _box(axes, 8, 0, 3, 1, facecolor="#eeeeee")
    axes.text(9.5, 0.5, "not used", ha="center", va="center", fontsize=9, color="#666666")
    for bit, name in reversed(list(enumerate(_FLAGS))):
        x = 11 + (len(_FLAGS) - 1 - bit)
        on = int(entry) >> bit & 1
        _box(axes, x, 0, 1, 1, facecolor=COLOURS[1] if on else "#ffffff")
        axes.text(x + 0.5, 0.5, str(on), ha="center", va="center", fontsize=11)
        axes.text(x + 0.5, -0.15, name, ha="right", va="top", fontsize=9, rotation=45, rotation_mode="anchor")
        axes.text(x + 0.5, 1.15, str(bit), fontsize=8, va="bottom", ha="center")
    _blank(axes)


def draw_weights(axes: Any, weights: npt.ArrayLike, frames: Sequence[int], page_size: int) -> None:
    """Draw how much of each token a query takes, page by page, with the frame that each page lies in.

    Parameters
    ----------
    axes : matplotlib axes
        Where to draw.
    weights : float array (num_tokens,)
        Attention weights, by position.
    frames : sequence of int (num_pages,)
        Frame of each page.
    page_size : int
        Positions in a page, >= 1.

    Raises
    ------
    ContractError
        There is no frame for a token.

    Notes
    -----
    Mutates: `axes`.
    """
    numbers = np.asarray(weights, np.float64)
    if numbers.ndim != 1 or len(numbers) > len(frames) * page_size:
        raise ContractError(
            f"draw_weights: weights do not fit the pages, got {numbers.shape}, need at most {len(frames) * page_size}"
        )
    top = float(numbers.max(initial=1e-30))
    for page, frame in enumerate(frames):
        first = page * page_size
        axes.axvspan(first - 0.5, first + page_size - 0.5, color="#dddddd" if page % 2 else "#f4f4f4", lw=0)
        axes.text(first + page_size / 2 - 0.5, 1.06 * top, f"page {page}\nframe {frame}", ha="center", fontsize=9)
    axes.bar(range(len(numbers)), numbers, color=COLOURS[0])
    axes.set(xlabel="position", ylabel="attention weight", ylim=(0, 1.25 * top))
    axes.set_xlim(-0.5, len(frames) * page_size - 0.5)


def draw_timeline(axes: Any, looks: Sequence[MemorySnapshot]) -> None:
    """Draw who holds each frame over time: a row for each frame, a column for each moment.

    Parameters
    ----------
    axes : matplotlib axes
        Where to draw.
    looks : sequence of MemorySnapshot
        Moments in order, of one pool.

    Notes
    -----
    Mutates: `axes`. A shared frame has the colour of its first holder and a dark dot.
    """
    from matplotlib.colors import to_rgb

    known = sorted({sequence.seq_id for look in looks for sequence in look.sequences})
    colour_of = {seq_id: _colour(index) for index, seq_id in enumerate(known)}
    picture = np.ones((len(looks[0].frames), len(looks), 3))
    dots = []
    for moment, look in enumerate(looks):
        for number, frame in enumerate(look.frames):
            if frame.holders:
                picture[number, moment] = to_rgb(colour_of[frame.holders[0][0]])
            elif frame.state != "free":
                picture[number, moment] = to_rgb(_CACHED)
            if len(frame.holders) > 1:
                dots.append((moment, number))
    axes.imshow(picture, aspect="auto", interpolation="nearest")
    if dots:
        edge = {"markeredgecolor": _FREE, "markeredgewidth": 0.5}  # to be seen on dark colours
        axes.plot(*zip(*dots, strict=True), "o", color=_INK, markersize=4, linestyle="none", **edge)
    axes.hlines(np.arange(len(looks[0].frames) - 1) + 0.5, -0.5, len(looks) - 0.5, color="white", linewidth=1.5)
    axes.set(xlabel="moment", ylabel="frame")
    axes.set_xticks(range(0, len(looks), max(1, len(looks) // 12)))
    axes.set_yticks(range(0, len(looks[0].frames), max(1, len(looks[0].frames) // 12)))
