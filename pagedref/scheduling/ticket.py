"""What a scheduler knows of a request, and what it asks of the memory."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from pagedref.memory._numbers import whole_number

__all__ = ["Admission", "Memory", "State", "Ticket"]

State: TypeAlias = Literal["waiting", "swapped", "prefill", "decode", "ended"]
"""Where a request stands."""

MAX_ROWS = 2**31
MAX_CLASS = 2**31


class Ticket:
    """Stand for one request in the queue, and while it runs.

    Parameters
    ----------
    request : object
        Whatever its owner wants to find again; the scheduler never looks into it.
    priority : int
        Its class: a high one goes first and is kept longer.
    rows : int
        Sequences that decode at once, >= 1: parallel samples, beams. Each takes one token of a step.
    outputs : int, optional
        Outputs of each row after which it ends by itself, >= 1; by default whoever runs it says when.

    Attributes
    ----------
    arrival : int
        Number given by `Scheduler.add`; smaller is older, and it stays the same through preemptions.
    state : str
        ``"waiting"``, ``"swapped"``, ``"prefill"`` (its prompt is being read), ``"decode"`` or ``"ended"``.
    todo : int
        Tokens that are still to be computed before the next output, while it is read.
    hit : int
        Tokens that its last admission found.
    produced : int
        Outputs of each row so far. Exact whenever the memory is asked something about this ticket; in between,
        `Scheduler.produced` is.
    preemptions : int
        How often it lost its memory.

    Raises
    ------
    ContractError
        A number is out of range.

    Examples
    --------
    >>> Ticket("a request", priority=1)
    Ticket('a request', waiting)
    """

    __slots__ = (
        *("arrival", "base", "end", "hit", "outputs", "preemptions", "priority", "produced", "promise", "request"),
        *("rows", "state", "todo", "wake"),
    )

    def __init__(self, request: Any, *, priority: int = 0, rows: int = 1, outputs: int | None = None) -> None:
        self.request = request
        self.priority = whole_number("Ticket", "priority", priority, low=-MAX_CLASS, high=MAX_CLASS)
        self.rows = whole_number("Ticket", "rows", rows, low=1, high=MAX_ROWS)
        self.outputs = None if outputs is None else whole_number("Ticket", "outputs", outputs, low=1)
        self.arrival = -1
        self.state: State = "waiting"
        self.todo = self.hit = self.produced = self.preemptions = 0
        self.promise = 0  # its largest need, where that is set aside
        self.base = 0  # while it decodes: step - base outputs are there
        self.wake = self.end = -1  # steps at which it asks for memory and at which it ends

    def __repr__(self) -> str:
        return f"Ticket({self.request!r:.40}, {self.state})"


class Admission(NamedTuple):
    """What an admission came to.

    Attributes
    ----------
    hit : int
        Tokens that were found and need not be computed.
    todo : int
        Tokens to compute before the next output, >= 1: of a request that was here before also its outputs.
    """

    hit: int
    todo: int


class Memory(Protocol):
    """What a scheduler asks of a memory. A question answered with no has changed nothing (S26)."""

    @property
    def capacity(self) -> int:
        """Frames that one request can have at most: those of the pool, less the watermark."""
        ...

    def largest(self, ticket: Ticket) -> int:
        """Return the most frames that a request ever has (S34)."""
        ...

    def refuse(self, ticket: Ticket) -> None:
        """Raise ContractError with the numbers if the largest need exceeds the capacity (S34)."""
        ...

    def admit(self, ticket: Ticket, budget: int) -> Admission | None:
        """Take what is there of its tokens, and room above the watermark for at most `budget` of the others."""
        ...

    def grow(self, ticket: Ticket, count: int) -> bool:
        """Make room for `count` more tokens; its rows may not be mapped beyond them."""
        ...

    def room(self, ticket: Ticket) -> int:
        """Return how many further decode steps pass in which it neither takes nor gives a frame."""
        ...

    def release(self, ticket: Ticket) -> None:
        """Let go of all its frames, and of its place in a slower tier."""
        ...

    def swap_out(self, ticket: Ticket) -> bool:
        """Move it to the slower tier, if there is one with room for it."""
        ...

    def swap_in(self, ticket: Ticket, count: int) -> bool:
        """Bring it back with room for `count` more tokens, above the watermark."""
        ...

