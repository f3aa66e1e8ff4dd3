"""Looking for poison: live keys and values that are no numbers, as they would be if a page were stale or never written.

A pool is filled with NaN when it is made (``PagedKVCache(..., poison=True)``), so a NaN in a live slot is a slot that
nobody has written, or one that was written with a NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref import validate
from pagedref.kv_format import KVFormat
from pagedref.storage import storage, unpacked
from pagedref_cuda import _runtime
from pagedref_cuda._device import offset_of, page_of
from pagedref_cuda._runtime import device_function, kernel
from pagedref_cuda._storage import STORED, Stored, stored, stored_number

__all__ = ["find_poison"]

Array = npt.NDArray[Any]


@device_function
def _poisoned(cache: Stored, frame: int, offset: int, head: int, dim: int) -> bool:
    for d in range(dim):
        x = stored_number(cache, frame, offset, head, d)
        if x - x != np.float32(0):
            return True
    return False


@kernel((STORED, STORED, *("int64[:]",) * 4, *("int64",) * 4, "uint8[:, :, :]"))
def find_poison_1(
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
    found: Array,
) -> None:
    """Look at one live token of one kv head.

    Launch: a thread owns one (token, kv head); `owner` is the sequence of each token, `first` the first token of each
    sequence. Reads: its row of both caches, with their scales, if its page is mapped. Writes: its two entries of
    `found`. Barriers: none. Rung: 1, the reference line by line.
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
    mapped = frame >= 0
    found[0, token, head] = np.uint8(mapped and _poisoned(keys, frame, offset, head, head_dim))
    found[1, token, head] = np.uint8(mapped and _poisoned(values, frame, offset, head, v_head_dim))


def find_poison(
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
) -> list[tuple[str, int, int, int]]:
    """Name the live slots that hold NaN or an infinity.

    Parameters
    ----------
    k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, kv_format, k_scale, v_scale, k_zero, v_zero
        As in ``gather_kv``; unmapped pages are left out.

    Returns
    -------
    list of (str, int, int, int)
        ``"k"`` or ``"v"``, sequence, position and kv head; in order, keys first. Empty if all is well. In integer
        formats only scales and zero points can tell.

    Raises
    ------
    ContractError
        An argument breaks the contract.
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: nothing. Agreement: EXACT.

    Examples
    --------
    >>> cache = np.array([1.0, np.nan, 3.0, np.nan], np.float32).reshape(2, 2, 1, 1)
    >>> find_poison(cache, np.zeros_like(cache), np.array([0, 2]), np.array([0, 1]), np.array([1]))
    [('k', 0, 1, 0)]
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
    sides = [storage("gather_kv", "k", k_cache, dims, keywords), storage("gather_kv", "v", v_cache, dims, keywords)]
    indptr, frames, kv_lens = validate.csr(
        "gather_kv", kv_indptr, kv_indices, kv_last_page_len, dims["num_frames"], dims["page_size"]
    )
    first = np.cumsum(kv_lens) - kv_lens
    owner = np.repeat(np.arange(len(kv_lens), dtype=np.int64), kv_lens)
    found = _runtime.empty((2, len(owner), dims["num_kv_heads"]), np.uint8)
    find_poison_1.launch(
        len(owner) * dims["num_kv_heads"],
        stored(k_cache, sides[0], dims["head_dim"]),
        stored(v_cache, sides[1], dims["v_head_dim"]),
        *(_runtime.readable(array) for array in (indptr, frames, first, owner)),
        dims["page_size"],
        dims["num_kv_heads"],
        dims["head_dim"],
        dims["v_head_dim"],
        found,
    )
    return [
        ("kv"[side], int(owner[token]), int(token - first[owner[token]]), int(head))
        for side, token, head in np.argwhere(_runtime.fetch(found))
    ]
