"""Draw the table of the study of quantised caches: ``.. study-chart:: quantised_caches.txt``.

The picture is made of the printed table when the site is built, so the two cannot disagree. Each format has a line: a
bar for its bytes, and beside it, on a logarithmic axis, what it changes in the perplexity.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

FLOOR, CEILING = 0.01, 100.0  # percent: ends of the axis; what is less than the floor is drawn on it
LEFT, BAR, AXIS, WIDTH, TOP, LINE = 128, 180, 366, 330, 62, 26


class Row(NamedTuple):
    """What is drawn of one format; changes in percent."""

    name: str
    num_bytes: int
    change: float
    error: float
    keys: float
    values: float


def rows_of(text: str) -> list[Row]:
    """Read the table that the example prints."""
    rows = []
    for line in text.splitlines():
        name, cells = line[:15].strip(), line[15:].replace("±", " ").replace("%", " ").replace(",", "").split()
        if name and len(cells) == 11 and cells[0].isdigit():
            change, error, keys, values = (float(cell) for cell in cells[5:9])
            rows.append(Row(name, int(cells[0]), change, error, keys, values))
    return rows


def at(percent: float) -> float:
    """Return where a change lies on the axis."""
    share = math.log(min(max(percent, FLOOR), CEILING) / FLOOR) / math.log(CEILING / FLOOR)
    return AXIS + WIDTH * share


def drawn(rows: list[Row]) -> str:
    """Return the drawing as HTML."""
    bottom = TOP + LINE * len(rows)
    widest = max(row.num_bytes for row in rows)
    parts = [
        '<figure class="drawing">',
        f'<svg viewBox="0 0 720 {bottom + 26}" role="img" aria-labelledby="study-title">',
        '<title id="study-title">Bytes of one token and change of the perplexity, for each format; '
        "the numbers are those of the table.</title>",
        f'<text x="{LEFT}" y="20">bytes per token</text>',
        f'<text x="{AXIS}" y="20">perplexity, change against float32</text>',
        *mark("whole", AXIS + 4, 37), f'<text class="small" x="{AXIS + 14}" y="41">both ± standard error</text>',
        *mark("keys", AXIS + 172, 37), f'<text class="small" x="{AXIS + 182}" y="41">only keys</text>',
        *mark("values", AXIS + 252, 37), f'<text class="small" x="{AXIS + 262}" y="41">only values</text>',
    ]  # fmt: skip
    for percent in (0.01, 0.1, 1, 10, 100):
        x, less = at(percent), "≤ " if percent == FLOOR else ""
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>')
        label = f"{less}{percent:g} %"
        parts.append(f'<text class="small" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    for index, row in enumerate(rows):
        y = TOP + LINE * index + LINE / 2 - 4
        bar = BAR * row.num_bytes / widest
        parts.append(f'<text class="small mono" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{row.name}</text>')
        parts.append(f'<rect class="page" x="{LEFT}" y="{y - 8}" width="{bar:.1f}" height="16" rx="2"/>')
        parts.append(f'<text class="small" x="{LEFT + bar + 5:.1f}" y="{y + 4}">{row.num_bytes:,}</text>')
        if row is not rows[0]:
            low, high = at(row.change - row.error), at(row.change + row.error)
            parts.append(f'<line class="arrow" x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}"/>')
            for kind, change in (("values", row.values), ("keys", row.keys), ("whole", row.change)):
                parts += mark(kind, at(change), y)
    return "\n".join([*parts, "</svg>", "</figure>"])


def mark(kind: str, x: float, y: float) -> list[str]:
    """Return one mark: a circle for the whole cache, a diamond for keys, a triangle for values."""
    if kind == "whole":
        return [f'<circle class="mark" cx="{x:.1f}" cy="{y}" r="4.5"/>']
    corners = [(0, -6), (6, 0), (0, 6), (-6, 0)] if kind == "keys" else [(-6, 5), (6, 5), (0, -6)]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return [f'<polygon class="{"hot" if kind == "keys" else "frame"}" points="{points}"/>']


class StudyChart(Directive):
    """``.. study-chart:: FILE``: the table in a file beside the page, drawn."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        env = self.state.document.settings.env
        path = Path(env.doc2path(env.docname)).parent / self.arguments[0]
        env.note_dependency(str(path))
        rows = rows_of(path.read_text(encoding="utf-8"))
        if not rows:
            raise self.error(f"study-chart: {path.name} holds no table, need what examples/quantised_caches.py prints")
        return [nodes.raw("", drawn(rows), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("study-chart", StudyChart)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
