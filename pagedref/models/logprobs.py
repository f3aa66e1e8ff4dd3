"""Log-probabilities of tokens: the natural logarithm of the softmax of the model's own logits.

They are those of the model, before temperature, penalties and bias: the same whatever was asked of the sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.models.fields import refuse
from pagedref.models.filters import keep_top_k

__all__ = ["TokenLogprob", "log_softmax", "prompt_logprobs", "token_logprob"]

_ROWS = 32  # rows that are worked on in float64 at once


@dataclass(frozen=True)
class TokenLogprob:
    """Report how probable one token was.

    Attributes
    ----------
    token_id : int
        The token.
    logprob : float
        Natural log of its probability, <= 0; a float32 number.
    rank : int
        Tokens with a larger logit, plus those with an equal one and a smaller id, plus 1: the best has rank 1.
    top : tuple of (int, float)
        The most probable tokens and their log-probabilities, best first, of equal ones the smaller id first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the natural log of the softmax along the last axis.

    Parameters
    ----------
    logits : array (..., vocab) of float32
        ``-inf`` stays ``-inf``.

    Returns
    -------
    array (..., vocab) of float32
        ``(x - m) - log(sum(exp(x - m)))`` with ``m = max(x)``, all of it in float64, rounded to float32 once.

    Raises
    ------
    ContractError
        A row holds NaN or ``+inf``, or nothing but ``-inf``.

    Examples
    --------
    >>> np.exp(log_softmax(np.log(np.float32([1, 1, 2])))).round(6).tolist()
    [0.25, 0.25, 0.5]
    """
    result = np.empty(logits.shape, np.float32)
    flat, out = logits.reshape(-1, logits.shape[-1]), result.reshape(-1, logits.shape[-1])
    for first in range(0, len(flat), _ROWS):
        x = flat[first : first + _ROWS].astype(np.float64)
        top = x.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            refuse("log_softmax", "logits", "have no largest one", float(top[~np.isfinite(top)][0]), "finite logits")
        x -= top
        out[first : first + _ROWS] = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return result


def token_logprob(logits: npt.NDArray[Any], token_id: int, k: int = 0) -> TokenLogprob:
    """Report one token and the most probable ones beside it.

    Parameters
    ----------
    logits : array (vocab,) of float32
        As the model gave them.
    token_id : int
        ``0 .. vocab - 1``.
    k : int
        Most probable tokens to report, >= 0.

    Returns
    -------
    TokenLogprob

    Examples
    --------
    >>> report = token_logprob(np.log(np.float32([2, 1, 1])), 2, k=2)
    >>> report.rank, [token for token, _ in report.top]
    (3, [0, 1])
    """
    return _report(logits, log_softmax(logits), token_id, k)


def prompt_logprobs(logits: npt.NDArray[Any], token_ids: npt.ArrayLike, k: int = 0) -> list[TokenLogprob]:
    """Report tokens that were given.

    Parameters
    ----------
    logits : array (n, vocab) of float32
        Row i: what the model expected in place of token i, hence the logits of the token before it. A prompt's first
        token has none.
    token_ids : array (n,) of int
        The tokens.
    k : int
        Most probable tokens to report, >= 0.

    Returns
    -------
    list of TokenLogprob
    """
    ids = np.asarray(token_ids).tolist()
    return [_report(row, log_softmax(row), token, k) for row, token in zip(logits, ids, strict=True)]


def _report(logits: npt.NDArray[Any], logprobs: npt.NDArray[np.float32], token_id: int, k: int) -> TokenLogprob:
    own = logits[token_id]
    rank = 1 + int(np.count_nonzero(logits > own)) + int(np.count_nonzero(logits[:token_id] == own))
    best = keep_top_k(logits, k) if k else np.empty(0, np.int64)
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprob(token_id, float(logprobs[token_id]), rank, tuple((int(i), float(logprobs[i])) for i in best))
