"""
.. _tutorial-replay:

11. Replay your traffic
=======================

*You know how long the requests to your service are. How many of them would run at once in the memory that you have, and
what would change if you had pages?*

You need a file of request lengths, or none: traffic can be drawn. No model, no GPU. A **replay** runs the same
memory manager as an engine, and the same **scheduler**, which decides who runs in which step. Only the arithmetic is
left out.
"""

import matplotlib.pyplot as plt
import numpy as np

from pagedref.scheduling import Limits
from pagedref.simulate import UNIT, Request, Scenario, Synthetic, cache_cost, jobs_of, replay, sweep
from pagedref.simulate.hits import hit_rates, lru_curve, page_uses

# %%
# One request
# -----------
#
# A **trace** is a list of requests: when each arrives, how long its prompt is, how long its answer. Begin with one that
# stops at 100 tokens, alone in a pool with room for 4,000, as in :ref:`tutorial-contiguous`. Here is its last step, in
# contiguous memory and in pages of 16:

trace = [Request(arrival=0, prompt_len=1, output_len=100)]  # 100 are stored: the last never is
last = {}
for policy, slots in (("contiguous-max", 4000), ("paged", 112)):
    scenario, steps = Scenario(slots=slots, policy=policy, max_len=4000, service=UNIT), []
    replay(trace, scenario, by_step=lambda running, waste, steps=steps: steps.append(waste))
    last[policy] = steps[-1]
    print(f"{policy}: {1 - last[policy].token_states / slots:.1%} of {slots:,} slots are wasted")
    print("  ", last[policy])

# %%
# Many requests
# -------------
#
# Waste in one request is room that others lack. Let us draw 300 requests with the mean lengths of public chats, 161
# tokens in and 338 out, let all of them wait from the beginning, and give every system the same 12 GiB. For a model
# with 13 billion parameters that is

SLOTS = (12 << 30) // cache_cost("opt-13b").bytes_per_token
print(f"{SLOTS:,} slots")

chats = Synthetic(requests=300, prompt_mean=161, output_mean=338, max_len=2048, seed=1)
POLICIES = ["contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged"]
busy = Scenario(slots=SLOTS, max_len=2048, until="saturated")
runs = [run.summary for run in sweep(jobs_of(chats, busy, policy=POLICIES))]
print("policy                        tokens  at once")
for one in runs:
    print(f"{one.policy:28}{one.token_state_share:8.0%}{one.mean_running:9.1f}")

# %%
fig, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
left, look = np.zeros(len(runs)), {"edgecolor": "#333333", "linewidth": 0.5}
kinds = ("token_state", "reserved", "internal", "external")
for kind, colour in zip(kinds, ("#0072B2", "#56B4E9", "#E69F00", "#DDDDDD"), strict=True):
    share = np.array([getattr(one, kind + "_share") for one in runs])
    label = kind.replace("token_state", "token states")
    axes.barh([one.policy for one in runs], share, left=left, color=colour, label=label, **look)
    left += share
axes.invert_yaxis()
axes.set(xlabel="share of the pool, mean over all steps", xlim=(0, 1))
axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=4, frameon=False)
plt.show()

# %%
# Even an oracle that knows how long each request will get fills half of the pool: it keeps at once what is needed only
# at the end, and holes are left between the pieces. Paging does without either.
#
# Your own trace
# --------------
#
# A CSV file with the columns ``prompt_len`` and ``output_len`` is enough, with ``arrival`` in seconds if you have it.
# The published formats of Azure, BurstGPT, Mooncake and ShareGPT are read as they are (:doc:`/spec/trace`):
#
# .. code-block:: console
#
#    $ pagedref simulate mine.csv --model llama-3.1-8b --pool 40GiB --plot figures
#
# Without arrivals all requests wait at time 0; add ``--until saturated`` to stop counting when nobody waits any more,
# because a pool that nobody asks for is not wasted. How long a step takes is a stated model (:doc:`/spec/service`).
# Change it with ``--service`` when you know better; the shares of memory hardly move.
#
# Which page size
# ---------------
#
# The end of the last page is empty, half a page for each request in the mean. Small pages waste less and make tables
# longer:

for run in sweep(jobs_of(chats, busy, page_size=[1, 16, 128])):
    one = run.summary
    ends = one.reserved_share + one.internal_share
    print(f"pages of {one.page_size:3}: {ends:5.1%} empty ends")

# %%
# When memory runs short
# ----------------------
#
# The three answers of :ref:`tutorial-pressure`, on long prompts that arrive over time: a victim is computed again, is
# swapped, or is never needed because everything is set aside.

heavy = Synthetic(300, rate=4.0, prompt_mean=1000, output_mean=200, prompt_sigma=0.5, seed=4)
rules = {
    "recompute": {},
    "swap": {"preemption": "swap", "host_slots": 100_000},
    "all set aside": {"preemption": "none"},
    "watermark": {"watermark": 200},
}
print("                preemptions  at once  tokens/s")
for name, rule in rules.items():
    limits = Limits(token_budget=2048, preemption=rule.pop("preemption", "recompute"))
    one = replay(heavy, Scenario(slots=SLOTS, limits=limits, **rule)).summary
    speed = one.output_tokens_per_second
    print(f"{name:14}{one.preemptions:13}{one.mean_running:9.1f}{speed:10.0f}")

# %%
# More requests at once is not always better: what was computed for a victim may be lost. Look at all three columns.
#
# Shared beginnings
# -----------------
#
# If a trace names the pages of its prompts, as Mooncake's does, it can be asked what a prefix cache would find, at any
# size. Here 1,500 drawn prompts begin with one of 200 texts, some often and some rarely. For LRU, one pass gives the
# whole curve; *belady* is the best that any policy could do, because it knows the future.

prompts = Synthetic(1500, prompt_mean=600, prefixes=200, zipf=0.9, prefix_len=512, seed=3)
uses = page_uses(prompts, 16)
sizes = np.geomspace(100, 20_000, 40).astype(int)
curve = [one.token_hit_rate for one in lru_curve(uses, sizes)]
marks = [200, 1000, 4000]
best = [hit_rates(prompts, 16, size, "belady").token_hit_rate for size in marks]

fig, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.semilogx(sizes, curve, label="lru")
axes.semilogx(marks, best, "s", label="belady")
axes.set(xlabel="pages in the cache", ylabel="share of prompt tokens found", ylim=0)
axes.grid(alpha=0.3)
axes.legend()
plt.show()

# %%
# And on a trace of your own:
#
# .. code-block:: console
#
#    $ pagedref simulate trace.jsonl --page-size 512 --cache-pages 1000,10000 --eviction lru,belady
#
# The study that introduced paged attention is repeated in ``examples/published_study.py``, with the published numbers
# beside ours; :doc:`/gallery` has more of these figures.
#
# Exercises
# ---------
#
# 1. How many requests of 100 tokens fit into 15,728 slots with pages of 16, if nothing grows? Check with a trace of
#    equal requests.
# 2. ``contiguous-oracle`` keeps a third of the pool reserved. For which traffic would it not?
# 3. Replay the chats with ``Limits(preemption="none")``. What happens to the number at once, and why?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_11.py
#       :start-after: # Answers

assert last["contiguous-max"].token_states == 100 and last["contiguous-max"].internal == 3900
assert [one.token_state_share for one in runs] == sorted(one.token_state_share for one in runs)
assert runs[-1].token_state_share > 0.9
assert all(np.interp(size, sizes, curve) <= top + 1e-9 for size, top in zip(marks, best, strict=True))
