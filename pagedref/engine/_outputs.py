"""What an engine hands out."""

from __future__ import annotations

from dataclasses import dataclass

from pagedref.models.logprobs import TokenLogprob

__all__ = ["Completion", "Delta", "Sample", "Usage"]


@dataclass(frozen=True)
class Usage:
    """What a request took.

    Attributes
    ----------
    prompt_tokens, output_tokens : int
        Tokens of the prompt, and of the texts; computed again or not, each counts once (P58).
    cached_tokens : int
        Tokens of the prompt that its first admission found in the pool.
    preemptions : int
        How often it lost its memory.
    queued, first_token, total : float
        Seconds until it was first admitted, until its first token, and until its end; NaN for what never came.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int
    queued: float
    first_token: float
    total: float


@dataclass(frozen=True)
class Sample:
    """Hold one text of a request.

    Attributes
    ----------
    text : str
        The new text, without control tokens; empty without a tokenizer.
    token_ids : tuple of int
        The new tokens, the one that ended the text included.
    finish_reason : str
        ``"stop"``, ``"length"``, ``"abort"`` or ``"error"``.
    logprobs : tuple of TokenLogprob
        Of each new token, if asked for.
    score : float or None
        Of a beam: what it was ranked by.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] = ()
    score: float | None = None


@dataclass(frozen=True)
class Completion:
    """Hold everything that came of one request.

    Attributes
    ----------
    request_id : int
        Its number.
    prompt_ids : tuple of int
        The prompt as the model saw it.
    samples : tuple of Sample
        `n` texts; of several beams or `best_of` samples the best first.
    prompt_logprobs : tuple of TokenLogprob or None
        One for each token of the prompt, the first of which has none; empty if not asked for.
    seed : int or None
        With it and the same parameters the same tokens come again.
    error : str or None
        What went wrong, where the reason is ``"error"``.
    usage : Usage
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...]
    seed: int | None
    error: str | None
    usage: Usage

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.samples[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The new tokens of the first sample."""
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> str:
        """Why the first sample ended."""
        return self.samples[0].finish_reason


@dataclass(frozen=True)
class Delta:
    """Report what is new of one sample of a request.

    Attributes
    ----------
    request_id, sample : int
        Whose it is.
    token_ids : tuple of int
        New tokens: one, several where guesses came true or beams ended, none where it only ends.
    text : str
        What is certain to follow in the text: whole characters, and no part of a stop string.
    logprobs : tuple of TokenLogprob
        Of the new tokens, if asked for.
    finish_reason : str or None
        With the last report of a sample why it ended.
    completion : Completion or None
        With the last report of a request everything that came of it.
    """

    request_id: int
    sample: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    completion: Completion | None = None
