"""What laws are made of: a bound from norms, comparisons, and other forms of one case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.addressing import last_page_len, num_pages
from pagedref.conformance.agreement import assert_bound, assert_exact
from pagedref.conformance.cases import PagedCase, type_of_judgement
from pagedref.numerics import EXP_ULPS, TANH_ULPS, tiny, unit_roundoff

__all__ = ["norm_bound"]

Array = npt.NDArray[Any]


def norm_bound(case: PagedCase, dtype: str | None = None) -> tuple[float, float]:
    """Bound the error of any output and any lse of a case from its largest norms.

    Parameters
    ----------
    case : PagedCase
        A batch with finite live keys and values.
    dtype : str, optional
        Type in which the backend computes; by default that of :func:`~pagedref.conformance.cases.judged_as`.

    Returns
    -------
    out_bound, lse_bound : float
        At least the derived bounds of every row; they take one pass over the data.

    Examples
    --------
    >>> from pagedref.conformance.cases import make_case, oracle
    >>> case = make_case(0, [3], [40])
    >>> out_bound, lse_bound = norm_bound(case)
    >>> bool(out_bound >= oracle(case).out_bound.max()), bool(out_bound < 1e-3)
    (True, True)
    """
    dtype = dtype or type_of_judgement()
    unit, keys = unit_roundoff(dtype), max((len(part) for part in case.keys), default=0)
    q, k, v = (
        max((float(np.abs(np.asarray(part, np.float64)).max(initial=0)) for part in parts), default=0.0)
        for parts in ([case.q], case.keys, case.values)
    )
    norms = [max((_norm(part) for part in parts), default=0.0) for parts in ([case.q], case.keys)]
    dim, options = case.q.shape[2], case.keywords
    scale = abs(options.get("sm_scale") or 1 / np.sqrt(dim)) if options.get("sm_scale") != 0 else 0.0
    size = scale * min(norms[0] * norms[1], dim * q * k)
    error = unit * (dim + 8) * size
    if options.get("softcap"):
        error += (2 * TANH_ULPS + 4) * unit * options["softcap"]
    if options.get("alibi_slopes") is not None:
        bias = float(np.abs(options["alibi_slopes"]).max(initial=0)) * (keys + len(case.q))
        error, size = error + 4 * unit * bias, size + bias
    if options.get("sinks") is not None:
        sinks = np.asarray(options["sinks"], np.float64)
        size += float(np.abs(sinks[np.isfinite(sinks)]).max(initial=0))
    relative = float(np.expm1(2 * error + unit * (16 * size + (6 * EXP_ULPS + 12) * (keys + 8))))
    lse = relative + 16 * unit * (size + np.log(keys + 2) + 1)
    return 2 * relative * v + unit_roundoff(case.q.dtype) * v + (2 * keys + 4) * tiny(dtype), lse


def _norm(rows: Array) -> float:
    """Return the largest Euclidean norm of a row."""
    return float(np.linalg.norm(np.asarray(rows, np.float64), axis=-1).max(initial=0))


def same(actual: Any, expected: Any, what: str) -> None:
    """Demand equal bits of output and lse."""
    for name in ("out", "lse"):
        assert_exact(np.asarray(getattr(actual, name)), np.asarray(getattr(expected, name)), f"{name}: {what}")


def near(actual: Any, expected: Any, case: PagedCase, what: str) -> None:
    """Demand two answers to one question, each within its bound of the truth."""
    for name, bound in zip(("out", "lse"), norm_bound(case), strict=True):
        mine, other = (np.asarray(getattr(state, name)) for state in (actual, expected))
        wide = other.astype(np.float64)
        assert_bound(mine, wide, np.where(np.isfinite(wide), 2 * bound, 0.0), f"{name}: {what}")


def live_slots(case: PagedCase) -> Array:
    """Return which slots hold a live token: (num_frames, page_size)."""
    page_size = case.k_cache.shape[1]
    live = np.zeros(case.k_cache.shape[:2], bool)
    for sequence, keys in enumerate(case.keys):
        frames = case.kv_indices[case.kv_indptr[sequence] : case.kv_indptr[sequence + 1]]
        at = np.arange(len(keys))
        live[frames[at // page_size], at % page_size] = True
    return live


def in_pages_of(case: PagedCase, page_size: int) -> PagedCase:
    """Return the live keys and values in pages of another size."""
    counts = np.asarray(num_pages(np.array([len(keys) for keys in case.keys], np.int64), page_size)).reshape(-1)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    caches = []
    for parts in (case.keys, case.values):
        cache = np.full((int(indptr[-1]) + 1, page_size, *parts[0].shape[1:]), np.nan, case.k_cache.dtype)
        for start, part in zip(indptr, parts, strict=False):
            at = np.arange(len(part))
            cache[start + at // page_size, at % page_size] = part
        caches.append(cache)
    lens = np.array([len(keys) for keys in case.keys], np.int64)
    last = np.asarray(last_page_len(lens, page_size), np.int32).reshape(-1)
    frames = np.arange(indptr[-1], dtype=np.int32)
    indptr = indptr.astype(np.int32)
    tables: dict[str, Any] = {"kv_indptr": indptr, "kv_indices": frames, "kv_last_page_len": last}
    return replace(case, k_cache=caches[0], v_cache=caches[1], **tables)


def last_rows(case: PagedCase) -> PagedCase:
    """Return the case with the last query of each sequence, for decode."""
    rows = case.qo_indptr[1:] - 1
    count = np.arange(len(rows) + 1, dtype=np.int32)
    return replace(case, q=case.q[rows], qo_indptr=count)


def alike(case: PagedCase) -> bool:
    return bool(case.k_cache.shape == case.v_cache.shape)
