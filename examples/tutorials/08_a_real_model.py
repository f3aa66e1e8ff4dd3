"""
.. _tutorial-model:

8. A real model
===============

*A model is asked a question and answers it. Where was each word in the meantime?*

Everything so far was built around attention. Here a whole model runs through it, and we look at each station: tokens,
pages, prefill, decode, and the bill. """

import textwrap

import matplotlib.pyplot as plt
import numpy as np

import pagedref
from pagedref.engine import Engine, EngineConfig
from pagedref.memory.snapshot import snapshot
from pagedref.models.hub import PUBLISHED, cache_directory
from pagedref.models.sampling import SamplingParams
from pagedref.plotting.pictures import draw_pool, draw_tables

# %%
# Which model
# -----------
#
# SmolLM2-135M-Instruct is a real one, small enough for a laptop; ``pagedref generate`` fetches it once. Where it has
# been fetched, this page runs it. Everywhere else it runs the tiny model of the package, which has learned to remember
# what it was told in a language of 256 words.

is_real = (cache_directory() / PUBLISHED["smollm2"].filename).exists()
model = pagedref.load_model("smollm2" if is_real else "tiny")
config = model.config
name = "SmolLM2-135M-Instruct" if is_real else "the tiny model of the package"
print("this page was made with", name)
print(f"{config.num_layers} layers, {config.num_kv_heads} heads of {config.head_dim} for keys and values")

# %%
# A model is a stack of layers like the one in :ref:`tutorial-cache`; each has its own keys and values. A token has the
# same slot in all of them. So one page table serves all layers, and a frame holds the keys and values of its tokens for
# the whole model.
#
# From text to tokens
# -------------------
#
# A **tokenizer** cuts a text into pieces that the model knows, its **vocabulary**, and numbers them. A model that was
# trained for chats expects some words around the question, its **chat template**:

question = "What is the capital of France?"
if not is_real:
    told = "the home of camel is barn cave . the colour of heron is amber teal . "
    question = told + "what is the colour of heron ?"
ids = model.encode(question)
pieces = [model.tokenizer.decode([token]) or "<>" for token in ids]  # signs that are no text
print(len(ids), "tokens")
print(textwrap.fill(" | ".join(repr(piece)[1:-1] for piece in pieces), 80))

# %%
# Prefill
# -------
#
# An empty cache, pages of 8, frames in scrambled order. A step begins by making room (``reserve`` and ``slots`` of
# :ref:`tutorial-pages`); the model runs, appending keys and values in each layer; then the step is committed.

cache = model.cache(num_frames=8, page_size=8, frame_order=[5, 2, 6, 0, 1, 3, 4, 7])
sequence = cache.add()
step = cache.begin([sequence], [len(ids)])
print("slots of the first ten tokens:", step.slot_mapping[:10])
logits = model.transformer.forward(cache, step, ids)  # (tokens, vocab_size)
cache.commit(step)
print("logits:", logits.shape)

# %%
# The result has a row for each token: a number for every token of the vocabulary, how well it fits as the next one.
# These are **logits**; their softmax is a probability. We need the last row only. What does the model expect?

last = logits[-1].astype(np.float64)
chances = np.exp(last - last.max()) / np.exp(last - last.max()).sum()
for token in np.argsort(-chances)[:4]:
    print(f"{chances[token]:6.1%} {model.tokenizer.decode([int(token)])!r}")

# %%
# Decode
# ------
#
# Take the best token, append it, ask again, until the model says that it is done. Always to take the best is called
# **greedy**. Each step computes one token; the keys of all others are read from their pages.

answer, held = [int(last.argmax())], [cache.memory_report().frames_held]
while answer[-1] not in config.eos_token_ids and len(answer) < 24:
    step = cache.begin([sequence], [1])
    answer.append(int(model.transformer.forward(cache, step, [answer[-1]])[0].argmax()))
    cache.commit(step)
    held.append(cache.memory_report().frames_held)
text = model.decode(answer)
print(text)

# %%
# And this is where each word was. The number at the left of a frame is its own; pages lie in it in scrambled order:

written = pieces + [model.tokenizer.decode([token]) for token in answer[:-1]]
words = [""] * (8 * 8)
slots = cache.manager.slot_mapping([sequence], 0, len(written))
for slot, word in zip(slots, written, strict=True):
    words[slot] = word.strip()
fig, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
draw_pool(axes, snapshot(cache.manager), words=words, columns=2)
plt.show()

# %%
# The table that finds them, page 0 first:

fig, axes = plt.subplots(figsize=(8, 5), layout="constrained")
draw_tables(axes, snapshot(cache.manager))
plt.show()

# %%
# The bill
# --------
#
# The last token of the answer was never stored: nobody asks for its key. What did memory cost, and what would it have
# cost to keep room for the longest text that the model can handle?

bill = cache.memory_report()
print(f"{bill.num_tokens} tokens of {bill.bytes_per_token:,} bytes each, in {bill.frames_held} frames")
print(f"held: {bill.bytes_held:,} bytes")
print(f"of it the empty end of the last page: {bill.bytes_wasted:,} bytes, {bill.waste:.1%}")
longest = config.max_model_len
print(f"room for {longest:,} tokens: {longest * bill.bytes_per_token:,} bytes")
print("frames held after each token:", held)

# %%
# The size of a page is a matter of memory, not of meaning. In pages of 1, 16 and 100 the answer is the same:

for page_size in (1, 16, 100):
    (again,) = model.generate([ids], 24, page_size=page_size)
    print(f"page_size {page_size:3}: {again.text}")

# %%
# Several at once
# ---------------
#
# The same question three times, in one engine. Each line is the pool after one step: a letter is a frame of that
# request, ``*`` one that several share, ``+`` a cached one, ``.`` a free one. ``pagedref generate --show-pages`` shows
# the same, live.

engine = Engine(model, EngineConfig(num_frames=32, page_size=4))


def signs() -> str:
    """Return one sign for each frame."""
    line = ""
    for frame in engine.frames():
        if frame.is_shared:
            line += "*"
        elif frame.holders:
            line += "ABC"[frame.holders[0][0]]
        else:
            line += "+" if frame.cached else "."
    return line


for _ in range(3):
    engine.add(ids, SamplingParams(max_tokens=24))
    engine.step()
    print(signs())
texts = {}
while engine.num_unfinished:
    for delta in engine.step():
        if delta.completion:
            texts[delta.request_id] = delta.completion.text
    print(signs())
print(*texts.values(), sep="\n")

# %%
# The second and the third found the pages of the first, all but the one with the last token of the prompt, so they
# hold very little of their own.
#
# Exercises
# ---------
#
# 1. Why has the prefill logits for all tokens, and why do we look at the last row only?
# 2. SmolLM2 takes 46,080 bytes for a token. How many conversations of 500 tokens fit into 1 GB, in pages of 16?
# 3. The answer has one token more than the cache has of it. Which, and why is it not missed?
#
# .. dropdown:: Answers
#
#    .. literalinclude:: /../examples/answers/answers_08.py
#       :start-after: # Answers

assert ("Paris" in text) if is_real else (text == "amber teal.")
assert bill.num_tokens == len(ids) + len(answer) - 1
assert set(texts.values()) == {text}
