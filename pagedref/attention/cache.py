"""Writing, reading and copying the cache: pure movement of data, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import addressing, validate
from pagedref.attention.quantize import dequantize, quantize
from pagedref.errors import PageFault
from pagedref.kv_format import KVFormat
from pagedref.storage import storage, unpacked

__all__ = ["append_kv", "copy_frames", "gather_kv"]

Array = npt.NDArray[Any]


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
    k : array (num_tokens, num_kv_heads, head_dim) of float32, float64, float16 or bfloat16
        New keys.
    v : array (num_tokens, num_kv_heads, v_head_dim) of the same types
        New values.
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim) of a storage type
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

    Notes
    -----
    Mutates: the named slots of `k_cache` and `v_cache`, and of the scales that are computed. Agreement: EXACT: taken as
    float32 (float64 where the cache is), divided by the scale, saturated, rounded once (S16). New rows do not overlap
    the caches. Twin: ``pagedref_cuda.append_kv``.

    Examples
    --------
    >>> k_cache = np.zeros((2, 2, 1, 1)); v_cache = np.zeros((2, 2, 1, 1))
    >>> new = np.array([5.0, 6.0]).reshape(2, 1, 1)
    >>> append_kv(new, new, k_cache, v_cache, np.array([3, -1]))
    >>> k_cache.ravel().tolist()
    [0.0, 0.0, 0.0, 5.0]
    """
    keywords = {"kv_format": kv_format, "k_scale": k_scale, "v_scale": v_scale, "k_zero": k_zero, "v_zero": v_zero}
    validate.built("append_kv", "numpy", keywords)
    caches = {"k_cache": unpacked(k_cache, kv_format), "v_cache": unpacked(v_cache, kv_format)}
    dims = validate.arrays("append_kv", "numpy", {"k": k, "v": v, **caches, "slot_mapping": slot_mapping})
    sides = [storage("append_kv", "k", k_cache, dims, keywords), storage("append_kv", "v", v_cache, dims, keywords)]
    slots = validate.slots("append_kv", slot_mapping, dims["num_frames"] * dims["page_size"])
    if slots.size and slots.min() < 0:
        live = slots >= 0
        slots, k, v = slots[live], k[live], v[live]
    frames = addressing.frame_of_slot(slots, dims["page_size"])
    offsets = addressing.offset_of_slot(slots, dims["page_size"])
    for name, side, cache in zip("kv", sides, (k_cache, v_cache), strict=True):  # everything is checked before a write
        validate.writable("append_kv", f"{name}_cache", cache)
        side.check_frames("append_kv", f"{name}_scale", frames)
        for what, array in (("scale", side.scale), ("zero", side.zero)):
            if side.form.computed and array is not None:
                validate.writable("append_kv", f"{name}_{what}", array)
    for side, rows, cache in zip(sides, (k, v), (k_cache, v_cache), strict=True):
        scale = side.scale if side.scale is None or side.scale.ndim < 2 else side.scale[frames]
        stored, computed, zero = quantize(rows, side.form, scale)
        cache[frames, offsets] = stored
        if side.form.computed and side.scale is not None:
            side.scale[frames, offsets] = computed
            if side.zero is not None:
                side.zero[frames, offsets] = zero


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
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, dim) of a storage type
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

    Notes
    -----
    Mutates: nothing. Agreement: EXACT. Twin: ``pagedref_cuda.gather_kv``.

    Examples
    --------
    >>> cache = np.arange(6.0).reshape(3, 2, 1, 1)
    >>> gather_kv(cache, cache, np.array([0, 2]), np.array([2, 0]), np.array([1]))[0].ravel().tolist()
    [4.0, 5.0, 0.0]
    """
    keywords = {"kv_format": kv_format, "k_scale": k_scale, "v_scale": v_scale, "k_zero": k_zero, "v_zero": v_zero}
    validate.built("gather_kv", "numpy", keywords)
    given = {
        "k_cache": unpacked(k_cache, kv_format),
        "v_cache": unpacked(v_cache, kv_format),
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
    }
    dims = validate.arrays("gather_kv", "numpy", given)
    sides = [storage("gather_kv", "k", k_cache, dims, keywords), storage("gather_kv", "v", v_cache, dims, keywords)]
    indptr, frames, kv_lens = validate.csr(
        "gather_kv", kv_indptr, kv_indices, kv_last_page_len, dims["num_frames"], dims["page_size"]
    )
    if frames.size and frames.min() < 0:
        at = int(np.flatnonzero(frames < 0)[0])
        raise PageFault(f"gather_kv: kv_indices has an unmapped page, got -1 at entry {at}, need a frame (S21)")
    total = int(kv_lens.sum())
    first = np.cumsum(kv_lens) - kv_lens
    owner = np.repeat(np.arange(len(kv_lens)), kv_lens)
    positions = np.arange(total) - first[owner]
    pages = indptr[owner] + addressing.page_of(positions, dims["page_size"])
    offsets = addressing.offset_of(positions, dims["page_size"])
    rows = []
    for side, cache in zip(sides, (k_cache, v_cache), strict=True):
        stored = cache[frames[pages], offsets]  # (tokens, num_kv_heads, dim)
        if not side.plain:
            scale, zero = (
                array if array is None or array.ndim < 2 else array[frames[pages]] if array.ndim == 2 else
                array[frames[pages], offsets]
                for array in (side.scale, side.zero)
            )
            stored = dequantize(stored, side.form, scale, zero)
        rows.append(stored)
    return rows[0], rows[1]


def copy_frames(arrays: Sequence[Array], src: Array, dst: Array) -> None:
    """Copy whole frames within each array of a cache, scales included (S18, S27).

    Parameters
    ----------
    arrays : sequence of arrays (num_frames, ...)
        Everything that belongs to a frame: keys, values, scales, of every layer.
    src, dst : arrays (num_copies,) of int32 or int64
        Frames to read and to write; no frame is written twice or both read and written.

    Raises
    ------
    ContractError
        A frame is out of range, written twice, or both read and written; nothing is copied.

    Notes
    -----
    Mutates: the frames `dst` of each array. Agreement: EXACT. Twin: ``pagedref_cuda.copy_frames``.

    Examples
    --------
    >>> pool = np.arange(3.0).reshape(3, 1)
    >>> copy_frames([pool], np.array([0]), np.array([2]))
    >>> pool.ravel().tolist()
    [0.0, 1.0, 0.0]
    """
    validate.arrays("copy_frames", "numpy", {"src": src, "dst": dst})
    wide_src, wide_dst = validate.copies("copy_frames", arrays, src, dst)
    for pool in arrays:
        pool[wide_dst] = pool[wide_src]
