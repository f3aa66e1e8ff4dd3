"""How a request ends and what is new of it is handed out: to its listener, and to whoever drives the engine."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from pagedref.engine._outcome import completion, final_deltas
from pagedref.engine._outputs import Completion, Delta
from pagedref.engine._request import Request
from pagedref.engine._stepping import Stepping

__all__ = ["Delivery"]


class Delivery(Stepping):
    """End requests and deliver; see `Engine`."""

    _loose: list[Delta]
    _mail: dict[int, deque[Delta]]

    def _end(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        """End what is left of a request: by its owner, or because something went wrong in it."""
        if error is not None:
            request.error = _told(error)
        for branch in request.live:
            text = ""
            if branch.stream is not None and request.error is None:
                try:
                    text = branch.stream.finish()
                except Exception as broken:  # of the tokenizer: the rest of the text is lost
                    request.error = _told(broken)
                branch.text.append(text)
            branch.reason = reason
            if not request.is_silent:
                request.news.append(Delta(request.number, branch.sample, (), text, finish_reason=reason))
        self._deliver(request)

    def _deliver(self, request: Request) -> None:
        """Hand out what is new of a request; if it has ended, free it and hand out the completion, too."""
        open_still = request.number in self._requests
        if open_still and request.is_silent:
            request.news.clear()
        if open_still and not request.live:
            del self._requests[request.number]
            self._scheduler.finish(request.ticket)
            self._meter.ended(request)
            whole = self._completion(request)
            if request.is_silent:
                request.news += final_deltas(whole)
            request.news[-1] = replace(request.news[-1], completion=whole)
        if not request.is_talking:  # else its listener has ended it: what is new comes behind what it hears now
            request.is_talking = True
            try:
                self._hand_out(request)
            finally:
                request.is_talking = False

    def _hand_out(self, request: Request) -> None:
        """Tell a request's listener and owner what is new, in order; a listener that raises ends it."""
        box: Any = self._mail.get(request.number, self._loose)
        failed: BaseException | None = None
        while request.news:
            delta = request.news.pop(0)
            try:
                if request.listener is not None:
                    with self._aborts_at_once():
                        request.listener(delta)
            except BaseException as error:
                request.listener, failed = None, error
            if failed is not None and delta.completion is not None:
                delta = replace(delta, completion=replace(delta.completion, error=_told(failed)))
            box.append(delta)
            if failed is not None and not request.news and request.number in self._requests:
                self._end(request, "error", failed)
        if failed is not None and not isinstance(failed, Exception):  # Ctrl-C in a listener: nothing of it is lost
            raise failed

    def _completion(self, request: Request) -> Completion:
        """Return everything that came of a request; without text if the tokenizer fails."""
        try:
            return completion(request, self.model.tokenizer, self._clock())
        except Exception as error:
            request.error = _told(error)
            return completion(request, None, self._clock())


def _told(error: BaseException) -> str:
    """Return an error as one text."""
    return f"{type(error).__name__}: {error}"
