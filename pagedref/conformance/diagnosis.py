"""What kind of mistake a backend makes: its numbers against those of declared mistakes.

A hypothesis is an alternative reference. It is named when the backend's answers to probes where it differs from the
specification are those of the hypothesis, within rounding, and none is another; at least two probes must agree. So
a backend that is right, in whatever order it sums, cannot be accused: there is nothing to explain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.conformance.agreement import bound_fraction
from pagedref.conformance.move_slips import MOVE_SLIPS, MoveSlip
from pagedref.conformance.probes import PROBES, right_answer
from pagedref.conformance.replies import Reply, ask, distance
from pagedref.conformance.slips import SLIPS, Slip
from pagedref.conformance.steps import Answer

__all__ = ["Diagnosis", "Named", "diagnose", "explain"]

Array = npt.NDArray[Any]
AnySlip = Slip | MoveSlip
_ATTENTION = ("paged_decode", "paged_prefill")
LEAST = 2
"""So many probes must agree on a diagnosis."""
MOST_HINTED = 10
"""Of so many slips pairs are tried, those that explain most first."""


@dataclass(frozen=True)
class Named:
    """A recognised mistake.

    Attributes
    ----------
    names : tuple of str
        Slips; several at once are one mistake each.
    text : str
        For people.
    rule : str
        Rules that are broken.
    operations : tuple of str
        Where.
    probes : tuple of str
        Failing probes that agree.
    dialect : bool
        Whether it is a convention of a public system.
    """

    names: tuple[str, ...]
    text: str
    rule: str
    operations: tuple[str, ...]
    probes: tuple[str, ...]
    dialect: bool = False

    def __str__(self) -> str:
        where = " and ".join(operation.removeprefix("paged_") for operation in self.operations)
        return f"{self.text} [{where}; {self.rule}; {len(self.probes)} probes agree]"


@dataclass(frozen=True)
class Diagnosis:
    """Replies to all probes, the mistakes that explain them, and what they leave open.

    Attributes
    ----------
    replies : dict of str to Reply
        By probe.
    named : tuple of Named
        Recognised mistakes.
    unexplained : tuple of str
        Failing probes that no mistake explains.
    """

    replies: Mapping[str, Reply]
    named: tuple[Named, ...]
    unexplained: tuple[str, ...]


@lru_cache(maxsize=40_000)
def _wrong_answer(slips: tuple[str, ...], probe_name: str) -> tuple[Answer, bool] | None:
    """Return the answer of one or more slips to a probe, and whether it is clearly another than the right one."""
    probe, right = PROBES[probe_name], right_answer(probe_name)
    chosen = [_BY_NAME[name] for name in slips]
    with np.errstate(all="ignore"):
        if isinstance(chosen[0], MoveSlip):
            if chosen[0].operation != probe.operation:
                return None
            parts = probe.run(chosen[0].backend)
            answer = Answer(parts, {name: 4 * right.bounds[name] for name in parts if name in right.bounds})
        elif probe.case is not None:
            steps = chosen[0].steps
            for slip in chosen[1:]:
                steps = replace(steps, **slip.changes)  # type: ignore[union-attr]
            answer = steps.answer(probe.case, decode=probe.decode)
        else:
            return None
    return answer, distance(answer.parts, _wide(right)) > 1


def _wide(answer: Answer) -> Answer:
    """Return an answer with bounds that grant what a hypothesis may be off itself."""
    return replace(answer, bounds={name: 16 * bound for name, bound in answer.bounds.items()})


_EVERY: list[AnySlip] = [*SLIPS, *MOVE_SLIPS]
_BY_NAME = {slip.name: slip for slip in _EVERY}


def _judge(slips: tuple[str, ...], replies: Iterable[Reply]) -> tuple[list[str], list[str]]:
    """Return the failing probes that agree with slips; none where an answer contradicts them. And those they cover."""
    agree: list[str] = []
    cover: list[str] = []
    for reply in replies:
        wrong = _wrong_answer(slips, reply.probe.name) if reply.parts is not None else None
        if wrong is None or reply.parts is None:
            continue
        same = distance(reply.parts, wrong[0]) <= 1
        if not reply.right and same:
            (agree if wrong[1] else cover).append(reply.probe.name)
        elif wrong[1] and not same:
            return [], []
    return agree, cover


def _hints(slips: tuple[str, ...], replies: Iterable[Reply]) -> int:
    """Count the failing probes of which slips explain at least one result that is wrong."""
    count = 0
    for reply in replies:
        if reply.parts is None or reply.right:
            continue
        wrong, right = _wrong_answer(slips, reply.probe.name), right_answer(reply.probe.name)
        if wrong is None or not wrong[1]:
            continue
        count += any(
            bound_fraction(part, wrong[0].parts[name], wrong[0].bounds[name]) <= 1
            and bound_fraction(part, right.parts[name], right.bounds[name]) > 1
            for name, part in reply.parts.items()
            if name in wrong[0].parts
        )
    return count


def _candidates(operations: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the hypotheses about some operations."""
    if operations[0] in _ATTENTION:
        return [(slip.name,) for slip in SLIPS]
    return [(slip.name,) for slip in MOVE_SLIPS if slip.operation == operations[0]]


