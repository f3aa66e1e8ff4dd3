"""The oracle: attention over dense keys and values in float64, row by row, with a forward error bound on request.

It is written to be checked by eye, not to be fast. For each query it selects the visible keys and takes the formula;
nothing invisible is ever touched.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.attention.bounds import Arithmetic, score_error, state_bounds
from pagedref.attention.decode import Window
from pagedref.attention.variants import score_modifiers
from pagedref.numerics import unit_roundoff
from pagedref.options import AttentionOptions, attention_options

__all__ = ["Arithmetic", "DenseState", "dense_attention"]

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


class DenseState(NamedTuple):
    """Result of the oracle.

    Attributes
    ----------
    out : array (q_len, num_qo_heads, v_head_dim) of float64
        Exact output up to float64 rounding.
    lse : array (q_len, num_qo_heads) of float64
        Natural log; ``-inf`` where no key is seen.
    out_bound, lse_bound : arrays of float64 or None
        ``|backend - oracle|`` is at most this; None unless asked for.
    weights : array (q_len, num_qo_heads, kv_len) of float64 or None
        Share of each key in the output; 0 where it is invisible, and throughout a row that sees nothing. What a row
        lacks to 1 is the share of the sink. None unless asked for.
    """

    out: Float64
    lse: Float64
    out_bound: Float64 | None
    lse_bound: Float64 | None
    weights: Float64 | None = None

    def rows(self, begin: int, end: int) -> DenseState:
        """Return some of the query rows.

        Parameters
        ----------
        begin, end : int
            Rows ``begin .. end - 1``.

        Returns
        -------
        DenseState
            Views.
        """

        def some(part: Float64 | None) -> Float64 | None:
            return None if part is None else part[begin:end]

        out_bound, lse_bound = some(self.out_bound), some(self.lse_bound)
        return DenseState(self.out[begin:end], self.lse[begin:end], out_bound, lse_bound, some(self.weights))


def dense_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool | None = None,
    mask: Array | None = None,
    sm_scale: float | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    with_bound: bool = False,
    with_weights: bool = False,
    arithmetic: Arithmetic | None = None,
) -> DenseState:
    """Attend in float64 with the last `q_len` tokens of one sequence.

    Parameters
    ----------
    q : array (q_len, num_qo_heads, head_dim)
        Queries; any floating type.
    k : array (kv_len, num_kv_heads, head_dim)
        All live keys, in order of position.
    v : array (kv_len, num_kv_heads, v_head_dim)
        Their values.
    causal, mask, sm_scale, window, attention_chunk, softcap, alibi_slopes, sinks
        As in ``paged_prefill``; `mask` is one array (q_len, kv_len).
    with_bound : bool
        Also compute a forward error bound per element.
    with_weights : bool
        Also return the attention weights.
    arithmetic : Arithmetic, optional
        The arithmetic that the bound is for; float32 by default.

    Returns
    -------
    DenseState
        Output, lse and, on request, their bounds and the weights.

    Raises
    ------
    ContractError
        Shapes do not fit or a keyword is out of range.

    Notes
    -----
    Mutates: nothing. The bound follows each rounding of a backend through the formula: a dot product of n terms errs
    by at most ``gamma(n)`` times the sum of absolute products, an error e of a score is a factor ``exp(e)`` of its
    weight, and what is wrong with a weight moves the output along ``value - out``. See the chapter on error bounds.

    References
    ----------
    N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, chapters 3 and 4.
    P. Blanchard, D. J. Higham, N. J. Higham, Accurately computing the log-sum-exp and softmax functions, IMA Journal
    of Numerical Analysis 41, 2021, sections 3 and 4.

    Examples
    --------
    >>> q = np.ones((1, 1, 1)); k = np.zeros((4, 1, 1)); v = np.array([0.0, 0.0, 0.0, 1.0]).reshape(4, 1, 1)
    >>> state = dense_attention(q, k, v)
    >>> float(state.out[0, 0, 0]), round(float(np.exp(state.lse[0, 0])), 9)
    (0.25, 4.0)
    >>> dense_attention(q, k, v, with_weights=True).weights.ravel().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    name = "dense_attention"
    for argument, array in (("q", q), ("k", k), ("v", v)):
        if getattr(array, "ndim", 0) != 3:
            validate.fail(name, argument, "has the wrong number of dimensions", np.shape(array), "(tokens, heads, dim)")
    (q_len, num_qo_heads, head_dim), (kv_len, num_kv_heads, _) = q.shape, k.shape
    if k.shape[2] != head_dim or v.shape[:2] != k.shape[:2]:
        validate.fail(name, "k", "does not fit q and v", (q.shape, k.shape, v.shape), "equal head_dim, equal tokens")
    group_size = validate.heads(name, num_qo_heads, num_kv_heads)
    if mask is not None and (mask.dtype != np.bool_ or mask.shape != (q_len, kv_len)):
        validate.fail(name, "mask", "has the wrong shape or type", (mask.shape, mask.dtype), f"bool {(q_len, kv_len)}")
    options = attention_options(
        name,
        head_dim,
        np.float64,
        causal=mask is None if causal is None else causal,
        sm_scale=sm_scale,
        window=window,
        attention_chunk=attention_chunk,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
    )
    rounding = arithmetic or Arithmetic()
    keys = np.repeat(k.astype(np.float64), group_size, axis=1)  # (kv_len, num_qo_heads, head_dim)
    values = np.repeat(v.astype(np.float64), group_size, axis=1)  # (kv_len, num_qo_heads, v_head_dim)
    positions = np.arange(q_len, dtype=np.int64) + (kv_len - q_len)
    start, stop = options.intervals(positions, kv_len)
    shape = (q_len, num_qo_heads, values.shape[2])
    result = DenseState(
        out=np.zeros(shape),
        lse=np.full(shape[:2], -np.inf),
        out_bound=np.zeros(shape) if with_bound else None,
        lse_bound=np.zeros(shape[:2]) if with_bound else None,
        weights=np.zeros((*shape[:2], kv_len)) if with_weights else None,
    )
    for row in range(q_len):
        seen = np.arange(start[row], stop[row])
        if mask is not None:
            seen = seen[mask[row, seen]]
        query = q[row].astype(np.float64)
        some = seen if mask is not None else slice(int(start[row]), max(int(start[row]), int(stop[row])))  # a view
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            _row(options, rounding, query, keys[some], values[some], int(positions[row]), seen, result, row)
    return result


