"""Cases of states, sinks, heads and scales: P09, P10, P24, P25, P27, P28, P30."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from pagedref.attention.bounds import Arithmetic
from pagedref.attention.dense import DenseState, dense_attention
from pagedref.attention.mla_forms import dense_mla, mla_absorb, mla_expand, mla_project
from pagedref.conformance.agreement import assert_bound, assert_exact, assert_state
from pagedref.conformance.cases import make_case, oracle
from pagedref.conformance.fault_cases._tools import paged, refuses, same, tool, value
from pagedref.errors import ContractError

__all__ = ["CASES"]


def p09(backend: Any) -> None:
    """A sequence without keys has lse -inf, never +inf, and merging it in changes no bit (S8, S9, S10)."""
    q, rows = np.ones((1, 1, 2), np.float32), np.array([0, 1], np.int32)
    empty = paged(np.zeros((0, 1, 2)), np.zeros((0, 1, 3)))
    full = make_case(9, [1], [5], num_kv_heads=1, group_size=1, head_dim=2, v_head_dim=3).decode(backend)
    for state in (backend.paged_decode(q, *empty), backend.paged_prefill(q, rows, *empty)):
        out, lse = (np.asarray(part) for part in state)
        same(lse.ravel().tolist(), [-math.inf], "lse of no keys")
        same(out.ravel().tolist(), [0.0, 0.0, 0.0], "output of no keys")
        for pair in ((state, full), (full, state)):
            merged = backend.merge_states(*(np.stack([np.asarray(part[at]) for part in pair]) for at in range(2)))
            assert_exact(np.asarray(merged.out), np.asarray(full.out), "output merged with nothing")
            assert_exact(np.asarray(merged.lse), np.asarray(full.lse), "lse merged with nothing")


def p10(backend: Any) -> None:
    """Merging nothing with nothing: in pairs, in place, many, none at all, and one empty of two (S10)."""
    shape = (2, 3, 4)
    empty = np.zeros(shape, np.float32), np.full(shape[:2], -np.inf, np.float32)
    for count in (1, 2, 5, 0):
        out, lse = (np.stack([part] * count) if count else np.zeros((0, *part.shape), np.float32) for part in empty)
        merged = backend.merge_states(out, lse)
        assert_exact(np.asarray(merged.out), empty[0], f"output of {count} empty states")
        assert_exact(np.asarray(merged.lse), empty[1], f"lse of {count} empty states")
        if count:
            target = type(merged)(out[0], lse[0])
            backend.merge_states(out, lse, out_state=target)
            assert_exact(out[0], empty[0], f"output of {count} empty states in place")
            assert_exact(lse[0], empty[1], f"lse of {count} empty states in place")
    rng = np.random.default_rng(10)
    out, lse = rng.standard_normal((2, *shape)).astype(np.float32), rng.standard_normal((2, 2, 3)).astype(np.float32)
    lse[0, 0], lse[:, 1, 1] = -np.inf, -np.inf  # one of two for some rows, both for another
    merged = backend.merge_states(out, lse)
    assert_exact(np.asarray(merged.out)[0], out[1, 0], "output where one of two is empty")
    assert_exact(np.asarray(merged.out)[1, 1], np.zeros(4, np.float32), "output where both are empty")
    same(np.asarray(merged.lse)[1, 1:2].tolist(), [-math.inf], "lse where both are empty")


def p24(backend: Any) -> None:
    """The published slopes of ALiBi for 6, 8 and 12 heads, and the bias ``slope * (key - query)`` (S6)."""
    published = {
        8: [2.0**-n for n in range(1, 9)],
        6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
        12: [2.0**-n for n in range(1, 9)] + [2.0 ** -(n - 0.5) for n in range(1, 5)],
        1: [1 / 256],
    }
    for heads, expected in published.items():
        slopes = tool(backend, "alibi_slopes")(heads)
        same([round(float(slope), 12) for slope in slopes], [round(slope, 12) for slope in expected], f"{heads} heads")
        length = 5
        q, narrow = np.zeros((1, heads, 1), np.float32), np.asarray(expected, np.float32)
        keys, values = np.zeros((length, 1, 1)), np.eye(length)[:, None, :]
        state = backend.paged_decode(q, *paged(keys, values), alibi_slopes=narrow)
        exact = dense_attention(q, keys, values, alibi_slopes=narrow, with_bound=True)
        bias = [[float(slope) * (key - length + 1) for key in range(length)] for slope in narrow]
        by_hand = np.log(np.exp(bias).sum(axis=1))[None]
        assert_bound(np.asarray(state.lse), by_hand, exact.lse_bound, f"lse of {heads} heads")
        assert_state(state, exact, f"decode with the slopes of {heads} heads")


def p25(backend: Any) -> None:
    """A sink enters exactly once, however keys are split; alone it is the lse; far above all scores it wins (S11)."""
    q, sink = np.zeros((1, 1, 1), np.float32), np.zeros(1, np.float32)
    keys, values = np.zeros((2, 1, 1)), np.array([1.0, 3.0]).reshape(2, 1, 1)
    exact = dense_attention(q, keys, values, sinks=sink, with_bound=True)
    by_hand = DenseState(np.full((1, 1, 1), 4 / 3), np.full((1, 1), math.log(3)), exact.out_bound, exact.lse_bound)
    for page_size in (1, 4):
        state = backend.paged_decode(q, *paged(keys, values, page_size=page_size), sinks=sink)
        assert_state(state, by_hand, f"scores 0 and 0, sink 0, page size {page_size}")
    for length in (1, 9, 40):
        case = make_case(25, [1], [length], num_kv_heads=1, group_size=3, sinks=np.array([0.5, 8.0, -1.0], np.float32))
        assert_state(case.decode(backend), oracle(case), f"{length} keys and a sink")
        _split_and_sink(backend, case)
    empty = paged(np.zeros((0, 1, 1)), np.zeros((0, 1, 1)))
    for height in (0.0, 2.5, 3e4):
        got = value(backend.paged_decode(q, *empty, sinks=np.full(1, height, np.float32)))
        same(got, [0.0, height], f"no keys and a sink of {height}")
        got = value(backend.paged_decode(q, *paged(keys, values), sinks=np.full(1, 200.0 + height, np.float32)))
        same(got[1:], [200.0 + height], f"lse under a sink of {200 + height}")
        assert math.isfinite(got[0]) and got[0] < 1e-30, f"output under a sink of {200 + height}: {got[0]}"
    case = make_case(25, [1], [6], sinks=np.full(4, 5.0, np.float32), softcap=1.0)
    assert_state(case.decode(backend), oracle(case), "a sink is not capped")


def _split_and_sink(backend: Any, case: Any) -> None:
    """Parts without sink, some of them empty, and the state (0, sink) once."""
    pages, sinks = len(case.kv_indices), case.keywords["sinks"]
    for edges in ([0, pages], [0, 0, pages], [0, pages // 2, pages], [0, 0, 0, pages // 3, pages]):
        states = [(np.zeros((1, 3, 8), np.float32), sinks[None])]
        for begin, end in pairwise(edges):
            last = case.kv_last_page_len if end == pages else np.array([4], np.int32)
            part = (np.array([0, end - begin], np.int32), case.kv_indices[begin:end], last if end > begin else 0 * last)
            states.append(backend.paged_decode(case.q, case.k_cache, case.v_cache, *part))
        merged = backend.merge_states(*(np.stack([np.asarray(state[at]) for state in states]) for at in range(2)))
        assert_state(merged, oracle(case), f"pages split at {edges}, sink merged once")


def p27(backend: Any) -> None:
    """Head counts that do not divide are refused; the text names both (S12)."""
    for qo, kv in ((33, 2), (3, 2), (2, 3), (1, 2)):
        pages = paged(np.zeros((3, kv, 1)), np.zeros((3, kv, 1)))
        q = np.zeros((1, qo, 1), np.float32)
        rows = np.array([0, 1], np.int32)
        words = (f"{qo} / {kv}", "S12")
        what = f"{qo} query heads over {kv}"
        refuses(partial(backend.paged_decode, q, *pages), ContractError, words, f"decode: {what}")
        refuses(partial(backend.paged_prefill, q, rows, *pages), ContractError, words, f"prefill: {what}")


def p28(backend: Any) -> None:
    """The scale of MLA is the caller's, ``1/sqrt(qk_nope + qk_rope)``, before and after absorption (S13)."""
    rng = np.random.default_rng(28)
    dtype = "float32" if hasattr(backend, "device") else "float64"
    for nope, rope, rank, heads in ((2, 2, 6, 3), (192, 64, 512, 1), (128, 64, 512, 1)):
        scale = 1 / math.sqrt(nope + rope)
        w_kv_b = rng.standard_normal((heads, nope + 3, rank)) / math.sqrt(rank)
        q_nope, q_pe = rng.standard_normal((1, heads, nope)), rng.standard_normal((1, heads, rope))
        ckv, kpe = rng.standard_normal((9, rank)), rng.standard_normal((9, rope))
        absorbed = mla_absorb(w_kv_b, q_nope)
        absorbed, q_pe, ckv, kpe = (array.astype(dtype) for array in (absorbed, q_pe, ckv, kpe))
        pages = paged(ckv[:, None], kpe[:, None], dtype=dtype)
        caches = pages[0][:, :, 0], pages[1][:, :, 0]
        arithmetic = Arithmetic(dtype)
        exact = dense_mla(absorbed, q_pe, ckv, kpe, sm_scale=scale, with_bound=True, arithmetic=arithmetic)
        assert exact.out_bound is not None
        rows = np.array([0, 1], np.int32)
        states = (
            tool(backend, "mla_decode")(absorbed, q_pe, *caches, *pages[2:], sm_scale=scale),
            tool(backend, "mla_prefill")(absorbed, q_pe, rows, *caches, *pages[2:], sm_scale=scale),
        )
        k_nope, v = mla_expand(w_kv_b, ckv, nope_dim=nope)
        keys = np.concatenate([k_nope, np.repeat(kpe[:, None], heads, axis=1)], axis=-1)
        explicit = dense_attention(np.concatenate([q_nope, q_pe], axis=-1), keys, v)  # by its own default scale
        for state in states:
            assert_state(state, exact, f"rank {rank}, nope {nope}, rope {rope}")
            if dtype == "float32":
                continue  # rounded after absorption, so not the same question as the explicit form
            out = mla_project(w_kv_b, np.asarray(state.out), nope_dim=nope)
            off = np.einsum("hvr,thr->thv", np.abs(w_kv_b[:, nope:]), exact.out_bound + 1e-13 * np.abs(exact.out).max())
            assert_bound(out, explicit.out, off, "absorbed against explicit form")
    unscaled = partial(tool(backend, "mla_decode"), absorbed, q_pe, *caches, *pages[2:])
    refuses(unscaled, ContractError, ("sm_scale", "S13"), "MLA without a scale")


