"""A step by the fast rungs of decode: what kernels read, list of work, kernel, merge of what was cut."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.attention.state import AttentionState
from pagedref.call import AttentionCall
from pagedref.storage import Storage
from pagedref_cuda import _runtime
from pagedref_cuda.fast.choose import Choice
from pagedref_cuda.fast.pieces import LOG2_E
from pagedref_cuda.fast.plan import plan_units
from pagedref_cuda.fast.split import finish_rows, units_of
from pagedref_cuda.fast.words import CacheWords, cache_words, flat_words, result_words
from pagedref_cuda.tiles import Pages

__all__ = ["Reads", "finish_launch", "query_rows", "reads_of", "run_rows"]

Array = npt.NDArray[Any]

_FINISH_WARPS = 4


def factors(call: AttentionCall) -> tuple[np.float32, np.float32]:
    """Return the factor on q.k, and the cap or 0, both for scores in base 2 (see :func:`pieces.score`).

    Parameters
    ----------
    call : AttentionCall
        The checked call.

    Returns
    -------
    scale, softcap : float32
    """
    options = call.options
    cap = options.softcap
    if cap is None or cap >= np.finfo(np.float32).max:  # a cap beyond float32 caps nothing (L13)
        return np.float32(options.sm_scale * LOG2_E), np.float32(0.0)
    return np.float32(options.sm_scale / cap), np.float32(cap * LOG2_E)


def per_head(call: AttentionCall) -> tuple[Any, Any]:
    """Return slopes and sinks of the query heads in base 2, 0 and -inf where there are none.

    Parameters
    ----------
    call : AttentionCall
        The checked call.

    Returns
    -------
    slopes, sinks : arrays (num_qo_heads,) of float32
        On the device.
    """
    heads = call.dims["num_qo_heads"]
    given = (call.options.alibi_slopes, 0.0), (call.options.sinks, -np.inf)
    made = [np.full(heads, off) if array is None else np.asarray(array, np.float64) * LOG2_E for array, off in given]
    with np.errstate(over="ignore"):
        slopes, sinks = (array.astype(np.float32) for array in made)
    return _runtime.readable(slopes), _runtime.readable(sinks)


def query_rows(call: AttentionCall) -> tuple[Array, Array, Array, Array]:
    """Return sequence, position and visible keys of each query row, before any mask (S3-S5).

    Parameters
    ----------
    call : AttentionCall
        The checked call.

    Returns
    -------
    sequence, position, start, stop : arrays (num_rows,) of int64
    """
    q_lens = np.diff(call.qo_indptr)
    sequence = np.repeat(np.arange(len(q_lens)), q_lens)
    kv_len = call.kv_lens[sequence]
    position = np.arange(len(sequence)) - call.qo_indptr[1:][sequence] + kv_len
    keys: Any = kv_len  # one number for each row
    return sequence, position, *call.options.intervals(position, keys)


def factors_of(*sides: Storage) -> tuple[Any, ...] | None:
    """Return the scales of both caches as words, each with its strides of frame, slot and head (S17).

    Parameters
    ----------
    *sides : Storage
        Keys and values.

    Returns
    -------
    tuple or None
        Empty arrays where neither side has scales; one 1 for a side that has none beside one that has. None for scales
        on a device that have gaps.
    """
    none = all(side.scale is None for side in sides)
    made: list[Any] = []
    for side in sides:
        scale = np.ones((), np.float32) if side.scale is None else side.scale
        sizes = (1, 1, 1, *scale.shape)[-3:] if len(scale.shape) != 2 else (scale.shape[0], 1, scale.shape[1])
        strides = [0 if size == 1 else prod(sizes[axis + 1 :]) for axis, size in enumerate(sizes)]
        words = flat_words(np.empty(0, np.float32) if none else scale)
        if words is None:
            return None
        made.append(CacheWords(words, *strides))
    return tuple(made)


class Reads(NamedTuple):
    """What the kernels of a step read, as they take it.

    Attributes
    ----------
    arrays : tuple
        The arguments of :data:`pagedref_cuda.fast.geometry.CACHES`.
    mask, first_pairs : arrays
        All masks in one flat array of bytes, and where that of each query row begins (S14).
    """

    arrays: tuple[Any, ...]
    mask: Any
    first_pairs: Array


def reads_of(call: AttentionCall, q: Any, k_cache: Any, v_cache: Any, deferred: Pages | None = None) -> Reads | None:
    """Return what kernels read of a call.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    q : array (num_rows, num_qo_heads, head_dim)
        Queries.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        The pool.
    deferred : Pages, optional
        Metadata that lies on the device.

    Returns
    -------
    Reads or None
        None where an array lies on a device in a way that the kernels cannot read.
    """
    queries, keys, values = flat_words(q), cache_words(k_cache), cache_words(v_cache)
    scales = factors_of(call.keys, call.values)
    if queries is None or keys is None or values is None or scales is None:
        return None
    if deferred is None:
        pages = _runtime.readable(call.kv_indptr), _runtime.readable(call.kv_indices)
    else:
        pages = deferred.kv_indptr, deferred.kv_indices
    arrays = (
        queries,
        keys,
        values,
        *scales,
        *pages,
        *(np.int32(size) for size in (call.dims["page_size"], call.group_size, call.dims["num_qo_heads"])),
        *factors(call),
        *per_head(call),
    )
    if not call.masks:
        return Reads(arrays, _runtime.readable(np.empty(0, np.uint8)), np.empty(0, np.int64))
    kv_len = call.kv_lens[query_rows(call)[0]]
    first_pairs = np.cumsum(kv_len) - kv_len
    mask = np.concatenate([part.reshape(-1) for part in call.masks]).view(np.uint8)
    return Reads(arrays, _runtime.readable(mask), first_pairs)


def finish_launch(
    call: AttentionCall, kind: str, query: str, rows: Array, reads: Reads, writes: tuple[Any, ...]
) -> None:
    """Launch the second kernel of a step.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    kind, query : str
        Stored form; type of queries and output.
    rows : array (num_rows, 6) of int32
        From :func:`pagedref_cuda.fast.split.units_of`, on the device.
    reads : Reads
        What the first kernel read.
    writes : tuple
        Output, lse, parts and their maxima and sums.
    """
    blocks = -(-rows.shape[0] * call.dims["num_qo_heads"] // _FINISH_WARPS)
    finish_rows(call.dims["head_dim"], call.dims["v_head_dim"], kind, query).launch_grid(
        blocks,
        32 * _FINISH_WARPS,
        rows,
        *reads.arrays,
        reads.mask,
        _runtime.readable(reads.first_pairs),
        *writes,
    )


def run_rows(
    call: AttentionCall, q: Any, k_cache: Any, v_cache: Any, choice: Choice, deferred: Pages | None = None
) -> AttentionState | None:
    """Attend with each query row as a unit of its own: decode, and prefill without a mask.

    Parameters
    ----------
    call : AttentionCall
        The checked call.
    q : array (num_rows, num_qo_heads, head_dim)
        Queries.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim)
        The pool.
    choice : Choice
        Kernel and launch.
    deferred : Pages, optional
        Metadata of a decode step that lies on the device: the list of work is made there.

    Returns
    -------
    AttentionState or None
        None where the arrays lie on a device in a way that the kernel cannot read.
    """
    reads = reads_of(call, q, k_cache, v_cache, deferred)
    if reads is None:
        return None
    shape = (q.shape[0], call.dims["num_qo_heads"], call.dims["v_head_dim"])
    out, lse = result_words(shape, np.dtype(q.dtype).itemsize), _runtime.empty(shape[:2], np.float32)
    if deferred is not None:
        keys = call.dims["num_pages"] * call.dims["page_size"]
        work = plan_units(deferred.kv_lens, deferred.flag, call.options, keys, choice.split)
    else:
        sequence, position, start, stop = query_rows(call)
        work = units_of(start, stop, sequence, position, choice.split)
    parts = work.num_parts * shape[1]
    writes = (out, lse.reshape(-1), result_words((parts, shape[2]), 4), _runtime.empty((parts, 2), np.float32))
    warps = len(work.units) * call.dims["num_kv_heads"] * -(-call.group_size // choice.heads)
    choice.kernel.launch_grid(
        -(-warps // choice.warps),
        32 * choice.warps,
        work.units if deferred else _runtime.readable(work.units),
        *reads.arrays,
        *writes,
        shared_bytes=choice.shared_bytes,
    )
    rows = work.rows if deferred else _runtime.readable(work.rows)
    finish_launch(call, choice.kind, choice.query, rows, reads, writes)
    return AttentionState(_runtime.to_host(out).view(q.dtype).reshape(shape), _runtime.to_host(lse))
