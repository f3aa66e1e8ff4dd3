"""Draw the figure of the README: ``python docs/_ext/front_figure.py`` writes ``docs/_static/front.svg``.

A real manager serves two sequences, the second forked from the first; the figure is what its page tables say then. A
test draws it again and compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pagedref.memory import KVManager

PAGE_SIZE, NUM_FRAMES = 4, 8
FORK = "The capital of France is"
TEXTS = {"A": "The capital of France is Paris , on the Seine", "B": "The capital of France is home to the Louvre"}
STYLE = """
text { font: 13px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.small { font-size: 12px; fill: #59636e }
.a { fill: #cfe6f7; stroke: #0072b2 } .b { fill: #fbe3c8; stroke: #b25900 } .both { fill: #cdeee3; stroke: #007a5a }
.ground { fill: #ffffff } .free { fill: none; stroke: #8c959f; stroke-dasharray: 4 4 }
.slot { stroke: #8c959f; stroke-opacity: .5 }
path { fill: none; stroke-width: 1.6 } .to-a { stroke: #0072b2 } .to-b { stroke: #b25900; stroke-dasharray: 6 3 }
.tip { stroke-dasharray: none }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117 } text { fill: #f0f6fc } .small { fill: #9198a1 }
  .a { fill: #0b3a57 } .b { fill: #4d2f0e } .both { fill: #0d4536 }
  .to-a { stroke: #56b4e9 } .to-b { stroke: #e69f00 }
}
"""


def serve() -> tuple[KVManager, dict[str, int], list[str]]:
    """Fork B from A after the words that they share, let both go on, and return who wrote what where."""
    manager = KVManager(num_frames=NUM_FRAMES, page_size=PAGE_SIZE, frame_order=[5, 1, 6, 3, 0, 7, 2, 4])
    words = [""] * (NUM_FRAMES * PAGE_SIZE)

    def write(sequence: int, text: list[str]) -> None:
        plan = manager.reserve(sequence, len(text))
        for source, target in zip(plan.src, plan.dst):
            span = slice(source * PAGE_SIZE, (source + 1) * PAGE_SIZE)
            words[target * PAGE_SIZE : (target + 1) * PAGE_SIZE] = words[span]
        for slot, word in zip(manager.slots(sequence, len(text)), text):
            words[slot] = word
        manager.commit(sequence, len(text))

    shared = FORK.split()
    first = manager.add()
    write(first, shared)
    second = manager.fork(first)
    write(second, TEXTS["B"].split()[len(shared) :])
    write(first, TEXTS["A"].split()[len(shared) :])
    manager.audit()
    return manager, {"A": first, "B": second}, words


def box(kind: str, x: float, y: float, width: float, words: list[str]) -> list[str]:
    """Draw a page or a frame: a column of slots with a word in each."""
    lines = [f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="88" rx="5"/>']
    lines += [f'<line class="slot" x1="{x}" x2="{x + width}" y1="{y + 22 * i}" y2="{y + 22 * i}"/>' for i in (1, 2, 3)]
    middle = x + width / 2
    lines += [
        f'<text x="{middle}" y="{y + 22 * i + 16}" text-anchor="middle">{word}</text>' for i, word in enumerate(words)
    ]
    return lines


def figure() -> str:
    """Return the figure as SVG."""
    manager, sequences, words = serve()
    holders = manager.refcount
    lines: list[str] = []
    arrows: list[str] = []
    for place, (name, sequence) in enumerate(sequences.items()):
        left, text = 20 + 440 * place, TEXTS[name].split()
        title = f"sequence {name}, {len(text)} tokens" + (f", forked from A after {len(FORK.split())}" if place else "")
        lines.append(f'<text x="{left}" y="22">{title}</text>')
        for page, frame in enumerate(manager.block_table(sequence).ravel().tolist()):
            x, target = left + 128 * page, 8 + 108 * frame + 50 + (12 if place else -12)
            lines += box(name.lower(), x, 34, 118, text[page * PAGE_SIZE : (page + 1) * PAGE_SIZE])
            lines.append(f'<text class="small" x="{x}" y="138">page {page}</text>')
            arrows += [
                f'<path class="to-{name.lower()}" d="M{x + 59} 126 C{x + 59} 180 {target} 150 {target} 202"/>',
                f'<path class="to-{name.lower()} tip" d="M{target - 5} 196 L{target} 203 L{target + 5} 196"/>',
            ]
    tables = {name: manager.block_table(sequence).ravel().tolist() for name, sequence in sequences.items()}
    for frame in range(NUM_FRAMES):
        who = [name for name, frames in tables.items() if frame in frames]
        kind = "free" if not who else "both" if len(who) > 1 else who[0].lower()
        x = 8 + 108 * frame
        lines += box(kind, x, 206, 100, words[frame * PAGE_SIZE : (frame + 1) * PAGE_SIZE] if who else [])
        label = f"frame {frame}" + (", shared" if len(who) > 1 else "" if who else ", free")
        lines.append(f'<text class="small" x="{x}" y="310">{label}</text>')
    used = int(np.count_nonzero(holders))
    tokens = sum(len(text.split()) for text in TEXTS.values())
    lines.append(
        f'<text class="small" x="8" y="334">One pool: the {tokens} tokens of both in {used} frames of {PAGE_SIZE}. '
        "The page that both had begun was copied when one of them wrote on.</text>"
    )
    name = "Two sequences; their page tables lead to frames anywhere in one pool. One frame is shared."
    body = "\n".join([*arrows, *lines])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 876 346" role="img" aria-label="{name}">\n'
        f'<style>{STYLE}</style>\n<rect class="ground" width="876" height="346" rx="8"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "_static" / "front.svg"
    path.write_text(figure())
    sys.stdout.write(f"{path.name}: {len(figure())} bytes\n")
