"""One request in an engine: its prompt, its sequences and what came of them so far.

A request owns several sequences where it has several samples or beams. They share the prompt: one sequence, the trunk,
reads it, and is forked when it has. After a preemption the same happens again, and then each sequence reads what it had
produced (P58): prompt and outputs are kept apart, so nothing else has to be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.engine._outputs import Delta
from pagedref.models.beam import BeamSearch
from pagedref.models.logprobs import TokenLogprob
from pagedref.models.sampling import SamplingParams
from pagedref.models.text_stream import TextStream
from pagedref.scheduling import Ticket

__all__ = ["Branch", "Listener", "Processor", "Request"]

Listener = Callable[[Delta], object]
Processor = Callable[[Sequence[int], Sequence[int], npt.NDArray[np.float32]], Any]


class Branch:
    """One sequence of a request: a sample or a beam.

    Parameters
    ----------
    sample : int
        Which of the request's.
    stream : TextStream, optional
        From its tokens to text.
    """

    __slots__ = ("logprob", "logprobs", "outputs", "reason", "sample", "seq_id", "stored", "stream", "text")

    def __init__(self, sample: int, stream: TextStream | None = None) -> None:
        self.sample, self.stream = sample, stream
        self.seq_id: int | None = None  # while it is in the cache, or in the slower tier
        self.stored = 0  # tokens of it in the cache
        self.outputs: list[int] = []
        self.text: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.logprob = 0.0  # sum, where samples are ranked
        self.reason: str | None = None


class Request:
    """Hold the state of a request.

    Parameters
    ----------
    number : int
        Its id.
    prompt : list of int
        Token ids, one or more.
    params : SamplingParams
        With a seed, if noise enters.
    limit : int
        New tokens at most.
    branches : list of Branch
        One for each sample; for beams as many as there may be.
    priority : int
        Its class.
    """

    def __init__(
        self, number: int, prompt: list[int], params: SamplingParams, limit: int, branches: list[Branch], priority: int
    ) -> None:
        self.number, self.prompt, self.params, self.limit = number, prompt, params, limit
        self.branches = branches
        self.ticket = Ticket(self, priority=priority, rows=len(branches))
        self.search: BeamSearch | None = None
        self.listener: Listener | None = None
        self.processor: Processor | None = None
        self.keys: dict[str, Any] = {}  # who may share pages with it (S28)
        self.error: str | None = None
        self.news: list[Delta] = []  # not handed out yet
        self.is_talking = False  # whether it is being handed out
        self.trunk = True  # whether the next tokens to read belong to the sequence that all branches come from
        self.started = False  # whether the first outputs are there
        self.admitted = False
        self.cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprob | None] = []
        self.added = self.admitted_at = self.first_token_at = float("nan")

    def __repr__(self) -> str:
        return f"request {self.number}"

    @property
    def is_silent(self) -> bool:
        """Whether it reports only at its end: which of its texts are the best is known only then."""
        return self.search is not None or self.params.num_samples > self.params.n

    @property
    def live(self) -> list[Branch]:
        """Branches that have not ended."""
        return [branch for branch in self.branches if branch.reason is None]

    @property
    def rows(self) -> int:
        """Sequences that it may have in the next step: of a search all beams, since lost ones come again."""
        return len(self.live) if self.search is None else self.params.num_samples

    @property
    def target(self) -> int:
        """Tokens that the trunk reads: all that there are, or what all branches have in common."""
        live = self.live
        return len(self.prompt) + (len(live[0].outputs) if len(live) == 1 else 0)

    @property
    def behind(self) -> int:
        """Tokens that forked branches have to read until each has one to go."""
        return sum(self.missing(branch) - 1 for branch in self.live)

    def missing(self, branch: Branch) -> int:
        """Return how many tokens of a branch are not in the cache."""
        return len(self.prompt) + len(branch.outputs) - branch.stored

    def tokens(self, branch: Branch, start: int, stop: int) -> list[int]:
        """Return known tokens of a branch by position."""
        first = len(self.prompt)
        if start >= first:
            return branch.outputs[start - first : stop - first]
        return self.prompt[start:stop] + branch.outputs[: max(0, stop - first)]

    def parts(self, count: int) -> list[tuple[Branch, int]]:
        """Share the tokens of a step out among the sequences: one each, the trunk, or who is behind, in order."""
        live = self.live
        if self.ticket.state == "decode":
            return [(branch, 1) for branch in live]
        if self.trunk:
            return [(live[0], count)]
        shared = []
        for branch in live:
            if part := min(self.missing(branch) - 1, count):
                shared.append((branch, part))
                count -= part
        return shared

    def lose(self) -> None:
        """Take note that nothing of it is in the cache any more."""
        for branch in self.branches:
            branch.seq_id, branch.stored = None, 0
        self.trunk = True
