"""
.. _tutorial-conform:

12. Test your kernel in five minutes
====================================

*I wrote a kernel for paged attention. On my prompt it gives the same words as before. Is it right?*

A prompt tries one length, one page size, one number of heads, and a kernel that is wrong at the end of a page still
writes good sentences. This tutorial takes a plausible kernel, finds out what is wrong with it, and mends it.
"""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np

from pagedref.conformance import make_case, oracle, run

# %%
# A kernel
# --------
#
# One query for each sequence, keys and values in pages. There may be fewer heads of keys and values, **kv heads**, than
# query heads: then several query heads share one. The arguments are those of :ref:`tutorial-attention`. It reads like
# the formula, and if the rest of the last page is zeros, it even passes a quick look.


def paged_decode(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, *, sm_scale=None):
    out = np.zeros((*q.shape[:2], v_cache.shape[3]), q.dtype)
    lse = np.zeros(q.shape[:2], np.float32)
    scale = q.shape[2] ** -0.5 if sm_scale is None else sm_scale
    for sequence in range(len(q)):
        pages = kv_indices[kv_indptr[sequence] : kv_indptr[sequence + 1]]
        keys, values = (cache[pages].reshape(-1, *cache.shape[2:]) for cache in (k_cache, v_cache))
        for head in range(q.shape[1]):
            kv_head = head % keys.shape[1]
            scores = keys[:, kv_head] @ q[sequence, head] * scale
            weights = np.exp(scores - scores.max())
            out[sequence, head] = weights @ values[:, kv_head] / weights.sum()
            lse[sequence, head] = scores.max() + np.log(weights.sum())
    return out, lse


# %%
# Ask
# ---
#
# Anything that has operations under their names will do as a backend: a module, an object, a namespace. From the shell
# the question is ``pagedref conform my_module:adapter``, and under pytest it is
# ``pytest --pagedref-backend my_module:adapter``. (Both need ``pip install "pagedref[conform]"``.)

verdict = run(SimpleNamespace(paged_decode=paged_decode), "my_module:adapter")
print(verdict.conclusion)
for named in verdict.named:
    print("-", named)
for hint in verdict.hints:
    print("-", hint)

# %%
# Three findings in two lines. The two of the first line are *recognised*: the suite calls the kernel with small inputs,
# **probes**, and among some hundred declared mistakes there is one pair whose numbers are those of the kernel in every
# probe. The third is an error, with the function that raised it. What the kernel does not offer (windows, sinks,
# prefill) is listed in the whole verdict, ``verdict.text()``, and is no fault.
#
# The smallest case that fails comes as a script, to be run under a debugger; ``my_module:adapter`` is your kernel:

print(verdict.script)

# %%
# Mend
# ----
#
# The last page has ``kv_last_page_len`` live tokens (rule S20). Query head *h* reads kv head ``h // group`` (S12). A
# row that sees no key has output 0 and lse minus infinity (S8).


def mended(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, *, sm_scale=None):
    out = np.zeros((*q.shape[:2], v_cache.shape[3]), q.dtype)
    lse = np.full(q.shape[:2], -np.inf, np.float32)
    scale = q.shape[2] ** -0.5 if sm_scale is None else sm_scale
    for sequence in range(len(q)):
        pages = kv_indices[kv_indptr[sequence] : kv_indptr[sequence + 1]]
        length = max(len(pages) - 1, 0) * k_cache.shape[1] + kv_last_page_len[sequence]
        keys, values = (cache[pages].reshape(-1, *cache.shape[2:])[:length] for cache in (k_cache, v_cache))
        for head in range(q.shape[1]) if length else ():
            kv_head = head // (q.shape[1] // keys.shape[1])
            scores = keys[:, kv_head] @ q[sequence, head] * scale
            weights = np.exp(scores - scores.max())
            out[sequence, head] = weights @ values[:, kv_head] / weights.sum()
            lse[sequence, head] = scores.max() + np.log(weights.sum())
    return out, lse


again = run(SimpleNamespace(paged_decode=mended), "my_module:adapter")
print(again.conclusion)

# %%
# Why this tolerance
# ------------------
#
# The judge is the **oracle**, the formula in float64. The mended kernel does not give its bits: it rounds. How far may
# it be off? A constant such as 1e-3
# would let the wrong kernel through where the numbers are small, and accuse a right one where they are large. So the
# oracle computes, for every single output, how much the roundings of float32 can add up to: the **bound**. It
# grows with the number of keys, with the size of scores and values, and with nothing else.

lengths = np.array([2, 8, 32, 128, 512, 2048])
errors, bounds = [], []
for length in lengths:
    case = make_case(12, [1], [int(length)], head_dim=16)
    exact, state = oracle(case), mended(case.q, *case.pages)
    errors.append(np.abs(state[0] - exact.out).max())
    bounds.append(exact.out_bound.max())

fig, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.loglog(lengths, bounds, "o-", label="bound")
axes.loglog(lengths, errors, "s--", label="error of the mended kernel")
axes.set(xlabel="keys", ylabel="largest in the output", title="What rounding may do, and what it does")
axes.legend()
plt.show()

# %%
# Beyond the bound is wrong, for certain. Within it a mistake could still hide, in long sums, where honest roundings
# cancel and the bound cannot count on that. The last thing in a verdict, the **alarm**, compares with what NumPy loses
# on the same numbers. (It listens to ``paged_prefill``, if nothing else is wrong; our kernel does not offer that.)
#
# Exercises
# ---------
#
# 1. Put back ``head % keys.shape[1]`` alone. What does the diagnosis say?
# 2. Shorten the scale to ``sm_scale or q.shape[2] ** -0.5``. Which call notices?
# 3. Return ``lse / np.log(2)``. Is that a mistake or a dialect?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_12.py
#       :start-after: # Answers

assert {name for named in verdict.named for name in named.names} == {"last_page_full", "kv_head_by_modulo"}
assert again.ok and not verdict.ok
assert all(error <= bound for error, bound in zip(errors, bounds, strict=True))
