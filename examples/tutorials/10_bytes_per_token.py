"""
.. _tutorial-bytes:

10. Bytes per token
===================

*Paging wastes next to nothing, and memory is still full. Can a token be made smaller, and what do we lose with it?*

What a token takes is a product; the heads are those of keys and values:

.. code-block:: text

   layers x heads x (numbers of a key + numbers of a value) x bytes of a number

So there are few things to save on: the heads, the number of tokens that are kept, the numbers themselves, and the bytes
of each. Models have been built for each of the first three. The last one is ours to choose, and it has a price.
"""

import matplotlib.pyplot as plt
import numpy as np

import pagedref
from pagedref import CacheSpec
from pagedref.attention.quantize import dequantize, quantize
from pagedref.kv_format import NAMES, KVFormat
from pagedref.memory import KVManager
from pagedref.models.tiny_text import decode, encode
from pagedref.simulate import cache_cost

# %%
# Fewer heads, fewer tokens, fewer numbers
# ----------------------------------------
#
# These are the sizes of some published models, from their configurations, all in 16 bits. The last column is one text
# of 32,768 tokens; not every model can read one as long.

CONTEXT = 32_768
MODELS = ("opt-13b", "llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3")
print("model          layers  heads  window  bytes per token      GB")
for name in MODELS:
    cost = cache_cost(name)
    depth, first = sum(kind.number for kind, _ in cost.layers), cost.layers[0][0]
    size = cost.bytes_for(CONTEXT) / 1e9
    print(f"{name:14} {depth:6}  {first.heads:5}  {first.window or '':>6}  {cost.bytes_per_token:15,}  {size:6.2f}")

# %%
fig, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
lengths = [2**power for power in range(7, 16)]
for name in MODELS:
    sizes = [cache_cost(name).bytes_for(length) / 1e9 for length in lengths]
    axes.loglog(lengths, sizes, marker="o", markersize=3, label=name)
axes.set(xlabel="tokens", ylabel="GB for one text")
axes.grid(alpha=0.3)
axes.legend()
plt.show()

# %%
# **Grouped heads (GQA).** OPT has a head of keys for each head of queries. In Llama, Gemma and gpt-oss, a group of
# query heads shares one. Queries are not stored, so the cache shrinks by the size of the group. (And one read of a key
# serves all of them.)
#
# **Windows.** In some layers of Gemma and gpt-oss, a query sees only the last tokens, as many as the table says. What
# has left the window is never read again, and its frames go back to the pool. A **window** of 8 on a text of 40 tokens:

manager = KVManager(num_frames=12, page_size=4)
sequence = manager.add()
manager.reserve(sequence, 40)
manager.commit(sequence, 40)
print(manager.release_window(sequence, 8), "frames go back")
print("the table:", manager.block_table([sequence])[0])

# %%
# Half of the layers of gpt-oss stop growing at 128 tokens, and most of those of Gemma at 1,024: there its curve bends.
#
# **Latents (MLA).** DeepSeek does not store keys. It stores one short vector *c* for each token, the **latent**; a
# matrix for each head makes its key of it. To make the keys of all heads again for each query would be a lot of work,
# but it is not needed: the product of a query with a key is the product of *another* query with the latent.

rng = np.random.default_rng(0)
to_key = rng.standard_normal((8, 4))
latent, query = rng.standard_normal(4), rng.standard_normal(8)
print("query with key:       ", query @ (to_key @ latent))
print("new query with latent:", (to_key.T @ query) @ latent)

# %%
# So all heads read the same latents, and what looks like many heads to the model is one to the cache (S13).
#
# Fewer bits: a scale and what it covers
# --------------------------------------
#
# These three are decided when a model is built. How its numbers are stored is up to us. An integer of eight bits has
# 255 values, from -127 to 127. To store 0.5 in it, agree on a **scale**, divide by it before the write and multiply by
# it after the read (S16). The scale is chosen so that the largest number lands on 127:


def stored_and_read(numbers: np.ndarray, form: KVFormat) -> np.ndarray:
    """Return numbers as a cache of this format gives them back."""
    stored, scale, zero = quantize(numbers, form)
    return dequantize(stored, form, scale, zero).astype(float)


int8 = KVFormat.named("int8")
row = np.array([[0.5, -1.0, 0.25, 0.03]], np.float32)
print("small:           ", stored_and_read(row, int8).round(3))
row[0, 1] = -100
print("with a large one:", stored_and_read(row, int8).round(3))

