"""The one idea, on the device: walk the pages of a sequence with a running softmax.

Decode and prefill differ only in which row a thread owns; what it does with its row stands here once. On this rung a
tile is one key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.call import AttentionCall
from pagedref_cuda import _runtime
from pagedref_cuda._device import exp, log, offset_of, page_of, tanh
from pagedref_cuda._runtime import device_function
from pagedref_cuda.state import add_sink

__all__ = ["attend_row", "flags", "per_head"]

Array = npt.NDArray[Any]

_MINUS_INFINITY = np.float32(-np.inf)
_ZERO = np.float32(0.0)
_FAR = 1 << 62


@device_function
def attend_row(
    row: int,
    head: int,
    position: int,
    start: int,
    stop: int,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    kv_indices: Array,
    first_page: int,
    mask: Array,
    first_pair: int,
    sm_scale: np.float32,
    softcap: np.float32,
    alibi_slopes: Array,
    sinks: Array,
    out: Array,
    lse: Array,
) -> None:
    """Attend with one query row of one head: the twin of ``attend_rows``, with tiles of one key.

    The keys ``start .. stop - 1`` are visible, where `mask` is empty or holds nonzero at ``first_pair + key``; nothing
    else is touched (S7). The pages of the sequence begin at `first_page` of `kv_indices`. A `softcap` of -1, slopes of
    0 and sinks of -inf are off. The running mean lies in the row's place in `out`.
    """
    page_size = k_cache.shape[1]
    kv_head = head // (q.shape[1] // k_cache.shape[2])  # S12
    top = _MINUS_INFINITY
    total = _ZERO
    for d in range(out.shape[2]):
        out[row, head, d] = _ZERO
    for key in range(start, stop):
        if mask.shape[0] > 0 and mask[first_pair + key] == 0:
            continue
        frame = kv_indices[first_page + page_of(key, page_size)]
        offset = offset_of(key, page_size)
        score = _ZERO
        for d in range(q.shape[2]):
            score += q[row, head, d] * sm_scale * k_cache[frame, offset, kv_head, d]
        if softcap >= _ZERO:
            score = softcap * tanh(score / softcap)
        score += alibi_slopes[head] * np.float32(key - position)
        new_top = max(top, score)
        shift = _ZERO if new_top == _MINUS_INFINITY else new_top  # a row that has seen nothing yet keeps 0
        weight = exp(score - shift)
        rescale = exp(top - shift)
        total = total * rescale + weight
        for d in range(out.shape[2]):
            out[row, head, d] = out[row, head, d] * rescale + weight * v_cache[frame, offset, kv_head, d]
        top = new_top
    if total == _ZERO:
        for d in range(out.shape[2]):
            out[row, head, d] = _ZERO
        lse[row, head] = _MINUS_INFINITY
    else:
        for d in range(out.shape[2]):
            out[row, head, d] /= total
        lse[row, head] = top + log(total)
    add_sink(row, head, sinks[head], out, lse)


def flags(call: AttentionCall) -> tuple[Any, ...]:
    """Return the keywords of a call as numbers, so that one compilation serves every variant.

    Parameters
    ----------
    call : AttentionCall
        The checked call.

    Returns
    -------
    tuple
        ``causal, window_left, window_right, attention_chunk`` as int (0, -1, -1, 0 = off), then ``sm_scale, softcap``
        as float32 (softcap -1 = off).
    """
    options = call.options
    with np.errstate(over="ignore"):
        softcap = np.float32(options.softcap or -1.0)
    left, right = (-1 if side is None else min(side, _FAR) for side in (options.window_left, options.window_right))
    return (
        int(options.causal),
        left,
        right,
        min(options.attention_chunk or 0, _FAR),
        np.float32(options.sm_scale),
        softcap if np.isfinite(softcap) else np.float32(-1.0),  # a cap beyond float32 caps nothing
    )


def per_head(call: AttentionCall) -> tuple[Any, Any]:
    """Return slopes and sinks, one for each query head, on the device.

    Parameters
    ----------
    call : AttentionCall
        The checked call.

    Returns
    -------
    alibi_slopes, sinks : arrays (num_qo_heads,) of float32
        0 and -inf where the keyword is absent, which change nothing (L13).
    """
    num_qo_heads = call.dims["num_qo_heads"]
    slopes, sinks = call.options.alibi_slopes, call.options.sinks
    return (
        _runtime.readable(np.zeros(num_qo_heads, np.float32) if slopes is None else slopes),
        _runtime.readable(np.full(num_qo_heads, _MINUS_INFINITY) if sinks is None else sinks),
    )
