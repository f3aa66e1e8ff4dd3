"""Noise of a token: a function of the request's seed, the sample and the token's index, and of nothing else.

There is no stream that batch mates, the order of steps or a preemption could move on: the number for token 7 is
computed from 7. The function is Philox4x64-10, a block cipher made for counters, in plain integers.
"""

from __future__ import annotations

__all__ = ["philox", "uniform"]

_MASK = 2**64 - 1
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Encrypt a counter: Philox4x64 with ten rounds.

    Parameters
    ----------
    counter : four int
        ``0 .. 2**64 - 1`` each.
    key : two int
        Likewise.

    Returns
    -------
    four int
        64 random bits each.

    References
    ----------
    J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011, section 3.3.

    Examples
    --------
    >>> [hex(word) for word in philox((0, 0, 0, 0), (0, 0))][:2]
    ['0x16554d9eca36314c', '0xdb20fe9d672d0fdc']
    """
    a, b, c, d = counter
    key_a, key_b = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b = (second >> 64) ^ b ^ key_a, second & _MASK
        c, d = (first >> 64) ^ d ^ key_b, first & _MASK
        key_a, key_b = (key_a + _WEYL[0]) & _MASK, (key_b + _WEYL[1]) & _MASK
    return a, b, c, d


def uniform(seed: int, index: int, sample: int = 0) -> float:
    """Return the number that decides one token.

    Parameters
    ----------
    seed : int
        Of the request, ``0 .. 2**64 - 1``.
    index : int
        Which new token, from 0.
    sample : int
        Which of the request's texts, from 0.

    Returns
    -------
    float
        A multiple of ``2**-53`` in ``[0, 1)``: the upper 53 bits of the first word of ``philox((index, sample, 0, 0),
        (seed, 0))``.

    Examples
    --------
    >>> uniform(1, 0) == uniform(1, 0), uniform(1, 0) == uniform(1, 1), uniform(1, 0) == uniform(1, 0, sample=1)
    (True, False, False)
    """
    return float(philox((index, sample, 0, 0), (seed, 0))[0] >> 11) * 2.0**-53