# %%
# All numbers under one scale are rounded to steps of one size. So **the largest number sets the error of all others**:
# beside the hundred, the small ones are gone. That is why one asks what a scale covers. In ``int8`` it is one head of
# one token (S17). A float needs none: each number has an exponent of its own. (``e4m3fn`` and ``e5m2`` are floats of
# eight bits: four or five of exponent, three or two of fraction, and a sign.) With four bits there are fifteen steps,
# and one scale for 64 numbers is too coarse; ``int4`` has a scale for each group of 32, and a **zero point**, which
# moves the fifteen steps to where the numbers of the group are. Scales and zero points take memory too:

for name in NAMES:
    form = KVFormat.named(name, 64)
    print(f"{name:>13}: {form.bytes_per_token(1, 64):3} bytes for a head of 64")

# %%
# Any model takes a format by its name. The tiny one does not mind three quarters less:

model = pagedref.load_model("tiny")
ids = encode("the colour of heron is amber teal . what is the colour of heron ?")
for name in ("float32", "e4m3fn", "int8"):
    (answer,) = model.generate([ids], max_tokens=6, kv_format=name)
    text, size = decode(answer.token_ids), answer.memory.bytes_per_token
    print(f"{name:>7}: {size:5} bytes per token, {text}")

# %%
# Bytes against error
# -------------------
#
# What is lost must be measured. Here SmolLM2-135M-Instruct reads a story of 814 tokens that was written for this page,
# so it cannot know it. Every token is predicted from those before it. The **perplexity** is *e* to the mean surprise:
# 25 means that the model hesitates as if between 25 words at each step.
#
# .. study-chart:: ../quantised_caches.txt
#
# .. literalinclude:: /quantised_caches.txt
#    :language: text
#    :class: wide
#
# - *key error, value error*: root mean square of what rounding changes, relative to the keys or values of all layers.
# - *logit error*: the largest of all.
# - *change of perplexity*: against float32. Behind ± is its standard error over the tokens of this text: another text
#   of this length would give another number, about this far off.
# - *only keys, only values*: the same change where the other half of the cache stays float32.
# - *same next*: share of positions where the likeliest next token is that of float32.
# - *greedy*: tokens before the first that differs, in eight continuations of 32.
#
# ``python examples/quantised_caches.py smollm2 > docs/quantised_caches.txt`` prints the table again, in three minutes;
# the chart is drawn from it. With another model or another text the numbers are others.
#
# What the table says
# -------------------
#
# **Half the bytes cost nothing here.** float16 and bfloat16 change the perplexity by less than this text can tell.
#
# **A quarter costs about one per cent or less, and int8 is the closest.** Errors that are spread evenly over a step
# have a root mean square of that step over the root of 12. The script measured that the largest key of a head is 4.8
# times their root mean square, and the largest value 2.9 times. So the errors of int8 could have been foreseen:

print(f"keys {4.8 / 127 / 12**0.5:.2%}, values {2.9 / 127 / 12**0.5:.2%}")

# %%
# ``e4m3fn`` has three bits behind the leading one, so every number, large or small, is off by a few per cent. A scale
# does little for it, as its exponent already is one: no key here comes near 448, where it ends. Numbers that pass the
# end are cut off there (P33), and then a scale is needed.
#
# **Keys are harder than values.** Look at the last line: with four bits and one scale, keys alone change the perplexity
# by a quarter, and values alone hardly at all. Two things come together. The largest key of a head stands out more, and
# it is in the same channel (place in the vector) for nearly all tokens: some channels of keys are simply large, and the
# numbers beside them pay for it. Z. Liu et al. (*KIVI*, ICML 2024) saw the same in large models. And an error does
# different things. The output is a mean of values, and in a mean, errors cancel. A key goes into a score, and a score
# into an exponential: there an error moves weight from one token to another.
#
# **Groups and zero points buy back most of it.** ``int4`` halves the error of keys, for a third more bytes.
#
# **Greedy text parts early, and that alone means little.** Where two words are almost equally likely, the smallest
# error decides, and from there on the texts differ. *Same next*, which starts afresh at every token, says how often
# that is.
#
# And what this does not say: it is one small model and one short text. Run the script on yours.
#
# Exercises
# ---------
#
# 1. How many tokens of SmolLM2 fit into 1 GB in ``float32``, ``int8`` and ``int4``?
# 2. A head of 64 numbers between -1 and 1 is stored in ``int8``. One of them becomes 30. By how much does the error of
#    the others grow, with one scale for all and with groups of 32?
# 3. The tiny model loses every fact in ``int4``, although its keys are only -8, 0 and 8. Why?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_10.py
#       :start-after: # Answers

assert np.isclose(query @ (to_key @ latent), (to_key.T @ query) @ latent)
assert CacheSpec(40, 40, 128, 16, dtype="float16").bytes_per_token == cache_cost("opt-13b").bytes_per_token
assert cache_cost("llama-3.1-8b").layers[0][0].heads == 8
assert abs(stored_and_read(row, int8)[0, 2]) == 0
