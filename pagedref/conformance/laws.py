"""The laws L1-L16 as checks that need no oracle: a backend is compared with itself on two forms of the same question.

So they run at any size, also where the oracle would take hours. Where a law holds within rounding, the bound comes from
the largest norms of the data alone (:func:`norm_bound`): coarse, but nothing of the size of the attention matrix is
ever formed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.cache_spec import CacheSpec
from pagedref.conformance._law_tools import alike, in_pages_of, last_rows, live_slots, near, norm_bound, same
from pagedref.conformance.agreement import assert_bound, assert_exact
from pagedref.conformance.cases import PagedCase
from pagedref.kv_cache import PagedKVCache

__all__ = ["LAWS", "Law", "norm_bound"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Law:
    """A law and its check.

    Attributes
    ----------
    number : str
        ``L1`` ... ``L16``.
    run : callable (backend, case, seed)
        Raises AssertionError where the law is broken.
    operations : tuple of str
        What it needs.
    """

    number: str
    run: Callable[[Any, PagedCase, int], None]
    operations: tuple[str, ...] = ("paged_prefill",)

    @property
    def text(self) -> str:
        """The law in a line."""
        return (self.run.__doc__ or "").splitlines()[0]


def placement(backend: Any, case: PagedCase, seed: int) -> None:
    """Renaming frames changes no bit."""
    order = np.random.default_rng(seed).permutation(len(case.k_cache))
    pools: dict[str, Any] = {name: np.empty_like(getattr(case, name)) for name in ("k_cache", "v_cache")}
    for name, pool in pools.items():
        pool[order] = getattr(case, name)
    moved = replace(case, kv_indices=order[case.kv_indices].astype(np.int32), **pools)
    same(moved.prefill(backend), case.prefill(backend), "other frames")


def batch(backend: Any, case: PagedCase, seed: int) -> None:
    """Neighbours change no bit of a sequence's result."""
    whole = case.prefill(backend)
    for sequence in range(len(case.keys)):
        rows = slice(*(int(at) for at in case.qo_indptr[sequence : sequence + 2]))
        part = type(whole)(np.asarray(whole.out)[rows], np.asarray(whole.lse)[rows])
        same(case.only(sequence).prefill(backend), part, f"sequence {sequence} alone")


def poison(backend: Any, case: PagedCase, seed: int) -> None:
    """NaN and Inf in every slot without a live token change no bit."""
    dead, plain = ~live_slots(case), case.prefill(backend)
    for value in (0.0, np.nan, np.inf):
        caches: dict[str, Any] = {"k_cache": case.k_cache.copy(), "v_cache": case.v_cache.copy()}
        for cache in caches.values():
            cache[dead] = value
        same(replace(case, **caches).prefill(backend), plain, f"{value} in dead slots")


