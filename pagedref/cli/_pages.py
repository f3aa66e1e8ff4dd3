"""The view of ``--show-pages``: every frame of the pool as one sign, and under it who holds how many.

``render`` draws the frames of an engine as lines of text and knows no terminal; ``Screen`` puts lines onto one, over
and over in the same place.
"""

from __future__ import annotations

import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from pagedref.engine import FrameUse

__all__ = ["Screen", "Tenant", "fit", "render"]

_FREE, _CACHED, _SHARED, _MANY = ".", "+", "*", "#"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COLOURS = (32, 33, 34, 35, 36, 91, 92, 94, 95, 96)
_MOST_ROWS = 16  # of frames; a larger pool shows several frames as one sign
_PAUSE = 0.04  # seconds between two pictures at least


@dataclass
class Tenant:
    """Describe one request.

    Attributes
    ----------
    name : str
        What it is about.
    tokens : int
        Of prompt and texts.
    text : str
        What it has said so far.
    ended : bool
        Whether it has left.
    """

    name: str
    tokens: int = 0
    text: str = ""
    ended: bool = False


def fit(text: str, width: int, *, tail: bool = False) -> str:
    """Return text as one line of at most `width` columns; of what is too long the beginning, or the end.

    Parameters
    ----------
    text : str
        Anything; control characters become spaces.
    width : int
        Columns of the terminal, >= 0; a letter of East Asia takes two.
    tail : bool
        Whether to keep the end.

    Returns
    -------
    str
    """
    line = " ".join("".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text).split())
    if _columns(line) <= width:
        return line
    kept = ""
    for letter in reversed(line) if tail else line:
        if _columns(kept + letter) > width - 1:
            break
        kept = letter + kept if tail else kept + letter
    return "" if width < 1 else "…" + kept if tail else kept + "…"


def _columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )  # fmt: skip


def render(
    frames: Sequence[FrameUse], tenants: Sequence[Tenant], *, width: int, heading: str = "", colour: bool = False
) -> list[str]:
    """Draw the pool and who lives in it.

    Parameters
    ----------
    frames : sequence of FrameUse
        Every frame of the pool.
    tenants : sequence of Tenant
        Requests by number. The first 26 have a letter, the others share a sign.
    width : int
        Columns, >= 1; no line is longer.
    heading : str
        Put before the counts.
    colour : bool
        Whether signs have the escape codes of colours.

    Returns
    -------
    list of str
    """
    signs = [_sign(frame) for frame in frames]
    shared, cached, free = (signs.count(sign) for sign in (_SHARED, _CACHED, _FREE))
    held = len(signs) - cached - free
    counts = f"{len(signs)} frames: {held} held ({shared} shared), {cached} cached, {free} free"
    lines = [fit(heading + counts, width)]
    margin = len(str(len(signs))) + 1
    margin = margin if width >= margin + 8 else 0
    room = width - margin
    room -= room % 8 if room >= 16 else 0
    each = -(-len(signs) // (room * _MOST_ROWS))  # frames that one sign stands for
    cells = [_most(signs[at : at + each]) for at in range(0, len(signs), each)]
    for at in range(0, len(cells), room):
        first = f"{at * each:>{margin - 1}} " if margin else ""
        lines.append(first + "".join(_paint(cell, colour) for cell in cells[at : at + room]))
    several = f"; one sign stands for {each} frames" if each > 1 else ""
    lines.append(fit(f"{_SHARED} shared, {_CACHED} cached, {_FREE} free{several}", width))
    for number, tenant in enumerate(tenants):
        if not tenant.ended:
            lines.append(_legend(number, tenant, frames, width, colour))
    return lines


def _legend(number: int, tenant: Tenant, frames: Sequence[FrameUse], width: int, colour: bool) -> str:
    """Return the line of one request: its sign, what it holds, what it is about, and the end of its text."""
    own = [frame for frame in frames if any(request == number for request, _, _ in frame.holders)]
    shared = sum(frame.is_shared for frame in own)
    facts = f"{tenant.tokens} tokens in {len(own)} frames" if own else "waits"
    if shared:
        facts += f", {shared} shared"
    line = fit(f"{_letter(number)} {facts}: {tenant.name}", width if not tenant.text else min(width, 56))
    room = width - _columns(line) - 2
    if tenant.text and room > 8:
        line += "  " + fit(tenant.text, room, tail=True)
    return _paint(line[:1], colour) + line[1:]


def _letter(number: int) -> str:
    return _LETTERS[number] if number < len(_LETTERS) else _MANY


def _sign(frame: FrameUse) -> str:
    """Return the sign of a frame."""
    if frame.is_shared:
        return _SHARED
    if frame.holders:
        return _letter(frame.holders[0][0])
    return _CACHED if frame.cached else _FREE


def _most(signs: list[str]) -> str:
    """Return the sign that stands for several frames: the one that most of them have, of equal ones the first."""
    return max(signs, key=signs.count)


def _paint(sign: str, colour: bool) -> str:
    """Return a sign with its colour."""
    if not colour:
        return sign
    if sign in (_FREE, _CACHED):
        return f"\x1b[2m{sign}\x1b[0m"
    if sign == _SHARED:
        return f"\x1b[1;7m{sign}\x1b[0m"
    return f"\x1b[1;{_COLOURS[_LETTERS.find(sign) % len(_COLOURS)]}m{sign}\x1b[0m"


class Screen:
    """Show lines in the same place of a terminal again and again.

    Parameters
    ----------
    stream : text stream
        A terminal; on anything else nothing is shown until the end.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.live = self._stream.isatty()
        """Whether pictures follow each other."""
        self._drawn, self._last = 0, 0.0

    @property
    def width(self) -> int:
        """Columns that a line may have; the last one of a terminal stays empty, so that no line wraps."""
        return max(1, shutil.get_terminal_size((80, 24)).columns - 1)

    @property
    def is_due(self) -> bool:
        """Whether the last picture is old enough."""
        return self.live and time.monotonic() - self._last >= _PAUSE

    def draw(self, lines: list[str]) -> None:
        """Replace the last picture."""
        up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        height = shutil.get_terminal_size((80, 24)).lines - 1
        shown = lines if len(lines) <= height else lines[: max(1, height)]  # what scrolls away cannot be replaced
        self._stream.write(up + "\n".join(shown) + "\n")
        self._stream.flush()
        self._drawn, self._last = len(shown), time.monotonic()

    def clear(self) -> None:
        """Take the last picture away."""
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}F\x1b[J")
            self._stream.flush()
            self._drawn = 0
