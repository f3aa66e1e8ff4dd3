"""Judge a cache manager, in any language that Python can call, by a stateful model (S19-S31).

The model calls the manager, writes contents into a pool of its own where the manager says, carries out the copies that
it asks for, and compares after each call: every live sequence reads its own tokens, nobody writes into a page that is
somebody else's, counts equal what tables hold, hits are there, refusals change nothing. It knows one program for each
fault that public managers had, draws random ones, and shrinks what fails.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pagedref.conformance._manager_mutants import MANAGER_MUTANTS, ManagerMutant
from pagedref.conformance._manager_programs import NAMED, Operation, random_program, run_program, shrink
from pagedref.errors import ContractError
from pagedref.memory import KVManager

__all__ = [
    "MANAGER_MUTANTS", "CacheManager", "ManagerMutant", "ManagerProblem", "ManagerVerdict", "adapt", "run_manager",
]  # fmt: skip

PROGRAMS = {"quick": 200, "full": 1500, "gpu": 200}
"""Random programs of each profile."""


class CacheManager(Protocol):
    """What the model calls: an object made by ``factory(num_frames, page_size)``.

    A manager also may have ``fork(parent, child)``; ``lookup(tokens) -> int``, the tokens of a prompt that would hit;
    ``num_available() -> int``, the frames that nobody holds; and ``spaces = True``, if ``begin`` and ``lookup`` take a
    keyword ``space``: ``("adapter", name)`` or ``("salt", name)``, which keeps keys apart. What it lacks is not judged.

    Notes
    -----
    A call that cannot be served raises :class:`MemoryError` (`OutOfFrames` is one) and changes nothing (S26).
    """

    def begin(self, seq: int, tokens: Sequence[int]) -> int:
        """Begin sequence `seq` with a prompt: room for all of it; return how many tokens need not be written."""

    def append(self, seq: int, tokens: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Make room for more tokens; return the copies ``(from frame, to frame)`` to carry out before the write."""

    def commit(self, seq: int) -> None:
        """Note that all tokens with room are written."""

    def table(self, seq: int) -> Sequence[int]:
        """Return the frame of each page, with those of tokens that are not written."""

    def free(self, seq: int) -> None:
        """End a sequence; raise if it is not live."""


@dataclass(frozen=True)
class ManagerProblem:
    """A rule that a manager broke, and the shortest program that was found to show it.

    Attributes
    ----------
    kind, rule, detail : str
        What, against which rule of the specification, and what was seen.
    found_by : str
        Name of the program, or ``random``.
    script : str
        Python that repeats it: the calls on ``factory``.
    """

    kind: str
    rule: str
    detail: str
    found_by: str
    script: str


@dataclass(frozen=True)
class ManagerVerdict:
    """What a run came to.

    Attributes
    ----------
    programs, operations : int
        How many were run.
    problems : list of ManagerProblem
        One for each kind.
    not_offered : list of str
        Optional operations that were not there to be judged.
    """

    programs: int
    operations: int
    problems: list[ManagerProblem]
    not_offered: list[str]

    @property
    def ok(self) -> bool:
        """Whether every rule held."""
        return not self.problems

    def text(self) -> str:
        """Return the verdict for a terminal."""
        lines = [f"cache manager: {self.programs} programs, {self.operations} operations"]
        lines += [f"not offered: {', '.join(self.not_offered)}"] if self.not_offered else []
        for problem in self.problems:
            lines += ["", f"FAILS  {problem.kind} ({problem.rule}), found by {problem.found_by}", f"  {problem.detail}"]
            lines += [f"    {line}" for line in problem.script.splitlines()]
        lines += [] if self.problems else ["all rules hold"]
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        """Return the verdict in Markdown."""
        lines = ["# Cache manager", "", f"{self.programs} programs, {self.operations} operations."]
        lines += ["", f"Not offered: {', '.join(self.not_offered)}."] if self.not_offered else []
        for problem in self.problems:
            lines += ["", f"## {problem.kind} ({problem.rule})", "", problem.detail, "", "```python"]
            lines += [*problem.script.splitlines(), "```"]
        lines += [] if self.problems else ["", "All rules hold."]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """Return the verdict as a page."""
        parts = [
            f"<h2>{html.escape(problem.kind)} ({problem.rule})</h2>\n<p>{html.escape(problem.detail)}</p>\n"
            f"<pre>{html.escape(problem.script)}</pre>\n"
            for problem in self.problems
        ]
        body = "".join(parts) or "<p>All rules hold.</p>\n"
        numbers = f"<p>{self.programs} programs, {self.operations} operations.</p>\n"
        head = '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>Cache manager</title>\n'
        return f"{head}<h1>Cache manager</h1>\n{numbers}{body}</html>\n"

    def json(self) -> str:
        """Return the verdict for machines."""
        content = {
            "ok": self.ok,
            "programs": self.programs,
            "operations": self.operations,
            "not_offered": self.not_offered,
            "problems": [vars(problem) for problem in self.problems],
        }
        return json.dumps(content, indent=1) + "\n"


