"""Forward error bounds of attention, from the data, for a given arithmetic.

Every rounding of a backend is followed through the formula. Three facts do the work: a sum of products of n terms in
any order errs by at most ``gamma(n)`` times the sum of their absolute values; an error ``e`` of a score is a factor of
at most ``exp(e)`` on its weight, and the shift by the running maximum, whatever it is, cancels; the quotient of two
sums errs by the sum of their relative errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.numerics import EXP_ULPS, LOG_ULPS, TANH_ULPS, gamma, tiny, unit_roundoff
from pagedref.options import AttentionOptions

__all__ = ["Arithmetic", "score_error", "state_bounds"]

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Arithmetic:
    """How a backend computes, as far as its error bound depends on it.

    Parameters
    ----------
    dtype : str
        Type of products, sums and lse.
    rescales : int, optional
        How often a partial sum may be multiplied by a new ``exp`` of a difference of maxima; by default once a key.
    merges : int
        How often a state passes through ``merge_states`` on the way (splits, sinks).
    out_dtype : str
        Type to which the output is rounded in the end.
    """

    dtype: str = "float32"
    rescales: int | None = None
    merges: int = 2
    out_dtype: str = "float64"


def score_error(
    options: AttentionOptions,
    rounding: Arithmetic,
    raw: Float64,
    magnitude: Float64,
    head_dim: int,
    distance: npt.NDArray[Any],
) -> Float64:
    """Bound the absolute error of each final score.

    Parameters
    ----------
    options : AttentionOptions
        The keywords of the call.
    rounding : Arithmetic
        The arithmetic of the backend.
    raw : array (num_qo_heads, keys) of float64
        ``sm_scale * q.k``.
    magnitude : array (num_qo_heads, keys) of float64
        ``|sm_scale| * sum of |q| |k|``.
    head_dim : int
        Products in one score.
    distance : array (keys,) of int
        Key position - query position.

    Returns
    -------
    array (num_qo_heads, keys) of float64
        ``|computed - exact|`` is at most this.
    """
    unit = unit_roundoff(rounding.dtype)
    underflow = (head_dim + 2) * float(np.finfo(rounding.dtype).tiny)
    # head_dim products and sums; sm_scale itself is rounded, and the product with it; likewise the scale of a key
    error = gamma(head_dim + 5, rounding.dtype) * magnitude + underflow
    scores = raw
    if options.softcap is not None:  # the slope of the cap is at most 1; divide, tanh, multiply
        scores = options.softcap * np.tanh(raw / options.softcap)
        error = error + unit * (3 + 2 * TANH_ULPS) * np.minimum(options.softcap, np.abs(raw) + error)
        error = error + 2 * options.softcap * tiny(rounding.dtype)  # a quotient that underflows
    if options.alibi_slopes is not None:  # slope rounded, product rounded, sum rounded
        bias = np.abs(options.alibi_slopes[:, None] * distance)
        error = error + unit * (2 * bias + np.abs(scores) + error + bias) * (1 + 4 * unit)
    return error


def state_bounds(
    rounding: Arithmetic,
    scores: Float64,
    error: Float64,
    weights: Float64,
    values: Float64,
    out: Float64,
    lse: Float64,
) -> tuple[Float64, Float64]:
    """Bound the error of output and lse of one query.

    Parameters
    ----------
    rounding : Arithmetic
        The arithmetic of the backend.
    scores, error : arrays (num_qo_heads, keys) of float64
        Final scores of the visible keys, the sink among them, and the bound of their errors.
    weights : array (num_qo_heads, keys) of float64
        Exact weights; each row sums to 1, or is 0 throughout.
    values : array (keys, num_qo_heads, v_head_dim) of float64
        Their values.
    out : array (num_qo_heads, v_head_dim) of float64
        Exact output.
    lse : array (num_qo_heads,) of float64
        Exact lse.

    Returns
    -------
    out_bound, lse_bound : arrays like `out` and `lse`
        Not finite values are compared exactly, so their bound is 0.
    """
    unit = unit_roundoff(rounding.dtype)
    keys = scores.shape[1]
    exp_error = 2 * EXP_ULPS * unit
    rescales = keys if rounding.rescales is None else min(rounding.rescales, keys)
    top = scores.max(axis=1, keepdims=True)
    finite = np.where(np.isfinite(scores), scores, top)
    worst = error.max(axis=1, keepdims=True)
    # the differences from the running maxima telescope: their roundings add up to one rounding of top - score
    exponent = error + unit * (np.abs(top - finite) + 2 * worst) * (1 + unit)
    size = np.abs(lse)[:, None] + np.log(keys + 1) + 1
    per_merge = unit * size * (4 + 2 * LOG_ULPS) + exp_error
    relative = np.expm1(exponent + (rescales + 1) * (exp_error + 2 * unit) + rounding.merges * per_merge)
    sums = gamma(keys + rescales + 3 * rounding.merges + 4, rounding.dtype)  # the scale of a value among them
    factor = (1 + relative) * (1 + sums) - 1  # of each term w_j v_j, and of each w_j
    flush = 2 * keys * float(np.finfo(rounding.dtype).tiny)  # weights that underflow, against a largest one of 1

    weighted = np.einsum("hk,khd->hd", weights * factor, np.abs(values)) + flush * np.abs(values).max(axis=0)
    total = (weights * factor).sum(axis=1) + flush
    with np.errstate(invalid="ignore", divide="ignore"):
        small = np.where(total < 0.5, 1 - total, np.nan)  # a bound beyond that says nothing
        out_bound = (weighted + np.abs(out) * total[:, None]) / small[:, None] * (1 + unit) + 2 * unit * np.abs(out)
        logarithm = np.log(keys + 1) + 1
        lse_bound = total / small + (1 + rounding.merges) * unit * (2 * LOG_ULPS * logarithm + 2 * np.abs(lse))
        lse_bound = lse_bound * (1 + 4 * unit)
    last = unit_roundoff(rounding.out_dtype)
    out_bound = out_bound * (1 + last) + last * np.abs(out) + tiny(rounding.out_dtype)
    if np.dtype(rounding.dtype) == np.float64:  # the oracle rounds as much as the backend does
        out_bound, lse_bound = 2 * out_bound, 2 * lse_bound
    out_bound = np.where(np.isfinite(out), np.where(np.isnan(out_bound), np.inf, out_bound), 0)
    lse_bound = np.where(np.isfinite(lse), np.where(np.isnan(lse_bound), np.inf, lse_bound), 0)
    return out_bound, lse_bound
