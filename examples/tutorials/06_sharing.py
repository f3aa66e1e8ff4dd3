"""
.. _tutorial-sharing:

6. Sharing
==========

*A hundred users ask about the same document of 4,000 tokens. Must it lie in memory a hundred times? And what happens
when one of them writes?*

Keys and values of past tokens never change. So two sequences that begin with the same tokens can have the same frames
in their tables, and neither notices. Three words for it: a **prefix** is shared when a new prompt begins like an old
one; a **fork** shares everything so far; and **copy on write** is what keeps sharing safe. """

import matplotlib.pyplot as plt
import numpy as np

from pagedref.memory import KVManager
from pagedref.memory.snapshot import snapshot
from pagedref.plotting.pictures import draw_pool, draw_tables

# %%
# Fork: two futures, one past
# ---------------------------
#
# One sequence of six tokens, in two pages. We want two answers to it.

manager = KVManager(num_frames=8, page_size=4, frame_order=[5, 2, 6, 0, 1, 3, 4, 7])
parent = manager.add()
manager.reserve(parent, 6)
manager.commit(parent, 6)
child = manager.fork(parent)
print("tables:", manager.block_table([parent, child]).tolist())
print("holders of each frame:", manager.refcount)

# %%
# The fork took no frame: it is a second table with the same numbers in it. Each frame counts its **holders**. A frame
# is free again when its last holder lets go. And look at the flags: S, shared, has come, and W, writable, has gone.

fig, axes = plt.subplots(figsize=(8, 5), layout="constrained")
draw_tables(axes, snapshot(manager))
plt.show()

# %%
# Copy on write
# -------------
#
# Now the child writes its own seventh token, at position 6, in page 1. That page is shared: the parent would read the
# child's token as its own. So a shared frame is never written (S27). The manager gives the child a fresh frame and says
# what to copy:

plan = manager.reserve(child, 1)
print(f"copy frame {plan.src} to frame {plan.dst}, then write at slot", manager.slots(child, 1))
manager.commit(child, 1)
print("tables:", manager.block_table([parent, child]).tolist())

# %%
# One frame is copied, all four slots of it; page 0 is still stored once. It is full, so nobody will ever write it
# again. And when the parent writes next, it is the only holder of its page 1 and writes in place:

plan = manager.reserve(parent, 1)
print("to copy:", plan.src, " slot:", manager.slots(parent, 1))
manager.commit(parent, 1)

# %%
fig, axes = plt.subplots(figsize=(9, 3), layout="constrained")
draw_pool(axes, snapshot(manager))
plt.show()

# %%
# Forget the copy, and two users read each other's words. Real systems have had this fault; it shows only after the two
# have written different things, which is why our tests write different things.
#
# Prefixes
# --------
#
# The same saving without a fork: a request arrives whose prompt begins like one that was here before. The manager
# remembers the tokens of every *full* page, and **hits** when a prompt has the same tokens from the start. To **admit**
# a prompt is to look it up, take the pages that were found, and make room for the rest. ``admit`` returns the new
# sequence, what was hit, and what to copy first, as ``reserve`` does: here nothing. What was hit is written already, so
# only the rest is committed:

manager = KVManager(num_frames=12, page_size=4)
document = list(range(100, 110))  # ten tokens: two full pages, and two tokens more
first, hit, _ = manager.admit(document + [1, 2, 3])
manager.commit(first, 13 - hit.num_tokens)
second, hit, _ = manager.admit(document + [7, 8, 9])
print("tokens that need not be computed again:", hit.num_tokens)
manager.commit(second, 13 - hit.num_tokens)
print("tables:", manager.block_table([first, second]).tolist())

# %%
# Eight of the ten common tokens are shared: whole pages only. The third page holds tokens 8 to 11, and there the two
# differ, so each has its own.
#
# What if nobody holds a page any more? Then its frame is not emptied but **cached**: it keeps its content until
# somebody needs the frame. (Of the six frames, four held full pages. A last page that is not full is not remembered,
# and its frame is simply free.) A third user with the same document comes later and still finds it:

manager.free([first, second])
stats = manager.stats()
print(f"free {stats.free}, held {stats.held}, cached {stats.cached}")
third, hit, _ = manager.admit(document + [4])
print("the third user finds", hit.num_tokens, "tokens")

# %%
# At least one token of a prompt is always computed, even if all are known (S29): the answer needs the last one's query,
# and queries are not kept.

again, hit, _ = manager.admit(document[:8])
print("a prompt of 8 tokens, all of them cached, finds", hit.num_tokens)

# %%
# What it saves
# -------------
#
# Frames for many users of one document, with questions and answers of 200 tokens each:

USERS = np.array([1, 2, 5, 10, 20, 50, 100])
alone = USERS * -(-4200 // 16)
shared = 4000 // 16 + USERS * -(-200 // 16)
fig, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.plot(USERS, alone, marker="o", label="each has its own document")
axes.plot(USERS, shared, marker="s", label="shared prefix")
axes.set(xlabel="users", ylabel="frames of 16 tokens", xlim=0, ylim=0)
axes.grid(alpha=0.3)
axes.legend()
plt.show()
print(f"a hundred users: {alone[-1]:,} frames alone, {shared[-1]:,} shared, {alone[-1] / shared[-1]:.1f} times fewer")

# %%
# Exercises
# ---------
#
# 1. Why does the fork copy page 1 but never page 0?
# 2. Two hundred requests share a prompt of 1,000 tokens and add 50 of their own each. How many frames of 16 do they
#    need together, and how many without sharing?
# 3. Token 3 of a long document is changed. Which of its pages can still be hit?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_06.py
#       :start-after: # Answers

assert hit.num_tokens == 4
assert stats.free + stats.held + stats.cached == 12
manager.audit()
assert shared[-1] * 10 < alone[-1]
