"""Batches over latent pages, everything that is not live poisoned, and their answers by the oracle of MLA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pagedref.addressing import last_page_len, num_pages, offset_of, page_of
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.dense import DenseState
from pagedref.attention.mla_forms import dense_mla


@dataclass(frozen=True)
class LatentCase:
    """One batch in paged form; `ckv` and `kpe` list what is live, by sequence."""

    q_nope: Any
    q_pe: Any
    qo_indptr: Any
    ckv_cache: Any
    kpe_cache: Any
    kv_indptr: Any
    kv_indices: Any
    kv_last_page_len: Any
    ckv: list[Any]
    kpe: list[Any]
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def pages(self) -> tuple[Any, ...]:
        return self.ckv_cache, self.kpe_cache, self.kv_indptr, self.kv_indices, self.kv_last_page_len

    def decode(self, backend: Any) -> Any:
        return backend.mla_decode(self.q_nope, self.q_pe, *self.pages, **self.keywords)

    def prefill(self, backend: Any) -> Any:
        return backend.mla_prefill(self.q_nope, self.q_pe, self.qo_indptr, *self.pages, **self.keywords)

    def using(self, **keywords: Any) -> LatentCase:
        return replace(self, keywords={**self.keywords, **keywords})

    def rows(self, sequence: int) -> slice:
        return slice(*(int(at) for at in self.qo_indptr[sequence : sequence + 2]))

    def only(self, sequence: int) -> LatentCase:
        """Return one sequence of the batch, in the same pool."""
        rows = self.rows(sequence)
        first, stop = (int(at) for at in self.kv_indptr[sequence : sequence + 2])
        keywords = dict(self.keywords)
        if "mask" in keywords:
            keywords["mask"] = [keywords["mask"][sequence]]
        if "sparse_positions" in keywords:
            keywords["sparse_positions"] = keywords["sparse_positions"][rows]
        return replace(
            self,
            q_nope=self.q_nope[rows],
            q_pe=self.q_pe[rows],
            qo_indptr=np.array([0, rows.stop - rows.start], np.int32),
            kv_indptr=np.array([0, stop - first], np.int32),
            kv_indices=self.kv_indices[first:stop],
            kv_last_page_len=self.kv_last_page_len[sequence : sequence + 1],
            ckv=[self.ckv[sequence]],
            kpe=[self.kpe[sequence]],
            keywords=keywords,
        )


def make_latent(
    seed: int,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    page_size: int = 4,
    heads: int = 4,
    rank: int = 8,
    rope_dim: int = 3,
    dtype: Any = "float32",
    storage: Any = None,
    poison: float = float("nan"),
    spare_frames: int = 3,
    spread: float = 1.0,
    **keywords: Any,
) -> LatentCase:
    """Draw a batch and lay it out in a poisoned pool, frames in random order."""
    storage = dtype if storage is None else storage
    counts = np.asarray(num_pages(np.asarray(kv_lens, np.int64), page_size), np.int64).reshape(-1)
    kv_indptr = np.concatenate([[0], np.cumsum(counts)])
    num_frames = int(kv_indptr[-1]) + spare_frames
    order = np.random.default_rng([seed, 1]).permutation(num_frames)[: kv_indptr[-1]]
    caches = [np.full((num_frames, page_size, dim), poison).astype(storage) for dim in (rank, rope_dim)]
    live: list[list[Any]] = [[], []]
    queries: list[list[Any]] = [[], []]
    for sequence, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        rng = np.random.default_rng([seed, 2, sequence])
        positions = np.arange(kv_len)
        frames = order[kv_indptr[sequence] + page_of(positions, page_size)]
        for part, dim in enumerate((rank, rope_dim)):
            live[part].append(rng.standard_normal((kv_len, dim)).astype(storage))
            queries[part].append((spread * rng.standard_normal((q_len, heads, dim))).astype(dtype))
            caches[part][frames, offset_of(positions, page_size)] = live[part][-1]
    return LatentCase(
        q_nope=np.concatenate([*queries[0], np.zeros((0, heads, rank), dtype)]),
        q_pe=np.concatenate([*queries[1], np.zeros((0, heads, rope_dim), dtype)]),
        qo_indptr=np.concatenate([[0], np.cumsum(q_lens, dtype=np.int64)]).astype(np.int32),
        ckv_cache=caches[0],
        kpe_cache=caches[1],
        kv_indptr=kv_indptr.astype(np.int32),
        kv_indices=order.astype(np.int32),
        kv_last_page_len=np.asarray(last_page_len(np.asarray(kv_lens, np.int64), page_size), np.int32).reshape(-1),
        ckv=live[0],
        kpe=live[1],
        keywords={"sm_scale": 0.3, **keywords},
    )


def rows_of(state: DenseState, begin: int, end: int) -> DenseState:
    """Return some rows of an answer."""
    return DenseState(*(np.asarray(part)[begin:end] for part in state[:4]))


def latent_oracle(case: LatentCase, *, merges: int = 2) -> DenseState:
    """Return the answer of a case by the oracle, with its bound."""
    arithmetic = Arithmetic("float64" if case.q_nope.dtype == np.float64 else "float32", merges=merges)
    shape = case.q_nope.shape
    none = np.zeros((0, *shape[1:])), np.zeros((0, shape[1]))
    parts = [DenseState(*none, *none)]
    for sequence, (ckv, kpe) in enumerate(zip(case.ckv, case.kpe, strict=True)):
        keywords, rows = dict(case.keywords), case.rows(sequence)
        if keywords.get("mask") is not None:
            keywords["mask"] = keywords["mask"][sequence]
        if keywords.get("sparse_positions") is not None:
            keywords["sparse_positions"] = keywords["sparse_positions"][rows]
        state = dense_mla(
            case.q_nope[rows], case.q_pe[rows], ckv, kpe, with_bound=True, arithmetic=arithmetic, **keywords
        )
        parts.append(state)
    return DenseState(*(np.concatenate([np.asarray(part[at]) for part in parts]) for at in range(4)))
