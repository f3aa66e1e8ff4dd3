"""The ratio alarm: what a bound cannot see, beside the law.

A bound that holds for any order of a sum grows with its length, and roundings do not: they cancel. So an error that is
added at every step of a long reduction, always in one direction, stays far inside the bound. It shows when the backend
is compared with plain NumPy in float32 on the same numbers: the ratio of the root mean square errors, over many cases,
is about 1 for any correct backend in any order, less for one that accumulates in a wider type, and large for one that
loses something at every step. An alarm is no verdict: it says where to look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as fast
from pagedref.attention.state import AttentionState
from pagedref.attention.textbook import textbook_prefill
from pagedref.conformance.cases import PagedCase, make_case, oracle

__all__ = ["ALARM", "ErrorRatio", "error_ratio", "long_reductions", "one_ulp_per_step"]

Array = npt.NDArray[Any]

ALARM = 4.0
"""From this ratio on the alarm rings. Orders of summation differ by a factor of 2 or so; a bias of one ulp a step, over
a thousand steps, by a hundred."""


@dataclass(frozen=True)
class ErrorRatio:
    """Errors of a backend beside those of plain NumPy.

    Attributes
    ----------
    out, lse : float
        Root mean square error of the backend over that of NumPy; errors are taken in parts of their bounds, so that
        large and small numbers count alike.
    fraction : float
        Largest error of the backend in parts of its bound: what the law sees.
    elements : int
        How many outputs were compared.
    """

    out: float
    lse: float
    fraction: float
    elements: int

    @property
    def rings(self) -> bool:
        """Whether one of the ratios is beyond :data:`ALARM`."""
        return max(self.out, self.lse) > ALARM


def long_reductions(
    *, length: int = 1024, head_dim: int = 8, count: int = 4, num_kv_heads: int = 2, seed: int = 0
) -> list[PagedCase]:
    """Return batches whose sums are long: nearly equal scores over many keys.

    Parameters
    ----------
    length : int
        Keys of a sequence.
    head_dim : int
        Of keys and values; a large one makes the dot products long.
    count : int
        Batches of one query row each.
    num_kv_heads : int
        Heads.
    seed : int
        Decides every number.

    Returns
    -------
    list of PagedCase
    """
    geometry: dict[str, Any] = {"num_kv_heads": num_kv_heads, "group_size": 1, "head_dim": head_dim}
    return [make_case(seed + at, [1], [length], page_size=16, spread=0.5, **geometry) for at in range(count)]


def _plain(case: PagedCase) -> list[Any]:
    """Return the answers of plain NumPy in float32: key by key, and by the fast path."""
    return [case.prefill(SimpleNamespace(paged_prefill=textbook_prefill)), case.prefill(fast)]


def error_ratio(backend: Any, cases: Iterable[PagedCase]) -> ErrorRatio:
    """Compare the errors of a backend with those of plain NumPy on the same cases.

    Parameters
    ----------
    backend : module or object
        The backend.
    cases : iterable of PagedCase
        Float32 queries; many, and long ones.

    Returns
    -------
    ErrorRatio
        The larger of two errors of NumPy counts, that of the textbook loop and that of the fast path: the order of one
        of them is as long as any.

    Examples
    --------
    >>> error_ratio(fast, long_reductions(length=64, count=2)).rings
    False
    """
    squares = np.zeros((3, 2))  # textbook, fast path, backend; out and lse
    largest, elements = 0.0, 0
    for case in cases:
        exact = oracle(case)
        states = [*_plain(case), case.prefill(backend)]
        for part, (right, bound) in enumerate(((exact.out, exact.out_bound), (exact.lse, exact.lse_bound))):
            if bound is None:
                raise AssertionError("the oracle was not asked for its bound")
            counted = np.isfinite(right) & (bound > 0) & np.isfinite(bound)
            elements += int(counted.sum()) * (part == 0)
            for number, state in enumerate(states):
                errors = np.abs(np.asarray(state[part], np.float64) - right)[counted] / bound[counted]
                squares[number, part] += (errors**2).sum()
                if number == 2:
                    largest = max(largest, float(errors.max(initial=0.0)))
    plain = np.sqrt(squares[:2].max(axis=0))
    ratio = np.sqrt(squares[2]) / np.where(plain == 0, np.inf, plain)
    return ErrorRatio(float(ratio[0]), float(ratio[1]), largest, elements)


def one_ulp_per_step(
    q: Array, qo_indptr: Array, k_cache: Array, v_cache: Array, *csr: Array, sm_scale: float | None = None
) -> AttentionState:
    """Attend in float32 with a total that grows by one ulp too much at every key: a sabotage for the alarm.

    Parameters
    ----------
    q, qo_indptr, k_cache, v_cache, *csr, sm_scale
        As in ``paged_prefill``; every sequence has one row.

    Returns
    -------
    AttentionState
        Wrong by about one ulp for every two keys, and inside the bound.

    Examples
    --------
    >>> case = long_reductions(count=1, length=300)[0]
    >>> wrong, exact = one_ulp_per_step(case.q, case.qo_indptr, *case.pages), oracle(case)
    >>> bool((abs(wrong.out - exact.out) <= exact.out_bound).all())
    True
    """
    keys, values = fast.gather_kv(k_cache, v_cache, *csr)
    lengths = _lengths(csr, k_cache.shape[1])
    group = q.shape[1] // keys.shape[1]
    scale = np.float32(1 / np.sqrt(q.shape[2]) if sm_scale is None else sm_scale)
    out, lse = np.zeros((*q.shape[:2], values.shape[2]), np.float32), np.zeros(q.shape[:2], np.float32)
    stop = 0
    for row, length in enumerate(lengths):
        start, stop = stop, stop + length
        k, v = (np.repeat(part[start:stop], group, axis=1) for part in (keys, values))
        scores = np.einsum("hd,khd->hk", q[row] * scale, k)
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        total = np.zeros(len(scores), np.float32)
        for weight in weights.T:
            total = np.nextafter(total + weight, np.float32(np.inf))
        out[row] = np.einsum("hk,khd->hd", weights, v) / total[:, None]
        lse[row] = top[:, 0] + np.log(total)
    return AttentionState(out, lse)


def _lengths(csr: Sequence[Array], page_size: int) -> list[int]:
    """Return the keys of each sequence."""
    pages = np.diff(csr[0])
    return [int(x) for x in np.where(pages > 0, (pages - 1) * page_size + csr[2], 0)]
