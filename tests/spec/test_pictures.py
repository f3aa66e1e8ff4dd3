"""Pictures show what the snapshot says: as many arrows, fills and stripes as there are pages, slots and holders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.memory import KVManager
from pagedref.memory.snapshot import MemorySnapshot, snapshot

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pagedref[plot]'")

from matplotlib.figure import Figure
from matplotlib.text import Annotation

from pagedref.plotting.pictures import draw_entry, draw_pool, draw_tables, draw_timeline, draw_weights


def axes() -> Any:
    return Figure().subplots()


def a_life(seed: int, page_size: int) -> list[MemorySnapshot]:
    """Return snapshots of a short random life of a pool of eight frames."""
    rng = np.random.default_rng(seed)
    manager = KVManager(num_frames=8, page_size=page_size)
    looks = [snapshot(manager)]
    for _ in range(5):
        live = manager.sequences
        if live and rng.random() < 0.3:
            manager.free(int(rng.choice(live)))
        elif live and rng.random() < 0.5:
            manager.fork(int(rng.choice(live)))
        elif manager.num_available >= 3:
            tokens = rng.integers(0, 2, 1 + rng.integers(2 * page_size))
            seq_id, hit, _ = manager.admit(tokens)
            manager.commit(seq_id, len(tokens) - hit.num_tokens)
        looks.append(snapshot(manager))
    manager.audit()
    return looks


def arrows(drawn: Any) -> int:
    return sum(isinstance(text, Annotation) and text.arrow_patch is not None for text in drawn.texts)


def filled(drawn: Any, alpha: float) -> int:
    return sum(patch.get_alpha() == alpha for patch in drawn.patches)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), page_size=st.integers(1, 4))
def test_pool_and_tables(seed: int, page_size: int) -> None:
    for look in a_life(seed, page_size):
        held = sum(frame.live for frame in look.frames if frame.holders)
        stripes = sum(max(0, len(frame.holders) - 1) for frame in look.frames)
        slots = 2 * page_size * len(look.frames)
        drawn = axes()
        draw_pool(drawn, look, words=[f"w{slot}" for slot in range(page_size * 8)])
        assert filled(drawn, 0.55) == held
        assert len(drawn.patches) == slots + stripes
        assert len(drawn.texts) == 8 + sum(frame.live for frame in look.frames)
        drawn = axes()
        draw_tables(drawn, look)
        entries = sum(len(sequence.frames) for sequence in look.sequences)
        assert arrows(drawn) == sum(frame >= 0 for sequence in look.sequences for frame in sequence.frames)
        assert filled(drawn, 0.35) == entries
        assert len(drawn.patches) == entries + slots + stripes


@given(entry=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=20)
def test_an_entry_bit_by_bit(entry: int) -> None:
    drawn = axes()
    draw_entry(drawn, entry)
    said = [text.get_text() for text in drawn.texts]
    assert (f"frame {entry >> 32}" if entry >> 32 != 2**32 - 1 else "no frame") in said
    bits = [said[said.index(name) - 1] for name in ("present", "writable", "shared", "accessed", "dirty")]
    assert bits == [str(entry >> bit & 1) for bit in range(5)]


def test_weights_and_time() -> None:
    drawn = axes()
    draw_weights(drawn, [0.5, 0.25, 0.25], [7, 3], 2)
    assert [text.get_text() for text in drawn.texts] == ["page 0\nframe 7", "page 1\nframe 3"]
    looks = a_life(3, 2)
    drawn = axes()
    draw_timeline(drawn, looks)
    picture = drawn.images[0].get_array()
    assert picture.shape == (8, len(looks), 3)
    white = (picture == 1).all(axis=2)
    assert white.T.tolist() == [[frame.state == "free" for frame in look.frames] for look in looks]


def test_what_does_not_fit_is_refused() -> None:
    for entry in (-1, 2**64):
        with pytest.raises(ContractError, match="draw_entry: entry is out of range"):
            draw_entry(axes(), entry)
    with pytest.raises(ContractError, match="draw_weights: weights do not fit the pages"):
        draw_weights(axes(), np.ones(5), [0, 1], 2)
