"""The checks: each takes a backend and a storage type, and raises AssertionError with what is wrong.

A check is named by the boundary it exercises. The same functions run under pytest on every backend, and against the
mutants, each of which at least one of them must catch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pagedref.conformance import cache_checks, refusals
from pagedref.conformance.agreement import assert_exact, assert_state
from pagedref.conformance.cases import make_case, oracle

__all__ = ["CHECKS", "Check"]

Check = Callable[[Any, str], None]
"""A check: called with a backend and a storage type, it raises AssertionError on what is wrong."""


def _slopes(heads: int) -> Any:
    return np.linspace(0.05, 0.9, heads)


def decode_at_page_borders(backend: Any, dtype: str) -> None:
    """Lengths around the ends of pages, for page sizes 1, 3 and 4 (S19, S20)."""
    for page_size in (1, 3, 4):
        case = make_case(page_size, [1] * 6, [1, 3, 4, 5, 8, 13], page_size=page_size, dtype=dtype)
        assert_state(case.decode(backend), oracle(case), f"decode, page size {page_size}")


def decode_of_empty_sequence(backend: Any, dtype: str) -> None:
    """A sequence without keys among others: (0, -inf), never NaN (S8)."""
    case = make_case(5, [1, 1, 1], [0, 5, 0], dtype=dtype)
    out, lse = case.decode(backend)
    assert_state((out, lse), oracle(case), "decode of an empty sequence")
    assert_exact(out[0], np.zeros_like(out[0]), "output without keys")
    none = make_case(5, [], [], dtype=dtype)
    assert none.decode(backend).out.shape == (0, 4, 8), "decode of no sequence at all has the wrong shape"


def prefill_is_bottom_right(backend: Any, dtype: str) -> None:
    """Causal rows over a longer cache: row i sits at position kv_len - q_len + i (S3, S4)."""
    case = make_case(6, [5, 2, 3], [5, 9, 8], dtype=dtype)
    assert_state(case.prefill(backend), oracle(case), "prefill")


def prefill_with_more_queries_than_keys(backend: Any, dtype: str) -> None:
    """Five queries over two keys: three rows see nothing (S8, P08, P12)."""
    case = make_case(7, [5, 1], [2, 4], dtype=dtype)
    out, lse = case.prefill(backend)
    assert_state((out, lse), oracle(case), "more queries than keys")
    assert np.isneginf(np.asarray(lse)[:3]).all(), "a row that sees no key must have lse -inf"


def prefill_mixed_with_decode(backend: Any, dtype: str) -> None:
    """Prompts, chunks, single tokens, sequences without rows and without keys in one batch."""
    case = make_case(8, [4, 1, 0, 3, 1, 0], [4, 11, 6, 7, 1, 0], page_size=3, dtype=dtype)
    assert_state(case.prefill(backend), oracle(case), "mixed batch")


def prefill_not_causal(backend: Any, dtype: str) -> None:
    """Every row sees every key."""
    case = make_case(9, [3, 2], [6, 2], dtype=dtype, causal=False)
    assert_state(case.prefill(backend), oracle(case), "not causal")


def grouped_heads(backend: Any, dtype: str) -> None:
    """Group sizes 1, 3 and 4: query head h reads kv head h // group_size (S12)."""
    for kv_heads, group in ((3, 1), (2, 3), (1, 4)):
        case = make_case(10, [2, 1], [3, 6], num_kv_heads=kv_heads, group_size=group, dtype=dtype)
        assert_state(case.prefill(backend), oracle(case), f"{kv_heads} kv heads, group size {group}")


def head_sizes(backend: Any, dtype: str) -> None:
    """Head sizes that are no power of two, and values of another size than keys."""
    for head_dim, v_head_dim in ((1, 1), (5, 3), (33, 20)):
        case = make_case(11, [1, 2], [3, 4], head_dim=head_dim, v_head_dim=v_head_dim, dtype=dtype)
        assert_state(case.prefill(backend), oracle(case), f"head sizes {head_dim} and {v_head_dim}")


def large_scores(backend: Any, dtype: str) -> None:
    """Scores of hundreds: no overflow, the largest wins (P07)."""
    case = make_case(12, [1, 2], [9, 5], spread=200.0, dtype=dtype)
    assert_state(case.prefill(backend), oracle(case), "large scores")
    q = np.full((1, 1, 1), -20000, dtype)
    k = np.array([1.0, 0.0]).reshape(1, 2, 1, 1).astype(dtype)
    v = np.array([1.0, 100.0]).reshape(1, 2, 1, 1).astype(dtype)
    indptr = np.array([0, 1], np.int32)
    mask = [np.array([[True, False]])]
    state = backend.paged_prefill(
        q, indptr, k, v, indptr, np.zeros(1, np.int32), np.array([2], np.int32), sm_scale=1.0, mask=mask
    )
    assert float(state.out[0, 0, 0]) == 1.0, "a hidden key with a larger score must not contribute"


