"""Beam search: which texts live on, as a pure decision over log-probabilities; no cache, no model.

Whoever runs it forks the sequences as the parents say. Scores count new tokens alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.models.fields import count, refuse
from pagedref.models.filters import keep_top_k
from pagedref.models.logprobs import log_softmax

__all__ = ["Beam", "BeamSearch", "Hypothesis", "rank_samples", "score"]


@dataclass(frozen=True)
class Beam:
    """Hold one text that lives on.

    Attributes
    ----------
    tokens : tuple of int
        Its new tokens.
    logprob : float
        Sum of their log-probabilities.
    """

    tokens: tuple[int, ...] = ()
    logprob: float = 0.0


@dataclass(frozen=True)
class Hypothesis:
    """Hold one text that has ended.

    Attributes
    ----------
    token_ids : tuple of int
        Its new tokens, the one that ended it included.
    logprob : float
        Sum of their log-probabilities.
    score : float
        As :func:`score` has it.
    finish_reason : str
        ``"stop"`` or ``"length"``.
    """

    token_ids: tuple[int, ...]
    logprob: float
    score: float
    finish_reason: str


def score(logprob: float, length: int, penalty: float) -> float:
    """Return what texts of different length are compared by: ``logprob / length ** penalty``.

    Parameters
    ----------
    logprob : float
        Sum over the new tokens.
    length : int
        New tokens, >= 1, the one that ended the text included, the prompt never (P59).
    penalty : float
        0 compares sums, 1 means; larger ones favour long texts.

    Returns
    -------
    float

    Examples
    --------
    Two tokens of -1 each, ten of -1/2 each: the ten win.

    >>> score(-2.0, 2, 1.0), score(-5.0, 10, 1.0)
    (-1.0, -0.5)
    """
    return logprob / math.pow(length, penalty)


def rank_samples(logprobs: Sequence[float], lengths: Sequence[int], n: int) -> list[int]:
    """Return the `n` samples of the largest mean log-probability, best first, of equal ones the earlier first.

    Parameters
    ----------
    logprobs : sequence of float
        Sum over the new tokens of each.
    lengths : sequence of int
        New tokens of each, >= 1.
    n : int
        At most as many as there are.

    Returns
    -------
    list of int

    Examples
    --------
    >>> rank_samples([-2.0, -5.0, -1.0], [2, 10, 2], 2)
    [1, 2]
    """
    means = [score(logprob, length, 1.0) for logprob, length in zip(logprobs, lengths, strict=True)]
    return sorted(range(len(means)), key=lambda at: (-means[at], at))[:n]


class BeamSearch:
    """Keep the best beginnings of a text, step after step.

    Of all continuations of all beams by one token, those that end the text are set aside, and the `width` of the
    largest sums among the others live on. Of what was set aside the `width` best scores are kept. At `max_tokens` the
    beams that live are set aside as well.

    Parameters
    ----------
    width : int
        Beams, >= 1.
    stop_token_ids : collection of int
        Tokens that end a text.
    max_tokens : int
        New tokens at most, >= 1.
    length_penalty : float
        As in :func:`score`.

    Notes
    -----
    Of equal sums the one of the earlier beam comes first, then the smaller token; of equal scores the one that was
    found first. A search is done as soon as no beam can still come among the `width` best, so stopping early
    changes nothing: a sum can only fall, and the best length for it is the next one or `max_tokens`.

    References
    ----------
    Y. Wu et al., Google's neural machine translation system, 2016, section 7 (there ``((5 + length) / 6) ** penalty``).

    Examples
    --------
    Two tokens, 1 ends the text. It begins with 0 at 0.6; then 1 is sure:

    >>> search = BeamSearch(1, stop_token_ids={1}, max_tokens=5)
    >>> search.advance(np.log(np.float32([[0.6, 0.4]])))
    [0]
    >>> search.advance(np.log(np.float32([[1e-9, 1]])))
    [0]
    >>> search.done, search.best(1)[0].token_ids
    (True, (0, 1))
    """

    def __init__(
        self, width: int, *, stop_token_ids: Collection[int], max_tokens: int, length_penalty: float = 1.0
    ) -> None:
        self._width, self._max_tokens = (
            count("BeamSearch", "width", width),
            count("BeamSearch", "max_tokens", max_tokens),
        )
        self._stop, self._penalty = np.array(sorted(stop_token_ids), np.int64), float(length_penalty)
        self._ended: list[Hypothesis] = []
        self.beams: list[Beam] = [Beam()]
        """The texts that live, best first; at the beginning the empty one."""
        self.done = False
        """Whether the result is final."""

    def advance(self, logits: npt.NDArray[Any]) -> list[int]:
        """Take one step.

        Parameters
        ----------
        logits : array (len(beams), vocab) of float32
            Of the last token of each beam.

        Returns
        -------
        list of int
            For each of the new beams the one that it continues; the last of its tokens is the new one.

        Raises
        ------
        ContractError
            The rows are not one for each beam, or the search is done.
        """
        if self.done or logits.ndim != 2 or len(logits) != len(self.beams):
            need = "a search that is not done" if self.done else f"({len(self.beams)}, vocab)"
            refuse("advance", "logits", "do not fit the beams", logits.shape, need)
        logprobs = log_softmax(logits).astype(np.float64)
        sums = logprobs + np.array([[beam.logprob] for beam in self.beams])  # (beams, vocab)
        vocab, flat = sums.shape[1], sums.reshape(-1)
        stop = self._stop[self._stop < vocab]
        for parent, row in enumerate(sums):
            for token in stop.tolist():
                self._set_aside(parent, token, float(row[token]), "stop")
        sums[:, stop] = -np.inf
        best = keep_top_k(flat, self._width)
        best = best[flat[best] > -np.inf]
        best = best[np.argsort(-flat[best], kind="stable")]
        parents: list[int] = (best // vocab).tolist()
        new = list(zip(parents, (best % vocab).tolist(), flat[best].tolist(), strict=True))
        last = len(self.beams[0].tokens) + 1 == self._max_tokens
        if last:
            for parent, token, logprob in new:
                self._set_aside(parent, token, logprob, "length")
        self._ended = self.best(self._width)
        self.beams = [Beam((*self.beams[parent].tokens, token), logprob) for parent, token, logprob in new]
        self.done = last or not self.beams or self._decided()
        return parents

    def best(self, n: int) -> list[Hypothesis]:
        """Return the `n` best texts that have ended so far, best first; after the end of the search of all."""
        return sorted(self._ended, key=lambda hypothesis: -hypothesis.score)[:n]

    def _set_aside(self, parent: int, token: int, logprob: float, reason: str) -> None:
        if logprob > -np.inf:
            tokens = (*self.beams[parent].tokens, token)
            self._ended.append(Hypothesis(tokens, logprob, score(logprob, len(tokens), self._penalty), reason))

    def _decided(self) -> bool:
        """Tell whether no beam can still overtake the worst of the `width` kept."""
        if len(self._ended) < self._width:
            return False
        beam = self.beams[0]  # the largest sum
        lengths = len(beam.tokens) + 1, self._max_tokens
        return max(score(beam.logprob, length, self._penalty) for length in lengths) <= self._ended[-1].score
