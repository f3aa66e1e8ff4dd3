"""Attention in every shape: ragged decode, prefill, page sizes, stored forms, growth with length, extra memory."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.attention import threads
from benchmarks.measure import Row, in_turn
from pagedref.attention import paged_decode, paged_prefill
from pagedref.attention.quantize import quantize
from pagedref.kv_format import KVFormat

QO_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16
FORMATS = {
    "bfloat16": (KVFormat("bfloat16"), 2.0),
    "int8": (KVFormat("int8", "head"), 2.0),
    "e4m3fn": (KVFormat("e4m3fn", "head"), 2.5),
    "float16": (KVFormat("float16"), 4.0),
    "int4": (KVFormat("int4", "group", group_size=32, zero_point=True), None),
}


class Batch:
    """Sequences of some lengths in a pool, frames in random order."""

    def __init__(self, lengths: list[int], page_size: int = PAGE_SIZE, q_len: int = 1) -> None:
        rng = np.random.default_rng(0)
        counts = [-(-length // page_size) for length in lengths]
        self.lengths, frames = lengths, sum(counts)
        shape = (frames, page_size, KV_HEADS, HEAD_DIM)
        self.k_cache, self.v_cache = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
        self.q = rng.standard_normal((len(lengths) * q_len, QO_HEADS, HEAD_DIM), dtype=np.float32)
        self.qo_indptr = np.arange(0, len(self.q) + 1, q_len)
        indices = rng.permutation(frames)
        last = np.array([(length - 1) % page_size + 1 for length in lengths])
        self.csr = np.concatenate([[0], np.cumsum(counts)]), indices, last

    def decode(self) -> Any:
        """Run ours."""
        return paged_decode(self.q, self.k_cache, self.v_cache, *self.csr)

    def stored(self, form: KVFormat) -> dict[str, Any]:
        """Return both caches and their scales in a stored form."""
        scale = np.full(KV_HEADS, 0.03, np.float32) if form.granularity == "head" else None
        sides = [quantize(cache, form, scale) for cache in (self.k_cache, self.v_cache)]
        result: dict[str, Any] = {"k_cache": sides[0].stored, "v_cache": sides[1].stored, "kv_format": form}
        for name, side in zip("kv", sides, strict=True):
            result[f"{name}_scale"] = scale if side.scale is None else side.scale
            result[f"{name}_zero"] = side.zero
        return result


def measure(rounds: int) -> list[Row]:
    """Measure all of it; ratios against torch where torch can express the case."""
    return [*_ragged(rounds), *_prefill(rounds), *_pages_and_formats(rounds), *_growth(rounds)]


def _ragged(rounds: int) -> list[Row]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    lengths = np.geomspace(16, 8192, 64).astype(int).tolist()
    batch = Batch(np.random.default_rng(1).permutation(lengths).tolist())
    pools = [torch.from_numpy(cache) for cache in (batch.k_cache, batch.v_cache)]
    indptr, indices, _ = batch.csr
    tables = [torch.from_numpy(indices[a:b]) for a, b in pairwise(indptr)]
    queries = torch.from_numpy(batch.q).reshape(-1, 1, KV_HEADS, QO_HEADS // KV_HEADS, HEAD_DIM)

    def gather() -> Any:
        outs = []
        with torch.inference_mode():
            for query, table, length in zip(queries, tables, batch.lengths, strict=True):
                k, v = (pool[table].flatten(0, 1)[:length].transpose(0, 1)[None] for pool in pools)
                outs.append(sdpa(query, k, v))
        return torch.cat(outs)

    assert np.abs(batch.decode().out.reshape(-1) - gather().numpy().reshape(-1)).max() < 1e-4
    row = Row("decode, 64 sequences of 16 to 8,192 tokens", "ms", 1.0, targets={"torch gather": 1 / 0.5})
    row.seconds = in_turn({"ours": batch.decode, "torch gather": gather}, rounds)
    return [row]


def _prefill(rounds: int) -> list[Row]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    batch = Batch([2048], q_len=2048)
    indices = batch.csr[1]
    q, k, v = (
        torch.from_numpy(x).transpose(0, 1)[None].contiguous()
        for x in (
            batch.q,
            *(cache[indices].reshape(-1, KV_HEADS, HEAD_DIM) for cache in (batch.k_cache, batch.v_cache)),
        )
    )

    def ours() -> Any:
        return paged_prefill(batch.q, batch.qo_indptr[[0, -1]], batch.k_cache, batch.v_cache, *batch.csr)

    def fused() -> Any:
        with torch.inference_mode():
            return sdpa(q, k, v, is_causal=True, enable_gqa=True)

    assert np.abs(ours().out - fused()[0].transpose(0, 1).numpy()).max() < 1e-4
    row = Row("prefill, 2,048 tokens", "ms", 1.0, targets={"torch contiguous": 1 / 1.3})
    row.seconds = in_turn({"ours": ours, "torch contiguous": fused}, max(rounds // 2, 2))
    return [row]


def _pages_and_formats(rounds: int) -> list[Row]:
    batch, single = Batch([2048] * 16), Batch([2048] * 16, page_size=1)
    sides: dict[str, Any] = {"ours": batch.decode, "page size 1": single.decode}
    for name, (form, _) in FORMATS.items():
        stored = batch.stored(form)
        caches = stored.pop("k_cache"), stored.pop("v_cache")

        def decode(caches: Any = caches, stored: Any = stored) -> Any:
            return paged_decode(batch.q, *caches, *batch.csr, **stored)

        sides[name] = decode
    row = Row("decode 16 x 2,048, float32, pages of 16; against", "ms", 1.0)
    row.seconds = in_turn({side: threads(1, work) for side, work in sides.items()}, rounds)
    row.targets = {"page size 1": -2.0, **{name: -most for name, (_, most) in FORMATS.items() if most}}
    return [row]


def _growth(rounds: int) -> list[Row]:
    rows = []
    for length in (1024, 8192, 32768, 131072):
        batch = Batch([length])
        seconds = in_turn({"ours": threads(1, batch.decode)}, max(rounds, 3))
        rows.append(Row(f"decode, one sequence of {length:,} tokens", "thousand tokens/s", length / 1e3, seconds))
    batch = Batch([131072])
    batch.decode()
    tracemalloc.start()
    batch.decode()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    share = peak / (batch.k_cache.nbytes + batch.v_cache.nbytes)
    print(f"peak extra memory of decode: {peak / 1e6:.1f} MB, {100 * share:.2f} % of the cache (target: under 5 %)")
    return rows
