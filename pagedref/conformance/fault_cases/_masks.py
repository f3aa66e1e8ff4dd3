"""Cases of visibility and of what masked keys hold: P05 to P08, P12, P17, P20, P23."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pagedref.attention.dense import dense_attention
from pagedref.conformance.agreement import assert_bound, assert_exact, assert_state
from pagedref.conformance.cases import make_case, oracle
from pagedref.conformance.fault_cases._tools import paged, pattern, same, tool, value

__all__ = ["CASES"]


def p05(backend: Any) -> None:
    """MLA, 13 tokens in pages of 4: NaN and Inf behind the last token change no bit (S7, S13)."""
    rng = np.random.default_rng(5)
    q_nope, q_pe = (rng.standard_normal((2, 3, dim)).astype(np.float32) for dim in (6, 2))
    for length, page_size in ((13, 4), (4, 4), (1, 16), (6, 1)):
        latents = rng.standard_normal((length, 1, 6)), rng.standard_normal((length, 1, 2))
        results = []
        for poison in (0.0, 7.0, float("nan"), float("inf")):
            ckv, kpe, *pages = paged(*latents, page_size=page_size, poison=poison)
            caches = ckv[:, :, 0], kpe[:, :, 0]
            one = tool(backend, "mla_decode")(q_nope[:1], q_pe[:1], *caches, *pages, sm_scale=0.5)
            rows = np.array([0, 2], np.int32)
            two = tool(backend, "mla_prefill")(q_nope, q_pe, rows, *caches, *pages, sm_scale=0.5)
            results.append([np.asarray(part) for part in (*one, *two)])
        for result in results[1:]:
            for name, part, clean in zip(("out", "lse", "out", "lse"), result, results[0], strict=True):
                assert_exact(part, clean, f"{name} of {length} tokens in pages of {page_size} beside poison")


def p06(backend: Any) -> None:
    """Probability 0 times a NaN value: behind the last token, in other frames, in live keys that a row skips (S7)."""
    for causal in (True, False):
        clean = make_case(6, [1, 2], [1, 3], head_dim=64, page_size=16, poison=0.0, causal=causal)
        expected = clean.prefill(backend)
        for poison in (np.nan, np.inf, -np.inf):
            for sides in ("v", "k", "kv"):
                case = make_case(6, [1, 2], [1, 3], head_dim=64, page_size=16, poison=poison, causal=causal)
                caches = {f"{side}_cache": getattr(clean, f"{side}_cache") for side in "kv" if side not in sides}
                state = type(case)(**{**case.__dict__, **caches}).prefill(backend)
                what = f"{poison} in the tail of {sides}, causal={causal}"
                assert_exact(np.asarray(state.out), np.asarray(expected.out), f"output: {what}")
                assert_exact(np.asarray(state.lse), np.asarray(expected.lse), f"lse: {what}")
    keys, values = np.zeros((5, 1, 2)), np.arange(10.0).reshape(5, 1, 2)
    values[1] = np.nan  # live, and hidden from both rows
    q, rows = np.zeros((2, 1, 2), np.float32), np.array([0, 2], np.int32)
    mask = [np.array([[False, False, True, True, False], [False, False, False, True, True]])]
    out = np.asarray(backend.paged_prefill(q, rows, *paged(keys, values), mask=mask).out)
    same(out.ravel().tolist(), [5.0, 6.0, 7.0, 8.0], "rows that skip a live NaN")


def p07(backend: Any) -> None:
    """A finite number for minus infinity loses to real scores, or wins over all of them (S7)."""
    rows, mask = np.array([0, 1], np.int32), [np.array([[True, False]])]
    for size in (20_000.0, 1e6, 1e30):
        q = np.full((1, 1, 1), -size, np.float32)
        pages = paged([1.0, 0.0], [1.0, 100.0])
        out, lse = value(backend.paged_prefill(q, rows, *pages, sm_scale=1.0, mask=mask))
        same([out, lse], [1.0, float(np.float32(-size))], f"one visible key of score -{size}")
    for low in (6e4, 6e9, 6e30):
        keys = np.full(64, -low)
        keys[0] = -low * 55 / 60
        pages = paged(keys, np.arange(1.0, 65.0), page_size=16)
        q = np.ones((1, 1, 1), np.float32)
        for state in (
            backend.paged_decode(q, *pages, sm_scale=1.0),
            backend.paged_prefill(q, rows, *pages, sm_scale=1.0, causal=False),
        ):
            same(value(state), [1.0, float(np.float32(keys[0]))], f"all scores below -{0.9 * low}")


def p08(backend: Any) -> None:
    """Rows that see nothing: output exactly 0 and lse -inf, whatever hides the keys; the others as ever (S8)."""
    none = np.zeros((2, 6), bool)
    none[1, 3] = True
    for q_len, kv_len, empty, keywords in (
        (5, 2, [0, 1, 2], {}),
        (5, 2, [0, 1, 2], {"softcap": 2.0}),
        (7, 4, [0, 1, 2], {"window": 2}),
        (4, 9, [0, 1], {"mask": [np.arange(9) < np.array([0, 0, 2, 9])[:, None]]}),
        (2, 6, [0], {"mask": [none]}),
        (5, 3, [0, 1], {"attention_chunk": 2, "causal": False}),
    ):
        case = make_case(8, [q_len], [kv_len], **keywords)
        out, lse = (np.asarray(part) for part in case.prefill(backend))
        what = f"{q_len} rows over {kv_len} keys, {', '.join(keywords) or 'causal'}"
        same(np.flatnonzero(np.isneginf(lse).all(axis=1)).tolist(), empty, f"{what}: rows of lse -inf")
        assert_exact(out[empty], np.zeros_like(out[empty]), f"{what}: output of rows without keys")
        assert_state((out, lse), oracle(case), what)


def p12(backend: Any) -> None:
    """Causal is aligned bottom-right, in a ragged batch too; worked out key by key from absolute positions (S3, S4)."""
    same(pattern(backend, 2, 5), ["11110", "11111"], "2 queries over 5 keys")
    same(pattern(backend, 5, 2), ["00", "00", "00", "10", "11"], "5 queries over 2 keys")
    for q_len in range(1, 6):
        for kv_len in range(1, 8):
            rows = range(kv_len - q_len, kv_len)  # absolute positions of the queries
            expected = ["".join(str(int(key <= row)) for key in range(kv_len)) for row in rows]
            same(pattern(backend, q_len, kv_len), expected, f"{q_len} queries over {kv_len} keys")
    ragged = make_case(12, [2, 5, 1, 3], [5, 2, 6, 3])
    assert_state(ragged.prefill(backend), oracle(ragged), "a ragged batch")


def p17(backend: Any) -> None:
    """``window=W`` counts the own position: W = 2 at row 3 sees keys 2 and 3 (S5)."""
    same(pattern(backend, 4, 4, window=2), ["1000", "1100", "0110", "0011"], "window 2")
    same(pattern(backend, 2, 4, window=1), ["0010", "0001"], "window 1")
    same(pattern(backend, 3, 3, window=2, causal=False), ["110", "111", "011"], "window 2, not causal")
    same(pattern(backend, 2, 6, window=(2, 0)), ["001110", "000111"], "two keys to the left")
    same(pattern(backend, 2, 4, window=(0, 1), causal=False), ["0011", "0001"], "one key to the right")
    same(pattern(backend, 2, 4, window=(None, 0), causal=False), ["1110", "1111"], "everything to the left")
    for window in range(1, 7):
        rows = [[int(0 <= row - key < window) for key in range(6)] for row in range(6)]
        expected = ["".join(map(str, row)) for row in rows]
        same(pattern(backend, 6, 6, window=window), expected, f"window {window} over six keys")


def p20(backend: Any) -> None:
    """Window 8, a prompt of 6, then token by token: the eighth still sees the first, the ninth does not (S5)."""
    for length in range(6, 12):
        expected = "".join(str(int(length - key <= 8)) for key in range(length))
        same(pattern(backend, 1, length, decode=True, window=8), [expected], f"window 8 after token {length}")
    for window in (1, 2, 3, 5):
        for length in range(1, 9):
            expected = "".join(str(int(length - key <= window)) for key in range(length))
            same(pattern(backend, 1, length, decode=True, window=window), [expected], f"window {window}, {length} keys")


def p23(backend: Any) -> None:
    """Scale, cap, bias, mask: a capped mask leaks, a capped bias is another number (S1, S2)."""
    capped = 2 * math.tanh(0.5)
    rows, q = np.array([0, 1], np.int32), np.ones((1, 1, 1), np.float32)
    pages = paged([1.0, 1.0], [1.0, 3.0])
    mask = [np.array([[True, False]])]
    state = backend.paged_prefill(q, rows, *pages, sm_scale=1.0, softcap=2.0, mask=mask)
    exact = dense_attention(q, np.ones((1, 1, 1)), np.ones((1, 1, 1)), sm_scale=1.0, softcap=2.0, with_bound=True)
    assert_bound(np.asarray(state.lse), np.full((1, 1), capped), exact.lse_bound, "lse of a capped key beside a mask")
    same([value(state)[0]], [1.0], "weight of the visible key")
    for keywords in ({}, {"attention_chunk": 3}, {"alibi_slopes": np.array([0.5], np.float32)}):
        case = make_case(23, [3], [7], num_kv_heads=1, group_size=1, spread=4.0, softcap=2.0, **keywords)
        assert_state(case.prefill(backend), oracle(case), f"softcap with {', '.join(keywords) or 'a causal mask'}")
    slopes = np.array([10.0], np.float32)
    state = backend.paged_decode(0 * q, *paged([0.0, 0.0], [0.0, 1.0]), softcap=1.0, alibi_slopes=slopes)
    zeros = np.zeros((2, 1, 1))
    values = np.array([0.0, 1.0]).reshape(2, 1, 1)
    exact = dense_attention(0 * q, zeros, values, softcap=1.0, alibi_slopes=slopes, with_bound=True)
    by_hand = 1 / (1 + math.exp(-10.0))
    assert abs(exact.out.item() - by_hand) < 1e-15
    assert_state(state, exact, "a bias of -10 under a cap of 1 stays -10")


CASES = {"P05": p05, "P06": p06, "P07": p07, "P08": p08, "P12": p12, "P17": p17, "P20": p20, "P23": p23}
"""The cases by number; each takes a backend."""
