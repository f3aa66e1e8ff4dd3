"""A whole call of attention, checked: what every backend starts from.

All backends take their arguments from :func:`attention_call`, so they refuse the same input with the same text, and
know the same pages to be visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.addressing import num_pages, page_of
from pagedref.errors import PageFault
from pagedref.kv_format import KVFormat
from pagedref.numerics import accumulator
from pagedref.options import AttentionOptions, attention_options
from pagedref.storage import Storage, storage, unpacked

__all__ = ["AttentionCall", "attention_call", "read_masks", "refuse_faults"]

IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


_PLAIN = Storage(KVFormat())


@dataclass(frozen=True)
class AttentionCall:
    """A checked call of ``paged_decode`` or ``paged_prefill``.

    Attributes
    ----------
    options : AttentionOptions
        The keywords.
    dims : dict of str to int
        Sizes of the named dimensions of the contract.
    group_size : int
        Query heads per kv head.
    qo_indptr, kv_indptr, kv_indices, kv_lens : arrays of int64
        The metadata, widened (S19); ``kv_lens`` counts the keys of each sequence.
    masks : list of arrays (q_len, kv_len) of bool
        One mask per sequence, or an empty list.
    keys, values : Storage
        Stored form of the two caches.
    """

    options: AttentionOptions
    dims: dict[str, int]
    group_size: int
    qo_indptr: IndexArray
    kv_indptr: IndexArray
    kv_indices: IndexArray
    kv_lens: IndexArray
    masks: list[BoolArray]
    keys: Storage = _PLAIN
    values: Storage = _PLAIN

    def positions(self, sequence: int) -> IndexArray:
        """Return the absolute positions of the query rows of a sequence (S3)."""
        q_len = int(self.qo_indptr[sequence + 1] - self.qo_indptr[sequence])
        return np.arange(q_len, dtype=np.int64) + (int(self.kv_lens[sequence]) - q_len)

    def visible_pages(self, sequence: int, first_row: int = 0, stop_row: int | None = None) -> IndexArray:
        """Return the pages in which some query row sees a key; only these are read (S21).

        Parameters
        ----------
        sequence : int
            Index in the batch.
        first_row, stop_row : int, optional
            Query rows of the sequence; all by default.

        Returns
        -------
        array (pages,) of int64
            Page numbers, ascending.
        """
        rows = self.positions(sequence)[first_row:stop_row]
        start, stop = self.options.intervals(rows, int(self.kv_lens[sequence]))
        live = start < stop
        if not live.any():
            return np.empty(0, np.int64)
        page_size = self.dims["page_size"]
        low, high = int(start[live].min()), int(stop[live].max())
        if not self.masks:
            return np.arange(page_of(low, page_size), num_pages(high, page_size))
        keys = np.arange(low, high)
        seen = self.masks[sequence][first_row:stop_row, low:high] & (keys >= start[:, None]) & (keys < stop[:, None])
        return np.asarray(np.unique(page_of(keys[seen.any(axis=0)], page_size)))


def read_masks(function: str, mask: object, qo_indptr: IndexArray, kv_lens: IndexArray) -> list[BoolArray]:
    """Read a ragged boolean mask, flat or as a list of 2-D arrays (S14).

    Parameters
    ----------
    function : str
        Operation.
    mask : array or list of arrays
        As given.
    qo_indptr : array (num_seqs + 1,) of int64
        Query rows of each sequence.
    kv_lens : array (num_seqs,) of int64
        Keys of each sequence.

    Returns
    -------
    list of arrays (q_len, kv_len) of bool
        One for each sequence.

    Raises
    ------
    ContractError
        Wrong type or shape.
    """
    q_lens = np.diff(qo_indptr)
    shapes = [(int(q), int(k)) for q, k in zip(q_lens, kv_lens, strict=True)]
    if isinstance(mask, list | tuple):
        if len(mask) != len(shapes):
            validate.fail(function, "mask", "has the wrong number of arrays", len(mask), f"{len(shapes)} (S14)")
        for at, (part, shape) in enumerate(zip(mask, shapes, strict=True)):
            if getattr(part, "dtype", None) != np.bool_:
                validate.fail(function, f"mask[{at}]", "has the wrong type", getattr(part, "dtype", part), "bool (S14)")
            if part.shape != shape:
                validate.fail(function, f"mask[{at}]", "has the wrong shape", part.shape, f"{shape} (S14)")
        return list(mask)
    if getattr(mask, "dtype", None) != np.bool_:
        validate.fail(function, "mask", "has the wrong type", getattr(mask, "dtype", type(mask).__name__), "bool (S14)")
    flat = np.asarray(mask)
    ends = np.cumsum([rows * keys for rows, keys in shapes], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if flat.shape != (total,):
        validate.fail(function, "mask", "has the wrong shape", flat.shape, f"({total},) = sum of q_len * kv_len (S14)")
    return [flat[end - r * k : end].reshape(r, k) for end, (r, k) in zip(ends, shapes, strict=True)]


def attention_call(function: str, backend: str, given: Mapping[str, Any], keywords: Mapping[str, Any]) -> AttentionCall:
    """Check a whole call of ``paged_decode`` or ``paged_prefill``.

    Parameters
    ----------
    function, backend : str
        Operation and backend.
    given : mapping
        The array arguments by name, in the contract's names.
    keywords : mapping
        The other keyword arguments by name.

    Returns
    -------
    AttentionCall
        Everything a backend needs beside the arrays of numbers.

    Raises
    ------
    ContractError
        An argument breaks the contract.
    PageFault
        A page with a visible key is unmapped (S21).
    """
    validate.built(function, backend, keywords)
    form = keywords.get("kv_format")
    caches = {} if form is None else {name: unpacked(given[name], form) for name in ("k_cache", "v_cache")}
    seen = {**given, **caches}
    dims = validate.arrays(function, backend, seen)
    sides = [storage(function, side, given[f"{side}_cache"], dims, keywords) for side in ("k", "v")]
    group_size = validate.heads(function, dims["num_qo_heads"], dims["num_kv_heads"])
    indptr, frames, kv_lens = validate.csr(
        function,
        given["kv_indptr"],
        given["kv_indices"],
        given["kv_last_page_len"],
        dims["num_frames"],
        dims["page_size"],
    )
    masks: list[BoolArray] = []
    if function.endswith("_decode"):
        causal = True
        qo_indptr = np.arange(dims["num_seqs"] + 1, dtype=np.int64)
    else:
        qo_indptr = validate.qo_lens(function, given["qo_indptr"], dims["num_tokens"])
        mask, given_causal = keywords.get("mask"), keywords.get("causal")
        if given_causal is not None and not isinstance(given_causal, bool | np.bool_):
            validate.fail(function, "causal", "is not a boolean", repr(given_causal), "True, False or None (S14)")
        causal = mask is None if given_causal is None else bool(given_causal)
        if mask is not None:
            masks = read_masks(function, mask, qo_indptr, kv_lens)
    options = attention_options(
        function,
        dims["head_dim"],
        accumulator(given["q"].dtype),
        causal=causal,
        alibi_slopes=given.get("alibi_slopes"),
        sinks=given.get("sinks"),
        **{name: keywords.get(name) for name in ("sm_scale", "window", "attention_chunk", "softcap")},
    )
    for name, side in zip("kv", sides, strict=True):
        side.check_frames(function, f"{name}_scale", frames[frames >= 0])
    call = AttentionCall(options, dims, group_size, qo_indptr, indptr, frames, kv_lens, masks, *sides)
    if frames.size and frames.min() < 0:
        refuse_faults(function, call)
    return call


def refuse_faults(function: str, call: AttentionCall) -> None:
    """Raise PageFault if a page with a visible key is unmapped (S21).

    Parameters
    ----------
    function : str
        Operation.
    call : AttentionCall
        The call, checked but for this.

    Raises
    ------
    PageFault
        Names page and sequence.
    """
    owners = np.unique(np.searchsorted(call.kv_indptr, np.flatnonzero(call.kv_indices < 0), "right") - 1)
    for sequence in owners:
        pages = call.visible_pages(int(sequence))
        unmapped = pages[call.kv_indices[call.kv_indptr[sequence] + pages] < 0]
        if unmapped.size:
            raise PageFault(
                f"{function}: kv_indices has an unmapped page with a visible key, got -1 for page {unmapped[0]} of "
                f"sequence {sequence}, need a frame (S21)"
            )
