"""The laws L1-L15 as properties, on every kind of storage, each under the agreement class that is right for it.

L3 for integers means the largest codes; L16 is the state machines of ``tests/spec``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedref.conformance import PagedCase, assert_exact, assert_state, bound_fraction, make_case, oracle
from pagedref.contract import DTYPES, NOT_BUILT
from pagedref.kv_format import KVFormat

FORMS = {
    "float32": KVFormat("float32"),
    "float16": KVFormat("float16"),
    "bfloat16": KVFormat("bfloat16"),
    "e4m3fn": KVFormat("e4m3fn", "head"),
    "int8": KVFormat("int8", "slot_head"),
}
MOST = settings.default.max_examples  # few where kernels run without a GPU
LAW = settings(max_examples=min(15, MOST), deadline=None, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, backend_name: str) -> KVFormat:
    """A kind of storage that the backend under test has."""
    form = FORMS[request.param]
    if form.dtype.name not in DTYPES.get(backend_name, DTYPES["numpy"])["storage"]:
        pytest.skip(f"the backend does not store {form.kind}")
    if form.granularity and "kv_format" in NOT_BUILT.get(backend_name, frozenset()):
        pytest.skip("the backend has no scales yet")
    return form


def equal(actual: Any, expected: Any, what: str) -> None:
    assert_exact(np.asarray(actual.out), np.asarray(expected.out), f"{what}: output")
    assert_exact(np.asarray(actual.lse), np.asarray(expected.lse), f"{what}: lse")


def moved(case: PagedCase, order: Any) -> PagedCase:
    """Put frame f of the pool, and whatever belongs to it, at ``order[f]``."""

    def place(pool: Any) -> Any:
        result = np.empty_like(pool)
        result[order] = pool
        return result

    stored = {n: place(x) if isinstance(x, np.ndarray) and x.ndim >= 2 else x for n, x in case.stored.items()}
    frames = order[case.kv_indices].astype(np.int32)
    return replace(case, k_cache=place(case.k_cache), v_cache=place(case.v_cache), kv_indices=frames, stored=stored)


@LAW
@given(seed=seeds, page=st.integers(1, 6))
def test_l1_frames_change_no_bit(backend: Any, form: KVFormat, seed: int, page: int) -> None:
    case = make_case(seed, [2, 1], [7, 10], page_size=page, form=form)
    order = np.random.default_rng(seed).permutation(len(case.k_cache))
    equal(moved(case, order).prefill(backend), case.prefill(backend), "other frames")


@LAW
@given(seed=seeds, lengths=st.lists(st.integers(0, 14), min_size=1, max_size=4), page=st.integers(1, 6))
def test_l2_l3_neighbours_and_poison(backend: Any, form: KVFormat, seed: int, lengths: list[int], page: int) -> None:
    rows = [min(2, length) for length in lengths]
    together = make_case(seed, rows, lengths, page_size=page, form=form)
    clean = make_case(seed, rows, lengths, page_size=page, form=form, poison=0.0)
    whole = together.prefill(backend)
    for sequence in range(len(lengths)):
        alone = clean.only(sequence).prefill(backend)
        begin, end = (int(at) for at in together.qo_indptr[sequence : sequence + 2])
        assert_exact(np.asarray(whole.out)[begin:end], np.asarray(alone.out), "output")
        assert_exact(np.asarray(whole.lse)[begin:end], np.asarray(alone.lse), "lse")


@LAW
@given(seed=seeds, cut=st.integers(0, 5), page=st.integers(1, 6))
def test_l4_l10_l11_chunks_and_pages(backend: Any, form: KVFormat, seed: int, cut: int, page: int) -> None:
    """One answer of the oracle for the prompt at once, in two chunks, as decode, and at other page sizes."""
    case = make_case(seed, [5], [11], page_size=page, form=form)
    expected = oracle(case)
    assert_state(case.prefill(backend), expected, "at once")
    for begin, end in ((0, cut), (cut, 5), (4, 5)):
        live = 6 + end
        pages = -(-live // page)
        chunk = replace(
            case,
            q=case.q[begin:end],
            qo_indptr=np.array([0, end - begin], np.int32),
            kv_indptr=np.array([0, pages], np.int32),
            kv_indices=case.kv_indices[:pages],
            kv_last_page_len=np.array([(live - 1) % page + 1], np.int32),
        )
        part = expected.rows(begin, end)
        assert_state(chunk.prefill(backend), part, f"rows {begin}..{end}")
        if end - begin == 1:
            assert_state(chunk.decode(backend), part, "decode")
    if form.granularity is None:  # other scales would be other numbers
        other = make_case(seed, [5], [11], page_size=13, form=form)
        assert_state(other.prefill(backend), expected, "another page size")


@LAW
@given(seed=seeds, page=st.integers(1, 4))
def test_l5_parts_make_the_whole(backend: Any, form: KVFormat, seed: int, page: int) -> None:
    case = make_case(seed, [1], [10], page_size=page, form=form)
    pages = len(case.kv_indices)
    cut = int(np.random.default_rng(seed).integers(0, pages + 1))
    states = []
    for begin, end in ((0, cut), (cut, pages)):
        last = np.array([page if end > begin else 0], np.int32)
        last = case.kv_last_page_len if end == pages and end > begin else last
        part = replace(
            case, kv_indptr=np.array([0, end - begin]), kv_indices=case.kv_indices[begin:end], kv_last_page_len=last
        )
        states.append(part.decode(backend))
    merged = backend.merge_states(*(np.stack([np.asarray(state[at]) for state in states]) for at in range(2)))
    assert_state(merged, oracle(case), "merged")


@LAW
@given(seed=seeds)
def test_l6_l9_sharing_and_layout(backend: Any, form: KVFormat, seed: int) -> None:
    """Two sequences over the same frames equal two over copies; a strided pool equals a packed one."""
    case = make_case(seed, [1], [7], form=form)
    shared = replace(
        case,
        q=np.concatenate([case.q, case.q]),
        qo_indptr=np.array([0, 1, 2]),
        kv_indptr=np.array([0, 2, 4]),
        kv_indices=np.concatenate([case.kv_indices, case.kv_indices]),
        kv_last_page_len=np.repeat(case.kv_last_page_len, 2),
    )
    free = sorted(set(range(len(case.k_cache))) - set(case.kv_indices.tolist()))[:2]
    pools = {"k_cache": case.k_cache.copy(), "v_cache": case.v_cache.copy()}
    stored = {n: x.copy() if isinstance(x, np.ndarray) and x.ndim >= 2 else x for n, x in case.stored.items()}
    for pool in [*pools.values(), *(x for x in stored.values() if isinstance(x, np.ndarray) and x.ndim >= 2)]:
        pool[free] = pool[case.kv_indices]
    frames = np.concatenate([case.kv_indices, free]).astype(np.int32)
    equal(shared.decode(backend), replace(shared, kv_indices=frames, stored=stored, **pools).decode(backend), "copies")
    wide = np.stack([case.k_cache, case.v_cache, case.k_cache], axis=1)
    equal(replace(case, k_cache=wide[:, 0], v_cache=wide[:, 1]).decode(backend), case.decode(backend), "strides")


@LAW
@given(seed=seeds, group=st.integers(1, 4))
def test_l12_grouped_equal_repeated(backend: Any, form: KVFormat, seed: int, group: int) -> None:
    case = make_case(seed, [2], [9], num_kv_heads=2, group_size=group, form=form)
    stored = {}
    for name, x in case.stored.items():
        axis = {1: 0, 3: 2}.get(x.ndim) if isinstance(x, np.ndarray) else None
        stored[name] = x if axis is None else np.repeat(x, group, axis=axis)
    k_cache, v_cache = (np.repeat(pool, group, axis=2) for pool in (case.k_cache, case.v_cache))
    repeated = replace(case, k_cache=k_cache, v_cache=v_cache, stored=stored)
    expected = oracle(case)
    assert_state(repeated.prefill(backend), expected, "repeated heads")
    assert_state(case.prefill(backend), expected, "grouped heads")


@LAW
@given(seed=seeds, power=st.integers(-5, 5))
def test_l14_powers_of_two(backend: Any, form: KVFormat, seed: int, power: int) -> None:
    """q times 2**k and sm_scale times 2**-k change no bit; V (or its scale) times 2**k scales the output exactly."""
    case = make_case(seed, [2], [9], form=form, sm_scale=0.5)
    factor = np.float32(2.0**power)
    other = replace(case, q=case.q * factor, keywords={"sm_scale": 0.5 / float(factor)})
    plain = case.prefill(backend)
    equal(other.prefill(backend), plain, "q and sm_scale")
    if form.granularity is None:
        if form.kind != "float32":
            return  # a power of two may leave the range of a narrow type
        scaled = replace(case, v_cache=case.v_cache * factor)
    else:
        scaled = replace(case, stored={**case.stored, "v_scale": case.stored["v_scale"] * factor})
    assert_exact(np.asarray(scaled.prefill(backend).out), np.asarray(plain.out) * factor, "output")


@LAW
@given(seed=seeds, constant=st.sampled_from([0.0, 1.0, -3.5]))
def test_l15_constant_values(backend: Any, form: KVFormat, seed: int, constant: float) -> None:
    """A value that all keys share comes back within the bound; S17 stores it exactly where scales are computed."""
    case = make_case(seed, [2], [9], form=form)
    v_cache = case.v_cache.copy()
    stored = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in case.stored.items()}
    rows = np.full((9, 2, 8), constant, np.float32)
    slots = case.kv_indices[np.arange(9) // 4].astype(np.int64) * 4 + np.arange(9) % 4
    backend.append_kv(np.concatenate(case.keys).astype(np.float32), rows, case.k_cache.copy(), v_cache, slots, **stored)
    _, back = backend.gather_kv(case.k_cache, v_cache, *case.pages[2:], **stored)
    if form.granularity != "head":
        assert (np.asarray(back, np.float64) == constant).all()
    constant_case = replace(case, v_cache=v_cache, stored=stored, values=[np.asarray(back)])
    state, expected = constant_case.prefill(backend), oracle(constant_case)
    assert bound_fraction(np.asarray(state.out), expected.out, expected.out_bound) <= 1


@LAW
@given(seed=seeds, page=st.integers(1, 6))
def test_l13_limits_change_nothing(backend: Any, form: KVFormat, seed: int, page: int) -> None:
    """Window and chunk as long as the sequence, slope 0, sink -inf: no bit; a large softcap: within the bound."""
    case = make_case(seed, [2, 1], [9, 5], page_size=page, form=form)
    plain = case.prefill(backend)
    zeros, none = np.zeros(4, np.float32), np.full(4, -np.inf, np.float32)
    for keywords in ({"window": 9}, {"attention_chunk": 9}, {"alibi_slopes": zeros}, {"sinks": none}):
        equal(case.using(**keywords).prefill(backend), plain, str(list(keywords)))
    capped = case.using(softcap=1e6)
    assert_state(capped.prefill(backend), oracle(capped), "softcap")
