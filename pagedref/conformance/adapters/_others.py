"""JAX ragged paged attention, FlashMLA, and attention over gathered keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pagedref.attention.state import AttentionState
from pagedref.conformance.adapters._border import Adapter, Array, Border, joinable, paged_call
from pagedref.contract import EXTENDED_OPERATIONS
from pagedref.errors import NotOffered
from pagedref.layouts import (
    empty_from_plus_infinity,
    interleaved_from_kv,
    latent_pages_from_parts,
    numpy_from_any,
    padded_table_from_csr,
    ragged_jax_from_csr,
    tokens_first_from_heads_first,
)
from pagedref.mla_call import mla_call
from pagedref.options import AttentionOptions
from pagedref.ragged import slot_mapping_from_csr

__all__ = ["flash_mla", "gathered", "jax_ragged"]


def jax_ragged(
    function: Callable[..., Any],
    *,
    library: Any = np,
    padding: int = 0,
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
) -> Adapter:
    """Present a function with the conventions of JAX ragged paged attention as a backend.

    Parameters
    ----------
    function : callable
        ``(queries, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, *, sm_scale, sliding_window, soft_cap)``; K
        and V heads lie in turn in ``kv_pages``. Returns out; there is no lse.
    library : module
        Of its arrays: ``jax.numpy`` or ``jax``.
    padding : int
        What stands behind the last page of a row.
    dtypes : tuple of str
        Types that the function takes.

    Returns
    -------
    Adapter
        ``paged_decode`` and ``paged_prefill``, without lse.
    """
    border = Border(library, None)

    def attend(operation: str, arrays: tuple[Any, ...], keywords: dict[str, Any]) -> AttentionState:
        paged = paged_call(operation, arrays, keywords)
        wanted = paged.pick("causal", "sm_scale", "window", "softcap")
        options, dims = paged.call.options, paged.call.dims
        if not options.causal:
            raise NotOffered(f"{operation}: causal is always on in this convention, got False, need True")
        joinable(paged.given["k_cache"], paged.given["v_cache"])
        if (nothing := paged.nothing()) is not None:
            return nothing
        pages = interleaved_from_kv(paged.given["k_cache"], paged.given["v_cache"])
        ragged = ragged_jax_from_csr(paged.qo_indptr, *paged.pages, dims["page_size"], padding=padding)
        left = options.window_left
        asked: dict[tuple[str, ...], Any] = {
            ("sm_scale",): options.sm_scale,
            ("sliding_window",): None if left is None else left + 1,
            ("soft_cap", "logits_soft_cap"): wanted["softcap"],
        }
        out = border.call(function, operation, (paged.given["q"], pages, *ragged), {}, asked)
        return paged.state(out, None)

    def decode(*arrays: Any, **keywords: Any) -> AttentionState:
        """One query token for each sequence."""
        return attend("paged_decode", arrays, keywords)

    def prefill(*arrays: Any, **keywords: Any) -> AttentionState:
        """Several query tokens for each sequence."""
        return attend("paged_prefill", arrays, keywords)

    return Adapter(border, {"paged_decode": decode, "paged_prefill": prefill}, dtypes)


def flash_mla(
    function: Callable[..., Any],
    *,
    library: Any = np,
    device: Any = None,
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16"),
) -> Adapter:
    """Present a function with the conventions of FlashMLA as a backend.

    Parameters
    ----------
    function : callable
        ``(q, k_cache, block_table, cache_seqlens, head_dim_v, *, softmax_scale, causal)``; ``q`` is ``[batch, 1, heads,
        rank + rope_dim]``, ``k_cache`` latent pages ``[pages, page_size, 1, rank + rope_dim]``. Returns out and lse
        ``[batch, heads, 1]``, natural, +inf where no key is seen.
    library, device, dtypes
        As in `flash_attention`.

    Returns
    -------
    Adapter
        ``mla_decode``.
    """
    border = Border(library, device)
    names = [array.name for array in EXTENDED_OPERATIONS["mla_decode"].arrays if not array.optional]

    def mla_decode(*arrays: Any, **keywords: Any) -> AttentionState:
        """One query token for each sequence, over latents."""
        given: dict[str, Any] = {name: numpy_from_any(array) for name, array in zip(names, arrays, strict=True)}
        kept = {name: value for name, value in keywords.items() if value is not None}
        optional = {name: kept.pop(name, None) for name in ("sparse_positions", "sinks")}
        checked = mla_call("mla_decode", "numpy", {**given, **optional}, kept)
        others = [name for name in keywords if keywords[name] is not None and name != "sm_scale"]
        if others:
            raise NotOffered(f"mla_decode: {others[0]} has no place in this convention, got a value, need None")
        q = np.concatenate([given["q_nope"], given["q_pe"]], axis=2)
        rank, page_size = given["ckv_cache"].shape[2], given["ckv_cache"].shape[1]
        if not len(q):
            return AttentionState(np.zeros(given["q_nope"].shape, q.dtype), np.zeros(q.shape[:2], np.float32))
        pages = latent_pages_from_parts(given["ckv_cache"], given["kpe_cache"])[:, :, None]
        frames = np.maximum(given["kv_indices"], 0)
        table, lens = padded_table_from_csr(given["kv_indptr"], frames, given["kv_last_page_len"], page_size)
        positional = (q[:, None], pages, table, lens)
        scale = checked.call.options.sm_scale
        facts: dict[tuple[str, ...], Any] = {("head_dim_v",): rank, ("causal",): True}
        out, lse = border.call(function, "mla_decode", positional, facts, {("softmax_scale", "sm_scale"): scale})
        natural = tokens_first_from_heads_first(empty_from_plus_infinity(numpy_from_any(lse)))
        return AttentionState(numpy_from_any(out)[:, 0], natural[:, 0])

    return Adapter(border, {"mla_decode": mla_decode}, dtypes)


def gathered(
    function: Callable[..., Any],
    *,
    library: Any = np,
    device: Any = None,
    dtypes: tuple[str, ...] = ("float32",),
    one_row: bool = False,
) -> Adapter:
    """Present attention of one sequence, over keys that lie in order, as a backend: pages are gathered for it.

    Parameters
    ----------
    function : callable
        ``(q, k, v, mask, sm_scale)``: ``[heads, rows, dim]``, ``[kv_heads, keys, dim]``, a boolean ``[rows, keys]``,
        True = visible, or with ALiBi a bias ``[heads, rows, keys]`` that is -inf where a key is hidden. Returns out
        ``[heads, rows, dim]``, or out and lse ``[heads, rows]``. Called only for rows that see a key.
    library, device, dtypes
        As in `flash_attention`.
    one_row : bool
        Whether each row is passed alone, with the keys that it sees and None for the mask: for a peer that multiplies
        hidden values by 0, which NaN survives (S7).

    Returns
    -------
    Adapter
        ``paged_decode`` and ``paged_prefill``, without softcap and sinks. Rows that see no key are the adapter's:
        output 0, and lse -inf where the peer has an lse.
    """
    border = Border(library, device)

    def attend(operation: str, arrays: tuple[Any, ...], keywords: dict[str, Any]) -> AttentionState:
        paged = paged_call(operation, arrays, keywords)
        paged.pick("causal", "sm_scale", "window", "alibi_slopes", "mask", "attention_chunk")
        call, q = paged.call, paged.given["q"]
        options, page_size = call.options, call.dims["page_size"]
        if (nothing := paged.nothing()) is not None:
            return nothing
        slots = slot_mapping_from_csr(*paged.pages, page_size)
        starts = np.concatenate([[0], np.cumsum(call.kv_lens)])
        out = np.zeros((*q.shape[:2], call.dims["v_head_dim"]), q.dtype)
        lse = np.full(q.shape[:2], -np.inf, np.float32)
        with_lse = True
        for sequence, kv_len in enumerate(call.kv_lens):
            first = int(call.qo_indptr[sequence])
            positions = call.positions(sequence)
            here = slots[starts[sequence] : starts[sequence + 1]]
            seen = _visible(options, positions, int(kv_len))
            if call.masks:
                seen &= call.masks[sequence]
            live = np.flatnonzero(seen.any(axis=1))
            for some in live[:, None] if one_row else [live] if live.size else []:
                keys = np.flatnonzero(seen[some].any(axis=0))  # the others may lie in unmapped pages
                at = here[keys] // page_size, here[keys] % page_size
                parts = [paged.given[name][at].transpose(1, 0, 2) for name in ("k_cache", "v_cache")]
                mask: Array | None = None if one_row else seen[np.ix_(some, keys)]
                if options.alibi_slopes is not None and options.alibi_slopes.any():
                    bias = options.alibi_slopes[:, None, None] * (keys - positions[some, None])
                    mask = np.where(seen[np.ix_(some, keys)], bias, -np.inf).astype(q.dtype)
                given = [np.ascontiguousarray(part) for part in (q[first + some].transpose(1, 0, 2), *parts)]
                sent = None if mask is None else border.give(mask)
                result = function(*(border.give(part) for part in given), sent, options.sm_scale)
                found, sums = result if isinstance(result, tuple) else (result, None)
                out[first + some] = numpy_from_any(found).transpose(1, 0, 2)
                with_lse = with_lse and sums is not None
                if sums is not None:
                    lse[first + some] = numpy_from_any(sums).T
        return paged.state(out, lse if with_lse else None)

    def decode(*arrays: Any, **keywords: Any) -> AttentionState:
        """One query token for each sequence."""
        return attend("paged_decode", arrays, keywords)

    def prefill(*arrays: Any, **keywords: Any) -> AttentionState:
        """Several query tokens for each sequence."""
        return attend("paged_prefill", arrays, keywords)

    return Adapter(border, {"paged_decode": decode, "paged_prefill": prefill}, dtypes)


def _visible(options: AttentionOptions, positions: Any, kv_len: int) -> Array:
    """Return which keys each row sees by its interval."""
    start, stop = options.intervals(positions, kv_len)
    keys = np.arange(kv_len)
    return np.asarray((keys >= start[:, None]) & (keys < stop[:, None]))