def chunking(backend: Any, case: PagedCase, seed: int) -> None:
    """Prefill in chunks equals prefill at once, within rounding."""
    page_size, rng = case.k_cache.shape[1], np.random.default_rng(seed)
    for sequence, keys in enumerate(case.keys):
        one = case.only(sequence)
        whole, rows = one.prefill(backend), len(one.q)
        cut = int(rng.integers(0, rows + 1))
        for begin, end in ((0, cut), (cut, rows)):
            live = max(len(keys) - rows + end, 0)
            pages = -(-live // page_size)
            chunk = replace(
                one,
                q=one.q[begin:end],
                qo_indptr=np.array([0, end - begin], np.int32),
                kv_indptr=np.array([0, pages], np.int32),
                kv_indices=one.kv_indices[:pages],
                kv_last_page_len=np.array([(live - 1) % page_size + 1 if live else 0], np.int32),
            )
            if live >= end - begin:
                part = type(whole)(np.asarray(whole.out)[begin:end], np.asarray(whole.lse)[begin:end])
                near(chunk.prefill(backend), part, one, f"rows {begin}..{end} as a chunk")


def split(backend: Any, case: PagedCase, seed: int) -> None:
    """Merging any partition of the keys equals the whole, within rounding."""
    one, page_size = last_rows(case), case.k_cache.shape[1]
    whole, rng, states = one.decode(backend), np.random.default_rng(seed), []
    pages = np.diff(one.kv_indptr)
    cuts = np.array([rng.integers(0, count + 1) for count in pages])
    for second in (False, True):
        spans = [
            (start + cut, start + count) if second else (start, start + cut)
            for start, cut, count in zip(one.kv_indptr, cuts, pages, strict=False)
        ]
        lens = np.array([b - a for a, b in spans])
        full = np.where(lens > 0, page_size, 0)
        last = np.where((lens > 0) & (second | (cuts == pages)), one.kv_last_page_len, full)
        part = replace(
            one,
            kv_indptr=np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
            kv_indices=np.concatenate([one.kv_indices[a:b] for a, b in spans]),
            kv_last_page_len=last.astype(np.int32),
        )
        states.append(part.decode(backend))
    merged = backend.merge_states(*(np.stack([np.asarray(state[at]) for state in states]) for at in range(2)))
    near(merged, whole, one, "parts merged")


def sharing(backend: Any, case: PagedCase, seed: int) -> None:
    """Two sequences over the same frames equal two over copies."""
    one = case.only(0)
    pages, rows = len(one.kv_indices), len(one.q)
    twice: dict[str, Any] = {
        "q": np.concatenate([one.q, one.q]),
        "qo_indptr": np.array([0, rows, 2 * rows], np.int32),
        "kv_indptr": np.array([0, pages, 2 * pages], np.int32),
        "kv_last_page_len": np.repeat(one.kv_last_page_len, 2),
    }
    both = np.concatenate([one.kv_indices, one.kv_indices])
    shared = replace(one, kv_indices=both, **twice)
    pools: dict[str, Any] = {name: np.concatenate([getattr(one, name)] * 2) for name in ("k_cache", "v_cache")}
    copies = np.concatenate([one.kv_indices, one.kv_indices + len(one.k_cache)]).astype(np.int32)
    same(replace(shared, kv_indices=copies, **pools).prefill(backend), shared.prefill(backend), "private copies")


def fork(backend: Any, case: PagedCase, seed: int) -> None:
    """A writer never changes its sibling, and every frame comes back (also L16)."""
    heads, dim, dtype = case.k_cache.shape[2], case.q.shape[2], case.q.dtype.name
    rng = np.random.default_rng(seed)
    cache = PagedKVCache(CacheSpec(1, heads, dim, page_size=4, dtype=dtype), 12, backend=backend, poison=True)
    ids = [cache.add()]
    written: dict[int, list[Array]] = {ids[0]: []}
    for turn in range(4):
        for seq in list(ids):
            rows = rng.standard_normal((3, heads, dim)).astype(dtype)
            step = cache.begin([seq], [3])
            cache.append(step, rows, -rows)
            cache.commit(step)
            written[seq].append(rows)
        cache.audit()
        if turn == 1:
            ids.append(cache.fork(ids[0]))
            written[ids[1]] = list(written[ids[0]])
    for seq in ids:
        keys, values = cache.gather(seq)
        want = np.concatenate(written[seq])
        assert_exact(np.asarray(keys), want, f"keys of sequence {seq} after a fork")
        assert_exact(np.asarray(values), -want, f"values of sequence {seq} after a fork")
    cache.free(ids)
    cache.audit()
    assert cache.manager.num_free == 12, f"{12 - cache.manager.num_free} frames are lost"


def swap(backend: Any, case: PagedCase, seed: int) -> None:
    """Frames copied away and into other frames give the same bits."""
    count, plain = len(case.k_cache), case.prefill(backend)
    pools = [np.concatenate([x, np.zeros_like(x), np.zeros_like(x)]) for x in (case.k_cache, case.v_cache)]
    frames = np.unique(case.kv_indices).astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(frames))
    backend.copy_frames(pools, frames, count + order)
    backend.copy_frames(pools, count + order, 2 * count + order[::-1])
    for pool in pools:
        pool[: 2 * count] = 0
    place = dict(zip(frames.tolist(), (2 * count + order[::-1]).tolist(), strict=True))
    table = np.array([place[int(frame)] for frame in case.kv_indices], np.int32)
    swapped = replace(case, k_cache=pools[0], v_cache=pools[1], kv_indices=table)
    same(swapped.prefill(backend), plain, "swapped out and in")


def layout(backend: Any, case: PagedCase, seed: int) -> None:
    """Strided caches, HND behind a view too, give the same bits."""
    plain = case.prefill(backend)
    wide = np.stack([case.k_cache, case.v_cache, case.k_cache], axis=1) if alike(case) else None
    hnd = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (case.k_cache, case.v_cache)]
    same(replace(case, k_cache=hnd[0], v_cache=hnd[1]).prefill(backend), plain, "HND behind a view")
    if wide is not None:
        same(replace(case, k_cache=wide[:, 0], v_cache=wide[:, 1]).prefill(backend), plain, "one buffer of K and V")


