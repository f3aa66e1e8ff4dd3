"""Decode, rungs 3 and 4: keys and values stream through shared memory, grouped heads are multiplied on tensor cores.

Rung 3: ``cp.async`` keeps `stages - 1` tiles of 16 keys on their way while one is computed with. Each lane copies the
16 bytes that it will use itself, so nobody waits for another lane, no barrier is needed, and 32 lanes lie side by side
in the banks. Keys that are not visible are filled with zeros and never read (S7).

Rung 4: the scores of 16 keys and 8 heads are one product of matrices, and so are the values weighted by them; 8 or 16
heads cost one read of a row, and a group of one costs no more than they do. Two choices save every rearrangement of
what was loaded:

- ``scores^T = K q^T``. A product does not care in which order its terms are added, so the columns of a fragment may be
  whatever numbers a lane happens to hold: lane 4 g + t loads piece t of rows g and g + 8, and q comes in that order.
- ``out^T = V^T weights^T``. Lane 4 g + t loads piece g of keys 2t, 2t + 1, 2t + 8, 2t + 9, so that its fragments are
  pairs of neighbouring keys: one byte permutation each. Which row of the product is which number of v does not matter
  until the end. Weights change lanes once, by two shuffles a word.

The sums are float32. Weights are split into three bfloat16 (two float16), which hold all bits of a float32: rounding
them to one would leave the agreement class. float32 queries are split in the same way (`query_parts`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from pagedref_cuda._ptx import (
    as_float,
    cp_async,
    cp_async_commit,
    cp_async_wait,
    exp2,
    half_to_float,
    lds,
    mma_bf16,
    mma_f16,
    permute,
)
from pagedref_cuda._runtime import Kernel
from pagedref_cuda._runtime.compiler import CompileOptions
from pagedref_cuda.fast.geometry import DECODE_SIGNATURE, Geometry
from pagedref_cuda.fast.halves import WIDEN, bf16_parts, f16_parts
from pagedref_cuda.fast.pieces import ALL_LANES, finish, place, score
from pagedref_cuda.fast.rows import STORE, store_f32

__all__ = ["decode_mma"]

_MINUS_INFINITY = np.float32(-np.inf)
_INFINITY = np.float32(np.inf)
_NAN = np.float32(np.nan)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


@cache
def decode_mma(geometry: Geometry) -> Kernel:
    """Return the kernel for some geometry.

    Parameters
    ----------
    geometry : Geometry
        Head dimensions, heads of a unit, types, warps and stages.

    Returns
    -------
    Kernel
        To be launched with one warp for each (unit, tile of heads), and ``geometry.shared_bytes``.
    """
    kind, query, heads = geometry.kind, geometry.query, geometry.heads
    warps, stages = geometry.warps, geometry.stages
    head_dim, v_head_dim = geometry.head_dim, geometry.v_head_dim
    half_f16 = kind == "f16"
    mma, parts = (mma_f16, f16_parts) if half_f16 else (mma_bf16, bf16_parts)
    weight_parts = 2 if half_f16 else 3
    query_parts = 1 if query == ("f16" if half_f16 else "bf16") else {"f16": 2, "f32": 3}[query]
    boost = np.float32(15.0 if half_f16 else 0.0)  # weights reach 2**15: float16 has few negative exponents
    widen, store = WIDEN[kind], STORE[query]
    k_pieces, k_words, k_each = geometry.k_pieces, geometry.k_words, geometry.k_each
    v_pieces, v_words, v_each = geometry.v_pieces, geometry.v_words, geometry.v_each
    k_halves, v_halves = k_each // 2, v_each // 2
    octets = heads // 8  # columns of eight heads
    tiles = v_head_dim // 16
    stage_words, warp_words = geometry.stage_words, geometry.stage_words * stages
    k_stage_words = 64 * k_pieces * k_words
    factor_words = stage_words - 32
    query_words = 2 * head_dim // 16  # of one part and octet, in a lane
    num_queries = query_words * query_parts * octets
    num_sums, num_scores, num_weights = tiles * octets * 4, octets * 4, octets * 2 * weight_parts
    num_rows = octets * 2
    num_k_halves, num_v_halves = 2 * k_halves, 4 * v_halves
    pending = stages - 1

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
        rows of `out` and `lse`, or its part. Barriers: none; lanes meet in shuffles and products. Rung: 4.
        """
        item = cuda.blockIdx.x * warps + (cuda.threadIdx.x >> 5)
        head_tiles = (group_size + heads - 1) // heads  # of one kv head
        per_unit = num_qo_heads // group_size * head_tiles
        if item >= units.shape[0] * per_unit:
            return
        lane = cuda.threadIdx.x & 31
        g, t = lane >> 2, lane & 3
        unit, kv_head = item // per_unit, item % per_unit // head_tiles
        first_head = item % per_unit % head_tiles * heads  # within the group
        query_row, start, stop = int64(units[unit, 0]), int64(units[unit, 1]), int64(units[unit, 2])
        if query_row < 0:  # a list that was made on the device has room to spare
            return
        first_page, position = kv_indptr[units[unit, 4]], int64(units[unit, 5])
        shared = cuda.shared.array(0, uint32, 16)
        own = (cuda.threadIdx.x >> 5) * warp_words
        picks = uint32(0x7632) if g & 1 else uint32(0x5410)
        scaled = k_scale.words.shape[0] > 0

        queries = cuda.local.array(num_queries, uint32)
        sums = cuda.local.array(num_sums, float32)
        top = cuda.local.array(num_rows, float32)
        total = cuda.local.array(num_rows, float32)
        slope = cuda.local.array(num_rows, float32)
        scores = cuda.local.array(num_scores, float32)
        weights = cuda.local.array(num_weights, int32)  # what shuffles move
        k_half = cuda.local.array(num_k_halves, uint32)
        v_half = cuda.local.array(num_v_halves, uint32)
        piece = cuda.local.array(4, uint32)
        shrinks = cuda.local.array(num_rows, float32)
        numbers = cuda.local.array(4, float32)

        # Queries as fragments of B: column g of an octet, in the order in which keys lie in the lanes.
        for n in range(octets):
            head = kv_head * group_size + min(first_head + n * 8 + g, group_size - 1)
            row = (query_row * num_qo_heads + head) * head_dim
            for c in range(k_pieces):
                for i in range(k_halves):
                    d = row + c * 4 * k_each + t * k_each + 2 * i
                    at = (n * query_parts * k_pieces + c) * k_halves + i
                    if query_parts == 1:
                        queries[at] = q[d >> 1]
                    else:
                        if query == "f16":
                            low, high = half_to_float(q[d >> 1])
                        else:
                            low, high = as_float(q[d]), as_float(q[d + 1])
                        found = parts(low, high)
                        for part in range(query_parts):
                            queries[at + part * k_pieces * k_halves] = found[part]
            for i in range(2):
                column = kv_head * group_size + min(first_head + n * 8 + 2 * t + i, group_size - 1)
                slope[2 * n + i] = slopes[column]
                top[2 * n + i] = _MINUS_INFINITY
                total[2 * n + i] = _ZERO
        for i in range(num_sums):
            sums[i] = _ZERO

        k_at, v_at, k_factor, v_factor = int64(0), int64(0), int64(0), int64(0)
        first_tile, stop_tile = start >> 4, (stop + 15) >> 4
        load_stage, stage = 0, 0
        for tile in range(first_tile - pending, stop_tile):
            ahead = tile + pending
            if ahead < stop_tile:
                if ahead == first_tile or ahead & 1 == 0:  # where 32 keys lie: one for each lane
                    key = min(max((ahead >> 1 << 5) + lane, start), stop - 1)
                    frame, offset = place(key, page_size, first_page, kv_indices)
                    k_at = frame * k_cache.frame + offset * k_cache.slot + kv_head * k_cache.head
                    v_at = frame * v_cache.frame + offset * v_cache.slot + kv_head * v_cache.head
                    k_factor = frame * k_scale.frame + offset * k_scale.slot + kv_head * k_scale.head
                    v_factor = frame * v_scale.frame + offset * v_scale.slot + kv_head * v_scale.head
                k_to = own + load_stage * stage_words + lane * k_words
                v_to = own + load_stage * stage_words + lane * v_words + k_stage_words
                for r in range(2):
                    local = g + 8 * r
                    at = cuda.shfl_sync(ALL_LANES, k_at, (ahead & 1) * 16 + local)
                    live = start <= ahead * 16 + local and ahead * 16 + local < stop
                    for c in range(k_pieces):
                        cp_async(
                            shared, k_to, k_cache.words, at + t * k_words, k_words, live,
                            (r * k_pieces + c) * 32 * k_words, c * 4 * k_words,
                        )  # fmt: skip
                for s in range(4):
                    local = 2 * t + (s & 1) + 8 * (s >> 1)
                    at = cuda.shfl_sync(ALL_LANES, v_at, (ahead & 1) * 16 + local)
                    live = start <= ahead * 16 + local and ahead * 16 + local < stop
                    for c in range(v_pieces):
                        cp_async(
                            shared, v_to, v_cache.words, at + g * v_words, v_words, live,
                            (s * v_pieces + c) * 32 * v_words, c * 8 * v_words,
                        )  # fmt: skip
                if scaled:
                    cuda.syncwarp()  # until all lanes have read the factors that lay here
                    if lane >> 4 == ahead & 1:
                        to = own + load_stage * stage_words + factor_words + (lane & 15)
                        live = start <= ahead * 16 + (lane & 15) and ahead * 16 + (lane & 15) < stop
                        cp_async(shared, to, k_scale.words, k_factor, 1, live)
                        cp_async(shared, to + 16, v_scale.words, v_factor, 1, live)
                load_stage = load_stage + 1 if load_stage + 1 < stages else 0
            cp_async_commit()
            if tile < first_tile:
                continue
            cp_async_wait(pending)

            base = own + stage * stage_words
            stage = stage + 1 if stage + 1 < stages else 0
            if scaled:
                cuda.syncwarp()  # until the factors that other lanes copied are there
            for i in range(num_scores):
                scores[i] = _ZERO
            for c in range(k_pieces):
                for r in range(2):
                    found = lds(shared, base + lane * k_words, k_words, (r * k_pieces + c) * 32 * k_words)
                    for i in range(k_words):
                        piece[i] = found[i]
                    widen(piece, k_half, r * k_halves, k_words)
                for j in range(0, k_halves, 2):
                    keys = (k_half[j], k_half[k_halves + j], k_half[j + 1], k_half[k_halves + j + 1])
                    for n in range(octets):
                        for part in range(query_parts):
                            at = ((n * query_parts + part) * k_pieces + c) * k_halves + j
                            so_far = (scores[4 * n], scores[4 * n + 1], scores[4 * n + 2], scores[4 * n + 3])
                            product = mma(keys, (queries[at], queries[at + 1]), so_far)
                            for i in range(4):
                                scores[4 * n + i] = product[i]

            moved = False
            for n in range(octets):
                for r in range(2):
                    key = tile * 16 + g + 8 * r
                    seen = start <= key and key < stop
                    factor = as_float(lds(shared, base + g, 1, factor_words + 8 * r)[0]) if scaled else _ONE
                    for i in range(2):
                        value = score(
                            scores[4 * n + 2 * r + i] * factor, key, position, scale, softcap, slope[2 * n + i]
                        )
                        scores[4 * n + 2 * r + i] = value if seen else _MINUS_INFINITY
                for i in range(2):
                    new_top = max(scores[4 * n + i], scores[4 * n + 2 + i])
                    for step in range(2, 5):
                        new_top = max(new_top, cuda.shfl_xor_sync(ALL_LANES, new_top, 1 << step))
                    new_top = max(new_top - boost, top[2 * n + i])
                    shift = _ZERO if new_top == _MINUS_INFINITY else new_top
                    shrinks[2 * n + i] = exp2(top[2 * n + i] - shift)
                    moved = moved or shrinks[2 * n + i] != _ONE
                    top[2 * n + i] = new_top
                    total[2 * n + i] *= shrinks[2 * n + i]
                    for r in range(2):
                        scores[4 * n + 2 * r + i] = exp2(scores[4 * n + 2 * r + i] - shift)
                for r in range(2):
                    low, high = scores[4 * n + 2 * r], scores[4 * n + 2 * r + 1]
                    total[2 * n] += low
                    total[2 * n + 1] += high
                    if scaled:
                        factor = as_float(lds(shared, base + g, 1, factor_words + 16 + 8 * r)[0])
                        low, high = low * factor, high * factor
                    found = parts(low, high)
                    for part in range(weight_parts):
                        weights[2 * n + r + part * num_rows] = found[part]
            # Weights change lanes: from key g and heads 2t, 2t + 1 to keys 2t, 2t + 1 and head g.
            for i in range(num_weights):
                even = cuda.shfl_sync(ALL_LANES, weights[i], 8 * t + (g >> 1))
                odd = cuda.shfl_sync(ALL_LANES, weights[i], 8 * t + 4 + (g >> 1))
                weights[i] = permute(even, odd, picks)
            if cuda.any_sync(ALL_LANES, moved):
                for j in range(tiles):
                    for n in range(octets):
                        for i in range(4):
                            sums[(j * octets + n) * 4 + i] *= shrinks[2 * n + (i & 1)]
            for c in range(v_pieces):
                for s in range(4):
                    to = k_stage_words + (s * v_pieces + c) * 32 * v_words
                    found = lds(shared, base + lane * v_words, v_words, to)
                    for i in range(v_words):
                        piece[i] = found[i]
                    widen(piece, v_half, s * v_halves, v_words)
                for i in range(v_halves):
                    first, second = v_half[i], v_half[v_halves + i]
                    third, fourth = v_half[2 * v_halves + i], v_half[3 * v_halves + i]
                    values = (
                        permute(first, second, uint32(0x5410)),
                        permute(first, second, uint32(0x7632)),
                        permute(third, fourth, uint32(0x5410)),
                        permute(third, fourth, uint32(0x7632)),
                    )
                    for n in range(octets):
                        at = ((c * v_halves + i) * octets + n) * 4
                        for part in range(weight_parts):
                            pair = (weights[part * num_rows + 2 * n], weights[part * num_rows + 2 * n + 1])
                            product = mma(values, pair, (sums[at], sums[at + 1], sums[at + 2], sums[at + 3]))
                            for k in range(4):
                                sums[at + k] = product[k]

        finite = True
        for i in range(num_sums):
            finite = finite and abs(sums[i]) < _INFINITY
        for i in range(num_rows):
            for step in range(2, 5):
                total[i] += cuda.shfl_xor_sync(ALL_LANES, total[i], 1 << step)
            finite = finite and total[i] < _INFINITY
        if cuda.any_sync(ALL_LANES, not finite):  # the second kernel computes these rows again
            for i in range(num_rows):
                total[i] = _NAN
        part = units[unit, 3]
        for n in range(octets):
            for i in range(2):
                column = first_head + 8 * n + 2 * t + i
                if column < group_size:
                    head = kv_head * group_size + column
                    if part < 0:
                        row = query_row * num_qo_heads + head
                        factor, lse_row = finish(top[2 * n + i], total[2 * n + i], sinks[head])
                        if g == 0:
                            lse[row] = lse_row
                    else:
                        row, factor = int64(part) * num_qo_heads + head, _ONE
                        if g == 0:
                            part_sum[row, 0], part_sum[row, 1] = top[2 * n + i], total[2 * n + i]
                    for c in range(v_pieces):
                        for d in range(0, v_each, 4):
                            for e in range(4):
                                at = ((c * v_halves + (d + e) // 2) * octets + n) * 4
                                numbers[e] = sums[at + 2 * (e & 1) + i]
                            to = row * v_head_dim + c * 8 * v_each + g * v_each + d
                            if part < 0:
                                store(out, to, numbers, 0, factor)
                            else:
                                store_f32(part_out, to, numbers, 0, _ONE)

    kernel.__name__ = kernel.__qualname__ = "decode_mma_" + geometry.name
    return Kernel(kernel, (DECODE_SIGNATURE,), CompileOptions(launch_bounds=(32 * warps, geometry.blocks)))
