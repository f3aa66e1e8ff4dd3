"""Answers to the exercises of tutorial 4."""

import numpy as np

from pagedref.attention import paged_decode

# Answers
# 1. ``factor`` is 1, because ``top`` stays. The page's weights are nearly 0, so ``total`` and ``mean`` hardly move: a
#    key that fits a thousand times worse takes a thousandth of the weight.
top, page_scores = 5.0, np.array([-40.0, -41.0])
assert np.exp(top - max(top, page_scores.max())) == 1
assert np.exp(page_scores - top).sum() < 1e-19

# 2. Nothing but the last bits: a sum in another order rounds in another way. (The causal rule needs positions, not
#    order.)
scores = np.random.default_rng(0).standard_normal(1000)
assert np.isclose(np.exp(scores).sum(), np.exp(scores[::-1]).sum(), rtol=1e-12)

# 3. The output is exactly 0 and the lse is minus infinity: no weight stands behind it.
nothing = np.zeros(2, int)
out, lse = paged_decode(np.ones((1, 1, 2)), *np.full((2, 1, 4, 1, 2), np.nan), nothing, nothing[:0], nothing[:1])
assert (out == 0).all() and lse[0, 0] == -np.inf
