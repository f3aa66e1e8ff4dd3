"""Greedy text for several prompts at once: one ragged batch over one pool of frames.

Each step runs the next token of every sequence that has one, and fills up with pieces of prompts that are still to be
read. A sequence that ends leaves at once and its frames go back; a prompt whose frames are not there yet waits.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pagedref.addressing import num_pages
from pagedref.errors import OutOfFrames
from pagedref.kv_cache import MemoryReport, PagedKVCache
from pagedref.models import fields
from pagedref.models.draft import SpeculationReport
from pagedref.models.transformer import Transformer

if TYPE_CHECKING:
    from pagedref.models.tokenizer import Tokenizer

__all__ = ["BatchRun", "Generation", "Request", "Token", "frames_needed"]

TOKENS_PER_STEP = 512
"""Tokens that a step holds at most while prompts are read: bounds the memory of activations."""


@dataclass(frozen=True)
class Request:
    """Ask for the continuation of one prompt.

    Attributes
    ----------
    prompt_ids : tuple of int
        The prompt, one token or more.
    max_tokens : int
        New tokens at most, >= 1.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Token:
    """Report one new token.

    Attributes
    ----------
    index : int
        Which prompt it belongs to.
    token_id : int
        The token.
    text : str
        What it adds to the text; empty where the character is not complete, or without a tokenizer.
    finish_reason : str or None
        ``"stop"`` (it ends the text) or ``"length"`` with the last token of a prompt, else None.
    """

    index: int
    token_id: int
    text: str = ""
    finish_reason: str | None = None


@dataclass(frozen=True)
class Generation:
    """Hold what came of one prompt.

    Attributes
    ----------
    text : str
        The new text, without control tokens; empty without a tokenizer.
    token_ids : list of int
        The new tokens, the one that ended the text included.
    prompt_ids : list of int
        The prompt as the model saw it.
    finish_reason : str
        ``"stop"``: a token ended the text; ``"length"``: `max_tokens` or the model's maximum length was reached.
    memory : MemoryReport
        Of the whole run, at the moment when it held most tokens.
    speculation : SpeculationReport, optional
        Of the whole run, where it guessed ahead.
    """

    text: str
    token_ids: list[int]
    prompt_ids: list[int]
    finish_reason: str
    memory: MemoryReport
    speculation: SpeculationReport | None = None


def frames_needed(request: Request, page_size: int) -> int:
    """Return the frames that a request takes at most (S34): its last token is never stored.

    Parameters
    ----------
    request : Request
        Prompt and limit.
    page_size : int
        Positions in a page.

    Returns
    -------
    int
        ``ceil((prompt + max_tokens - 1) / page_size)``.

    Examples
    --------
    >>> frames_needed(Request((7,) * 16, 1), 16), frames_needed(Request((7,) * 16, 2), 16)
    (1, 2)
    """
    return int(num_pages(len(request.prompt_ids) + request.max_tokens - 1, page_size))


@dataclass
class Running:
    """One admitted request: its tokens so far, and how many of them lie in the cache."""

    index: int
    seq_id: int
    tokens: list[int]
    stop: int  # length at which it ends
    frames: int  # set aside for it
    stored: int = 0

    @property
    def missing(self) -> int:
        return len(self.tokens) - self.stored


