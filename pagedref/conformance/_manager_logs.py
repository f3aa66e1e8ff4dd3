"""Logs of operations for cache managers: what is called, and how a right manager behaves, without a frame's number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagedref.conformance._manager_programs import NAMED, Operation, random_program, run_program
from pagedref.conformance._plain_manager import PlainManager
from pagedref.conformance.manager_model import adapt
from pagedref.memory import KVManager

__all__ = ["check_log", "make_logs"]

_RANDOM = 4
_RIGHT = (PlainManager, adapt(KVManager), adapt(KVManager, policy="fifo"), adapt(KVManager, deduplicate=True))


def make_logs() -> list[dict[str, Any]]:
    """Return the logs: each known fault, and some random ones.

    Returns
    -------
    list of dict
        As the manifest has them.
    """
    logs = [
        _log(named.name, named.fault, named.comment, named.num_frames, named.page_size, named.operations)
        for named in NAMED
    ]
    for seed in range(_RANDOM):
        num_frames, page_size, operations = random_program(1000 + seed)
        logs.append(_log(f"random-{seed}", "any", "drawn", num_frames, page_size, operations))
    return logs


def _log(
    name: str, fault: str, comment: str, num_frames: int, page_size: int, operations: tuple[Operation, ...]
) -> dict[str, Any]:
    """Return a log: what is expected is what right managers with different policies have in common."""
    runs = [run_program(factory, num_frames, page_size, operations) for factory in _RIGHT]
    for run in runs:
        if run.problem is not None:
            raise run.problem
    steps = []
    for same in zip(*(run.steps for run in runs), strict=False):
        first = same[0]
        if any({**step, "expect": {}} != {**first, "expect": {}} for step in same):
            break  # one refused what another had room for: hits differ by policy
        shared = dict(set.intersection(*(set(step["expect"].items()) for step in same)))
        shared = {name: shared[name] for name in first["expect"] if name in shared}
        steps.append(_plain({**first, "expect": shared}))
    return {
        "name": name,
        "comment": comment,
        "fault": fault,
        "num_frames": num_frames,
        "page_size": page_size,
        "steps": steps,
    }


def _plain(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step as JSON has it: a space is a list."""
    space = step.get("space")
    return step | {"space": list(space)} if isinstance(space, tuple) else step


def check_log(log: dict[str, Any], factory: Callable[[int, int], Any]) -> str:
    """Run a log on a manager.

    Parameters
    ----------
    log : dict
        Of a manifest.
    factory : callable
        Makes a manager of ``(num_frames, page_size)``.

    Returns
    -------
    str
        What is wrong; empty where nothing is. What a manager does not offer is passed over.
    """
    order: list[int] = []
    operations = []
    for step in log["steps"]:  # the sequence by its place among the live ones, as programs name it
        named = step["do"] in ("append", "commit", "fork", "free")
        at = order.index(step.get("parent", step["seq"])) if named else 0
        space = step.get("space")
        operations.append(
            Operation(step["do"], at, tuple(step.get("tokens", ())), tuple(space) if isinstance(space, list) else space)
        )
        if step["do"] in ("begin", "fork") and not step["expect"].get("refused"):
            order.append(step["seq"])
        elif step["do"] == "free":
            order.remove(step["seq"])
    outcome = run_program(factory, log["num_frames"], log["page_size"], operations)
    if outcome.problem is not None:
        return str(outcome.problem)
    for at, (step, found) in enumerate(zip(log["steps"], outcome.steps, strict=False)):
        differs = {name: value for name, value in found["expect"].items() if step["expect"].get(name, value) != value}
        if differs and found["do"] == step["do"]:
            return f"step {at} ({step['do']}): got {differs}, need {step['expect']}"
    return ""
