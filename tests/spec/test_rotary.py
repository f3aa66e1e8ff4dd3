"""Rotary embedding: pairs, partial width, layouts, shifts; and the scalings against published numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.attention import paged_decode, paged_prefill, scalings
from pagedref.attention.rotary import LAYOUTS, Rotary, shift_positions
from pagedref.attention.textbook import textbook_prefill
from pagedref.conformance import assert_state, make_case, oracle
from pagedref.errors import ContractError
from pagedref.kv_format import KVFormat

layouts = st.sampled_from(LAYOUTS)


def by_hand(x: Any, position: int, rotary: Rotary) -> Any:
    """Turn one head with complex numbers."""
    result = x.astype(np.float64).copy()
    half = len(rotary.inv_freq)
    for pair, freq in enumerate(rotary.inv_freq):
        a, b = (pair, pair + half) if rotary.layout == "half" else (2 * pair, 2 * pair + 1)
        number = complex(x[a], x[b]) * rotary.magnitude * np.exp(1j * position * freq)
        result[a], result[b] = number.real, number.imag
    return result


@given(seed=st.integers(0, 2**32 - 1), layout=layouts, dim=st.integers(2, 9), position=st.integers(-50, 5000))
def test_pairs_are_turned_and_the_rest_passes(seed: int, layout: str, dim: int, position: int) -> None:
    rng = np.random.default_rng(seed)
    rotary = Rotary(rng.random(rng.integers(1, dim // 2 + 1)), layout, 1.25)
    x = rng.standard_normal((1, 2, dim))
    turned = rotary.apply(x, np.array([position]))
    for head in range(2):
        assert np.abs(turned[0, head] - by_hand(x[0, head], position, rotary)).max() < 1e-11
    assert (turned[..., rotary.rotary_dim :] == x[..., rotary.rotary_dim :]).all(), "P67: not turned at all"


@given(seed=st.integers(0, 2**32 - 1), layout=layouts, delta=st.integers(-100, 100))
def test_scores_depend_on_distance_alone(seed: int, layout: str, delta: int) -> None:
    rng = np.random.default_rng(seed)
    rotary = Rotary.plain(6, layout=layout)
    q, k = (rng.standard_normal((1, 1, 8)) for _ in range(2))
    score = (rotary.apply(q, np.array([200])) * rotary.apply(k, np.array([190]))).sum()
    moved = (rotary.apply(q, np.array([200 + delta])) * rotary.apply(k, np.array([190 + delta]))).sum()
    assert abs(score - moved) < 1e-10


@given(seed=st.integers(0, 2**32 - 1), layout=layouts, start=st.integers(0, 3000), delta=st.integers(-3000, 3000))
def test_a_cached_passage_moves(seed: int, layout: str, start: int, delta: int) -> None:
    """Keys rotated for one place and shifted are keys rotated for the other, in float64 and in float32."""
    rng = np.random.default_rng(seed)
    rotary = Rotary(Rotary.plain(8).inv_freq, layout, 1.1)
    keys = rng.standard_normal((5, 2, 10))
    positions = start + np.arange(5)
    wanted = rotary.apply(keys, positions + delta)
    shifted = shift_positions(rotary.apply(keys, positions), delta, rotary)
    assert np.abs(shifted - wanted).max() < 1e-10
    narrow = shift_positions(rotary.apply(keys.astype(np.float32), positions), np.full(5, delta), rotary)
    assert narrow.dtype == np.float32
    assert np.abs(narrow - wanted).max() < 1e-5


@given(seed=st.integers(0, 2**32 - 1), layout=layouts)
def test_layouts_are_a_reordering(seed: int, layout: str) -> None:
    rng = np.random.default_rng(seed)
    rotary = Rotary(rng.random(3), layout)
    other = Rotary(rotary.inv_freq, LAYOUTS[1 - LAYOUTS.index(layout)])
    x = rng.standard_normal((4, 1, 8))
    there = other.apply(rotary.to_layout(x, other.layout), np.arange(4))
    assert (other.to_layout(there, layout) == rotary.apply(x, np.arange(4))).all()


def test_one_table_for_prefill_and_decode() -> None:
    """P66: a position has the same bits alone and in a batch."""
    rotary = Rotary.plain(64, 500000.0)
    x = np.random.default_rng(0).standard_normal((1000, 1, 64)).astype(np.float32)
    whole = rotary.apply(x, np.arange(1000))
    for position in (0, 1, 742, 999):
        alone = rotary.apply(x[position : position + 1], np.array([position]))
        assert (alone == whole[position : position + 1]).all()


def test_llama3_as_reported() -> None:
    """P66: theta 500,000, head 64, factor 32, low 1, high 4, original 8,192."""
    plain = Rotary.plain(64, 500000.0).inv_freq
    ratio = scalings.llama3(plain, 32, 1, 4, 8192) / plain
    assert (ratio[:15] == 1).all()
    assert ratio[15:18].round(5).tolist() == [0.60557, 0.30374, 0.10345]
    assert (ratio[18:] == 1 / 32).all()


def test_scalings_at_their_ends() -> None:
    plain = Rotary.plain(64).inv_freq
    assert (scalings.linear(plain, 4.0) == plain / 4).all()
    same, magnitude = scalings.yarn(plain, 1.0, 2048, 10000.0)
    assert np.allclose(same, plain, rtol=1e-15) and magnitude == 1.0
    stretched, magnitude = scalings.yarn(plain, 8.0, 2048, 10000.0)
    ratio = stretched / plain
    assert (np.diff(ratio) <= 1e-15).all() and ratio[0] == 1 and abs(ratio[-1] - 1 / 8) < 1e-15
    assert abs(magnitude - (0.1 * np.log(8) + 1)) < 1e-15
    assert scalings.dynamic_theta(10000.0, 64, 1.0, 100, 200) == 10000.0
    assert scalings.dynamic_theta(10000.0, 64, 2.0, 400, 200) == 10000.0 * 3 ** (64 / 62)
    long, magnitude = scalings.longrope(plain, np.full(32, 2.0), 4096, 4096)
    assert (long == plain / 2).all() and magnitude == 1.0
    assert scalings.longrope(plain, np.ones(32), 131072, 4096)[1] == np.sqrt(1 + np.log(32) / np.log(4096))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Rotary(np.array([np.nan])),
        lambda: Rotary(np.ones((2, 2))),
        lambda: Rotary(np.ones(2), "pairs"),
        lambda: Rotary(np.ones(2), magnitude=0.0),
        lambda: Rotary.plain(3),
        lambda: Rotary.plain(8).apply(np.zeros((2, 1, 4)), np.arange(2)),
        lambda: Rotary.plain(4).apply(np.zeros((2, 1, 4)), np.arange(3)),
    ],
)
def test_refusals(wrong: Any) -> None:
    with pytest.raises(ContractError, match=r"Rotary"):
        wrong()


@pytest.mark.parametrize("form", [KVFormat("float32"), KVFormat("bfloat16"), KVFormat("int8", "slot_head")], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_are_turned_as_they_are_read(form: KVFormat, layout: str) -> None:
    """``rotary=`` over unrotated keys equals a cache of rotated ones, in every path, over pages, windows and holes."""
    rotary = Rotary(Rotary.plain(6).inv_freq, layout)
    case = make_case(3, [3, 1], [11, 9], page_size=3, form=form, window=5)
    turned = [rotary.apply(keys.astype(np.float32), np.arange(len(keys))) for keys in case.keys]
    expected = oracle(replace(case, keys=turned))
    keywords: dict[str, Any] = {**case.keywords, **case.stored, "rotary": rotary}
    assert_state(paged_prefill(case.q, case.qo_indptr, *case.pages, **keywords), expected, "fast")
    assert_state(textbook_prefill(case.q, case.qo_indptr, *case.pages, **keywords), expected, "textbook")
    single = make_case(4, [1, 1], [11, 9], page_size=3, form=form)
    turned = [rotary.apply(keys.astype(np.float32), np.arange(len(keys))) for keys in single.keys]
    state = paged_decode(single.q, *single.pages, rotary=rotary, **single.stored)
    assert_state(state, oracle(replace(single, keys=turned)), "decode")


def test_a_rotation_wider_than_a_key_is_refused() -> None:
    case = make_case(5, [1], [3])
    with pytest.raises(ContractError, match="rotary is wider than a key, got 10, need at most head_dim = 8"):
        paged_decode(case.q, *case.pages, rotary=Rotary.plain(10))
    with pytest.raises(ContractError, match="paged_decode: rotary is no Rotary"):
        paged_decode(case.q, *case.pages, rotary=7)
