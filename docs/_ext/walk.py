"""Record a walk through the memory for the interactive page: ``.. memory-walk::``.

A real manager is driven through a short story; after each step its snapshot is kept, and the words that lie in each
slot. The page is plain HTML that shows the first step, with all steps beside it as JSON; ``_static/walk.js`` moves
between them. Nothing on the page is drawn by hand: change the manager, and the page changes.
"""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from pagedref.errors import OutOfFrames
from pagedref.memory import KVManager
from pagedref.memory.snapshot import snapshot

PAGE_SIZE = 4
ORDER = [5, 2, 6, 0, 7, 3, 1, 4]


class Walk:
    """A manager, the words in its slots, and what was seen after each step."""

    def __init__(self) -> None:
        self.manager = KVManager(num_frames=len(ORDER), page_size=PAGE_SIZE, frame_order=ORDER)
        self.words: list[str] = []  # id of a token = place of its word
        self.slots = [""] * (len(ORDER) * PAGE_SIZE)
        self.names: dict[int, str] = {}
        self.steps: list[dict[str, Any]] = []

    def ids(self, words: str) -> list[int]:
        """Return the token ids of words."""
        self.words += [word for word in dict.fromkeys(words.split()) if word not in self.words]
        return [self.words.index(word) for word in words.split()]

    def show(self, title: str, code: str, text: str) -> None:
        """Keep what the memory looks like now."""
        look = snapshot(self.manager)
        for number, frame in enumerate(look.frames):  # what nobody could read any more is not shown
            for offset in range(frame.live, PAGE_SIZE):
                self.slots[number * PAGE_SIZE + offset] = ""
        step = {"title": title, "code": code, "text": text, "words": list(self.slots), **look.as_dict()}
        for sequence in step["sequences"]:
            sequence["name"] = self.names[sequence["seq_id"]]
        self.steps.append(step)

    def admit(self, name: str, words: str) -> int:
        """Begin a request: what its prompt shares with the cache, and room for the rest."""
        seq_id, hit, _ = self.manager.admit(self.ids(words))
        self.names[seq_id] = name
        self.pending = words.split()[hit.num_tokens :]
        return seq_id

    def write(self, seq_id: int, words: str) -> None:
        """Write words at the reserved slots and commit them."""
        new = words.split()
        for slot, word in zip(self.manager.slots(seq_id, len(new)).tolist(), new, strict=True):
            self.slots[slot] = word
        self.manager.commit(seq_id, len(new), self.ids(words))

    def append(self, seq_id: int, words: str) -> None:
        """Make room, copy what must be copied, write."""
        plan = self.manager.reserve(seq_id, len(words.split()))
        for src, dst in zip(plan.src.tolist(), plan.dst.tolist(), strict=True):
            self.slots[dst * PAGE_SIZE : (dst + 1) * PAGE_SIZE] = self.slots[src * PAGE_SIZE : (src + 1) * PAGE_SIZE]
        self.write(seq_id, words)


