"""The stateful model: right managers pass, each wrong one is found and named, and what fails is short and repeats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagedref.conformance import manager_model
from pagedref.conformance._manager_programs import NAMED, random_program, run_program, shrink
from pagedref.conformance._plain_manager import PlainManager
from pagedref.conformance.manager_model import MANAGER_MUTANTS, adapt, run_manager
from pagedref.errors import ContractError
from pagedref.memory import KVManager


class _Bare:
    """A manager without a cache, sharing or counts: frames from a stack, in any order it likes."""

    def __init__(self, num_frames: int, page_size: int) -> None:
        self._free, self._page_size = list(range(num_frames)), page_size
        self._owned: dict[int, list[Any]] = {}

    def begin(self, seq: int, tokens: Any) -> int:
        self._owned[seq] = [0, []]
        try:
            self.append(seq, tokens)
        except MemoryError:
            del self._owned[seq]
            raise
        return 0

    def append(self, seq: int, tokens: Any) -> list[tuple[int, int]]:
        length, frames = self._owned[seq]
        new = -(-(length + len(tokens)) // self._page_size) - len(frames)
        if new > len(self._free):
            raise MemoryError
        frames += [self._free.pop() for _ in range(new)]
        self._owned[seq][0] = length + len(tokens)
        return []

    def commit(self, seq: int) -> None:
        pass

    def table(self, seq: int) -> list[int]:
        return list(self._owned[seq][1])

    def free(self, seq: int) -> None:
        self._free += self._owned.pop(seq)[1]


RIGHT = {
    "plain": PlainManager,
    "bare": _Bare,
    "KVManager": adapt(KVManager),
    "KVManager, first in first out": adapt(KVManager, policy="fifo"),
    "KVManager, deduplicating": adapt(KVManager, deduplicate=True),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_manager_is_not_accused(name: str) -> None:
    verdict = run_manager(RIGHT[name])
    assert verdict.ok, verdict.text()
    assert verdict.programs > len(NAMED)
    assert verdict.not_offered == (["fork", "lookup", "num_available", "spaces"] if name == "bare" else [])


@pytest.mark.parametrize("name", MANAGER_MUTANTS)
def test_every_mutant_is_killed_and_named(name: str) -> None:
    mutant = MANAGER_MUTANTS[name]
    verdict = run_manager(mutant.factory)
    assert verdict.problems, f"{mutant.text}: survives"
    first = verdict.problems[0]
    assert first.kind in mutant.kinds, f"{mutant.text}: called {first.kind!r}"
    assert first.script.count("\n") <= 15, first.script


def test_every_mutant_is_killed_by_a_program_with_a_purpose() -> None:
    """Random programs find more, but no fault that is known depends on luck."""
    for name, mutant in MANAGER_MUTANTS.items():
        runs = [run_program(mutant.factory, n.num_frames, n.page_size, n.operations) for n in NAMED]
        assert any(run.problem for run in runs), name


def test_a_script_repeats_its_problem() -> None:
    """The printed calls, executed as they stand, lead into the same state: two sequences in one frame."""
    verdict = run_manager(MANAGER_MUTANTS["ForkDoesNotCount"].factory)
    problem = next(p for p in verdict.problems if p.kind in ("shared page written", "double free"))
    names: dict[str, Any] = {"factory": MANAGER_MUTANTS["ForkDoesNotCount"].factory}
    exec(problem.script, names)
    manager = names["manager"]
    frames = [frame for seq in manager.owners for frame in manager.table(seq)]
    assert len(set(frames)) < len(frames)


def test_shrinking_keeps_the_kind_and_loses_the_rest() -> None:
    factory = MANAGER_MUTANTS["LeavesTheLast"].factory
    for seed in range(20):
        num_frames, page_size, program = random_program(seed)
        before = run_program(factory, num_frames, page_size, program).problem
        if before is None:
            continue
        short = shrink(factory, num_frames, page_size, program)
        after = run_program(factory, num_frames, page_size, short).problem
        assert after is not None
        assert after.kind == before.kind
        assert len(short) <= 2, short


def test_programs_depend_on_the_seed_alone() -> None:
    assert random_program(7) == random_program(7)
    assert random_program(7) != random_program(8)


def test_verdicts_for_people_and_machines() -> None:
    verdict = run_manager(MANAGER_MUTANTS["WritesShared"].factory)
    content = json.loads(verdict.json())
    assert content["ok"] is False
    assert content["problems"][0]["kind"] == "shared page written"
    for text in (verdict.text(), verdict.markdown(), verdict.html()):
        assert "shared page written" in text
        assert "manager.fork(0, 1)" in text
    assert "all rules hold" in run_manager(PlainManager).text()


def test_refusals() -> None:
    with pytest.raises(ContractError, match="run_manager: profile is unknown, got 'slow'"):
        run_manager(PlainManager, "slow")
    with pytest.raises(ContractError, match="run_manager: factory makes no manager, got one without"):
        run_manager(lambda num_frames, page_size: object())


def test_a_crash_is_a_problem_not_a_traceback() -> None:
    class Crashes(PlainManager):
        def commit(self, seq: int) -> None:
            raise KeyError(seq)

    problem = run_manager(Crashes).problems[0]
    assert problem.kind == "crash"
    assert "KeyError" in problem.detail
    assert manager_model.PROGRAMS["quick"] < manager_model.PROGRAMS["full"]
