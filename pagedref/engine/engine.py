"""The engine: requests in, tokens and text out, one ragged batch a step.

A step: the scheduler says who runs, one batch goes through the model, what was computed is committed, tokens are
chosen, and whoever ends leaves at once. What goes wrong with one request ends that one, with its reason; the others do
not notice (a callback, a logits processor or a tokenizer that raises).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from pagedref.engine._caches import make_cache
from pagedref.engine._delivery import Delivery
from pagedref.engine._frames import FrameUse, frame_uses
from pagedref.engine._memory import PagedMemory
from pagedref.engine._metrics import EngineMetrics, Meter
from pagedref.engine._outputs import Completion, Delta
from pagedref.engine._request import Branch, Listener, Processor, Request
from pagedref.engine._settings import EngineConfig
from pagedref.errors import ContractError
from pagedref.models.beam import BeamSearch
from pagedref.models.fields import refuse
from pagedref.models.prompts import Prompts, check_chat, checked_ids, separate
from pagedref.models.sampling import SamplingParams
from pagedref.models.text_stream import TextStream
from pagedref.scheduling import Scheduler

if TYPE_CHECKING:
    from pagedref.models.model import Model

__all__ = ["Engine"]

Prompt = str | Sequence[int]


class Engine(Delivery):
    """Serve requests with one model.

    Parameters
    ----------
    model : Model
        The model; several engines may use it, one at a time.
    config : EngineConfig, optional
        Memory, budget and preemption.
    clock : callable
        Seconds, for metrics alone: no decision depends on it.

    Attributes
    ----------
    model, config
        As given.
    cache : PagedKVCache
        The pool, for views and reports; whoever takes frames of it himself takes them from the requests.
    on_step : callable or None
        Called in each step when its tokens are stored and nobody has left yet: the moment for a look at the pool.

    Notes
    -----
    Use it from one thread. An error of the model itself, or Ctrl-C while it computes, leaves everything as it was
    before the step: call `step` again, or `abort`.

    Examples
    --------
    >>> from pagedref.models import load_model
    >>> engine = Engine(load_model("tiny"), EngineConfig(num_frames=64, page_size=4))
    >>> first = engine.add([0, 9, 9, 9], SamplingParams(max_tokens=3))
    >>> second = engine.add([0, 7, 7], SamplingParams(max_tokens=2))
    >>> [(delta.request_id, delta.finish_reason) for delta in engine.step()]
    [(0, None), (1, None)]
    >>> engine.abort(first)
    >>> [(delta.request_id, delta.finish_reason) for delta in engine.step()]
    [(0, 'abort'), (1, 'length')]
    >>> engine.metrics().frames_held
    0
    """

    def __init__(
        self, model: Model, config: EngineConfig | None = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if not hasattr(model, "transformer"):
            refuse("Engine", "model", "is none", model, "a Model, as of load_model")
        self.model = model
        if config is not None and not isinstance(config, EngineConfig):
            refuse("Engine", "config", "is none", config, "an EngineConfig")
        self.config = config = EngineConfig() if config is None else config
        self._clock = clock
        self.cache, self._window, self._exactly = make_cache(model, config)
        self._memory = PagedMemory(self.cache, config, self._window)
        self._scheduler = Scheduler(self._memory, config.limits)
        self._meter = Meter()
        self._requests: dict[int, Request] = {}
        self._next = 0
        self._loose: list[Delta] = []  # for `step`
        self._mail: dict[int, deque[Delta]] = {}  # for `stream` and `generate`
        self._planned = None

    def __repr__(self) -> str:
        return f"Engine({self.model!r}: {self._scheduler.num_running} running, {self._scheduler.num_waiting} waiting)"

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        chat: bool | None = None,
        salt: Any = None,
        on_delta: Listener | None = None,
        logits_processor: Processor | None = None,
    ) -> int:
        """Take a request; it runs from the next step on that has room for it.

        Parameters
        ----------
        prompt : str or sequence of int
            A text, or token ids, one at least.
        params : SamplingParams, optional
            How to choose tokens, and how many; by default greedy.
        priority : int
            Its class: a high one goes first and is kept longer.
        chat : bool, optional
            Whether a text is put into the model's chat template; by default if it has one.
        salt : None, int, str, bytes or tuple
            Only requests of the same salt share pages of their prompts (S28).
        on_delta : callable, optional
            Called with each :class:`Delta` of this request.
        logits_processor : callable, optional
            Called with (prompt ids, output ids, logits), a copy; returns the logits to choose from. With speculation
            it is asked about guesses, too: let it depend on nothing else.

        Returns
        -------
        int
            Its id.

        Raises
        ------
        ContractError
            The prompt is empty, too long or no text of this model, the parameters ask for what it cannot do, or the
            request could never fit (S34, with the numbers). Nothing was changed.
        """
        model, config = self.model, self.model.config
        if params is not None and not isinstance(params, SamplingParams):
            refuse("add", "params", "are none", params, "SamplingParams")
        for name, given in (("on_delta", on_delta), ("logits_processor", logits_processor)):
            if given is not None and not callable(given):
                refuse("add", name, "cannot be called", given, "a callable")
        check_chat("add", chat)
        params = (SamplingParams() if params is None else params).seeded()
        params.check_model(config.vocab_size, model.tokenizer is not None)
        tokens = model.encode(prompt, chat=chat) if isinstance(prompt, str) else prompt
        ids = checked_ids("add", "prompt", tokens, config.vocab_size, config.max_model_len)
        if not ids:
            refuse("add", "prompt", "is empty", ids, "one token or more")
        limit = min(params.max_tokens, config.max_model_len - len(ids) + 1)  # the last one is never stored (P65)
        tokenizer = model.tokenizer
        beams = params.beam_width is not None
        branches = [
            Branch(sample, None if beams else TextStream(tokenizer, params.stop, params.include_stop))
            for sample in range(params.num_samples)
        ]
        request = Request(self._next, ids, params, limit, branches, priority)
        if params.beam_width is not None:
            stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else config.eos_token_ids)
            request.search = BeamSearch(
                params.beam_width, stop_token_ids=stops, max_tokens=limit, length_penalty=params.length_penalty
            )
            if logits_processor is not None:
                refuse("add", "logits_processor", "does not go with beam_width", logits_processor, "None")
        request.listener, request.processor = on_delta, logits_processor
        if salt is not None:
            request.keys = {"salt": salt}
            self.cache.manager.match_prefix([], **request.keys)  # refuses what has no canonical form
        if params.prompt_logprobs is not None:
            request.prompt_logprobs = [None]
        self._scheduler.add(request.ticket)
        request.added = self._clock()
        self._next += 1
        self._requests[request.number] = request
        return request.number

    def step(self) -> list[Delta]:
        """Run one step.

        Returns
        -------
        list of Delta
            What is new of all requests, those that ended since the last call included; empty if there is nothing to
            do.

        Notes
        -----
        Mutates: the engine. What belongs to a request of `stream` or `generate` goes there.
        """
        self._advance()
        news, self._loose = self._loose, []
        return news

    def abort(self, request_id: int) -> None:
        """End a request now; its frames are free when this returns. One that has ended is left alone.

        In the middle of a step (a logits processor calls it, or a stream is dropped) it takes effect as soon as the
        tokens that are being computed are stored or taken; in `on_step` and `on_delta` at once.

        Parameters
        ----------
        request_id : int
            Of `add`.

        Raises
        ------
        ContractError
            There never was such a request.
        """
        whole = isinstance(request_id, int) and not isinstance(request_id, bool)
        if not whole or not 0 <= request_id < self._next:
            raise ContractError(f"abort: request_id is unknown, got {request_id!r:.40}, need one of add")
        if (request := self._requests.get(request_id)) is None:
            return
        if self._late is None:
            self._end(request, "abort")
        else:
            self._late.append(request)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Generator[Delta, None, None]:
        """Take a request and yield what is new of it, while it and all others run.

        Parameters
        ----------
        prompt, params, **options
            As in `add`; checked now, before the first one is asked for.

        Returns
        -------
        generator of Delta
            The texts of one sample joined are its text; the last one has the completion. Closing it aborts the request.
        """
        number = self.add(prompt, params, **options)
        self._mail[number] = deque()
        follow = self._follow(number)
        next(follow)
        return follow

    def _follow(self, number: int) -> Generator[Delta, None, None]:
        """Step until a request has ended."""
        mail = self._mail[number]
        try:
            yield Delta(number, 0, (), "")  # for `stream`: a generator that was never begun would end without `finally`
            while mail or number in self._requests:
                while mail:
                    yield mail.popleft()
                if number in self._requests:
                    self._advance()
        finally:
            self.abort(number)
            del self._mail[number]

    def generate(
        self, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[Completion]:  # fmt: skip
        """Run requests to their ends.

        Parameters
        ----------
        prompts : str, sequence of str, or one or several sequences of int
            Texts or token ids.
        params : SamplingParams or sequence of SamplingParams, optional
            One for all, or one for each.
        **options
            As in `add`, for all.

        Returns
        -------
        list of Completion
            In the order of the prompts.

        Raises
        ------
        ContractError
            One of them is refused; then none runs.
        """
        items = separate(prompts)
        each = list(params) if isinstance(params, Sequence) else [params] * len(items)
        if len(each) != len(items):
            refuse("generate", "params", "do not fit the prompts", len(each), f"one, or {len(items)}")
        numbers: list[int] = []
        done: dict[int, Completion] = {}
        try:
            for item, own in zip(items, each, strict=True):
                numbers.append(self.add(item, own, **options))
                self._mail[numbers[-1]] = deque()
            while any(number in self._requests for number in numbers):
                self._advance()
        finally:
            for number in numbers:
                self.abort(number)
                done.update((d.request_id, d.completion) for d in self._mail.pop(number, ()) if d.completion)
        return [done[number] for number in numbers]

    def metrics(self) -> EngineMetrics:
        """Return what was done so far, and where the memory is now."""
        return self._meter.read(self.cache.manager, self._scheduler.num_waiting, self._scheduler.num_running)

    def frames(self) -> list[FrameUse]:
        """Return what every frame of the pool holds now, for a view of the memory; costs O(pages).

        Returns
        -------
        list of FrameUse
            One for each frame, in order.
        """
        return frame_uses(self.cache, list(self._requests.values()))
