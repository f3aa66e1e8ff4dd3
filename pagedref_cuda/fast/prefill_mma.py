"""Prefill, rung 4: tiles of queries on tensor cores, keys and values shared by the warps of a block.

What changed from rung 1, where a thread owns one (row, head) and reads its keys alone: a block owns 64 rows of one kv
head, a row being a (token, query head of the group), so that a group shares what is read. Tiles of keys stream
through shared memory (``cp.async``, two stages); ``S = Q K^T`` and ``O += P V`` are products of fragments, and the
result of the first is laid out as the second wants it. Tiles of keys that no row of a warp sees are skipped: half of
them under the causal rule. Rows of 16-byte pieces are stored with piece p at ``p ^ (row % 8)``, so that the eight rows
that ``ldmatrix`` reads at once lie in different banks.

Each row has its own interval of keys, and its own mask if there is one (S14): what it does not see is selected away.
Weights are split as in :mod:`pagedref_cuda.fast.decode_mma`. Rows that meet something that is not finite are marked and
computed again (:func:`pagedref_cuda.fast.split.finish_rows`), so that a hidden NaN stays hidden (S7).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from pagedref_cuda._device import interval
from pagedref_cuda._ptx import (
    cp_async,
    cp_async_commit,
    cp_async_wait,
    exp2,
    ldmatrix,
    ldmatrix_trans,
    mma_bf16,
    mma_f16,
    mma_three_bf16,
    mma_two_f16,
    pack_bf16,
    pack_f16,
)
from pagedref_cuda._runtime import Kernel, device_function
from pagedref_cuda._runtime.compiler import CompileOptions
from pagedref_cuda.fast.geometry import CACHES
from pagedref_cuda.fast.halves import bf16_parts, f16_parts
from pagedref_cuda.fast.pieces import ALL_LANES, finish, place, score

__all__ = ["ROWS", "prefill_mma", "prefill_shared_bytes"]

WARPS = 4
ROWS = 16 * WARPS
"""Rows of a block."""

_SIGNATURE = (
    *("int32[:, ::1]", *CACHES, "int64[::1]", "int64[::1]", "uint8[::1]", "int64[::1]"),
    *("int64", "int64", "int64", "int64", "uint32[::1]", "float32[::1]"),
)
_MINUS_INFINITY = np.float32(-np.inf)
_INFINITY = np.float32(np.inf)
_NAN = np.float32(np.nan)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


@device_function
def _weigh_three(w: Any, values: Any, sums: Any) -> Any:
    return mma_three_bf16((w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11]), values, sums)


@device_function
def _weigh_two(w: Any, values: Any, sums: Any) -> Any:
    return mma_two_f16((w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]), values, sums)


def prefill_shared_bytes(head_dim: int, keys: int, stages: int) -> int:
    """Return the shared memory of a block.

    Parameters
    ----------
    head_dim : int
        Of keys and values.
    keys, stages : int
        Keys of a tile; tiles that there is room for.

    Returns
    -------
    int
        Bytes.
    """
    return 2 * keys * head_dim * 2 * stages


@cache
def prefill_mma(head_dim: int, kind: str, keys: int, stages: int, blocks: int) -> Kernel:
    """Return the kernel for a head dimension and a type.

    Parameters
    ----------
    head_dim : int
        64 or 128, of keys and of values.
    kind : str
        ``bf16`` or ``f16``: of queries, cache and output.
    keys, stages, blocks : int
        Keys of a tile, 16 or 32; tiles in shared memory; blocks that share a multiprocessor.

    Returns
    -------
    Kernel
        To be launched with a block of 128 threads for each (tile of rows, kv head).
    """
    half_f16 = kind == "f16"
    mma, split, pack = (mma_f16, f16_parts, pack_f16) if half_f16 else (mma_bf16, bf16_parts, pack_bf16)
    parts, weigh = (2, _weigh_two) if half_f16 else (3, _weigh_three)
    boost = np.float32(15.0 if half_f16 else 0.0)
    pieces = head_dim // 8  # of a row
    piece_rows = 128 // pieces  # rows that the block copies at once
    passes = keys // piece_rows
    row_words = head_dim // 2
    steps, octets, v_octets = head_dim // 16, keys // 8, head_dim // 8
    half_steps, key_steps, v_pairs = head_dim // 32, keys // 16, head_dim // 16
    k_words = keys * row_words
    stage_words = 2 * k_words
    num_queries, num_scores, num_sums, num_weights = steps * 4, octets * 4, v_octets * 4, 4 * parts
    octet_words = 8 * row_words
    name = f"prefill_mma_{head_dim}_{kind}_k{keys}s{stages}b{blocks}"
    pending = stages - 1

    def kernel(
        tiles: Any,
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
        qo_indptr: Any,
        kv_lens: Any,
        mask: Any,
        first_pairs: Any,
        causal: Any,
        window_left: Any,
        window_right: Any,
        attention_chunk: Any,
        out: Any,
        lse: Any,
    ) -> None:
        """Attend with 64 rows of one kv head.

        Launch: a block owns one (tile of rows, kv head), a warp 16 of the rows. Reads: its queries, the keys and values
        that one of its rows sees, its mask. Writes: its rows of `out` and `lse`. Barriers: two for each tile of keys.
        Rung: 4.
        """
        num_kv_heads = num_qo_heads // group_size
        item = cuda.blockIdx.x // num_kv_heads
        if item >= tiles.shape[0]:
            return
        kv_head = cuda.blockIdx.x % num_kv_heads
        thread = cuda.threadIdx.x
        warp, lane = thread >> 5, thread & 31
        g, t = lane >> 2, lane & 3
        sequence = tiles[item, 0]
        first_row = int64(tiles[item, 1]) + warp * 16  # within the sequence
        start, stop = int64(tiles[item, 2]), int64(tiles[item, 3])
        first_token = qo_indptr[sequence]
        q_len = qo_indptr[sequence + 1] - first_token
        kv_len = kv_lens[sequence]
        first_page = kv_indptr[sequence]
        shared = cuda.shared.array(0, uint32, 16)

        queries = cuda.local.array(num_queries, uint32)
        sums = cuda.local.array(num_sums, float32)
        scores = cuda.local.array(num_scores, float32)
        weights = cuda.local.array(num_weights, uint32)
        top = cuda.local.array(2, float32)
        total = cuda.local.array(2, float32)
        shrinks = cuda.local.array(2, float32)
        slope = cuda.local.array(2, float32)
        low = cuda.local.array(2, int32)
        high = cuda.local.array(2, int32)
        position = cuda.local.array(2, int32)
        pair = cuda.local.array(2, int64)
        target = cuda.local.array(2, int64)
        for r in range(2):  # this lane's rows: g and g + 8 of its warp
            row = first_row + g + 8 * r
            token = min(row // group_size, q_len - 1)
            head = kv_head * group_size + row % group_size
            target[r] = (first_token + token) * num_qo_heads + head
            position[r] = kv_len - q_len + token  # S3
            low[r], high[r] = interval(position[r], kv_len, causal, window_left, window_right, attention_chunk)
            pair[r] = first_pairs[sequence] + token * kv_len
            slope[r] = slopes[head]
            top[r] = _MINUS_INFINITY
            total[r] = _ZERO
            for k in range(steps):
                for i in range(2):
                    queries[4 * k + r + 2 * i] = q[target[r] * row_words + 8 * k + 4 * i + t]
        for i in range(num_sums):
            sums[i] = _ZERO

        piece, piece_row = thread % pieces, thread // pieces
        to = (piece_row * pieces + (piece ^ (piece_row & 7))) * 4
        # Where the rows begin that this lane names to ldmatrix: for keys, matrix m is piece m of a step; for values,
        # its lowest bit chooses eight keys and the other one a piece.
        m, x = lane >> 3, lane & 7
        k_near = (x * pieces + (m ^ x)) * 4
        k_far = (x * pieces + ((m + 4) ^ x)) * 4
        v_row = ((m & 1) * 8 + x) * row_words

        first_tile, stop_tile = start // keys, (stop + keys - 1) // keys
        load_stage, stage = 0, 0
        for tile in range(first_tile - pending, stop_tile):
            ahead = tile + pending
            if ahead < stop_tile:
                key = ahead * keys + lane  # where keys lie: one for each lane
                frame, offset = place(min(max(key, start), stop - 1), page_size, first_page, kv_indices)
                live = start <= key and key < stop and frame >= 0
                k_at = frame * k_cache.frame + offset * k_cache.slot + kv_head * k_cache.head if live else int64(-1)
                v_at = frame * v_cache.frame + offset * v_cache.slot + kv_head * v_cache.head if live else int64(-1)
                for i in range(passes):
                    at = cuda.shfl_sync(ALL_LANES, k_at, piece_row + i * piece_rows)
                    base = load_stage * stage_words + to
                    offset_words = i * piece_rows * row_words
                    cp_async(shared, base, k_cache.words, max(at, 0) + piece * 4, 4, at >= 0, offset_words)
                    at = cuda.shfl_sync(ALL_LANES, v_at, piece_row + i * piece_rows)
                    cp_async(shared, base, v_cache.words, max(at, 0) + piece * 4, 4, at >= 0, offset_words + k_words)
                load_stage = load_stage + 1 if load_stage + 1 < stages else 0
            cp_async_commit()
            if tile < first_tile:
                continue
            cp_async_wait(pending)
            # Until what all threads copied of this tile is there.
            cuda.syncthreads()
            base = stage * stage_words
            stage = stage + 1 if stage + 1 < stages else 0
            first_key = tile * keys
            touches = (low[0] < first_key + keys and high[0] > first_key) or (
                low[1] < first_key + keys and high[1] > first_key
            )
            if cuda.any_sync(ALL_LANES, touches):
                for i in range(num_scores):
                    scores[i] = _ZERO
                for k in range(half_steps):  # two steps of 16 numbers
                    near = k_far if k & 1 else k_near
                    for n in range(octets):
                        words = ldmatrix(shared, base + near + n * octet_words + (k >> 1) * 32)
                        for i in range(2):
                            at = 8 * k + 4 * i
                            rows = (queries[at], queries[at + 1], queries[at + 2], queries[at + 3])
                            so_far = (scores[4 * n], scores[4 * n + 1], scores[4 * n + 2], scores[4 * n + 3])
                            product = mma(rows, (words[2 * i], words[2 * i + 1]), so_far)
                            for j in range(4):
                                scores[4 * n + j] = product[j]
                moved = False
                for r in range(2):
                    for n in range(octets):
                        for i in range(2):
                            key = first_key + 8 * n + 2 * t + i
                            at = 4 * n + 2 * r + i
                            value = score(scores[at], key, position[r], scale, softcap, slope[r])
                            scores[at] = value if low[r] <= key and key < high[r] else _MINUS_INFINITY
                    if mask.shape[0] > 0:
                        for n in range(octets):
                            for i in range(2):
                                key = first_key + 8 * n + 2 * t + i
                                if low[r] <= key and key < high[r] and mask[pair[r] + key] == 0:
                                    scores[4 * n + 2 * r + i] = _MINUS_INFINITY
                    new_top = _MINUS_INFINITY
                    for n in range(octets):
                        for i in range(2):
                            new_top = max(new_top, scores[4 * n + 2 * r + i])
                    for step in range(2):
                        new_top = max(new_top, cuda.shfl_xor_sync(ALL_LANES, new_top, 1 << step))
                    new_top = max(new_top - boost, top[r])
                    shift = _ZERO if new_top == _MINUS_INFINITY else new_top
                    shrinks[r] = exp2(top[r] - shift)
                    moved = moved or shrinks[r] != _ONE
                    top[r] = new_top
                    total[r] *= shrinks[r]
                    for n in range(octets):
                        for i in range(2):
                            scores[4 * n + 2 * r + i] = exp2(scores[4 * n + 2 * r + i] - shift)
                            total[r] += scores[4 * n + 2 * r + i]
                if cuda.any_sync(ALL_LANES, moved):
                    for n in range(v_octets):
                        for i in range(4):
                            sums[4 * n + i] *= shrinks[i >> 1]
                for k in range(key_steps):  # 16 keys: two octets of scores are the words of a fragment
                    for n in range(2):
                        for r in range(2):
                            at = 4 * (2 * k + n) + 2 * r
                            found = split(scores[at], scores[at + 1])
                            for part in range(parts):
                                weights[4 * part + 2 * n + r] = found[part]
                    for d in range(v_pairs):
                        turned = base + v_row + ((2 * d + (m >> 1)) ^ x) * 4
                        words = ldmatrix_trans(shared, turned + k_words + k * 2 * octet_words)
                        for i in range(2):
                            at = 4 * (2 * d + i)
                            so_far = (sums[at], sums[at + 1], sums[at + 2], sums[at + 3])
                            product = weigh(weights, (words[2 * i], words[2 * i + 1]), so_far)
                            for j in range(4):
                                sums[at + j] = product[j]
            # Until all warps have read this tile: the next copy goes where it lies.
            cuda.syncthreads()

        finite = True
        for i in range(num_sums):
            finite = finite and abs(sums[i]) < _INFINITY
        for r in range(2):
            for step in range(2):
                total[r] += cuda.shfl_xor_sync(ALL_LANES, total[r], 1 << step)
            finite = finite and total[r] < _INFINITY
        spoiled = cuda.any_sync(ALL_LANES, not finite)  # these rows are computed again
        for r in range(2):
            row = first_row + g + 8 * r
            if row < q_len * group_size:
                head = kv_head * group_size + row % group_size
                factor, lse_row = finish(top[r], _NAN if spoiled else total[r], sinks[head])
                for n in range(v_octets):
                    word = pack(sums[4 * n + 2 * r] * factor, sums[4 * n + 2 * r + 1] * factor)
                    out[target[r] * row_words + 4 * n + t] = word
                if t == 0:
                    lse[target[r]] = lse_row

    kernel.__name__ = kernel.__qualname__ = name
    return Kernel(kernel, (_SIGNATURE,), CompileOptions(launch_bounds=(32 * WARPS, blocks)))
