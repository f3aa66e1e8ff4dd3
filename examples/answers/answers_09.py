"""Answers to the exercises of tutorial 9."""

import numpy as np


def sectors(addresses: np.ndarray, width: int) -> int:
    return np.unique((addresses[:, None] + np.arange(width)) // 32).size


# Answers
# 1. Key and value still take one sector each, query and mean one for each head: 66. For each key that is 128 times 66,
#    against 16: more than five hundred times the ideal.
heads = np.arange(32)
each = 2 * sectors(0 * heads, 2) + sectors(heads * 256, 2) + sectors(heads * 512, 4)
assert each == 66
assert 128 * each / 16 == 528

# 2. Sixteen lanes spread over 128 bytes: four sectors, and half of their bytes are used.
assert sectors(4 * np.arange(0, 32, 2), 4) == 4
assert 16 * 4 / (4 * 32) == 0.5

# 3. Nothing. A key of 128 numbers in two bytes is 256 bytes, eight whole sectors, wherever it lies. (The page table has
#    sixteen times as many entries.)
assert sectors(16 * np.arange(16), 16) * 32 == 256
assert sectors(np.concatenate([16 * np.arange(16), 10**6 + 16 * np.arange(16)]), 16) == 16
