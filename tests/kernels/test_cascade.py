"""Cascades on the device: the flat answer in levels, against the oracle, and neighbours change no bit (S10, P73)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagedref.attention as reference
from pagedref.attention import CascadeLevel, cascade_levels, split_levels
from pagedref.conformance import PagedCase, assert_exact, assert_state, make_case, oracle
from pagedref.errors import ContractError
from tests.spec.latent_cases import latent_oracle, make_latent

twin = pytest.importorskip("pagedref_cuda")
pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

VARIANTS: list[dict[str, Any]] = [
    {},
    {"causal": False},
    {"window": 4, "softcap": 2.0},
    {"attention_chunk": 5},
    {"alibi_slopes": np.array([0.1, 0.5, 0.25, 1.0], np.float32)},
    {"sinks": np.array([0.5, -np.inf, 2.0, -1.0], np.float32)},
]


def flat(case: PagedCase) -> CascadeLevel:
    return CascadeLevel(case.qo_indptr, *case.pages[2:])


@pytest.mark.parametrize("keywords", VARIANTS, ids=lambda keywords: "+".join(keywords) or "plain")
def test_levels_are_the_flat_form(keywords: dict[str, Any]) -> None:
    """Three sequences that share two pages."""
    case = make_case(3, [2, 1, 3], [11, 9, 13], **keywords)
    shared = case.kv_indices.copy()
    for sequence in (1, 2):
        first = case.kv_indptr[sequence]
        shared[first : first + 2] = shared[:2]
        case.keys[sequence][:8], case.values[sequence][:8] = case.keys[0][:8], case.values[0][:8]
    batch = CascadeLevel(case.qo_indptr, case.kv_indptr, shared, case.kv_last_page_len)
    levels = cascade_levels(*batch, page_size=4)
    assert len(levels) == 2
    state = twin.cascade_attention(case.q, case.k_cache, case.v_cache, levels, **keywords)
    assert_state(state, oracle(case), "cascade")
    again = reference.cascade_attention(case.q, case.k_cache, case.v_cache, levels, **keywords)
    assert state.out.dtype == again.out.dtype and state.lse.dtype == again.lse.dtype


def test_narrow_queries_are_rounded_once() -> None:
    case = make_case(4, [1, 2], [9, 6])
    q = case.q.astype(np.float16)
    levels = split_levels(flat(case), page_size=4, pages_per_part=1)
    state = twin.cascade_attention(q, case.k_cache, case.v_cache, levels)
    wide = twin.cascade_attention(q.astype(np.float32), case.k_cache, case.v_cache, levels)
    assert_exact(np.asarray(state.out), np.asarray(wide.out).astype(np.float16))
    assert_exact(np.asarray(state.lse), np.asarray(wide.lse))


@pytest.mark.parametrize("pages_per_part", [1, 2])
def test_neighbours_change_no_bit(pages_per_part: int) -> None:
    """L2, P73: the cuts of a sequence depend on its own length alone."""
    case = make_case(5, [1, 1, 1], [5, 23, 14])
    given = {"pages_per_part": pages_per_part, "sinks": np.array([0.5, -np.inf, 2.0, -1.0], np.float32)}
    together = twin.split_kv(case.q, case.qo_indptr, *case.pages, **given)
    for sequence in range(3):
        alone = case.only(sequence)
        state = twin.split_kv(alone.q, alone.qo_indptr, *alone.pages, **given)
        assert_exact(np.asarray(state.out), np.asarray(together.out)[sequence : sequence + 1])
        assert_exact(np.asarray(state.lse), np.asarray(together.lse)[sequence : sequence + 1])
    assert_state(together, oracle(case.using(sinks=given["sinks"])), "split")


def test_latents_by_level() -> None:
    case = make_latent(8, [1, 2], [13, 6])
    level = CascadeLevel(case.qo_indptr, case.kv_indptr, case.kv_indices, case.kv_last_page_len)
    levels = split_levels(level, page_size=4, pages_per_part=2)
    state = twin.cascade_mla(case.q_nope, case.q_pe, case.ckv_cache, case.kpe_cache, levels, sm_scale=0.3)
    assert_state(state, latent_oracle(case, merges=3), "cascade of latents")


def test_refusals_bear_the_name_of_the_cascade() -> None:
    case = make_case(6, [1], [5])
    with pytest.raises(ContractError, match="cascade_attention: levels is empty"):
        twin.cascade_attention(case.q, case.k_cache, case.v_cache, [])
    with pytest.raises(ContractError, match="cascade_attention: mask is no keyword"):
        twin.cascade_attention(case.q, case.k_cache, case.v_cache, [flat(case)], mask=None)
    with pytest.raises(ContractError, match="cascade_attention: q has the wrong type, got float64"):
        twin.cascade_attention(case.q.astype(float), case.k_cache, case.v_cache, [flat(case)])
