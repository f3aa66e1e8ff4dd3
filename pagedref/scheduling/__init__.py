"""Who runs next: pure decisions over a small memory protocol; no arrays, no clock (S34).

`Scheduler` decides step after step which requests decode, which prompts are read and how far, who is admitted, and who
goes when memory runs short. The engine carries its plans out with a model; a simulator counts them. Both ask the same
questions in the same order, so what is learnt from one holds for the other.
"""

from __future__ import annotations

from pagedref.scheduling._plan import Plan
from pagedref.scheduling.decisions import Limits, choose_victim, order_of, prompt_chunks
from pagedref.scheduling.scheduler import Scheduler
from pagedref.scheduling.ticket import Admission, Memory, Ticket

__all__ = ["Admission", "Limits", "Memory", "Plan", "Scheduler", "Ticket", "choose_victim", "order_of", "prompt_chunks"]