def poison_changes_no_bit(backend: Any, dtype: str) -> None:
    """L3: NaN and Inf in every slot without a live token, against zeros."""
    for causal in (True, False):
        results = [
            make_case(13, [3, 1, 2], [6, 9, 3], dtype=dtype, poison=poison, causal=causal).prefill(backend)
            for poison in (0.0, float("nan"), float("inf"))
        ]
        for result in results[1:]:
            assert_exact(result.out, results[0].out, "output beside poison")
            assert_exact(result.lse, results[0].lse, "lse beside poison")


def hidden_live_keys_contribute_nothing(backend: Any, dtype: str) -> None:
    """S7: NaN and Inf in live keys that a row does not see; rows that see them have NaN."""
    case = make_case(14, [4], [6], dtype=dtype)
    for value in (np.nan, np.inf):
        values, keys = case.values[0].copy(), case.keys[0].copy()
        values[5, 0, 0] = value  # position 5 is seen by the last row alone
        keys[5, 1, 0] = np.nan
        v_cache, k_cache = case.v_cache.copy(), case.k_cache.copy()
        v_cache[case.kv_indices[1], 1], k_cache[case.kv_indices[1], 1] = values[5], keys[5]
        changed = replace(case, v_cache=v_cache, k_cache=k_cache, values=[values], keys=[keys])
        assert_state(changed.prefill(backend), oracle(changed), f"{value} in a hidden key")


def frames_change_no_bit(backend: Any, dtype: str) -> None:
    """L1: the same pages in other frames."""
    case = make_case(15, [2, 1], [7, 10], dtype=dtype)
    moved = np.random.default_rng(0).permutation(len(case.k_cache))
    k_cache, v_cache = np.empty_like(case.k_cache), np.empty_like(case.v_cache)
    k_cache[moved], v_cache[moved] = case.k_cache, case.v_cache
    other = replace(case, k_cache=k_cache, v_cache=v_cache, kv_indices=moved[case.kv_indices].astype(np.int32))
    assert_exact(other.prefill(backend).out, case.prefill(backend).out, "output with other frames")


def neighbours_change_no_bit(backend: Any, dtype: str) -> None:
    """L2: a sequence alone, and among others."""
    case = make_case(16, [2, 1, 3], [5, 12, 3], dtype=dtype)
    together = case.prefill(backend)
    for sequence in range(3):
        alone = case.only(sequence).prefill(backend)
        rows = slice(*(int(at) for at in case.qo_indptr[sequence : sequence + 2]))
        assert_exact(np.asarray(together.out)[rows], np.asarray(alone.out), f"output of sequence {sequence}")
        assert_exact(np.asarray(together.lse)[rows], np.asarray(alone.lse), f"lse of sequence {sequence}")


def decode_is_last_row_of_prefill(backend: Any, dtype: str) -> None:
    """L11, both against the oracle; and decode keeps types and shapes."""
    case = make_case(17, [1, 1], [6, 9], dtype=dtype)
    decoded, prefilled, expected = case.decode(backend), case.prefill(backend), oracle(case)
    assert_state(decoded, expected, "decode")
    assert_state(prefilled, expected, "prefill of one row")
    assert decoded.out.dtype == case.q.dtype, "output must have the type of the queries"


