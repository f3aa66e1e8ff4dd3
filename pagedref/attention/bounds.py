"""Forward error bounds of attention, from the data, for a given arithmetic.

Every rounding of a backend is followed through the formula. Five facts do the work:

1. A sum of products of d terms, in any order, errs by at most ``gamma(d)`` times the sum of their absolute values.
2. An error e of a score is a factor of at most ``exp(e)`` on its weight; the shift by a running maximum, whatever it
   is, cancels, and the roundings of the differences telescope.
3. A running maximum moves only to a larger score, and ``exp(0)`` is 1. So the weight of a key passes through no more
   inexact ``exp`` than there are keys with a larger score: none for the largest, one for the second.
4. Numerator and denominator use the same computed weights. What is wrong with a weight moves the output towards or
   away from the value of its key only, by its share times ``|value - out|``; the roundings of the two sums do not
   cancel.
5. A merge of states adds a rounded lse, one ``exp`` and one division, unless the state is that of a single key, whose
   lse is its score.
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
        How often a partial sum may be multiplied by a new ``exp`` of a difference of maxima; by default whenever the
        maximum can move.
    merges : int, optional
        How often a state passes through ``merge_states`` on the way; by default once for a split of the keys and once
        for a sink.
    out_dtype : str
        Type to which the output is rounded in the end.
    scaled : bool
        Whether the backend multiplies by scales of a cache where the oracle was given keys and values that were scaled
        and rounded before (S16).
    storage : str, optional
        Type to which the keys and values that the oracle sees are rounded before the backend reads them.
    key_step, value_step : float
        Largest distance of a key or value as the backend reads it from the one that the oracle sees: half a step of
        the grid of a quantised cache.
    """

    dtype: str = "float32"
    rescales: int | None = None
    merges: int | None = None
    out_dtype: str = "float64"
    scaled: bool = False
    storage: str | None = None
    key_step: float = 0.0
    value_step: float = 0.0

    def stored_error(self, numbers: Float64, step: float) -> Float64 | None:
        """Bound how far stored numbers are from the ones that the oracle sees.

        Parameters
        ----------
        numbers : array of float64
            Keys or values.
        step : float
            `key_step` or `value_step`.

        Returns
        -------
        array like `numbers` or None
            None where the backend reads what the oracle sees.
        """
        if self.storage is None:
            return np.full_like(numbers, step) if step else None
        return np.asarray(step + unit_roundoff(self.storage) * np.abs(numbers) + tiny(self.storage) / 2)