class BatchRun:
    """Run requests to their ends over one cache.

    Parameters
    ----------
    transformer : Transformer
        The model.
    cache : PagedKVCache
        Made for it; its free frames are what the run may use.
    requests : sequence of Request
        Any number.
    eos_token_ids : frozenset of int
        Tokens that end a text (P65).
    max_model_len : int
        For the comparison in the report.
    tokens_per_step : int
        Tokens of a step while prompts are read, >= 1.

    Raises
    ------
    OutOfFrames
        A request could never fit, even alone (S34); nothing has run.

    Notes
    -----
    A request is admitted, in order, when all frames that it may ever need are free or will be; so nothing fails on the
    way. `requests` and `cache` are as given; `report` is the cache's memory at the moment when it held most tokens.
    """

    speculation: SpeculationReport | None = None

    def __init__(
        self,
        transformer: Transformer,
        cache: PagedKVCache,
        requests: Sequence[Request],
        *,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        tokens_per_step: int = TOKENS_PER_STEP,
    ) -> None:
        page_size, pool = cache.spec.page_size, cache.manager.num_available
        for index, request in enumerate(requests):
            needed = frames_needed(request, page_size)
            if needed > pool:
                raise OutOfFrames(
                    f"generate: num_frames is too small for prompt {index}, got {pool}, need {needed} = "
                    f"ceil(({len(request.prompt_ids)} + {request.max_tokens} - 1) / {page_size}) (S34)",
                    needed=needed,
                    available=pool,
                )
        tokens_per_step = fields.count("generate", "tokens_per_step", tokens_per_step)
        self.requests, self.cache = list(requests), cache
        self._transformer = transformer
        self._eos, self._max_model_len, self._tokens_per_step = eos_token_ids, max_model_len, tokens_per_step
        self._waiting = list(enumerate(requests))[::-1]
        self._running: list[Running] = []
        self._unclaimed = pool
        self.report = cache.memory_report(max_model_len=max_model_len)

    def tokens(self) -> Generator[Token, None, None]:
        """Yield every new token as it comes.

        Yields
        ------
        Token
            Without text. Tokens of one prompt come in order; prompts take turns.

        Notes
        -----
        Mutates: the cache, in which no sequence of this run is left at the end, whichever way it comes; what a step
        had reserved goes with its sequences.
        """
        try:
            while self._waiting or self._running:
                self._admit()
                yield from self._step()
        finally:
            self._leave(self._running)

    def texts(self, tokenizer: Tokenizer | None) -> Generator[Token, None, None]:
        """Yield every new token as it comes, with the text that it adds.

        Parameters
        ----------
        tokenizer : Tokenizer, optional
            Without it, texts are empty.

        Yields
        ------
        Token
            As :meth:`tokens` does.

        Notes
        -----
        Mutates: as :meth:`tokens`.
        """
        streams = None if tokenizer is None else [tokenizer.stream() for _ in self.requests]
        with closing(self.tokens()) as tokens:
            for token in tokens:
                if streams is None:
                    yield token
                    continue
                stream = streams[token.index]
                text = stream.push(token.token_id)
                if token.finish_reason is not None:
                    text += stream.finish()
                yield replace(token, text=text)

    def _admit(self) -> None:
        """Take waiting requests, the first first, while their frames can be set aside."""
        while self._waiting:
            index, request = self._waiting[-1]
            frames = frames_needed(request, self.cache.spec.page_size)
            if frames > self._unclaimed:
                return
            self._waiting.pop()
            self._unclaimed -= frames
            prompt = list(request.prompt_ids)
            self._running.append(Running(index, self.cache.add(), prompt, len(prompt) + request.max_tokens, frames))

    def _counts(self) -> list[int]:
        """Return how many tokens of each running sequence go into the next step: decode first, then prompts."""
        room = max(0, self._tokens_per_step - sum(seq.missing == 1 for seq in self._running))
        counts = []
        for seq in self._running:
            count = 1 if seq.missing == 1 else min(seq.missing, room)
            room -= count if seq.missing > 1 else 0
            counts.append(count)
        if not any(counts):  # no room at all: read the first prompt token by token
            counts[0] = 1
        return counts

    def _step(self) -> list[Token]:
        """Run one step and return the new tokens."""
        pairs = [(seq, count) for seq, count in zip(self._running, self._counts(), strict=True) if count]
        ids = [token for seq, count in pairs for token in seq.tokens[seq.stored : seq.stored + count]]
        ends = np.cumsum([count for _, count in pairs])
        last = [at for at, (seq, count) in enumerate(pairs) if count == seq.missing]  # these get a new token
        cache = self.cache
        step = cache.begin([seq.seq_id for seq, _ in pairs], [count for _, count in pairs])
        best = self._transformer.greedy(cache, step, ids, ends[last] - 1)  # (len(last),)
        cache.commit(step)
        for seq, count in pairs:
            seq.stored += count
        return self._end(
            [self._take(pairs[at][0], token) for at, token in zip(last, best.tolist(), strict=True)]
        )

    def _end(self, new: list[Token]) -> list[Token]:
        """Let those leave whose last token is among the new ones; return these."""
        ended = {token.index for token in new if token.finish_reason is not None}
        if ended:
            report = self.cache.memory_report(max_model_len=self._max_model_len)
            if report.num_tokens >= self.report.num_tokens:
                self.report = report
            self._leave([seq for seq in self._running if seq.index in ended])
        return new

    def _take(self, seq: Running, token: int) -> Token:
        """Append a new token to its sequence and say whether it is the last."""
        seq.tokens.append(token)
        reason = "stop" if token in self._eos else "length" if len(seq.tokens) >= seq.stop else None
        return Token(seq.index, token, finish_reason=reason)

    def _leave(self, sequences: list[Running]) -> None:
        """Free sequences and give their frames to whoever waits."""
        if sequences:
            self.cache.free([seq.seq_id for seq in sequences])
            self._unclaimed += sum(seq.frames for seq in sequences)
            self._running = [seq for seq in self._running if seq not in sequences]
