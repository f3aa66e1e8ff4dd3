"""
.. _tutorial-pressure:

7. Running out
==============

*Memory is full, three people are in the middle of a sentence, and each of them needs one more frame. Who gives way, and
what does it cost?*

Paging hands out frames when they are needed. So more can be promised than there is, and one day everybody calls at
once. There are three answers, and they come in this order: give up what nobody holds; let somebody wait; and, before
all that, do not let too many in.
"""

import matplotlib.pyplot as plt
import numpy as np

from pagedref.engine import Engine, EngineConfig
from pagedref.errors import OutOfFrames
from pagedref.memory import KVManager
from pagedref.memory.snapshot import snapshot
from pagedref.memory.swap import ArrayFrames, HostStore, carry_out
from pagedref.models import load_model
from pagedref.models.sampling import SamplingParams
from pagedref.models.tiny_text import encode
from pagedref.plotting.pictures import draw_timeline

# %%
# Eviction: give up what nobody holds
# -----------------------------------
#
# A **cached** frame has no holder; it is kept in case that somebody asks for its page again. When no frame is free, a
# cached one is given away. This is **eviction**. Here two users have come and gone, the one with tokens from 100 after
# the one with tokens from 200, and everything that they left is cached:

manager = KVManager(num_frames=6, page_size=4)
for start in (200, 100):
    visitor, _, _ = manager.admit(list(range(start, start + 12)))
    manager.commit(visitor, 12)
    manager.free(visitor)
stats = manager.stats()
print(f"free {stats.free}, held {stats.held}, cached {stats.cached}")

# %%
# A third comes with 16 new tokens and needs four frames. Which pages go? Those that lost their last holder longest ago:
# **least recently used**, LRU. And of one text the *last* page goes first. A prompt is matched from its beginning, so
# a cache that gave up the beginning would keep pages that nobody can ever find. (To look for 12 tokens we ask with a
# prompt of 13, because the last token of a prompt is always computed.)

third, _, _ = manager.admit(list(range(300, 316)))
manager.commit(third, 16)
for start in (200, 100):
    found = manager.match_prefix(list(range(start, start + 13))).num_tokens
    print(f"tokens from {start}: {found} of 12 are still there")

# %%
# Eviction costs nothing now, and a little later if the page is asked for again.
#
# Preemption: somebody waits
# --------------------------
#
# Now all frames are held. Two requests of eight tokens fill a pool of four frames, and both want to write their ninth:

manager = KVManager(num_frames=4, page_size=4)
old, new = manager.add(), manager.add()
manager.reserve([old, new], 8)
manager.commit([old, new], 8)
try:
    manager.reserve([old, new], 1)
except OutOfFrames as refusal:
    print(refusal)

# %%
# Nothing was changed by asking (S26). One of the two has to give all its frames back and wait. This is **preemption**,
# and the one who waits is the **victim**. It is the newest. If it could be the oldest, two requests might throw each
# other out for ever, and neither would end. The manager is told how many frames are missing and who runs, the oldest
# first, and names the victims:

victims = manager.preemption(2, [old, new])
print("one goes:", victims == [new])

# %%
# What becomes of its keys and values? There are two ways.
#
# **Recompute.** Forget them. A key is made of tokens, and the tokens are known: when there is room again, prompt and
# answer so far are read like one long prompt, all at once.
#
# **Swap.** Copy its frames to a slower and larger memory, such as that of the host beside the GPU, and back later.
# They may come back into other frames; then its table has other numbers and the same content. The manager only plans:
# ``swap_out`` says what has to be moved, ``carry_out`` moves it, ``swap_done`` reports that it is there. Keys here are
# one number for each slot:

k_cache = np.arange(16.0).reshape(4, 4)  # 4 frames of 4 slots
before = k_cache[manager.block_table([new])[0]].ravel()
store, frames = HostStore(4, bytes_per_page=4 * 8), ArrayFrames({"k": k_cache})
away = manager.swap_out(new, store)
carry_out(away, frames, store)
manager.swap_done(away)

plan = manager.reserve(old, 1)  # the old one goes on, at once
manager.commit(old, 1)
k_cache[manager.block_table([old])[0][-1]] = -1  # it writes where the other's keys were

