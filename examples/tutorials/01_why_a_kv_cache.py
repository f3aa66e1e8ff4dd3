"""
.. _tutorial-cache:

1. Why a KV cache
=================

*A language model has written 500 tokens and is about to write one more. How much of the work for that token has it
done before?*

A **token** is a piece of text with a number: the unit in which a model reads and writes. To write one, a **decoder**
looks at all tokens so far. It makes three vectors of each: a **query**, a **key** and a **value**. The newest token
compares its query with the keys of all, itself included; the better a key fits, the more of that token's value it
takes. That is **attention**:

.. math::

   o = \\sum_j \\frac{e^{s_j}}{\\sum_i e^{s_i}} v_j, \\qquad s_j = \\frac{q \\cdot k_j}{\\sqrt{d}}

Here *j* and *i* run over the tokens so far, and *d* is how many numbers a key has.

This is one layer of it, small enough to read. The three matrices are what a model has learned; ours are random, which
changes nothing about the cost.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(0)
WIDTH = 256  # numbers in the vector of a token
to_query, to_key, to_value = rng.standard_normal((3, WIDTH, WIDTH), dtype=np.float32) / np.sqrt(np.float32(WIDTH))


def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return what one token takes from all: query (WIDTH,), keys and values (tokens, WIDTH)."""
    scores = keys @ query / np.sqrt(np.float32(WIDTH))  # (tokens,)
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


# %%
# Write the next token, again and again
# -------------------------------------
#
# The straightforward way: for each new token, take the whole text, make keys and values of all of it, attend. What
# attention returns stands for the new token here. (A real model has more layers, and picks a token by their result.)


def write_again(tokens: np.ndarray, steps: int) -> np.ndarray:
    """Append tokens, and compute everything from the start each time."""
    for _ in range(steps):
        keys, values = tokens @ to_key, tokens @ to_value  # (tokens, WIDTH) each, all of them
        new = attend(tokens[-1] @ to_query, keys, values)
        tokens = np.concatenate([tokens, new[None]])
    return tokens


# %%
# But the key of token 3 is made of token 3 alone: it is the same when token 4 is written, and when token 500 is. (In a
# model of many layers, of token 3 and those before it. They do not change any more, either.) So keep it. What is kept
# is called the **KV cache**: the keys and values of all tokens so far. A new token adds one row to each.


def write_with_cache(tokens: np.ndarray, steps: int) -> np.ndarray:
    """Append tokens, and compute only what is new."""
    room = len(tokens) + steps
    keys, values = np.empty((2, room, WIDTH), np.float32)
    known = 0  # rows that are filled
    for _ in range(steps):
        fresh = tokens[known:]  # the prompt the first time, then one token
        keys[known : len(tokens)], values[known : len(tokens)] = fresh @ to_key, fresh @ to_value
        known = len(tokens)
        new = attend(tokens[-1] @ to_query, keys[:known], values[:known])
        tokens = np.concatenate([tokens, new[None]])
    return tokens


# %%
# Both write the same text, up to the rounding of a sum in another order:

prompt = rng.standard_normal((8, WIDTH), dtype=np.float32)
again, cached = write_again(prompt, 40), write_with_cache(prompt, 40)
largest = float(np.abs(again - cached).max())
print(f"largest difference of any number: {largest:.1e}")

# %%
# What it saves
# -------------
#
# Count multiplications. To write token number *n* from the start takes two products of *n* rows; with the cache it
# takes two of one row. Attention itself reads all keys and values in both, *n* rows, and that stays. (So does the one
# row of the query, which is left out.)


def products(n: int) -> tuple[int, int]:
    """Return the multiplications for token number n: from the start, and with a cache."""
    attention = 2 * n * WIDTH
    return 2 * n * WIDTH * WIDTH + attention, 2 * WIDTH * WIDTH + attention


for n in (1, 10, 100, 500):
    start, cache = products(n)
    print(f"token {n:3}: {start:12,} from the start, {cache:10,} with a cache, {start / cache:5.1f} times as many")

# %%
# And measure: the time for one more token after so many.


def seconds(write, length: int) -> float:
    """Return the time for one token after `length` others, the best of five; the cache is filled beforehand."""
    tokens = rng.standard_normal((length, WIDTH), dtype=np.float32)
    best = np.inf
    keys, values = tokens @ to_key, tokens @ to_value
    for _ in range(5):
        begin = time.perf_counter()
        if write is write_again:
            write_again(tokens, 1)
        else:
            keys[-1], values[-1] = tokens[-1] @ to_key, tokens[-1] @ to_value
            attend(tokens[-1] @ to_query, keys, values)
        best = min(best, time.perf_counter() - begin)
    return best


lengths = [50, 100, 200, 400, 800, 1600]
measured = {write: [1e3 * seconds(write, n) for n in lengths] for write in (write_again, write_with_cache)}

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for write, label, marker in ((write_again, "from the start", "o"), (write_with_cache, "with a KV cache", "s")):
    axes[0].plot(lengths, measured[write], marker=marker, label=label)
axes[0].set(xlabel="tokens so far", ylabel="milliseconds for one more", title="Time, measured here")
axes[1].plot(lengths, [2 * n * WIDTH * 4 / 1e6 for n in lengths], marker="s", color="tab:orange")
axes[1].set(xlabel="tokens so far", ylabel="MB", title="Memory that the cache takes")
for axis in axes:
    axis.set(xlim=0, ylim=0)
    axis.grid(alpha=0.3)
axes[0].legend()
plt.show()

# %%
# Nothing is free: the right picture is the price. The cache grows by two rows for every token. A real model has many
# layers, one after the other, and in each several **heads**: attentions side by side, each with keys and values of its
# own. This is the size of one token in two of them (``page_size`` is what the next tutorials are about, and does not
# matter here):

from pagedref import CacheSpec

small = CacheSpec(num_layers=30, num_kv_heads=3, head_dim=64, page_size=16)  # SmolLM2-135M, float32
large = CacheSpec(num_layers=40, num_kv_heads=40, head_dim=128, page_size=16, dtype="float16")  # OPT-13B
for name, spec in (("SmolLM2-135M in float32", small), ("OPT-13B in float16", large)):
    print(f"{name}: {spec.bytes_per_token:,} bytes for each token")

# %%
# A conversation of 2,000 tokens with the second takes more than a gigabyte and a half. So the question is no longer
# whether to keep keys and values, but *where*: :ref:`the next tutorial <tutorial-contiguous>` shows why the obvious
# place is a bad one.
#
# Words for what we did: reading a prompt, many tokens at once, is **prefill**; writing one token after the other is
# **decode**. Writing keys and values into the cache is **append**.
#
# Exercises
# ---------
#
# 1. Double the text. What happens to the time for one token without a cache, and to the time for the *whole* text?
# 2. How many tokens of OPT-13B fit into 12 GB (12,000,000,000 bytes)?
# 3. The cache keeps keys and values. Why not queries?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_01.py
#       :start-after: # Answers

assert largest < 1e-3
assert large.bytes_per_token == 819_200
