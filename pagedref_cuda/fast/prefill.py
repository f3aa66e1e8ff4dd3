"""Prefill by tiles of query rows on tensor cores: list of tiles, kernel, a second look at marked rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.state import AttentionState
from pagedref.call import AttentionCall
from pagedref_cuda import _runtime
from pagedref_cuda.fast.choose import PrefillChoice
from pagedref_cuda.fast.prefill_mma import ROWS
from pagedref_cuda.fast.steps import finish_launch, query_rows, reads_of
from pagedref_cuda.fast.words import result_words

__all__ = ["run_prefill", "tiles_of"]

Array = npt.NDArray[Any]
_FAR = 1 << 62


def tiles_of(q_lens: Array, group_size: int, start: Array, stop: Array) -> Array:
    """Cut the rows of each sequence, (token, head of a group), into tiles.

    Parameters
    ----------
    q_lens : array (num_seqs,) of int64
        Query tokens of each sequence.
    group_size : int
        Rows of a token.
    start, stop : arrays (num_tokens,) of int64
        Visible keys of each token, before any mask.

    Returns
    -------
    array (num_tiles, 4) of int32
        Sequence, first row, first key and end of keys that one of its rows sees; those with most keys first.

    Examples
    --------
    >>> tiles_of(np.array([20]), 4, np.zeros(20, int), np.arange(1, 21)).tolist()
    [[0, 64, 0, 20], [0, 0, 0, 16]]
    """
    counts = -(-q_lens * group_size // ROWS)
    ends = np.cumsum(counts)
    sequence = np.repeat(np.arange(len(q_lens)), counts)
    first_row = (np.arange(len(sequence)) - (ends - counts)[sequence]) * ROWS
    first_token = (np.cumsum(q_lens) - q_lens)[sequence]
    first = first_token + first_row // group_size
    last = first_token + np.minimum((first_row + ROWS - 1) // group_size, q_lens[sequence] - 1)
    low, high = start[first], stop[last]  # both ends only move forward with the position
    order = np.argsort(np.minimum(low - high, 0), kind="stable")
    tiles = np.stack([sequence, first_row, low, np.maximum(high, low)], axis=1)[order]
    return np.ascontiguousarray(tiles.astype(np.int32))


def run_prefill(
    call: AttentionCall, q: Any, k_cache: Any, v_cache: Any, choice: PrefillChoice
) -> AttentionState | None:
    """Attend with tiles of query rows.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    q : array (num_tokens, num_qo_heads, head_dim)
        Queries.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, head_dim)
        The pool.
    choice : PrefillChoice
        Kernel and launch.

    Returns
    -------
    AttentionState or None
        None where the arrays lie on a device in a way that the kernel cannot read.
    """
    reads = reads_of(call, q, k_cache, v_cache)
    if reads is None:
        return None
    shape = (q.shape[0], call.dims["num_qo_heads"], call.dims["v_head_dim"])
    out, lse = result_words(shape, np.dtype(q.dtype).itemsize), _runtime.empty(shape[:2], np.float32)
    sequence, position, start, stop = query_rows(call)
    q_lens = np.diff(call.qo_indptr)
    tiles = tiles_of(q_lens, call.group_size, start, stop)
    pairs = q_lens * call.kv_lens
    options = call.options
    choice.kernel.launch_grid(
        len(tiles) * call.dims["num_kv_heads"],
        choice.threads,
        _runtime.readable(tiles),
        *reads.arrays,
        *(_runtime.readable(array) for array in (call.qo_indptr, call.kv_lens)),
        reads.mask,
        _runtime.readable(np.cumsum(pairs) - pairs),
        int(options.causal),
        *(-1 if side is None else min(side, _FAR) for side in (options.window_left, options.window_right)),
        min(options.attention_chunk or 0, _FAR),
        out,
        lse.reshape(-1),
        shared_bytes=choice.shared_bytes,
    )
    none = np.zeros(len(start), np.int64)
    rows = np.stack([start, np.maximum(stop, start), none, none, sequence, position], axis=1).astype(np.int32)
    no_parts = result_words((0,), 4), _runtime.empty((0, 2), np.float32)
    finish_launch(call, choice.kind, choice.kind, _runtime.readable(rows), reads, (out, lse.reshape(-1), *no_parts))
    return AttentionState(_runtime.to_host(out).view(q.dtype).reshape(shape), _runtime.to_host(lse))