manager.free(old)  # and ends; the victim comes back
back = manager.swap_in(new)
carry_out(back, frames, store)
manager.swap_done(back)
after = k_cache[manager.block_table([new])[0]].ravel()
print("before:", before)
print("after: ", after, "in frames", manager.block_table([new])[0])

# %%
# Which is better? Swapping moves bytes, recomputing does arithmetic. A long text is cheap to move and dear to compute;
# for a short one it is the other way round. Neither changes a word of the answer.
#
# Admission: not too many at once
# -------------------------------
#
# Preemption throws work away, so better to avoid it. A new request is let in only if its prompt fits and some frames
# stay free for the others to grow into: the **watermark**. And one that could not fit into the empty pool is refused
# at once with the numbers, or it would wait for ever at the head of the queue (S34). In our pool of four, the victim
# holds two frames, so two are available. A prompt of five tokens needs both, and none would stay free. (``revived``
# counts cached pages that the prompt would hit: they are available no longer once it holds them.)

need = manager.need([1, 2, 3, 4, 5], watermark=1)
print(need, "fits" if need.fits else "waits")

# %%
# All together
# ------------
#
# An **engine** runs many requests at once. In each **step** every running request gets one token, new prompts are read,
# and whoever has ended leaves. Here are eight requests with common words at the beginning, in a pool of 20 frames. The
# model is a tiny one that is part of the package; the next tutorial looks at a model more closely.

SYSTEM = "the food of owl is figs tea . the gift of dog is lamp ring . "
prompts = [encode(SYSTEM + question) for question in ("food of owl :", "gift of dog :") * 4]
model = load_model("tiny")
params = SamplingParams(max_tokens=24, ignore_eos=True)  # write 24 tokens, whatever they are


def serve(**config):
    """Run all prompts; return their texts, what was counted, and how the memory looked in each step."""
    looks = []  # at most 16 tokens are computed in a step, and 8 requests run at once
    engine = Engine(model, EngineConfig(page_size=4, token_budget=16, max_running=8, **config))
    engine.on_step = lambda: looks.append(snapshot(engine.cache.manager))
    return [one.text for one in engine.generate(prompts, params)], engine.metrics(), looks


texts, metrics, looks = serve(num_frames=20, watermark=0)
print(f"{metrics.recomputed} preemptions in {metrics.steps} steps")

# %%
fig, axes = plt.subplots(figsize=(9, 4), layout="constrained")
draw_timeline(axes, looks)
axes.set_xlabel("step")
plt.show()

# %%
# Each colour is a request, grey is cached, white is free; a dot marks a frame that several hold. The words are those
# that everybody would have got alone:

roomy, plenty, _ = serve(num_frames=200)
print("the same texts:", texts == roomy)
print(f"with room for all: {plenty.recomputed} preemptions")

# %%
# What does the watermark do? And what if every request sets all frames aside that it might ever need?

rules = {f"watermark {number}": {"watermark": number} for number in (0, 2, 4, 6)}
rules["all set aside"] = {"preemption": "none", "watermark": 0}
for name, rule in rules.items():
    _, counted, _ = serve(num_frames=20, **rule)
    print(f"{name:13}: {counted.recomputed:2} preemptions, {counted.steps:3} steps")

# %%
# The more is kept free, the fewer are thrown out, and the fewer run at once. Setting all aside throws nobody out and
# takes longest: it is the first kind of waste from :ref:`tutorial-contiguous` again. How much to promise is a bet on
# what the requests will do.

# %%
# Exercises
# ---------
#
# 1. Why does the last page of a cached text go first, and not the first?
# 2. A text of 1,000 tokens at 46,080 bytes a token is swapped out over a line of 20 GB a second, and in again. A
#    processor could read it as a prompt at 2,000 tokens a second. Which is faster? By how much?
# 3. A pool has 10 frames of 16 slots and a watermark of 1. May a request with a prompt of 100 tokens and an answer of
#    up to 60 come in, ever?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_07.py
#       :start-after: # Answers

assert (before == after).all()
assert victims == [new]
assert texts == roomy and metrics.recomputed > 0 == plenty.recomputed
