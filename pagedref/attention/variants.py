"""Score modifiers: what happens to a score between q.k and the softmax.

A modifier is called with the scores of a tile and the absolute positions of its queries and keys, and changes the
scores in place; decode, prefill and the oracle all apply the same list in the order of S1: scale (already done),
softcap, additive bias. Which keys are visible at all is a matter of intervals and masks
(:class:`pagedref.options.AttentionOptions`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.options import AttentionOptions

__all__ = ["ScoreModifier", "alibi_slopes", "score_modifiers"]

Array = npt.NDArray[Any]
ScoreModifier = Callable[[Array, Array, Array], None]
"""``modifier(scores, query_positions, key_positions)``; scores (num_kv_heads, rows, group_size, keys), in place."""


def _softcap(cap: float) -> ScoreModifier:
    """Return the modifier ``cap * tanh(score / cap)`` (S2)."""

    def modify(scores: Array, query_positions: Array, key_positions: Array) -> None:
        np.divide(scores, cap, out=scores)
        np.tanh(scores, out=scores)
        np.multiply(scores, cap, out=scores)

    return modify


def _alibi(slopes: Array, num_kv_heads: int) -> ScoreModifier:
    """Return the modifier ``score + slope * (key position - query position)`` (S6)."""
    per_head = slopes.reshape(num_kv_heads, 1, -1, 1)

    def modify(scores: Array, query_positions: Array, key_positions: Array) -> None:
        distance = key_positions[None, :] - query_positions[:, None]  # (rows, keys)
        scores += per_head * distance[None, :, None, :].astype(scores.dtype)

    return modify


def score_modifiers(options: AttentionOptions, num_kv_heads: int) -> list[ScoreModifier]:
    """Return the modifiers of a call in their order (S1).

    Parameters
    ----------
    options : AttentionOptions
        The keywords of the call.
    num_kv_heads : int
        Leading axis of the scores.

    Returns
    -------
    list of ScoreModifier
        Empty for plain attention.

    Examples
    --------
    >>> scores = np.array([1.0, 700.0]).reshape(1, 1, 1, 2)
    >>> for modify in score_modifiers(AttentionOptions(1.0, True, softcap=2.0), 1):
    ...     modify(scores, np.zeros(1), np.arange(2))
    >>> scores.ravel().round(5).tolist()
    [0.92423, 2.0]
    """
    modifiers = []
    if options.softcap is not None and options.softcap < np.finfo(np.float32).max:  # beyond, it is off (L13)
        modifiers.append(_softcap(options.softcap))
    if options.alibi_slopes is not None:
        modifiers.append(_alibi(options.alibi_slopes, num_kv_heads))
    return modifiers


def alibi_slopes(num_heads: int) -> npt.NDArray[np.float64]:
    """Return the published slopes of ALiBi (S6).

    Parameters
    ----------
    num_heads : int
        Query heads, >= 1.

    Returns
    -------
    array (num_heads,) of float64
        ``2**(-8 i / n)`` for a power of two n; otherwise those of the power of two below, then every second one of
        twice that power.

    References
    ----------
    O. Press, N. A. Smith, M. Lewis, Train Short, Test Long, ICLR 2022, section 3, and its published code.

    Examples
    --------
    >>> (1 / alibi_slopes(8)).tolist()
    [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
    >>> (1 / alibi_slopes(6)).tolist()
    [4.0, 16.0, 64.0, 256.0, 2.0, 8.0]
    """
    if not isinstance(num_heads, int | np.integer) or num_heads < 1:
        validate.fail("alibi_slopes", "num_heads", "is out of range", repr(num_heads), "an integer >= 1 (S6)")
    power = 1 << (int(num_heads).bit_length() - 1)
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    extra = 2.0 ** (-8.0 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return np.concatenate([slopes, extra])[:num_heads]
