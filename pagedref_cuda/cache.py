"""Writing, reading and copying the cache on the device: to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref import addressing, validate
from pagedref.errors import PageFault
from pagedref.kv_format import KVFormat
from pagedref.storage import Storage, storage, unpacked
from pagedref_cuda import _runtime
from pagedref_cuda._batch import lies_on_device, watch
from pagedref_cuda._checks import check_slots_1, index
from pagedref_cuda._copy import copy_frames
from pagedref_cuda._device import frame_of_slot, offset_of, offset_of_slot, page_of
from pagedref_cuda._numbers import NUMBERS, Numbers, copy_number, kind_of, numbers, of_words
from pagedref_cuda._runtime import kernel
from pagedref_cuda._storage import STORED, Stored, four_axes, of_pieces, pieces, stored, stored_number
from pagedref_cuda.quantize import TARGET, Target, target, write_row
from pagedref_cuda.tiles import refused

__all__ = ["append_kv", "copy_frames", "gather_kv"]

Array = npt.NDArray[Any]


@kernel((NUMBERS, NUMBERS, TARGET, TARGET, "int64[:]", "int64", "int64", "int64", "int64", "int32[:]"))
def append_kv_1(
    k: Numbers,
    v: Numbers,
    keys: Target,
    values: Target,
    slot_mapping: Array,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    v_head_dim: int,
    flag: Array,
) -> None:
    """Write one token of one kv head into its slot, in the format of the cache.

    Launch: a thread owns one (token, kv head). Reads: its row of `k` and `v`, its entry of `slot_mapping`, scales that
    are given. Writes: its row of both caches, and of scales and zero points that are computed; nothing for slot -1
    (S22), and nothing at all if the slots were found wrong. Barriers: none. Rung: 1, the reference line by line.
    """
    item = cuda.grid(1)
    if item >= slot_mapping.shape[0] * num_kv_heads:
        return
    if refused(flag):
        return
    token = item // num_kv_heads
    head = item % num_kv_heads
    slot = slot_mapping[token]
    if slot < 0:
        return
    frame = frame_of_slot(slot, page_size)
    offset = offset_of_slot(slot, page_size)
    write_row(k, token, head, head_dim, keys, frame, offset)
    write_row(v, token, head, v_head_dim, values, frame, offset)


def _sides(
    function: str, caches: tuple[Any, Any], dims: dict[str, int], keywords: dict[str, Any]
) -> tuple[Storage, Storage]:
    """Check the stored form of keys and values."""
    return storage(function, "k", caches[0], dims, keywords), storage(function, "v", caches[1], dims, keywords)


def append_kv(
    k: Array,
    v: Array,
    k_cache: Array,
    v_cache: Array,
    slot_mapping: Array,
    *,
    kv_format: KVFormat | str | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
) -> None:
    """Write new keys and values into their slots.

    Parameters
    ----------
    k : array (num_tokens, num_kv_heads, head_dim) of float32, float16 or bfloat16
        New keys.
    v : array (num_tokens, num_kv_heads, v_head_dim) of the same types
        New values.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim) of a storage type but float64
        The pool; any strides (S23); half as many bytes on the last axis for int4.
    slot_mapping : array (num_tokens,) of int32 or int64
        ``frame * page_size + offset`` of each token (S19); -1 writes nothing (S22).
    kv_format : KVFormat or str, optional
        How numbers are stored; by default what the type of the caches says (S17).
    k_scale, v_scale : float or array of float32, optional
        Scales: inputs where they cover a cache, a head or a frame; written where they cover a slot or a group (S17).
    k_zero, v_zero : arrays of float32, optional
        Zero points, written with the scales.

    Raises
    ------
    ContractError
        A slot is out of range or named twice, or an array breaks the contract; nothing is written.
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: the named slots of `k_cache` and `v_cache`, and of the scales that are computed. Agreement: EXACT: taken as
    float32, divided by the scale, saturated, rounded once (S16). Twin: ``pagedref.attention.append_kv``.
    """
    _runtime.ensure_available()
    keywords = {"kv_format": kv_format, "k_scale": k_scale, "v_scale": v_scale, "k_zero": k_zero, "v_zero": v_zero}
    caches = {"k_cache": unpacked(k_cache, kv_format), "v_cache": unpacked(v_cache, kv_format)}
    dims = validate.arrays("append_kv", "cuda", {"k": k, "v": v, **caches, "slot_mapping": slot_mapping})
    sides = _sides("append_kv", (k_cache, v_cache), dims, keywords)
    deferred = lies_on_device(slot_mapping)
    num_slots = dims["num_frames"] * dims["page_size"]
    slots = np.empty(0, np.int64) if deferred else validate.slots("append_kv", slot_mapping, num_slots)
    frames = addressing.frame_of_slot(slots[slots >= 0], dims["page_size"])
    for name, side, cache in zip("kv", sides, (k_cache, v_cache), strict=True):
        validate.writable("append_kv", f"{name}_cache", cache)
        side.check_frames("append_kv", f"{name}_scale", frames)
        for what, array in (("scale", side.scale), ("zero", side.zero)):
            if side.form.computed and array is not None:
                validate.writable("append_kv", f"{name}_{what}", array)
    lent_slots, flag = _slots_on_device(slot_mapping, num_slots, dims, sides) if deferred else (
        _runtime.readable(slots), _runtime.readable(np.empty(0, np.int32))
    )
    sizes = dims["head_dim"], dims["v_head_dim"]
    parts = [*pieces(k_cache, sides[0]), *pieces(v_cache, sides[1])]
    with _runtime.written(*parts) as lent:
        caches_ = [of_pieces(tuple(lent[at : at + 3]), side, size) for at, side, size in zip((0, 3), sides, sizes)]
        append_kv_1.launch(
            dims["num_tokens"] * dims["num_kv_heads"],
            numbers(k),
            numbers(v),
            target(caches_[0], sides[0]),
            target(caches_[1], sides[1]),
            lent_slots,
            dims["page_size"],
            dims["num_kv_heads"],
            *sizes,
            flag,
        )
    if deferred:
        watch("append_kv", flag, lambda: _check_slots(slot_mapping, num_slots, dims, sides))


def _slots_on_device(
    slot_mapping: Any, num_slots: int, dims: dict[str, int], sides: tuple[Storage, Storage]
) -> tuple[Any, Any]:
    """Check slots where they lie; return them in 64 bits, and a flag that is raised if they are wrong."""
    wide, flag = _runtime.empty((dims["num_tokens"],), np.int64), _runtime.readable(np.zeros(1, np.int32))
    scales = [four_axes(side.scale if side.form.granularity == "frame_head" else None) for side in sides]
    check_slots_1.launch(
        dims["num_tokens"],
        index(slot_mapping),
        wide,
        num_slots,
        dims["page_size"],
        *map(_runtime.readable, scales),
        flag,
    )
    return wide, flag


def _check_slots(slot_mapping: Any, num_slots: int, dims: dict[str, int], sides: tuple[Storage, Storage]) -> None:
    """Make the check of slots on the host, on a copy."""
    slots = validate.slots("append_kv", np.asarray(slot_mapping), num_slots)
    for name, side in zip("kv", sides, strict=True):
        frames = addressing.frame_of_slot(slots[slots >= 0], dims["page_size"])
        side.check_frames("append_kv", f"{name}_scale", frames)


@kernel((STORED, STORED, *("int64[:]",) * 4, *("int64",) * 5, NUMBERS, NUMBERS))
def gather_kv_1(
    keys: Stored,
    values: Stored,
    kv_indptr: Array,
    kv_indices: Array,
    first: Array,
    owner: Array,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    v_head_dim: int,
    raw: int,
    k: Numbers,
    v: Numbers,
) -> None:
    """Read one token of one kv head from its slot.

    Launch: a thread owns one (token, kv head); `owner` is the sequence of each token, `first` the first token of each
    sequence. Reads: its row of both caches, with their scales; where `raw` has bit 1 (bit 2), the bits of keys (values)
    are copied as they are. Writes: its row of `k` and `v`. Barriers: none. Rung: 1, the reference line by line.
    """
    item = cuda.grid(1)
    if item >= owner.shape[0] * num_kv_heads:
        return
    token = item // num_kv_heads
    head = item % num_kv_heads
    sequence = owner[token]
    position = token - first[sequence]
    frame = kv_indices[kv_indptr[sequence] + page_of(position, page_size)]
    offset = offset_of(position, page_size)
    for d in range(head_dim):
        if raw & 1:
            copy_number(keys.numbers, frame, offset, head, d, k, token, head)
        else:
            k.words[0, token, head, d] = stored_number(keys, frame, offset, head, d).view(np.uint32)
    for d in range(v_head_dim):
        if raw & 2:
            copy_number(values.numbers, frame, offset, head, d, v, token, head)
        else:
            v.words[0, token, head, d] = stored_number(values, frame, offset, head, d).view(np.uint32)


def gather_kv(
    k_cache: Array,
    v_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    *,
    kv_format: KVFormat | str | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    k_zero: Array | None = None,
    v_zero: Array | None = None,
) -> tuple[Array, Array]:
    """Read all live keys and values of a batch, sequence after sequence.

    Parameters
    ----------
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim) of a storage type but float64
        The pool.
    kv_indptr, kv_indices, kv_last_page_len : arrays of int32 or int64
        The pages of the batch (S20).
    kv_format, k_scale, v_scale, k_zero, v_zero
        The stored form, as in ``append_kv``.

    Returns
    -------
    k : array (sum of kv_len, num_kv_heads, head_dim)
        Keys in order of position; the type of the cache, or float32 where scales or a format of integers are given:
        then ``stored * scale`` (S16).
    v : array (sum of kv_len, num_kv_heads, v_head_dim)
        Values.

    Raises
    ------
    ContractError
        An argument breaks the contract.
    PageFault
        A page is unmapped: here every live token is asked for.
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: nothing. Agreement: EXACT. Twin: ``pagedref.attention.gather_kv``.
    """
    _runtime.ensure_available()
    keywords = {"kv_format": kv_format, "k_scale": k_scale, "v_scale": v_scale, "k_zero": k_zero, "v_zero": v_zero}
    given = {
        "k_cache": unpacked(k_cache, kv_format),
        "v_cache": unpacked(v_cache, kv_format),
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
    }
    dims = validate.arrays("gather_kv", "cuda", given)
    sides = _sides("gather_kv", (k_cache, v_cache), dims, keywords)
    indptr, frames, kv_lens = validate.csr(
        "gather_kv", kv_indptr, kv_indices, kv_last_page_len, dims["num_frames"], dims["page_size"]
    )
    if frames.size and frames.min() < 0:
        at = int(np.flatnonzero(frames < 0)[0])
        raise PageFault(f"gather_kv: kv_indices has an unmapped page, got -1 at entry {at}, need a frame (S21)")
    total = int(kv_lens.sum())
    first = np.cumsum(kv_lens) - kv_lens
    owner = np.repeat(np.arange(len(kv_lens), dtype=np.int64), kv_lens)
    sizes = dims["head_dim"], dims["v_head_dim"]
    dtypes = [side.form.dtype if side.plain else np.dtype(np.float32) for side in sides]
    bits = [np.dtype(f"u{dtype.itemsize}") for dtype in dtypes]
    rows = [
        _runtime.empty((1, total, dims["num_kv_heads"], size), dtype) for size, dtype in zip(sizes, bits, strict=True)
    ]
    gather_kv_1.launch(
        total * dims["num_kv_heads"],
        stored(k_cache, sides[0], sizes[0]),
        stored(v_cache, sides[1], sizes[1]),
        *(_runtime.readable(array) for array in (indptr, frames, first, owner)),
        dims["page_size"],
        dims["num_kv_heads"],
        *sizes,
        sides[0].plain + 2 * sides[1].plain,
        *(of_words(row, kind_of(dtype)) for row, dtype in zip(rows, dtypes, strict=True)),
    )
    k, v = (_runtime.to_host(row)[0].view(dtype) for row, dtype in zip(rows, dtypes, strict=True))
    return k, v
