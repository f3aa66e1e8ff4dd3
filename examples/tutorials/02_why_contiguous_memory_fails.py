"""
.. _tutorial-contiguous:

2. Why contiguous memory fails
==============================

*A request may grow to 4,000 tokens, and nobody knows whether it will. This one stops after 100. How much of the memory
that was kept for it was used?*

The obvious place for a KV cache is one array with a row for each token, all rows side by side: **contiguous** memory.
An array cannot grow where it lies, because something else lies behind it. So its size has to be chosen when the
**request**, what a client asks of us, arrives: before its first answer is written. """

import matplotlib.pyplot as plt
import numpy as np

from pagedref.errors import OutOfFrames
from pagedref.memory.contiguous import Waste, make_space, slots_to_reserve

# %%
# Room that is never used
# -----------------------
#
# The room for the keys and values of one token is a **slot**. To be safe, keep as many as the model can handle, here
# 4,000. Slots inside the room of a request that never hold a token are **internal waste**. ``Waste`` sorts the slots of
# a request that has ``stored`` tokens now and will have ``final`` at its end; here it has ended. *Token states* are
# slots that hold a token; *reserved* and *external* come below:

waste = Waste.of_request(stored=100, allocated=4000, final=100, pool=4000)
print(waste)
print(f"wasted: {1 - waste.token_states / 4000:.1%}")

# %%
# Could we guess better? Say that we knew the length of the answer up to the next power of two: 64 for an answer of 41
# tokens. Nobody can do better than the **oracle**, which knows it exactly. It does not exist; it shows the limit. (The
# last token of an answer needs no slot: no token comes after it that would ask for its key.)

PROMPT, ANSWER, LONGEST = 60, 41, 4000  # the last token of an answer is never stored, so 100 are
rooms = {rule: slots_to_reserve(rule, PROMPT, ANSWER, LONGEST) for rule in ("max", "pow2", "oracle")}
for rule, room in rooms.items():
    print(f"{rule:>6}: room for {room:5,} tokens, {1 - 100 / room:6.1%} of it never used")

# %%
# Even the oracle keeps room for tokens that come later: in the middle of its answer, a request holds room that is
# **reserved**, empty now and used in a while. Call the memory that all requests share the **pool**. Here is one of
# 4,000 slots, at the moment when the request has 70 tokens. *External*, in grey, is what the request does not hold:

states = ("token states", "reserved", "internal", "external")
colours = ("#0072B2", "#56B4E9", "#E69F00", "#DDDDDD")
fig, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
look = {"edgecolor": "#333333", "linewidth": 0.5}
for row, room in enumerate(reversed(rooms.values())):
    left = 0
    for kind, count, colour in zip(states, Waste.of_request(70, room, 100, 4000), colours, strict=True):
        axes.barh(row, count, left=left, color=colour, label=kind if row == 2 else "", **look)
        left += count
axes.set_yticks(range(3), list(reversed(rooms)))
axes.set(xlabel="slots of the pool", xlim=(0, 4000))
axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.3), ncols=4, frameon=False)
plt.show()

# %%
# Gaps that fit nobody
# --------------------
#
# Now many requests of different length in one pool, each with exactly the room that it needs. They come and go. Where
# one leaves, a hole opens, and the next one rarely has the same size. This is **external waste**: free memory in
# pieces that are too small.

rng = np.random.default_rng(4)
POOL = 2000
space = make_space("firstfit", POOL)  # the lowest hole that is large enough
living: dict[int, int] = {}  # start of each request: its length
while True:
    length = int(rng.integers(60, 400))
    try:
        living[space.alloc(length)] = length
    except OutOfFrames as refusal:
        if POOL - space.num_allocated > 1.5 * length:
            print(refusal)
            break
        oldest = next(iter(living))
        space.free(oldest)
        del living[oldest]

fig, axes = plt.subplots(figsize=(9, 1.5), layout="constrained")
axes.barh(0, POOL, color="#DDDDDD", edgecolor="#333333")
for at, (start, size) in enumerate(sorted(living.items())):
    axes.barh(0, size, left=start, color=colours[0], edgecolor="white")
    axes.text(start + size / 2, 0, str(at), ha="center", va="center", color="white", fontsize=9)
free = POOL - space.num_allocated
axes.set(xlabel="slot", xlim=(0, POOL), yticks=[], title=f"{free:,} slots are free, and no hole has {length}")
plt.show()

# %%
# The refusal that was printed has the numbers: what was asked for, the largest hole, and all that is free. More than
# one and a half times what the last request needs is free, and it must wait. To move the others together
# would mean to copy gigabytes while everybody waits.
#
# Both troubles have one cause: a request needs its memory *in one piece*, and *before it is known how much*. Take
# that away, and both disappear. Give memory in small pieces of one size, when they are needed, anywhere. With 16
# slots in each piece, our request of 100 tokens holds seven:

pieces = -(-100 // 16)
paged = Waste.of_request(stored=100, allocated=16 * pieces, final=100, pool=16 * pieces)
print(paged)
print(f"wasted: {1 - paged.token_states / sum(paged):.1%}")

# %%
# And any piece fits anybody, so there is no external waste at all. :ref:`The next tutorial <tutorial-pages>` builds it.
#
# Exercises
# ---------
#
# 1. All requests have exactly the same length, known beforehand. How much does contiguous memory waste then?
# 2. Why does the buddy allocator, which rounds each size up to a power of two, waste little outside and much inside?
# 3. A pool has 12,000 slots. How many requests of 100 tokens run at once with room for 4,000 each, and how many in
#    pieces of 16?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_02.py
#       :start-after: # Answers

assert waste.token_states / 4000 == 0.025
assert 1 - paged.token_states / sum(paged) < 0.11
assert POOL - space.num_allocated > 1.5 * length
