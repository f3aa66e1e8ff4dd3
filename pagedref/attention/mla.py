"""Multi-head latent attention: all heads share one latent and one rotated key per token (S13).

The cache holds ``ckv`` and ``kpe`` instead of keys and values for each head. Queries come absorbed: the matrix that
would expand latents into keys has been multiplied into them, the one for values is applied to the output afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.decode import Window
from pagedref.attention.latent import attend_latent
from pagedref.attention.state import AttentionState
from pagedref.kv_format import KVFormat
from pagedref.mla_call import mla_call

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
    q_nope : array (num_seqs, num_qo_heads, rank) of a floating type
        Absorbed queries (:func:`pagedref.attention.mla_absorb`).
    q_pe : array (num_seqs, num_qo_heads, rope_dim) of the same type
        Rotated queries.
    ckv_cache : array (num_frames, page_size, rank) of a storage type
        Latents, normalised; any strides (S23).
    kpe_cache : array (num_frames, page_size, rope_dim) of a storage type
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

    Notes
    -----
    Mutates: nothing. Agreement: BOUND. All heads read one key, so a tile of latents is read once for all of them. With
    a selection only the selected tokens are read, in order of position: the order of the list changes no bit. Twin:
    ``pagedref_cuda.mla_decode``.

    References
    ----------
    DeepSeek-AI, DeepSeek-V2, arXiv 2405.04434, 2024, section 2.1. Sparse selection: DeepSeek-V3.2-Exp, 2025, section 1.

    Examples
    --------
    Two tokens in one page of two; their scores are 0 and ln 3, the second by its rotated key alone.

    >>> q_nope, q_pe = np.ones((1, 1, 2)), np.ones((1, 1, 1))
    >>> ckv_cache, kpe_cache = np.array([[[4.0, -4.0], [8.0, -8.0]]]), np.array([[[0.0], [np.log(3)]]])
    >>> pages = np.array([0, 1]), np.array([0]), np.array([2])
    >>> mla_decode(q_nope, q_pe, ckv_cache, kpe_cache, *pages, sm_scale=1.0).out.ravel().round(6).tolist()
    [7.0, -7.0]
    >>> only = np.array([[0, -1]])
    >>> mla_decode(q_nope, q_pe, ckv_cache, kpe_cache, *pages, sm_scale=1.0, sparse_positions=only).out.ravel().tolist()
    [4.0, -4.0]
    """
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
    latent = mla_call("mla_decode", "numpy", arrays, keywords)
    return attend_latent(latent, np.asarray(q_nope), np.asarray(q_pe), ckv_cache, kpe_cache)


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
    q_nope : array (num_tokens, num_qo_heads, rank) of a floating type
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

    Notes
    -----
    Mutates: nothing. Agreement: BOUND. The last row of a sequence equals :func:`mla_decode` within the bound (L11).
    Twin: ``pagedref_cuda.mla_prefill``.

    References
    ----------
    DeepSeek-AI, DeepSeek-V2, arXiv 2405.04434, 2024, section 2.1.

    Examples
    --------
    Two queries over two tokens of equal score: the first sees one of them, the second both.

    >>> q_nope, q_pe = np.ones((2, 1, 1)), np.zeros((2, 1, 1))
    >>> ckv_cache, kpe_cache = np.array([1.0, 3.0]).reshape(1, 2, 1), np.zeros((1, 2, 1))
    >>> pages = np.array([0, 1]), np.array([0]), np.array([2])
    >>> tokens = q_nope, q_pe, np.array([0, 2])
    >>> mla_prefill(*tokens, ckv_cache, kpe_cache, *pages, sm_scale=0.0).out.ravel().tolist()
    [1.0, 2.0]
    """
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
    latent = mla_call("mla_prefill", "numpy", arrays, keywords)
    return attend_latent(latent, np.asarray(q_nope), np.asarray(q_pe), ckv_cache, kpe_cache)
