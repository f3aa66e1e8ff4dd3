"""
.. _tutorial-attention:

4. Attention over pages
=======================

*The formula of attention wants all scores at once, side by side. Our keys lie in pages, here and there. Can we look at
one page at a time, and forget it before the next?*

We can, with two numbers and a vector that we carry along. This is called **online softmax**, and every fast attention
program in the world is made of it.
"""

import matplotlib.pyplot as plt
import numpy as np

from pagedref.attention import append_kv, paged_decode
from pagedref.memory import KVManager
from pagedref.plotting.pictures import draw_weights

np.set_printoptions(precision=4, suppress=True)

# %%
# A sequence in three pages
# -------------------------
#
# Ten tokens with keys and values of two numbers, four tokens to a page, in a pool of eight frames full of poison.
# ``append_kv`` writes each token at its slot; the third axis of the pools is for **heads**, of which we have one.

TOKENS, PAGE_SIZE, DIM = 10, 4, 2
rng = np.random.default_rng(28)
keys, values = 1.5 * rng.standard_normal((2, TOKENS, DIM))
query = np.array([1.0, 0.5])

manager = KVManager(num_frames=8, page_size=PAGE_SIZE, frame_order=[5, 2, 6, 0, 1, 3, 4, 7])
sequence = manager.add()
manager.reserve(sequence, TOKENS)
k_cache, v_cache = np.full((2, 8, PAGE_SIZE, 1, DIM), np.nan)  # (num_frames, page_size, num_kv_heads, head_dim) each
append_kv(keys[:, None], values[:, None], k_cache, v_cache, manager.slots(sequence, TOKENS))
manager.commit(sequence, TOKENS)
frames = manager.block_table([sequence])[0].tolist()
print("pages 0, 1, 2 lie in frames", frames)

# %%
# The formula
# -----------
#
# The **score** of a key is its product with the query, times ``sm_scale`` (rule S1: by default one over the root of the
# dimension). The weight of a token is *e* to its score, divided by the sum over all:

sm_scale = 1 / np.sqrt(DIM)
scores = sm_scale * (keys @ query)  # (10,)
weights = np.exp(scores) / np.exp(scores).sum()
expected = weights @ values
print("scores ", scores)
print("weights", weights)
print("output ", expected)

# %%
fig, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
draw_weights(axes, weights, frames, PAGE_SIZE)
plt.show()

# %%
# One practical point first. *e* to a score of 1,000 is too large for a computer. But weights do not change when the
# same number is taken from all scores, so everybody takes away the largest:

large = scores + 1000
with np.errstate(over="ignore", invalid="ignore"):
    print("without care:", (np.exp(large) / np.exp(large).sum())[:3])
print("with care:   ", (np.exp(large - large.max()) / np.exp(large - large.max()).sum())[:3])

# %%
# One page at a time
# ------------------
#
# So we need the largest score before we begin, and to know it we would have to see all keys? No. Take the largest *so
# far*. When a page brings a larger one, everything summed up so far is too big by a known factor,
# :math:`e^{\text{new} - \text{old}}`: divide by it and go on. We carry
#
# - ``top``, the largest score so far,
# - ``total``, the sum of :math:`e^{s - top}`,
# - ``mean``, the sum of :math:`e^{s - top}` times the value: the mean value so far, once it is divided by ``total``.

top, total, mean = -np.inf, 0.0, np.zeros(DIM)
for page, frame in enumerate(frames):
    live = min(PAGE_SIZE, TOKENS - page * PAGE_SIZE)  # the rest of the last page is poison
    page_scores = sm_scale * (k_cache[frame, :live, 0] @ query)
    new_top = max(top, page_scores.max())
    factor = np.exp(top - new_top)  # 0 the first time: there was nothing before
    page_weights = np.exp(page_scores - new_top)
    total = total * factor + page_weights.sum()
    mean = mean * factor + page_weights @ v_cache[frame, :live, 0]
    top = new_top
    print(f"page {page}, frame {frame}: top {top:.4f}, earlier sums x {factor:.4f}, total {total:.4f}", mean / total)

online = mean / total

# %%
# The last line is the answer of the formula, and no moment needed more than one page in hand. What remains beside the
# output is one number, the **lse**, "log sum exp": the logarithm of the sum of *e* to all scores. It says how much
# weight stands behind the output, and the next tutorial shows what it is good for.

lse = top + np.log(total)
print("formula:", expected, " one page at a time:", online)
print("lse:    ", np.log(np.exp(scores).sum()), "      ", lse)

# %%
# The library
# -----------
#
# :func:`~pagedref.attention.paged_decode` does this for many sequences and heads, and returns output and lse. It takes
# the tables as three arrays, together called **CSR**: the frames of all sequences one after the other (``kv_indices``),
# where each sequence begins (``kv_indptr``), and how many tokens of the last page are live (``kv_last_page_len``).

kv_indptr, kv_indices, kv_last_page_len = manager.csr([sequence])
print("kv_indptr", kv_indptr, " kv_indices", kv_indices, " kv_last_page_len", kv_last_page_len)
state = paged_decode(query[None, None], k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len)
print("library: ", state.out[0, 0], " lse", state.lse[0, 0])

# %%
# Many queries, and what they may see
# -----------------------------------
#
# In prefill, all tokens of a prompt ask at once. A token must not look into the future: query *i* sees keys up to its
# own position. That rule is called **causal** (S4). It costs nothing to obey: simply stop earlier. What a query may
# not see is not read at all, so poison in it cannot hurt (S7).

visible = np.tril(np.ones((TOKENS, TOKENS), bool))
queries = rng.standard_normal((TOKENS, DIM))
every = np.where(visible, sm_scale * queries @ keys.T, -np.inf)  # (10 queries, 10 keys)
shares = np.exp(every - every.max(axis=1, keepdims=True))
shares /= shares.sum(axis=1, keepdims=True)

fig, axes = plt.subplots(figsize=(5.2, 4), layout="constrained")
picture = axes.imshow(np.ma.masked_where(~visible, shares), cmap="cividis", vmin=0)
for border in (3.5, 7.5):
    axes.axvline(border, color="white")
axes.set(xlabel="key (lines: borders of pages)", ylabel="query", title="Weights of a causal prefill")
fig.colorbar(picture, label="weight")
plt.show()

# %%
# Exercises
# ---------
#
# 1. A page brings scores that are all far below ``top``. What happens to ``top``, ``total`` and ``mean``?
# 2. Change the order of the pages in the loop. What changes in the result?
# 3. A query sees no key at all. What should the output be, and what the lse? (Rule S8.)
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_04.py
#       :start-after: # Answers

assert np.allclose(online, expected, rtol=1e-12)
assert np.allclose(state.out[0, 0], expected, rtol=1e-12)
assert np.allclose(state.lse[0, 0], lse, rtol=1e-12)