def run_manager(factory: Callable[[int, int], Any], profile: str = "quick", *, seed: int = 0) -> ManagerVerdict:
    """Judge a cache manager.

    Parameters
    ----------
    factory : callable
        Makes a `CacheManager` of ``(num_frames, page_size)``; called once for each program.
    profile : str
        ``quick``, ``full`` or ``gpu``: how many random programs.
    seed : int
        Of the random programs.

    Returns
    -------
    ManagerVerdict
        After a kind of problem was found, no other of its kind is looked for.

    Raises
    ------
    ContractError
        No such profile, or the factory makes something that lacks an operation.

    Examples
    --------
    >>> run_manager(adapt(KVManager)).text().splitlines()[-1]
    'all rules hold'
    """
    if profile not in PROGRAMS:
        raise ContractError(f"run_manager: profile is unknown, got {profile!r}, need one of {', '.join(PROGRAMS)}")
    manager = factory(4, 2)
    missing = [name for name in ("begin", "append", "commit", "table", "free") if not hasattr(manager, name)]
    if missing:
        raise ContractError(f"run_manager: factory makes no manager, got one without {missing}, need them all")
    not_offered = [name for name in ("fork", "lookup", "num_available", "spaces") if not getattr(manager, name, False)]
    programs = [(named.name, named.num_frames, named.page_size, named.operations) for named in NAMED]
    programs += [("random", *random_program(seed * 1_000_003 + at)) for at in range(PROGRAMS[profile])]
    problems: dict[str, ManagerProblem] = {}
    operations = 0
    for name, num_frames, page_size, program in programs:
        outcome = run_program(factory, num_frames, page_size, program)
        operations += len(outcome.steps)
        if outcome.problem is not None and outcome.problem.kind not in problems:
            problems[outcome.problem.kind] = _shortest(factory, name, num_frames, page_size, program)
    return ManagerVerdict(len(programs), operations, list(problems.values()), not_offered)


def _shortest(
    factory: Callable[[int, int], Any], name: str, num_frames: int, page_size: int, program: Sequence[Operation]
) -> ManagerProblem:
    """Shrink a failing program and write it down."""
    outcome = run_program(factory, num_frames, page_size, shrink(factory, num_frames, page_size, program))
    problem = outcome.problem
    if problem is None:
        text = "run_manager: factory makes managers that differ, got a failure that is gone, need the same each time"
        raise ContractError(text)
    lines = [f"manager = factory({num_frames}, {page_size})  # frames, page size"]
    for step in outcome.steps:
        arguments = [str(step[key]) for key in ("parent", "seq", "tokens") if key in step]
        arguments += [f"space={step['space']!r}"] if step.get("space") is not None else []
        seen = ", ".join(f"{key} {value}" for key, value in step["expect"].items() if key != "available")
        call = f"manager.{step['do'].removesuffix('_again')}({', '.join(arguments)})"
        lines.append(call + (f"  # {seen}" if seen else ""))
    lines.append(f"# {problem.kind}: {problem.detail}")
    return ManagerProblem(problem.kind, problem.rule, problem.detail, name, "\n".join(lines))


class _Adapted:
    """`KVManager` under the names of the model."""

    spaces = True

    def __init__(self, manager: KVManager) -> None:
        self._manager = manager
        self._ids: dict[int, int] = {}
        self._pending: dict[int, list[int]] = {}

    def begin(self, seq: int, tokens: Sequence[int], space: Hashable = None) -> int:
        admitted = self._manager.admit(np.array(tokens, np.int64), **_keys(space))
        self._ids[seq] = admitted.seq_id
        self._pending[seq] = list(tokens[admitted.hit.num_tokens :])
        return admitted.hit.num_tokens

    def append(self, seq: int, tokens: Sequence[int]) -> list[tuple[int, int]]:
        plan = self._manager.reserve(self._ids[seq], len(tokens))
        self._pending[seq] += tokens
        return list(zip(plan.src.tolist(), plan.dst.tolist(), strict=True))

    def commit(self, seq: int) -> None:
        tokens, self._pending[seq] = self._pending[seq], []
        self._manager.commit(self._ids[seq], len(tokens), np.array(tokens, np.int64))

    def fork(self, parent: int, child: int) -> None:
        self._ids[child] = self._manager.fork(self._ids[parent])
        self._pending[child] = []

    def free(self, seq: int) -> None:
        self._manager.free(self._ids[seq])

    def table(self, seq: int) -> list[int]:
        row = self._manager.block_table(self._ids[seq], len(self._pending[seq]))[0]
        return [int(frame) for frame in row[row >= 0]]

    def lookup(self, tokens: Sequence[int], space: Hashable = None) -> int:
        return self._manager.match_prefix(np.array(tokens, np.int64), **_keys(space)).num_tokens

    def num_available(self) -> int:
        return self._manager.num_available


def _keys(space: Hashable) -> dict[str, Any]:
    return {str(space[0]): space[1]} if isinstance(space, tuple) else {}


def adapt(manager: Callable[..., KVManager], **options: Any) -> Callable[[int, int], CacheManager]:
    """Return the factory by which the model judges `KVManager`, or a class derived from it.

    Parameters
    ----------
    manager : callable
        The class.
    **options
        Its keywords (`policy`, `deduplicate` ...).

    Returns
    -------
    callable
        Takes ``(num_frames, page_size)``.

    Examples
    --------
    >>> adapt(KVManager, policy="fifo")(4, 2).begin(0, [1, 2, 3])
    0
    """
    return lambda num_frames, page_size: _Adapted(manager(num_frames=num_frames, page_size=page_size, **options))
