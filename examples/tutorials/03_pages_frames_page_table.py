"""
.. _tutorial-pages:

3. Pages, frames and the page table
===================================

*A request has six tokens so far. Where in memory do their keys lie, and what must happen before the next three are
written?*

Contiguous memory failed because room has to be kept before anybody knows how much is needed. An operating system has
the same problem with the memory of programs, and its answer is sixty years old: cut it into equal pieces, hand out
any piece to anybody, and keep a table of who has what. We do it by hand first, and let the library check us.
"""

import matplotlib.pyplot as plt
import numpy as np

from pagedref import addressing
from pagedref.errors import PageFault
from pagedref.memory import FrameAllocator, KVManager, PageTable
from pagedref.memory.snapshot import snapshot
from pagedref.plotting.pictures import draw_entry, draw_tables

# %%
# Cut positions into pages
# ------------------------
#
# The **position** of a token is its index in its **sequence**, the tokens of one text. Count positions off in runs of
# ``page_size``: each run is a **page**, and the index inside it is the **offset**. With four to a page, six tokens
# are one full page and half of another:
#
# .. code-block:: text
#
#    position   0   1   2   3 | 4   5   .   .
#    page       0   0   0   0 | 1   1   1   1
#    offset     0   1   2   3 | 0   1   2   3
#
# Page and offset are quotient and remainder, nothing more (S19 is the rule's number; all rules stand in
# :doc:`/semantics`):

PAGE_SIZE = 4
print("position 5 by hand:   page", 5 // PAGE_SIZE, "offset", 5 % PAGE_SIZE)
print("by the library: page", addressing.page_of(5, PAGE_SIZE), "offset", addressing.offset_of(5, PAGE_SIZE))

# %%
# Take frames from a pool
# -----------------------
#
# Memory is a **pool** of equal **frames**. A frame holds one page, any page: no frame is better than another. To make
# sure that it does not matter which one a page gets, we hand them out in a scrambled order:

ORDER = [5, 2, 6, 0, 1, 3, 4, 7]
allocator = FrameAllocator(num_frames=8, frame_order=ORDER)
frames = allocator.alloc(2)
print("frames for two pages:", frames, " still free:", allocator.num_free)

# %%
# The allocator counts who holds each frame. It never sees what is in one:

print("holders of each frame:", allocator.refcount)

# %%
# The page table
# --------------
#
# A sequence remembers its frames in a **page table**: page 0 lies in frame 5, page 1 in frame 2.

table = PageTable(PAGE_SIZE)
table.map([0, 1], frames)
for page in (0, 1):
    print("entry of page", page, "is", hex(table.entry(page)))

# %%
# Each entry is one 64-bit word: the frame in the upper half, **flags** in the lowest bits. *Present* says that there is
# a frame, *writable* that this sequence may write to it; the others wait until :ref:`tutorial-sharing`. This is the
# entry of page 1:

fig, axes = plt.subplots(figsize=(9, 2.2), layout="constrained")
draw_entry(axes, table.entry(1))
plt.show()

# %%
# **Translate position 5 by hand.** Page 1, offset 1. The table says frame 2. A frame has four **slots**, one for each
# token, numbered through the whole pool: slot = frame x page_size + offset = 2 x 4 + 1 = 9. And position 0 is page 0,
# offset 0, frame 5, slot 20:

slots = table.translate(range(6), write=True)
print("positions 0 to 5 lie in slots", slots)

# %%
# Neighbours in the sequence need not be neighbours in memory: position 3 lies in slot 23, position 4 in slot 8.
# (``write=True`` says what for: the entries must be writable.)
#
# A page without a frame is a **page fault**. That is half of the answer to our question: positions 6 and 7 still fit;
# for position 8 somebody must get a frame first.

print("positions 6 and 7 would lie in slots", table.translate([6, 7]))
try:
    table.translate([8])
except PageFault as fault:
    print(fault)

# %%
# Write and read
# --------------
#
# Now real arrays: keys in one pool, one number each so that we can read them. Fresh memory is filled with NaN, "not a
# number". That is **poison**: whoever computes with a slot that nobody wrote gets NaN for a result, and cannot miss it.

k_cache = np.full((8, PAGE_SIZE), np.nan)
keys = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
k_cache.reshape(-1)[slots] = keys  # slot after slot
print("frame 5:", k_cache[5])
print("frame 2:", k_cache[2])

# %%
# To read the tokens in order, walk the table: frame after frame, and of the last page only what is **live**, as many
# tokens as were written. Its end is poison:

live = addressing.last_page_len(6, PAGE_SIZE)
read = np.concatenate([k_cache[5], k_cache[2, :live]])
print("read back:", read, " live tokens in the last page:", live)

# %%
# A program that forgets this and takes the last page as full reads two NaN. In a pool of zeros it would read two zeros,
# be a little wrong, and nobody would notice. That is why pools in our tests are full of poison.

print("the mean key, read wrongly: ", np.concatenate([k_cache[5], k_cache[2]]).mean())
print("the mean key, read rightly: ", read.mean())

# %%
# Let the manager do it
# ---------------------
#
# :class:`~pagedref.memory.manager.KVManager` keeps the tables of many sequences at once. To **reserve** is to make room
# for tokens; to **commit** is to say that they are written. The same six tokens, and then the three of the question:

manager = KVManager(num_frames=8, page_size=PAGE_SIZE, frame_order=ORDER)
sequence = manager.add()
for count in (6, 3):
    manager.reserve(sequence, count)
    print(f"slots of {count} new tokens:", manager.slots(sequence, count))
    manager.commit(sequence, count)

# %%
# Positions 6 and 7 went into the page that was there; position 8 took a third frame, on demand. What one request wastes
# is at most the rest of its last page, whatever it will grow to. (Letters are flags that are set: P present, W
# writable, A accessed, D dirty, which is to say written.)

fig, axes = plt.subplots(figsize=(8, 5), layout="constrained")
draw_tables(axes, snapshot(manager))
plt.show()
# sphinx_gallery_thumbnail_number = 2

# %%
# Attention of many sequences gets their tables as one array with a row for each, the **block_table**:

print(manager.block_table([sequence]))
manager.audit()  # every frame is free or held, and the counts agree with the tables

# %%
# Next, :ref:`attention over pages <tutorial-attention>`: how to compute with keys that lie here and there.
#
# Exercises
# ---------
#
# 1. A page holds 16 tokens, and a table maps pages 0, 1, 2 to frames 9, 4, 7. In which slot is position 37?
# 2. What part of its slots does a request of 100 tokens leave empty, with 16 to a page? With 1?
# 3. Why not always take one token to a page?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_03.py
#       :start-after: # Answers

assert slots.tolist() == [20, 21, 22, 23, 8, 9]
assert np.array_equal(read, keys)
assert manager.block_table([sequence]).tolist() == [[5, 2, 6]]
