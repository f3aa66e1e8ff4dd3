"""Programs for the stateful model: one for each fault that is known, random ones, and how those that fail shrink."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from pagedref.conformance._manager_driver import Driver, Problem

__all__ = ["NAMED", "Named", "Operation", "Outcome", "random_program", "run_program", "shrink"]

ADAPTER, SALT = ("adapter", "X"), ("salt", "X")
_ALPHABET = (0, 1, 31, 32)  # 1, 0 and 0, 31 are one number in a polynomial of base 31


class Operation(NamedTuple):
    """One step of a program.

    Attributes
    ----------
    do : str
        ``begin``, ``append``, ``commit``, ``fork``, ``free``, ``free_again`` or ``lookup``.
    at : int
        Which live sequence, modulo their number, oldest first.
    tokens : tuple of int
        Of a prompt, or appended.
    space : hashable
        What the keys start with.
    """

    do: str
    at: int = 0
    tokens: tuple[int, ...] = ()
    space: Hashable = None


class Outcome(NamedTuple):
    """What a program came to.

    Attributes
    ----------
    steps : list of dict
        What was called, with which behaviour.
    problem : Problem or None
        The first rule that was broken.
    """

    steps: list[dict[str, Any]]
    problem: Problem | None


class Named(NamedTuple):
    """A program with a purpose."""

    name: str
    fault: str
    comment: str
    num_frames: int
    page_size: int
    operations: tuple[Operation, ...]


def _begin(*tokens: int, space: Hashable = None) -> Operation:
    return Operation("begin", tokens=tokens, space=space)


def _lookup(*tokens: int, space: Hashable = None) -> Operation:
    return Operation("lookup", tokens=tokens, space=space)


def _append(at: int, *tokens: int) -> Operation:
    return Operation("append", at, tokens)


def _on(do: str) -> Callable[[int], Operation]:
    return lambda at: Operation(do, at)


_commit, _free, _fork, _again = (_on(do) for do in ("commit", "free", "fork", "free_again"))

NAMED: tuple[Named, ...] = (
    Named("page-when-its-first-token-comes", "P49", "writing token t takes a page iff t % page_size == 0", 4, 4,
          (_begin(0, 1, 0, 1), _commit(0), _append(0, 0), _commit(0), _append(0, 1, 0, 1), _commit(0), _append(0, 0))),
    Named("full-last-page", "P48", "a full last page holds page_size tokens, and comes back when freed", 2, 4,
          (_begin(0, 1, 0, 1, 0, 1, 0, 1), _commit(0), _free(0), _begin(1, 1, 1, 1, 1, 1, 1, 1), _commit(0))),
    Named("writer-of-a-shared-page", "P39", "fork, then both write into the page that they share", 6, 4,
          (_begin(0, 1, 0, 1, 0, 1), _commit(0), _fork(0), _append(0, 1, 1, 1), _commit(0), _append(1, 0, 0, 0),
           _commit(1), _free(0), _append(0, 1), _commit(0))),
    Named("fork-of-a-fork", "P38", "counts go up once for each holder, down once for each", 8, 2,
          (_begin(0, 1, 0), _commit(0), _fork(0), _fork(1), _append(2, 1), _commit(2), _free(0), _append(0, 1, 1),
           _commit(0), _free(0), _free(0))),
    Named("partly-filled-tail", "P39", "a page that is not full is not hit", 6, 4,
          (_begin(0, 1, 0, 1, 31, 32), _commit(0), _begin(0, 1, 0, 1, 31, 32, 0, 0), _commit(1), _append(0, 1),
           _commit(0), _append(1, 0), _commit(1))),
    Named("refused-with-hits", "P41", "hits that nobody holds count as needed, and a refusal holds nothing", 6, 2,
          (_begin(0, 1, 0, 1), _commit(0), _free(0), _begin(32, 32, 32, 32, 32), _commit(0),
           _begin(0, 1, 0, 1, 1, 1, 1, 1), _lookup(0, 1, 0, 1, 1))),
    Named("refused-append", "P41", "a refused append leaves everything as it was", 3, 2,
          (_begin(0, 1, 0), _commit(0), _fork(0), _append(0, 1, 1, 1, 1), _append(0, 1), _commit(0))),
    Named("hit-of-a-free-page", "P42", "a page that nobody holds is hit, and is in use again", 4, 2,
          (_begin(0, 1, 0), _commit(0), _free(0), _lookup(0, 1, 0), _begin(0, 1, 0), _commit(0),
           _begin(1, 1, 1, 1), _commit(1), _lookup(0, 1, 1))),
    Named("recycled-page", "P42", "a page that is given up for other tokens is hit no more", 1, 2,
          (_begin(0, 1), _commit(0), _free(0), _begin(31, 32), _commit(0), _free(0), _lookup(0, 1, 0),
           _begin(0, 1), _commit(0))),
    Named("aborted-before-the-write", "P43", "a page that was promised and not written is not hit", 6, 2,
          (_begin(0, 1, 0, 1), _lookup(0, 1, 0, 1, 0), _begin(0, 1, 0, 1, 0), _free(0), _lookup(0, 1, 0),
           _commit(0), _lookup(0, 1, 0, 1, 0))),
    Named("deepest-page-first", "P45", "of a chain that was freed at once the last page goes first", 3, 2,
          (_begin(0, 1, 0, 1, 0, 1), _commit(0), _free(0), _begin(32, 32), _commit(0), _lookup(0, 1, 0, 1, 0, 1),
           _begin(0, 1, 0, 1))),
    Named("hole-in-a-chain", "P45", "counting stops at the first page that is gone", 4, 2,
          (_begin(0, 1), _begin(0, 1, 0, 1, 0, 1), _commit(0), _commit(1), _free(0), _begin(32, 32), _commit(1),
           _free(0), _begin(31, 31), _commit(1), _lookup(0, 1, 0, 1, 0, 1, 0))),
    Named("whole-prompt-cached", "P52", "at least one token is left to compute", 4, 4,
          (_begin(0, 1, 0, 1, 1, 1, 1, 1), _commit(0), _free(0), _lookup(0, 1, 0, 1, 1, 1, 1, 1),
           _begin(0, 1, 0, 1, 1, 1, 1, 1), _commit(0))),
    Named("other-prefix", "P51", "a page is what it is only behind the pages before it", 8, 2,
          (_begin(0, 1, 1, 1), _commit(0), _begin(32, 32), _commit(1), _lookup(32, 32, 1, 1, 0),
           _begin(32, 32, 1, 1, 0), _commit(2))),
    Named("adapter-and-salt", "P50", "an adapter X, a salt X and neither are three different prompts", 9, 2,
          (_begin(0, 1, 0, 1, space=ADAPTER), _commit(0), _lookup(0, 1, 0, 1, 0, space=SALT), _lookup(0, 1, 0, 1, 0),
           _begin(0, 1, space=SALT), _commit(1), _lookup(0, 1, 0, 1, 0, space=SALT), _begin(0, 1, 0, 1), _commit(2),
           _lookup(0, 1, 0, 1, 0, space=ADAPTER))),
    Named("equal-sums", "P51", "1, 0 and 0, 31 have one number in base 31, and are different tokens", 6, 2,
          (_begin(1, 0, 1, 0), _commit(0), _lookup(0, 31, 0), _lookup(1, 0, 0, 31, 0), _begin(0, 31, 1, 0, 1),
           _commit(1), _lookup(1, 0, 1, 0, 1))),
    Named("freed-twice", "P38", "the second time is refused", 2, 2,
          (_begin(0, 1, 0), _commit(0), _free(0), _again(0), _begin(1, 1, 1, 1), _commit(0))),
)  # fmt: skip
"""What is known to go wrong, smallest first."""


def random_program(seed: int) -> tuple[int, int, tuple[Operation, ...]]:
    """Draw a pool and a program.

    Parameters
    ----------
    seed : int
        Decides everything.

    Returns
    -------
    num_frames, page_size, operations
    """
    draw = random.Random(seed)
    num_frames, page_size = draw.randint(1, 9), draw.choice((1, 2, 2, 3, 4))
    prompts: list[tuple[int, ...]] = [()]
    operations: list[Operation] = []

    def some(longest: int) -> tuple[int, ...]:
        return tuple(draw.choice(_ALPHABET) for _ in range(draw.randint(1, longest)))

    for _ in range(draw.randint(5, 40)):
        do = draw.choice(("begin", "begin", "append", "append", "free", "fork", "lookup", "commit", "free_again"))
        at, space = draw.randrange(8), draw.choice((None, None, None, ADAPTER, SALT))
        tokens: tuple[int, ...] = ()
        if do in ("begin", "lookup"):
            base = draw.choice(prompts)
            tokens = base[: draw.choice((len(base), draw.randint(0, len(base))))] + some(2 * page_size)
            prompts.append(tokens)
        elif do == "append":
            tokens = some(page_size + 1)
        operations.append(Operation(do, at, tokens, space if do in ("begin", "lookup") else None))
        if do in ("begin", "append") and draw.random() < 0.8:
            operations.append(Operation("commit", -1 if do == "begin" else at))
    return num_frames, page_size, tuple(operations)


def run_program(
    factory: Callable[[int, int], Any], num_frames: int, page_size: int, operations: Sequence[Operation]
) -> Outcome:
    """Run a program on a new manager, to the first rule that it breaks.

    Parameters
    ----------
    factory : callable
        Makes a manager of ``(num_frames, page_size)``.
    num_frames, page_size : int
        Geometry.
    operations : sequence of Operation
        What makes no sense where it stands (a fork of nobody) is passed over.

    Returns
    -------
    Outcome
    """
    steps: list[dict[str, Any]] = []
    driver = Driver(factory(num_frames, page_size), num_frames, page_size)
    number, ended = 0, -1
    try:
        for operation in operations:
            live = list(driver.live)
            seq = live[operation.at % len(live)] if live else -1
            step = _step(operation, driver, seq, number, ended)
            if step is None:
                continue
            steps.append(step)
            try:
                _carry_out(step, driver)
            except MemoryError:
                step["expect"]["refused"] = True
                continue
            number += step["do"] in ("begin", "fork")
            ended = step["seq"] if step["do"] == "free" else ended
            if driver.counts:
                step["expect"]["available"] = int(driver.manager.num_available())
        driver.end()
    except Problem as problem:
        return Outcome(steps, problem)
    return Outcome(steps, None)


def _step(operation: Operation, driver: Driver, seq: int, number: int, ended: int) -> dict[str, Any] | None:
    """Return the call that an operation is now; None where it makes no sense."""
    do, manager = operation.do, driver.manager
    spaced = operation.space if getattr(manager, "spaces", False) else None
    if operation.space is not None and spaced is None:
        return None
    tokens = list(operation.tokens)
    if do == "begin":
        return {"do": do, "seq": number, "tokens": tokens, "space": spaced, "expect": {}}
    if do == "lookup":
        return {"do": do, "tokens": tokens, "space": spaced, "expect": {}} if driver.caches else None
    if do == "free_again":
        return {"do": do, "seq": ended, "expect": {"refused": True}} if ended >= 0 else None
    if seq < 0:
        return None
    sequence = driver.live[seq]
    unwritten = sequence.written < len(sequence.tokens)
    if do == "append":
        return {"do": do, "seq": seq, "tokens": tokens, "expect": {}}
    if do == "fork":
        offered = callable(getattr(manager, "fork", None))
        return None if unwritten or not offered else {"do": do, "seq": number, "parent": seq, "expect": {}}
    return {"do": do, "seq": seq, "expect": {}} if do == "free" or unwritten else None


def _carry_out(step: dict[str, Any], driver: Driver) -> None:
    """Carry a step out and note how the manager behaved."""
    do, expect = step["do"], step["expect"]
    if do == "begin":
        expect["hit"] = driver.begin(step["seq"], step["tokens"], step["space"])
    elif do == "lookup":
        expect["hit"] = driver.lookup(step["tokens"], step["space"])
    elif do == "append":
        expect["copies"] = driver.append(step["seq"], step["tokens"])
    elif do == "fork":
        driver.fork(step["parent"], step["seq"])
    else:
        getattr(driver, do)(step["seq"])


def shrink(
    factory: Callable[[int, int], Any], num_frames: int, page_size: int, operations: Sequence[Operation]
) -> tuple[Operation, ...]:
    """Leave out of a failing program whatever it fails without, in the same way.

    Parameters
    ----------
    factory, num_frames, page_size, operations
        Of the run that failed.

    Returns
    -------
    tuple of Operation
        As short as leaving out runs, single operations, and last tokens makes it.
    """
    first = run_program(factory, num_frames, page_size, operations).problem
    if first is None:
        return tuple(operations)

    def fails(program: Sequence[Operation]) -> bool:
        problem = run_program(factory, num_frames, page_size, program).problem
        return problem is not None and problem.kind == first.kind

    program = list(operations)
    size = max(len(program) // 2, 1)
    while size:
        start = 0
        while start < len(program):
            shorter = program[:start] + program[start + size :]
            if fails(shorter):
                program = shorter
            else:
                start += size
        size //= 2
    for at, operation in enumerate(program):
        for size in range(1, len(operation.tokens)):
            fewer = operation._replace(tokens=operation.tokens[:size])
            if fails([*program[:at], fewer, *program[at + 1 :]]):
                program[at] = fewer
                break
    return tuple(program)
