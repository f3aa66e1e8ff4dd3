"""What mutants are made of: the reference with something replaced, and attention row by row with a method per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as reference
from pagedref.attention import AttentionState, mla
from pagedref.call import attention_call
from pagedref.contract import OPERATIONS
from pagedref.options import AttentionOptions

__all__ = ["Mutant", "Naive", "both", "mutant"]

Array = npt.NDArray[Any]
Attend = Callable[..., AttentionState]


@dataclass(frozen=True)
class Mutant:
    """A wrong backend.

    Attributes
    ----------
    fault : str
        What is wrong, in one line.
    backend : SimpleNamespace
        All operations of the contract, and those of MLA, something in them wrong.
    also : tuple of str
        Fault cases beside its own that notice it.
    broad : bool
        Whether almost every case notices it.
    """

    fault: str
    backend: SimpleNamespace
    also: tuple[str, ...] = ()
    broad: bool = False


def mutant(fault: str, *, also: tuple[str, ...] = (), broad: bool = False, **functions: Any) -> Mutant:
    """Return the reference with some functions replaced.

    Parameters
    ----------
    fault : str
        What is wrong.
    also, broad
        As in :class:`Mutant`.
    **functions
        Wrong operations, and wrong functions of the specification beside them.

    Returns
    -------
    Mutant
    """
    names = {name: getattr(reference, name) for name in OPERATIONS}
    names |= {"mla_decode": mla.mla_decode, "mla_prefill": mla.mla_prefill}
    return Mutant(fault, SimpleNamespace(**{**names, **functions}), also, broad)


def both(change: Callable[[Attend], Attend]) -> dict[str, Any]:
    """Apply a change to decode and prefill.

    Parameters
    ----------
    change : callable
        Takes the right operation and returns the wrong one.

    Returns
    -------
    dict
        For :func:`mutant`.
    """
    return {"paged_decode": change(reference.paged_decode), "paged_prefill": change(reference.paged_prefill)}


class Naive:
    """Attention row by row, right as it stands; a mutant replaces one method.

    Arguments are checked as the reference checks them; numbers are float64 and rounded at the end.
    """

    decode = False

    def sees(self, options: AttentionOptions, position: int, kv_len: int) -> npt.NDArray[np.bool_]:
        """Return which keys the position sees, before a mask: (kv_len,)."""
        start, stop = options.intervals(np.array([position]), kv_len)
        keys = np.arange(kv_len)
        return np.asarray((keys >= start[0]) & (keys < stop[0]))

    def modify(self, options: AttentionOptions, scores: Array, distance: Array, seen: Array) -> Array:
        """Return the final scores of all keys, hidden ones too: (num_qo_heads, kv_len)."""
        if options.softcap is not None:
            scores = options.softcap * np.tanh(scores / options.softcap)
        if options.alibi_slopes is not None:
            scores = scores + options.alibi_slopes[:, None] * distance
        return np.where(seen, scores, -np.inf)

    def top(self, scores: Array) -> Array:
        """Return what is subtracted from the scores of a row: (num_qo_heads, 1)."""
        return np.asarray(scores.max(axis=1, keepdims=True, initial=-np.inf))

    def sink_weight(self, weight: Array, count: int) -> Array:
        """Return what sinks add to the totals of a row that sees `count` keys."""
        return weight

    def empty(self, values: Array, sinks: Array | None, shape: tuple[int, int]) -> tuple[Array, Array]:
        """Return output and lse of a row that sees nothing; `values` (kv_len, num_qo_heads, v_head_dim)."""
        return np.zeros(shape), np.full(shape[0], -np.inf) if sinks is None else sinks

    def row(
        self, options: AttentionOptions, query: Array, keys: Array, values: Array, position: int, seen: Array
    ) -> tuple[Array, Array]:
        """Attend with one query row over all keys of its sequence, repeated for each query head."""
        if not seen.any():
            return self.empty(values, options.sinks, (len(query), values.shape[2]))
        keys = np.where(seen[:, None, None], keys, 0)
        raw = options.sm_scale * np.einsum("hd,khd->hk", query, keys)
        scores = self.modify(options, raw, np.arange(len(keys)) - position, seen)
        top = self.top(scores)
        if options.sinks is not None:
            top = np.maximum(top, options.sinks[:, None])
        weights = np.exp(scores - top)
        total = weights.sum(axis=1)
        if options.sinks is not None:
            total = total + self.sink_weight(np.exp(options.sinks - top[:, 0]), int(seen.sum()))
        used = (weights != 0).any(axis=0)
        mean = np.einsum("hk,khd->hd", weights[:, used], values[used])
        out = np.divide(mean, total[:, None], out=np.zeros_like(mean), where=total[:, None] != 0)
        return out, top[:, 0] + np.log(total)

    def attend(self, function: str, arrays: dict[str, Array], keywords: dict[str, Any]) -> AttentionState:
        """Attend with a whole batch."""
        given = {name: keywords.pop(name, None) for name in ("alibi_slopes", "sinks")}
        call = attention_call(function, "numpy", {**arrays, **given}, keywords)
        names = ("k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len")
        kinds = ("kv_format", "k_scale", "v_scale", "k_zero", "v_zero")
        stored: dict[str, Any] = {name: keywords.get(name) for name in kinds}
        mapped = {**arrays, "kv_indices": np.maximum(arrays["kv_indices"], 0)}  # no visible page is unmapped
        keys, values = reference.gather_kv(*(mapped[name] for name in names), **stored)
        q, options = arrays["q"], call.options
        out = np.zeros((*q.shape[:2], values.shape[2]), q.dtype)
        lse = np.zeros(q.shape[:2], np.float64 if q.dtype == np.float64 else np.float32)
        stops = np.cumsum(call.kv_lens)
        with np.errstate(all="ignore"):
            for sequence, kv_len in enumerate(call.kv_lens.tolist()):
                span = slice(int(stops[sequence]) - kv_len, int(stops[sequence]))
                k, v = (np.repeat(part[span].astype(np.float64), call.group_size, axis=1) for part in (keys, values))
                first = int(call.qo_indptr[sequence])
                for index, position in enumerate(call.positions(sequence).tolist()):
                    seen = self.sees(options, position, kv_len)
                    if call.masks:
                        seen = seen & call.masks[sequence][index]
                    at = first + index
                    out[at], lse[at] = self.row(options, q[at].astype(np.float64), k, v, position, seen)
        return AttentionState(out, lse)

    def operations(self) -> dict[str, Any]:
        """Return decode and prefill, for :func:`mutant`."""
        pages = ("k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len")

        def paged_decode(*arrays: Array, **keywords: Any) -> AttentionState:
            self.decode = True
            return self.attend("paged_decode", dict(zip(("q", *pages), arrays, strict=True)), keywords)

        def paged_prefill(*arrays: Array, **keywords: Any) -> AttentionState:
            self.decode = False
            return self.attend("paged_prefill", dict(zip(("q", "qo_indptr", *pages), arrays, strict=True)), keywords)

        return {"paged_decode": paged_decode, "paged_prefill": paged_prefill}
