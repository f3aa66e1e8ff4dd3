"""The walk over latent pages on the device: one token is key ``[ckv | kpe]`` and value ``ckv`` (S13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref.attention.state import AttentionState
from pagedref.mla_call import LatentCall
from pagedref_cuda import _runtime
from pagedref_cuda._device import frame_of_slot, offset_of, offset_of_slot, page_of, slot_of
from pagedref_cuda._numbers import NUMBERS, Numbers, number, numbers
from pagedref_cuda._result import RESULT, Result, result, result_arrays
from pagedref_cuda._runtime import Kernel, device_function, kernel
from pagedref_cuda._storage import STORED, Stored, stored, stored_number
from pagedref_cuda.tiles import (
    PAGES,
    RULES,
    Pages,
    Rules,
    begin_row,
    finish_row,
    modified,
    pages,
    rules,
    take_key,
    visible,
)  # fmt: skip

__all__ = ["launch_latent", "mla_decode_1", "mla_prefill_1", "owners"]

Array = npt.NDArray[Any]

_MINUS_INFINITY, _ZERO = np.float32(-np.inf), np.float32(0.0)


@device_function
def attend_latent_row(
    sequence: int,
    row: int,
    head: int,
    q_nope: Numbers,
    q_pe: Numbers,
    ckv: Stored,
    kpe: Stored,
    frame_size: int,
    rank: int,
    rope_dim: int,
    pages: Pages,
    rules: Rules,
    result: Result,
) -> None:
    """Attend with one query row of one head: the key of a token is ``[ckv | kpe]``, its value is ``ckv`` (S13).

    Pages may be smaller than frames: those of a sparse selection are single tokens, and name slots.
    """
    position, start, stop, first_pair = visible(sequence, row, pages, rules)
    first_page = pages.kv_indptr[sequence]
    top = _MINUS_INFINITY
    total = _ZERO
    begin_row(row, head, result)
    for key in range(start, stop):
        if pages.mask.shape[0] > 0 and pages.mask[first_pair + key] == 0:
            continue
        index = pages.kv_indices[first_page + page_of(key, pages.page_size)]
        slot = slot_of(index, offset_of(key, pages.page_size), pages.page_size)
        frame = frame_of_slot(slot, frame_size)
        offset = offset_of_slot(slot, frame_size)
        score = _ZERO
        for d in range(rank):
            score += number(q_nope, 0, row, head, d) * rules.sm_scale * stored_number(ckv, frame, offset, 0, d)
        for d in range(rope_dim):
            score += number(q_pe, 0, row, head, d) * rules.sm_scale * stored_number(kpe, frame, offset, 0, d)
        score = modified(score, key, position, head, rules)
        top, total = take_key(score, top, total, row, head, ckv, frame, offset, 0, result.mean)
    finish_row(top, total, row, head, rules, result)


_LATENT = (NUMBERS, NUMBERS, STORED, STORED, "int64", "int64", "int64", "int64", PAGES, RULES, RESULT)


@kernel(_LATENT)
def mla_decode_1(
    q_nope: Numbers,
    q_pe: Numbers,
    ckv: Stored,
    kpe: Stored,
    frame_size: int,
    num_qo_heads: int,
    rank: int,
    rope_dim: int,
    pages: Pages,
    rules: Rules,
    result: Result,
) -> None:
    """Attend over latents with the query of one sequence and one head.

    Launch: a thread owns one (sequence, query head). Reads: its queries, the visible latents and rotated keys of its
    sequence. Writes: its row of `result`, which also holds the running mean. Barriers: none. Rung: 1, the reference
    line by line.
    """
    item = cuda.grid(1)
    if item >= pages.kv_lens.shape[0] * num_qo_heads:
        return
    sequence = item // num_qo_heads
    head = item % num_qo_heads
    attend_latent_row(
        sequence, sequence, head, q_nope, q_pe, ckv, kpe, frame_size, rank, rope_dim, pages, rules, result
    )


@kernel(("int64[:]", *_LATENT))
def mla_prefill_1(
    owner: Array,
    q_nope: Numbers,
    q_pe: Numbers,
    ckv: Stored,
    kpe: Stored,
    frame_size: int,
    num_qo_heads: int,
    rank: int,
    rope_dim: int,
    pages: Pages,
    rules: Rules,
    result: Result,
) -> None:
    """Attend over latents with one query row and one head.

    Launch: a thread owns one (row, query head); `owner` is the sequence of each row. Reads: its queries, the visible
    latents and rotated keys of its sequence. Writes: its row of `result`, which also holds the running mean. Barriers:
    none. Rung: 1, the reference line by line.
    """
    item = cuda.grid(1)
    if item >= owner.shape[0] * num_qo_heads:
        return
    row = item // num_qo_heads
    head = item % num_qo_heads
    attend_latent_row(
        owner[row], row, head, q_nope, q_pe, ckv, kpe, frame_size, rank, rope_dim, pages, rules, result
    )


def launch_latent(
    kernel: Kernel, latent: LatentCall, q_nope: Array, q_pe: Array, ckv_cache: Array, kpe_cache: Array, *owner: Any
) -> AttentionState:
    """Launch one of the two kernels, and return what it wrote.

    Parameters
    ----------
    kernel : Kernel
        Of decode or prefill.
    latent : LatentCall
        The checked call.
    q_nope, q_pe : arrays (tokens, num_qo_heads, rank or rope_dim)
        Queries.
    ckv_cache, kpe_cache : arrays (num_frames, page_size, rank or rope_dim)
        The pool.
    *owner : array (tokens,) of int64
        Sequence of each row, for prefill.

    Returns
    -------
    AttentionState
        ``out`` in the type of `q_nope`, ``lse`` in float32.
    """
    call, tokens = latent.call, int(q_nope.shape[0])
    num_qo_heads, rank, rope_dim = (call.dims[name] for name in ("num_qo_heads", "rank", "rope_dim"))
    written = result(q_nope.dtype, tokens, num_qo_heads, rank)
    kernel.launch(
        tokens * num_qo_heads,
        *owner,
        numbers(q_nope),
        numbers(q_pe),
        stored(ckv_cache[:, :, None], latent.ckv, rank),
        stored(kpe_cache[:, :, None], latent.kpe, rope_dim),
        int(ckv_cache.shape[1]),
        num_qo_heads,
        rank,
        rope_dim,
        pages(call),
        rules(call.options, num_qo_heads),
        written,
    )
    return AttentionState(*result_arrays(written, q_nope.dtype))


def owners(latent: LatentCall) -> Any:
    """Return the sequence of each row.

    Parameters
    ----------
    latent : LatentCall
        The checked call.

    Returns
    -------
    array (tokens,) of int64
        On the device.
    """
    qo_indptr = latent.call.qo_indptr
    return _runtime.readable(np.repeat(np.arange(len(qo_indptr) - 1, dtype=np.int64), np.diff(qo_indptr)))
