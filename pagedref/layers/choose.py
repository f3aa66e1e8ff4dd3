"""Choosing: the largest, the k largest, the experts of a token, and a random token that every machine agrees on.

A random choice between numbers ``logit / temperature`` adds to each an independent number of the Gumbel distribution
and takes the largest sum. The noise of one token comes from a **counter**: a fixed mixing of (token, draw, stream)
under the key of a seed. So it depends on nothing that happened before, neighbours of a batch change nothing, any number
can be computed alone on any thread; and as its logarithms are those of :mod:`pagedref.attention.elementary`, every
machine that does the same operations in the same order chooses the same token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.attention.elementary import ordered_log
from pagedref.errors import ContractError

__all__ = ["argmax", "gumbel", "random_words", "route", "sample", "softmax", "top_k"]

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW, _HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_UNIT = np.float32(2.0**-32)
_NEAR_ZERO = np.float32(2.0**-10)
_ONE, _HALF, _THIRD = np.float32(1), np.float32(0.5), np.float32(1 / 3)
_SMALLEST = np.float32(2.0**-33)
_LARGEST = np.float32(1 - 2.0**-24)


def argmax(logits: Float32) -> Int64:
    """Return the column of the largest number of each row, the first of equals.

    Parameters
    ----------
    logits : array (tokens, columns) of float32
        No NaN; at least one column.

    Returns
    -------
    array (tokens,) of int64

    Notes
    -----
    Agreement: EXACT. Twin: ``pagedref_cuda.layers.argmax``.

    Examples
    --------
    >>> argmax(np.array([[1, 3, 3], [5, 0, 2]], np.float32)).tolist()
    [1, 0]
    """
    columns: Int64 = logits.argmax(axis=1)
    return columns


def top_k(logits: Float32, k: int) -> tuple[Float32, Int64]:
    """Return the k largest numbers of each row, falling, and their columns; of equals the first comes first.

    Parameters
    ----------
    logits : array (tokens, columns) of float32
        No NaN.
    k : int
        In ``1 .. columns``.

    Returns
    -------
    values : array (tokens, k) of float32
        The numbers.
    columns : array (tokens, k) of int64
        Where they stand.

    Raises
    ------
    ContractError
        `k` is out of range.

    Notes
    -----
    Agreement: EXACT. Twin: ``pagedref_cuda.layers.top_k``.

    Examples
    --------
    >>> values, columns = top_k(np.array([[1, 3, 2, 3]], np.float32), 3)
    >>> values.tolist(), columns.tolist()
    ([[3.0, 3.0, 2.0]], [[1, 3, 2]])
    """
    width = logits.shape[1]
    if not 1 <= k <= width:
        raise ContractError(f"top_k: k is out of range, got {k}, need 1..{width}")
    if 8 * k < width:  # all that are not below the k-th largest, in order of columns; the rest cannot be chosen
        border = np.partition(logits, width - k, axis=1)[:, width - k]  # (tokens,)
        columns = np.empty((len(logits), k), np.int64)
        for row, least in enumerate(border):
            candidates = np.flatnonzero(logits[row] >= least)
            columns[row] = candidates[np.argsort(-logits[row, candidates], kind="stable")[:k]]
    else:
        columns = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(logits, columns, axis=1), columns


def softmax(x: Float32) -> Float32:
    """Return the softmax of each row.

    Parameters
    ----------
    x : array (tokens, columns) of float32
        ``-inf`` has no weight; a row of nothing else gives zeros.

    Returns
    -------
    array (tokens, columns) of float32

    Notes
    -----
    Agreement: BOUND.

    Examples
    --------
    >>> softmax(np.array([[0, 0, -np.inf]], np.float32)).tolist()
    [[0.5, 0.5, 0.0]]
    """
    top = x.max(axis=-1, keepdims=True)
    weights = np.exp(x - np.where(np.isneginf(top), np.float32(0), top))
    total = weights.sum(axis=-1, keepdims=True)
    result: Float32 = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return result


def route(logits: Float32, k: int, *, normalise: bool) -> tuple[Float32, Int64]:
    """Choose the experts of each token and their weights.

    Parameters
    ----------
    logits : array (tokens, experts) of float32
        Scores of the router.
    k : int
        Experts of a token, in ``1 .. experts``.
    normalise : bool
        The weights of the chosen add up to 1 (a softmax over them alone); else they are those of a softmax over all.

    Returns
    -------
    weights : array (tokens, k) of float32
        In ``0 .. 1``, falling.
    experts : array (tokens, k) of int64
        Of equals the first comes first.

    Raises
    ------
    ContractError
        `k` is out of range.

    Notes
    -----
    Agreement: BOUND for the weights, EXACT for the experts: they are chosen by the scores as they are, which softmax
    only rescales. Twin: ``pagedref_cuda.layers.route``.

    References
    ----------
    N. Shazeer et al., Outrageously Large Neural Networks, 2017. A. Q. Jiang et al., Mixtral of Experts, 2024.

    Examples
    --------
    >>> weights, experts = route(np.log(np.array([[1, 6, 2, 1]], np.float32)), 2, normalise=False)
    >>> np.round(weights, 4).tolist(), experts.tolist()
    ([[0.6000000238418579, 0.20000000298023224]], [[1, 2]])
    """
    values, experts = top_k(logits, k)
    if normalise:
        return softmax(values), experts
    return np.take_along_axis(softmax(logits), experts, axis=1), experts


def random_words(counter: npt.NDArray[np.uint64], draw: int, stream: int, seed: int) -> Words:
    """Return four random words for each counter: Philox4x32 with ten rounds.

    Parameters
    ----------
    counter : array (n,) of uint64
        The lowest of the four counter words, below 2**32.
    draw, stream : int
        The second and the third, ``0 .. 2**32 - 1``; the fourth is 0.
    seed : int
        The key, ``0 .. 2**64 - 1``.

    Returns
    -------
    array (n, 4) of uint32

    References
    ----------
    J. K. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.

    Examples
    --------
    >>> [hex(word) for word in random_words(np.zeros(1, np.uint64), 0, 0, 0)[0].tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a = counter
    b, c, d = (np.full_like(a, word) for word in (draw, stream, 0))
    low, high = seed & 0xFFFFFFFF, seed >> 32
    for turn in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        keys = np.uint64((low + turn * _WEYL[0]) & 0xFFFFFFFF), np.uint64((high + turn * _WEYL[1]) & 0xFFFFFFFF)
        a, c = (second >> _HALF_WORD) ^ b ^ keys[0], (first >> _HALF_WORD) ^ d ^ keys[1]
        b, d = second & _LOW, first & _LOW
    return np.stack([a, b, c, d], axis=1).astype(np.uint32)


def gumbel(words: Words) -> Float32:
    """Turn random words into numbers of the Gumbel distribution.

    Parameters
    ----------
    words : array of uint32
        Uniform.

    Returns
    -------
    array of float32, same shape
        ``-log(-log(1 - w))`` with ``w = (word + 1/2) / 2**32``, between -2.9 and 22.9.

    Notes
    -----
    Agreement: ORDERED. For small `w`, which make the large numbers that win, ``-log(1 - w)`` is the series
    ``w + w**2 / 2 + w**3 / 3``: nothing cancels, and chances down to 2**-32 are resolved.

    Examples
    --------
    >>> gumbel(np.array([0, 2**31, 2**32 - 1], np.uint32)).round(3).tolist()
    [22.874000549316406, 0.367000013589859, -2.812000036239624]
    """
    w: Float32 = np.minimum(words.astype(np.float32) * _UNIT + _SMALLEST, _LARGEST)
    series = w + w * w * (_HALF + w * _THIRD)
    waiting: Float32 = np.where(w < _NEAR_ZERO, series, -ordered_log(_ONE - w))
    result: Float32 = -ordered_log(waiting)
    return result


def sample(logits: Float32, temperature: float, seed: int, draw: int, *, streams: Int64 | None = None) -> Int64:
    """Choose a random column of each row, with the chances of ``softmax(logits / temperature)``.

    Parameters
    ----------
    logits : array (tokens, columns) of float32
        ``-inf`` is never chosen, unless the row has nothing else; no NaN.
    temperature : float
        > 0.
    seed : int
        In ``0 .. 2**64 - 1``.
    draw : int
        Number of the choice within a text, ``0 .. 2**32 - 1``.
    streams : array (tokens,) of int64, optional
        Number of the text of each row, ``0 .. 2**32 - 1``; by default all 0.

    Returns
    -------
    array (tokens,) of int64

    Raises
    ------
    ContractError
        A number is out of range.

    Notes
    -----
    Agreement: EXACT: equal logits give the same token on every backend. Of equal sums the first wins. Twin:
    ``pagedref_cuda.layers.sample``.

    References
    ----------
    E. J. Gumbel, Statistical Theory of Extreme Values, 1954: the largest of ``log p + noise`` falls on each with
    chance ``p``.

    Examples
    --------
    >>> logits = np.log(np.array([[0.75, 0.25]], np.float32))
    >>> draws = [int(sample(logits, 1.0, seed=7, draw=draw)[0]) for draw in range(1000)]
    >>> 200 < sum(draws) < 300
    True
    """
    factor = checked_temperature(temperature)
    for name, value, bits in (("seed", seed, 64), ("draw", draw, 32)):
        if not 0 <= value < 1 << bits:
            raise ContractError(f"sample: {name} is out of range, got {value}, need 0..2**{bits} - 1")
    rows, width = logits.shape
    counters = np.arange(-(-width // 4), dtype=np.uint64)
    chosen = np.empty(rows, np.int64)
    noise, of = np.empty(0, np.float32), -1
    for row in range(rows):
        stream = 0 if streams is None else int(streams[row])
        if not 0 <= stream < 1 << 32:
            raise ContractError(f"sample: streams are out of range, got {stream}, need 0..2**32 - 1")
        if stream != of:
            noise, of = gumbel(random_words(counters, draw, stream, seed).ravel()[:width]), stream
        chosen[row] = (logits[row] * factor + noise).argmax()
    return chosen


def checked_temperature(temperature: Any) -> np.float32:
    """Return ``1 / temperature`` in float32.

    Raises
    ------
    ContractError
        The temperature, or its inverse in float32, is not positive and finite.
    """
    with np.errstate(all="ignore"):
        factor = _ONE / np.float32(temperature)
    if not 0 < factor < np.inf:
        raise ContractError(f"sample: temperature is out of range, got {temperature}, need > 0 and finite")
    return factor
