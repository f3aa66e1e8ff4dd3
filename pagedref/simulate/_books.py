"""What the simulated memories have in common: who holds how much, and the four kinds of slots at any time.

A request in memory is a `Load`. Its slots are counted by row (sequence): `mapped` ones, of which `stored` hold tokens
and `useful` will by its end. Sums over all loads are kept as they change; between changes every decoding row stores one
token a step, and every row beyond its window has one token more that nobody reads. So the sums at any later step are
known without looking at a request.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pagedref.memory.contiguous import Waste
from pagedref.scheduling import Ticket
from pagedref.simulate.trace import Request

__all__ = ["FAR", "Books", "Load", "load_of"]

FAR = 2**62
"""Steps: never."""


class Load:
    """A request and what each of its rows holds.

    Parameters
    ----------
    request : Request
        Of the trace.
    number : int
        Its place among those that came.
    """

    __slots__ = (
        *("after", "dead", "fading", "mapped", "number", "released", "request", "rows", "runs", "stored", "told"),
        "useful",
    )

    def __init__(self, request: Request, number: int) -> None:
        self.request, self.number = request, number
        self.rows = 0  # that the books count now
        self.mapped = self.stored = self.useful = self.dead = 0  # slots of one row
        self.after = 0  # `stored` after the step that is being planned
        self.released = 0  # slots behind its window that were given back
        self.told = 0  # tokens of a row that the manager knows of
        self.fading = 0  # rows that have one more dead token after each step
        self.runs: list[int] = []  # where it lies: first slots, or sequences

    @property
    def final_len(self) -> int:
        """Tokens of a row at the end: the last one is never stored."""
        return self.request.prompt_len + self.request.output_len - 1

    @property
    def length(self) -> int:
        """Tokens of a row that are stored or were and have gone behind the window."""
        return self.released + self.stored


def load_of(ticket: Ticket) -> Load:
    """Return the load of a ticket.

    Parameters
    ----------
    ticket : Ticket
        One of the simulator.

    Returns
    -------
    Load
    """
    load = ticket.request
    assert isinstance(load, Load)
    return load


class Books:
    """Sums over all loads; the base of the memories, which fulfil `pagedref.scheduling.Memory`.

    Parameters
    ----------
    num_slots : int
        Slots of the pool.
    window : int, optional
        Tokens that a query sees, its own included.
    """

    def __init__(self, num_slots: int, window: int | None = None) -> None:
        self.num_slots = num_slots
        self.window = window
        self.mapped = self.useful = self.stored = self.dead = self.fading = 0
        self.held = 0  # slots that somebody holds: `mapped`, less what is shared
        self.swapped_pages = self.copied_pages = 0
        self.moved = [0, 0]  # slots that went to or came from the host, and the disk, in this step
        self.refill: Callable[[], None] = lambda: None  # called after an admission: more may wait

    def waste(self) -> Waste:
        """Return what the slots hold now."""
        return Waste(
            self.held - (self.mapped - self.stored) - self.dead,
            self.useful - self.stored,
            self.mapped - self.useful + self.dead,
            self.num_slots - self.held,
        )

    def decoded(self, rows: int, steps: int = 1) -> None:
        """Enter that rows stored a token in each of some steps.

        Parameters
        ----------
        rows : int
            All rows that decode.
        steps : int
            Steps in which no load changed otherwise.
        """
        self.stored += rows * steps
        self.dead += self.fading * steps

    def read(self, ticket: Ticket, count: int) -> None:
        """Enter that a piece of a prompt is stored.

        Parameters
        ----------
        ticket : Ticket
            Whose.
        count : int
            Tokens.
        """
        load = load_of(ticket)
        self.set(load, load.rows, load.mapped, load.stored + count)
        load.after = load.stored

    def sync(self, ticket: Ticket) -> Load:
        """Return a ticket's load, with the tokens that it stored since it was last looked at."""
        load = load_of(ticket)
        if ticket.state == "decode":
            load.stored = load.request.prompt_len + ticket.produced - 1 - load.released
            load.dead = self._dead(load, load.stored)
        return load

    def set(self, load: Load, rows: int, mapped: int, stored: int) -> None:
        """Enter what a load holds from now on.

        Parameters
        ----------
        load : Load
            Whose.
        rows : int
            Rows that hold something.
        mapped, stored : int
            Slots of each row, and those that hold a token.
        """
        useful, dead = min(mapped, load.final_len - load.released), self._dead(load, stored)
        self.mapped += rows * mapped - load.rows * load.mapped
        self.useful += rows * useful - load.rows * load.useful
        self.stored += rows * stored - load.rows * load.stored
        self.dead += rows * dead - load.rows * load.dead
        load.rows, load.mapped, load.stored, load.useful, load.dead = rows, mapped, stored, useful, dead

    def fade(self, load: Load, rows: int) -> None:
        """Enter how many rows of a load have one more dead token after each step from now on."""
        self.fading += rows - load.fading
        load.fading = rows

    def drop(self, load: Load) -> None:
        """Enter that a load holds nothing any more."""
        self.fade(load, 0)
        self.set(load, 0, 0, 0)
        load.runs = []
        load.released = 0

    def _dead(self, load: Load, stored: int) -> int:
        """Return the stored tokens of a row that no query sees any more."""
        return 0 if self.window is None else max(0, stored - self.window)

    def swap_out(self, ticket: Ticket) -> bool:
        """Say that there is no slower tier."""
        return False

    def swap_in(self, ticket: Ticket, count: int) -> bool:
        """Say that nothing is in a slower tier."""
        return False

    def owners(self, loads: list[tuple[Load, int]]) -> npt.NDArray[np.int32]:
        """Return who holds each frame; a memory that only counts does not know.

        Parameters
        ----------
        loads : list of (Load, int)
            Those in memory, and the tokens that a row of each stores.

        Returns
        -------
        int32 array (num_frames,)
            Twice the number of a request, and one more where nothing is stored yet; -1 for none, -2 for a cached page.
        """
        return np.empty(0, np.int32)