def _row(
    options: AttentionOptions,
    rounding: Arithmetic,
    query: Float64,
    keys: Float64,
    values: Float64,
    position: int,
    seen: npt.NDArray[np.int64],
    result: DenseState,
    row: int,
) -> None:
    """Attend with one query; keys and values hold the visible ones, repeated for each query head."""
    raw = options.sm_scale * np.einsum("hd,khd->hk", query, keys)  # (num_qo_heads, keys)
    scores = raw.copy()
    layout = scores.reshape(len(scores), 1, 1, -1)
    for modify in score_modifiers(options, len(scores)):
        modify(layout, np.array([position]), seen)
    if result.out_bound is not None:
        size, scale = np.abs(query), abs(options.sm_scale)
        magnitude = scale * np.einsum("hd,khd->hk", size, np.abs(keys))
        off = rounding.stored_error(keys, rounding.key_step)
        shift = 0.0 if off is None else scale * np.einsum("hd,khd->hk", size, off)
        error = score_error(options, rounding, raw, magnitude, query.shape[1], seen - position, shift)
    else:
        error = np.zeros_like(scores)
    if options.sinks is not None:  # one more key, without a value
        scores = np.concatenate([scores, options.sinks[:, None]], axis=1)
        error = np.concatenate([error, unit_roundoff(rounding.dtype) * np.abs(options.sinks[:, None])], axis=1)
        values = np.concatenate([values, np.zeros((1, *values.shape[1:]))])
    if scores.shape[1] == 0:
        return
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=1, keepdims=True)
    empty = total == 0
    weights = weights / np.where(empty, 1, total)
    result.out[row] = np.einsum("hk,khd->hd", weights, values)
    result.lse[row] = np.where(empty, -np.inf, top + np.log(total))[:, 0]
    if result.weights is not None:
        result.weights[row][:, seen] = weights[:, : len(seen)]
    if result.out_bound is not None and result.lse_bound is not None:
        sink = options.sinks is not None
        bounds = state_bounds(rounding, scores, error, weights, values, result.out[row], result.lse[row], sink=sink)
        result.out_bound[row], result.lse_bound[row] = bounds
