"""What a scheduler hands out for one step."""

from __future__ import annotations

from typing import NamedTuple

from pagedref.scheduling.ticket import Ticket

__all__ = ["Plan"]


class Plan(NamedTuple):
    """One step, decided; its memory is granted.

    Attributes
    ----------
    step : int
        Its number, from 0 on.
    decode_rows : int
        Rows that take one token each; `Scheduler.decoding` says whose.
    prefill : list of (Ticket, int)
        Pieces of prompts: whose, and how many tokens.
    admitted : list of Ticket
        Who came from the queue, new or after a preemption.
    swapped_in : list of Ticket
        Who came back from the slower tier.
    preempted : list of (Ticket, str)
        Who went, and whether by ``"recompute"`` or ``"swap"``.
    """

    step: int
    decode_rows: int
    prefill: list[tuple[Ticket, int]]
    admitted: list[Ticket]
    swapped_in: list[Ticket]
    preempted: list[tuple[Ticket, str]]