def page_size(backend: Any, case: PagedCase, seed: int) -> None:
    """The page size does not change the result beyond rounding."""
    plain = case.prefill(backend)
    for size in (1, 7, 32):
        near(in_pages_of(case, size).prefill(backend), plain, case, f"pages of {size}")


def decode(backend: Any, case: PagedCase, seed: int) -> None:
    """Decode equals the last row of prefill, within rounding."""
    whole, one = case.prefill(backend), last_rows(case)
    rows = case.qo_indptr[1:] - 1
    last = type(whole)(np.asarray(whole.out)[rows], np.asarray(whole.lse)[rows])
    near(one.decode(backend), last, case, "decode")


def grouping(backend: Any, case: PagedCase, seed: int) -> None:
    """Grouped heads equal repeated heads, within rounding."""
    group = case.q.shape[1] // case.k_cache.shape[2]
    pools = [np.repeat(pool, group, axis=2) for pool in (case.k_cache, case.v_cache)]
    repeated = replace(case, k_cache=pools[0], v_cache=pools[1]).prefill(backend)
    near(repeated, case.prefill(backend), case, "repeated heads")


def limits(backend: Any, case: PagedCase, seed: int) -> None:
    """A window and a chunk as long as the sequence, slope 0 and sink -inf change no bit; a large softcap hardly one."""
    plain, heads = case.prefill(backend), case.q.shape[1]
    longest = max(len(keys) for keys in case.keys)
    zeros, none = np.zeros(heads, np.float32), np.full(heads, -np.inf, np.float32)
    for keywords in ({"window": longest}, {"attention_chunk": longest}, {"alibi_slopes": zeros}, {"sinks": none}):
        name = next(iter(keywords))
        same(case.using(**keywords).prefill(backend), plain, f"{name} at its limit")
    capped = case.using(softcap=1e5)
    near(capped.prefill(backend), plain, capped, "softcap at its limit")


def powers_of_two(backend: Any, case: PagedCase, seed: int) -> None:
    """Scaling V by 2^k scales the output exactly; q by 2^k and sm_scale by 2^-k change no bit."""
    factor = case.q.dtype.type(2.0 ** int(np.random.default_rng(seed).integers(-4, 5)))
    plain = case.using(sm_scale=0.5).prefill(backend)
    large = replace(case, v_cache=case.v_cache * factor, keywords={"sm_scale": 0.5}).prefill(backend)
    assert_exact(np.asarray(large.out), np.asarray(plain.out) * factor, f"output, values times {factor}")
    turned = replace(case, q=case.q * factor, keywords={"sm_scale": 0.5 / float(factor)})
    same(turned.prefill(backend), plain, f"queries times {factor}")


def constant(backend: Any, case: PagedCase, seed: int) -> None:
    """A value that all keys share comes back, within rounding."""
    value = float(np.random.default_rng(seed).choice([0.0, 1.0, -3.5]))
    v_cache = np.where(live_slots(case)[..., None, None], value, case.v_cache).astype(case.v_cache.dtype)
    values = [np.full_like(part, value) for part in case.values]
    changed = replace(case, v_cache=v_cache, values=values)
    state = changed.prefill(backend)
    out, lse = np.asarray(state.out), np.asarray(state.lse)
    expected = np.where(np.isneginf(lse), 0.0, value)[..., None] * np.ones(out.shape[2])
    bound = norm_bound(changed)[0]
    assert_bound(out, expected, np.full(out.shape, bound), "output of constant values")


LAWS: dict[str, Law] = {
    law.number: law
    for law in (
        Law("L1", placement),
        Law("L2", batch),
        Law("L3", poison),
        Law("L4", chunking),
        Law("L5", split, ("paged_decode", "merge_states")),
        Law("L6", sharing),
        Law("L7", fork, ("append_kv", "gather_kv", "copy_frames", "paged_decode", "paged_prefill", "merge_states")),
        Law("L8", swap, ("copy_frames", "paged_prefill")),
        Law("L9", layout),
        Law("L10", page_size),
        Law("L11", decode, ("paged_decode", "paged_prefill")),
        Law("L12", grouping),
        Law("L13", limits),
        Law("L14", powers_of_two),
        Law("L15", constant),
        Law("L16", fork, ("append_kv", "gather_kv", "copy_frames", "paged_decode", "paged_prefill", "merge_states")),
    )
}
"""The laws by number; L7 and L16 are told by one life of a cache."""
