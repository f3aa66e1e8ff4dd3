"""Random batches of every geometry against the oracle, shrunk by hypothesis to the smallest that fails."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedref.conformance import PagedCase, assert_exact, assert_state, make_case, oracle
from pagedref.conformance.storage_checks import FORMATS

MOST = settings.default.max_examples  # few where kernels run without a GPU
SETTINGS = settings(max_examples=min(60, MOST), deadline=None, suppress_health_check=list(HealthCheck))
SMALL = settings(max_examples=min(12, MOST), deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def cases(draw: st.DrawFn, *, longest: int = 40) -> PagedCase:
    """Draw a batch: lengths, geometry and keywords."""
    num_seqs = draw(st.integers(0, 4))
    lens = st.lists(st.integers(0, longest), min_size=num_seqs, max_size=num_seqs)
    q_lens = draw(st.lists(st.integers(0, 4), min_size=num_seqs, max_size=num_seqs))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    keywords: dict[str, Any] = {}
    if draw(st.booleans()):
        keywords["causal"] = draw(st.booleans())
    if draw(st.booleans()):
        keywords["window"] = draw(st.integers(1, longest))
    if draw(st.booleans()):
        keywords["attention_chunk"] = draw(st.integers(1, longest))
    if draw(st.booleans()):
        keywords["softcap"] = draw(st.sampled_from([0.1, 1.0, 50.0]))
    if draw(st.booleans()):
        heads = kv_heads * group
        keywords["sinks"] = np.array(draw(st.lists(st.floats(-5, 5), min_size=heads, max_size=heads)))
    return make_case(
        draw(st.integers(0, 2**32 - 1)),
        q_lens,
        draw(lens),
        page_size=draw(st.integers(1, 9)),
        num_kv_heads=kv_heads,
        group_size=group,
        head_dim=draw(st.integers(1, 20)),
        v_head_dim=draw(st.integers(1, 20)),
        spread=draw(st.sampled_from([0.0, 1.0, 30.0])),
        **keywords,
    )


def narrow(case: PagedCase) -> PagedCase:
    """Give the sinks the type of the queries."""
    keywords = dict(case.keywords)
    if "sinks" in keywords:
        keywords["sinks"] = keywords["sinks"].astype(case.q.dtype)
    return case.using(**keywords)


@SETTINGS
@given(case=cases())
def test_prefill_agrees_with_the_oracle(backend: Any, backend_name: str, case: PagedCase) -> None:
    case = narrow(case)
    if backend_name != "numpy" and len(case.q) * case.q.shape[1] > 40:
        case = case.only(0)
    assert_state(case.prefill(backend), oracle(case))


@SETTINGS
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    page=st.integers(1, 7),
)
def test_laws_of_placement(backend: Any, seed: int, lengths: list[int], page: int) -> None:
    """L1, L2, L3 together: one sequence of a poisoned batch against the same sequence alone, elsewhere, unpoisoned."""
    case = make_case(seed, [1] * len(lengths), lengths, page_size=page)
    together = case.decode(backend)
    clean = make_case(seed, [1] * len(lengths), lengths, page_size=page, poison=0.0, spare_frames=9)
    for sequence in range(min(len(lengths), 2)):
        alone = clean.only(sequence).decode(backend)
        assert_exact(np.asarray(together.out)[sequence : sequence + 1], np.asarray(alone.out))
        assert_exact(np.asarray(together.lse)[sequence : sequence + 1], np.asarray(alone.lse))


@SMALL
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 6), before=st.integers(0, 20), page=st.integers(1, 7))
def test_page_size_and_chunks(backend: Any, seed: int, rows: int, before: int, page: int) -> None:
    """L4, L10: other page sizes, and the prompt in two chunks, agree with one answer of the oracle."""
    length = before + rows
    expected = oracle(make_case(seed, [rows], [length]))
    for page_size in (1, page, length + 3):
        case = make_case(seed, [rows], [length], page_size=page_size)
        assert_state(case.prefill(backend), expected, f"page size {page_size}")
    cut = rows // 2
    for begin, end in ((0, cut), (cut, rows)):
        chunk = make_case(seed, [rows], [length], page_size=page)
        live = before + end
        pages = -(-live // page)
        state = backend.paged_prefill(
            chunk.q[begin:end],
            np.array([0, end - begin], np.int32),
            chunk.k_cache,
            chunk.v_cache,
            np.array([0, pages], np.int32),
            chunk.kv_indices[:pages],
            np.array([(live - 1) % page + 1 if live else 0], np.int32),
        )
        assert_state(state, expected.rows(begin, end), f"chunk {begin}..{end}")


@SMALL
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-6, 6))
def test_scaling_by_powers_of_two(backend: Any, seed: int, power: int) -> None:
    """L14: V times 2**k scales the output exactly; q times 2**k and sm_scale times 2**-k change no bit."""
    case = make_case(seed, [2], [9], poison=0.0)
    plain = case.using(sm_scale=0.5).prefill(backend)
    scaled = PagedCase(**{**case.__dict__, "v_cache": case.v_cache * np.float32(2.0**power)})
    doubled = scaled.using(sm_scale=0.5).prefill(backend)
    assert_exact(np.asarray(doubled.out), np.asarray(plain.out) * np.float32(2.0**power))
    moved = PagedCase(**{**case.__dict__, "q": case.q * np.float32(2.0**power)})
    assert_exact(np.asarray(moved.using(sm_scale=0.5 * 2.0**-power).prefill(backend).out), np.asarray(plain.out))


@SMALL
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 30), constant=st.sampled_from([0.0, 1.0, -3.5]))
def test_constant_values_come_back(backend: Any, seed: int, length: int, constant: float) -> None:
    """L15, within the bound."""
    case = make_case(seed, [1], [length])
    case = PagedCase(
        **{
            **case.__dict__,
            "v_cache": np.where(np.isnan(case.v_cache), np.nan, constant).astype(np.float32),
            "values": [np.full_like(case.values[0], constant)],
        }
    )
    assert_state(case.decode(backend), oracle(case))


@st.composite
def stored_cases(draw: st.DrawFn, stores: tuple[str, ...]) -> PagedCase:
    """Draw a batch in any stored form and any type of queries, with any keywords, a mask among them."""
    form = draw(st.sampled_from([form for form in FORMATS if form.kind != "float64" and form.dtype.name in stores]))
    lens = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 14)), min_size=1, max_size=3))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {
        "causal": draw(st.booleans()),
        "mask": [rng.random(shape) < 0.6 for shape in lens],
        "window": draw(st.one_of(st.integers(1, 12), st.just((2, 3)), st.just((None, 1)))),
        "attention_chunk": draw(st.integers(1, 12)),
        "softcap": draw(st.sampled_from([0.3, 5.0])),
        "alibi_slopes": rng.uniform(0, 1, kv_heads * group).astype(np.float32),
        "sinks": rng.standard_normal(kv_heads * group).astype(np.float32),
        "sm_scale": draw(st.sampled_from([0.0, 1.0, -0.5])),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(options)), max_size=5))
    case = make_case(
        seed,
        [q_len for q_len, _ in lens],
        [kv_len for _, kv_len in lens],
        page_size=draw(st.integers(1, 6)),
        num_kv_heads=kv_heads,
        group_size=group,
        head_dim=4 * draw(st.integers(1, 3)),
        v_head_dim=4 * draw(st.integers(1, 3)),
        form=form,
        spread=draw(st.sampled_from([0.0, 1.0, 10.0])),
        **{name: options[name] for name in sorted(chosen)},
    )
    dtype = draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))
    return PagedCase(**{**case.__dict__, "q": case.q.astype(dtype)})


@settings(max_examples=min(60, 4 * MOST), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_variant_over_every_store(backend: Any, storage_dtypes: tuple[str, ...], data: st.DataObject) -> None:
    """Any keywords together over any stored form, queries of 16 bits too, against the oracle (S1-S18)."""
    case = data.draw(stored_cases(storage_dtypes))
    state = case.prefill(backend)
    assert state.out.dtype == case.q.dtype and state.lse.dtype == np.float32
    assert_state(state, oracle(case))
