"""The decisions of a scheduler as small functions: who is before whom, who goes, how a budget is shared out (S34)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.scheduling.ticket import Ticket

__all__ = ["PREEMPTIONS", "Limits", "choose_victim", "order_of", "prompt_chunks"]

PREEMPTIONS = ("recompute", "swap", "none")
"""What happens to the tokens of a victim."""


@dataclass(frozen=True)
class Limits:
    """Say how much runs at once, and what happens when memory runs short.

    Parameters
    ----------
    token_budget : int, optional
        Tokens of a step: rows that decode, and pieces of prompts in what they leave; by default no limit.
    max_running : int, optional
        Rows at once, at most `token_budget`; by default as many as that.
    preemption : {"recompute", "swap", "none"}
        What a victim loses: everything, to be computed again; its place, while its pages wait in a slower tier; or
        there are no victims, because a request is only admitted when its largest need can be set aside.

    Raises
    ------
    ContractError
        A number is out of range. With more rows than budget, rows that decode could keep a prompt from ever being
        read.
    """

    token_budget: int | None = None
    max_running: int | None = None
    preemption: Literal["recompute", "swap", "none"] = "recompute"

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_running"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number("Limits", name, getattr(self, name), low=1))
        if self.max_running is None:
            object.__setattr__(self, "max_running", self.token_budget)
        elif self.token_budget is not None and self.max_running > self.token_budget:
            text = f"got {self.max_running}, need at most token_budget = {self.token_budget}"
            raise ContractError(f"Limits: max_running is more than a step holds, {text}")
        if self.preemption not in PREEMPTIONS:
            text = f"got {self.preemption!r:.40}, need one of {', '.join(PREEMPTIONS)}"
            raise ContractError(f"Limits: preemption is unknown, {text}")


def order_of(ticket: Ticket) -> tuple[int, int]:
    """Return the place of a ticket in every order here: high classes first, then who came first.

    Parameters
    ----------
    ticket : Ticket
        Any.

    Returns
    -------
    tuple of int
        Smaller is earlier. No two tickets of a scheduler have the same.
    """
    return -ticket.priority, ticket.arrival


def choose_victim(running: Sequence[Ticket]) -> Ticket | None:
    """Choose who is preempted: the newest of the lowest class, never the oldest of the highest (S34).

    Parameters
    ----------
    running : sequence of Ticket
        Who runs, in their order.

    Returns
    -------
    Ticket or None
        None where only that oldest one is left.

    Examples
    --------
    >>> old, new = Ticket("old"), Ticket("new")
    >>> choose_victim([old, new])
    Ticket('new', waiting)
    >>> choose_victim([old]) is None
    True
    """
    return running[-1] if len(running) > 1 else None


def prompt_chunks(todos: Iterable[int], budget: float) -> list[int]:
    """Share what a step has left among prompts that are being read: the first gets all it can use, then the next.

    Parameters
    ----------
    todos : iterable of int
        Tokens that each still needs, in their order.
    budget : int or inf
        Tokens.

    Returns
    -------
    list of int
        Tokens for each; 0 for those that wait.

    Examples
    --------
    >>> prompt_chunks([5, 9, 4], 8)
    [5, 3, 0]
    """
    chunks = []
    for todo in todos:
        chunks.append(int(min(todo, budget)))
        budget -= chunks[-1]
    return chunks
