"""Peers: plain functions with the conventions of other systems, written from their descriptions, without our code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LN_2 = math.log(2)


def rows(
    q: Any, k: Any, v: Any, scale: float, seen: Any, *, cap: float = 0.0, bias: Any = None, sinks: Any = None
) -> Any:
    """Attention of some rows (rows, heads, dim) over keys (keys, kv_heads, dim); what is seen is (rows, keys)."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    out, lse = np.zeros((*q.shape[:2], v.shape[2])), np.full(q.shape[:2], -np.inf)
    for i in range(len(q)):
        keys = np.flatnonzero(seen[i])
        for h in range(heads):
            scores = k[keys, h // group].astype(np.float64) @ q[i, h].astype(np.float64) * scale
            if cap:
                scores = cap * np.tanh(scores / cap)
            if bias is not None:
                scores = scores + bias[h, i, keys]
            sink = -np.inf if sinks is None else float(sinks[h])
            top = max([sink, *scores.tolist()])
            if top == -np.inf:
                continue
            weights = np.exp(scores - top)
            total = weights.sum() + math.exp(sink - top)
            out[i, h] = weights @ v[keys, h // group].astype(np.float64) / total
            lse[i, h] = top + math.log(total)
    return out, lse


def seen_by(q_len: int, kv_len: int, causal: bool, left: int, right: int) -> Any:
    """What each of the last rows sees: -1 is no limit."""
    d = np.arange(kv_len) - (np.arange(q_len) + kv_len - q_len)[:, None]
    seen = np.ones(d.shape, bool)
    if causal:
        seen &= d <= 0
    if left >= 0:
        seen &= d >= -left
    if right >= 0:
        seen &= d <= right
    return seen


def linear_bias(slopes: Any, q_len: int, kv_len: int) -> Any:
    if slopes is None:
        return None
    distance = np.arange(kv_len) - (np.arange(q_len) + kv_len - q_len)[:, None]
    return np.asarray(slopes, np.float64)[:, None, None] * distance


def gather(cache: Any, frames: Any, kv_len: int) -> Any:
    """Tokens of a sequence in order, from pages NHD."""
    page_size = cache.shape[1]
    pages = -(-kv_len // page_size)
    return cache[frames[:pages]].reshape(pages * page_size, *cache.shape[2:])[:kv_len]


def flash_varlen(
    q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, seqused_k: Any, block_table: Any, max_seqlen_q: int,
    max_seqlen_k: int, softmax_scale: float, causal: bool, window_size: Any = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Any = None, s_aux: Any = None, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """flash-attention over a block table: lse [heads, tokens], +inf for rows that see nothing."""
    assert block_table.dtype == seqused_k.dtype == cu_seqlens_q.dtype == np.int32
    assert max_seqlen_q >= np.diff(cu_seqlens_q).max()
    assert max_seqlen_k >= seqused_k.max()
    outs, lses = [], []
    for b, kv_len in enumerate(seqused_k):
        part = q[cu_seqlens_q[b] : cu_seqlens_q[b + 1]]
        keys, values = (gather(cache, block_table[b], kv_len) for cache in (k, v))
        seen = seen_by(len(part), kv_len, causal, *window_size)
        bias = linear_bias(alibi_slopes, len(part), kv_len)
        out, lse = rows(part, keys, values, softmax_scale, seen, cap=softcap, bias=bias, sinks=s_aux)
        outs.append(out)
        lses.append(lse)
    out, lse = np.concatenate(outs).astype(q.dtype), np.concatenate(lses).T.astype(np.float32)
    return (out, np.where(np.isneginf(lse), np.float32(np.inf), lse)) if return_softmax_lse else out


def flash_kvcache(
    q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any, block_table: Any, softmax_scale: float, causal: bool,
    window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """flash-attention decode: q [batch, 1, heads, dim], lse [batch, heads, 1]; no sinks."""
    batch = len(q)
    out, lse = flash_varlen(
        q[:, 0], k_cache, v_cache, cu_seqlens_q=np.arange(batch + 1, dtype=np.int32), seqused_k=cache_seqlens,
        block_table=block_table, max_seqlen_q=1, max_seqlen_k=int(cache_seqlens.max()), softmax_scale=softmax_scale,
        causal=causal, window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, return_softmax_lse=True,
    )  # fmt: skip
    return out[:, None], lse.T[:, :, None]


def reshape_and_cache_flash(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any) -> None:
    """vLLM's write: negative slots are skipped."""
    page_size = key_cache.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            key_cache[slot // page_size, slot % page_size] = key[row]
            value_cache[slot // page_size, slot % page_size] = value[row]


def reshape_and_cache(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any) -> None:
    """vLLM's first write: keys [pages, heads, dim / x, page_size, x], values [pages, heads, dim, page_size]."""
    assert key_cache.flags.c_contiguous
    assert value_cache.flags.c_contiguous
    page_size, x = key_cache.shape[3], key_cache.shape[4]
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            frame, offset = slot // page_size, slot % page_size
            key_cache[frame, :, :, offset, :] = key[row].reshape(key.shape[1], -1, x)
            value_cache[frame, :, :, offset] = value[row]


def merge_attn_states(
    output: Any, prefix_output: Any, prefix_lse: Any, suffix_output: Any, suffix_lse: Any, output_lse: Any = None
) -> None:
    """vLLM's merge of two: lse [heads, tokens]; infinities of either sign are empty."""
    first, second = (np.where(np.isinf(lse), -np.inf, lse).T.astype(np.float64) for lse in (prefix_lse, suffix_lse))
    top = np.maximum(first, second)
    shift = np.where(np.isneginf(top), 0, top)
    one, two = np.exp(first - shift), np.exp(second - shift)
    total = one + two
    safe = np.where(total == 0, 1, total)
    parts = [np.where((w > 0)[..., None], o, 0) for w, o in ((one, prefix_output), (two, suffix_output))]
    output[:] = (parts[0] * one[..., None] + parts[1] * two[..., None]) / safe[..., None]
    for weight, other, whole in ((one, two, prefix_output), (two, one, suffix_output)):
        alone = (other == 0) & (weight > 0)
        output[alone] = whole[alone]
    merged = np.where(total == 0, -np.inf, shift + np.log(safe))
    merged = np.where((two == 0) & (one > 0), first, np.where((one == 0) & (two > 0), second, merged))
    output_lse[:] = merged.T


def _infer(q: Any, cache: Any, starts: Any, indptr: Any, indices: Any, last: Any, layout: str, **options: Any) -> Any:
    """FlashInfer over CSR pages."""
    k, v = (cache[:, 0], cache[:, 1]) if isinstance(cache, np.ndarray) else cache
    if layout == "HND":
        k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    outs, lses, at = [], [], 0
    for b in range(len(last)):
        pages = indptr[b + 1] - indptr[b]
        kv_len = (pages - 1) * k.shape[1] + last[b] if pages else 0
        part, frames = q[starts[b] : starts[b + 1]], indices[indptr[b] : indptr[b + 1]]
        seen = seen_by(len(part), kv_len, options["causal"], options["window_left"], -1)
        if options["custom_mask"] is not None:
            seen &= options["custom_mask"][at : at + seen.size].reshape(seen.shape)
            at += seen.size
        keys, values = (gather(side, frames, kv_len) for side in (k, v))
        out, lse = rows(part, keys, values, options["sm_scale"], seen, cap=options["logits_soft_cap"] or 0.0)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs).astype(q.dtype), (np.concatenate(lses) / LN_2).astype(np.float32)


def infer_decode(layout: str) -> Any:
    def decode(
        q: Any, paged_kv_cache: Any, *, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, sm_scale: float,
        window_left: int = -1, logits_soft_cap: float | None = None, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        options = {"sm_scale": sm_scale, "window_left": window_left, "logits_soft_cap": logits_soft_cap}
        starts = np.arange(len(q) + 1)
        return _infer(q, paged_kv_cache, starts, kv_indptr, kv_indices, kv_last_page_len, layout, **options,
                      causal=False, custom_mask=None)  # fmt: skip

    return decode


def infer_prefill(layout: str) -> Any:
    def prefill(
        q: Any, paged_kv_cache: Any, *, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any,
        sm_scale: float, causal: bool, window_left: int = -1, logits_soft_cap: float | None = None,
        custom_mask: Any = None, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        options = {"sm_scale": sm_scale, "window_left": window_left, "logits_soft_cap": logits_soft_cap}
        return _infer(q, paged_kv_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, layout, **options,
                      causal=causal, custom_mask=custom_mask)  # fmt: skip

    return prefill


def infer_append(layout: str) -> Any:
    def append(
        k: Any, v: Any, batch_indices: Any, positions: Any, cache: Any, indices: Any, indptr: Any, last: Any
    ) -> None:
        sides = (cache[:, 0], cache[:, 1]) if isinstance(cache, np.ndarray) else cache
        for side, new in zip(sides, (k, v), strict=True):
            page_size = side.shape[2 if layout == "HND" else 1]
            for row, (b, position) in enumerate(zip(batch_indices, positions, strict=True)):
                frame, offset = indices[indptr[b] + position // page_size], position % page_size
                (side[frame, :, offset] if layout == "HND" else side[frame, offset])[...] = new[row]

    return append


def infer_merge(v: Any, s: Any) -> Any:
    """FlashInfer's merge: [tokens, states, heads, dim] and base 2 scores [tokens, states, heads]."""
    if v.shape[1] == 0:
        return np.zeros((v.shape[0], *v.shape[2:]), v.dtype), np.full((s.shape[0], s.shape[2]), -np.inf, s.dtype)
    live = np.isfinite(s)
    top = s.max(axis=1)
    weights = np.where(live, np.exp2(s.astype(np.float64) - np.where(np.isneginf(top), 0, top)[:, None]), 0)
    total = weights.sum(axis=1)
    safe = np.where(total == 0, 1, total)
    out = (np.where(live[..., None], v, 0) * weights[..., None]).sum(axis=1) / safe[..., None]
    alone = live.sum(axis=1) == 1  # nothing is computed with: copied
    out = np.where(alone[..., None], np.take_along_axis(v, live.argmax(axis=1)[:, None, :, None], axis=1)[:, 0], out)
    merged = np.where(total == 0, -np.inf, np.where(np.isneginf(top), 0, top) + np.log2(safe))
    return out.astype(v.dtype), merged.astype(s.dtype)


def jax_ragged(
    queries: Any, kv_pages: Any, kv_lens: Any, page_indices: Any, cu_q_lens: Any, num_seqs: Any, *,
    sm_scale: float = 1.0, sliding_window: int | None = None, soft_cap: float | None = None,
) -> Any:  # fmt: skip
    """JAX ragged paged attention: K and V heads in turn; the window counts the own position; no lse."""
    outs = []
    for b in range(int(num_seqs[0])):
        part = queries[cu_q_lens[b] : cu_q_lens[b + 1]]
        both = gather(kv_pages, page_indices[b], int(kv_lens[b]))
        left = -1 if sliding_window is None else sliding_window - 1
        seen = seen_by(len(part), int(kv_lens[b]), True, left, -1)
        outs.append(rows(part, both[:, 0::2], both[:, 1::2], sm_scale, seen, cap=soft_cap or 0.0)[0])
    return np.concatenate(outs).astype(queries.dtype)


def flash_mla(
    q: Any, k_cache: Any, block_table: Any, cache_seqlens: Any, head_dim_v: int, *, softmax_scale: float,
    causal: bool = False,
) -> Any:  # fmt: skip
    """FlashMLA decode: latents first; lse [batch, heads, 1], +inf where there is no key."""
    outs, lses = [], []
    for b, kv_len in enumerate(cache_seqlens):
        keys = gather(k_cache, block_table[b], int(kv_len))
        seen = seen_by(1, int(kv_len), True, -1, -1)
        out, lse = rows(q[b], keys, keys[..., :head_dim_v], softmax_scale, seen)
        outs.append(out)
        lses.append(np.where(np.isneginf(lse), np.inf, lse))
    return np.stack(outs).astype(q.dtype), np.stack(lses).transpose(0, 2, 1).astype(np.float32)


def dense(q: Any, k: Any, v: Any, mask: Any, sm_scale: float) -> Any:
    """Attention of one sequence: [heads, rows, dim], a boolean mask or a bias."""
    seen = mask if mask.dtype == bool else np.isfinite(mask[0])
    bias = None if mask.dtype == bool else mask
    parts = (array.transpose(1, 0, 2) for array in (q, k, v))
    out, lse = rows(*parts, sm_scale, seen, bias=bias)
    return out.transpose(1, 0, 2).astype(q.dtype), lse.T.astype(np.float32)
