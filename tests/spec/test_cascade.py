"""Cascade and split-KV: levels against the oracle of the whole, counted work, and mutants that must fail."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.addressing import num_pages
from pagedref.attention import AttentionState, dense_attention, merge_states, paged_prefill, tiles
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.cascade import cascade_attention, cascade_mla, split_kv
from pagedref.attention.dense import DenseState
from pagedref.attention.levels import CascadeLevel, Work, cascade_levels, cascade_work, split_levels
from pagedref.cache_spec import CacheSpec
from pagedref.conformance import PagedCase, assert_exact, assert_state, make_case
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from tests.spec.latent_cases import latent_oracle, make_latent


def oracle(case: PagedCase, merges: int) -> DenseState:
    """Return the answer of a case, with the bound for as many merges."""
    parts = []
    for at, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        rows = case.q[case.qo_indptr[at] : case.qo_indptr[at + 1]]
        arithmetic = Arithmetic(str(case.q.dtype), merges=merges)
        parts.append(dense_attention(rows, keys, values, with_bound=True, arithmetic=arithmetic, **case.keywords))
    return DenseState(*(np.concatenate([np.asarray(part[at]) for part in parts]) for at in range(4)))


def csr(case: PagedCase) -> tuple[Any, ...]:
    return case.qo_indptr, case.kv_indptr, case.kv_indices, case.kv_last_page_len


def share(case: PagedCase, page_size: int, groups: list[tuple[int, int, int]]) -> PagedCase:
    """Let the sequences begin .. end - 1 of a case name the first pages of sequence begin as theirs."""
    keys, values, indices = list(case.keys), list(case.values), case.kv_indices.copy()
    for begin, end, pages in groups:
        tokens = pages * page_size
        for at in range(begin, end):
            indices[case.kv_indptr[at] : case.kv_indptr[at] + pages] = indices[case.kv_indptr[begin] :][:pages]
            keys[at] = np.concatenate([keys[begin][:tokens], keys[at][tokens:]])
            values[at] = np.concatenate([values[begin][:tokens], values[at][tokens:]])
    return replace(case, kv_indices=indices, keys=keys, values=values)


def family(seed: int, page_size: int, **keywords: Any) -> PagedCase:
    """Return five sequences: one page shared by four of them, one more by two, and a stranger."""
    lens = [5 * page_size + 1, 4 * page_size, 3 * page_size + 2, 3 * page_size, 2 * page_size + 1]
    case = make_case(seed, [1, 2, 3, 1, 2], lens, page_size=page_size, **keywords)
    return share(case, page_size, [(0, 4, 1), (1, 3, 2)])


OPTIONS: dict[str, Any] = {
    "causal": False,
    "window": 7,
    "attention_chunk": 6,
    "softcap": 1.5,
    "alibi_slopes": np.array([0.5, 0.1, 0.3, 0.0], np.float32),
    "sinks": np.array([0.0, -np.inf, 2.0, -1.0], np.float32),
    "sm_scale": 0.7,
}


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    page_size=st.integers(1, 6),
    names=st.sets(st.sampled_from(sorted(OPTIONS)), max_size=4),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_found_levels_agree_with_the_oracle(seed: int, page_size: int, names: set[str], dtype: str) -> None:
    """L5, S10, S11: three levels found from the tables, with every variant, against the oracle of the whole."""
    keywords = {name: OPTIONS[name] for name in names}
    keywords |= {name: OPTIONS[name].astype(dtype) for name in names & {"alibi_slopes", "sinks"}}
    case = family(seed, page_size, dtype=dtype, **keywords)
    levels = cascade_levels(*csr(case), page_size=page_size)
    assert len(levels) == (3 if page_size > 2 else len(levels))
    state = cascade_attention(case.q, case.k_cache, case.v_cache, levels, **keywords)
    assert_state(state, oracle(case, len(levels) + 1))


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    lens=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), min_size=1, max_size=4),
    page_size=st.integers(1, 5),
    part=st.integers(1, 6),
    names=st.sets(st.sampled_from(sorted(OPTIONS)), max_size=4),
)
def test_any_split_agrees_with_the_oracle(
    seed: int, lens: list[tuple[int, int]], page_size: int, part: int, names: set[str]
) -> None:
    """L5: also where rows stand before or in the middle of a part, or see nothing."""
    keywords = {name: OPTIONS[name] for name in names}
    case = make_case(seed, [q for q, _ in lens], [k for _, k in lens], page_size=page_size, **keywords)
    state = split_kv(case.q, case.qo_indptr, *case.pages, pages_per_part=part, **keywords)
    longest = max(len(split_levels(CascadeLevel(*csr(case)), page_size=page_size, pages_per_part=part)), 1)
    assert_state(state, oracle(case, longest + 1))


@pytest.mark.parametrize("heads", [(1, 1), (2, 2)])
def test_neighbours_change_no_bit_of_a_split(heads: tuple[int, int]) -> None:
    """L2, P73: cuts depend on a sequence's own length; longer neighbours add empty parts, which are the identity."""
    for seed in range(20):
        case = make_case(seed, [1, 1, 1], [5, 190, 97], num_kv_heads=heads[0], group_size=heads[1])
        together = split_kv(case.q, case.qo_indptr, *case.pages, pages_per_part=1)
        for at in range(3):
            one = case.only(at)
            alone = split_kv(one.q, one.qo_indptr, *one.pages, pages_per_part=1)
            assert_exact(together.out[at : at + 1], alone.out, f"output of sequence {at}")
            assert_exact(together.lse[at : at + 1], alone.lse, f"lse of sequence {at}")


