"""flash-attention and vLLM: a padded table, lengths, a pair for the window, lse natural and heads first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pagedref.attention.state import AttentionState
from pagedref.conformance.adapters._border import (
    Adapter,
    Array,
    Border,
    PagedCall,
    append_arguments,
    paged_call,
    written,
)
from pagedref.errors import NotOffered
from pagedref.layouts import (
    channels_first_from_v,
    empty_from_plus_infinity,
    heads_first_from_tokens_first,
    numpy_from_any,
    packed_from_k,
    padded_table_from_csr,
    tokens_first_from_heads_first,
    window_size_from_window,
)

__all__ = ["flash_attention", "vllm"]

_WANTED = ("causal", "sm_scale", "window", "softcap", "alibi_slopes", "sinks", "attention_chunk")


def _ours(lse: Array) -> Array:
    return tokens_first_from_heads_first(empty_from_plus_infinity(lse))


def _absent(*arrays: Any, **keywords: Any) -> Any:
    """Stand for a function that was not given."""
    raise NotOffered("flash_attention: varlen was not given, got None, need a function")


def _pair(result: Any) -> tuple[Any, Any]:
    """Return output and lse of what a peer returned; further parts are not ours."""
    return (result[0], result[1]) if isinstance(result, tuple | list) else (result, None)


def _asked(paged: PagedCall) -> dict[tuple[str, ...], Any]:
    """Return scale, window, softcap and the rest under the names that peers have for them."""
    wanted = paged.pick(*_WANTED)
    causal = paged.call.options.causal
    window = wanted["window"]
    return {
        ("softmax_scale", "sm_scale", "scale"): paged.call.options.sm_scale,
        ("causal",): causal,
        ("window_size",): None if window is None else window_size_from_window(window, causal=causal),
        ("softcap",): wanted["softcap"],
        ("alibi_slopes",): wanted["alibi_slopes"],
        ("s_aux", "learnable_sink", "sinks"): wanted["sinks"],
        ("attention_chunk",): wanted["attention_chunk"],
    }


def _facts(paged: PagedCall, page_size: int, padding: int) -> dict[tuple[str, ...], Any]:
    table, lens = padded_table_from_csr(*paged.pages, page_size, padding=padding)
    rows = np.diff(paged.qo_indptr)
    return {
        ("block_table", "page_table"): table,
        ("seqused_k", "cache_seqlens"): lens,
        ("cu_seqlens_k",): np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
        ("cu_seqlens_q",): paged.qo_indptr,
        ("max_seqlen_q",): int(rows.max(initial=1)),
        ("max_seqlen_k",): int(lens.max(initial=1)),
        ("return_softmax_lse", "return_attn_probs", "return_lse"): True,
    }


def flash_attention(
    varlen: Callable[..., Any] | None = None,
    kvcache: Callable[..., Any] | None = None,
    *,
    library: Any = np,
    device: Any = None,
    padding: int = 0,
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16"),
) -> Adapter:
    """Present functions with the conventions of flash-attention as a backend.

    Parameters
    ----------
    varlen : callable, optional
        Like ``flash_attn_varlen_func``: ``(q, k_cache, v_cache, *, cu_seqlens_q, seqused_k, block_table, max_seqlen_q,
        max_seqlen_k, softmax_scale, causal, window_size, softcap, alibi_slopes, return_softmax_lse)``; ``q`` is
        ``[tokens, heads, dim]``. Returns out, or out and lse ``[heads, tokens]``.
    kvcache : callable, optional
        Like ``flash_attn_with_kvcache``: ``(q, k_cache, v_cache, *, cache_seqlens, block_table, ...)``; ``q`` is
        ``[batch, 1, heads, dim]``. Returns out, or out and lse ``[batch, heads, 1]``.
    library : module
        Of its arrays.
    device : optional
        Where torch puts them.
    padding : int
        What stands behind the last page of a row.
    dtypes : tuple of str
        Types that the functions take.

    Returns
    -------
    Adapter
        ``paged_decode`` by `kvcache`, or else by `varlen`; ``paged_prefill`` by `varlen`.

    Notes
    -----
    An lse of +inf is taken for an empty row, as flash-attention 2 means it. A keyword that a function lacks is not
    offered; one that describes the batch is left out.
    """
    border = Border(library, device)

    def rows(operation: str, arrays: tuple[Any, ...], keywords: dict[str, Any]) -> AttentionState:
        paged = paged_call(operation, arrays, keywords)
        if (nothing := paged.nothing()) is not None:
            return nothing
        facts = _facts(paged, paged.call.dims["page_size"], padding)
        positional = tuple(paged.given[name] for name in ("q", "k_cache", "v_cache"))
        out, lse = _pair(border.call(varlen or _absent, operation, positional, facts, _asked(paged)))
        return paged.state(out, lse, _ours)

    def decode(*arrays: Any, **keywords: Any) -> AttentionState:
        """One query token for each sequence."""
        if kvcache is None:
            return rows("paged_decode", arrays, keywords)
        paged = paged_call("paged_decode", arrays, keywords)
        if (nothing := paged.nothing()) is not None:
            return nothing
        facts = _facts(paged, paged.call.dims["page_size"], padding)
        facts = {names[::-1]: value for names, value in facts.items() if not names[0].startswith("cu_")}
        positional = paged.given["q"][:, None], paged.given["k_cache"], paged.given["v_cache"]
        out, lse = _pair(border.call(kvcache, "paged_decode", positional, facts, _asked(paged)))
        return paged.state(numpy_from_any(out)[:, 0], lse, lambda found: _ours(found)[:, 0])

    def prefill(*arrays: Any, **keywords: Any) -> AttentionState:
        """Several query tokens for each sequence."""
        return rows("paged_prefill", arrays, keywords)

    some = varlen is not None or kvcache is not None
    operations = {"paged_decode": decode if some else None, "paged_prefill": prefill if varlen else None}
    return Adapter(border, operations, dtypes)


def vllm(
    varlen: Callable[..., Any] | None = None,
    append: Callable[..., Any] | None = None,
    merge: Callable[..., Any] | None = None,
    *,
    packed: bool = False,
    library: Any = np,
    device: Any = None,
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16"),
) -> Adapter:
    """Present functions with the conventions of vLLM as a backend.

    Parameters
    ----------
    varlen : callable, optional
        As in `flash_attention`.
    append : callable, optional
        Like ``reshape_and_cache_flash``: ``(key, value, key_cache, value_cache, slot_mapping)``, writes into caches.
    merge : callable, optional
        Like ``merge_attn_states``: ``(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse)``,
        writes into the first and the last; lse ``[heads, tokens]``.
    packed : bool
        Whether `append` takes the first layout: keys ``[pages, heads, dim / x, page_size, x]``, values
        ``[pages, heads, dim, page_size]``, as ``reshape_and_cache`` does.
    library, device, dtypes
        As in `flash_attention`.

    Returns
    -------
    Adapter
        With the operations that there are functions for.
    """
    border = Border(library, device)

    def append_kv(*arrays: Any, **keywords: Any) -> None:
        """Write rows into their slots."""
        given = append_arguments(arrays, keywords)
        targets = given["k_cache"], given["v_cache"]
        if packed and targets[0].shape[3] % (side_by_side := max(16 // targets[0].itemsize, 1)):
            text = f"append_kv: head_dim is no multiple of x, got {targets[0].shape[3]}, need one of {side_by_side}"
            raise NotOffered(text)
        views = (packed_from_k(targets[0]), channels_first_from_v(targets[1])) if packed else targets
        caches = [border.give(np.ascontiguousarray(view) if packed else view) for view in views]
        append(border.give(given["k"]), border.give(given["v"]), *caches, border.give(given["slot_mapping"]))  # type: ignore[misc]
        for view, cache in zip(views, caches, strict=True):
            written(view, cache)

    def merge_states(out: Any, lse: Any, *, out_state: AttentionState | None = None) -> AttentionState:
        """Merge states from the first to the last, two at a time."""
        outs, lses = numpy_from_any(out), numpy_from_any(lse)
        if len(outs) == 0:
            total = AttentionState(np.zeros(outs.shape[1:], outs.dtype), np.full(lses.shape[1:], -np.inf, lses.dtype))
        else:
            total = AttentionState(outs[0].copy(), lses[0].copy())
        for part in range(1, len(outs)):
            heads = [np.ascontiguousarray(heads_first_from_tokens_first(one)) for one in (total.lse, lses[part])]
            into, lse_into = border.give(np.empty_like(total.out)), border.give(np.empty_like(heads[0]))
            merge(into, border.give(total.out), border.give(heads[0]), border.give(outs[part]), border.give(heads[1]),  # type: ignore[misc]
                  output_lse=lse_into)  # fmt: skip
            total = AttentionState(numpy_from_any(into), np.ascontiguousarray(_ours(numpy_from_any(lse_into))))
        if out_state is None:
            return total
        np.copyto(out_state.out, total.out)
        np.copyto(out_state.lse, total.lse)
        return out_state

    attention = flash_attention(varlen, library=library, device=device) if varlen else None
    operations = {
        "paged_decode": getattr(attention, "paged_decode", None),
        "paged_prefill": getattr(attention, "paged_prefill", None),
        "append_kv": append_kv if append else None,
        "merge_states": merge_states if merge else None,
    }
    return Adapter(border, operations, dtypes)
