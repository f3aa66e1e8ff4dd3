"""How a step is carried out: plan, batch, commit, outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pagedref.engine._memory import PagedMemory
from pagedref.engine._metrics import Meter
from pagedref.engine._model_step import ModelStep, Part, guesses, make_parts
from pagedref.engine._outcome import choose_token, take_token
from pagedref.engine._request import Branch, Request
from pagedref.engine._settings import EngineConfig
from pagedref.errors import ContractError, OutOfFrames
from pagedref.kv_cache import PagedKVCache
from pagedref.models.draft import Accepted, accept
from pagedref.models.logprobs import prompt_logprobs
from pagedref.scheduling import Plan, Scheduler

if TYPE_CHECKING:
    from pagedref.models.model import Model

__all__ = ["Stepping"]

Float32 = npt.NDArray[np.float32]

LOGGED_AT_ONCE = 16  # rows of a vocabulary in float64: a bound on memory


class Stepping:
    """Carry out steps; `Engine` takes requests and hands out what comes of them."""

    model: Model
    config: EngineConfig
    cache: PagedKVCache
    _clock: Callable[[], float]
    _memory: PagedMemory
    _scheduler: Scheduler
    _meter: Meter
    _requests: dict[int, Request]
    _planned: Plan | None
    _window: int | None
    _busy: bool = False
    _late: list[Request] | None = None  # who is to be aborted when the step allows it; None: at once
    _exactly: Callable[[], AbstractContextManager[None]]
    on_step: Callable[[], object] | None = None
    """Called within each step when its tokens are stored and nobody has left yet: to look at the memory."""

    def _advance(self) -> None:
        """Run one step, if there is anything to do."""
        if self._busy:
            raise ContractError("step: the engine is in a step, got a call from a callback, need one after it")
        self._busy, self._late = True, []
        try:
            self._run_step()
        finally:
            self._busy = False
            self._abort_late()

    def _run_step(self) -> None:
        began = self._clock()
        plan = self._planned or self._plan()
        if plan is None:
            return
        self._planned = plan  # until it has run: if the model raises, the same step is tried again
        tickets = [(ticket, ticket.rows) for ticket in self._scheduler.decoding]
        tickets += [(ticket, count) for ticket, count in plan.prefill if ticket.state == "prefill"]
        work = [(ticket.request, *part) for ticket, count in tickets for part in ticket.request.parts(count)]
        parts = make_parts(work, guesses(work, self.config.speculation, self.config.token_budget, self._memory))
        with self._exactly():
            batch = ModelStep(self.model.transformer, self.cache, parts) if parts else None
        self._planned = None
        self._memory.begun()
        meter = self._meter
        try:
            if batch is not None:
                self._outcomes(batch, parts)
            else:
                self._scheduler.done()
        except BaseException as error:  # Ctrl-C between two lines: what took part cannot be trusted any more
            if self._scheduler.is_planned:
                self._scheduler.done()
            for request in {id(part.request): part.request for part in parts}.values():
                if request.number in self._requests:
                    self._end(request, "error", error)
            raise
        meter.steps += 1
        meter.prompt_tokens += sum(count for _, count in plan.prefill)
        meter.busy += self._clock() - began

    def _plan(self) -> Plan | None:
        """Ask the scheduler; None if nobody is left."""
        while self._scheduler.num_running or self._scheduler.num_waiting:
            try:
                plan = self._scheduler.schedule()
            except OutOfFrames as error:  # somebody else holds frames of this cache
                self._end(self._scheduler.waiting[0].request, "error", error)
                continue
            now = self._clock()
            for ticket in plan.admitted:
                request: Request = ticket.request
                if not request.admitted:
                    request.admitted, request.admitted_at, request.cached_tokens = True, now, ticket.hit
            for _, how in plan.preempted:
                self._meter.recomputed += how == "recompute"
                self._meter.swapped += how == "swap"
            return plan
        return None

    def _outcomes(self, batch: ModelStep, parts: list[Part]) -> None:
        """Keep what was computed and see what came of it for each request."""
        best = batch.logits.argmax(axis=1).tolist() if len(batch.logits) else []
        checked = [self._check_guesses(part, batch, best) for part in parts]
        kept = [0 if isinstance(found, Exception) else found.in_place for found in checked]
        batch.commit(kept, learn=self.config.prefix_cache, window=self._window)
        self._abort_late()
        manager = self.cache.manager
        self._meter.frames_peak = max(self._meter.frames_peak, manager.num_frames - manager.num_available)
        if self.on_step is not None:
            with self._aborts_at_once():
                self.on_step()
        self._scheduler.done()
        pairs = zip(parts, checked, strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0].request.number):
            own = list(group)
            request = own[0][0].request
            failed: Exception | None = None
            try:
                good = []
                for part, found in own:
                    if isinstance(found, Exception):
                        raise found
                    self._log_prompt(part, batch)
                    good.append((part, found))
                self._outcome(request, good, batch, best)
            except Exception as error:
                failed = error
            self._abort_late()
            if failed is not None:
                self._end(request, "error", failed)
            else:
                self._deliver(request)

    def _abort_late(self) -> None:
        """Abort those whose abort had to wait: it came while the step was planned, computed or taken."""
        late, self._late = self._late or [], [] if self._busy else None
        for request in late:
            self._end(request, "abort")

    @contextmanager
    def _aborts_at_once(self) -> Iterator[None]:
        """Let a callback run where everything is in order."""
        waiting, self._late = self._late, None
        try:
            yield
        finally:
            self._late = waiting

    def _check_guesses(self, part: Part, batch: ModelStep, best: list[int]) -> Accepted | Exception:
        """Find the tokens that come of a part with guesses, before it is committed."""
        if not part.draft.tokens:
            return Accepted((), 0)
        request, branch, first = part.request, part.branch, batch.row(part)

        def choose_at(row: int, new: list[int]) -> int:
            at = first + row
            return choose_token(request, branch, branch.outputs + new, batch.logits[at], best[at])

        try:
            found = accept(part.draft, choose_at)
        except Exception as error:
            return error
        self._meter.drafted += len(part.draft)
        self._meter.accepted += found.in_place
        return found

    def _log_prompt(self, part: Part, batch: ModelStep) -> None:
        """Report the prompt's log-probabilities of the rows that were computed for it."""
        if part.logged:
            request = part.request
            for first in range(part.first, part.first + part.logged, LOGGED_AT_ONCE):
                rows = batch.logits[first : min(first + LOGGED_AT_ONCE, part.first + part.logged)]
                done = len(request.prompt_logprobs)
                judged = request.prompt[done : done + len(rows)]
                request.prompt_logprobs += prompt_logprobs(rows, judged, request.params.prompt_logprobs or 0)

    def _outcome(
        self, request: Request, own: list[tuple[Part, Accepted]], batch: ModelStep, best: list[int]
    ) -> None:
        """Take the new tokens of a request."""
        if request.ticket.state != "decode":
            return  # its prompt is not read to the end
        if request.trunk:
            request.trunk = False
            if not request.started:
                self._first(request, batch, own[0][0], best)
                return
            if len(request.live) > 1:
                self._fork_again(request)
                return
        rows = [batch.row(part) for part, _ in own if part.rows > part.logged]
        if len(rows) < len(own):
            return  # forked branches that have caught up
        if request.search is not None:
            self._search(request, batch.logits[rows])
            return
        for (part, found), row in zip(own, rows, strict=True):
            tokens = found.tokens or (self._choose(request, part.branch, batch.logits[row], best[row]),)
            self._take(request, part.branch, tokens, batch.logits[row:])
            if found.in_place:
                self._scheduler.retouch(request.ticket, request.ticket.rows)
        self._drop_ended(request)

    def _choose(self, request: Request, branch: Branch, logits: Float32, best: int) -> int:
        return choose_token(request, branch, branch.outputs, logits, best)

    def _take(self, request: Request, branch: Branch, tokens: tuple[int, ...], logits: Float32) -> None:
        """Append tokens to a branch until it ends."""
        for token, row in zip(tokens, logits, strict=False):
            take_token(request, branch, token, row, self.model.config.eos_token_ids)
            self._meter.output_tokens += 1
            if branch.reason is not None:
                break

    def _first(self, request: Request, batch: ModelStep, part: Part, best: list[int]) -> None:
        """Take the first token of every sample, and give each sample that goes on a sequence of its own."""
        request.started = True
        row, trunk = batch.row(part), part.branch
        if request.search is not None:
            self._search(request, batch.logits[row : row + 1])
            self._first_came(request)
            return
        tokens = [self._choose(request, branch, batch.logits[row], best[row]) for branch in request.branches]
        self._first_came(request)
        for branch, token in zip(request.branches, tokens, strict=True):
            self._take(request, branch, (token,), batch.logits[row:])
        live = request.live
        if live and len(request.branches) > 1:
            if live[0] is not trunk:
                live[0].seq_id, live[0].stored, trunk.seq_id = trunk.seq_id, trunk.stored, None
            self._fork(live)
            self._scheduler.retouch(request.ticket, request.rows)

    def _first_came(self, request: Request) -> None:
        request.first_token_at = self._clock()
        self._meter.first_token(request.first_token_at - request.added)

    def _fork_again(self, request: Request) -> None:
        """Give every branch of a request that was preempted a sequence again; then each reads what it had produced."""
        self._fork(request.live)
        self._scheduler.retouch(request.ticket, request.rows)
        if request.behind:
            self._scheduler.reread(request.ticket, request.behind)

    def _fork(self, live: list[Branch]) -> None:
        """Fork the sequence of the first branch for the others."""
        trunk = live[0]
        assert trunk.seq_id is not None
        for branch in live[1:]:
            branch.seq_id, branch.stored = self.cache.fork(trunk.seq_id), trunk.stored

    def _drop_ended(self, request: Request) -> None:
        """Free the sequences of samples that have ended, if others go on."""
        live = request.live
        ended = [branch for branch in request.branches if branch.reason is not None and branch.seq_id is not None]
        if live and ended:
            self.cache.free([branch.seq_id for branch in ended if branch.seq_id is not None])
            for branch in ended:
                branch.seq_id = None
            self._scheduler.retouch(request.ticket, request.rows)

    def _search(self, request: Request, logits: Float32) -> None:
        """Take a step of a beam search: a beam that is continued twice is forked, one that is not is freed."""
        search, old = request.search, request.live
        assert search is not None
        self._meter.output_tokens += len(logits)
        parents = search.advance(logits)
        if search.done:
            for branch in old:
                branch.reason = "stop"
            return
        new: list[Branch] = []
        taken: set[int] = set()
        for number, (parent, beam) in enumerate(zip(parents, search.beams, strict=True)):
            branch, source = Branch(number), old[parent]
            assert source.seq_id is not None
            branch.seq_id = self.cache.fork(source.seq_id) if parent in taken else source.seq_id
            branch.stored, branch.outputs = source.stored, list(beam.tokens)
            taken.add(parent)
            new.append(branch)
        lost = [branch.seq_id for at, branch in enumerate(old) if at not in taken and branch.seq_id is not None]
        if lost:
            self.cache.free(lost)
        request.branches = new
        self._scheduler.retouch(request.ticket, request.rows)

    def _end(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        raise AssertionError("the engine ends requests")

    def _deliver(self, request: Request) -> None:
        raise AssertionError("the engine delivers")


