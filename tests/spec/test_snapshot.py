"""Snapshots say what the manager says: states, holders, live slots, after any operation."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import OutOfFrames
from pagedref.memory import KVManager
from pagedref.memory.snapshot import snapshot


class Balanced(HTMLParser):
    """Demand that every tag that opens is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def agrees(manager: KVManager) -> None:
    look, stats = snapshot(manager), manager.stats()
    states = [frame.state for frame in look.frames]
    assert [states.count(state) for state in ("free", "held", "cached")] == [stats.free, stats.held, stats.cached]
    assert [len(frame.holders) for frame in look.frames] == manager.refcount.tolist()
    assert sum(frame.live for frame in look.frames if frame.state == "held") == stats.stored_tokens
    for sequence in look.sequences:
        assert sequence.seq_len == manager.seq_len(sequence.seq_id)
        assert list(sequence.frames) == manager.table(sequence.seq_id).frames().tolist()
        for page, frame in enumerate(sequence.frames):
            assert (sequence.seq_id, page) in look.frames[frame].holders
            if len(look.frames[frame].holders) > 1:
                assert sequence.flags[page][:3] == "P.S"  # never writable while it is shared (S27)
    assert json.loads(json.dumps(look.as_dict()))["page_size"] == manager.page_size
    page = Balanced()
    page.feed(manager._repr_html_())
    assert not page.open
    assert page.seen.count("tr") == (1 + len(look.sequences) if look.sequences else 0)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), page_size=st.integers(1, 4), num_frames=st.integers(1, 9))
def test_a_snapshot_says_what_the_manager_says(data: st.DataObject, page_size: int, num_frames: int) -> None:
    manager = KVManager(num_frames=num_frames, page_size=page_size)
    live: list[int] = []
    for _ in range(data.draw(st.integers(0, 12))):
        what = data.draw(st.sampled_from(["admit", "grow", "fork", "free"]))
        try:
            if what == "admit":
                tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=8))
                seq_id, hit, _ = manager.admit(tokens)
                manager.commit(seq_id, len(tokens) - hit.num_tokens)
                live.append(seq_id)
            elif live and what == "grow":
                seq_id = data.draw(st.sampled_from(live))
                manager.reserve(seq_id, 1)
                agrees(manager)
                manager.commit(seq_id, 1, np.array([data.draw(st.integers(0, 1))]))
            elif live and what == "fork":
                live.append(manager.fork(data.draw(st.sampled_from(live))))
            elif live:
                seq_id = data.draw(st.sampled_from(live))
                live.remove(seq_id)
                manager.free(seq_id)
        except OutOfFrames:
            pass
        agrees(manager)
    manager.audit()


def test_looking_changes_nothing() -> None:
    manager = KVManager(num_frames=3, page_size=2)
    seq_id, _, _ = manager.admit([1, 2, 3])
    manager.commit(seq_id, 3)
    assert snapshot(manager) == snapshot(manager)
    manager.audit()
