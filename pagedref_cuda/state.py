"""Merging the states of parts on the device (S10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref import validate
from pagedref.attention.state import AttentionState
from pagedref_cuda import _runtime
from pagedref_cuda._device import exp, log, multiply_rounded
from pagedref_cuda._runtime import device_function, kernel

__all__ = ["add_sink", "merge_states"]

Array = npt.NDArray[Any]

_MINUS_INFINITY = np.float32(-np.inf)
_ZERO = np.float32(0.0)
_MINUS_ZERO = np.float32(-0.0)


@kernel(("float32[:, :, :, :]", "float32[:, :, :]", "float32[:, :, :]", "float32[:, :]"))
def merge_states_1(out: Array, lse: Array, merged_out: Array, merged_lse: Array) -> None:
    """Merge the states of one row and one head.

    Launch: a thread owns one (token, query head). Reads: its rows of `out`, except of states without weight (S7), and
    of `lse`. Writes: its row of `merged_out` and `merged_lse`. Barriers: none. Rung: 1, the reference line by line.

    A product is rounded before it is added, so that swapping two states changes no bit; a state without weight adds
    nothing at all, and -0.0 is where a sum to the bit begins.
    """
    item = cuda.grid(1)
    num_qo_heads = merged_lse.shape[1]
    if item >= merged_lse.shape[0] * num_qo_heads:
        return
    token = item // num_qo_heads
    head = item % num_qo_heads
    top = _MINUS_INFINITY
    for i in range(lse.shape[0]):
        top = max(top, lse[i, token, head])
    shift = _ZERO if top == _MINUS_INFINITY else top
    total = _ZERO
    for d in range(merged_out.shape[2]):
        merged_out[token, head, d] = _MINUS_ZERO
    for i in range(lse.shape[0]):
        if lse[i, token, head] != _MINUS_INFINITY:
            weight = exp(lse[i, token, head] - shift)
            total += weight
            for d in range(merged_out.shape[2]):
                merged_out[token, head, d] += multiply_rounded(weight, out[i, token, head, d])
    if total == _ZERO:
        for d in range(merged_out.shape[2]):
            merged_out[token, head, d] = _ZERO
        merged_lse[token, head] = _MINUS_INFINITY
    else:
        for d in range(merged_out.shape[2]):
            merged_out[token, head, d] /= total
        merged_lse[token, head] = shift + log(total)


@device_function
def add_sink(row: int, head: int, sink: np.float32, out: Array, lse: Array) -> None:
    """Merge in one logit that has no value (S11): the twin of ``add_sinks``, for one row and one head, in place."""
    top = max(lse[row, head], sink)
    if top == _MINUS_INFINITY or sink == _MINUS_INFINITY:
        return
    weight = exp(lse[row, head] - top)
    total = weight + exp(sink - top)
    for d in range(out.shape[2]):
        out[row, head, d] = multiply_rounded(weight, out[row, head, d]) / total
    lse[row, head] = top + log(total)


def merge_states(out: Array, lse: Array, *, out_state: AttentionState | None = None) -> AttentionState:
    """Merge the states of disjoint sets of keys into the state of their union (S10).

    Parameters
    ----------
    out : array (num_states, tokens, num_qo_heads, v_head_dim) of float32
        Outputs of the parts.
    lse : array (num_states, tokens, num_qo_heads) of float32
        Natural log; ``-inf`` marks a part without keys, whose output is not used.
    out_state : AttentionState, optional
        Arrays to write the result into; may be views of the inputs.

    Returns
    -------
    AttentionState
        In float32. No states at all give the identity.

    Raises
    ------
    ContractError
        If shapes or types break the contract.
    BackendUnavailable
        There is neither a GPU nor the simulator.

    Notes
    -----
    Mutates: `out_state`, if given, else nothing. Agreement: BOUND; the identity is exact and swapping two states
    changes no bit. Twin: ``pagedref.attention.merge_states``.
    """
    _runtime.ensure_available()
    dims = validate.arrays("merge_states", "cuda", {"out": out, "lse": lse})
    if out_state is not None:
        for name, target, shape in (("out", out_state[0], out.shape[1:]), ("lse", out_state[1], lse.shape[1:])):
            if getattr(target, "shape", None) != shape:
                got = getattr(target, "shape", type(target).__name__)
                validate.fail("merge_states", f"out_state.{name}", "has the wrong shape", got, str(shape))
    merged_out = _runtime.empty(tuple(out.shape[1:]), np.float32)
    merged_lse = _runtime.empty(tuple(lse.shape[1:]), np.float32)
    items = dims["num_tokens"] * dims["num_qo_heads"]
    if items:
        merge_states_1.launch(items, _runtime.readable(out), _runtime.readable(lse), merged_out, merged_lse)
    merged = AttentionState(_runtime.to_host(merged_out), _runtime.to_host(merged_lse))
    if out_state is None:
        return merged
    out_state[0][...] = merged.out
    out_state[1][...] = merged.lse
    return AttentionState(*out_state)