def p30(backend: Any) -> None:
    """The lse is a natural logarithm, when it is returned and when it is merged (S9)."""
    q = np.zeros((1, 1, 1), np.float32)
    for few, many in ((1, 3), (64, 3072)):
        states = [
            backend.paged_decode(q, *paged(np.zeros(count), np.full(count, mark), page_size=64))
            for count, mark in ((many, 0.0), (few, 1.0))
        ]
        total = many + few
        keys = np.zeros((total, 1, 1))
        values = np.concatenate([np.zeros(many), np.ones(few)]).reshape(-1, 1, 1)
        exact = dense_attention(q, keys, values, with_bound=True)
        for count, state in zip((many, few), states, strict=True):
            part = dense_attention(q, keys[:count], values[:count], with_bound=True)
            by_hand = np.full((1, 1), math.log(count))
            assert_bound(np.asarray(state.lse), by_hand, part.lse_bound, f"lse of {count} equal keys")
        merged = backend.merge_states(*(np.stack([np.asarray(state[at]) for state in states]) for at in range(2)))
        share = DenseState(
            np.full((1, 1, 1), few / total), np.full((1, 1), math.log(total)), exact.out_bound, exact.lse_bound
        )
        assert_state(merged, share, f"{many} keys of value 0 and {few} of value 1")


CASES = {"P09": p09, "P10": p10, "P24": p24, "P25": p25, "P27": p27, "P28": p28, "P30": p30}
"""The cases by number; each takes a backend."""
