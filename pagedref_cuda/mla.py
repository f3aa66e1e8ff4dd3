"""Multi-head latent attention on the device: all heads share one latent and one rotated key per token (S13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from pagedref.attention.state import AttentionState
from pagedref.kv_format import KVFormat
from pagedref.mla_call import mla_call
from pagedref_cuda import _runtime
from pagedref_cuda.decode import Window
from pagedref_cuda.latent import launch_latent, mla_decode_1, mla_prefill_1, owners

__all__ = ["mla_decode", "mla_prefill"]

Array = npt.NDArray[Any]


def mla_decode(
    q_nope: Array,
    q_pe: Array,
    ckv_cache: Array,
    kpe_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    *,
    sm_scale: float | None = None,
    sparse_positions: Array | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    ckv_format: KVFormat | str | None = None,
    kpe_format: KVFormat | str | None = None,
    ckv_scale: Array | float | None = None,
    kpe_scale: Array | float | None = None,
    ckv_zero: Array | None = None,
    kpe_zero: Array | None = None,
) -> AttentionState:
    """Attend over latent pages with one query token per sequence, the last of its sequence (S13).

    The score of key j is ``sm_scale * (q_nope . ckv_j + q_pe . kpe_j)``, its value is ``ckv_j``.

    Parameters
    ----------
    q_nope : array (num_seqs, num_qo_heads, rank) of float32, float16 or bfloat16
        Absorbed queries (:func:`pagedref.attention.mla_absorb`).
    q_pe : array (num_seqs, num_qo_heads, rope_dim) of the same type
        Rotated queries.
    ckv_cache : array (num_frames, page_size, rank) of a storage type but float64
        Latents, normalised; any strides (S23).
    kpe_cache : array (num_frames, page_size, rope_dim) of a storage type but float64
        Rotated keys, one for all heads; may be stored in another form than `ckv_cache`.
    kv_indptr : array (num_seqs + 1,) of int32 or int64
        Where the pages of each sequence start in `kv_indices`.
    kv_indices : array (num_pages,) of int32 or int64
        Frame of each page; -1 is unmapped, legal where no key is visible (S21).
    kv_last_page_len : array (num_seqs,) of int32 or int64
        Live positions of the last page, ``1 .. page_size``; 0 exactly without pages (S20).
    sm_scale : float
        Factor on scores, required: ``1 / sqrt(qk_nope + qk_rope)`` of the model before absorption, times its own
        factor if it has one. The rank has nothing to do with it.
    sparse_positions : array (num_seqs, top_k) of int32 or int64, optional
        Key positions that the query sees, in any order, each at most once, -1 = unused; in place of the causal rule.
    window : int or pair, optional
        Keys that are visible, the own position included; or counts ``(left, right)`` beside it (S5).
    attention_chunk : int, optional
        Only keys of the same chunk of positions (S5).
    softcap : float, optional
        ``softcap * tanh(score / softcap)``, > 0 (S2).
    sinks : array (num_qo_heads,), optional
        One more logit per head, without a value (S11).
    ckv_format, kpe_format : KVFormat or str, optional
        How the caches are stored; by default what their types say (S15).
    ckv_scale, kpe_scale, ckv_zero, kpe_zero : optional
        Scales and zero points, shaped as those of a cache with one kv head (S17); ``append_kv`` writes latents if it is
        given the caches with such an axis, ``ckv_cache[:, :, None]``.

    Returns
    -------
    AttentionState
        ``out`` (num_seqs, num_qo_heads, rank) in the type of `q_nope`, still to be multiplied by the values' part of
        ``w_kv_b`` (:func:`pagedref.attention.mla_project`); ``lse`` (num_seqs, num_qo_heads), natural log (S9).

    Raises
    ------
    ContractError
        An argument breaks the contract; a missing `sm_scale` does.
    PageFault
        A page with a visible key is unmapped.
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: nothing. Agreement: BOUND. Sums run over the keys in order of position. Twin:
    ``pagedref.attention.mla_decode``.
    """
    _runtime.ensure_available()
    arrays = {
        "q_nope": q_nope,
        "q_pe": q_pe,
        "sparse_positions": sparse_positions,
        "ckv_cache": ckv_cache,
        "kpe_cache": kpe_cache,
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
        "sinks": sinks,
    }
    keywords = {
        "sm_scale": sm_scale,
        "window": window,
        "attention_chunk": attention_chunk,
        "softcap": softcap,
        "ckv_format": ckv_format,
        "kpe_format": kpe_format,
        "ckv_scale": ckv_scale,
        "kpe_scale": kpe_scale,
        "ckv_zero": ckv_zero,
        "kpe_zero": kpe_zero,
    }
    latent = mla_call("mla_decode", "cuda", arrays, keywords)
    return launch_latent(mla_decode_1, latent, q_nope, q_pe, ckv_cache, kpe_cache)


def mla_prefill(
    q_nope: Array,
    q_pe: Array,
    qo_indptr: Array,
    ckv_cache: Array,
    kpe_cache: Array,
    kv_indptr: Array,
    kv_indices: Array,
    kv_last_page_len: Array,
    *,
    sm_scale: float | None = None,
    causal: bool | None = None,
    mask: Array | Sequence[Array] | None = None,
    sparse_positions: Array | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    ckv_format: KVFormat | str | None = None,
    kpe_format: KVFormat | str | None = None,
    ckv_scale: Array | float | None = None,
    kpe_scale: Array | float | None = None,
    ckv_zero: Array | None = None,
    kpe_zero: Array | None = None,
) -> AttentionState:
    """Attend over latent pages with any number of query tokens per sequence, the last ones of it (S13).

    Parameters
    ----------
    q_nope : array (num_tokens, num_qo_heads, rank) of float32, float16 or bfloat16
        Absorbed queries, sequence after sequence.
    q_pe : array (num_tokens, num_qo_heads, rope_dim) of the same type
        Rotated queries.
    qo_indptr : array (num_seqs + 1,) of int32 or int64
        Where the rows of each sequence start in `q_nope`; a sequence may have none.
    ckv_cache, kpe_cache, kv_indptr, kv_indices, kv_last_page_len
        As in :func:`mla_decode`.
    sm_scale : float
        Factor on scores, required.
    causal : bool, optional
        Key position <= query position (S4); by default true unless a mask or a selection is given (S14).
    mask : array of bool or list of arrays (q_len, kv_len) of bool, optional
        True = visible; all sequences in one flat array, row-major, or one array for each (S14).
    sparse_positions : array (num_tokens, top_k) of int32 or int64, optional
        Key positions that each query sees, in any order, each at most once, -1 = unused; in place of the causal rule.
        A mask, a window, a chunk and ``causal=True`` hold beside it: a key is visible if all of them agree.
    window, attention_chunk, softcap, sinks, ckv_format, kpe_format, ckv_scale, kpe_scale, ckv_zero, kpe_zero
        As in :func:`mla_decode`.

    Returns
    -------
    AttentionState
        ``out`` (num_tokens, num_qo_heads, rank) in the type of `q_nope`; ``lse`` (num_tokens, num_qo_heads). A row that
        sees no key has ``(0, -inf)`` (S8).

    Raises
    ------
    ContractError
        An argument breaks the contract; a missing `sm_scale` does.
    PageFault
        A page with a visible key is unmapped.
    BackendUnavailable
        Nothing here can run kernels.

    Notes
    -----
    Mutates: nothing. Agreement: BOUND. Sums run over the keys in order of position. Twin:
    ``pagedref.attention.mla_prefill``.
    """
    _runtime.ensure_available()
    arrays = {
        "q_nope": q_nope,
        "q_pe": q_pe,
        "sparse_positions": sparse_positions,
        "qo_indptr": qo_indptr,
        "ckv_cache": ckv_cache,
        "kpe_cache": kpe_cache,
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
        "sinks": sinks,
    }
    keywords = {
        "sm_scale": sm_scale,
        "causal": causal,
        "mask": mask,
        "window": window,
        "attention_chunk": attention_chunk,
        "softcap": softcap,
        "ckv_format": ckv_format,
        "kpe_format": kpe_format,
        "ckv_scale": ckv_scale,
        "kpe_scale": kpe_scale,
        "ckv_zero": ckv_zero,
        "kpe_zero": kpe_zero,
    }
    latent = mla_call("mla_prefill", "cuda", arrays, keywords)
    return launch_latent(mla_prefill_1, latent, q_nope, q_pe, ckv_cache, kpe_cache, owners(latent))
