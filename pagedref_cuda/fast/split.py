"""Rung 5: a sequence is cut by its own length alone, so that its neighbours change no bit, and the parts are merged.

What changed: a long sequence is no longer one warp's work. Key k belongs to part ``k // split``, whatever the batch
(S10, L2; P73), so a step has as many units of work as it has pieces of `split` keys, longest first, and a few long
sequences spread over all multiprocessors. A unit that is its whole sequence writes the output itself; the others leave
maximum, sum and sum of values, which the second kernel of a step, :func:`finish_rows`, adds up in the order of the
keys. Sinks come in once: where a row is finished.

The second kernel also looks at every lse. Where a value or a score is not finite, products of fragments would spread
NaN to numbers that never meet it (0 * Inf), so the first kernel marks such rows with NaN, and here they are computed
again, key by key, as rung 1 does.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import cuda, float32, int64

from pagedref_cuda._ptx import as_float, exp2, ldg
from pagedref_cuda._runtime import Kernel
from pagedref_cuda._runtime.compiler import CompileOptions
from pagedref_cuda.fast.geometry import FINISH_SIGNATURE
from pagedref_cuda.fast.halves import NUMBER
from pagedref_cuda.fast.pieces import ALL_LANES, finish, place, score
from pagedref_cuda.fast.rows import STORE

__all__ = ["Units", "finish_rows", "units_of"]

Array = npt.NDArray[Any]

_MINUS_INFINITY = np.float32(-np.inf)
_INFINITY = np.float32(np.inf)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class Units(NamedTuple):
    """The work of a step.

    Attributes
    ----------
    units : array (num_units, 6) of int32
        Query row, first key, end of keys, number of the part or -1, sequence, position; those with most keys first.
    rows : array (num_rows, 6) of int32
        For each query row its first key and end of keys, first part and number of parts (0 if it was not cut), sequence
        and position.
    num_parts : int
        Parts of all rows.
    """

    units: Array
    rows: Array
    num_parts: int


def units_of(start: Array, stop: Array, sequence: Array, position: Array, split: int) -> Units:
    """Cut the visible keys of each query row at multiples of `split`.

    Parameters
    ----------
    start, stop : arrays (num_rows,) of int64
        Visible keys of each row; an empty row is a unit too, which writes that it is empty.
    sequence, position : arrays (num_rows,) of int64
        Whose row it is, and where it stands (S3).
    split : int
        Keys of a unit.

    Returns
    -------
    Units
        What a step has to do.

    Examples
    --------
    Rows with keys 0 to 4 and 3 to 10, cut at every fourth key.

    >>> two = np.array([0, 1])
    >>> units_of(np.array([0, 3]), np.array([5, 11]), two, two, 4).units[:, :4].tolist()
    [[0, 0, 4, 0], [1, 4, 8, 3], [1, 8, 11, 4], [0, 4, 5, 1], [1, 3, 4, 2]]
    """
    stop = np.maximum(stop, start)
    first = start // split
    counts = np.maximum(-(-stop // split) - first, 1)
    ends = np.cumsum(counts)
    row = np.repeat(np.arange(len(start)), counts)
    at = first[row] + np.arange(len(row)) - np.repeat(ends - counts, counts)
    low, high = np.maximum(start[row], at * split), np.minimum(stop[row], (at + 1) * split)
    kept = np.where(counts > 1, counts, 0)
    base = np.cumsum(kept) - kept
    part = np.where(kept[row] > 0, base[row] + at - first[row], -1)
    units = np.stack([row, low, np.maximum(high, low), part, sequence[row], position[row]], axis=1).astype(np.int32)
    order = np.argsort(units[:, 1] - units[:, 2], kind="stable")
    rows = np.stack([start, stop, base, kept, sequence, position], axis=1).astype(np.int32)
    return Units(np.ascontiguousarray(units[order]), rows, int(kept.sum()))


@cache
def finish_rows(head_dim: int, v_head_dim: int, kind: str, query: str) -> Kernel:
    """Return the second kernel of a step.

    Parameters
    ----------
    head_dim, v_head_dim : int
        Of keys and values; the latter at most 256.
    kind, query : str
        Stored form of the cache; type of queries and output.

    Returns
    -------
    Kernel
        To be launched with one warp for each (query row, query head), four in a block.
    """
    store, number, query_number = STORE[query], NUMBER[kind], NUMBER[query]
    row_words = head_dim if query == "f32" else head_dim // 2

    def kernel(
        rows: Any,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        k_scale: Any,
        v_scale: Any,
        kv_indptr: Any,
        kv_indices: Any,
        page_size: Any,
        group_size: Any,
        num_qo_heads: Any,
        scale: Any,
        softcap: Any,
        slopes: Any,
        sinks: Any,
        mask: Any,
        first_pairs: Any,
        out: Any,
        lse: Any,
        part_out: Any,
        part_sum: Any,
    ) -> None:
        """Merge the parts of a row in the order of its keys; compute a row again in which something is not finite.

        Launch: a warp owns one (query row, query head). Reads: maxima, sums and sums of values of its parts; the lse of
        a row without parts; queries, keys and values of a row that is computed again. Writes: its row of `out` and
        `lse`. Barriers: none. Rung: 5.
        """
        item = cuda.blockIdx.x * 4 + (cuda.threadIdx.x >> 5)
        if item >= rows.shape[0] * num_qo_heads:
            return
        lane = cuda.threadIdx.x & 31
        query_row, head = item // num_qo_heads, item % num_qo_heads
        target = int64(query_row) * num_qo_heads + head
        if rows[query_row, 3] < 0:  # the metadata is wrong
            return
        first = int64(rows[query_row, 2]) * num_qo_heads + head
        past = first + int64(rows[query_row, 3]) * num_qo_heads
        mean = cuda.local.array(8, float32)
        top, total = _MINUS_INFINITY, _ZERO
        if first < past:
            for row in range(first, past, num_qo_heads):
                top = max(top, part_sum[row, 0])
            shift = _ZERO if top == _MINUS_INFINITY else top
            for row in range(first, past, num_qo_heads):
                total += part_sum[row, 1] * exp2(part_sum[row, 0] - shift)
            if total < _INFINITY:
                factor, lse_row = finish(top, total, sinks[head])
                for d in range(lane * 4, v_head_dim, 128):
                    for i in range(4):
                        mean[i] = _ZERO
                    for row in range(first, past, num_qo_heads):
                        weight = exp2(part_sum[row, 0] - shift)
                        words = ldg(part_out, row * v_head_dim + d, 4)
                        for i in range(4):
                            mean[i] += weight * as_float(words[i])
                    store(out, target * v_head_dim + d, mean, 0, factor)
                if lane == 0:
                    lse[target] = lse_row
                return
        elif lse[target] < _INFINITY:
            return

        kv_head = head // group_size
        first_page = kv_indptr[rows[query_row, 4]]
        position = int64(rows[query_row, 5])
        scaled = k_scale.words.shape[0] > 0
        top, total = _MINUS_INFINITY, _ZERO
        for i in range(8):
            mean[i] = _ZERO
        for key in range(int64(rows[query_row, 0]), int64(rows[query_row, 1])):
            if mask.shape[0] > 0 and mask[first_pairs[query_row] + key] == 0:
                continue
            frame, offset = place(key, page_size, first_page, kv_indices)
            row = frame * k_cache.frame + offset * k_cache.slot + kv_head * k_cache.head
            product = _ZERO
            for d in range(lane, head_dim, 32):
                product += query_number(q, target * row_words, d) * number(k_cache.words, row, d)
            for step in range(5):
                product += cuda.shfl_xor_sync(ALL_LANES, product, 1 << step)
            v_factor = _ONE
            if scaled:
                product *= as_float(
                    k_scale.words[frame * k_scale.frame + offset * k_scale.slot + kv_head * k_scale.head]
                )
                v_factor = as_float(
                    v_scale.words[frame * v_scale.frame + offset * v_scale.slot + kv_head * v_scale.head]
                )
            value = score(product, key, position, scale, softcap, slopes[head])
            new_top = max(top, value)
            shift = _ZERO if new_top == _MINUS_INFINITY else new_top
            shrink, weight = exp2(top - shift), exp2(value - shift)
            top = new_top
            total = total * shrink + weight
            row = frame * v_cache.frame + offset * v_cache.slot + kv_head * v_cache.head
            for c in range(2):
                for i in range(4):
                    d = 128 * c + 4 * lane + i
                    if d < v_head_dim:
                        mean[4 * c + i] = mean[4 * c + i] * shrink + weight * (number(v_cache.words, row, d) * v_factor)
        factor, lse_row = finish(top, total, sinks[head])
        for c in range(2):
            if 128 * c + 4 * lane < v_head_dim:
                store(out, target * v_head_dim + 128 * c + 4 * lane, mean, 4 * c, factor)
        if lane == 0:
            lse[target] = lse_row

    kernel.__name__ = kernel.__qualname__ = f"decode_finish_{head_dim}_{v_head_dim}_{kind}_{query}"
    return Kernel(kernel, (FINISH_SIGNATURE,), CompileOptions(launch_bounds=128))
