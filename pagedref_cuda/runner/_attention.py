"""Attention inside a model on the device: rows of q, k and v as one product left them, and the pool of one layer.

Two launches: one norms and turns queries and keys and puts keys and values into their slots, one attends. Both take
prompts and single tokens alike; a row knows its position and its sequence. A third joins what was shared among warps:
the keys of a single new token behind a long text, cut at multiples of a fixed number, so that neighbours change no bit.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda, float32

from pagedref_cuda._device import exp, frame_of_slot, offset_of, offset_of_slot, page_of, tanh
from pagedref_cuda._ptx import ldg
from pagedref_cuda._runtime import Kernel, kernel
from pagedref_cuda.layers._warps import warp_sum

__all__ = ["attend_rows", "join_parts_2", "softcap_1", "store_rows_2"]

Array = npt.NDArray[Any]

_ALL = 0xFFFFFFFF
_LANES, _WARPS = 32, 4
_THREADS = _LANES * _WARPS
_ZERO = np.float32(0.0)
_MINUS_INFINITY = np.float32(-np.inf)


@kernel(
    (
        *("float32[:, ::1]", "float32[:, :]", "float32[:, :]", "float32[:]", "float32[:]", "float32", "float32"),
        *("int64", "int64", "int64", "int64[:]", "float32[:, :, :, :]", "float32[:, :, :, :]"),
    ),
    launch_bounds=_THREADS,
)
def store_rows_2(
    rows: Array,
    cos: Array,
    sin: Array,
    q_norm: Array,
    k_norm: Array,
    eps: np.float32,
    norm_offset: np.float32,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    slots: Array,
    k_cache: Array,
    v_cache: Array,
) -> None:
    """Norm and turn queries and keys, and write keys and values into their slots.

    Launch: a warp owns one head of one token, of q, k or v. Reads: its head in `rows`, the angles of its token. Writes:
    queries in place, keys and values into the cache. Barriers: none. Rung: 2: norm, rotation and append, each of which
    reads and writes every key once, in one launch.
    """
    item = cuda.grid(1) // _LANES
    heads = num_qo_heads + 2 * num_kv_heads
    if item >= rows.shape[0] * heads:
        return
    lane = cuda.grid(1) % _LANES
    token = item // heads
    head = item % heads
    base = head * head_dim
    slot = slots[token]
    frame = frame_of_slot(slot, k_cache.shape[1])
    offset = offset_of_slot(slot, k_cache.shape[1])
    kv_head = (head - num_qo_heads) % num_kv_heads
    if head >= num_qo_heads + num_kv_heads:
        for d in range(lane, head_dim, _LANES):
            v_cache[frame, offset, kv_head, d] = rows[token, base + d]
        return
    is_query = head < num_qo_heads
    weight = q_norm if is_query else k_norm
    size = float32(1.0)
    if weight.shape[0] > 0:
        total = _ZERO
        for d in range(lane, head_dim, _LANES):
            total += rows[token, base + d] * rows[token, base + d]
        size = math.sqrt(warp_sum(total) / float32(head_dim) + eps)
    pairs = cos.shape[1]
    for d in range(lane, head_dim - pairs, _LANES):
        first = d if d < pairs else d + pairs
        a = rows[token, base + first]
        if weight.shape[0] > 0:
            a = a / size * (weight[first] + norm_offset)
        if d < pairs:
            second = d + pairs
            b = rows[token, base + second]
            if weight.shape[0] > 0:
                b = b / size * (weight[second] + norm_offset)
            c = cos[token, d]
            s = sin[token, d]
            turned = b * c + a * s
            a = a * c - b * s
            if is_query:
                rows[token, base + second] = turned
            else:
                k_cache[frame, offset, kv_head, second] = turned
        if is_query:
            rows[token, base + first] = a
        else:
            k_cache[frame, offset, kv_head, first] = a


_SIGNATURE = (
    *("uint32[::1]", "uint32[::1]", "uint32[::1]", *("int64[:]",) * 5, *("int64",) * 10),
    *("float32", "float32", "float32[:, :]", "float32[:, :]", "float32[:, :]"),
)


@cache
def attend_rows(head_dim: int) -> Kernel:
    """Return the kernel that attends with rows of one head size.

    Parameters
    ----------
    head_dim : int
        A multiple of 4.

    Returns
    -------
    Kernel
        To be launched with one warp for each (row, query head), four in a block.
    """
    pieces = -(-head_dim // _LANES)

    def attend_rows_2(
        rows: Array,
        keys: Array,
        values: Array,
        positions: Array,
        owner: Array,
        place: Array,
        kv_indptr: Array,
        kv_indices: Array,
        pitch: int,
        num_rows: int,
        num_qo_heads: int,
        group_size: int,
        page_size: int,
        window: int,
        split: int,
        frame_words: int,
        slot_words: int,
        head_words: int,
        scale: np.float32,
        softcap: np.float32,
        out: Array,
        part_means: Array,
        part_sums: Array,
    ) -> None:
        """Attend with each query row to the keys of its own sequence up to its own position.

        Launch: a warp owns one (row, query head), and where the row has a `place`, one part of its keys, which y of the
        grid counts. Reads: its query, the visible keys and values of its sequence. Writes: its row of `out`; or, of a
        part, sum of values, maximum and sum of weights. Barriers: none. Rung: 2: a lane owns one of 32 keys for the
        scores, reading 16 bytes at a time, and then one of 32 channels for the values; softmax runs over 32 keys at
        once, and the keys of a long sequence are shared among warps.
        """
        item = cuda.grid(1) // _LANES
        if item >= num_rows * num_qo_heads:
            return
        lane = cuda.grid(1) % _LANES
        row = item // num_qo_heads
        head = item % num_qo_heads
        kv_head = head // group_size
        position = positions[row]
        stop = position + 1
        start = max(0, stop - window) if window > 0 else 0
        part = cuda.blockIdx.y
        there = place[row]
        if there < 0 and part > 0:
            return
        if there >= 0:
            start = max(start, part * split)
            stop = min(stop, (part + 1) * split)
            if start >= stop:
                return
        first_page = kv_indptr[owner[row]]
        q_at = row * pitch + head * head_dim
        means = cuda.local.array(pieces, float32)
        for j in range(pieces):
            means[j] = _ZERO
        top = _MINUS_INFINITY
        total = _ZERO
        for base in range(start, stop, _LANES):
            key = min(base + lane, stop - 1)
            frame = kv_indices[first_page + page_of(key, page_size)]
            at = frame * frame_words + offset_of(key, page_size) * slot_words + kv_head * head_words
            score = _ZERO
            for d in range(0, head_dim, 4):
                a = ldg(rows, q_at + d, 4)
                b = ldg(keys, at + d, 4)
                score += a[0].view(np.float32) * b[0].view(np.float32)
                score += a[1].view(np.float32) * b[1].view(np.float32)
                score += a[2].view(np.float32) * b[2].view(np.float32)
                score += a[3].view(np.float32) * b[3].view(np.float32)
            score *= scale
            if softcap > _ZERO:
                score = softcap * tanh(score / softcap)
            if base + lane >= stop:
                score = _MINUS_INFINITY
            new_top = score
            step = 16
            while step > 0:
                new_top = max(new_top, cuda.shfl_xor_sync(_ALL, new_top, step))
                step //= 2
            new_top = max(new_top, top)
            weight = exp(score - new_top)
            shrink = exp(top - new_top)
            total = total * shrink + warp_sum(weight)
            for j in range(pieces):
                means[j] *= shrink
            for i in range(min(_LANES, stop - base)):
                share = cuda.shfl_sync(_ALL, weight, i)
                value_at = cuda.shfl_sync(_ALL, at, i)
                for j in range(pieces):
                    d = lane + _LANES * j
                    if d < head_dim:
                        means[j] += share * values[value_at + d].view(np.float32)
            top = new_top
        item = (there * num_qo_heads + head) * cuda.gridDim.y + part
        for j in range(pieces):
            d = lane + _LANES * j
            if d < head_dim:
                if there < 0:
                    out[row, head * head_dim + d] = means[j] / total
                else:
                    part_means[item, d] = means[j]
        if there >= 0 and lane == 0:
            part_sums[item, 0] = top
            part_sums[item, 1] = total

    attend_rows_2.__name__ = attend_rows_2.__qualname__ = f"attend_rows_2_{head_dim}"
    return kernel(_SIGNATURE, launch_bounds=_THREADS)(attend_rows_2)


@kernel(
    (
        *("int64[:]", "int64[:]", "float32[:, :]", "float32[:, :]", "int64", "int64", "int64", "int64", "int64"),
        "float32[:, :]",
    ),
    launch_bounds=_THREADS,
)
def join_parts_2(
    split_rows: Array,
    positions: Array,
    part_means: Array,
    part_sums: Array,
    parts: int,
    num_qo_heads: int,
    head_dim: int,
    window: int,
    split: int,
    out: Array,
) -> None:
    """Join the parts of the rows whose keys were shared among warps, in the order of the keys.

    Launch: a warp owns one (row that was split, query head). Reads: sums of values, maxima and sums of weights of its
    parts. Writes: its row of `out`. Barriers: none. Rung: 2: a lane owns every 32nd channel.
    """
    item = cuda.grid(1) // _LANES
    if item >= split_rows.shape[0] * num_qo_heads:
        return
    lane = cuda.grid(1) % _LANES
    head = item % num_qo_heads
    row = split_rows[item // num_qo_heads]
    stop = positions[row] + 1
    start = max(0, stop - window) if window > 0 else 0
    first = item * parts + start // split
    last = item * parts + (stop - 1) // split
    top = _MINUS_INFINITY
    for part in range(first, last + 1):
        top = max(top, part_sums[part, 0])
    total = _ZERO
    for part in range(first, last + 1):
        total += part_sums[part, 1] * exp(part_sums[part, 0] - top)
    for d in range(lane, head_dim, _LANES):
        mean = _ZERO
        for part in range(first, last + 1):
            mean += part_means[part, d] * exp(part_sums[part, 0] - top)
        out[row, head * head_dim + d] = mean / total


@kernel(("float32[:, :]", "float32"))
def softcap_1(logits: Array, cap: np.float32) -> None:
    """Cap logits: ``cap * tanh(x / cap)``.

    Launch: a thread owns one number. Reads: its number. Writes: the same. Barriers: none. Rung: 1, nothing to gain
    above it.
    """
    item = cuda.grid(1)
    if item >= logits.shape[0] * logits.shape[1]:
        return
    row = item // logits.shape[1]
    column = item % logits.shape[1]
    logits[row, column] = cap * tanh(logits[row, column] / cap)
