"""FlashInfer: CSR, one tensor or a pair for the cache, NHD or HND, window_left, lse to base 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pagedref.addressing import frame_of_slot, offset_of_slot
from pagedref.attention.state import AttentionState
from pagedref.conformance.adapters._border import (
    Adapter,
    Array,
    Border,
    append_arguments,
    joinable,
    paged_call,
    written,
)
from pagedref.errors import ContractError
from pagedref.layouts import (
    base_2_from_natural,
    combined_from_kv,
    hnd_from_nhd,
    kv_from_combined,
    natural_from_base_2,
    numpy_from_any,
    window_left_from_window,
)

__all__ = ["flashinfer"]


def flashinfer(
    decode: Callable[..., Any] | None = None,
    prefill: Callable[..., Any] | None = None,
    append: Callable[..., Any] | None = None,
    merge: Callable[..., Any] | None = None,
    *,
    layout: str = "NHD",
    combined: bool = False,
    base_2: bool = True,
    library: Any = np,
    device: Any = None,
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16"),
) -> Adapter:
    """Present functions with the conventions of FlashInfer as a backend.

    Parameters
    ----------
    decode : callable, optional
        Plans and runs: ``(q, paged_kv_cache, *, kv_indptr, kv_indices, kv_last_page_len, sm_scale, window_left,
        logits_soft_cap, return_lse)``. Returns out, or out and lse ``[tokens, heads]``.
    prefill : callable, optional
        Likewise, with ``qo_indptr``, ``causal`` and ``custom_mask`` (flat).
    append : callable, optional
        Like ``append_paged_kv_cache``: ``(k, v, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr,
        kv_last_page_len)``, writes into the cache.
    merge : callable, optional
        Like ``merge_states``: ``(v, s)``, ``[tokens, states, heads, dim]`` and ``[tokens, states, heads]``.
    layout : str
        ``NHD`` or ``HND``.
    combined : bool
        Whether the cache is one tensor ``[pages, 2, ...]``, a copy; a pair otherwise.
    base_2 : bool
        Whether lse is to base 2; some of its kernels return natural ones.
    library, device, dtypes
        As in `flash_attention`.

    Returns
    -------
    Adapter
        With the operations that there are functions for.

    Raises
    ------
    ContractError
        The layout is neither of the two.
    """
    if layout not in ("NHD", "HND"):
        raise ContractError(f"flashinfer: layout is unknown, got {layout!r}, need NHD or HND")
    border = Border(library, device)

    def cache_of(k_cache: Array, v_cache: Array) -> Any:
        if combined:
            joinable(k_cache, v_cache)
        sides = (k_cache, v_cache) if layout == "NHD" else (hnd_from_nhd(k_cache), hnd_from_nhd(v_cache))
        return combined_from_kv(*sides) if combined else sides

    def attend(function: Any, operation: str, arrays: tuple[Any, ...], keywords: dict[str, Any]) -> AttentionState:
        paged = paged_call(operation, arrays, keywords)
        names = ("causal", "sm_scale", "window", "softcap", "alibi_slopes", "sinks", "mask")
        wanted, causal = paged.pick(*names), paged.call.options.causal
        if (nothing := paged.nothing()) is not None:
            return nothing
        indptr, indices, last = paged.pages
        facts: dict[tuple[str, ...], Any] = {
            ("kv_indptr", "paged_kv_indptr", "indptr"): indptr,
            ("kv_indices", "paged_kv_indices", "indices"): indices,
            ("kv_last_page_len", "paged_kv_last_page_len", "last_page_len"): last,
            ("return_lse",): True,
        }
        asked: dict[tuple[str, ...], Any] = {
            ("sm_scale",): paged.call.options.sm_scale,
            ("window_left",): window_left_from_window(wanted["window"], causal=causal),
            ("logits_soft_cap",): wanted["softcap"],
            ("alibi_slopes",): wanted["alibi_slopes"],
            ("sinks", "sink"): wanted["sinks"],
        }
        if wanted["window"] is None:
            del asked["window_left",]
        if operation == "paged_prefill":
            facts["qo_indptr",] = paged.qo_indptr
            asked["causal",] = causal
            if paged.call.masks:
                asked["custom_mask",] = np.concatenate([mask.reshape(-1) for mask in paged.call.masks])
        positional = paged.given["q"], cache_of(paged.given["k_cache"], paged.given["v_cache"])
        result = border.call(function, operation, positional, facts, asked)
        out, lse = result if isinstance(result, tuple | list) else (result, None)
        return paged.state(out, lse, natural_from_base_2 if base_2 else lambda found: found)

    def paged_decode(*arrays: Any, **keywords: Any) -> AttentionState:
        """One query token for each sequence."""
        return attend(decode, "paged_decode", arrays, keywords)

    def paged_prefill(*arrays: Any, **keywords: Any) -> AttentionState:
        """Several query tokens for each sequence."""
        return attend(prefill, "paged_prefill", arrays, keywords)

    def append_kv(*arrays: Any, **keywords: Any) -> None:
        """Write rows into their slots: each frame that is written is a sequence of one page."""
        given = append_arguments(arrays, keywords)
        live = given["slot_mapping"] >= 0
        targets = given["k_cache"], given["v_cache"]
        page_size = targets[0].shape[1]
        caches = border.give(cache_of(*targets))
        slots = given["slot_mapping"][live].astype(np.int64)
        frames, owners = np.unique(frame_of_slot(slots, page_size), return_inverse=True)
        table = owners.astype(np.int32), offset_of_slot(slots, page_size).astype(np.int32)
        starts, ends = np.arange(len(frames) + 1, dtype=np.int32), np.full(len(frames), page_size, np.int32)
        pages = frames.astype(np.int32), starts, ends
        rows = border.give(given["k"][live]), border.give(given["v"][live])
        append(*rows, *border.give(table), caches, *border.give(pages))  # type: ignore[misc]
        found = kv_from_combined(numpy_from_any(caches)) if combined else [numpy_from_any(cache) for cache in caches]
        for target, side in zip(targets, found, strict=True):
            written(target, hnd_from_nhd(side) if layout == "HND" else side)  # the exchange is its own inverse

    def merge_states(out: Any, lse: Any, *, out_state: AttentionState | None = None) -> AttentionState:
        """Merge all states at once."""
        outs, lses = np.moveaxis(numpy_from_any(out), 0, 1), np.moveaxis(numpy_from_any(lse), 0, 1)
        scores = base_2_from_natural(lses) if base_2 else lses
        merged, total = merge(border.give(np.ascontiguousarray(outs)), border.give(np.ascontiguousarray(scores)))  # type: ignore[misc]
        total = numpy_from_any(total)
        natural = natural_from_base_2(total) if base_2 else total
        for part in range(lses.shape[1]):  # what the peer copied is not to be rounded on the way
            natural = np.where(total == scores[:, part], lses[:, part], natural)
        state = AttentionState(numpy_from_any(merged), natural)
        if out_state is None:
            return state
        np.copyto(out_state.out, state.out)
        np.copyto(out_state.lse, state.lse)
        return out_state

    operations = {
        "paged_decode": paged_decode if decode else None,
        "paged_prefill": paged_prefill if prefill else None,
        "append_kv": append_kv if append else None,
        "merge_states": merge_states if merge else None,
    }
    return Adapter(border, operations, dtypes)
