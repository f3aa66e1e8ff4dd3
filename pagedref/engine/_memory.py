"""The memory of an engine, as its scheduler asks about it: a paged cache, and the host's memory behind it (S33, S34).

Frames are promised while a step is planned and taken when it begins, all at once. So what was promised counts as taken
until then, and beginning the step cannot fail.
"""

from __future__ import annotations

from pagedref.addressing import num_pages, page_of
from pagedref.engine._request import Branch, Request
from pagedref.engine._settings import EngineConfig
from pagedref.errors import ContractError, OutOfFrames
from pagedref.grouped_cache import GroupedKVCache
from pagedref.kv_cache import PagedKVCache
from pagedref.memory.pressure import refuse_if_never
from pagedref.memory.stores import HostStore
from pagedref.memory.swap import carry_out
from pagedref.scheduling import Admission, Ticket

__all__ = ["PagedMemory"]


class PagedMemory:
    """Answer the questions of a scheduler about one cache.

    Parameters
    ----------
    cache : PagedKVCache
        Frames and tables; of one group of layers, or of several.
    config : EngineConfig
        Watermark, prefix cache, room in the host's memory.
    window : int, optional
        Keys that all layers of a cache without groups see.
    """

    def __init__(self, cache: PagedKVCache, config: EngineConfig, window: int | None) -> None:
        self._cache, self._manager, self._page_size = cache, cache.manager, cache.spec.page_size
        self._prefix_cache, self._budget = config.prefix_cache, config.token_budget
        self._watermark = config.watermark or 0
        groups = cache.groups if isinstance(cache, GroupedKVCache) else ()
        self._windows = tuple(group.window for group in groups) or (window,)
        self.capacity = cache.manager.num_frames - self._watermark
        self._promised: dict[object, int] = {}  # to a ticket, or to a branch for its guesses
        self._store: HostStore | None = None
        if config.swap_frames and not groups and hasattr(cache._pool, "parts"):  # not of a pool on a device
            self._frames = cache.frame_store()
            self._store = HostStore(config.swap_frames, self._frames.bytes_per_frame)

    @property
    def spare(self) -> int:
        """Frames that are available and not promised."""
        return self._manager.num_available - sum(self._promised.values())

    def begun(self) -> None:
        """Hear that the planned step has taken its frames."""
        self._promised.clear()

    def slots_left(self, branch: Branch) -> int:
        """Return how many guesses a decoding branch could store behind its next token without anybody's loss."""
        return -(branch.stored + 1) % self._page_size + self.spare // len(self._windows) * self._page_size

    def promise_guesses(self, branch: Branch, count: int) -> None:
        """Promise frames for guesses that `slots_left` says fit."""
        pages = self._pages(branch.stored + 1 + count) - self._pages(branch.stored + 1)
        self._promised[branch] = pages * len(self._windows)

    def largest(self, ticket: Ticket) -> int:
        """Return the most frames of a request: its rows share whole pages of the prompt, windows keep what they see."""
        request: Request = ticket.request
        tokens, total = len(request.prompt) + request.limit - 1, 0
        for window in self._windows:
            pages = self._kept(tokens, min(tokens, self._budget), window)
            shared = len(request.prompt) // self._page_size if ticket.rows > 1 and window is None else 0
            total += shared + ticket.rows * (pages - shared)
        return total

    def refuse(self, ticket: Ticket) -> None:
        """Raise ContractError with the numbers if a request can never fit (S34)."""
        request: Request = ticket.request
        if ticket.rows == 1 and self._windows == (None,):
            frames = self._manager.num_frames
            refuse_if_never(len(request.prompt), request.limit, self._page_size, frames, self._watermark)
        elif (most := self.largest(ticket)) > self.capacity:
            tokens = f"{len(request.prompt)} + {ticket.rows} x {request.limit} tokens"
            text = f"got {most} pages ({tokens}), need at most {self.capacity} frames"
            raise ContractError(f"add: request can never fit, samples and groups of layers counted, {text} (S34)")

    def admit(self, ticket: Ticket, budget: int) -> Admission | None:
        """Give the trunk of a request what is there of its tokens, and promise frames for the next ones."""
        request: Request = ticket.request
        trunk = request.live[0]
        tokens = request.tokens(trunk, 0, request.target)
        look = self._prefix_cache and (request.params.prompt_logprobs is None or request.started)
        if look:
            need = self._manager.need(tokens, budget, watermark=self._watermark, **request.keys)
            new = need.new
            look = need.needed <= self.spare
            if not look and self._windows[0] is None:
                return None  # with a window a hit may take more frames than computing: it holds pages that none sees
        if not look:
            new = self._pages(min(len(tokens), budget)) * len(self._windows)
            if new + self._watermark > self.spare:
                return None
        trunk.seq_id = self._cache.add()
        if look:
            resumed = request.admitted
            trunk.stored = self._cache.attach_prefix(trunk.seq_id, tokens, resumed=resumed, **request.keys)
        self._promised[ticket] = new
        return Admission(trunk.stored, len(tokens) - trunk.stored)

    def grow(self, ticket: Ticket, count: int) -> bool:
        """Promise frames for more tokens."""
        parts = ticket.request.parts(count)
        needed = self._manager.frames_to_reserve([branch.seq_id for branch, _ in parts], [part for _, part in parts])
        if needed > self.spare:
            return False
        self._promised[ticket] = needed
        return True

    def room(self, ticket: Ticket) -> int:
        """Return how many more tokens fit the last pages of all rows."""
        return int(min(-branch.stored % self._page_size for branch in ticket.request.live))

    def release(self, ticket: Ticket) -> None:
        """Free all sequences of a request."""
        request: Request = ticket.request
        if gone := [branch.seq_id for branch in request.branches if branch.seq_id is not None]:
            self._cache.free(gone)
        self._promised.pop(ticket, None)
        request.lose()

    def swap_out(self, ticket: Ticket) -> bool:
        """Move the only sequence of a request to the host."""
        live = ticket.request.live
        if self._store is None or len(live) > 1 or ticket.request.search is not None:
            return False
        try:
            plan = self._manager.swap_out(live[0].seq_id, self._store)
        except OutOfFrames:
            return False
        carry_out(plan, self._frames, self._store)
        self._manager.swap_done(plan)
        self._promised.pop(ticket, None)
        return True

    def swap_in(self, ticket: Ticket, count: int) -> bool:
        """Bring a sequence back, and promise frames for more tokens."""
        branch = ticket.request.live[0]
        more = self._pages(branch.stored + count) - self._pages(branch.stored)
        window = self._windows[0] or branch.stored + 1
        gone = page_of(max(branch.stored - window + 1, 0), self._page_size)  # pages that the window has passed (S32)
        if self._pages(branch.stored) - gone + more + self._watermark > self.spare or self._store is None:
            return False
        plan = self._manager.swap_in(branch.seq_id, num_tokens=count)
        carry_out(plan, self._frames, self._store)
        self._manager.swap_done(plan)
        self._promised[ticket] = more
        return True

    def _pages(self, tokens: int) -> int:
        """Return the pages of some tokens."""
        return int(num_pages(tokens, self._page_size))

    def _kept(self, tokens: int, chunk: int, window: int | None) -> int:
        """Return the most pages that a row of some tokens holds while pieces of at most `chunk` are added."""
        pages = self._pages(tokens)
        return pages if window is None else min(pages, self._pages(window - 1 + chunk) + 1)