def test_a_segment_may_end_inside_a_page() -> None:
    """A prefix of five tokens in pages of four, which no flat table can say."""
    case = make_case(4, [2, 1, 2], [5, 3, 6])
    rows = np.array([0, 3])
    suffixes = CascadeLevel(rows, np.array([0, 1, 3]), case.kv_indices[2:], case.kv_last_page_len[1:])
    prefix = CascadeLevel(np.array([0, 3]), np.array([0, 2]), case.kv_indices[:2], case.kv_last_page_len[:1])
    suffixes = suffixes._replace(qo_indptr=np.array([0, 1, 3]))
    q = case.q[2:]
    state = cascade_attention(q, case.k_cache, case.v_cache, [prefix, suffixes])
    keys = [np.concatenate([case.keys[0], part]) for part in case.keys[1:]]
    values = [np.concatenate([case.values[0], part]) for part in case.values[1:]]
    whole = replace(case, q=q, qo_indptr=np.array([0, 1, 3]), keys=keys, values=values)
    assert_state(state, oracle(whole, 3))


def test_work_is_exact() -> None:
    """Counted keys are the tokens that the walk reads; the products do not change, the keys read do."""
    case = share(make_case(5, [1] * 6, [67] * 6, page_size=16, group_size=4), 16, [(0, 6, 4)])
    levels = cascade_levels(*csr(case), page_size=16)
    flat = [CascadeLevel(*csr(case))]
    assert cascade_work(flat, 16) == Work(keys_read=6 * 67, products=6 * 67)
    assert cascade_work(levels, 16) == Work(keys_read=64 + 6 * 3, products=6 * 67)
    for form in (flat, levels):
        seen: list[int] = []

        class Counting(tiles.TileReader):
            def read(self, frames: Any, stop: int, into: list[int] = seen) -> Any:
                into.append(stop)
                return super().read(frames, stop)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tiles, "TileReader", Counting)
            state = cascade_attention(case.q, case.k_cache, case.v_cache, form)
        assert_state(state, oracle(case, 3))
        assert sum(seen) == 2 * cascade_work(form, 16).keys_read  # keys and values


@settings(deadline=None, max_examples=60)
@given(
    lens=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=5),
    page_size=st.integers(1, 4),
    causal=st.booleans(),
    part=st.integers(1, 3),
)
def test_products_by_another_count(lens: list[tuple[int, int]], page_size: int, causal: bool, part: int) -> None:
    """Pairs counted one by one; the same for the flat form, a split and a cascade."""
    case = make_case(0, [q for q, _ in lens], [k for _, k in lens], page_size=page_size)
    pairs = sum(min(max(k - q + row + 1, 0), k) if causal else k for q, k in lens for row in range(q))
    flat = CascadeLevel(*csr(case))
    for levels in (
        [flat],
        split_levels(flat, page_size=page_size, pages_per_part=part),
        cascade_levels(*csr(case), page_size=page_size),
    ):
        work = cascade_work(levels, page_size, causal=causal)
        assert work.products == pairs
        assert work.keys_read <= sum(k for q, k in lens if q)


def test_forks_of_a_cache_cascade() -> None:
    """A prompt forked eight times: the step's tables show what is shared, and the cascade reads it once."""
    rng = np.random.default_rng(6)
    cache = PagedKVCache(CacheSpec(1, 2, 8, page_size=4), 30, poison=True)
    prompt = cache.add()
    step = cache.begin([prompt], [10])
    cache.append(step, *rng.standard_normal((2, 10, 2, 8), dtype=np.float32))
    cache.commit(step)
    family = [prompt, *(cache.fork(prompt) for _ in range(7))]
    step = cache.begin(family, [1] * 8)
    cache.append(step, *rng.standard_normal((2, 8, 2, 8), dtype=np.float32))
    tables = step.qo_indptr, step.kv_indptr, step.kv_indices, step.kv_last_page_len
    levels = cascade_levels(*tables, page_size=4)
    assert cascade_work(levels, 4) == Work(8 + 8 * 3, 8 * 11)
    assert cascade_work([CascadeLevel(*tables)], 4) == Work(8 * 11, 8 * 11)
    q = rng.standard_normal((8, 4, 8), dtype=np.float32)
    state = cascade_attention(q, *cache.arrays(), levels)
    cache.commit(step)
    for at, sequence in enumerate(family):
        rows = DenseState(*(part for part in dense_attention(q[at : at + 1], *cache.gather(sequence), with_bound=True)))
        assert_state(AttentionState(state.out[at : at + 1], state.lse[at : at + 1]), rows)
    cache.free(family)
    cache.audit()


