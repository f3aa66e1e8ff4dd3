"""Sampling: from the logits of one position to the next token, as a pure function.

A token depends on the request, its prompt, its tokens so far and the logits: on no state that neighbours in a batch,
their order or a preemption could have changed.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pagedref.models import _sampling_fields as checked
from pagedref.models.fields import refuse
from pagedref.models.filters import keep_min_p, keep_top_k, keep_top_p, keep_typical, penalise, weigh
from pagedref.models.noise import uniform

__all__ = ["SamplingParams", "choose"]

# Limits of the fields, both allowed.
_WHOLE = {
    "max_tokens": (1, 2**31 - 1),
    "top_k": (0, 2**31 - 1),
    "seed": (0, 2**64 - 1),
    "n": (1, 65_535),
    "best_of": (1, 65_535),
    "logprobs": (0, 2**31 - 1),
    "prompt_logprobs": (0, 2**31 - 1),
    "beam_width": (1, 65_535),
}
_OPTIONAL = {"seed", "best_of", "logprobs", "prompt_logprobs", "beam_width"}
_REAL = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
    "presence_penalty": (-math.inf, math.inf),
    "frequency_penalty": (-math.inf, math.inf),
    "length_penalty": (-32.0, 32.0),  # lengths to this power are numbers
}
_NOT_WITH_BEAMS = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "seed", "best_of", "stop", "include_stop", "logprobs"),
)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Say how the text of one request is chosen.

    Attributes
    ----------
    max_tokens : int
        New tokens at most, >= 1.
    temperature : float
        >= 0; 0 (the default) is greedy: the largest logit, of equal ones the smallest id.
    top_k : int
        Tokens that may be drawn at most; 0 is off.
    top_p : float
        0 to 1: share of the probability that may be drawn; 1 is off, 0 keeps the arg-max.
    min_p : float
        0 to 1: least probability, relative to the largest; 0 is off.
    typical_p : float
        0 to 1: share of the probability, the most typical tokens first; 1 is off.
    repetition_penalty : float
        > 0, on the tokens of prompt and output; 1 is off.
    presence_penalty, frequency_penalty : float
        On the tokens of the output alone; 0 is off.
    logit_bias : mapping of int to float, or pairs
        Added to logits; ``-inf`` bans a token. Kept as pairs in order of the ids.
    seed : int, optional
        ``0 .. 2**64 - 1``; by default :meth:`seeded` draws one.
    n : int
        Texts, >= 1.
    best_of : int, optional
        Texts that are sampled, >= `n`; those of the best mean log-probability are returned.
    stop : str or sequence of str
        A text ends where one of them is complete.
    include_stop : bool
        Whether that stop string is part of the text.
    stop_token_ids : collection of int
        Tokens that end the text besides those of the model.
    ignore_eos : bool
        Go on after the model's own tokens of this kind.
    logprobs : int, optional
        Report the log-probability of each new token, and of that many most probable ones; by default of none.
    prompt_logprobs : int, optional
        Likewise of the prompt.
    beam_width : int, optional
        Beam search instead of sampling (:mod:`pagedref.models.beam`).
    length_penalty : float
        Of the beams' scores, -32 to 32.

    Raises
    ------
    ContractError
        A field is out of range, or two do not go together.

    Notes
    -----
    **Order.** From the logits, float32, in float64: repetition penalty (a positive logit is divided by it, any other
    multiplied), presence and frequency penalty, bias; then temperature, top-k, top-p, min-p, typical, draw. Each of
    the steps after the temperature sees the probabilities of what the step before has kept, divided by their sum.

    **Ties.** Tokens stand in order of their logits, the larger first, of equal ones the smaller id. Top-k and top-p
    keep the first of that order, so at their edge equal tokens are told apart by id; min-p keeps equal ones together.

    **Draw.** ``u = uniform(seed, index, sample)`` lies in [0, 1). The drawn token is the first, in order of ids, at
    which the running sum of the kept probabilities exceeds ``u`` times their sum. Greedy takes no part in the steps
    after the bias.

    Examples
    --------
    >>> SamplingParams(temperature=0.8, top_p=0.9, stop="\\n").stop
    ('\\n',)
    >>> SamplingParams(top_p=1.5)
    Traceback (most recent call last):
    pagedref.errors.ContractError: SamplingParams: top_p is out of range, got 1.5, need a finite number in 0.0 .. 1.0
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    seed: int | None = None
    n: int = 1
    best_of: int | None = None
    stop: str | Sequence[str] = ()
    include_stop: bool = False
    stop_token_ids: Collection[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    beam_width: int | None = None
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name, limits in _WHOLE.items():
            if not (name in _OPTIONAL and getattr(self, name) is None):
                put(name, checked.whole(name, getattr(self, name), *limits))
        for name, (least, most) in _REAL.items():
            put(name, checked.real(name, getattr(self, name), least, most))
        if self.repetition_penalty == 0:
            refuse("SamplingParams", "repetition_penalty", "is out of range", 0.0, "> 0")
        for name in ("include_stop", "ignore_eos"):
            checked.flag(name, getattr(self, name))
        put("logit_bias", checked.pairs("logit_bias", self.logit_bias))
        put("stop", checked.texts("stop", self.stop))
        put("stop_token_ids", checked.tokens("stop_token_ids", self.stop_token_ids))
        self._check_together()

    def _check_together(self) -> None:
        """Refuse fields that contradict each other."""
        if self.best_of is not None and self.best_of < self.n:
            refuse("SamplingParams", "best_of", "is smaller than n", self.best_of, f">= {self.n}")
        if self.best_of is not None and self.temperature == 0 and self.best_of > 1:
            refuse("SamplingParams", "best_of", "goes with sampling only", self.best_of, "temperature > 0")
        if self.beam_width is None:
            return
        if self.n > self.beam_width:
            refuse("SamplingParams", "n", "exceeds the beams", self.n, f"at most beam_width = {self.beam_width}")
        plain = SamplingParams()
        for name in _NOT_WITH_BEAMS:
            if getattr(self, name) != getattr(plain, name):
                refuse("SamplingParams", name, "does not go with beam_width", getattr(self, name), "the default")

    @property
    def num_samples(self) -> int:
        """Sequences that are decoded side by side."""
        return self.beam_width or self.best_of or self.n

    @property
    def is_greedy(self) -> bool:
        """Whether no noise enters."""
        return self.temperature == 0

    @property
    def is_plain(self) -> bool:
        """Whether the next token is simply that of the largest logit."""
        return self.is_greedy and not self.logit_bias and not self._penalises

    @property
    def _bias(self) -> checked.Pairs:
        return cast("checked.Pairs", self.logit_bias)

    @property
    def _penalises(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def seeded(self) -> SamplingParams:
        """Return the same with a seed, drawn at random where noise enters and none was given."""
        return self if self.is_greedy or self.seed is not None else replace(self, seed=secrets.randbits(64))

    def check_model(self, vocab_size: int, has_tokenizer: bool) -> None:
        """Refuse what a model cannot do.

        Parameters
        ----------
        vocab_size : int
            Tokens of the model.
        has_tokenizer : bool
            Whether tokens become text.

        Raises
        ------
        ContractError
            A token id beyond the vocabulary, more log-probabilities than tokens, or a stop string without a text.
        """
        named = {"logit_bias": [token for token, _ in self._bias], "stop_token_ids": self.stop_token_ids}
        for name, tokens in named.items():
            if tokens and max(tokens) >= vocab_size:
                refuse("SamplingParams", name, "names what is no token", max(tokens), f"0..{vocab_size - 1}")
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(self, name) or 0) > vocab_size:
                refuse("SamplingParams", name, "exceeds the vocabulary", getattr(self, name), f"at most {vocab_size}")
        if self.stop and not has_tokenizer:
            refuse("SamplingParams", "stop", "needs a tokenizer", self.stop, "stop_token_ids where there is no text")

    def finish_reason(
        self, token_id: int, num_output: int, eos_token_ids: Collection[int], max_tokens: int | None = None
    ) -> str | None:
        """Say whether a new token is the last.

        Parameters
        ----------
        token_id : int
            The new token.
        num_output : int
            New tokens, this one included; tokens that were computed again count once (P58).
        eos_token_ids : collection of int
            The model's own: the union of all its sources (P65).
        max_tokens : int, optional
            A smaller limit than that of the request.

        Returns
        -------
        str or None
            ``"stop"``, ``"length"`` or None.

        Examples
        --------
        >>> params = SamplingParams(max_tokens=3)
        >>> [params.finish_reason(token, 3, {5}) for token in (5, 4)], params.finish_reason(4, 2, {5})
        (['stop', 'length'], None)
        """
        if token_id in self.stop_token_ids or (not self.ignore_eos and token_id in eos_token_ids):
            return "stop"
        limit = self.max_tokens if max_tokens is None else min(self.max_tokens, max_tokens)
        return "length" if num_output >= limit else None


def choose(
    logits: npt.NDArray[Any],
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    sample: int = 0,
) -> int:
    """Choose the next token of one text, as the notes of :class:`SamplingParams` say.

    Parameters
    ----------
    logits : array (vocab,) of float32
        Of the last token.
    params : SamplingParams
        With a seed, if noise enters.
    prompt_ids, output_ids : sequences of int
        The prompt, and the new tokens so far.
    sample : int
        Which of the request's texts, from 0.

    Returns
    -------
    int

    Raises
    ------
    ContractError
        The logits hold NaN or ``+inf``, every token is banned, or there is no seed.

    Notes
    -----
    Mutates: nothing.

    Examples
    --------
    >>> logits = np.log(np.float32([1, 4, 3]))
    >>> choose(logits, SamplingParams(), [0], []), choose(logits, SamplingParams(logit_bias={1: -2.0}), [0], [])
    (1, 2)
    >>> params = SamplingParams(temperature=1.0, seed=7)
    >>> [choose(logits, params, [0], [1] * index) for index in range(6)]
    [2, 2, 0, 0, 1, 0]
    """
    x: npt.NDArray[np.float64] = logits
    if not params.is_plain:
        x = logits.astype(np.float64)
        if params._penalises:
            penalise(
                x, prompt_ids, output_ids, repetition=params.repetition_penalty,
                presence=params.presence_penalty, frequency=params.frequency_penalty,
            )  # fmt: skip
        for token, bias in params._bias:
            x[token] += bias
    best = int(x.argmax())  # the first of equal ones, or the first NaN
    if not math.isfinite(x[best]):
        refuse("choose", "logits", "have no largest one", float(x[best]), "a finite logit that is not banned, no NaN")
    if params.is_greedy:
        return best
    if params.seed is None:
        refuse("choose", "params", "has no seed", None, "params.seeded()")
    return _draw(x, params, uniform(params.seed, len(output_ids), sample))


def _draw(x: npt.NDArray[np.float64], params: SamplingParams, u: float) -> int:
    """Take the steps after the bias."""
    ids: npt.NDArray[np.int64] | None = None  # of what is kept; None: all of them
    if params.top_k:
        ids = keep_top_k(x, params.top_k)
        x = x[ids]
    weights = weigh(x, params.temperature)

    def narrow(kept: npt.NDArray[np.int64]) -> None:
        nonlocal ids, weights
        ids, weights = kept if ids is None else ids[kept], weights[kept]

    if params.top_p < 1:
        narrow(keep_top_p(x, weights, params.top_p))
    if params.min_p > 0:
        narrow(keep_min_p(weights, params.min_p))
    if params.typical_p < 1:
        narrow(keep_typical(weights, params.typical_p))
    sums = np.cumsum(weights)
    drawn = int(np.searchsorted(sums, u * sums[-1], side="right"))
    return drawn if ids is None else int(ids[drawn])
