"""Random batches of every geometry against the oracle, shrunk by hypothesis to the smallest that fails."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedref.conformance import PagedCase, assert_exact, assert_state, make_case, oracle

SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
SMALL = settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))


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