def score_error(
    options: AttentionOptions,
    rounding: Arithmetic,
    raw: Float64,
    magnitude: Float64,
    head_dim: int,
    distance: npt.NDArray[Any],
    shift: Float64 | float = 0.0,
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
    shift : array (num_qo_heads, keys) of float64, optional
        ``|sm_scale| * sum of |q| |error of k|`` where the backend reads other keys than the oracle.

    Returns
    -------
    array (num_qo_heads, keys) of float64
        ``|computed - exact|`` is at most this.
    """
    unit = unit_roundoff(rounding.dtype)
    underflow = (head_dim + 2) * float(np.finfo(rounding.dtype).tiny)
    # a term: its product and at most head_dim - 1 sums; sm_scale itself is rounded, and the product with it; with
    # scales, the product with the scale of a key, here and where the oracle's key came from
    roundings = head_dim + 2 + 2 * rounding.scaled
    error = shift + gamma(roundings, rounding.dtype) * (magnitude + shift) + underflow
    scores = raw
    if options.softcap is not None:  # the slope of the cap is at most 1; divide, tanh, multiply
        scores = options.softcap * np.tanh(raw / options.softcap)
        error = error + unit * (3 + 2 * TANH_ULPS) * np.minimum(options.softcap, np.abs(raw) + error)
        error = error + 2 * options.softcap * tiny(rounding.dtype)  # a quotient that underflows
    if options.alibi_slopes is not None:  # slope rounded, product rounded, sum rounded
        bias = np.abs(options.alibi_slopes[:, None] * distance)
        error = error + unit * (2 * bias + np.abs(scores) + error + bias) * (1 + 4 * unit)
    return np.asarray(error)


def _larger(scores: Float64, error: Float64) -> Float64:
    """Count for each key the keys whose computed score may be larger: (num_qo_heads, keys)."""
    count = np.empty_like(scores)
    for head, (score, off) in enumerate(zip(scores, error, strict=True)):
        high = np.sort(score + off)
        low = score - off
        count[head] = len(score) - np.searchsorted(high, low, side="right") - (score + off > low)  # not itself
    return count


def state_bounds(
    rounding: Arithmetic,
    scores: Float64,
    error: Float64,
    weights: Float64,
    values: Float64,
    out: Float64,
    lse: Float64,
    *,
    sink: bool = False,
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
    sink : bool
        Whether one of the keys is a sink.

    Returns
    -------
    out_bound, lse_bound : arrays like `out` and `lse`
        Not finite values are compared exactly, so their bound is 0.
    """
    unit = unit_roundoff(rounding.dtype)
    keys = scores.shape[1]
    exp_error = 2 * EXP_ULPS * unit
    log_error = 2 * LOG_ULPS * unit
    top = scores.max(axis=1, keepdims=True)
    finite = np.where(np.isfinite(scores), scores, top)
    worst = error.max(axis=1, keepdims=True)
    larger = _larger(scores, error)
    if rounding.rescales is not None:
        larger = np.minimum(larger, rounding.rescales + 1)
    merges = 1 + sink if rounding.merges is None else rounding.merges
    merges = min(merges, max(keys - 2, 0))  # a state of one key has its score as lse
    # the differences from the running maxima telescope: their roundings add up to one rounding of top - score
    spread = top - finite + error + worst
    exponent = error + (larger > 0) * unit * spread * (1 + unit) + larger * exp_error * (1 + exp_error)
    # a merge: a state's log and lse, the difference from another lse, exp
    reach = np.maximum(np.abs(lse)[:, None], np.abs(finite)) + np.log(keys) + spread
    exponent = exponent + merges * (log_error * np.log(max(keys, 2)) + 2 * unit * reach + exp_error)
    shared = np.expm1(exponent)  # relative error of a weight, in numerator and denominator alike
    products = larger + 1 + 2 * merges + 2 * rounding.scaled
    above, below = _gamma(keys - 1 + products, unit), _gamma(keys - 1 + larger + merges, unit)
    flush = 2 * keys * float(np.finfo(rounding.dtype).tiny)  # weights that underflow, against a largest one of 1

    sizes = np.abs(values)
    changed = rounding.stored_error(values, rounding.value_step)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        total = (weights * (shared + below * (1 + shared))).sum(axis=1) + flush
        small = np.where(total < 0.5, 1 - total, np.nan)  # a bound beyond that says nothing
        factor = weights * (1 + shared)
        pull = _weighted(weights * shared, np.abs(values - out))
        pull += _weighted(factor * above, sizes) + np.abs(out) * (factor * below).sum(axis=1)[:, None]
        if changed is not None:
            pull += _weighted(factor * (1 + above), changed)
        pull += flush * (sizes.max(axis=0) + np.abs(out)) + (2 * keys + 4) * tiny(rounding.dtype)
        out_bound = pull / small[:, None] * (1 + unit) + unit * np.abs(out)
        inside = np.abs(lse - top[:, 0]) + worst[:, 0] + total / small  # the logarithm that is taken
        lse_bound = -np.log1p(-np.minimum(total, 0.5)) / (total < 0.5)
        lse_bound = (lse_bound + log_error * inside + unit * (np.abs(lse) + lse_bound)) * (1 + 4 * unit)
    if np.dtype(rounding.out_dtype) != np.dtype(rounding.dtype):
        last = unit_roundoff(rounding.out_dtype)
        out_bound = out_bound * (1 + last) + last * np.abs(out) + tiny(rounding.out_dtype)
    if np.dtype(rounding.dtype) == np.float64:  # the oracle rounds as much as the backend does
        out_bound, lse_bound = 2 * out_bound, 2 * lse_bound
    out_bound = np.where(np.isfinite(out), np.where(np.isnan(out_bound), np.inf, out_bound), 0)
    lse_bound = np.where(np.isfinite(lse), np.where(np.isnan(lse_bound), np.inf, lse_bound), 0)
    return out_bound, lse_bound


def _weighted(weights: Float64, numbers: Float64) -> Float64:
    """Return sums over keys, (num_qo_heads, dim) of weights (num_qo_heads, keys) times (keys, num_qo_heads, dim)."""
    return np.asarray(np.matmul(weights[:, None], numbers.transpose(1, 0, 2))[:, 0])


def _gamma(terms: Float64, unit: float) -> Float64:
    """Return ``gamma`` of arrays: n u / (1 - n u)."""
    product = terms * unit
    return np.asarray(np.where(product < 0.5, product / (1 - np.minimum(product, 0.5)), np.inf))