def _pairs(singles: list[tuple[str, ...]], replies: list[Reply]) -> list[tuple[str, ...]]:
    """Return two slips at once, of different steps, each of which explains something."""
    counted = [(_hints(names, replies), names[0]) for names in singles]
    some = [name for hints, name in sorted(counted, key=lambda pair: -pair[0]) if hints][:MOST_HINTED]
    return [
        (one, other)
        for one, other in combinations(some, 2)
        if not set(_changes(one)) & set(_changes(other))
    ]


def _changes(name: str) -> dict[str, Any]:
    """Return the steps that a slip replaces."""
    slip = _BY_NAME[name]
    return slip.changes if isinstance(slip, Slip) else {}


def diagnose(
    backend: Any,
    *,
    operations: Iterable[str] | None = None,
    offered: Callable[[Exception], bool] = lambda error: False,
    arithmetic: str = "float32",
    names: Iterable[str] | None = None,
) -> Diagnosis:
    """Ask a backend all probes and name its mistakes.

    Parameters
    ----------
    backend : module or object
        May lack operations.
    operations : iterable of str, optional
        Only probes of these; all by default.
    offered, arithmetic
        As in :func:`~pagedref.conformance.replies.ask`.
    names : iterable of str, optional
        Only these probes.

    Returns
    -------
    Diagnosis
        Nothing is named where nothing fails.

    Examples
    --------
    >>> from pagedref import backends
    >>> diagnose(backends.get("numpy")).named
    ()
    >>> from pagedref.conformance.slips import SLIPS
    >>> [str(found) for found in diagnose(SLIPS[0].backend).named]
    ['lse is base 2: ratio 1.442695 on all rows [decode and prefill; S9; ... probes agree]']
    """
    chosen = None if operations is None else set(operations)
    wanted = set(PROBES if names is None else names)
    replies = {
        name: ask(backend, probe, offered, arithmetic)
        for name, probe in PROBES.items()
        if name in wanted and (chosen is None or probe.operation in chosen)
    }
    return explain(replies)


def explain(replies: Mapping[str, Reply]) -> Diagnosis:
    """Name the mistakes behind replies.

    Parameters
    ----------
    replies : mapping of str to Reply
        By probe.

    Returns
    -------
    Diagnosis
    """
    given = [reply for reply in replies.values() if reply.offered]
    failing = {reply.probe.name for reply in given if not reply.right}
    named: list[Named] = []
    scopes: list[tuple[str, ...]] = [_ATTENTION, *((operation,) for operation in _ATTENTION)]
    scopes += [("append_kv",), ("merge_states",), ("copy_frames",)]
    open_ = set(failing)
    if narrow := _narrow(given):
        named.append(narrow)
        open_ -= set(narrow.probes)
    for scope in scopes:
        inside = [reply for reply in given if reply.probe.operation in scope]
        bad = [reply for reply in inside if reply.probe.name in open_]
        if len({reply.probe.operation for reply in bad}) < len(scope):
            continue
        singles = _candidates(scope)
        found = _best(singles, inside, open_, scope)
        left = {reply.probe.name for reply in bad} - _explained(found, inside)
        if left and scope[0] in _ATTENTION:
            pair = _best(_pairs(singles, inside), inside, open_, scope)
            found = max(found, pair, key=lambda one: 0 if one is None else len(one.probes))
        if found is not None:
            named.append(found)
            open_ -= _explained(found, inside)
    return Diagnosis(replies, tuple(named), tuple(sorted(open_)))


def _narrow(given: list[Reply]) -> Named | None:
    """Tell whether most answers of attention are wrong, and all of these right for a backend that uses float16."""
    everything = [reply for reply in given if reply.probe.case is not None]
    asked = [reply for reply in everything if not reply.right]
    near = [x for x in asked if x.parts is not None and distance(x.parts, right_answer(x.probe.name, "float16")) <= 1]
    if len(near) < max(LEAST, len(everything) // 2) or len(near) < len(asked):
        return None
    text = "computes in float16: every answer is right within the bound of float16, none is a mistake of meaning"
    where = tuple(dict.fromkeys(reply.probe.operation for reply in near))
    return Named(("float16_arithmetic",), text, "S15", where, tuple(reply.probe.name for reply in near), True)


def _explained(found: Named | None, replies: Iterable[Reply]) -> set[str]:
    """Return the failing probes that a mistake explains."""
    return set() if found is None else {*found.probes, *_judge(found.names, replies)[1]}


def _best(
    hypotheses: list[tuple[str, ...]], replies: list[Reply], failing: set[str], scope: tuple[str, ...]
) -> Named | None:
    """Return the hypothesis that explains most, and everything that it says is so."""
    most: tuple[tuple[str, ...], list[str]] | None = None
    for names in hypotheses:
        agree, _ = _judge(names, replies)
        if len(agree) < LEAST or not set(agree) & failing:
            continue
        if most is None or len(agree) > len(most[1]):
            most = names, agree
    if most is None:
        return None
    slips = [_BY_NAME[name] for name in most[0]]
    where = tuple(o for o in scope if any(PROBES[name].operation == o for name in most[1]))
    return Named(
        most[0],
        ", and ".join(slip.text for slip in slips),
        ", ".join(dict.fromkeys(slip.rule for slip in slips)),
        where,
        tuple(most[1]),
        all(slip.dialect for slip in slips),
    )