def test_latent_pages_cascade() -> None:
    """MLA by levels: a split of latent pages against the oracle, with a sink."""
    sinks = np.array([0.5, -np.inf, 2.0, 0.0], np.float32)
    for keywords in ({}, {"sinks": sinks, "softcap": 2.0}, {"window": 5}, {"causal": False}):
        case = make_latent(7, [1, 3], [13, 22], **keywords)
        flat = CascadeLevel(case.qo_indptr, case.kv_indptr, case.kv_indices, case.kv_last_page_len)
        levels = split_levels(flat, page_size=4, pages_per_part=2)
        state = cascade_mla(case.q_nope, case.q_pe, *case.pages[:2], levels, **case.keywords)
        assert_state(state, latent_oracle(case, merges=len(levels) + 1))


def test_half_precision_queries_are_rounded_once() -> None:
    case = make_case(8, [1, 1], [9, 20])
    half = case.q.astype(np.float16)
    wide = split_kv(half.astype(np.float32), case.qo_indptr, *case.pages, pages_per_part=2)
    narrow = split_kv(half, case.qo_indptr, *case.pages, pages_per_part=2)
    assert_exact(narrow.out, wide.out.astype(np.float16))
    assert_exact(narrow.lse, wide.lse)


# Mutants: a sink in every part, the origin of ALiBi forgotten, a prefix under the causal rule of its own rows.


def sink_in_every_level(q: Any, k_cache: Any, v_cache: Any, levels: Any, *, sinks: Any = None, **keywords: Any) -> Any:
    keywords |= {"causal": False, "sinks": sinks}
    states = [paged_prefill(q, at[0], k_cache, v_cache, *at[1:], **keywords) for at in levels]
    return merge_states(np.stack([state.out for state in states]), np.stack([state.lse for state in states]))


def origin_forgotten(q: Any, k_cache: Any, v_cache: Any, levels: Any, *, sinks: Any = None, **keywords: Any) -> Any:
    return sink_in_every_level(q, k_cache, v_cache, levels, **keywords)


def prefix_is_causal(q: Any, k_cache: Any, v_cache: Any, levels: Any, **keywords: Any) -> Any:
    states = [paged_prefill(q, at[0], k_cache, v_cache, *at[1:], causal=True) for at in levels]
    return merge_states(np.stack([state.out for state in states]), np.stack([state.lse for state in states]))


def sink_counts_once(cascade: Any) -> None:
    """P25: scores 0 and 0 in two parts, values 1 and 3, sink 0; also where a part, or every part, is empty."""
    cache_k, cache_v = np.zeros((2, 1, 1, 1)), np.array([1.0, 3.0]).reshape(2, 1, 1, 1)
    rows, q = np.array([0, 1]), np.zeros((1, 1, 1))
    full = [CascadeLevel(rows, rows, np.array([at]), np.array([1])) for at in range(2)]
    empty = CascadeLevel(rows, np.array([0, 0]), np.zeros(0, int), np.array([0]))
    for levels in (full, [empty, *full], [full[0], empty, full[1]]):
        state = cascade(q, cache_k, cache_v, levels, sinks=np.zeros(1))
        whole = dense_attention(q, cache_k[:, 0], cache_v[:, 0], sinks=np.zeros(1), with_bound=True)
        assert_state(state, whole)
        assert round(float(state.out[0, 0, 0]), 12) == round(4 / 3, 12)
        assert round(float(state.lse[0, 0]), 12) == round(math.log(3), 12)
    nothing = cascade(q, cache_k, cache_v, [empty, empty], sinks=np.full(1, 0.25))
    assert float(nothing.out[0, 0, 0]) == 0.0
    assert float(nothing.lse[0, 0]) == 0.25


def bias_is_of_the_whole(cascade: Any) -> None:
    slopes = OPTIONS["alibi_slopes"]
    case = make_case(9, [1, 1], [11, 7], alibi_slopes=slopes)
    levels = split_levels(CascadeLevel(*csr(case)), page_size=4, pages_per_part=1)
    assert_state(cascade(case.q, case.k_cache, case.v_cache, levels, alibi_slopes=slopes), oracle(case, 4))