def record() -> list[dict[str, Any]]:
    """Tell the story and return its steps."""
    walk = Walk()
    manager = walk.manager
    walk.show(
        "An empty pool", "manager = KVManager(num_frames=8, page_size=4)",
        "Eight frames of four slots, all free. No sequence, no table.",
    )
    a = walk.admit("a", "the cat sat on the mat")
    walk.show(
        "A request arrives", 'a, hit, plan = manager.admit("the cat sat on the mat")',
        "Six tokens need two pages, and each page takes one frame, any frame. The table of a remembers which. "
        "Nothing is written yet: the slots are reserved.",
    )
    walk.write(a, "the cat sat on the mat")
    walk.show(
        "Its prompt is written", "manager.commit(a, 6)",
        "Position 5 is page 1, offset 1; the table says which frame, and so which slot. The two empty slots of page 1 "
        "are the only waste. Page 0 is full: it can be shared from now on (S in its entry) and is never written again.",
    )
    walk.append(a, "and")
    walk.show(
        "One more token", "manager.reserve(a, 1); manager.commit(a, 1)",
        "It still fits into the last page. No frame is taken.",
    )
    walk.append(a, "slept so")
    walk.show(
        "Position 8 needs a page", "manager.reserve(a, 2); manager.commit(a, 2)",
        "Position 7 fills page 1, position 8 begins page 2: one frame is taken on demand, and no sooner.",
    )
    b = manager.fork(a)
    walk.names[b] = "b"
    walk.show(
        "Fork", "b = manager.fork(a)",
        "b continues the same text in its own way. All three pages are shared, nothing is copied: b has a table of its "
        "own with the same frames. The entries of the last page, too, say S, shared, and no longer W, writable.",
    )
    walk.append(b, "well")
    walk.show(
        "Copy on write", "plan = manager.reserve(b, 1)   # says: copy this frame to that one",
        "b writes position 9, in a page that a reads too. So b gets a copy of that one page first. "
        "The two full pages stay shared.",
    )
    walk.append(a, "soundly")
    walk.show(
        "The last holder writes in place", "manager.reserve(a, 1); manager.commit(a, 1)",
        "Now a is the only holder of its last page, so it writes there without a copy.",
    )
    manager.free(a)
    walk.show(
        "a ends", "manager.free(a)",
        "Its last page has no holder left. It was not full, so nobody could ever ask for it: the frame is free. "
        "The two full pages still belong to b.",
    )
    manager.free(b)
    walk.show(
        "b ends too", "manager.free(b)",
        "The two full pages lose their last holder, but not their content: they are cached. "
        "Whoever comes with the same beginning need not compute them again.",
    )
    c = walk.admit("c", "the cat sat on the roof and sang")
    walk.show(
        "A hit, up to a difference", 'c, hit, plan = manager.admit("the cat sat on the roof and sang")',
        "The first page of c is in the pool, with the very same tokens: c shares it and computes only the rest. "
        "The second differs in its second token, so it gets a fresh frame.",
    )
    walk.write(c, " ".join(walk.pending))
    d = walk.admit("d", "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen")
    walk.write(d, " ".join(walk.pending))
    walk.show(
        "A long one", "d, hit, plan = manager.admit(fifteen_other_words)",
        "d shares nothing and takes four frames that were free. The cached page is left alone while others "
        "are free.",
    )
    walk.append(d, "sixteen seventeen")
    walk.show(
        "Nearly full", "manager.reserve(d, 2); manager.commit(d, 2)",
        "One token fits, the next needs a fifth page. The last free frame goes.",
    )
    walk.append(c, "a song")
    walk.show(
        "Eviction", "manager.reserve(c, 2); manager.commit(c, 2)",
        "c needs a frame and none is free. The cached page that was used longest ago is given up: what it held can no "
        "longer be hit.",
    )
    e = manager.fork(d)
    walk.names[e] = "e"
    try:
        manager.reserve(e, 1)
    except OutOfFrames as error:
        said = str(error)
    walk.show(
        "Out of frames", f"e = manager.fork(d); manager.reserve(e, 1)\n# OutOfFrames: {said}",
        "Sharing is free, so the fork succeeds. But e may not write into the page that d reads, and there is no frame "
        "for a copy. The refusal changes nothing (S26): an engine would preempt somebody now.",
    )
    manager.free([c, d, e])
    walk.show(
        "All end", "manager.free([c, d, e])",
        "No holder is left. Full pages are cached, the others free, and every frame is one of the two: "
        "free + held + cached is the size of the pool after every step (S25).",
    )
    manager.audit()
    return walk.steps


class MemoryWalk(Directive):
    """``.. memory-walk::``: the page's frame, its data and its script."""

    def run(self) -> list[nodes.Node]:
        steps = record()
        data = json.dumps({"steps": steps}, separators=(",", ":")).replace("<", "\\u003c")
        html = (
            '<div id="walk" class="walk" tabindex="0" aria-label="Steps through the memory">'
            '<noscript>This page needs JavaScript; <a href="learn/03_pages_frames_page_table.html">the tutorial</a> '
            "shows the same in text.</noscript></div>"
            f'<script type="application/json" id="walk-data">{data}</script>'
        )
        return [nodes.raw("", html, format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("memory-walk", MemoryWalk)
    app.add_js_file("walk.js", loading_method="defer")
    app.add_css_file("walk.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
