"""Writing, reading and copying the cache on the device: pure movement of data, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref import validate
from pagedref.errors import PageFault
from pagedref_cuda import _runtime
from pagedref_cuda._device import frame_of_slot, offset_of, offset_of_slot, page_of
from pagedref_cuda._runtime import kernel

__all__ = ["append_kv", "copy_frames", "gather_kv"]

Array = npt.NDArray[Any]


@kernel(("float32[:, :, :]", "float32[:, :, :]", "float32[:, :, :, :]", "float32[:, :, :, :]", "int64[:]"))
def append_kv_1(k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array) -> None:
    """Write one token of one kv head into its slot.

    Launch: a thread owns one (token, kv head). Reads: its row of `k` and `v`, its entry of `slot_mapping`. Writes: its
    row of both caches; nothing for slot -1 (S22). Barriers: none. Rung: 1, the reference line by line.
    """
    item = cuda.grid(1)
    num_kv_heads = k.shape[1]
    if item >= k.shape[0] * num_kv_heads:
        return
    token = item // num_kv_heads
    head = item % num_kv_heads
    slot = slot_mapping[token]
    if slot < 0:
        return
    frame = frame_of_slot(slot, k_cache.shape[1])
    offset = offset_of_slot(slot, k_cache.shape[1])
    for d in range(k.shape[2]):
        k_cache[frame, offset, head, d] = k[token, head, d]
    for d in range(v.shape[2]):
        v_cache[frame, offset, head, d] = v[token, head, d]


def append_kv(
    k: Array,
    v: Array,
    k_cache: Array,
    v_cache: Array,
    slot_mapping: Array,
    *,
    kv_format: object = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
) -> None:
    """Write new keys and values into their slots.

    Parameters
    ----------
    k : array (num_tokens, num_kv_heads, head_dim) of float32
        New keys.
    v : array (num_tokens, num_kv_heads, v_head_dim) of float32
        New values.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim) of float32
        The pool; any strides (S23).
    slot_mapping : array (num_tokens,) of int32 or int64
        ``frame * page_size + offset`` of each token (S19); -1 writes nothing (S22).
    kv_format, k_scale, v_scale, k_zero, v_zero : optional
        Scales of a quantised cache; not built yet, must be None.

    Raises
    ------
    ContractError
        A slot is out of range or named twice, or an array breaks the contract; nothing is written.
    BackendUnavailable
        There is neither a GPU nor the simulator.

    Notes
    -----
    Mutates: the named slots of `k_cache` and `v_cache`. Agreement: EXACT. Twin: ``pagedref.attention.append_kv``.
    """
    _runtime.ensure_available()
    given = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slot_mapping": slot_mapping}
    keywords = {"kv_format": kv_format, "k_scale": k_scale, "v_scale": v_scale, "k_zero": k_zero, "v_zero": v_zero}
    validate.built("append_kv", "cuda", keywords)
    dims = validate.arrays("append_kv", "cuda", given)
    slots = validate.slots("append_kv", slot_mapping, dims["num_frames"] * dims["page_size"])
    items = dims["num_tokens"] * dims["num_kv_heads"]
    if items == 0:
        return
    new = _runtime.readable(k), _runtime.readable(v)
    with _runtime.written(k_cache, v_cache) as pools:
        append_kv_1.launch(items, *new, *pools, _runtime.readable(slots))


@kernel(
    (
        *("float32[:, :, :, :]", "float32[:, :, :, :]", "int64[:]", "int64[:]", "int64[:]", "int64[:]"),
        *("float32[:, :, :]", "float32[:, :, :]"),
    )
)
def gather_kv_1(
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    first: Array,
    owner: Array,
    k: Array,
    v: Array,
) -> None:
    """Read one token of one kv head from its slot.

    Launch: a thread owns one (token, kv head); `owner` is the sequence of each token, `first` the first token of each
    sequence. Reads: its row of both caches. Writes: its row of `k` and `v`. Barriers: none. Rung: 1, the reference
    line by line.
    """
    item = cuda.grid(1)
    num_kv_heads = k.shape[1]
    if item >= k.shape[0] * num_kv_heads:
        return
    token = item // num_kv_heads
    head = item % num_kv_heads
    sequence = owner[token]
    position = token - first[sequence]
    frame = kv_indices[kv_indptr[sequence] + page_of(position, k_cache.shape[1])]
    offset = offset_of(position, k_cache.shape[1])
    for d in range(k.shape[2]):
        k[token, head, d] = k_cache[frame, offset, head, d]
    for d in range(v.shape[2]):
        v[token, head, d] = v_cache[frame, offset, head, d]


def gather_kv(
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    *,
    kv_format: object = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
) -> tuple[Array, Array]:
    """Read all live keys and values of a batch, sequence after sequence.

    Parameters
    ----------
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim) of float32
        The pool.
    kv_indptr, kv_indices, kv_last_page_len : arrays of int32 or int64
        The pages of the batch (S20).
    kv_format, k_scale, v_scale, k_zero, v_zero : optional
        A quantised cache; not built yet, must be None.

    Returns
    -------
    k : array (sum of kv_len, num_kv_heads, head_dim) of float32
        Keys in order of position.
    v : array (sum of kv_len, num_kv_heads, v_head_dim) of float32
        Values.

    Raises
    ------
    ContractError
        An argument breaks the contract.
    PageFault
        A page is unmapped: here every live token is asked for.
    BackendUnavailable
        There is neither a GPU nor the simulator.

    Notes
    -----
    Mutates: nothing. Agreement: EXACT. Twin: ``pagedref.attention.gather_kv``.
    """
    _runtime.ensure_available()
    keywords = {"kv_format": kv_format, "k_scale": k_scale, "v_scale": v_scale, "k_zero": k_zero, "v_zero": v_zero}
    validate.built("gather_kv", "cuda", keywords)
    given = {
        "k_cache": k_cache,
        "v_cache": v_cache,
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
    }
    dims = validate.arrays("gather_kv", "cuda", given)
    indptr, frames, kv_lens = validate.csr(
        "gather_kv", kv_indptr, kv_indices, kv_last_page_len, dims["num_frames"], dims["page_size"]
    )
    if frames.size and frames.min() < 0:
        at = int(np.flatnonzero(frames < 0)[0])
        raise PageFault(f"gather_kv: kv_indices has an unmapped page, got -1 at entry {at}, need a frame (S21)")
    total = int(kv_lens.sum())
    first = np.cumsum(kv_lens) - kv_lens
    owner = np.repeat(np.arange(len(kv_lens), dtype=np.int64), kv_lens)
    k = _runtime.empty((total, dims["num_kv_heads"], dims["head_dim"]), np.float32)
    v = _runtime.empty((total, dims["num_kv_heads"], dims["v_head_dim"]), np.float32)
    items = total * dims["num_kv_heads"]
    if items:
        pages = (_runtime.readable(array) for array in (k_cache, v_cache, indptr, frames, first, owner))
        gather_kv_1.launch(items, *pages, k, v)
    return _runtime.to_host(k), _runtime.to_host(v)


@kernel(*((f"uint{bits}[:, :, :, :]", "int64[:]", "int64[:]") for bits in (8, 16, 32, 64)))
def copy_frames_1(pool: Array, src: Array, dst: Array) -> None:
    """Copy one slot of one frame.

    Launch: a thread owns one (copy, slot). Reads: frame ``src`` of `pool`. Writes: frame ``dst``; no frame is both
    read and written, so no thread waits for another. Barriers: none. Rung: 1, the reference line by line.
    """
    item = cuda.grid(1)
    page_size = pool.shape[1]
    if item >= src.shape[0] * page_size:
        return
    source = src[item // page_size]
    target = dst[item // page_size]
    offset = item % page_size
    for i in range(pool.shape[2]):
        for j in range(pool.shape[3]):
            pool[target, offset, i, j] = pool[source, offset, i, j]


def _words(pool: Any) -> list[Any]:
    """View a pool of any type and shape as pools of unsigned integers with four axes; none is a copy."""
    size = pool.dtype.itemsize
    words = pool.view(f"u{size}") if size in (1, 2, 4, 8) else pool[..., None].view(np.uint8)
    while words.ndim < 4:
        words = words[..., None]
    pools = [words]
    while pools[0].ndim > 4:
        pools = [part[:, i] for part in pools for i in range(part.shape[1])]
    return pools


def copy_frames(arrays: Sequence[Array], src: Array, dst: Array) -> None:
    """Copy whole frames within each array of a cache, scales included (S18, S27).

    Parameters
    ----------
    arrays : sequence of arrays (num_frames, ...)
        Everything that belongs to a frame: keys, values, scales, of every layer; any type, any strides.
    src, dst : arrays (num_copies,) of int32 or int64
        Frames to read and to write; no frame is written twice or both read and written.

    Raises
    ------
    ContractError
        A frame is out of range, written twice, or both read and written; nothing is copied.
    BackendUnavailable
        There is neither a GPU nor the simulator.

    Notes
    -----
    Mutates: the frames `dst` of each array. Agreement: EXACT. Twin: ``pagedref.attention.copy_frames``.
    """
    _runtime.ensure_available()
    validate.arrays("copy_frames", "cuda", {"src": src, "dst": dst})
    wide_src, wide_dst = validate.copies("copy_frames", arrays, src, dst)
    if wide_src.size == 0:
        return
    frames = _runtime.readable(wide_src), _runtime.readable(wide_dst)
    for pool in arrays:
        for words in _words(pool):
            if words.size:
                with _runtime.written(words) as lent:
                    copy_frames_1.launch(wide_src.size * words.shape[1], *lent, *frames)
