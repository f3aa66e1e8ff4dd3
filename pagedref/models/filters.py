"""What may be drawn: penalties on the logits of one token, then the steps that keep a part of the vocabulary.

Every step is a small function over plain arrays. The one order that all of them rest on: the larger logit comes first,
of equal ones the smaller token id. Arithmetic is float64 on logits that came as float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["keep_min_p", "keep_top_k", "keep_top_p", "keep_typical", "penalise", "weigh"]

Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_FIRST_LOOK = 256  # a share of the probability is nearly always within so few tokens: no need to sort the others


def penalise(
    logits: Float64,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> None:
    """Lower the logits of tokens that were there before.

    Parameters
    ----------
    logits : array (vocab,) of float64
        Written.
    prompt_ids, output_ids : sequences of int
        The prompt, and the new tokens so far.
    repetition : float
        > 0; of every token of prompt and output: a positive logit is divided by it, any other multiplied.
    presence : float
        Taken off every token of the output, once.
    frequency : float
        Taken off every token of the output, as often as it is there.

    Notes
    -----
    Mutates: `logits`. Repetition comes first. What exceeds the numbers becomes infinite or NaN.

    Examples
    --------
    >>> x = np.array([2.0, -2.0, 5.0])
    >>> penalise(x, [0], [1, 1], repetition=1.5, frequency=0.25)
    >>> x.round(3).tolist()
    [1.333, -3.5, 5.0]
    """
    new, counts = np.unique(np.asarray(output_ids, np.int64), return_counts=True)
    with np.errstate(over="ignore", invalid="ignore"):  # of enormous penalties
        if repetition != 1.0:
            seen = np.union1d(new, np.asarray(prompt_ids, np.int64))
            logits[seen] = np.where(logits[seen] > 0, logits[seen] / repetition, logits[seen] * repetition)
        logits[new] -= presence + frequency * counts


def weigh(logits: Float64, temperature: float) -> Float64:
    """Return probabilities up to their common factor: ``exp((logit - largest) / temperature)``.

    Parameters
    ----------
    logits : array (n,) of float64
        At least one is finite, none is NaN or ``+inf``.
    temperature : float
        > 0.

    Returns
    -------
    array (n,) of float64
        0 to 1; the largest is 1.

    Examples
    --------
    >>> weigh(np.log([1.0, 2.0, 4.0]), 1.0).round(12).tolist(), weigh(np.log([1.0, 2.0]), 0.5).round(12).tolist()
    ([0.25, 0.5, 1.0], [0.25, 1.0])
    """
    with np.errstate(over="ignore"):  # of a very small temperature: the distance is infinite, the weight 0
        result: Float64 = np.exp((logits - logits.max()) / temperature)
    return result


def keep_top_k(logits: Float64, k: int) -> Indices:
    """Return the `k` tokens that come first; of equal logits the smaller ids.

    Parameters
    ----------
    logits : array (n,) of float64
        Not NaN.
    k : int
        >= 1; all are kept where it is n or more.

    Returns
    -------
    array (min(k, n),) of int64
        Ascending.

    Examples
    --------
    >>> keep_top_k(np.array([0.4, 0.3, 0.3, 0.0]), 2).tolist()
    [0, 1]
    """
    n = len(logits)
    if k >= n:
        return np.arange(n)
    edge = np.partition(logits, n - k)[n - k]  # the k-th largest
    sure = np.flatnonzero(logits > edge)
    level = np.flatnonzero(logits == edge)[: k - len(sure)]
    return np.sort(np.concatenate([sure, level]))


def keep_top_p(logits: Float64, weights: Float64, top_p: float) -> Indices:
    """Return the fewest first tokens that hold a share of the probability.

    Parameters
    ----------
    logits, weights : arrays (n,) of float64
        The order, and :func:`weigh` of it.
    top_p : float
        0 to 1. A token is kept if the tokens before it hold less than this share; the first is always kept.

    Returns
    -------
    array (kept,) of int64
        Ascending.

    Examples
    --------
    >>> p = np.array([0.1, 0.5, 0.4])
    >>> keep_top_p(np.log(p), p, 0.6).tolist(), keep_top_p(np.log(p), p, 0.0).tolist()
    ([1, 2], [1])
    """
    return _first_share(logits, weights, top_p)


def keep_min_p(weights: Float64, min_p: float) -> Indices:
    """Return the tokens whose probability is at least a share of the largest; equal ones stay or go together.

    Parameters
    ----------
    weights : array (n,) of float64
        The largest is 1.
    min_p : float
        0 to 1.

    Returns
    -------
    array (kept,) of int64
        Ascending.

    Examples
    --------
    >>> keep_min_p(np.array([1.0, 0.2, 0.1]), 0.2).tolist()
    [0, 1]
    """
    return np.flatnonzero(weights >= min_p)


def keep_typical(weights: Float64, typical_p: float) -> Indices:
    """Return the tokens whose surprise is closest to the expected one, until they hold a share of the probability.

    Parameters
    ----------
    weights : array (n,) of float64
        Up to a factor.
    typical_p : float
        0 to 1. Surprise is ``-log p``, its expectation the entropy; of equal distances the smaller id comes first. A
        token is kept if those before it hold less than this share; the first is always kept.

    Returns
    -------
    array (kept,) of int64
        Ascending.

    References
    ----------
    C. Meister et al., Locally typical sampling, TACL 2023, section 4.

    Examples
    --------
    The entropy of (1/2, 1/4, 1/4) is 1.5 bits: all three are half a bit off, and the first is taken first.

    >>> keep_typical(np.array([2.0, 1.0, 1.0]), 0.5).tolist()
    [0]
    """
    probabilities = weights / weights.sum()
    with np.errstate(divide="ignore"):  # of a token that cannot come: infinitely surprising, hence last
        surprise = -np.log(probabilities)
    possible = probabilities > 0
    entropy = float(probabilities[possible] @ surprise[possible])
    return _first_share(-np.abs(surprise - entropy), weights, typical_p)


def _first_share(keys: Float64, weights: Float64, share: float) -> Indices:
    """Return what comes first, the larger key, then the smaller index, while less than a share is before; ascending."""
    limit, look = share * weights.sum(), _FIRST_LOOK
    while True:
        near = keep_top_k(keys, look)
        order = near[np.argsort(-keys[near], kind="stable")]
        before = np.cumsum(weights[order])
        kept = 1 + int(np.searchsorted(before[:-1], limit))  # the first index with before >= limit, counted from 1
        if kept < len(order) or look >= len(keys):
            return np.sort(order[:kept])
        look *= 16
