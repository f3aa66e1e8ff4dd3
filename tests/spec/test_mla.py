"""MLA (S13): operations over latent pages against the oracle, the laws, reported faults, and mutants that must fail."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pagedref.attention as reference
from pagedref.attention import (
    CascadeLevel,
    append_kv,
    cascade_mla,
    dense_attention,
    merge_states,
    split_levels,
)
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.mla import mla_decode, mla_prefill
from pagedref.attention.mla_forms import (
    LatentCacheSpec,
    dense_mla,
    mla_absorb,
    mla_expand,
    mla_project,
    mla_textbook,
)
from pagedref.attention.quantize import dequantize, quantize
from pagedref.conformance import assert_bound, assert_exact, assert_state
from pagedref.contract import EXTENDED_OPERATIONS
from pagedref.errors import ContractError, PageFault
from pagedref.kv_format import KVFormat
from pagedref.numerics import gamma
from tests.spec.latent_cases import LatentCase, latent_oracle, make_latent, rows_of

OURS = SimpleNamespace(mla_decode=mla_decode, mla_prefill=mla_prefill)


def selection(seed: int, q_lens: list[int], kv_lens: list[int], top_k: int) -> Any:
    """Draw positions for each row, each at most once, in any order, with unused entries anywhere."""
    rng = np.random.default_rng([seed, 7])
    rows = np.full((sum(q_lens), top_k), -1, np.int32)
    owners = np.repeat(np.arange(len(q_lens)), q_lens)
    for row, owner in zip(rows, owners, strict=True):
        count = int(rng.integers(0, min(top_k, kv_lens[owner]) + 1))
        row[rng.permutation(top_k)[:count]] = rng.permutation(kv_lens[owner])[:count]
    return rows


@st.composite
def latent_cases(draw: st.DrawFn) -> LatentCase:
    """Draw a batch: lengths, geometry, keywords."""
    lens = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=4))
    q_lens, kv_lens = [q for q, _ in lens], [k for _, k in lens]
    seed, heads = draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 5))
    rng = np.random.default_rng(seed)
    options = {
        "causal": st.booleans(),
        "mask": st.just([rng.random((q, k)) < 0.6 for q, k in lens]),
        "sparse_positions": st.just(selection(seed, q_lens, kv_lens, draw(st.integers(0, 12)))),
        "window": st.one_of(st.integers(1, 20), st.just((2, 3))),
        "attention_chunk": st.integers(1, 20),
        "softcap": st.sampled_from([0.3, 5.0]),
        "sinks": st.just(rng.standard_normal(heads).astype(np.float32)),
        "sm_scale": st.sampled_from([0.0, 1.0, -0.5]),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(options)), max_size=4))
    return make_latent(
        seed,
        q_lens,
        kv_lens,
        page_size=draw(st.integers(1, 9)),
        heads=heads,
        rank=draw(st.integers(1, 20)),
        rope_dim=draw(st.integers(0, 6)),
        spread=draw(st.sampled_from([0.0, 1.0, 30.0])),
        dtype=draw(st.sampled_from(["float32", "float64"])),
        **{name: draw(options[name]) for name in sorted(chosen)},
    )


@settings(deadline=None, max_examples=150)
@given(case=latent_cases())
def test_agrees_with_the_oracle(case: LatentCase) -> None:
    assert_state(case.prefill(OURS), latent_oracle(case))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), q_len=st.integers(0, 4), kv_len=st.integers(0, 13), page=st.integers(1, 5))
def test_textbook_agrees(seed: int, q_len: int, kv_len: int, page: int) -> None:
    """The loop that follows the formula, the oracle and the fast path are one function."""
    case = make_latent(seed, [q_len], [kv_len], page_size=page, dtype="float64")
    pools = case.ckv_cache, case.kpe_cache, case.kv_indices
    state = mla_textbook(case.q_nope, case.q_pe, *pools, kv_len, sm_scale=0.3)
    assert_state(state, latent_oracle(case), "textbook")
    assert_state(case.prefill(OURS), latent_oracle(case), "fast path")


# Checks of one backend, used on the reference and on the mutants.


def scale_is_the_callers(backend: Any) -> None:
    """P28: the scale given is the scale used, before and after absorption."""
    case = make_latent(1, [2, 1], [7, 5], sm_scale=1 / math.sqrt(2 + 2), rank=6, rope_dim=2, spread=3.0)
    assert_state(case.prefill(backend), latent_oracle(case), "scale")


def rotated_part_counts(backend: Any) -> None:
    """Latents all equal: the rotated keys alone decide."""
    case = make_latent(2, [1], [6], spread=3.0)
    case.ckv_cache[case.kv_indices] = 1.0
    same = replace(case, ckv=[np.ones_like(case.ckv[0])])
    assert_state(same.prefill(backend), latent_oracle(same), "rotated part")


def value_is_the_latent(backend: Any) -> None:
    """The output is a mean of latents; rotated keys are no part of it."""
    case = make_latent(3, [3], [9])
    assert_state(case.prefill(backend), latent_oracle(case), "values")


def tail_is_not_read(backend: Any) -> None:
    """P05: page size 4, length 13: the last page holds one valid row, the other three are NaN."""
    results = [make_latent(4, [1], [13], poison=poison).decode(backend) for poison in (0.0, math.nan, math.inf)]
    assert_state(results[0], latent_oracle(make_latent(4, [1], [13])), "tail of zeros")
    for result in results[1:]:
        assert_exact(np.asarray(result.out), np.asarray(results[0].out), "output beside poison")
        assert_exact(np.asarray(result.lse), np.asarray(results[0].lse), "lse beside poison")


def selection_is_obeyed(backend: Any) -> None:
    """A query sees the listed keys, all of them and no others, before and behind its own position."""
    chosen = selection(5, [3, 1], [9, 6], 4)
    case = make_latent(5, [3, 1], [9, 6], sparse_positions=chosen)
    assert_state(case.prefill(backend), latent_oracle(case), "selection")


CHECKS = (scale_is_the_callers, rotated_part_counts, value_is_the_latent, tail_is_not_read, selection_is_obeyed)


def mutant(change: Callable[..., Any]) -> Any:
    """Return a backend whose operations go through `change(attend, q_nope, q_pe, *arrays, **keywords)`."""
    return SimpleNamespace(
        mla_decode=lambda *arrays, **keywords: change(mla_decode, *arrays, **keywords),
        mla_prefill=lambda *arrays, **keywords: change(mla_prefill, *arrays, **keywords),
    )


def scale_from_rank(attend: Any, q_nope: Any, q_pe: Any, *arrays: Any, sm_scale: float, **keywords: Any) -> Any:
    scale = 1 / math.sqrt(q_nope.shape[-1] + q_pe.shape[-1])
    return attend(q_nope, q_pe, *arrays, sm_scale=scale, **keywords)


def kpe_forgotten(attend: Any, q_nope: Any, q_pe: Any, *arrays: Any, **keywords: Any) -> Any:
    return attend(q_nope, np.zeros_like(q_pe), *arrays, **keywords)


def value_includes_kpe(attend: Any, q_nope: Any, q_pe: Any, *arrays: Any, **keywords: Any) -> Any:
    *rest, ckv_cache, kpe_cache, kv_indptr, kv_indices, last = arrays
    k_cache = np.concatenate([ckv_cache, kpe_cache], axis=-1)[:, :, None]
    query = np.concatenate([q_nope, q_pe], axis=-1)
    indptr = rest[0] if rest else np.arange(len(q_nope) + 1)
    keywords.pop("sparse_positions", None)
    pages = (k_cache, k_cache, kv_indptr, kv_indices, last)
    state = reference.paged_prefill(query, indptr, *pages, **keywords)
    return state._replace(out=state.out[..., -q_nope.shape[-1] :])


def tail_read(attend: Any, *arrays: Any, **keywords: Any) -> Any:
    *rest, last = arrays
    return attend(*rest, np.full_like(last, rest[-4].shape[1]), **keywords)


def selection_ignored(attend: Any, *arrays: Any, sparse_positions: Any = None, **keywords: Any) -> Any:
    return attend(*arrays, **keywords)


MUTANTS = {
    scale_is_the_callers: scale_from_rank,
    rotated_part_counts: kpe_forgotten,
    value_is_the_latent: value_includes_kpe,
    tail_is_not_read: tail_read,
    selection_is_obeyed: selection_ignored,
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check_passes_and_its_mutant_fails(check: Callable[[Any], None]) -> None:
    check(OURS)
    with pytest.raises(AssertionError):
        check(mutant(MUTANTS[check]))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    lens=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 25)), min_size=1, max_size=4),
    page=st.integers(1, 7),
    sparse=st.booleans(),
)
def test_laws_of_placement(seed: int, lens: list[tuple[int, int]], page: int, sparse: bool) -> None:
    """L1, L2, L3: each sequence of a poisoned batch against itself alone, in another pool, unpoisoned; to the bit."""
    q_lens, kv_lens = [q for q, _ in lens], [k for _, k in lens]
    keywords = {"sparse_positions": selection(seed, q_lens, kv_lens, 6)} if sparse else {}
    together = make_latent(seed, q_lens, kv_lens, page_size=page, **keywords).prefill(OURS)
    clean = make_latent(seed, q_lens, kv_lens, page_size=page, poison=0.0, spare_frames=8, **keywords)
    for sequence in range(len(lens)):
        alone = clean.only(sequence).prefill(OURS)
        assert_exact(together.out[clean.rows(sequence)], alone.out, "output")
        assert_exact(together.lse[clean.rows(sequence)], alone.lse, "lse")


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 6), before=st.integers(0, 20), page=st.integers(1, 7))
def test_chunks_pages_and_decode(seed: int, rows: int, before: int, page: int) -> None:
    """L4, L10, L11: other page sizes, the prompt in two chunks, and decode of the last row agree with one answer."""
    length, cut = before + rows, rows // 2
    expected = latent_oracle(make_latent(seed, [rows], [length]))
    for page_size in (1, page, length + 3):
        case = make_latent(seed, [rows], [length], page_size=page_size)
        assert_state(case.prefill(OURS), expected, f"page size {page_size}")
    for begin, end in ((0, cut), (cut, rows)):
        live = before + end
        count = -(-live // page)
        case = make_latent(seed, [rows], [length], page_size=page)
        state = mla_prefill(
            case.q_nope[begin:end],
            case.q_pe[begin:end],
            np.array([0, end - begin]),
            *case.pages[:2],
            np.array([0, count]),
            case.kv_indices[:count],
            np.array([(live - 1) % page + 1 if live else 0]),
            **case.keywords,
        )
        assert_state(state, rows_of(expected, begin, end), "chunk")
    last = replace(case, q_nope=case.q_nope[-1:], q_pe=case.q_pe[-1:]).decode(OURS)
    assert_state(last, rows_of(expected, rows - 1, rows), "decode")


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1), length=st.integers(1, 30), page=st.integers(1, 5), cuts=st.sets(st.integers(0, 8))
)
def test_any_split_merges_to_the_whole(seed: int, length: int, page: int, cuts: set[int]) -> None:
    """L5: pages in parts, some of them empty, attended apart."""
    case = make_latent(seed, [1], [length], page_size=page)
    pages = len(case.kv_indices)
    edges = [0, *sorted(min(cut, pages) for cut in cuts), pages]
    states = []
    for begin, end in pairwise(edges):
        tail = 0 if begin == end else int(case.kv_last_page_len[0]) if end == pages else page
        csr = np.array([0, end - begin]), case.kv_indices[begin:end], np.array([tail])
        states.append(mla_decode(case.q_nope, case.q_pe, *case.pages[:2], *csr, **case.keywords))
    merged = merge_states(np.stack([state.out for state in states]), np.stack([state.lse for state in states]))
    assert_state(merged, latent_oracle(case))


@pytest.mark.parametrize("storage", ["float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_other_storage_types(storage: Any) -> None:
    """S15: latents are widened exactly when they are read; poison in their own type."""
    case = make_latent(6, [3, 1], [9, 13], storage=storage)
    assert_state(case.prefill(OURS), latent_oracle(case))
    chosen = case.using(sparse_positions=selection(6, [3, 1], [9, 13], 5))
    assert_state(chosen.prefill(OURS), latent_oracle(chosen))
    mixed = replace(case, kpe_cache=case.kpe_cache.astype(np.float32))
    assert_exact(mixed.prefill(OURS).out, case.prefill(OURS).out)


FORMATS = [
    KVFormat("e4m3fn", "group", group_size=4),
    KVFormat("e5m2", "slot_head"),
    KVFormat("int8", "slot_head", zero_point=True),
    KVFormat("int4", "group", group_size=2, zero_point=True),
    KVFormat("int8", "frame_head"),
    KVFormat("float32", "tensor"),
    KVFormat("e4m3fn", "head"),
]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.kind}-{form.granularity}")
def test_quantised_latents(form: KVFormat) -> None:
    """S16-S18: latents quantised with every granularity, beside plain rotated keys; the oracle sees what is read."""
    case = make_latent(16, [3, 1], [9, 13], poison=0.0)
    scale = zero = None
    if form.computed:
        stored, scale, zero = quantize(case.ckv_cache[:, :, None], form)
    else:
        shape = form.scale_shape(*case.ckv_cache.shape[:2], 1, 8)
        assert shape is not None
        scale = np.random.default_rng(0).uniform(0.02, 0.05, shape).astype(np.float32)
        stored = quantize(case.ckv_cache[:, :, None], form, scale[:, None] if scale.ndim == 2 else scale).stored
    read = dequantize(stored, form, scale[:, None] if scale.ndim == 2 else scale, zero)[:, :, 0]
    stored = stored[:, :, 0]
    owners = [case.kv_indices[case.kv_indptr[at] : case.kv_indptr[at + 1]] for at in range(2)]
    live = [read[frames].reshape(-1, 8)[: len(ckv)] for frames, ckv in zip(owners, case.ckv, strict=True)]
    keywords = {"ckv_format": form, "ckv_scale": scale, "ckv_zero": zero}
    for selected in (None, selection(16, [3, 1], [9, 13], 5)):
        expected = latent_oracle(replace(case, ckv=live).using(sparse_positions=selected))
        stored_case = replace(case, ckv_cache=stored).using(sparse_positions=selected, **keywords)
        assert_state(stored_case.prefill(OURS), expected, f"selection {selected is not None}")
    flat = CascadeLevel(case.qo_indptr, case.kv_indptr, case.kv_indices, case.kv_last_page_len)
    levels = split_levels(flat, page_size=4, pages_per_part=2)
    state = cascade_mla(case.q_nope, case.q_pe, stored, case.kpe_cache, levels, sm_scale=0.3, **keywords)
    assert_state(state, latent_oracle(replace(case, ckv=live), merges=3), "cascade")


def test_latents_are_appended_like_keys() -> None:
    """One kv head whose key is the latent and whose value is the rotated key: no operation of its own is needed."""
    case = make_latent(17, [1], [6])
    ckv_cache, kpe_cache = np.full_like(case.ckv_cache, np.nan), np.full_like(case.kpe_cache, np.nan)
    slots = case.kv_indices.astype(np.int64)[np.arange(6) // 4] * 4 + np.arange(6) % 4
    append_kv(case.ckv[0][:, None], case.kpe[0][:, None], ckv_cache[:, :, None], kpe_cache[:, :, None], slots)
    assert_exact(ckv_cache, case.ckv_cache)
    assert_exact(kpe_cache, case.kpe_cache)


def test_long_sequences_over_several_tiles() -> None:
    case = make_latent(7, [40, 1], [1500, 700], page_size=16, heads=6, rank=96, rope_dim=32)
    assert_state(case.prefill(OURS), latent_oracle(case))
    chosen = case.using(sparse_positions=selection(7, [40, 1], [1500, 700], 600))
    assert_state(chosen.prefill(OURS), latent_oracle(chosen))


def test_strided_pools_change_no_bit() -> None:
    """L9, S23: ckv and kpe in one pool of 576-wide rows, as some systems keep them."""
    case = make_latent(8, [2, 1], [9, 5])
    joined = np.concatenate([case.ckv_cache, case.kpe_cache], axis=-1)
    other = replace(case, ckv_cache=joined[..., :8], kpe_cache=joined[..., 8:])
    for keywords in ({}, {"sparse_positions": selection(8, [2, 1], [9, 5], 4)}):
        assert_exact(other.using(**keywords).prefill(OURS).out, case.using(**keywords).prefill(OURS).out)


def test_order_of_a_selection_changes_no_bit() -> None:
    chosen = selection(9, [4], [20], 9)
    case = make_latent(9, [4], [20])
    mixed = np.random.default_rng(0).permuted(chosen, axis=1)
    wider = np.concatenate([mixed, np.full((4, 3), -1, np.int32)], axis=1)
    first = case.using(sparse_positions=chosen).prefill(OURS)
    for other in (mixed, wider, chosen.astype(np.int64)):
        assert_exact(case.using(sparse_positions=other).prefill(OURS).out, first.out)


def test_a_selection_of_everything_and_of_nothing() -> None:
    case = make_latent(10, [2], [6])
    everything = np.broadcast_to(np.arange(6), (2, 6))
    assert_state(case.using(sparse_positions=everything).prefill(OURS), latent_oracle(case.using(causal=False)))
    assert_state(case.using(sparse_positions=everything, causal=True).prefill(OURS), latent_oracle(case))
    none = case.using(sparse_positions=np.full((2, 3), -1)).prefill(OURS)
    assert not none.out.any() and np.isneginf(none.lse).all()
    decoded = make_latent(10, [1], [6], sparse_positions=np.array([[5, 0]])).decode(OURS)
    assert_state(decoded, latent_oracle(make_latent(10, [1], [6], sparse_positions=np.array([[5, 0]]))))


def test_pages_without_a_selected_key_may_be_holes() -> None:
    """S21: a selection reads only what it names."""
    case = make_latent(11, [1], [12], sparse_positions=np.array([[0, 3, 9]]))
    expected = case.decode(OURS)
    case.kv_indices[1] = -1
    assert_exact(case.decode(OURS).out, expected.out)
    with pytest.raises(PageFault, match=r"mla_decode: kv_indices .* page 1 of sequence 0"):
        case.using(sparse_positions=np.array([[0, 4]])).decode(OURS)
    with pytest.raises(PageFault, match="mla_decode: kv_indices"):
        replace(case, keywords={"sm_scale": 1.0}).decode(OURS)


def test_absorbed_equals_explicit() -> None:
    """P28: nope 2, rope 2, rank 6, integers that absorption does not round; the scale is 1/sqrt(2 + 2) in both."""
    rng = np.random.default_rng(12)
    w_kv_b, ckv = rng.integers(-3, 4, (3, 2 + 4, 6)).astype(float), rng.integers(-3, 4, (9, 6)).astype(float)
    q, kpe = rng.integers(-3, 4, (5, 3, 4)).astype(float), rng.integers(-3, 4, (9, 2)).astype(float)
    scale, arithmetic = 1 / math.sqrt(2 + 2), Arithmetic("float64")
    k_nope, v = mla_expand(w_kv_b, ckv, nope_dim=2)
    k = np.concatenate([k_nope, np.repeat(kpe[:, None], 3, axis=1)], axis=-1)
    explicit = dense_attention(q, k, v, with_bound=True, arithmetic=arithmetic)
    queries = mla_absorb(w_kv_b, q[..., :2]), q[..., 2:]
    latent = dense_mla(*queries, ckv, kpe, sm_scale=scale, with_bound=True, arithmetic=arithmetic)
    pages = ckv[:8].reshape(2, 4, 6), kpe[:8].reshape(2, 4, 2)  # the ninth token lies in a page of its own
    pools = [np.concatenate([pool, np.full((1, *pool.shape[1:]), np.nan)]) for pool in pages]
    pools[0][2, 0], pools[1][2, 0] = ckv[8], kpe[8]
    csr = np.array([0, 3]), np.arange(3), np.array([1])
    state = mla_prefill(*queries, np.array([0, 5]), *pools, *csr, sm_scale=scale)
    assert_state(state, latent, "absorbed")
    assert explicit.out_bound is not None and explicit.lse_bound is not None and latent.out_bound is not None
    assert latent.lse_bound is not None
    assert_bound(state.lse, explicit.lse, explicit.lse_bound + latent.lse_bound, "lse of both forms")
    magnitude = np.abs(w_kv_b)
    rounding = gamma(7, "float64") * mla_project(magnitude, np.abs(state.out), nope_dim=2)
    bound = explicit.out_bound + mla_project(magnitude, latent.out_bound, nope_dim=2) + rounding
    assert_bound(mla_project(w_kv_b, state.out, nope_dim=2), explicit.out, bound, "output of both forms")
    wrong = mla_prefill(*queries, np.array([0, 5]), *pools, *csr, sm_scale=1 / math.sqrt(6 + 2))
    with pytest.raises(AssertionError):
        assert_bound(mla_project(w_kv_b, wrong.out, nope_dim=2), explicit.out, bound)


def test_bytes_per_token_as_published() -> None:
    half = KVFormat("bfloat16")
    spec = LatentCacheSpec(61, 512, 64, page_size=64, ckv_format=half, kpe_format=half)
    assert spec.bytes_per_token == 61 * (512 + 64) * 2 == 70_272
    assert spec.bytes_per_frame == 64 * 70_272
    assert LatentCacheSpec(1, 4, 2, page_size=3).bytes_per_frame == (4 + 2) * 4 * 3
    for change in ({"rank": 0}, {"page_size": 1.5}, {"num_layers": True}):
        with pytest.raises(ContractError, match=next(iter(change))):
            LatentCacheSpec(**{"num_layers": 1, "rank": 1, "rope_dim": 1, "page_size": 1, **change})


REFUSALS: list[tuple[dict[str, Any], list[str]]] = [
    ({"sm_scale": None}, ["mla_prefill: sm_scale is missing", "S13"]),
    ({"sm_scale": math.nan}, ["sm_scale", "S1"]),
    ({"q_pe": np.zeros((3, 4, 2), np.float32)}, ["kpe_cache", "rope_dim = 2"]),
    ({"q_pe": np.zeros((3, 4, 3))}, ["q_pe has another type", "float32"]),
    ({"q_nope": np.zeros((3, 4, 9), np.float32)}, ["ckv_cache", "rank = 9"]),
    ({"q_nope": np.zeros((3, 4), np.float32)}, ["q_nope has the wrong number of dimensions"]),
    ({"ckv_cache": np.zeros((6, 4, 8), np.int8)}, ["ckv_scale is missing", "S16"]),
    ({"kpe_cache": np.zeros((6, 4, 3), np.uint8)}, ["kpe_format is missing", "S15"]),
    ({"ckv_format": "int3"}, ["ckv_format is not a kind", "int3"]),
    ({"ckv_format": "e4m3fn"}, ["ckv_cache has the wrong type", "float32"]),
    ({"kpe_scale": np.ones(2, np.float32)}, ["kpe_scale", "(1,)", "S17"]),
    ({"kpe_cache": np.zeros((6, 5, 3), np.float32)}, ["kpe_cache", "page_size = 4"]),
    ({"kv_indices": np.array([0, 1, 9])}, ["kv_indices", "S21"]),
    ({"kv_last_page_len": np.array([9, 3])}, ["kv_last_page_len", "S20"]),
    ({"qo_indptr": np.array([0, 1, 2])}, ["qo_indptr", "0..3"]),
    ({"causal": 1}, ["causal", "S14"]),
    ({"mask": [np.ones((2, 2), bool)]}, ["mask", "S14"]),
    ({"window": 0}, ["window", "S5"]),
    ({"sinks": np.full(4, np.inf, np.float32)}, ["sinks", "S11"]),
    ({"sparse_positions": np.array([[0], [1], [3]])}, ["sparse_positions of row 2 is out of range", "got 3", "S13"]),
    ({"sparse_positions": np.array([[0], [-2], [1]])}, ["sparse_positions of row 1", "got -2"]),
    ({"sparse_positions": np.array([[2, 1, 2], [0, -1, -1], [1, 0, -1]])}, ["of row 0 names a key twice", "got 2"]),
    ({"sparse_positions": np.zeros((2, 3), int)}, ["sparse_positions", "num_tokens = 3"]),
    ({"sparse_positions": np.zeros((3, 3))}, ["sparse_positions", "int32 or int64"]),
]


@pytest.mark.parametrize(("change", "words"), REFUSALS, ids=lambda value: str(next(iter(value))) if value else "")
def test_refusals(change: dict[str, Any], words: list[str]) -> None:
    case = make_latent(13, [2, 1], [7, 3], poison=0.0)
    names = ("q_nope", "q_pe", "qo_indptr", "ckv_cache", "kpe_cache", "kv_indptr", "kv_indices", "kv_last_page_len")
    arguments = {**{name: getattr(case, name) for name in names}, "sm_scale": 1.0, **change}
    with pytest.raises(ContractError) as error:
        mla_prefill(**arguments)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_forms_refuse_a_matrix_without_parts() -> None:
    for call in (
        lambda: mla_expand(np.zeros((2, 3)), np.zeros((1, 3)), nope_dim=1),
        lambda: mla_absorb(np.zeros((1, 3, 4)), np.zeros((1, 1, 3))),
        lambda: mla_project(np.zeros((1, 3, 4)), np.zeros((1, 1, 4)), nope_dim=0),
    ):
        with pytest.raises(ContractError):
            call()


def test_nothing_is_mutated_and_the_contract_names_both() -> None:
    keywords = {"sparse_positions": selection(14, [1, 1], [9, 4], 3), "sinks": np.zeros(4, np.float32)}
    case = make_latent(14, [1, 1], [9, 4], **keywords)
    arrays = [case.q_nope, case.q_pe, *case.pages, *(case.keywords[name] for name in ("sparse_positions", "sinks"))]
    before = [array.copy() for array in arrays]
    case.decode(OURS)
    for array, copy in zip(arrays, before, strict=True):
        assert_exact(array, copy)
    for name in ("mla_decode", "mla_prefill"):
        arguments = {array.name for array in EXTENDED_OPERATIONS[name].arrays} | {*EXTENDED_OPERATIONS[name].options}
        assert arguments == {*inspect.signature(getattr(OURS, name)).parameters}


@pytest.mark.parametrize("side", ["ckv_format", "kpe_format"])
@pytest.mark.parametrize("wrong", [[], {}, 3, "x", np.ones(2)])
def test_formats_that_are_none(side: str, wrong: Any) -> None:
    one, cache, row = np.ones((1, 1, 2)), np.ones((1, 2, 2)), np.array
    with pytest.raises(ContractError, match=f"^mla_decode: {side} "):
        mla_decode(one, one, cache, cache, row([0, 1]), row([0]), row([2]), sm_scale=1.0, **{side: wrong})
    with pytest.raises(ContractError, match=f"^LatentCacheSpec: {side} "):
        LatentCacheSpec(1, 4, 2, 2, **{side: wrong})


def test_forms_refuse_what_does_not_fit() -> None:
    w_kv_b, ckv = np.ones((2, 5, 3)), np.ones((4, 3))
    for wrong in ("a", 1.5, None, True, 0, 5, -1):
        with pytest.raises(ContractError, match=r"^mla_expand: nope_dim "):
            mla_expand(w_kv_b, ckv, nope_dim=wrong)  # type: ignore[arg-type]
        with pytest.raises(ContractError, match=r"^mla_project: nope_dim "):
            mla_project(w_kv_b, np.ones((4, 2, 3)), nope_dim=wrong)  # type: ignore[arg-type]
    for bad in (None, [1.0], np.ones(3), np.ones((4, 2)), np.ones((4, 2, 9)), "a"):
        for call in (
            lambda bad=bad: mla_expand(w_kv_b, bad, nope_dim=2),
            lambda bad=bad: mla_project(w_kv_b, bad, nope_dim=2),
            lambda bad=bad: mla_absorb(w_kv_b, bad),
            lambda bad=bad: mla_absorb(bad if np.ndim(bad) != 3 else None, np.ones((4, 2, 2))),
        ):
            with pytest.raises(ContractError, match=r"^mla_(expand|project|absorb): .*, got .*, need "):
                call()
    assert LatentCacheSpec(np.int64(1), np.int8(4), 2, 2) == LatentCacheSpec(1, 4, 2, 2)
    assert type(LatentCacheSpec(np.int64(1), np.int8(100), 2, 2).bytes_per_frame) is int
