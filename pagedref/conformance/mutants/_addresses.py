"""Mutants of addresses, lengths, page tails, slots and stored numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as reference
from pagedref.attention import AttentionState
from pagedref.conformance.mutants._base import Attend, Mutant, both, mutant
from pagedref.kv_cache import PagedKVCache
from pagedref.kv_format import KINDS, KVFormat

__all__ = ["MUTANTS"]

Array = npt.NDArray[Any]


def _full_last_page(attend: Attend) -> Attend:
    def wrong(*arrays: Array, **keywords: Any) -> AttentionState:
        *rest, last = arrays
        page_size = rest[-4].shape[1]
        return attend(*rest, np.where(last > 0, np.minimum(last + 1, page_size), 0).astype(last.dtype), **keywords)

    return wrong


def _clipped_last_page(operation: Any) -> Any:
    def wrong(*arrays: Array, **keywords: Any) -> Any:
        *rest, last = arrays
        return operation(*rest, np.minimum(last, rest[-4].shape[1]).astype(last.dtype), **keywords)

    return wrong


def _last_page_of_count(num_tokens: Any, page_size: Any) -> Any:
    pages = -(-np.asarray(num_tokens) // page_size)
    return np.where(pages > 0, (pages - 1) % page_size + 1, 0)


def _zero_times_nan(attend: Attend) -> Attend:
    def wrong(*arrays: Array, **keywords: Any) -> AttentionState:
        state = attend(*arrays, **keywords)
        _, v_cache, kv_indptr, kv_indices, _ = arrays[-5:]
        rows = np.diff(arrays[1]) if attend is reference.paged_prefill else np.ones(len(kv_indptr) - 1, int)
        out, group = state.out.copy(), state.out.shape[1] // v_cache.shape[2]
        owners = np.repeat(np.arange(len(rows)), rows)
        for row, owner in enumerate(owners):  # whole pages are multiplied, what is not live with weight 0
            frames = kv_indices[kv_indptr[owner] : kv_indptr[owner + 1]]
            with np.errstate(invalid="ignore"):
                dead = (0 * v_cache[frames[frames >= 0]]).sum(axis=(0, 1))
            out[row] += np.repeat(dead, group, axis=0)
        return AttentionState(out, state.lse)

    return wrong


def _last_slot(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **keywords: Any) -> None:
    skipped = np.flatnonzero(slot_mapping == -1)[-1:]  # floor arithmetic: -1 is page -1, offset page_size - 1
    order = np.concatenate([np.flatnonzero(slot_mapping != -1), skipped])
    slots = np.where(slot_mapping == -1, k_cache.shape[0] * k_cache.shape[1] - 1, slot_mapping)[order]
    taken = np.flatnonzero(slots[: len(order) - len(skipped)] == slots[-1:]) if len(skipped) else skipped
    order, slots = np.delete(order, taken), np.delete(slots, taken)  # the last one wins
    reference.append_kv(k[order], v[order], k_cache, v_cache, slots, **keywords)


def _stale_copy(arrays: Any, src: Array, dst: Array) -> None:
    reference.copy_frames(arrays[:1], src, dst)  # the first layer's keys alone


def _wrap(index: Array, row: int, count: int) -> Array:
    """Take ``index * row`` in 32 bits, as a narrow address would be, and bring it back into a pool of `count`."""
    narrow = (index.astype(np.int64) * row).astype(np.int32).astype(np.int64)
    return np.where((index >= 0) & (narrow < 0), (narrow // row) % count, index)


def _narrow_append(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **keywords: Any) -> None:
    slots = _wrap(slot_mapping, int(np.prod(k_cache.shape[2:])), k_cache.shape[0] * k_cache.shape[1])
    reference.append_kv(k, v, k_cache, v_cache, slots, **keywords)


def _narrow_gather(
    k_cache: Array, v_cache: Array, kv_indptr: Array, kv_indices: Array, last: Array, **keywords: Any
) -> Any:
    frames = _wrap(kv_indices, int(np.prod(k_cache.shape[1:])), k_cache.shape[0])
    return reference.gather_kv(k_cache, v_cache, kv_indptr, frames, last, **keywords)


def _narrow_element(frame: Any, offset: Any, frame_stride: Any, slot_stride: Any) -> Any:
    with np.errstate(over="ignore"):
        return frame * frame_stride + offset * slot_stride  # as wide as its arguments


def _narrow_slot(frame: Any, offset: Any, page_size: Any) -> Any:
    with np.errstate(over="ignore"):
        return frame * page_size + offset


def _wrapped_frames(operation: Any, at: int) -> Any:
    """Read frame ``(frame * stride mod 2**32) / stride``: an unsigned 32-bit offset; `at` counts from the end."""

    def wrong(*arrays: Array, **keywords: Any) -> Any:
        cache = next(array for array in arrays if array.ndim == 4)
        stride = max(cache.strides[0] // cache.itemsize, 1)
        changed = list(arrays)
        frames = changed[at].astype(np.int64)
        changed[at] = np.where(frames >= 0, (frames * stride) % 2**32 // stride, frames)
        return operation(*changed, **keywords)

    return wrong


def _whole_prompt(cache: PagedKVCache, rows: Array, chunks: list[int]) -> Array:
    """Reserve the prompt at once, and attend in every chunk over the length of the whole prompt."""
    sequence, outputs, begin = cache.add(), [], 0
    step = cache.begin([sequence], [sum(chunks)])
    pools = cache.arrays()
    for size in chunks:
        chunk = rows[begin : begin + size]
        cache.backend.append_kv(chunk, chunk, *pools, step.slot_mapping[begin : begin + size])
        pages = step.kv_indptr, step.kv_indices, step.kv_last_page_len
        outputs.append(np.asarray(cache.backend.paged_prefill(chunk, np.array([0, size]), *pools, *pages).out))
        begin += size
    cache.commit(step)
    cache.free(sequence)
    return np.concatenate(outputs)


def _half_inverse(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **keywords: Any) -> None:
    reference.append_kv(k, v, k_cache, v_cache, slot_mapping, **keywords)
    form = keywords.get("kv_format")
    if not isinstance(form, KVFormat) or not form.computed:
        return
    scales = keywords["k_scale"], keywords["v_scale"]
    for row, slot in enumerate(slot_mapping.tolist()):
        for rows, scale in zip((k, v), scales, strict=True):
            if slot >= 0 and np.ptp(rows[row]) == 0:  # a range of 0 becomes 0.001, its inverse is stored in float16
                with np.errstate(over="ignore"):
                    inverse = np.float16(255 / 0.001)
                scale[slot // k_cache.shape[1], slot % k_cache.shape[1]] = np.float32(inverse)


def _bare_cast(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **keywords: Any) -> None:
    if keywords.get("kv_format") is not None or k_cache.dtype.itemsize != 1:
        return reference.append_kv(k, v, k_cache, v_cache, slot_mapping, **keywords)
    reference.append_kv(0 * np.nan_to_num(k), 0 * np.nan_to_num(v), k_cache, v_cache, slot_mapping, **keywords)
    for rows, cache, scale in ((k, k_cache, keywords.get("k_scale")), (v, v_cache, keywords.get("v_scale"))):
        with np.errstate(invalid="ignore"):
            stored = (rows / np.float32(scale or 1)).astype(cache.dtype)
        live = slot_mapping >= 0
        cache[slot_mapping[live] // cache.shape[1], slot_mapping[live] % cache.shape[1]] = stored[live]


def _wider_buffer(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array, **keywords: Any) -> None:
    reference.append_kv(k, v, k_cache, v_cache, slot_mapping, **keywords)
    form = keywords.get("kv_format")
    if not isinstance(form, KVFormat) or not form.computed:
        return
    for rows, scale in ((k, keywords["k_scale"]), (v, keywords["v_scale"])):
        buffer = rows.base
        if buffer is None or buffer.ndim != rows.ndim or buffer.shape[-1] <= rows.shape[-1]:
            continue
        for slot in slot_mapping[slot_mapping >= 0].tolist():
            largest = np.abs(buffer).max() / np.float32(KINDS[form.kind].largest)
            scale[slot // k_cache.shape[1], slot % k_cache.shape[1]] = largest


MUTANTS: dict[str, Mutant] = {
    "last_page_one_longer": mutant("one slot beyond the last token is read", broad=True, **both(_full_last_page)),
    "last_page_from_page_count": mutant(
        "the last page's length is computed from the number of pages", last_page_len=_last_page_of_count
    ),
    "long_last_page_accepted": mutant(
        "a last page longer than a page is cut instead of refused",
        gather_kv=_clipped_last_page(reference.gather_kv),
        **both(_clipped_last_page),
    ),
    "zero_times_nan": mutant("dead slots are multiplied by weight 0", broad=True, **both(_zero_times_nan)),
    "slot_minus_one": mutant("slot -1 writes the last slot of the pool", append_kv=_last_slot),
    "stale_frame_after_copy": mutant("copy on write leaves old contents in some arrays", copy_frames=_stale_copy),
    "slots_in_32_bits": mutant("slot arithmetic wraps at 2**31", append_kv=_narrow_append, gather_kv=_narrow_gather),
    "slot_arithmetic_in_32_bits": mutant(
        "page arithmetic is as narrow as an int32 table",
        also=("P02",),
        element_of=_narrow_element,
        slot_of=_narrow_slot,
    ),
    "frame_stride_in_32_bits": mutant(
        "frame times stride wraps at 2**32",
        gather_kv=_wrapped_frames(reference.gather_kv, -2),
        **both(lambda attend: _wrapped_frames(attend, -2)),
    ),
    "length_of_the_whole_prompt": mutant(
        "a chunk attends over the whole prompt's length", chunked_prefill=_whole_prompt
    ),
    "inverse_scale_in_float16": mutant("the inverse of a range of 0 is stored in float16", append_kv=_half_inverse),
    "cast_without_clamp": mutant("numbers are cast to a narrow type as they are", append_kv=_bare_cast),
    "scale_from_the_wider_buffer": mutant("the range of a row takes in its padding", append_kv=_wider_buffer),
}
"""By name."""
