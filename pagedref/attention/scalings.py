"""How models stretch rotary frequencies to reach longer contexts: one function for each published scheme.

Each takes the plain frequencies (float64, radians per position) and returns the stretched ones; YaRN and LongRoPE also
have a factor on the magnitude of queries and keys.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["dynamic_theta", "linear", "llama3", "longrope", "yarn"]

Float64 = npt.NDArray[np.float64]


def linear(inv_freq: Float64, factor: float) -> Float64:
    """Divide all frequencies: positions are interpolated.

    Parameters
    ----------
    inv_freq : array of float64
        Plain frequencies.
    factor : float
        New length over original length, > 0.

    Returns
    -------
    array of float64

    References
    ----------
    S. Chen et al., Extending Context Window of Large Language Models via Position Interpolation, 2023.
    """
    return inv_freq / factor


def dynamic_theta(theta: float, rotary_dim: int, factor: float, length: float, original_length: float) -> float:
    """Return the base that the dynamic NTK scheme uses for a length.

    Parameters
    ----------
    theta : float
        Plain base.
    rotary_dim : int
        Channels that are turned, > 2.
    factor : float
        Stretch at twice the original length and so on, >= 1.
    length, original_length : float
        Present length, and the length that the model was trained for; shorter ones use `theta`.

    Returns
    -------
    float

    Notes
    -----
    The base must be chosen once for a sequence: keys rotated with another base do not fit together.

    Examples
    --------
    >>> dynamic_theta(10000.0, 128, 2.0, 2048, 4096)
    10000.0
    >>> round(dynamic_theta(10000.0, 128, 2.0, 8192, 4096))
    30528
    """
    if length <= original_length:
        return theta
    stretch = factor * length / original_length - (factor - 1)
    return float(theta * stretch ** (rotary_dim / (rotary_dim - 2)))


def llama3(
    inv_freq: Float64, factor: float, low_freq_factor: float, high_freq_factor: float, original_length: float
) -> Float64:
    """Divide low frequencies, keep high ones, blend in between (Llama 3.1; P66).

    Parameters
    ----------
    inv_freq : array of float64
        Plain frequencies.
    factor : float
        Divisor of low frequencies.
    low_freq_factor, high_freq_factor : float
        Turns within the original length below which a pair is divided, and above which it is kept.
    original_length : float
        Positions that the model was first trained for.

    Returns
    -------
    array of float64

    Examples
    --------
    Theta 500,000, head 64, factor 32: pairs 0 to 14 are kept, 18 to 31 divided, three are blended.

    >>> plain = 500000.0 ** (-np.arange(0, 64, 2) / 64)
    >>> ratio = llama3(plain, 32, 1, 4, 8192) / plain
    >>> ratio[[14, 15, 16, 17, 18]].round(5).tolist()
    [1.0, 0.60557, 0.30374, 0.10345, 0.03125]
    """
    turns = original_length * inv_freq / (2 * math.pi)
    keep = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return np.asarray(inv_freq * (keep + (1 - keep) / factor))


def yarn(
    inv_freq: Float64,
    factor: float,
    original_length: float,
    theta: float,
    *,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    magnitude: float | None = None,
) -> tuple[Float64, float]:
    """Blend interpolation and extrapolation by the turns of a pair, and sharpen the scores (YaRN).

    Parameters
    ----------
    inv_freq : array (rotary_dim / 2,) of float64
        Plain frequencies.
    factor : float
        New length over original length, >= 1.
    original_length : float
        Positions that the model was first trained for.
    theta : float
        Plain base.
    beta_fast, beta_slow : float
        Turns within the original length at which the blend begins and ends.
    truncate : bool
        Whether the ends of the blend are moved out to whole pairs.
    magnitude : float, optional
        Factor on queries and keys; by default ``0.1 ln(factor) + 1``.

    Returns
    -------
    inv_freq : array of float64
        Stretched frequencies.
    magnitude : float
        For :class:`pagedref.attention.rotary.Rotary`.

    References
    ----------
    B. Peng et al., YaRN: Efficient Context Window Extension of Large Language Models, 2023, sections 3.2 and 3.4.

    Examples
    --------
    >>> plain = 10000.0 ** (-np.arange(0, 128, 2) / 128)
    >>> stretched, magnitude = yarn(plain, 16.0, 4096, 10000.0)
    >>> float(stretched[0] / plain[0]), float(stretched[-1] / plain[-1]), round(magnitude, 4)
    (1.0, 0.0625, 1.2773)
    """
    rotary_dim = 2 * len(inv_freq)

    def pair_of(turns: float) -> float:
        return rotary_dim * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, rotary_dim - 1)
    ramp = np.clip((np.arange(len(inv_freq)) - low) / max(high - low, 0.001), 0.0, 1.0)  # 0: kept, 1: divided
    stretched = inv_freq * (1 - ramp) + inv_freq / factor * ramp
    if magnitude is None:
        magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return np.asarray(stretched), magnitude


def longrope(
    inv_freq: Float64, factors: Any, max_length: float, original_length: float, *, magnitude: float | None = None
) -> tuple[Float64, float]:
    """Divide each frequency by its own factor (LongRoPE, Phi-3).

    Parameters
    ----------
    inv_freq : array (rotary_dim / 2,) of float64
        Plain frequencies.
    factors : sequence of float
        One for each pair: the short or the long list of the checkpoint.
    max_length, original_length : float
        Longest length of the model, and the length that it was first trained for.
    magnitude : float, optional
        Factor on queries and keys; by default ``sqrt(1 + ln(max / original) / ln(original))``.

    Returns
    -------
    inv_freq : array of float64
        Stretched frequencies.
    magnitude : float
        For :class:`pagedref.attention.rotary.Rotary`.

    Notes
    -----
    Which list is used must be chosen once for a sequence, not for each forward call: keys rotated with one do not fit
    queries rotated with the other.

    References
    ----------
    Y. Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, 2024.
    """
    stretched = inv_freq / np.asarray(factors, np.float64)
    if magnitude is None:
        ratio = max_length / original_length
        magnitude = math.sqrt(1 + math.log(ratio) / math.log(original_length)) if ratio > 1 else 1.0
    return stretched, magnitude
