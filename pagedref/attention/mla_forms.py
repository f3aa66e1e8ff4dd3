"""MLA by the formula: the oracle, a textbook loop over pages, the explicit form, and what a latent cache takes.

Absorbed and explicit form are one function in exact arithmetic: ``q . (W c) = (W^T q) . c``, and a weighted mean of
``W c`` is ``W`` times the weighted mean of ``c``. The absorbed form keeps a cache of latents, the explicit form one of
keys and values for each head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import addressing, validate
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.decode import Window
from pagedref.attention.dense import DenseState, dense_attention
from pagedref.attention.state import AttentionState
from pagedref.errors import ContractError
from pagedref.kv_format import KVFormat

__all__ = ["LatentCacheSpec", "dense_mla", "mla_absorb", "mla_expand", "mla_project", "mla_textbook"]

Array = npt.NDArray[Any]


def dense_mla(
    q_nope: Array,
    q_pe: Array,
    ckv: Array,
    kpe: Array,
    *,
    sm_scale: float,
    causal: bool | None = None,
    mask: Array | None = None,
    sparse_positions: Array | None = None,
    window: Window = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    with_bound: bool = False,
    arithmetic: Arithmetic | None = None,
) -> DenseState:
    """Attend over latents in float64 with the last `q_len` tokens of one sequence: the oracle of MLA (S13).

    It is :func:`pagedref.attention.dense_attention` on concatenations: queries ``[q_nope | q_pe]``, keys
    ``[ckv | kpe]``, values ``ckv``, one kv head. The bound is that of the concatenated dot product, which holds for any
    order of summation, hence also for two products added.

    Parameters
    ----------
    q_nope : array (q_len, num_qo_heads, rank)
        Absorbed queries.
    q_pe : array (q_len, num_qo_heads, rope_dim)
        Rotated queries.
    ckv : array (kv_len, rank)
        All live latents, in order of position.
    kpe : array (kv_len, rope_dim)
        Rotated keys.
    sm_scale : float
        Factor on scores.
    causal, mask, window, attention_chunk, softcap, sinks, with_bound, arithmetic
        As in :func:`pagedref.attention.dense_attention`.
    sparse_positions : array (q_len, top_k) of int, optional
        Visible key positions of each query, -1 = unused; in place of the causal rule.

    Returns
    -------
    DenseState
        ``out`` (q_len, num_qo_heads, rank) and ``lse`` (q_len, num_qo_heads).

    Raises
    ------
    ContractError
        Shapes do not fit or a keyword is out of range.

    Examples
    --------
    >>> one = np.ones((1, 1, 1))
    >>> state = dense_mla(one, one, np.array([[1.0], [3.0]]), np.zeros((2, 1)), sm_scale=0.0)
    >>> float(state.out[0, 0, 0]), round(float(np.exp(state.lse[0, 0])), 9)
    (2.0, 2.0)
    """
    if sparse_positions is not None:
        selected = np.zeros((len(q_nope), len(ckv)), bool)
        for row, chosen in enumerate(sparse_positions):
            selected[row, chosen[chosen >= 0]] = True
        causal = bool(causal)
        mask = selected if mask is None else mask & selected
    q = np.concatenate([q_nope, q_pe], axis=-1)  # (q_len, num_qo_heads, rank + rope_dim)
    k = np.concatenate([ckv, kpe], axis=-1, dtype=np.float64)[:, None]  # (kv_len, 1, rank + rope_dim)
    return dense_attention(
        q,
        k,
        ckv[:, None],
        causal=causal,
        mask=mask,
        sm_scale=sm_scale,
        window=window,
        attention_chunk=attention_chunk,
        softcap=softcap,
        sinks=sinks,
        with_bound=with_bound,
        arithmetic=arithmetic,
    )


def mla_textbook(
    q_nope: Array, q_pe: Array, ckv_cache: Array, kpe_cache: Array, frames: Array, kv_len: int, *, sm_scale: float
) -> AttentionState:
    """Attend causally with the last tokens of one sequence, key by key, as the formula is written.

    Parameters
    ----------
    q_nope : array (q_len, num_qo_heads, rank)
        Absorbed queries.
    q_pe : array (q_len, num_qo_heads, rope_dim)
        Rotated queries.
    ckv_cache, kpe_cache : arrays (num_frames, page_size, dim)
        The pool.
    frames : array (pages,) of int
        Frame of each page.
    kv_len : int
        Live tokens.
    sm_scale : float
        Factor on scores.

    Returns
    -------
    AttentionState
        ``out`` (q_len, num_qo_heads, rank) and ``lse`` (q_len, num_qo_heads) in float64.

    Notes
    -----
    Mutates: nothing. Written to be read: one loop over rows, one over keys, and no checks.

    Examples
    --------
    >>> ckv, kpe = np.array([[[1.0], [3.0]]]), np.zeros((1, 2, 1))
    >>> mla_textbook(np.ones((1, 1, 1)), np.ones((1, 1, 1)), ckv, kpe, [0], 2, sm_scale=0.0).out.ravel().tolist()
    [2.0]
    """
    q_len, page_size = len(q_nope), ckv_cache.shape[1]
    out = np.zeros(q_nope.shape)
    lse = np.full(q_nope.shape[:2], -np.inf)
    for row in range(q_len):
        position = kv_len - q_len + row
        scores, values = [], []
        for key in range(position + 1):
            frame = frames[addressing.page_of(key, page_size)]
            offset = addressing.offset_of(key, page_size)
            ckv, kpe = ckv_cache[frame, offset].astype(float), kpe_cache[frame, offset].astype(float)
            scores.append(sm_scale * (q_nope[row] @ ckv + q_pe[row] @ kpe))  # (num_qo_heads,)
            values.append(ckv)
        if scores:
            top = np.max(scores, axis=0)
            weights = np.exp(np.array(scores) - top)  # (keys, num_qo_heads)
            lse[row] = top + np.log(weights.sum(axis=0))
            out[row] = weights.T @ np.array(values) / weights.sum(axis=0)[:, None]
    return AttentionState(out, lse)


def _split(function: str, w_kv_b: Array, nope_dim: int) -> tuple[Array, Array]:
    """Return the parts of the expanding matrix for keys and for values."""
    if getattr(w_kv_b, "ndim", 0) != 3:
        need = "(num_qo_heads, nope_dim + v_dim, rank)"
        validate.fail(function, "w_kv_b", "has the wrong number of dimensions", np.shape(w_kv_b), need)
    if isinstance(nope_dim, bool) or not isinstance(nope_dim, int | np.integer):
        validate.fail(function, "nope_dim", "is not an integer", repr(nope_dim)[:80], f"1..{w_kv_b.shape[1] - 1}")
    if not 0 < nope_dim < w_kv_b.shape[1]:
        validate.fail(function, "nope_dim", "leaves no values", nope_dim, f"1..{w_kv_b.shape[1] - 1}")
    return w_kv_b[:, :nope_dim], w_kv_b[:, nope_dim:]


def _fits(function: str, argument: str, array: Any, ndim: int, tail: tuple[int, ...], rule: str) -> None:
    """Refuse what is no array of so many axes, the last of them of these sizes."""
    shape = getattr(array, "shape", None)
    if shape is None or len(shape) != ndim or (tail and tuple(shape[-len(tail) :]) != tail):
        got = type(array).__name__ if shape is None else tuple(shape)
        validate.fail(function, argument, "has the wrong shape", got, f"{rule}, ending in {tail}" if tail else rule)


def mla_expand(w_kv_b: Array, ckv: Array, *, nope_dim: int) -> tuple[Array, Array]:
    """Expand latents into the keys and values of each head: the explicit form (S13).

    Parameters
    ----------
    w_kv_b : array (num_qo_heads, nope_dim + v_dim, rank)
        The expanding matrix of the model.
    ckv : array (kv_len, rank)
        Latents.
    nope_dim : int
        Rows of `w_kv_b` that give keys; the others give values.

    Returns
    -------
    k_nope : array (kv_len, num_qo_heads, nope_dim)
        Unrotated part of the keys; the rotated part, ``kpe``, is the same for all heads.
    v : array (kv_len, num_qo_heads, v_dim)
        Values.

    Raises
    ------
    ContractError
        The matrix has no such parts.

    Examples
    --------
    >>> w_kv_b = np.array([[[1.0, 0.0], [0.0, 2.0]]])
    >>> [part.ravel().tolist() for part in mla_expand(w_kv_b, np.array([[5.0, 7.0]]), nope_dim=1)]
    [[5.0], [14.0]]
    """
    for_keys, for_values = _split("mla_expand", w_kv_b, nope_dim)
    _fits("mla_expand", "ckv", ckv, 2, w_kv_b.shape[2:], "(kv_len, rank)")
    return np.einsum("hnr,tr->thn", for_keys, ckv), np.einsum("hvr,tr->thv", for_values, ckv)


def mla_absorb(w_kv_b: Array, q_nope: Array) -> Array:
    """Multiply the keys' part of the expanding matrix into the queries (S13); the scale stays what it was.

    Parameters
    ----------
    w_kv_b : array (num_qo_heads, nope_dim + v_dim, rank)
        The expanding matrix of the model.
    q_nope : array (tokens, num_qo_heads, nope_dim)
        Unrotated part of the queries.

    Returns
    -------
    array (tokens, num_qo_heads, rank)
        For ``mla_decode`` and ``mla_prefill``.

    Raises
    ------
    ContractError
        The matrix has no such part.

    Examples
    --------
    >>> mla_absorb(np.array([[[1.0, 3.0], [0.0, 2.0]]]), np.array([[[2.0]]])).ravel().tolist()
    [2.0, 6.0]
    """
    _fits("mla_absorb", "q_nope", q_nope, 3, (), "(tokens, num_qo_heads, nope_dim)")
    for_keys, _ = _split("mla_absorb", w_kv_b, q_nope.shape[-1])
    _fits("mla_absorb", "q_nope", q_nope, 3, for_keys.shape[:2], "(tokens, num_qo_heads, nope_dim)")
    return np.asarray(np.einsum("thn,hnr->thr", q_nope, for_keys))


def mla_project(w_kv_b: Array, out: Array, *, nope_dim: int) -> Array:
    """Turn mean latents into mean values of each head (S13).

    Parameters
    ----------
    w_kv_b : array (num_qo_heads, nope_dim + v_dim, rank)
        The expanding matrix of the model.
    out : array (tokens, num_qo_heads, rank)
        Output of ``mla_decode`` or ``mla_prefill``.
    nope_dim : int
        Rows of `w_kv_b` that give keys.

    Returns
    -------
    array (tokens, num_qo_heads, v_dim)
        What explicit attention gives.

    Raises
    ------
    ContractError
        The matrix has no such part.

    Examples
    --------
    >>> mla_project(np.array([[[1.0, 0.0], [0.0, 2.0]]]), np.array([[[5.0, 7.0]]]), nope_dim=1).ravel().tolist()
    [14.0]
    """
    _, for_values = _split("mla_project", w_kv_b, nope_dim)
    _fits("mla_project", "out", out, 3, (w_kv_b.shape[0], w_kv_b.shape[2]), "(tokens, num_qo_heads, rank)")
    return np.asarray(np.einsum("thr,hvr->thv", out, for_values))


@dataclass(frozen=True)
class LatentCacheSpec:
    """Describe the latent cache of one model: what a token takes.

    Parameters
    ----------
    num_layers, rank, rope_dim : int
        Layers, numbers in a latent, numbers in a rotated key; >= 1.
    page_size : int
        Positions in one page, >= 1.
    ckv_format, kpe_format : KVFormat
        How both are stored.

    Raises
    ------
    ContractError
        If a number is below 1.

    References
    ----------
    DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 4.2: 61 layers, rank 512, 64 rotated.

    Examples
    --------
    DeepSeek-V3 in bfloat16; and with latents in float8, one scale for 128 of them:

    >>> half = KVFormat("bfloat16")
    >>> LatentCacheSpec(61, 512, 64, page_size=64, ckv_format=half, kpe_format=half).bytes_per_token
    70272
    >>> eighth = KVFormat("e4m3fn", "group", group_size=128)
    >>> LatentCacheSpec(1, 512, 64, page_size=64, ckv_format=eighth, kpe_format=half).bytes_per_token
    656
    """

    num_layers: int
    rank: int
    rope_dim: int
    page_size: int
    ckv_format: KVFormat = field(default_factory=KVFormat)
    kpe_format: KVFormat = field(default_factory=KVFormat)

    def __post_init__(self) -> None:
        for name in ("num_layers", "rank", "rope_dim", "page_size"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ContractError(f"LatentCacheSpec: {name} is not a positive integer, got {value!r}, need >= 1")
            object.__setattr__(self, name, int(value))
        for name in ("ckv_format", "kpe_format"):
            form = getattr(self, name)
            if not isinstance(form, KVFormat):
                raise ContractError(f"LatentCacheSpec: {name} is no KVFormat, got {form!r}, need one")

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers."""
        ckv = self.ckv_format.bytes_per_token(1, self.rank)
        return self.num_layers * (ckv + self.kpe_format.bytes_per_token(1, self.rope_dim))

    @property
    def bytes_per_frame(self) -> int:
        """Bytes of one frame over all layers."""
        return self.bytes_per_token * self.page_size