def chunks_make_the_whole(backend: Any, dtype: str) -> None:
    """L4, P13: a prompt of ten in chunks of 4, 4 and 2, with what is not written yet poisoned."""
    whole = make_case(18, [10], [10], dtype=dtype)
    expected = oracle(whole)
    for begin, end in ((0, 4), (4, 8), (8, 10)):
        k_cache, v_cache = whole.k_cache.copy(), whole.v_cache.copy()
        for position in range(end, 10):
            k_cache[whole.kv_indices[position // 4], position % 4] = np.nan
            v_cache[whole.kv_indices[position // 4], position % 4] = np.nan
        pages = -(-end // 4)
        out, lse = backend.paged_prefill(
            whole.q[begin:end],
            np.array([0, end - begin], np.int32),
            k_cache,
            v_cache,
            np.array([0, pages], np.int32),
            whole.kv_indices[:pages],
            np.array([(end - 1) % 4 + 1], np.int32),
        )
        assert_state((out, lse), expected.rows(begin, end), f"chunk {begin}..{end}")


def strides_change_no_bit(backend: Any, dtype: str) -> None:
    """L9, S23: the cache as a view into one buffer of all layers, of K beside V, and with padded rows."""
    case = make_case(19, [2, 1], [7, 4], dtype=dtype)
    expected = case.prefill(backend)
    frames, page_size, heads, dim = case.k_cache.shape
    layers = np.full((frames, 3, 2, page_size, heads, dim), np.nan, dtype)
    layers[:, 1, 0], layers[:, 1, 1] = case.k_cache, case.v_cache
    padded = np.full((2, frames, page_size, heads + 1, dim + 3), np.nan, dtype)
    padded[0, :, :, :heads, :dim], padded[1, :, :, :heads, :dim] = case.k_cache, case.v_cache
    for k_cache, v_cache in (
        (layers[:, 1, 0], layers[:, 1, 1]),
        (padded[0, :, :, :heads, :dim], padded[1, :, :, :heads, :dim]),
    ):
        result = replace(case, k_cache=k_cache, v_cache=v_cache).prefill(backend)
        assert_exact(result.out, expected.out, "output of a strided cache")
        assert_exact(result.lse, expected.lse, "lse of a strided cache")


def variants(backend: Any, dtype: str) -> None:
    """Window, chunk, softcap, ALiBi, sinks and masks, alone (S2, S5, S6, S11, S14)."""
    rng = np.random.default_rng(20)
    mask = [rng.random((3, 7)) < 0.6, rng.random((2, 9)) < 0.6]
    choices: list[dict[str, Any]] = [
        {"window": 1},
        {"window": 4},
        {"window": (2, 1), "causal": False},
        {"window": (None, 0), "causal": False},
        {"window": 3, "causal": False},
        {"attention_chunk": 3},
        {"attention_chunk": 4, "causal": False},
        {"softcap": 0.7},
        {"alibi_slopes": _slopes(4).astype(dtype)},
        {"sinks": np.array([0.0, -np.inf, 3.0, -2.0]).astype(dtype)},
        {"mask": mask},
        {"mask": mask, "causal": True},
        {"sm_scale": 0.3},
    ]
    for keywords in choices:
        case = make_case(20, [3, 2], [7, 9], dtype=dtype, **keywords)
        assert_state(case.prefill(backend), oracle(case), f"prefill with {', '.join(keywords)}")


def limits_change_nothing(backend: Any, dtype: str) -> None:
    """L13: window as long as the sequence, softcap without end, slope 0 and sink -inf are as if not given."""
    plain = make_case(23, [3, 1], [9, 4], dtype=dtype)
    expected = plain.prefill(backend)
    zeros, none = np.zeros(4, dtype), np.full(4, -np.inf, dtype)
    for keywords in ({"window": 9}, {"alibi_slopes": zeros}, {"sinks": none}, {"attention_chunk": 9}):
        result = plain.using(**keywords).prefill(backend)
        what = f"with {next(iter(keywords))} at its limit"
        assert_exact(np.asarray(result.out), np.asarray(expected.out), f"output {what}")
        assert_exact(np.asarray(result.lse), np.asarray(expected.lse), f"lse {what}")
    for cap in (1e6, 1e30, 1e39, 1e300):
        assert_state(plain.using(softcap=cap).prefill(backend), oracle(plain.using(softcap=cap)), f"softcap {cap}")


def variants_together(backend: Any, dtype: str) -> None:
    """Everything at once, also where no key is visible; and decode with it."""
    sinks = np.array([0.5, -1.0, 2.0, -np.inf]).astype(dtype)
    common: dict[str, Any] = {
        "window": 5,
        "softcap": 2.0,
        "alibi_slopes": _slopes(4).astype(dtype),
        "sinks": sinks,
        "sm_scale": 0.8,
    }
    case = make_case(21, [4, 3, 1], [9, 2, 0], dtype=dtype, **common)
    assert_state(case.prefill(backend), oracle(case), "all variants")
    case = make_case(21, [1, 1], [9, 2], dtype=dtype, **common, attention_chunk=4)
    assert_state(case.decode(backend), oracle(case), "decode with all variants")


def holes_are_not_read(backend: Any, dtype: str) -> None:
    """S21: pages behind the window are unmapped; reading one with a visible key is a PageFault."""
    case = make_case(22, [2, 1], [11, 9], dtype=dtype, window=3)
    holed = case.kv_indices.copy()
    holed[[0, 1, 3]] = -1  # rows of the first see 7..10 (pages 1, 2), the row of the second sees 6..8 (pages 1, 2)
    holed[1] = case.kv_indices[1]
    result = replace(case, kv_indices=holed).prefill(backend)
    assert_state(result, oracle(case), "window over holes")
    refusals.refuse_visible_hole(backend, case)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        decode_at_page_borders,
        decode_of_empty_sequence,
        prefill_is_bottom_right,
        prefill_with_more_queries_than_keys,
        prefill_mixed_with_decode,
        prefill_not_causal,
        grouped_heads,
        head_sizes,
        large_scores,
        poison_changes_no_bit,
        hidden_live_keys_contribute_nothing,
        frames_change_no_bit,
        neighbours_change_no_bit,
        decode_is_last_row_of_prefill,
        chunks_make_the_whole,
        strides_change_no_bit,
        variants,
        limits_change_nothing,
        variants_together,
        holes_are_not_read,
        *cache_checks.CHECKS,
        *refusals.CHECKS,
    )
}
"""All checks by name."""
