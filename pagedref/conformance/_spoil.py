"""What slips do to tables, stored numbers and results: each function takes a case or a result and spoils it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.conformance.cases import PagedCase

__all__ = ["scales"]  # the others serve slips alone

Array = npt.NDArray[Any]


def scales(change: Any) -> Any:
    """Make a step that changes the scales of a cache.

    Parameters
    ----------
    change : callable (scales, case) -> scales
        Takes and gives scales by name, of float64.

    Returns
    -------
    callable (case) -> case
    """

    def before(case: PagedCase) -> PagedCase:
        names = [name for name in ("k_scale", "v_scale") if case.stored.get(name) is not None]
        changed = change({name: np.asarray(case.stored[name], np.float64) for name in names}, case)
        changed = {name: np.asarray(x).astype(np.float32) for name, x in changed.items()}
        return replace(case, stored={**case.stored, **changed})

    return before


def other_window(by: int) -> Any:
    """Return a step that takes a window given as a count for a longer or shorter one."""

    def before(case: PagedCase) -> PagedCase:
        window = case.keywords.get("window")
        return case.using(**{**case.keywords, "window": max(window + by, 1)}) if isinstance(window, int) else case

    return before


def exchanged_scales(scales: dict[str, Array], case: PagedCase) -> dict[str, Array]:
    """Return the scales of K for V and the other way round, where they fit."""
    if len(scales) < 2 or scales["k_scale"].shape != scales["v_scale"].shape:
        return scales
    return {"k_scale": scales["v_scale"], "v_scale": scales["k_scale"]}


def scale_of_head_0(scales: dict[str, Array], case: PagedCase) -> dict[str, Array]:
    """Return the scale of kv head 0 for all heads."""
    axis = {1: 0, 2: 1, 3: 2, 4: 2}
    return {
        name: x if x.ndim == 0 else np.repeat(x.take([0], axis[x.ndim]), x.shape[axis[x.ndim]], axis[x.ndim])
        for name, x in scales.items()
    }


def without_zero_points(case: PagedCase) -> PagedCase:
    zeros = {name: np.zeros_like(x) for name, x in case.stored.items() if name.endswith("_zero") and x is not None}
    return replace(case, stored={**case.stored, **zeros})


def nibbles_swapped(case: PagedCase) -> PagedCase:
    form = case.stored.get("kv_format")
    if form is None or form.kind != "int4":
        return case
    k_cache, v_cache = ((x << 4) | (x >> 4) for x in (case.k_cache, case.v_cache))
    return replace(case, k_cache=k_cache, v_cache=v_cache)


def other_rows(order: Any) -> Any:
    """Return a step that gives each sequence the pages of another."""

    def before(case: PagedCase) -> PagedCase:
        count = len(case.kv_last_page_len)
        which = [order(at, count) for at in range(count)]
        pages = [case.kv_indices[case.kv_indptr[at] : case.kv_indptr[at + 1]] for at in which]
        indptr = np.concatenate([[0], np.cumsum([len(part) for part in pages])]).astype(np.int64)
        indices = np.concatenate([*pages, case.kv_indices[:0]])
        return replace(case, kv_indptr=indptr, kv_indices=indices, kv_last_page_len=case.kv_last_page_len[which])

    return before


def shifted_table(by: int) -> Any:
    """Return a step that reads the tables of all sequences but the first some entries off."""

    def before(case: PagedCase) -> PagedCase:
        count, total = len(case.kv_last_page_len), len(case.kv_indices)
        starts = np.minimum(np.maximum(case.kv_indptr[:-1] + by * (np.arange(count) > 0), 0), max(total, 1))
        pages = [
            case.kv_indices.take(np.arange(n) + start, mode="clip") if total else case.kv_indices
            for start, n in zip(starts, np.diff(case.kv_indptr), strict=True)
        ]
        return replace(case, kv_indices=np.concatenate([*pages, case.kv_indices[:0]]))

    return before


def pages_backwards(case: PagedCase) -> PagedCase:
    pages = [case.kv_indices[a:b][::-1] for a, b in zip(case.kv_indptr[:-1], case.kv_indptr[1:], strict=True)]
    return replace(case, kv_indices=np.concatenate([*pages, case.kv_indices[:0]]))


def frames_in_order(case: PagedCase) -> PagedCase:
    return replace(case, kv_indices=np.arange(len(case.kv_indices)) % len(case.k_cache))


def heads_before_slots(case: PagedCase) -> PagedCase:
    """Return the caches read as HND where they are NHD."""
    frames, page, heads, _ = case.k_cache.shape
    k_cache, v_cache = (
        x.reshape(frames, heads, page, -1).transpose(0, 2, 1, 3) if x.flags.c_contiguous else x
        for x in (case.k_cache, case.v_cache)
    )
    return replace(case, k_cache=k_cache, v_cache=v_cache)


def one_token_apart(case: PagedCase) -> PagedCase:
    """Return every sequence with the first sequence's pages: a stride of one token between sequences."""
    if len(case.kv_last_page_len) < 2:
        return case
    starts = np.arange(len(case.kv_last_page_len))
    pages = [
        case.kv_indices.take(np.arange(n) + start, mode="clip") if len(case.kv_indices) else case.kv_indices
        for start, n in zip(starts, np.diff(case.kv_indptr), strict=True)
    ]
    return replace(case, kv_indices=np.concatenate([*pages, case.kv_indices[:0]]))


def mean_of_values(values: Array, kv_len: int) -> Any:
    return (values.mean(axis=0), np.log(kv_len)) if kv_len else None


def mask_by_columns(mask: Array, others: Array) -> Array:
    return mask.ravel().reshape(mask.shape[::-1]).T & others


def on_lse(lse: Any) -> Any:
    """Return a last step that changes the lse."""
    return lambda out, old, case: (out, lse(out, old, case))


def heads_first(out: Array, lse: Array, case: PagedCase) -> Array:
    return lse.T


def not_normalised(out: Array, lse: Array, case: PagedCase) -> tuple[Array, Array]:
    return np.where(np.isneginf(lse)[..., None], out, out * np.exp(np.where(np.isneginf(lse), 0, lse))[..., None]), lse
