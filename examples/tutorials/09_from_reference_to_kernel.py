"""
.. _tutorial-kernel:

9. From reference to kernel
===========================

*The loop of tutorial 4 takes one key after the other. A GPU has thousands of threads, and one step of it should take no
longer than to read the keys and values once. What has to change, and how do we know that it did, without a GPU?*

We count. What a kernel reads from memory follows from the addresses of its threads, and addresses can be computed by
hand. An **emulator** that runs the compiled code in NumPy says whether we were right.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from pagedref import backends
from pagedref.attention import paged_decode
from pagedref.errors import BackendUnavailable

# %%
# What a GPU is
# -------------
#
# A **kernel** is a function that many **threads** run at once, each with its own number. Thirty-two threads are a
# **warp**: they go through the code together, and each of the 32 is a **lane**. Some warps are a **block**, which runs
# on one **multiprocessor**; an H200, a large GPU, has 132 of them. Memory comes in **sectors** of 32 bytes: whoever
# wants two bytes gets
# 32. When the lanes of a warp read at the same time, each sector that they touch is fetched once. So this is the price
# of one read of a warp:


def sectors(addresses: np.ndarray, width: int) -> int:
    """Return how many sectors are fetched when each lane reads `width` bytes at its address."""
    return np.unique((addresses[:, None] + np.arange(width)) // 32).size


lanes = np.arange(32)
print("32 lanes, 4 bytes each, side by side:", sectors(4 * lanes, 4), "sectors")
print("32 lanes, 4 bytes each, a row apart: ", sectors(256 * lanes, 4), "sectors")

# %%
# Our case is one step of decode: one sequence of 1,024 tokens, one head of keys and values, eight heads of queries that
# share it, 128 numbers in each, in two bytes. A perfect kernel would fetch each sector of keys and values once:

TOKENS, HEADS, DIM, BYTES = 1024, 8, 128, 2
ideal = 2 * TOKENS * DIM * BYTES // 32
print(f"{ideal:,} sectors")

# %%
# Rung 1: a thread for each head
# ------------------------------
#
# Kernels come as a ladder of five **rungs**. The first is the loop of :ref:`tutorial-attention`, in a thread. It looks
# up the frame of each key, adds up the score number by number, and carries ``top``, ``total`` and the mean along:
#
# .. literalinclude:: /../pagedref_cuda/tiles.py
#    :language: python
#    :start-at: for key in range(start, stop):
#    :end-before: finish_row(top
#    :dedent: 4
#
# It is there to be read, and to judge the others. What does it fetch? Eight threads have a head each. For each of the
# 128 numbers of a key they read: the number itself, all the same one; their query; the number of the value, the same
# one; and the running mean, which lies in memory too, in four bytes.

heads = np.arange(HEADS)
one = {
    "key": sectors(0 * heads, BYTES),
    "query": sectors(heads * DIM * BYTES, BYTES),
    "value": sectors(0 * heads, BYTES),
    "mean": sectors(heads * DIM * 4, 4),
}
by_hand = {1: TOKENS * DIM * sum(one.values()) / ideal}
print(one, f"-> {by_hand[1]:.0f} times the ideal")

# %%
# Rung 2: a warp side by side
# ---------------------------
#
# Let the lanes of a warp stand beside each other on the keys: each takes 16 bytes, and together they read two rows of
# 256 bytes with nothing between them. Each lane multiplies its piece, and the lanes of a row add up. Query and mean
# stay in **registers**, the few numbers that a thread has at hand. A row that was read serves four heads, so eight
# heads read it twice:

fetched = sectors(16 * lanes, 16)
by_hand[2] = HEADS / 4 * fetched * 32 / (32 * 16)
print(f"{fetched} sectors for {32 * 16} bytes; {by_hand[2]:.0f} times the ideal")

# %%
# Rung 3: do not wait
# -------------------
#
# Memory answers after a while, here 0.8 microseconds. A warp that reads, waits, computes and reads again keeps it idle.
# How many bytes must be on their way at any moment, so that the line is always full? As many as it carries in that time
# (4.3 TB per second for 132 multiprocessors):

on_their_way = 4.3e12 / 132 * 0.8e-6
print(f"{on_their_way / 1024:.0f} KiB for each multiprocessor")

# %%
# So rung 3 asks for the next keys before it needs them. They arrive in **shared memory**, a small fast memory that the
# threads of a block have in common, while the last ones are computed with. It fetches what rung 2 does.
by_hand[3] = by_hand[2]

# %%
# Rung 4: eight heads in one product
# ----------------------------------
#
# Scores of 16 keys with 8 heads are a product of two matrices, and **tensor cores** multiply small matrices in one
# instruction. So one read serves all eight heads, and the instructions become few:
by_hand[4] = 1.0

# %%
# Rung 5: cut and merge
# ---------------------
#
# One long sequence, one head: one block works and 131 multiprocessors look on. Cut the keys into parts, one for each
# block, and merge the states (:ref:`tutorial-states`). Where to cut depends on the length of the sequence alone, never
# on its neighbours in the batch, so that nobody's text changes with the company.
by_hand[5] = 1.0

# %%
# What the emulator counted
# -------------------------
#
# ``python -m benchmarks.kernel_counts`` compiles all five, runs them on the :doc:`emulator </emulator>` and stores what
# it counted. (That needs ``pip install "pagedref[cuda]"``, about 1 GB, so here the stored table is read.) Beside it,
# what we computed by hand:

folder = Path(sys.argv[0]).resolve().parents[2]
stored = folder / "benchmarks" / "results" / "kernel_counts.json"
every = json.loads(stored.read_text())
table = {int(row["what"][-1]): row for row in every if row["what"].startswith("rung")}
print("rung  sectors / ideal  by hand  instructions  KiB on their way")
for rung, row in table.items():
    counted = f"{row['sectors']:15.2f} {by_hand[rung]:8.0f} {row['instructions']:13,.1f}"
    print(f"{rung:4}  {counted} {row['on_their_way'] // 1024 or '':>17}")

# %%
# What is above our numbers is page tables, queries and outputs, and in rung 5 the parts. Instructions are those of a
# warp for each 512 bytes of keys and values. Why do they matter? A multiprocessor issues four in a cycle of 1.98 GHz.
# So in the time in which 512 bytes arrive, it can issue

budget = 4 * 1.98e9 * 512 / (4.3e12 / 132)
print(f"{budget:.0f} instructions")

# %%
# A kernel with more computes while memory waits. One with fewer waits for memory, which is the best that can be had.

fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
rungs = list(table)
axes[0].bar(rungs, [table[rung]["sectors"] for rung in rungs], color="#0072B2")
axes[0].axhline(1, color="#333333", linestyle="--", label="each once")
axes[0].set(title="Sectors fetched / ideal")
axes[1].bar(rungs, [table[rung]["instructions"] for rung in rungs], color="#E69F00")
axes[1].axhline(budget, color="#333333", linestyle="--", label="as many as there is time for")
axes[1].set(title="Instructions for 512 bytes")
for axis in axes:
    axis.set(xlabel="rung", yscale="log", xticks=rungs)
    axis.legend()
plt.show()

# %%
# A count is not a time. These kernels have been counted, not yet timed on a GPU (:doc:`/cuda` says what has been run
# and what has not), and what is said about speed is a prediction.
#
# And is it right?
# ----------------
#
# Fast and wrong is easy. Each rung goes through the same checks as the reference, number by number. ``pagedref_cuda``
# is the **twin** of ``pagedref.attention``: the same functions with the same arguments, computed by kernels. Where
# Numba is installed, here is one call to both:

rng = np.random.default_rng(0)
k_cache, v_cache = rng.standard_normal((2, 4, 4, 1, 8), dtype=np.float32)  # 4 frames
q = rng.standard_normal((1, 2, 8), dtype=np.float32)
pages = np.array([0, 3]), np.array([2, 0, 3]), np.array([1])  # in frames 2, 0 and 3
reference = paged_decode(q, k_cache, v_cache, *pages)
try:
    twin = backends.get("cuda")
    out = twin.paged_decode(q, k_cache, v_cache, *pages).out
    largest = float(np.abs(out - reference.out).max())
    print(f"{twin.device()}: largest difference {largest:.1e}")
except BackendUnavailable:
    largest = 0.0
    print("not run here: nothing that runs CUDA is installed")

# %%
# How large may such a difference be? That is a question of its own:
# :ref:`tutorial 12 <tutorial-conform>`.
#
# Exercises
# ---------
#
# 1. Rung 1, but a warp of 32 heads of queries in place of 8. How many sectors for each number of a key, and how often
#    the ideal?
# 2. Every second lane reads 4 bytes, side by side with the next but one. How many sectors, and how many bytes are used?
# 3. Pages of one token instead of 16: what changes for rung 2, if keys of neighbouring tokens lie anywhere?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_09.py
#       :start-after: # Answers

assert all(by_hand[rung] <= table[rung]["sectors"] < 1.1 * by_hand[rung] for rung in table)
assert table[3]["on_their_way"] > on_their_way
assert table[3]["instructions"] > budget > table[4]["instructions"]
assert largest < 1e-5
