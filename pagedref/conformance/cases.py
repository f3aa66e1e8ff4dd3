"""Cases: batches in paged form, with everything that is not live poisoned, and their answers by the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import last_page_len, num_pages, offset_of, page_of
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.dense import DenseState, dense_attention
from pagedref.attention.quantize import dequantize, quantize
from pagedref.kv_format import KINDS, KVFormat

__all__ = ["PagedCase", "judged_as", "make_case", "oracle", "type_of_judgement"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PagedCase:
    """One batch in paged form, and the live keys and values that it holds.

    Attributes
    ----------
    q : array (tokens, num_qo_heads, head_dim)
        Queries.
    qo_indptr : array (num_seqs + 1,) of int32
        Their sequences.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        Poison wherever no live token is.
    kv_indptr, kv_indices, kv_last_page_len : arrays of int32
        The pages.
    keys, values : lists of arrays (kv_len, num_kv_heads, dim)
        What is live, by sequence.
    keywords : dict
        Keywords of the call; `mask` is a list of arrays.
    stored : dict
        Format, scales and zero points of the caches.
    """

    q: Array
    qo_indptr: Array
    k_cache: Array
    v_cache: Array
    kv_indptr: Array
    kv_indices: Array
    kv_last_page_len: Array
    keys: list[Array]
    values: list[Array]
    keywords: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)

    @property
    def pages(self) -> tuple[Array, Array, Array, Array, Array]:
        """Caches and CSR in the order of the operations."""
        return self.k_cache, self.v_cache, self.kv_indptr, self.kv_indices, self.kv_last_page_len

    def decode(self, backend: Any) -> Any:
        """Run ``paged_decode``."""
        return backend.paged_decode(self.q, *self.pages, **self.keywords, **self.stored)

    def prefill(self, backend: Any) -> Any:
        """Run ``paged_prefill``."""
        return backend.paged_prefill(self.q, self.qo_indptr, *self.pages, **self.keywords, **self.stored)

    def using(self, **keywords: Any) -> PagedCase:
        """Return the case with other keywords."""
        return replace(self, keywords=keywords)

    def only(self, sequence: int) -> PagedCase:
        """Return the case with one sequence of the batch, in the same pool."""
        begin, end = (int(at) for at in self.qo_indptr[sequence : sequence + 2])
        first, stop = (int(at) for at in self.kv_indptr[sequence : sequence + 2])
        keywords = dict(self.keywords)
        if "mask" in keywords:
            keywords["mask"] = [keywords["mask"][sequence]]
        return replace(
            self,
            q=self.q[begin:end],
            qo_indptr=np.array([0, end - begin], np.int32),
            kv_indptr=np.array([0, stop - first], np.int32),
            kv_indices=self.kv_indices[first:stop],
            kv_last_page_len=self.kv_last_page_len[sequence : sequence + 1],
            keys=[self.keys[sequence]],
            values=[self.values[sequence]],
            keywords=keywords,
        )


def make_case(
    seed: int,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    *,
    page_size: int = 4,
    num_kv_heads: int = 2,
    group_size: int = 2,
    head_dim: int = 8,
    v_head_dim: int | None = None,
    dtype: str = "float32",
    form: KVFormat | None = None,
    poison: float = float("nan"),
    spare_frames: int = 3,
    spread: float = 1.0,
    **keywords: Any,
) -> PagedCase:
    """Draw a batch and lay it out in a poisoned pool, frames in random order.

    Parameters
    ----------
    seed : int
        Decides every number; lengths do not change the numbers of a sequence that comes before.
    q_lens, kv_lens : sequences of int
        Query rows and keys of each sequence.
    page_size, num_kv_heads, group_size, head_dim, v_head_dim : int
        Geometry.
    dtype : str
        Type of queries, and of the cache unless `form` is given.
    form : KVFormat, optional
        Stored form of the cache.
    poison : float
        What lies in every slot without a live token; NaN stands for the largest code in integers.
    spare_frames : int
        Frames that belong to nobody.
    spread : float
        Standard deviation of queries; larger means sharper attention.
    **keywords
        Keywords of the call.

    Returns
    -------
    PagedCase
        The batch.
    """
    v_head_dim = head_dim if v_head_dim is None else v_head_dim
    counts = np.asarray(num_pages(np.asarray(kv_lens, np.int64), page_size), np.int64).reshape(-1)
    kv_indptr = np.concatenate([[0], np.cumsum(counts)])
    num_frames = int(kv_indptr[-1]) + spare_frames
    order = np.random.default_rng([seed, 1]).permutation(num_frames)[: kv_indptr[-1]]
    form = form or KVFormat.of(dtype)
    heads = (num_frames, page_size, num_kv_heads)
    pools = [_Pool(form, heads, dim, poison, seed) for dim in (head_dim, v_head_dim)]
    queries: list[Array] = []
    keys: list[Array] = []
    values: list[Array] = []
    for sequence, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        rng = np.random.default_rng([seed, 2, sequence])
        positions = np.arange(kv_len)
        frames, offsets = order[kv_indptr[sequence] + page_of(positions, page_size)], offset_of(positions, page_size)
        for pool, dim, live in zip(pools, (head_dim, v_head_dim), (keys, values), strict=True):
            live.append(pool.write(rng.standard_normal((kv_len, num_kv_heads, dim)), frames, offsets))
        queries.append((spread * rng.standard_normal((q_len, num_kv_heads * group_size, head_dim))).astype(dtype))
    stored: dict[str, Any] = {}
    if form != KVFormat.of(form.dtype) or form.integer:
        stored["kv_format"] = form
        for side, pool in zip("kv", pools, strict=True):
            stored |= {f"{side}_{name}": x for name, x in (("scale", pool.scale), ("zero", pool.zero)) if x is not None}
    empty = np.zeros((0, num_kv_heads * group_size, head_dim), dtype)
    return PagedCase(
        q=np.concatenate([*queries, empty]),
        qo_indptr=np.concatenate([[0], np.cumsum(q_lens, dtype=np.int64)]).astype(np.int32),
        k_cache=pools[0].cache,
        v_cache=pools[1].cache,
        kv_indptr=kv_indptr.astype(np.int32),
        kv_indices=order.astype(np.int32),
        kv_last_page_len=np.asarray(last_page_len(np.asarray(kv_lens, np.int64), page_size), np.int32).reshape(-1),
        keys=keys,
        values=values,
        keywords=keywords,
        stored=stored,
    )


class _Pool:
    """One cache with its scales, poisoned, and the way into it."""

    def __init__(self, form: KVFormat, heads: tuple[int, int, int], dim: int, poison: float, seed: int) -> None:
        self.form = form
        shape = form.scale_shape(*heads, dim)
        code = poison if not form.integer else 0x77 if np.isnan(poison) else 0
        self.cache: Array = np.full((*heads, form.stored_dim(dim)), code, form.dtype)
        self.scale: Array | None = None
        self.zero: Array | None = None
        if shape is not None and form.computed:
            self.scale = np.full(shape, poison, np.float32)
            self.zero = self.scale.copy() if form.zero_point else None
        elif shape is not None:
            base = 3.0 / min(KINDS[form.kind].largest, 448.0)
            self.scale = (base * np.random.default_rng([seed, 3]).uniform(0.8, 1.5, shape)).astype(np.float32)

    def write(self, numbers: Array, frames: Array, offsets: Array) -> Array:
        """Store rows, and return what they are read as."""
        scale = self.scale if self.scale is None or self.scale.ndim < 2 else self.scale[frames]
        row = quantize(numbers, self.form, None if self.form.computed else scale)
        self.cache[frames, offsets] = row.stored
        if self.form.computed and self.scale is not None:
            self.scale[frames, offsets], scale = row.scale, row.scale
            if self.zero is not None:
                self.zero[frames, offsets] = row.zero
        return dequantize(row.stored, self.form, scale, row.zero)


_JUDGED_AS: ContextVar[str] = ContextVar("judged_as", default="float32")


@contextmanager
def judged_as(dtype: str) -> Iterator[None]:
    """Let :func:`oracle` give the bound of a backend that computes in another type than float32.

    Parameters
    ----------
    dtype : str
        Type of products and sums, such as ``float16``.

    Yields
    ------
    None

    Examples
    --------
    >>> case = make_case(0, [1], [4])
    >>> with judged_as("float16"):
    ...     wide = oracle(case)
    >>> bool((wide.out_bound > oracle(case).out_bound).all())
    True
    """
    token = _JUDGED_AS.set(dtype)
    try:
        yield
    finally:
        _JUDGED_AS.reset(token)


def type_of_judgement() -> str:
    """Return the type in which the backend under judgement computes; see :func:`judged_as`.

    Returns
    -------
    str
    """
    return _JUDGED_AS.get()


def oracle(case: PagedCase) -> DenseState:
    """Return the answer of a case by dense attention in float64, with its bound.

    Parameters
    ----------
    case : PagedCase
        The batch.

    Returns
    -------
    DenseState
        Of all query rows, in order.
    """
    parts = []
    keywords = {name: value for name, value in case.keywords.items() if name != "mask"}
    for sequence, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        rows = case.q[case.qo_indptr[sequence] : case.qo_indptr[sequence + 1]]
        if case.keywords.get("mask") is not None:
            keywords["mask"] = case.keywords["mask"][sequence]
        wide = case.q.dtype == np.float64
        scaled = "kv_format" in case.stored
        dtype = "float64" if wide else _JUDGED_AS.get()
        arithmetic = Arithmetic(dtype=dtype, out_dtype=case.q.dtype.name, scaled=scaled)
        parts.append(dense_attention(rows, keys, values, with_bound=True, arithmetic=arithmetic, **keywords))
    if not parts:
        shape = (0, case.q.shape[1], case.v_cache.shape[3])
        return DenseState(np.zeros(shape), np.zeros(shape[:2]), np.zeros(shape), np.zeros(shape[:2]))
    return DenseState(*(np.concatenate([np.asarray(part[at]) for part in parts]) for at in range(4)))
