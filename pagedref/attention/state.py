"""Attention over a part of the keys, and how parts become the whole.

A pair ``(out, lse)`` says everything about a part: its output and the natural log of its total weight. Pairs form a
commutative monoid with identity ``(0, -inf)`` (S10), which is all that split, cascade and context-parallel attention
and sinks need.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.numerics import accumulator

__all__ = ["AttentionState", "add_sinks", "check_states", "combine", "merge_states"]

Array = npt.NDArray[Any]


class AttentionState(NamedTuple):
    """Output and log-sum-exp of attention.

    Attributes
    ----------
    out : array (tokens, num_qo_heads, v_head_dim)
        Weighted mean of the values; exactly 0 where no key is seen (S8). Type of the queries.
    lse : array (tokens, num_qo_heads)
        Natural log of the sum of exp of the final scores; ``-inf`` where no key is seen (S9).
    """

    out: Array
    lse: Array


def combine(out: Array, lse: Array) -> AttentionState:
    """Merge states along the first axis, without checks.

    Parameters
    ----------
    out : array (num_states, ..., v_head_dim)
        Outputs.
    lse : array (num_states, ...)
        Log-sum-exp of each.

    Returns
    -------
    AttentionState
        In the type of `lse`.

    Notes
    -----
    The sum runs over the states in order. A state without weight adds -0.0, the identity of addition to the bit, so an
    empty state changes nothing and what it holds as output is never used (S7).
    """
    dtype = lse.dtype
    top = np.max(lse, axis=0, initial=-np.inf)
    shift = np.where(np.isneginf(top), dtype.type(0), top)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = np.exp(lse - shift)
        parts = np.where(np.isneginf(lse)[..., None], dtype.type(-0.0), weights[..., None] * out.astype(dtype))
        total, numerator = np.zeros(lse.shape[1:], dtype), np.full(parts.shape[1:], -0.0, dtype)
        for weight, part in zip(weights, parts, strict=True):  # one after the other, whatever the shape
            total += weight
            numerator += part
        mean = numerator / np.where(total == 0, dtype.type(1), total)[..., None]
        merged = shift + np.log(total)
    return AttentionState(np.where((total == 0)[..., None], dtype.type(0), mean), merged)


def add_sinks(state: AttentionState, sinks: Array | None) -> AttentionState:
    """Merge in one logit per head that has no value (S11).

    Parameters
    ----------
    state : AttentionState
        Of shape (tokens, num_qo_heads, v_head_dim); its lse in the accumulator type.
    sinks : array (num_qo_heads,) or None
        Logits; ``-inf`` is no sink.

    Returns
    -------
    AttentionState
        The lse includes the sink.

    Examples
    --------
    Two keys of score 0 with values 1 and 3, and a sink of 0: the mean of 1, 3 and nothing.

    >>> state = AttentionState(np.array([[[2.0]]]), np.log(np.array([[2.0]])))
    >>> out, lse = add_sinks(state, np.zeros(1))
    >>> round(float(out[0, 0, 0]), 6), round(float(np.exp(lse[0, 0])), 6)
    (1.333333, 3.0)
    """
    if sinks is None:
        return state
    sink_lse = np.broadcast_to(sinks.astype(state.lse.dtype), state.lse.shape)
    merged = combine(np.stack([state.out, np.zeros_like(state.out)]), np.stack([state.lse, sink_lse]))
    return AttentionState(merged.out.astype(state.out.dtype), merged.lse)


def check_states(backend: str, out: Array, lse: Array, out_state: AttentionState | None) -> dict[str, int]:
    """Check the arguments of ``merge_states``.

    Parameters
    ----------
    backend : str
        Key of :data:`pagedref.contract.DTYPES`.
    out, lse, out_state
        As given.

    Returns
    -------
    dict of str to int
        The sizes of the named dimensions.

    Raises
    ------
    ContractError
        If shapes or types break the contract.
    """
    dims = validate.arrays("merge_states", backend, {"out": out, "lse": lse})
    if out_state is not None:
        if not isinstance(out_state, tuple | list) or len(out_state) != 2:
            validate.fail("merge_states", "out_state", "is not a state", type(out_state).__name__, "a pair (out, lse)")
        for name, target, shape in (("out", out_state[0], out.shape[1:]), ("lse", out_state[1], lse.shape[1:])):
            if getattr(target, "shape", None) != shape:
                got = getattr(target, "shape", type(target).__name__)
                validate.fail("merge_states", f"out_state.{name}", "has the wrong shape", got, str(shape))
            if np.dtype(target.dtype).kind in "biuc":
                validate.fail("merge_states", f"out_state.{name}", "has the wrong type", target.dtype, "a float type")
            validate.writable("merge_states", f"out_state.{name}", target)
    return dims


def merge_states(out: Array, lse: Array, *, out_state: AttentionState | None = None) -> AttentionState:
    """Merge the states of disjoint sets of keys into the state of their union (S10).

    Parameters
    ----------
    out : array (num_states, tokens, num_qo_heads, v_head_dim) of float32 or float64
        Outputs of the parts.
    lse : array (num_states, tokens, num_qo_heads) of float32 or float64
        Natural log; ``-inf`` marks a part without keys, whose output is not used.
    out_state : AttentionState, optional
        Arrays to write the result into; may be views of the inputs.

    Returns
    -------
    AttentionState
        ``out`` in the type of `out`, ``lse`` in the accumulator type. No states at all give the identity.

    Raises
    ------
    ContractError
        If shapes or types break the contract.

    Notes
    -----
    Mutates: `out_state`, if given, else nothing. Agreement: BOUND; the identity is exact and swapping two states
    changes no bit. Twin: ``pagedref_cuda.merge_states``.

    References
    ----------
    M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018, section 3.1.

    Examples
    --------
    Three keys of score 0 and value 0, and one of score 0 and value 1:

    >>> out = np.array([0.0, 1.0]).reshape(2, 1, 1, 1)
    >>> lse = np.log([3.0, 1.0]).reshape(2, 1, 1)
    >>> merged = merge_states(out, lse)
    >>> round(float(merged.out[0, 0, 0]), 6), round(float(np.exp(merged.lse[0, 0])), 6)
    (0.25, 4.0)
    """
    check_states("numpy", out, lse, out_state)
    with np.errstate(over="ignore"):
        narrow = lse.astype(accumulator(out.dtype), copy=False)
    if narrow is not lse and (np.isinf(narrow) & np.isfinite(lse)).any():
        rule = f"numbers of {narrow.dtype} where out is {out.dtype}"
        validate.fail("merge_states", "lse", "is out of range", float(np.nanmax(np.abs(lse))), rule)
    merged = combine(out, narrow)
    if out_state is None:
        return AttentionState(merged.out.astype(out.dtype, copy=False), merged.lse)
    out_state[0][...] = merged.out
    out_state[1][...] = merged.lse
    return AttentionState(*out_state)
