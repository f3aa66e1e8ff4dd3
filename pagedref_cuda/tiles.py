"""The one idea, on the device: walk the pages of a sequence with a running softmax.

Decode, prefill and attention over latents differ only in which row a thread owns and in how a score is made; the rest
stands here once. On this rung a tile is one key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.call import AttentionCall
from pagedref.options import AttentionOptions
from pagedref_cuda import _runtime
from pagedref_cuda._device import exp, interval, log, offset_of, page_of, tanh
from pagedref_cuda._numbers import FLOAT32, Numbers, narrow, number, put
from pagedref_cuda._result import Result
from pagedref_cuda._runtime import device_function
from pagedref_cuda._storage import Stored, stored_number
from pagedref_cuda.rotary import Rotation, rotated_number
from pagedref_cuda.state import add_sink

__all__ = [
    "PAGES", "RULES", "Pages", "Rules", "attend_row", "begin_row", "finish_row", "modified", "pages", "refused",
    "rules", "take_key", "visible",
]  # fmt: skip

Array = npt.NDArray[Any]

_MINUS_INFINITY = np.float32(-np.inf)
_ZERO = np.float32(0.0)
_FAR = 1 << 62


class Pages(NamedTuple):
    """The sequences of a batch and their pages.

    Attributes
    ----------
    qo_indptr, kv_indptr, kv_indices, kv_lens : arrays of int64
        As in :class:`pagedref.call.AttentionCall`.
    page_size : int
        Positions in a page.
    mask : array of uint8
        All masks in one flat array; empty without masks (S14).
    first_pair : array (num_seqs,) of int64
        Where the mask of each sequence starts.
    flag : array (1,) of int32
        Nonzero where a kernel has found the metadata wrong; empty where the host has checked it.
    """

    qo_indptr: Array
    kv_indptr: Array
    kv_indices: Array
    kv_lens: Array
    page_size: int
    mask: Array
    first_pair: Array
    flag: Array


class Rules(NamedTuple):
    """The keywords of a call as numbers, so that one compilation serves every variant.

    Attributes
    ----------
    causal, window_left, window_right, attention_chunk : int
        0, -1, -1 and 0 are off (S4, S5).
    sm_scale, softcap : float32
        A softcap of -1 is off (S1, S2).
    alibi_slopes, sinks : arrays (num_qo_heads,) of float32
        0 and -inf where the keyword is absent, which change nothing (L13).
    """

    causal: int
    window_left: int
    window_right: int
    attention_chunk: int
    sm_scale: np.float32
    softcap: np.float32
    alibi_slopes: Array
    sinks: Array


PAGES = (Pages, ("int64[:]", "int64[:]", "int64[:]", "int64[:]", "int64", "uint8[:]", "int64[:]", "int32[:]"))
"""Type of :class:`Pages` in the signature of a kernel."""
RULES = (Rules, ("int64", "int64", "int64", "int64", "float32", "float32", "float32[:]", "float32[:]"))
"""Type of :class:`Rules` in the signature of a kernel."""


@device_function
def refused(flag: Array) -> Any:
    """Tell whether a kernel has found the metadata of this call wrong: then nothing is written."""
    return flag.shape[0] > 0 and flag[0] != 0


@device_function
def visible(sequence: int, row: int, pages: Pages, rules: Rules) -> tuple[int, int, int, int]:
    """Return the position of a query row, the interval of keys that it may see, and where its mask begins."""
    kv_len = pages.kv_lens[sequence]
    q_len = pages.qo_indptr[sequence + 1] - pages.qo_indptr[sequence]
    in_sequence = row - pages.qo_indptr[sequence]
    position = kv_len - q_len + in_sequence  # S3
    start, stop = interval(
        position, kv_len, rules.causal, rules.window_left, rules.window_right, rules.attention_chunk
    )
    first_pair = pages.first_pair[sequence] + in_sequence * kv_len if pages.mask.shape[0] > 0 else 0
    return position, start, stop, first_pair


@device_function
def modified(score: np.float32, key: int, position: int, head: int, rules: Rules) -> Any:
    """Apply softcap and bias to a score that is scaled already (S1)."""
    if rules.softcap >= _ZERO:
        score = rules.softcap * tanh(score / rules.softcap)
    return score + rules.alibi_slopes[head] * np.float32(key - position)


@device_function
def begin_row(row: int, head: int, result: Result) -> None:
    """Set the running mean to 0."""
    for d in range(result.mean.shape[2]):
        result.mean[row, head, d] = _ZERO


@device_function
def take_key(
    score: np.float32,
    top: np.float32,
    total: np.float32,
    row: int,
    head: int,
    values: Stored,
    frame: int,
    offset: int,
    kv_head: int,
    mean: Array,
) -> tuple[np.float32, np.float32]:
    """Weigh the value of one key into the running mean; return the new maximum and the new total."""
    new_top = max(top, score)
    if score != score:
        new_top = score
    shift = _ZERO if new_top == _MINUS_INFINITY else new_top  # a row that has seen nothing yet keeps 0
    weight = exp(score - shift)
    rescale = exp(top - shift)
    for d in range(mean.shape[2]):
        value = stored_number(values, frame, offset, kv_head, d)
        mean[row, head, d] = mean[row, head, d] * rescale + weight * value
    return new_top, total * rescale + weight


@device_function
def finish_row(top: np.float32, total: np.float32, row: int, head: int, rules: Rules, result: Result) -> None:
    """Divide, take the logarithm, merge the sink, and round to the type of the output."""
    mean = result.mean
    if total == _ZERO:
        for d in range(mean.shape[2]):
            mean[row, head, d] = _ZERO
        result.lse[row, head] = _MINUS_INFINITY
    else:
        for d in range(mean.shape[2]):
            mean[row, head, d] /= total
        result.lse[row, head] = top + log(total)
    add_sink(row, head, rules.sinks[head], mean, result.lse)
    if result.out.kind != FLOAT32:
        for d in range(mean.shape[2]):
            put(result.out, 0, row, head, d, narrow(mean[row, head, d], result.out.kind))


@device_function
def attend_row(
    sequence: int,
    row: int,
    head: int,
    q: Numbers,
    keys: Stored,
    values: Stored,
    group_size: int,
    head_dim: int,
    rotation: Rotation,
    pages: Pages,
    rules: Rules,
    result: Result,
) -> None:
    """Attend with one query row of one head: the twin of ``attend_rows``, with tiles of one key.

    The keys ``start .. stop - 1`` are visible, where there is no mask or it holds nonzero; no other is touched (S7).
    """
    position, start, stop, first_pair = visible(sequence, row, pages, rules)
    first_page = pages.kv_indptr[sequence]
    kv_head = head // group_size  # S12
    top = _MINUS_INFINITY
    total = _ZERO
    begin_row(row, head, result)
    for key in range(start, stop):
        if pages.mask.shape[0] > 0 and pages.mask[first_pair + key] == 0:
            continue
        frame = pages.kv_indices[first_page + page_of(key, pages.page_size)]
        offset = offset_of(key, pages.page_size)
        score = _ZERO
        for d in range(head_dim):
            score += number(q, 0, row, head, d) * rules.sm_scale * rotated_number(
                keys, rotation, key, frame, offset, kv_head, d
            )
        score = modified(score, key, position, head, rules)
        top, total = take_key(score, top, total, row, head, values, frame, offset, kv_head, result.mean)
    finish_row(top, total, row, head, rules, result)


def rules(options: AttentionOptions, num_qo_heads: int) -> Rules:
    """Return the keywords of a call as kernels see them.

    Parameters
    ----------
    options : AttentionOptions
        The checked keywords.
    num_qo_heads : int
        Heads.

    Returns
    -------
    Rules
    """
    with np.errstate(over="ignore"):
        softcap = np.float32(options.softcap or -1.0)
    left, right = (-1 if side is None else min(side, _FAR) for side in (options.window_left, options.window_right))
    slopes, sinks = options.alibi_slopes, options.sinks
    return Rules(
        int(options.causal),
        left,
        right,
        min(options.attention_chunk or 0, _FAR),
        np.float32(options.sm_scale),
        softcap if np.isfinite(softcap) else np.float32(-1.0),  # a cap beyond float32 caps nothing
        _runtime.readable(np.zeros(num_qo_heads, np.float32) if slopes is None else slopes.astype(np.float32)),
        _runtime.readable(
            np.full(num_qo_heads, _MINUS_INFINITY) if sinks is None else sinks.astype(np.float32)
        ),
    )


def pages(call: AttentionCall) -> Pages:
    """Return the batch of a call as kernels see it.

    Parameters
    ----------
    call : AttentionCall
        The checked call.

    Returns
    -------
    Pages
    """
    pairs = np.diff(call.qo_indptr) * call.kv_lens
    parts = [part.reshape(-1) for part in call.masks]
    mask = np.concatenate(parts).view(np.uint8) if parts else np.empty(0, np.uint8)
    batch = call.qo_indptr, call.kv_indptr, call.kv_indices, call.kv_lens
    qo_indptr, kv_indptr, kv_indices, kv_lens = map(_runtime.readable, batch)
    masks = _runtime.readable(mask), _runtime.readable(np.cumsum(pairs) - pairs)
    none = _runtime.readable(np.empty(0, np.int32))
    return Pages(qo_indptr, kv_indptr, kv_indices, kv_lens, call.dims["page_size"], *masks, none)
