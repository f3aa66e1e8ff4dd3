"""Answers to the exercises of tutorial 5."""

import numpy as np

from pagedref.attention import merge_states

# Answers
# 1. The plain average, and the weight doubles: the lse grows by the logarithm of 2.
out, lse = merge_states(np.array([1.0, 3.0]).reshape(2, 1, 1, 1), np.full((2, 1, 1), 0.7))
assert np.isclose(out.item(), 2.0) and np.isclose(lse.item(), 0.7 + np.log(2))

# 2. The weights come out wrong. Three keys of score 0 and value 0, and one of score 0 and value 1: the right answer
#    is a quarter. With log2(3) in place of log(3) it is 0.17. Multiply such an lse by log(2) first.
values = np.array([0.0, 1.0]).reshape(2, 1, 1, 1)
wrong = merge_states(values, np.array([np.log2(3), 0.0]).reshape(2, 1, 1))
right = merge_states(values, np.array([np.log2(3) * np.log(2), 0.0]).reshape(2, 1, 1))
assert np.isclose(wrong.out.item(), 0.170, atol=1e-3)
assert np.isclose(right.out.item(), 0.25)

# 3. No: the token would count twice. Parts must not overlap.
