"""The memory manager itself under the simulator: page tables, sharing, copies on write, windows, tiers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagedref.addressing import num_pages
from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory import KVManager
from pagedref.memory.stores import HostStore
from pagedref.scheduling import Admission, Ticket
from pagedref.simulate._beams import Beams
from pagedref.simulate._books import Books, Load, load_of

__all__ = ["ManagedMemory"]

OUTPUT = 2**30  # the outputs of request n stand as token OUTPUT + n: nobody else's
PART, PARTS = 30, 3  # a name of 64 bits is told in tokens of 30 bits, one after the other


class ManagedMemory(Books):
    """Let a `KVManager` hold the requests; no key and no value is there.

    Parameters
    ----------
    manager : KVManager
        An empty one.
    share : bool
        Whether prompts may hit what is cached, and whether the rows of a request share its prompt.
    names_per : int, optional
        Tokens for which one name of a request's pages stands; without it prompts share nothing.
    window : int, optional
        Tokens that a query sees.
    watermark : int
        Frames that an admission leaves.
    beams : Beams, optional
        Which rows go on from which in each step; by default each from itself.
    tiers : sequence of HostStore
        Slower tiers, the fastest first; their pages have one byte, since only places matter.
    """

    def __init__(
        self,
        manager: KVManager,
        *,
        share: bool = False,
        names_per: int | None = None,
        window: int | None = None,
        watermark: int = 0,
        beams: Beams | None = None,
        tiers: tuple[HostStore | None, ...] = (),
    ) -> None:
        super().__init__(manager.num_frames * manager.page_size, window)
        self.manager, self.page_size = manager, manager.page_size
        self.share, self.names_per = share, names_per if share else None
        self.watermark, self.beams, self.tiers = watermark, beams, tiers
        self.capacity = manager.num_frames - watermark
        self._tier_of: dict[int, int] = {}

    def largest(self, ticket: Ticket) -> int:
        """Return the pages of all rows at the end, those of the prompt once if rows share."""
        load = load_of(ticket)
        pages = int(num_pages(load.final_len, self.page_size))
        shared = load.request.prompt_len // self.page_size if self.share else 0
        return shared + ticket.rows * (pages - shared)

    def refuse(self, ticket: Ticket) -> None:
        """Refuse what an empty pool could not hold (S34)."""
        if self.largest(ticket) > self.capacity:
            text = f"got {self.largest(ticket)} pages, need at most {self.capacity}"
            raise ContractError(f"add: request can never fit, {text} (S34)")

    def admit(self, ticket: Ticket, budget: int) -> Admission | None:
        """Look the prompt up, and take frames for what is read now."""
        load, manager = load_of(ticket), self.manager
        total = load.request.prompt_len + ticket.produced
        if self.names_per is not None:
            tokens, again = self.tokens(load, ticket.produced), ticket.preemptions > 0
            try:
                found = manager.admit(tokens, budget, watermark=self.watermark, resumed=again)
            except OutOfFrames:
                return None
            load.runs, hit = [found.seq_id], found.hit.num_tokens
        else:
            first, rows = min(total, budget), 1 if self.share else ticket.rows
            if rows * -(-first // self.page_size) + self.watermark > manager.num_available:
                return None
            load.runs, hit = [manager.add() for _ in range(rows)], 0
            manager.reserve(load.runs, first)
        load.told = hit
        self._enter(load, hit, min(total, hit + budget))
        self.refill()
        return Admission(hit, total - hit)

    def read(self, ticket: Ticket, count: int) -> None:
        """Enter a piece of a prompt, and publish the pages that it completes."""
        load = load_of(ticket)
        self.manager.commit(load.runs, count)
        load.told += count
        super().read(ticket, count)

    def grow(self, ticket: Ticket, count: int) -> bool:
        """Take frames for more tokens, after giving back what no query sees any more."""
        load, manager = self.sync(ticket), self.manager
        decodes = ticket.state == "decode"
        more = load.length - load.told + 1 if decodes else count  # what nobody has told the manager, and what is new
        if self.window is not None:
            self._catch_up(load)
            self._let_go(load)
            more = 1 if decodes else count
        if decodes and ticket.rows > len(load.runs):
            load.runs += [manager.fork(load.runs[0]) for _ in range(ticket.rows - len(load.runs))]
        if decodes and self.beams is not None:
            load.runs = self.beams.go_on(manager, load.number, ticket.produced, load.runs)
        try:
            plan = manager.reserve(load.runs, more)
        except OutOfFrames:
            self.set(load, len(load.runs), load.mapped, load.stored)
            return False
        self.copied_pages += int(plan.src.size)
        if decodes:
            manager.commit(load.runs, more)
            load.told += more
        self._enter(load, load.stored, load.length + (1 if decodes else count))
        if decodes:
            load.after = load.stored + 1
            self._fade(load)
        return True

    def room(self, ticket: Ticket) -> int:
        """Return the steps until it enters a page, or its window leaves one or begins to move."""
        load = load_of(ticket)
        if self.beams is not None or ticket.rows > len(load.runs):
            return 0
        room = load.mapped - load.after
        if self.window is not None:
            if load.after < self.window:
                return min(room, self.window - load.after)
            if not load.fading:
                return 0
            room = min(room, self.window + self.page_size - 1 - load.after)
        return room

    def release(self, ticket: Ticket) -> None:
        """Give the frames back."""
        load = self.sync(ticket)
        self.manager.free(load.runs)
        if self.beams is not None:
            self.beams.forget(load.number)
        self._tier_of.pop(load.number, None)
        self.drop(load)
        self._count()

    def swap_out(self, ticket: Ticket) -> bool:
        """Move the pages to the first tier that has room for them."""
        load, manager = self.sync(ticket), self.manager
        if ticket.state == "decode":
            self._catch_up(load)
        manager.rollback(load.runs)
        manager.truncate(load.runs, load.length)
        load.told = load.length
        pages = sum(int(np.count_nonzero(manager.block_table([run]) >= 0)) for run in load.runs)
        for at, store in enumerate(self.tiers):
            if store is not None and store.num_free >= pages:
                for run in load.runs:
                    manager.swap_done(manager.swap_out(run, store))
                self._moved(at, pages)
                self._tier_of[load.number] = at
                self.fade(load, 0)
                self.set(load, 0, load.mapped, load.stored)
                self._count()
                return True
        return False

    def swap_in(self, ticket: Ticket, count: int) -> bool:
        """Bring the pages back, with room for more."""
        load, manager = load_of(ticket), self.manager
        decodes = ticket.todo == 0
        per_row = 1 if decodes else count
        mapped = -(-load.length // self.page_size) * self.page_size - load.released
        back = mapped // self.page_size
        more = -(-(load.length + per_row) // self.page_size) - -(-load.length // self.page_size)
        rows = len(load.runs)
        if rows * (back + more) + self.watermark > manager.num_available:
            return False
        for run in load.runs:
            manager.swap_done(manager.swap_in(run))
        manager.reserve(load.runs, per_row)
        if decodes:
            manager.commit(load.runs, 1)
            load.told += 1
        self._moved(self._tier_of.pop(load.number), rows * back)
        self._enter(load, load.stored, load.length + per_row)
        load.after = load.stored + per_row
        if decodes:
            self._fade(load)
        return True

    def tokens(self, load: Load, produced: int) -> npt.NDArray[np.int32]:
        """Return tokens that stand for a request: parts of the name of their page, and for outputs the request.

        Parameters
        ----------
        load : Load
            Of the request.
        produced : int
            Outputs that are read again.

        Returns
        -------
        int32 array (prompt_len + produced,)
        """
        request = load.request
        assert self.names_per is not None
        if len(request.pages) * self.names_per < request.prompt_len:
            text = f"got {len(request.pages)} for {request.prompt_len} tokens, need one for each {self.names_per}"
            raise ContractError(f"replay: pages of request {load.number} are too few, {text}")
        names = np.repeat(np.array(request.pages, np.uint64), self.names_per)[: request.prompt_len]
        tokens = np.empty(request.prompt_len + produced, np.int32)
        for part in range(PARTS):
            here = names[part::PARTS] >> np.uint64(PART * part)
            tokens[part : request.prompt_len : PARTS] = here & np.uint64(2**PART - 1)
        tokens[request.prompt_len :] = OUTPUT + load.number % OUTPUT
        return tokens

    def _catch_up(self, load: Load) -> None:
        """Tell the manager of the tokens that were stored while nobody looked; their pages are mapped."""
        behind = load.length - load.told
        if behind > 0:
            self.manager.reserve(load.runs, behind)
            self.manager.commit(load.runs, behind)
            load.told += behind

    def _let_go(self, load: Load) -> None:
        """Release the pages behind the window."""
        assert self.window is not None
        if self.manager.release_window(load.runs, self.window):
            released = (load.length - self.window + 1) // self.page_size * self.page_size - load.released
            stored, mapped = load.stored - released, load.mapped - released
            load.released += released
            self.set(load, load.rows, mapped, stored)
            self._count()

    def _fade(self, load: Load) -> None:
        """Note whether the coming steps leave one more token of each row behind its window."""
        self.fade(load, load.rows if self.window is not None and load.stored >= self.window else 0)

    def _enter(self, load: Load, stored: int, end: int) -> None:
        """Enter what a load has mapped, up to a length."""
        mapped = -(-end // self.page_size) * self.page_size - load.released
        self.set(load, len(load.runs), mapped, stored)
        self._count()

    def _count(self) -> None:
        """Note how many slots are held."""
        self.held = (self.manager.num_frames - self.manager.num_available) * self.page_size

    def _moved(self, tier: int, pages: int) -> None:
        """Note that pages moved between the pool and a tier."""
        self.swapped_pages += pages
        self.moved[tier] += pages * self.page_size

    def shared_pages(self) -> tuple[int, int]:
        """Return how many frames sharing saves, and how many there would be without."""
        named = self.mapped // self.page_size
        return named - self.held // self.page_size, named

    def owners(self, loads: list[tuple[Load, int]]) -> npt.NDArray[np.int32]:
        """Return who holds each frame, of several requests the newest (see `Books.owners`)."""
        manager = self.manager
        found = np.where(manager.occupied, -2, -1).astype(np.int32)
        for load, _ in loads:
            frames = manager.block_table(load.runs)
            found[frames[frames >= 0]] = 2 * load.number
        return found
