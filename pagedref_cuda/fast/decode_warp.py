"""Decode, rungs 2 and 3: a warp for the heads of one unit of work, an online softmax per warp, loads of 16 bytes.

Rung 2. What changed from rung 1, where a thread owns a query head and reads its keys number by number: the 32 lanes of
a warp stand beside each other on the keys. A lane loads 16 bytes of a row, so that a request of the warp is 512 bytes
without gaps (16 sectors, none of them read in part), and a row that is read serves `heads` query heads. The lanes of a
row add up their products by shuffles; lanes of different rows go their own way, each with its own running softmax, and
meet at the end.

Rung 3. What changed: `stages - 1` tiles are on their way into shared memory (``cp.async``) while one is computed with,
so that the warp waits for memory once, not once a tile. Each lane copies the 16 bytes that it will use itself: nobody
waits for another lane, and 32 lanes lie side by side in the banks. Keys that are not visible become zeros and are
never read (S7).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, int64, uint32

from pagedref_cuda._ptx import cp_async, cp_async_commit, cp_async_wait, exp2, ldg, lds
from pagedref_cuda._runtime import Kernel
from pagedref_cuda._runtime.compiler import CompileOptions
from pagedref_cuda.fast.geometry import DECODE_SIGNATURE
from pagedref_cuda.fast.pieces import ALL_LANES, finish, place, score, unpack_bf16, unpack_f16, unpack_f32
from pagedref_cuda.fast.rows import STORE, store_f32

__all__ = ["decode_warp", "warp_shared_bytes"]

_UNPACK = {"f32": unpack_f32, "bf16": unpack_bf16, "f16": unpack_f16}

_MINUS_INFINITY = np.float32(-np.inf)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


def loads_of(heads: int) -> int:
    """Return the requests for keys, and as many for values, that make a tile: few enough that scores stay in registers.

    Parameters
    ----------
    heads : int
        Query heads of a unit.

    Returns
    -------
    int
    """
    return 8 // max(heads, 2)


def warp_shared_bytes(heads: int, warps: int, stages: int) -> int:
    """Return the shared memory of a block.

    Parameters
    ----------
    heads, warps, stages : int
        As for :func:`decode_warp`.

    Returns
    -------
    int
        Bytes.
    """
    return 2 * loads_of(heads) * 512 * warps * stages if stages > 1 else 0


@cache
def decode_warp(head_dim: int, heads: int, kind: str, query: str, warps: int, stages: int, blocks: int) -> Kernel:
    """Return the kernel for some geometry.

    Parameters
    ----------
    head_dim : int
        Of keys and values: a row takes at most 512 bytes, and a power of two of lanes.
    heads : int
        Query heads of a unit: they share the rows that are read.
    kind, query : str
        ``f32``, ``bf16`` or ``f16``: how the cache is stored; type of queries and output.
    warps, stages, blocks : int
        Warps of a block; tiles that a warp has room for, 1 for loads into registers (rung 2); blocks that share a
        multiprocessor.

    Returns
    -------
    Kernel
        To be launched with one warp for each (unit, tile of heads).
    """
    each = 4 if kind == "f32" else 8  # numbers in 16 bytes
    lanes = head_dim // each  # of one row
    abreast = 32 // lanes  # rows in one request
    halvings = lanes.bit_length() - 1
    loads = loads_of(heads)
    pending = stages - 1
    stage_words = 2 * loads * 128
    tile = loads * abreast  # keys that share one step of the running softmax
    numbers, num_words, num_scores = heads * each, 4 * loads, heads * loads
    spec = ("decode_warp", head_dim, heads, kind, query, warps, stages)
    unpack, unpack_query, store = _UNPACK[kind], _UNPACK[query], STORE[query]
    query_words = each if query == "f32" else each // 2
    row_words = head_dim if query == "f32" else head_dim // 2
    threads = 32 * warps

    def kernel(
        units: Any,
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
        out: Any,
        lse: Any,
        part_out: Any,
        part_sum: Any,
    ) -> None:
        """Attend with some query heads of one kv head to the keys of one unit.

        Launch: a warp owns one (unit, tile of heads). Reads: its queries, the keys and values of its unit. Writes: its
        rows of `out` and `lse`, or its part. Barriers: none. Rung: 2, and 3 with stages.
        """
        item = cuda.blockIdx.x * warps + (cuda.threadIdx.x >> 5)
        tiles = (group_size + heads - 1) // heads  # of one kv head
        per_unit = num_qo_heads // group_size * tiles
        if item >= units.shape[0] * per_unit:
            return
        lane = cuda.threadIdx.x & 31
        piece = lane % lanes
        unit = item // per_unit
        kv_head = item % per_unit // tiles
        first_head = item % per_unit % tiles * heads  # within the group
        query_row = int64(units[unit, 0])
        if query_row < 0:  # a list that was made on the device has room to spare
            return
        start, stop = int64(units[unit, 1]), int64(units[unit, 2])
        first_page = kv_indptr[units[unit, 4]]
        position = int64(units[unit, 5])

        queries = cuda.local.array(numbers, float32)
        mean = cuda.local.array(numbers, float32)
        top = cuda.local.array(heads, float32)
        total = cuda.local.array(heads, float32)
        slope = cuda.local.array(heads, float32)
        words = cuda.local.array(each, uint32)
        keys = cuda.local.array(num_words, uint32)
        values = cuda.local.array(num_words, uint32)
        scores = cuda.local.array(num_scores, float32)
        for h in range(heads):
            head = kv_head * group_size + min(first_head + h, group_size - 1)  # a head too many repeats the last one
            row = (query_row * num_qo_heads + head) * row_words
            for i in range(0, query_words, 4):
                found = ldg(q, row + piece * query_words + i, 4)
                for j in range(4):
                    words[i + j] = found[j]
            for i in range(each):
                queries[h * each + i] = unpack_query(words, i)
                mean[h * each + i] = _ZERO
            top[h] = _MINUS_INFINITY
            total[h] = _ZERO
            slope[h] = slopes[head]

        shared = cuda.shared.array(0, uint32, 16)
        own = (cuda.threadIdx.x >> 5) * stage_words * stages + lane * 4
        first_tile, stop_tile = start // tile, (stop + tile - 1) // tile
        load_stage, stage = 0, 0
        k_row, v_row = int64(0), int64(0)
        for step_tile in range(first_tile - pending, stop_tile):
            ahead = step_tile + pending
            if ahead < stop_tile:
                base = ahead * tile
                if ahead == first_tile or base & 31 == 0:  # where 32 keys lie: one for each lane
                    key = min(max((base >> 5 << 5) + lane, start), stop - 1)  # only visible rows are looked up
                    frame, offset = place(key, page_size, first_page, kv_indices)
                    k_row = frame * k_cache.frame + offset * k_cache.slot + kv_head * k_cache.head
                    v_row = frame * v_cache.frame + offset * v_cache.slot + kv_head * v_cache.head
                for u in range(loads):
                    key = base + u * abreast + lane // lanes
                    seen = start <= key and key < stop
                    k_at = cuda.shfl_sync(ALL_LANES, k_row, key & 31) + piece * 4
                    v_at = cuda.shfl_sync(ALL_LANES, v_row, key & 31) + piece * 4
                    if stages > 1:
                        to = own + load_stage * stage_words
                        cp_async(shared, to, k_cache.words, k_at, 4, seen, u * 128)
                        cp_async(shared, to, v_cache.words, v_at, 4, seen, (loads + u) * 128)
                    else:
                        row = ldg(k_cache.words, k_at, 4)
                        for i in range(4):
                            keys[4 * u + i] = row[i]
                        row = ldg(v_cache.words, v_at, 4)
                        for i in range(4):
                            values[4 * u + i] = row[i]
                load_stage = load_stage + 1 if load_stage + 1 < stages else 0
            if stages > 1:
                cp_async_commit()
                if step_tile < first_tile:
                    continue
                cp_async_wait(pending)
                for u in range(loads):
                    row = lds(shared, own + stage * stage_words, 4, u * 128)
                    for i in range(4):
                        keys[4 * u + i] = row[i]
                    row = lds(shared, own + stage * stage_words, 4, (loads + u) * 128)
                    for i in range(4):
                        values[4 * u + i] = row[i]
                stage = stage + 1 if stage + 1 < stages else 0
            first = step_tile * tile
            for u in range(loads):
                key = first + u * abreast + lane // lanes
                for h in range(heads):
                    product = _ZERO
                    for i in range(each):
                        product += queries[h * each + i] * unpack(keys, u * each + i)
                    for step in range(halvings):
                        product += cuda.shfl_xor_sync(ALL_LANES, product, 1 << step)
                    seen = start <= key and key < stop
                    value = score(product, key, position, scale, softcap, slope[h])
                    scores[h * loads + u] = value if seen else _MINUS_INFINITY
                if key < start or key >= stop:  # selection, not a product with 0 (S7)
                    for i in range(4):
                        values[4 * u + i] = 0
            for h in range(heads):
                new_top = top[h]
                for u in range(loads):
                    new_top = max(new_top, scores[h * loads + u])
                shift = _ZERO if new_top == _MINUS_INFINITY else new_top
                shrink = exp2(top[h] - shift)
                top[h] = new_top
                total[h] *= shrink
                for i in range(each):
                    mean[h * each + i] *= shrink
                for u in range(loads):
                    weight = exp2(scores[h * loads + u] - shift)
                    total[h] += weight
                    for i in range(each):
                        mean[h * each + i] += weight * unpack(values, u * each + i)

        for step in range(halvings, 5):  # lanes of other rows, whose keys were others
            for h in range(heads):
                other_top = cuda.shfl_xor_sync(ALL_LANES, top[h], 1 << step)
                new_top = max(top[h], other_top)
                shift = _ZERO if new_top == _MINUS_INFINITY else new_top
                shrink, other_shrink = exp2(top[h] - shift), exp2(other_top - shift)
                top[h] = new_top
                total[h] = total[h] * shrink + cuda.shfl_xor_sync(ALL_LANES, total[h], 1 << step) * other_shrink
                for i in range(each):
                    other = cuda.shfl_xor_sync(ALL_LANES, mean[h * each + i], 1 << step)
                    mean[h * each + i] = mean[h * each + i] * shrink + other * other_shrink
        if lane >= lanes:
            return
        part = units[unit, 3]
        base = (query_row if part < 0 else int64(part)) * num_qo_heads + kv_head * group_size + first_head
        for h in range(heads):
            if first_head + h < group_size:
                factor = _ONE
                if part < 0:
                    factor, lse_row = finish(top[h], total[h], sinks[kv_head * group_size + first_head + h])
                    if lane == 0:
                        lse[base + h] = lse_row
                elif lane == 0:
                    part_sum[base + h, 0], part_sum[base + h, 1] = top[h], total[h]
                for i in range(0, each, 4):
                    to = (base + h) * head_dim + piece * each + i
                    if part < 0:
                        store(out, to, mean, h * each + i, factor)
                    else:
                        store_f32(part_out, to, mean, h * each + i, _ONE)

    kernel.__name__ = kernel.__qualname__ = "_".join(map(str, spec))
    return Kernel(kernel, (DECODE_SIGNATURE,), CompileOptions(launch_bounds=(threads, blocks)))
