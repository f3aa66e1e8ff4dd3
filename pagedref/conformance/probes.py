"""Probes: a fixed set of small calls, each for one boundary, by which a backend is judged and its mistakes recognised.

Everything that is not live holds a finite number, so that a kernel that reads it gives a definite wrong answer; the
probes of poison hold NaN. Every probe has its right answer, and every slip has an answer to it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as reference
from pagedref.conformance.cases import PagedCase, judged_as, make_case, oracle
from pagedref.conformance.steps import Answer
from pagedref.kv_format import KVFormat
from pagedref.numerics import EXP_ULPS, LOG_ULPS, unit_roundoff

__all__ = ["PROBES", "Probe", "right_answer"]

Array = npt.NDArray[Any]
Parts = dict[str, Array]


@dataclass(frozen=True)
class Probe:
    """One call and its right answer.

    Attributes
    ----------
    name : str
        The boundary.
    operation : str
        Of the contract.
    run : callable (backend) -> parts
        Calls the operation with fresh arguments and returns its results by name, as plain arrays.
    case : PagedCase or None
        The batch, for attention.
    stores : tuple of str
        Types of the caches.
    """

    name: str
    operation: str
    run: Callable[[Any], Parts]
    case: PagedCase | None = None
    stores: tuple[str, ...] = field(default=("float32",))

    @property
    def decode(self) -> bool:
        """Whether it asks for decode."""
        return self.operation == "paged_decode"


@cache
def right_answer(name: str, arithmetic: str = "float32") -> Answer:
    """Return the right answer of a probe.

    Parameters
    ----------
    name : str
        Of the probe.
    arithmetic : str
        Type in which the backend computes; decides the bound.

    Returns
    -------
    Answer
        Of the oracle with its bound for attention, of the reference otherwise.
    """
    probe = PROBES[name]
    if probe.case is not None:
        with judged_as(arithmetic):
            exact = oracle(probe.case)
        assert exact.out_bound is not None and exact.lse_bound is not None
        return Answer({"out": exact.out, "lse": exact.lse}, {"out": exact.out_bound, "lse": exact.lse_bound})
    if probe.operation == "merge_states":
        return _merged(probe)
    parts = probe.run(reference)
    return Answer(parts, {name: np.zeros(part.shape) for name, part in parts.items()})


def _merged(probe: Probe) -> Answer:
    """Return the right answer of a merge in float64, and what the roundings of float32 may make of it."""
    seen: list[Array] = []

    def merge_states(out: Array, lse: Array) -> Any:
        seen.extend((out.astype(np.float64), lse.astype(np.float64)))
        return reference.merge_states(*seen)

    parts = probe.run(SimpleNamespace(merge_states=merge_states))
    finite = seen[1][np.isfinite(seen[1])]
    unit, size = unit_roundoff("float32"), float(np.abs(finite).max(initial=0))
    terms = 2 * float(np.ptp(finite) if finite.size else 0) + (4 * EXP_ULPS + 8) * (len(seen[1]) + 2)
    relative = float(np.expm1(unit * terms))
    lse_bound = relative + unit * (2 * LOG_ULPS * np.log(len(seen[1]) + 2) + 4 * size)
    shown = np.isfinite(parts["lse"])
    out_bound = 2 * relative * float(np.abs(seen[0]).max(initial=0)) * shown[..., None] * np.ones(parts["out"].shape)
    return Answer(parts, {"out": out_bound, "lse": lse_bound * shown})


def _state(result: Any) -> Parts:
    """Return what an attention call gave, by name; a backend without lse gives the output alone."""
    pair = tuple(result) if isinstance(result, tuple | list) else (result, None)
    return {name: np.asarray(part) for name, part in zip(("out", "lse"), pair, strict=False) if part is not None}


def _attention(name: str, decode: bool, case: PagedCase) -> Probe:
    """Return a probe of a batch."""

    def run(backend: Any) -> Parts:
        with np.errstate(all="ignore"):
            return _state(case.decode(backend) if decode else case.prefill(backend))

    operation = "paged_decode" if decode else "paged_prefill"
    return Probe(f"{'decode' if decode else 'prefill'}: {name}", operation, run, case, (case.k_cache.dtype.name,))


_GEOMETRY: dict[str, Any] = {"group_size": 3, "head_dim": 8, "v_head_dim": 8, "poison": 3.0}
_KV = [1, 9, 4, 7, 13]
_FORMS = {
    "float16": KVFormat("float16"),
    "e4m3fn, one scale per head": KVFormat("e4m3fn", "head"),
    "int8, one scale": KVFormat("int8", "tensor"),
    "int8, scale per slot": KVFormat("int8", "slot_head"),
    "int8, scale per frame": KVFormat("int8", "frame_head"),
    "int8, zero point": KVFormat("int8", "slot_head", zero_point=True),
    "int4, groups and zero point": KVFormat("int4", "group", group_size=4, zero_point=True),
    "int4, scale per head": KVFormat("int4", "head"),
}


def _slopes() -> Array:
    return np.array([0.9, 0.1, 0.4, 0.7, 0.2, 0.05], np.float32)


def _sinks() -> Array:
    return np.array([0.5, 1.5, 0.25, 2.0, 0.75, 1.0], np.float32)


def _masks(rows: list[int], lens: list[int], seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.random(shape) < 0.6 for shape in zip(rows, lens, strict=True)]


def _decode_probes() -> list[Probe]:
    """Return the probes of decode."""
    rows = [1] * len(_KV)
    variants: dict[str, dict[str, Any]] = {
        "pages of 4": {},
        "pages of 3": {"page_size": 3},
        "pages of 1": {"page_size": 1},
        "pages of 16": {"page_size": 16},
        "many heads": {"num_kv_heads": 3, "group_size": 2},
        "one head per head": {"num_kv_heads": 4, "group_size": 1},
        "given sm_scale": {"sm_scale": 0.7},
        "sm_scale of 0": {"sm_scale": 0.0},
        "sm_scale of 0, pages of 3": {"sm_scale": 0.0, "page_size": 3},
        "another v_head_dim": {"v_head_dim": 5, "head_dim": 12},
        "steep scores": {"spread": 12.0},
        "NaN in dead slots": {"poison": float("nan")},
        "window": {"window": 3},
        "window of 1": {"window": 1},
        "window as a pair": {"window": (4, 0)},
        "attention_chunk": {"attention_chunk": 4},
        "softcap": {"softcap": 0.8},
        "softcap and steep scores": {"softcap": 2.0, "spread": 6.0},
        "ALiBi": {"alibi_slopes": _slopes()},
        "ALiBi and softcap": {"alibi_slopes": _slopes(), "softcap": 0.8},
        "sinks": {"sinks": _sinks()},
        "sinks and softcap": {"sinks": _sinks(), "softcap": 0.5},
        "sinks and window": {"sinks": _sinks(), "window": 5},
    }
    probes = [
        _attention(name, True, make_case(60 + at, rows, _KV, **{**_GEOMETRY, **keywords}))
        for at, (name, keywords) in enumerate(variants.items())
    ]
    empty = [0, 6, 0, 3]
    probes.append(_attention("sequences without keys", True, make_case(90, [1] * 4, empty, **_GEOMETRY)))
    probes.append(_attention("sinks without keys", True, make_case(91, [1] * 4, empty, sinks=_sinks(), **_GEOMETRY)))
    probes.append(_attention("scores far below zero", True, _low_scores(92, [1, 1, 1], [5, 9, 2], 60_000)))
    far = _low_scores(94, [1, 1, 1], [5, 9, 2], 60_000)
    probes.append(_attention("scores far below zero, window", True, far.using(window=3, sm_scale=1.0)))
    probes.append(_attention("scores below zero", True, _low_scores(93, [1, 1, 1], [5, 9, 2], 900)))
    for at, (name, form) in enumerate(_FORMS.items()):
        case = make_case(100 + at, [1, 1, 1], [6, 3, 9], form=form, **_GEOMETRY)
        probes.append(_attention(name, True, case))
    return probes


def _low_scores(seed: int, rows: list[int], lens: list[int], depth: float) -> PagedCase:
    """Return a case whose scores all lie that far below 0."""
    case = make_case(seed, rows, lens, num_kv_heads=1, group_size=1, head_dim=1, v_head_dim=4, poison=3.0, sm_scale=1.0)
    case.q[...] = -1
    for keys, cache_rows in zip(case.keys, range(len(lens)), strict=True):
        keys[...] = depth + 0.5 * np.arange(len(keys))[:, None, None]
        frames = case.kv_indices[case.kv_indptr[cache_rows] : case.kv_indptr[cache_rows + 1]]
        at = np.arange(len(keys))
        case.k_cache[frames[at // 4], at % 4] = keys
    return case


def _prefill_probes() -> list[Probe]:
    """Return the probes of prefill."""
    rows, lens = [3, 2, 1, 4], [9, 2, 6, 7]
    variants: dict[str, dict[str, Any]] = {
        "causal, more keys than queries": {},
        "pages of 3": {"page_size": 3},
        "pages of 1": {"page_size": 1},
        "not causal": {"causal": False},
        "given sm_scale": {"sm_scale": 0.7},
        "sm_scale of 0": {"sm_scale": 0.0},
        "sm_scale of 0, pages of 3": {"sm_scale": 0.0, "page_size": 3},
        "another v_head_dim": {"v_head_dim": 5, "head_dim": 12},
        "steep scores": {"spread": 12.0},
        "NaN in dead slots": {"poison": float("nan")},
        "window": {"window": 3},
        "window, not causal": {"window": 3, "causal": False},
        "window as a pair": {"window": (2, 1), "causal": False},
        "window to the right": {"window": (None, 2), "causal": False},
        "attention_chunk": {"attention_chunk": 4},
        "attention_chunk, not causal": {"attention_chunk": 3, "causal": False},
        "custom mask": {"mask": _masks(rows, lens, 1)},
        "custom mask and causal": {"mask": _masks(rows, lens, 2), "causal": True},
        "custom mask and window": {"mask": _masks(rows, lens, 3), "causal": False, "window": 4},
        "softcap": {"softcap": 0.8},
        "softcap and custom mask": {"softcap": 2.0, "mask": _masks(rows, lens, 4)},
        "ALiBi": {"alibi_slopes": _slopes()},
        "ALiBi, not causal": {"alibi_slopes": _slopes(), "causal": False},
        "ALiBi and window to the right": {"alibi_slopes": _slopes(), "window": (None, 2), "causal": False},
        "ALiBi and softcap": {"alibi_slopes": _slopes(), "softcap": 0.8},
        "sinks": {"sinks": _sinks()},
        "sinks and softcap": {"sinks": _sinks(), "softcap": 0.5},
    }
    probes = [
        _attention(name, False, make_case(160 + at, rows, lens, **{**_GEOMETRY, **keywords}))
        for at, (name, keywords) in enumerate(variants.items())
    ]
    short, few = [5, 3, 4], [2, 0, 3]
    probes += [
        _attention("causal, square", False, make_case(190, [5, 4], [5, 4], **_GEOMETRY)),
        _attention("more queries than keys", False, make_case(191, short, few, **_GEOMETRY)),
        _attention("more queries than keys, sinks", False, make_case(192, short, few, sinks=_sinks(), **_GEOMETRY)),
        _attention("masked rows", False, make_case(193, [3, 2], [6, 5], mask=_blind(), causal=True, **_GEOMETRY)),
        _attention("scores far below zero", False, _low_scores(194, [2, 1], [5, 9], 60_000)),
        _attention("scores below zero", False, _low_scores(196, [2, 1], [5, 9], 900)),
        _attention("NaN in hidden keys", False, _hidden_nan()),
    ]
    for at, (name, form) in enumerate(_FORMS.items()):
        probes.append(_attention(name, False, make_case(200 + at, [2, 1, 3], [6, 3, 9], form=form, **_GEOMETRY)))
    return probes


def _blind() -> list[Array]:
    """Return masks with rows that see nothing."""
    first, second = np.ones((3, 6), bool), np.ones((2, 5), bool)
    first[1], second[0, :4] = False, False
    return [first, second]


def _hidden_nan() -> PagedCase:
    """Return a case with NaN in live keys and values that only the last row sees."""
    case = make_case(195, [3], [9], **_GEOMETRY)
    frame = case.kv_indices[2]
    for cache_, live in ((case.k_cache, case.keys[0]), (case.v_cache, case.values[0])):
        cache_[frame, 0] = live[8] = np.nan
    return case


def _moves() -> list[Probe]:
    """Return the probes of append, gather, copy and merge."""
    from pagedref.conformance._move_probes import move_probes

    return [Probe(name, operation, run, None, stores) for name, operation, run, stores in move_probes()]


PROBES: dict[str, Probe] = {probe.name: probe for probe in (*_decode_probes(), *_prefill_probes(), *_moves())}
"""The probes by name."""