def prefix_is_seen_whole(cascade: Any) -> None:
    case = family(10, 4)
    levels = cascade_levels(*csr(case), page_size=4)
    assert_state(cascade(case.q, case.k_cache, case.v_cache, levels), oracle(case, 4))


@pytest.mark.parametrize(
    ("check", "mutant"),
    [
        (sink_counts_once, sink_in_every_level),
        (bias_is_of_the_whole, origin_forgotten),
        (prefix_is_seen_whole, prefix_is_causal),
    ],
)
def test_check_passes_and_its_mutant_fails(check: Any, mutant: Any) -> None:
    check(cascade_attention)
    with pytest.raises(AssertionError):
        check(mutant)


def test_levels_are_found() -> None:
    """Runs of neighbours, full pages only, none that holds a query row; holes and other orders share nothing."""
    case = family(11, 4)
    levels = cascade_levels(*csr(case), page_size=4)
    assert [level.qo_indptr.tolist() for level in levels] == [[0, 7, 9], [0, 1, 6, 7, 9], [0, 1, 3, 6, 7, 9]]
    assert [np.diff(level.kv_indptr).tolist() for level in levels] == [[1, 0], [0, 1, 0, 0], [5, 2, 2, 2, 3]]
    alone = make_case(11, [1, 1], [9, 9])
    assert len(cascade_levels(*csr(alone), page_size=4)) == 1
    none = make_case(11, [], [])
    assert cascade_work(cascade_levels(*csr(none), page_size=4), 4) == Work(0, 0)
    same = share(make_case(12, [4, 4], [8, 8]), 4, [(0, 2, 2)])  # page 1 is shared, but rows of both stand in it
    assert [len(level.kv_indices) for level in cascade_levels(*csr(same), page_size=4)] == [1, 2]


def test_every_token_stays() -> None:
    """Levels hold all pages of all sequences, each once for its rows."""
    case = family(13, 3)
    for levels in (
        cascade_levels(*csr(case), page_size=3),
        split_levels(CascadeLevel(*csr(case)), page_size=3, pages_per_part=2),
    ):
        for at in range(5):
            row, pages = int(case.qo_indptr[at]), []
            for level in levels:
                segment = int(np.searchsorted(level.qo_indptr, row, "right")) - 1
                pages += level.kv_indices[level.kv_indptr[segment] : level.kv_indptr[segment + 1]].tolist()
            assert pages == case.kv_indices[case.kv_indptr[at] : case.kv_indptr[at + 1]].tolist()
            assert len(pages) == num_pages(len(case.keys[at]), 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda levels: [], ["levels is empty"]),
        (lambda levels: [levels[1], levels[0]], ["levels[1]", "not nested", "row 1"]),
        (lambda levels: [levels[0]._replace(qo_indptr=np.array([0, 8]))], ["levels[0]", "qo_indptr"]),
        (lambda levels: [levels[0]._replace(kv_last_page_len=np.array([9]))], ["levels[0]", "S20"]),
        (lambda levels: [levels[0]._replace(kv_indices=np.array([99]))], ["levels[0]", "99", "S21"]),
        (lambda levels: [levels[0]._replace(qo_indptr=np.array([0, 1, 3]))], ["levels[0]", "does not fit"]),
    ],
)
def test_refusals(change: Any, words: list[str]) -> None:
    case = share(make_case(14, [1, 1, 1], [7, 6, 5]), 4, [(0, 3, 1)])
    levels = cascade_levels(*csr(case), page_size=4)
    with pytest.raises(ContractError) as error:
        cascade_attention(case.q, case.k_cache, case.v_cache, change(levels))
    assert all(word in str(error.value) for word in ["cascade_attention", *words]), str(error.value)


def test_refusals_of_shapes() -> None:
    case = make_case(15, [1], [5])
    flat = [CascadeLevel(*csr(case))]
    for call in (
        lambda: cascade_attention(case.q[0], case.k_cache, case.v_cache, flat),
        lambda: cascade_attention(case.q, case.k_cache[0], case.v_cache, flat),
        lambda: cascade_mla(case.q, case.q, case.k_cache, case.k_cache, flat, sm_scale=1.0),
        lambda: split_kv(case.q, case.qo_indptr, case.k_cache[0], *case.pages[1:], pages_per_part=1),
        lambda: split_kv(case.q, case.qo_indptr, *case.pages, pages_per_part=0),
        lambda: cascade_mla(case.q, case.q, case.k_cache[:, :, 0], case.k_cache[:, :, 0], flat),
    ):
        with pytest.raises(ContractError):
            call()
