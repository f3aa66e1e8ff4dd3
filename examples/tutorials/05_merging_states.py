"""
.. _tutorial-states:

5. Merging states
=================

*A document has 100,000 tokens, and eight workers are idle. Can each attend to an eighth of it, and can we put the eight
answers together as if one had read it all?*

Putting together averages is wrong if one looks at a part that matters and another at one that does not. But every
answer comes with its **lse** (:ref:`tutorial-attention`), which says how much weight stands behind it. Output and lse
together are a **state**, and states can be merged, exactly.
"""

import matplotlib.pyplot as plt
import numpy as np

from pagedref.attention import merge_states

np.set_printoptions(precision=4, suppress=True)
rng = np.random.default_rng(2)
TOKENS, DIM = 24, 3
keys, values = rng.standard_normal((2, TOKENS, DIM))
query = 2 * rng.standard_normal(DIM)


def attend(which: slice) -> tuple[np.ndarray, float]:
    """Return the state of attention to some tokens: output and lse."""
    scores = keys[which] @ query / np.sqrt(DIM)
    if not scores.size:
        return np.zeros(DIM), -np.inf  # S8: no key, no output, no weight
    top = scores.max()
    weights = np.exp(scores - top)
    return weights @ values[which] / weights.sum(), float(top + np.log(weights.sum()))


# %%
# Two parts
# ---------
#
# The weight behind a part is *e* to its lse. So the merged output is the average of the two, weighted with that; and
# the weight behind the whole is the sum:
#
# .. math::
#
#    o = \frac{e^{l_1} o_1 + e^{l_2} o_2}{e^{l_1} + e^{l_2}}, \qquad l = \log(e^{l_1} + e^{l_2})


def merge(one: tuple[np.ndarray, float], two: tuple[np.ndarray, float]) -> tuple[np.ndarray, float]:
    """Merge two states."""
    top = max(one[1], two[1])
    if top == -np.inf:
        return one  # both are empty
    a, b = np.exp(one[1] - top), np.exp(two[1] - top)
    return (a * one[0] + b * two[0]) / (a + b), float(top + np.log(a + b))


whole = attend(slice(None))
left, right = attend(slice(0, 10)), attend(slice(10, None))
merged = merge(left, right)
plain = (left[0] + right[0]) / 2
print("left  ", *left)
print("right ", *right)
print("whole ", *whole)
print("merged", *merged)
print("plain average, wrong:", plain)

# %%
# It does not matter where the cut is, or how many there are:

fig, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
cuts = range(TOKENS + 1)
share = [np.exp(attend(slice(0, cut))[1] - whole[1]) for cut in cuts]
error = [np.abs(merge(attend(slice(0, cut)), attend(slice(cut, None)))[0] - whole[0]).max() for cut in cuts]
axes.step(cuts, share, where="post", label="share of the weight in the left part")
axes.set(xlabel="tokens in the left part", ylabel="share", ylim=(0, 1.05))
axes.legend()
axes.grid(alpha=0.3)
plt.show()
print(f"largest error over all {len(error)} cuts: {max(error):.1e}")

# %%
# One idea, three uses
# --------------------
#
# **Split.** Eight workers, eight parts, one merge. It is what a GPU does for a long sequence, since one of its
# processors alone would take too long.
#
# **Cascade.** A hundred users ask about the same document. Attend to the document once for all hundred queries, to each
# user's own tokens separately, and merge. The document is read once, not a hundred times.
#
# **Sinks.** Some models give every head a constant weight that goes nowhere: a score without a token. It is the state
# of a value of zeros, with that score as its lse, merged in once (S11). Merged in with every part, it would count eight
# times, a mistake that real systems have made.

state = (np.zeros(DIM), -np.inf)  # nothing seen yet
for part in range(8):
    state = merge(state, attend(slice(3 * part, 3 * part + 3)))
print("eight parts:", *state)

sink = (np.zeros(DIM), 1.0)
once = merge(state, sink)
twice = merge(once, sink)
print("with a sink:", *once)
print("sink counted twice, wrong:", *twice)

# %%
# The rules behind it
# -------------------
#
# ``(0, -inf)`` is the state of nothing, and merging it in changes no bit. Two states can change places without
# changing a bit, and any grouping gives the same up to rounding (S10). Mathematicians call this a commutative monoid;
# for us it means: split as you like.
#
# :func:`~pagedref.attention.merge_states` takes any number of states at once, for many tokens and heads:

parts = [attend(slice(3 * part, 3 * part + 3)) for part in range(8)]
out = np.stack([part[0] for part in parts])[:, None, None]  # (states, tokens, heads, dim)
lse = np.array([part[1] for part in parts])[:, None, None]  # (states, tokens, heads)
library = merge_states(out, lse)
print("library:", library.out[0, 0], library.lse[0, 0])

# %%
# Exercises
# ---------
#
# 1. Two parts have the same lse. What is the merged output, and the lse?
# 2. Another system gives its lse as a logarithm of base 2. What goes wrong when it is merged with ours, and what is the
#    cure?
# 3. Is merging also right if the two parts share a token?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_05.py
#       :start-after: # Answers

assert max(error) < 1e-12
assert np.allclose(state[0], whole[0]) and np.isclose(state[1], whole[1])
assert np.allclose(library.out[0, 0], whole[0])
assert np.abs(plain - whole[0]).max() > 0.01
assert np.abs(twice[0] - once[0]).max() > 0.01
