"""Checks of movement and merging: append, gather, copy, merge, and the cache that a user holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedref.attention.bounds import Arithmetic, state_bounds
from pagedref.attention.dense import DenseState
from pagedref.cache_spec import CacheSpec
from pagedref.conformance.agreement import assert_exact, assert_state
from pagedref.conformance.cases import make_case, oracle
from pagedref.kv_cache import PagedKVCache

__all__ = ["CHECKS"]


def append_writes_its_slots_alone(backend: Any, dtype: str) -> None:
    """Named slots hold the new rows, every other bit of the pool is as it was; -1 writes nothing (S22, P36)."""
    rng = np.random.default_rng(30)
    for slots in ([7, -1, 0, 12], [-1, -1], [], [15]):
        pools = [rng.standard_normal((4, 4, 2, dim)).astype(dtype) for dim in (3, 5)]
        rows = [rng.standard_normal((len(slots), 2, dim)).astype(dtype) for dim in (3, 5)]
        expected = [pool.copy() for pool in pools]
        for at, slot in enumerate(slots):
            if slot >= 0:
                for pool, row in zip(expected, rows, strict=True):
                    pool[slot // 4, slot % 4] = row[at]
        backend.append_kv(*rows, *pools, np.array(slots, np.int64))
        for name, pool, want in zip(("keys", "values"), pools, expected, strict=True):
            assert_exact(pool, want, f"{name} after append to {slots}")


def append_to_strided_cache(backend: Any, dtype: str) -> None:
    """A layer of one buffer of all layers: the other layers keep their bits (S23)."""
    pool = np.full((3, 2, 4, 1, 2), 5.0, dtype)
    rows = np.arange(4.0).reshape(2, 1, 2).astype(dtype)
    expected = pool.copy()
    expected[1, 1, 2], expected[0, 1, 3] = rows
    backend.append_kv(rows, rows, pool[:, 1], np.full((3, 4, 1, 2), 0, dtype), np.array([6, 3], np.int32))
    assert_exact(pool, expected, "strided cache after append")


def slots_are_64_bits_wide(backend: Any, dtype: str) -> None:
    """Slots and offsets beyond 2**31, in a pool whose frames overlap so that it takes little memory (S19, P01, P02)."""
    page_size, num_frames = 4096, (1 << 19) + 2
    memory = np.zeros(num_frames + page_size, dtype)
    item = memory.itemsize
    pool = np.lib.stride_tricks.as_strided(memory, (num_frames, page_size, 1, 1), (item, item, item, item))
    frame, offset = num_frames - 1, 3
    slot = np.array([frame * page_size + offset], np.int64)
    row = np.full((1, 1, 1), 7.0, dtype)
    backend.append_kv(row, row, pool, pool, slot)
    expected = np.zeros_like(memory)
    expected[frame + offset] = 7
    assert_exact(memory, expected, f"memory after append to slot {int(slot[0])}")
    csr = np.array([0, 1], np.int32), np.array([frame], np.int32), np.array([4], np.int32)
    keys, _ = backend.gather_kv(pool, pool, *csr)
    assert_exact(np.asarray(keys).reshape(-1), np.array([0, 0, 0, 7], dtype), "keys gathered past slot 2**31")
    out, _ = backend.paged_decode(np.full((1, 1, 1), 50.0, dtype), pool, pool, *csr)
    assert float(out[0, 0, 0]) == 7.0, "decode past slot 2**31 read something else"


def gather_reads_live_tokens(backend: Any, dtype: str) -> None:
    """All live tokens in order of position, to the bit."""
    case = make_case(31, [1, 1, 1, 1], [5, 0, 12, 1], page_size=3, dtype=dtype, v_head_dim=5)
    keys, values = backend.gather_kv(*case.pages)
    assert_exact(np.asarray(keys), np.concatenate(case.keys), "keys")
    assert_exact(np.asarray(values), np.concatenate(case.values), "values")


def copy_moves_whole_frames(backend: Any, dtype: str) -> None:
    """Frames are copied in every array, one source to two frames too; the rest keeps its bits."""
    rng = np.random.default_rng(32)
    pools = [rng.standard_normal(shape).astype(dtype) for shape in ((6, 2, 3), (6, 4), (6,))]
    expected = [pool.copy() for pool in pools]
    for pool in expected:
        pool[[4, 0, 5]] = pool[[1, 1, 3]]
    backend.copy_frames(pools, np.array([1, 1, 3], np.int32), np.array([4, 0, 5], np.int32))
    for pool, want in zip(pools, expected, strict=True):
        assert_exact(pool, want, "pool after copy")
    backend.copy_frames(pools, np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert_exact(pools[0], expected[0], "pool after an empty copy")


def merge_has_an_exact_identity(backend: Any, dtype: str) -> None:
    """S10: (0, -inf) changes no bit on either side; all empty is empty; swapping changes no bit (P09, P10)."""
    rng = np.random.default_rng(33)
    out = rng.standard_normal((2, 3, 2, 4)).astype(dtype)
    out[0, 0, 0, 0] = -0.0
    lse = rng.standard_normal((2, 3, 2)).astype(dtype)
    empty_out, empty_lse = np.zeros_like(out[0]), np.full_like(lse[0], -np.inf)
    for order in ((0, 1), (1, 0)):
        parts = [(out[0], lse[0]), (empty_out, empty_lse)]
        state = backend.merge_states(
            np.stack([parts[at][0] for at in order]), np.stack([parts[at][1] for at in order])
        )
        assert_exact(np.asarray(state.out), out[0], "output merged with the identity")
        assert_exact(np.asarray(state.lse), lse[0], "lse merged with the identity")
    state = backend.merge_states(np.stack([empty_out] * 3), np.stack([empty_lse] * 3))
    assert_exact(np.asarray(state.out), empty_out, "output of all empty")
    assert_exact(np.asarray(state.lse), empty_lse, "lse of all empty")
    state = backend.merge_states(out[:0], lse[:0])
    assert_exact(np.asarray(state.lse), empty_lse, "lse of no states")
    forward, back = backend.merge_states(out, lse), backend.merge_states(out[::-1].copy(), lse[::-1].copy())
    assert_exact(np.asarray(forward.out), np.asarray(back.out), "output of swapped states")
    assert_exact(np.asarray(forward.lse), np.asarray(back.lse), "lse of swapped states")


def merge_does_not_depend_on_its_shape(backend: Any, dtype: str) -> None:
    """L2, S10: many states of one token and one head, alone, beside others, and with empty states behind them."""
    rng = np.random.default_rng(37)
    for seed in range(10):
        out = rng.standard_normal((19, 3, 2, 4)).astype(dtype)
        lse = rng.standard_normal((19, 3, 2)).astype(dtype)
        whole = backend.merge_states(out, lse)
        one = backend.merge_states(out[:, 1:2, 1:2].copy(), lse[:, 1:2, 1:2].copy())
        assert_exact(np.asarray(one.out), np.asarray(whole.out)[1:2, 1:2], f"output of one token, case {seed}")
        assert_exact(np.asarray(one.lse), np.asarray(whole.lse)[1:2, 1:2], f"lse of one token, case {seed}")
        more_out = np.concatenate([out, np.zeros_like(out[:5])])[:, 1:2, 1:2].copy()
        more_lse = np.concatenate([lse, np.full_like(lse[:5], -np.inf)])[:, 1:2, 1:2].copy()
        padded = backend.merge_states(more_out, more_lse)
        assert_exact(np.asarray(padded.out), np.asarray(one.out), f"output with empty states, case {seed}")
        assert_exact(np.asarray(padded.lse), np.asarray(one.lse), f"lse with empty states, case {seed}")


def merge_of_large_lse(backend: Any, dtype: str) -> None:
    """lse of hundreds and thousands of either sign, against float64 (S9, S10, P30)."""
    rng = np.random.default_rng(34)
    for shift in (0.0, 300.0, -300.0, 5000.0):
        out = rng.standard_normal((4, 3, 2, 5)).astype(dtype)
        lse = (shift + 3 * rng.standard_normal((4, 3, 2))).astype(dtype)
        lse[2, 1] = -np.inf
        state = backend.merge_states(out, lse)
        scores = lse.astype(np.float64).transpose(1, 2, 0)  # (tokens, heads, states): a state is a key with its lse
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        exact_lse = scores.max(axis=-1) + np.log(weights.sum(axis=-1))
        weights /= weights.sum(axis=-1, keepdims=True)
        exact = np.einsum("ths,sthd->thd", weights, out.astype(np.float64))
        bounds = [
            state_bounds(
                Arithmetic(dtype=dtype), scores[t], 0 * weights[t], weights[t], out[:, t].astype(float), exact[t], lse_t
            )
            for t, lse_t in enumerate(exact_lse)
        ]
        out_bound, lse_bound = (np.stack([bound[at] for bound in bounds]) for at in range(2))
        expected = DenseState(exact, exact_lse, out_bound, lse_bound)
        assert_state(state, expected, f"merge around lse {shift}")


def merge_in_place(backend: Any, dtype: str) -> None:
    """``out_state=`` receives the result, also where it is one of the inputs."""
    rng = np.random.default_rng(35)
    out, lse = rng.standard_normal((2, 3, 2, 4)).astype(dtype), rng.standard_normal((2, 3, 2)).astype(dtype)
    expected = backend.merge_states(out, lse)
    target = type(expected)(out[0], lse[0])
    backend.merge_states(out, lse, out_state=target)
    assert_exact(out[0], np.asarray(expected.out), "output in place")
    assert_exact(lse[0], np.asarray(expected.lse), "lse in place")


def parts_make_the_whole(backend: Any, dtype: str) -> None:
    """L5: keys split at a page border, attended apart and merged, against the oracle of the whole."""
    whole = make_case(36, [1], [11], dtype=dtype)
    states = []
    for begin, end in ((0, 2), (2, 3), (3, 3)):
        last = 0 if end == begin else (3 if end == 3 else 4)
        states.append(
            backend.paged_decode(
                whole.q,
                whole.k_cache,
                whole.v_cache,
                np.array([0, end - begin], np.int32),
                whole.kv_indices[begin:end],
                np.array([last], np.int32),
            )
        )
    merged = backend.merge_states(*(np.stack([np.asarray(state[at]) for state in states]) for at in range(2)))
    assert_state(merged, oracle(whole), "merged parts")


def fork_keeps_its_sibling(backend: Any, dtype: str) -> None:
    """L6, L7: after a fork both write; each reads its own tokens, the shared page was copied in every layer (S27)."""
    cache = PagedKVCache(CacheSpec(2, 1, 2, page_size=4, dtype=dtype), 6, backend=backend, poison=True)

    def write(seq_ids: list[int], tokens: list[list[float]]) -> None:
        step = cache.begin(seq_ids, [len(part) for part in tokens])
        rows = np.repeat(np.concatenate([np.asarray(part) for part in tokens]), 2).reshape(-1, 1, 2).astype(dtype)
        for layer in range(2):
            cache.append(step, rows + layer, rows - layer, layer=layer)
        cache.commit(step)

    first = cache.add()
    write([first], [[1, 2, 3, 4, 5, 6]])
    second = cache.fork(first)
    write([second], [[9]])
    write([first], [[8]])
    for sequence, history in ((first, [1, 2, 3, 4, 5, 6, 8]), (second, [1, 2, 3, 4, 5, 6, 9])):
        for layer in range(2):
            keys, values = cache.gather(sequence, layer=layer)
            want = np.repeat(np.asarray(history), 2).reshape(-1, 1, 2).astype(dtype)
            assert_exact(np.asarray(keys), want + layer, f"keys of sequence {sequence}, layer {layer}")
            assert_exact(np.asarray(values), want - layer, f"values of sequence {sequence}, layer {layer}")
    cache.free([first, second])
    cache.audit()
    assert cache.manager.num_free == 6, "frames are lost"


CHECKS = (
    append_writes_its_slots_alone,
    append_to_strided_cache,
    slots_are_64_bits_wide,
    gather_reads_live_tokens,
    copy_moves_whole_frames,
    merge_has_an_exact_identity,
    merge_does_not_depend_on_its_shape,
    merge_of_large_lse,
    merge_in_place,
    parts_make_the_whole,
    fork_keeps_its_sibling,
)
