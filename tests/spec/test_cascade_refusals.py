"""What cascades refuse: one ContractError in the name of the function that was called, whatever was wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedref.attention import mla_prefill, paged_prefill
from pagedref.attention.cascade import cascade_attention, cascade_mla, split_kv
from pagedref.attention.levels import CascadeLevel, cascade_levels, cascade_work, split_levels
from pagedref.errors import ContractError, PageFault

row = np.array
Q, K, V = np.ones((2, 2, 4)), np.ones((3, 2, 1, 4)), np.arange(24.0).reshape(3, 2, 1, 4)
CKV, KPE = np.ones((3, 2, 4)), np.ones((3, 2, 4))
FLAT = CascadeLevel(row([0, 2]), row([0, 2]), row([0, 1]), row([2]))
LEVELS = [CascadeLevel(row([0, 2]), row([0, 1]), row([0]), row([2])), CascadeLevel(*FLAT[:2], row([1, 2]), row([2]))]


def attend(levels: Any = LEVELS, q: Any = Q, **keywords: Any) -> Any:
    return cascade_attention(q, K, V, levels, **keywords)


def latent(levels: Any = LEVELS, q: Any = Q, **keywords: Any) -> Any:
    return cascade_mla(q, Q, CKV, KPE, levels, **{"sm_scale": 1.0, **keywords})


def split(q: Any = Q, **keywords: Any) -> Any:
    return split_kv(q, *FLAT[:1], K, V, *FLAT[1:], **{"pages_per_part": 1, **keywords})


def refused(name: str, argument: str, call: Any) -> None:
    with pytest.raises(ContractError) as error:
        call()
    text = str(error.value)
    assert text.startswith(f"{name}: ") and argument in text, text
    assert "\n" not in text and "got" in text and "need" in text and "paged_prefill" not in text, text


CALLS = {"cascade_attention": attend, "cascade_mla": latent, "split_kv": split}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("wrong", [np.zeros(1), np.zeros(3), np.zeros((2, 1)), [0.0, 0.0], "ab", 1.0, row([0, 1])])
def test_sinks_are_one_number_a_head(name: str, wrong: Any) -> None:
    refused(name, "sinks", lambda: CALLS[name](sinks=wrong))


@pytest.mark.parametrize("name", ["cascade_attention", "split_kv"])
@pytest.mark.parametrize("wrong", [np.zeros(1), np.zeros(3), [0.0, 0.0], np.full(2, np.nan)])
def test_slopes_are_one_number_a_head(name: str, wrong: Any) -> None:
    refused(name, "alibi_slopes", lambda: CALLS[name](alibi_slopes=wrong))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("keyword", ["causal", "window", "attention_chunk", "softcap", "sm_scale"])
def test_keywords(name: str, keyword: str) -> None:
    refused(name, keyword, lambda: CALLS[name](**{keyword: "no"}))


@pytest.mark.parametrize("name", CALLS)
def test_queries(name: str) -> None:
    argument = "q_nope" if name == "cascade_mla" else "q"
    for wrong in (np.ones((2, 2, 4), int), [[1.0]], None, np.ones(3), np.float64(1)):
        refused(name, argument, lambda wrong=wrong: CALLS[name](q=wrong))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("keyword", ["mask", "rotary", "sparse_positions"])
def test_keywords_that_mean_nothing_by_level(name: str, keyword: str) -> None:
    refused(name, keyword, lambda: CALLS[name](**{keyword: np.ones(4, bool)}))


def test_causal_is_the_default_here_too() -> None:
    flat, one = paged_prefill(Q, FLAT[0], K, V, *FLAT[1:]), [FLAT]
    for state in (attend(one), attend(one, causal=None), attend(one, causal=np.True_), split(causal=None)):
        assert np.allclose(state.out, flat.out, rtol=0, atol=1e-12)
    assert not np.allclose(attend(one, causal=False).out, flat.out)
    whole = mla_prefill(Q, Q, FLAT[0], CKV, KPE, *FLAT[1:], sm_scale=1.0)
    assert np.allclose(latent(one, causal=None).lse, whole.lse, rtol=0, atol=1e-12)


def test_no_sequences() -> None:
    nothing = row([0]), row([0]), np.zeros(0, int), np.zeros(0, int)
    state = split_kv(Q[:0], nothing[0], K, V, *nothing[1:], pages_per_part=2, alibi_slopes=np.ones(2), sinks=np.ones(2))
    assert state.out.shape == (0, 2, 4) and state.lse.shape == (0, 2)


BAD_LEVELS = [
    None, 7, "ab", np.zeros(4), FLAT, [None], [7], ["abcd"], [()], [FLAT[:3]], [(None,) * 4], [("a",) * 4], [([],) * 4],
    [FLAT._replace(qo_indptr=row([0.0, 2.0]))], [FLAT._replace(kv_indptr=row(3))],
    [FLAT._replace(kv_indices=[[0], []])],
    [FLAT._replace(kv_indptr=np.zeros(0, int))], [FLAT._replace(kv_last_page_len=row([2**63], np.uint64))],
    [FLAT._replace(kv_indptr=row([0, 9]))], [FLAT._replace(qo_indptr={0: 2})], [FLAT._replace(kv_indptr=[True, 2])],
    [FLAT._replace(kv_indices=row([2**62 + 1, 0]))], [FLAT._replace(kv_indptr=[0, 10**30])],
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(BAD_LEVELS)))
def test_malformed_levels(at: int) -> None:
    levels = BAD_LEVELS[at]
    for name in ("cascade_attention", "cascade_mla"):
        refused(name, "level", lambda name=name: CALLS[name](levels))
    refused("cascade_work", "level", lambda: cascade_work(levels, 2))
    if isinstance(levels, list):
        refused("split_levels", "", lambda: split_levels(levels[0], page_size=2, pages_per_part=1))
        if isinstance(levels[0], CascadeLevel):
            refused("cascade_levels", "", lambda: cascade_levels(*levels[0], page_size=2))
            batch = levels[0]
            refused("split_kv", "", lambda: split_kv(Q, batch[0], K, V, *batch[1:], pages_per_part=1))


def test_batches_that_are_no_batches() -> None:
    refused("cascade_levels", "kv_indptr", lambda: cascade_levels([0, 1], [0, 9], [5], [1], page_size=4))
    for wrong in (0, -1, 1.5, "a", None, True, 10**30, 10**5000):
        refused("cascade_levels", "page_size", lambda wrong=wrong: cascade_levels(*FLAT, page_size=wrong))
        refused("cascade_work", "page_size", lambda wrong=wrong: cascade_work([FLAT], wrong))
    for wrong in (0, -1, 1.5, "a", None, True):
        part = {"page_size": 2, "pages_per_part": wrong}
        refused("split_levels", "pages_per_part", lambda part=part: split_levels(FLAT, **part))
        refused("split_kv", "pages_per_part", lambda wrong=wrong: split(pages_per_part=wrong))
    refused("cascade_work", "causal", lambda: cascade_work([FLAT], 2, causal="no"))  # type: ignore[arg-type]
    assert len(split_levels(FLAT, page_size=2, pages_per_part=10**30)) == 1
    assert len(cascade_levels([0, 2], [0, 2], [0, 1], [2], page_size=2)) == 1


@pytest.mark.parametrize("name", CALLS)
def test_faults_bear_the_name_too(name: str) -> None:
    hole = FLAT._replace(kv_indices=row([0, -1]))
    with pytest.raises(PageFault, match=f"^{name}: "):
        if name == "split_kv":
            split_kv(Q, hole[0], K, V, *hole[1:], pages_per_part=1)
        else:
            CALLS[name]([hole])


def test_rows_must_agree() -> None:
    refused("cascade_attention", "qo_indptr", lambda: attend(q=np.ones((3, 2, 4))))
    refused("cascade_mla", "q_pe", lambda: cascade_mla(Q[:1], Q, CKV, KPE, LEVELS, sm_scale=1.0))
    refused("cascade_mla", "sm_scale", lambda: cascade_mla(Q, Q, CKV, KPE, LEVELS))
    refused("cascade_attention", "v_cache", lambda: cascade_attention(Q, K, V[:2], LEVELS))
    refused("cascade_attention", "k_cache", lambda: cascade_attention(Q, [1.0], V, LEVELS))  # type: ignore[arg-type]
