"""Attention over pages as named steps in float64, each of which can be replaced by a wrong one.

As it stands it computes what the specification says. With one step replaced it is one declared mistake: as a backend it
is a mutant that the suite has to kill, and as a reference it is a hypothesis about a backend that is wrong
(:mod:`pagedref.conformance.diagnosis`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.state import AttentionState
from pagedref.call import attention_call
from pagedref.conformance._sequence import SequenceSteps
from pagedref.conformance.cases import PagedCase
from pagedref.numerics import unit_roundoff

__all__ = ["Answer", "Steps", "case_of", "state_of"]

Array = npt.NDArray[Any]
Step = Callable[..., Any]
_PAGES = ("k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len")


@dataclass(frozen=True)
class Answer:
    """Output and lse by some semantics, and how far a float32 backend of these semantics may be from them.

    Attributes
    ----------
    parts : dict of str to array
        Results by name: ``out`` and ``lse``, or caches.
    bounds : dict of str to array
        Errors that rounding explains; 0 where bits are asked for.
    """

    parts: dict[str, Array]
    bounds: dict[str, Array]


@dataclass(frozen=True)
class Steps:
    """The steps of attention; each field is one operator.

    Attributes
    ----------
    before : callable (case) -> case
        Applied to the tables and stored numbers.
    live : callable (last, page_size) -> last
        Live positions of the last page.
    kv_head : callable (heads, group_size, num_kv_heads) -> kv heads
        The kv head of each query head (S12).
    position : callable (row, q_len, kv_len) -> position
        Absolute position of a query row (S3).
    causal, left, right : callable (distance, limit) -> bool
        Which distances ``key - position`` are visible (S4, S5); the limit of causal is ``kv_len - q_len``.
    chunk : callable (keys, positions, size) -> bool
        Chunked local visibility (S5).
    mask : callable (mask, causal visibility) -> bool
        A custom mask together with the other rules (S14).
    scale : callable (sm_scale, given, head_dim, v_head_dim) -> factor
        Factor of the scores (S1); `given` says whether the caller gave it.
    cap : callable (scores, softcap) -> scores
        Softcap (S2).
    bias : callable (slopes, keys, positions, kv_len) -> bias
        ALiBi (S6).
    order : tuple of str
        The order of scale, cap, bias and mask (S1).
    hidden : callable (softcap) -> score
        What a masked score is (S7).
    top : callable (maximum) -> shift
        What is subtracted before the exponential.
    exp : callable
        The exponential.
    lse : callable (top, total) -> lse
        From the largest score and the sum (S9).
    sink : callable (sinks, scale) -> logits
        What enters as a sink (S11).
    sink_count : callable (keys seen, page_size) -> count
        How often.
    total : callable (total) -> divisor
        What the output is divided by.
    rescale_total, rescale_mean : bool
        Whether running sums follow a new maximum.
    tile : callable (page_size) -> keys, or None
        Keys that enter at a time; None is all of them.
    values : callable (keys, values) -> values
        What is averaged.
    empty : callable (values, kv_len) -> (out, lse) or None
        A row that sees no key (S8); None is the rule.
    tail : str
        Where dead slots of the last page enter with weight 0: in ``v``, in ``kv``, or nowhere.
    after : callable (out, lse, case) -> (out, lse)
        What is done to the result.
    """

    before: Step = lambda case: case
    live: Step = lambda last, page_size: last
    kv_head: Step = lambda heads, group_size, num_kv_heads: heads // group_size
    position: Step = lambda row, q_len, kv_len: kv_len - q_len + row
    causal: Step = lambda distance, limit: distance <= 0
    left: Step = lambda distance, limit: distance >= -limit
    right: Step = lambda distance, limit: distance <= limit
    chunk: Step = lambda keys, positions, size: keys // size == positions // size
    mask: Step = lambda mask, others: mask & others
    scale: Step = lambda sm_scale, given, head_dim, v_head_dim: sm_scale
    cap: Step = lambda scores, softcap: softcap * np.tanh(scores / softcap)
    bias: Step = lambda slopes, keys, positions, kv_len: slopes * (keys - positions)
    order: tuple[str, ...] = ("scale", "cap", "bias", "mask")
    hidden: Step = lambda softcap: -np.inf
    top: Step = lambda maximum: maximum
    exp: Step = np.exp
    lse: Step = lambda top, total: top + np.log(total)
    sink: Step = lambda sinks, scale: sinks
    sink_count: Step = lambda seen, page_size: np.ones(np.shape(seen))
    total: Step = lambda total: total
    rescale_total: bool = True
    rescale_mean: bool = True
    tile: Step | None = None
    values: Step = lambda keys, values: values
    empty: Step | None = None
    tail: str = ""
    after: Step = lambda out, lse, case: (out, lse)

    def answer(self, case: PagedCase, *, decode: bool = False) -> Answer:
        """Answer a case.

        Parameters
        ----------
        case : PagedCase
            The batch; read from its caches, as a backend would.
        decode : bool
            As ``paged_decode``: one row for each sequence.

        Returns
        -------
        Answer
            Of float64, with coarse bounds that follow from the largest numbers alone.
        """
        with np.errstate(all="ignore"):
            changed = self.before(case)
            rows = [slice(at, at + 1) if decode else slice(*case.qo_indptr[at : at + 2]) for at in range(_seqs(case))]
            found = [SequenceSteps(self, changed, at, case.q[span], decode).attend() for at, span in enumerate(rows)]
            size = found[0][0].shape[2] if found else case.v_cache.shape[3]
            out, out_bound = (np.zeros((*case.q.shape[:2], size)) for _ in range(2))
            lse, lse_bound = np.full(case.q.shape[:2], -np.inf), np.zeros(case.q.shape[:2])
            for span, parts in zip(rows, found, strict=True):
                out[span], lse[span], out_bound[span], lse_bound[span] = parts
            moved = [self.after(out + way * out_bound, lse + way * lse_bound, case) for way in (-1, 1)]
            results = self.after(out, lse, case)
            reach = [np.maximum(*(np.abs(other[at] - x) for other in moved)) for at, x in enumerate(results)]
            least = 32 * unit_roundoff("float32")
            both = [(x, 4 * error + least * np.abs(x)) for x, error in zip(results, reach, strict=True)]
            bounds = [np.where(np.isfinite(number), bound, 0.0) for number, bound in both]
        return Answer(dict(zip(("out", "lse"), results, strict=True)), dict(zip(("out", "lse"), bounds, strict=True)))

    def operations(self) -> dict[str, Any]:
        """Return ``paged_decode`` and ``paged_prefill`` that follow these steps.

        Returns
        -------
        dict of str to callable
        """

        def paged_decode(*arrays: Array, **keywords: Any) -> AttentionState:
            return state_of(self, case_of("paged_decode", arrays, keywords), decode=True)

        def paged_prefill(*arrays: Array, **keywords: Any) -> AttentionState:
            return state_of(self, case_of("paged_prefill", arrays, keywords))

        return {"paged_decode": paged_decode, "paged_prefill": paged_prefill}


def _seqs(case: PagedCase) -> int:
    return len(case.kv_last_page_len)


def state_of(steps: Steps, case: PagedCase, *, decode: bool = False) -> AttentionState:
    """Return the state of a case, rounded to the types of the contract.

    Parameters
    ----------
    steps : Steps
        The semantics.
    case : PagedCase
        The batch.
    decode : bool
        As ``paged_decode``.

    Returns
    -------
    AttentionState
    """
    answer = steps.answer(case, decode=decode)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = case.q.dtype == np.float64
        out, lse = answer.parts["out"].astype(case.q.dtype), answer.parts["lse"]
        return AttentionState(out, lse.astype(np.float64 if wide else np.float32))


def case_of(function: str, arrays: tuple[Array, ...], keywords: dict[str, Any]) -> PagedCase:
    """Return a call of the contract as a case, its arguments checked as the reference checks them.

    Parameters
    ----------
    function : str
        ``paged_decode`` or ``paged_prefill``.
    arrays : tuple of arrays
        The arrays in order.
    keywords : dict
        The keywords.

    Returns
    -------
    PagedCase
        Without the live keys and values.

    Raises
    ------
    PagedRefError
        As the reference raises it.
    """
    names = ("q", *_PAGES) if function == "paged_decode" else ("q", "qo_indptr", *_PAGES)
    given = dict(zip(names, arrays, strict=True))
    per_head = {name: keywords.get(name) for name in ("alibi_slopes", "sinks")}
    others = {name: x for name, x in keywords.items() if name not in per_head}
    call = attention_call(function, "numpy", {**given, **per_head}, others)
    stored = {name: x for name, x in keywords.items() if name == "kv_format" or name.endswith(("_scale", "_zero"))}
    stored.pop("sm_scale", None)
    options = {name: x for name, x in keywords.items() if name not in stored and x is not None}
    if call.masks:
        options["mask"] = call.masks
    given = {"qo_indptr": call.qo_indptr, **given}
    return PagedCase(**given, keys=[], values=[], keywords=options, stored=stored)
