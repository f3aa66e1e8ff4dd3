"""Copying whole frames on the device; :mod:`pagedref_cuda.cache` offers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref import validate
from pagedref_cuda import _runtime
from pagedref_cuda._runtime import kernel

__all__ = ["copy_frames"]

Array = npt.NDArray[Any]


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
        Nothing here can run kernels.

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
