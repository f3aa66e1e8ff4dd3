"""How many of the first m numbers of a list are below x, for many m and x at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["count_below"]

Int64Array = npt.NDArray[np.int64]


def count_below(numbers: Int64Array, firsts: Int64Array, bounds: Int64Array) -> Int64Array:
    """Return for each question how many of the first numbers are below a bound.

    Parameters
    ----------
    numbers : int64 array (n,)
        >= 0.
    firsts : int64 array (questions,)
        How many numbers are asked about, in [0, n].
    bounds : int64 array (questions,)
        >= 0.

    Returns
    -------
    int64 array (questions,)

    Notes
    -----
    Bit by bit from the highest (a wavelet matrix): sort the numbers by this bit, keeping their order otherwise. The
    numbers that a question is about stay one run of the list, [low, high), split in two by the bit; where the bound has
    a one, those with a zero are below it and are counted, and the question goes on with the others. 64 array operations
    at most, each over all numbers and questions.

    Examples
    --------
    >>> count_below(np.array([5, 1, 4, 2]), np.array([3, 4, 4]), np.array([5, 5, 0])).tolist()
    [2, 3, 0]
    """
    low, high = np.zeros_like(firsts), firsts
    count = np.zeros_like(firsts)
    top = max(int(numbers.max(initial=0)), int(bounds.max(initial=0))).bit_length()
    for bit in range(top - 1, -1, -1):
        ones = (numbers >> bit) & 1 == 1
        zeros_before = np.concatenate([[0], np.cumsum(~ones)])  # (n + 1,)
        zeros_low, zeros_high = zeros_before[low], zeros_before[high]
        one = (bounds >> bit) & 1 == 1
        count += np.where(one, zeros_high - zeros_low, 0)
        low = np.where(one, zeros_before[-1] + low - zeros_low, zeros_low)
        high = np.where(one, zeros_before[-1] + high - zeros_high, zeros_high)
        numbers = np.concatenate([numbers[~ones], numbers[ones]])
    return count
