"""Merging the states of parts on the device (S10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref.attention.state import AttentionState, check_states
from pagedref_cuda import _runtime
from pagedref_cuda._device import exp, log, multiply_rounded
from pagedref_cuda._numbers import FLOAT32, NUMBERS, Numbers, narrow, number, numbers, put
from pagedref_cuda._result import result, result_arrays
from pagedref_cuda._runtime import device_function, kernel

__all__ = ["add_sink", "merge_states"]

Array = npt.NDArray[Any]

_MINUS_INFINITY = np.float32(-np.inf)
_ZERO = np.float32(0.0)
_MINUS_ZERO = np.float32(-0.0)


@kernel((NUMBERS, "float32[:, :, :]", "float32[:, :, :]", NUMBERS, "float32[:, :]"))
def merge_states_1(out: Numbers, lse: Array, mean: Array, merged_out: Numbers, merged_lse: Array) -> None:
    """Merge the states of one row and one head.

    Launch: a thread owns one (token, query head). Reads: its rows of `out`, except of states without weight (S7), and
    of `lse`. Writes: its row of `mean`, of `merged_out` where that is not float32, and of `merged_lse`; each number
    after the last read of its like, so the result may lie where a state was. Barriers: none. Rung: 1, the reference
    line by line.

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
    for i in range(lse.shape[0]):
        if lse[i, token, head] != _MINUS_INFINITY:
            total += exp(lse[i, token, head] - shift)
    for d in range(mean.shape[2]):
        numerator = _MINUS_ZERO
        for i in range(lse.shape[0]):
            if lse[i, token, head] != _MINUS_INFINITY:
                weight = exp(lse[i, token, head] - shift)
                numerator += multiply_rounded(weight, number(out, i, token, head, d))
        quotient = _ZERO if total == _ZERO else numerator / total
        mean[token, head, d] = quotient
        if merged_out.kind != FLOAT32:
            put(merged_out, 0, token, head, d, narrow(quotient, merged_out.kind))
    merged_lse[token, head] = _MINUS_INFINITY if total == _ZERO else shift + log(total)


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
    out : array (num_states, tokens, num_qo_heads, v_head_dim) of float32, float16 or bfloat16
        Outputs of the parts.
    lse : array (num_states, tokens, num_qo_heads) of float32
        Natural log; ``-inf`` marks a part without keys, whose output is not used.
    out_state : AttentionState, optional
        Arrays to write the result into; may be views of the inputs.

    Returns
    -------
    AttentionState
        ``out`` in the type of `out`, ``lse`` in float32. No states at all give the identity.

    Raises
    ------
    ContractError
        If shapes or types break the contract.
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: `out_state`, if given, else nothing. Agreement: BOUND; the identity is exact and swapping two states
    changes no bit. Twin: ``pagedref.attention.merge_states``.
    """
    _runtime.ensure_available()
    dims = check_states("cuda", out, lse, out_state)
    merged = result(out.dtype, dims["num_tokens"], dims["num_qo_heads"], dims["v_head_dim"])
    items = dims["num_tokens"] * dims["num_qo_heads"]
    merge_states_1.launch(items, numbers(out), _runtime.readable(lse), *merged)
    state = AttentionState(*result_arrays(merged, out.dtype))
    if out_state is None:
        return state
    out_state[0][...] = state.out
    out_state[1][...] = state.lse
    return AttentionState(*out_state)
