"""Attention alone: pages in NumPy against torch on contiguous memory and against torch after a gather."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Row, in_turn
from pagedref.attention import paged_decode

SEQUENCES, TOKENS, QO_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 16, 2048, 32, 8, 128, 16


def threads(count: int, work: Callable[[], Any]) -> Callable[[], Any]:
    """Return the work done with `count` threads of ours."""

    def run() -> Any:
        os.environ["PAGEDREF_THREADS"] = str(count)
        try:
            return work()
        finally:
            del os.environ["PAGEDREF_THREADS"]

    return run


def measure(rounds: int) -> list[Row]:
    """Measure decode of one token for each sequence."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    rng = np.random.default_rng(0)
    pages = TOKENS // PAGE_SIZE
    frames = SEQUENCES * pages
    k_cache, v_cache = (
        rng.standard_normal((frames, PAGE_SIZE, KV_HEADS, HEAD_DIM), dtype=np.float32) for _ in range(2)
    )
    q = rng.standard_normal((SEQUENCES, QO_HEADS, HEAD_DIM), dtype=np.float32)
    kv_indptr = np.arange(0, frames + 1, pages, dtype=np.int32)
    kv_indices = rng.permutation(frames).astype(np.int32)
    last = np.full(SEQUENCES, PAGE_SIZE, np.int32)

    def ours() -> Any:
        return paged_decode(q, k_cache, v_cache, kv_indptr, kv_indices, last).out

    pool_k, pool_v, table = torch.from_numpy(k_cache), torch.from_numpy(v_cache), torch.from_numpy(kv_indices).long()
    grouped = torch.from_numpy(q).reshape(SEQUENCES, KV_HEADS, QO_HEADS // KV_HEADS, HEAD_DIM)

    def gathered(pool: Any) -> Any:
        return pool[table].reshape(SEQUENCES, TOKENS, KV_HEADS, HEAD_DIM).transpose(1, 2)

    flat_k, flat_v = gathered(pool_k).contiguous(), gathered(pool_v).contiguous()

    def contiguous() -> Any:  # query heads of a group as rows: the form in which torch reads each key once
        with torch.inference_mode():
            return sdpa(grouped, flat_k, flat_v)

    plain = torch.from_numpy(q)[:, :, None]

    def fused() -> Any:  # the form that a model's code calls
        with torch.inference_mode():
            return sdpa(plain, flat_k, flat_v, enable_gqa=True)

    def gather() -> Any:
        with torch.inference_mode():
            return sdpa(grouped, gathered(pool_k), gathered(pool_v))

    def read_once() -> Any:
        return k_cache.sum(dtype=np.float32), v_cache.sum(dtype=np.float32)

    rows = []
    for count in dict.fromkeys((1, min(2, os.cpu_count() or 1))):
        torch.set_num_threads(count)
        difference = float(np.abs(ours().reshape(-1) - contiguous().numpy().reshape(-1)).max())
        assert difference < 1e-4, difference
        row = Row(f"attention, {count} thread{'s' * (count > 1)}", "ms", 1.0)
        sides = {"ours": threads(count, ours), "torch contiguous, heads as rows": contiguous, "torch gather": gather}
        sides["torch contiguous, enable_gqa"] = fused
        row.seconds = in_turn({**sides, "reading K and V once": read_once}, rounds)
        row.targets = {"torch contiguous, enable_gqa": 1.0 if count == 1 else 1 / 0.7, "torch gather": 1 / 0.2}
        rows.append(row)
    torch.set_num_threads(os.cpu_count() or 1)
    return rows
