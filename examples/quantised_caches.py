"""What a smaller cache costs: one text, read with keys and values stored in every format, bytes against error.

``python examples/quantised_caches.py smollm2`` reads a page of English prose with SmolLM2-135M-Instruct (fetched once,
93 MB; three minutes). Without an argument the tiny model, which is shipped, reads a story in its own little language;
then only the answers to questions are scored, for nothing else in such a story can be foreseen.

Every token attends to what the cache gives back, its own key and value too, so what counts here is what a server would
see. The columns:

- bytes: one token in all layers, keys and values, with their scales and zero points;
- key error, value error: root mean square of what rounding changes, relative to that of the keys or values;
- logit error: the largest of all;
- perplexity: of the text, e to the mean surprise of a token; 1 would be a model that knows the text by heart;
- change: of the perplexity against float32, with the standard error of that change over the tokens of this text;
- only keys, only values: the same change where the other half of the cache stays float32;
- same next: share of positions where the likeliest next token is that of float32;
- greedy: tokens before the first that differs, in continuations of several pieces of the text.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import pagedref
from pagedref import attention
from pagedref.attention.quantize import dequantize, quantize
from pagedref.contract import OPERATIONS
from pagedref.kv_format import NAMES, KVFormat
from pagedref.models.tiny_text import encode, facts, story

PLAIN, PIECE, NEW = KVFormat(), 64, 32  # tokens read in a step, tokens of a continuation
rounding, seen, kept = {"k": PLAIN, "v": PLAIN}, [], []


def rounded(rows, form: KVFormat):
    """Return numbers as a cache of this format gives them back."""
    stored, scale, zero = quantize(rows, form)
    return dequantize(stored, form, scale, zero).astype(np.float32)


def append_kv(k, v, *slots, **stored) -> None:
    """Round keys or values on their way into the cache; the first time that the text is read, note them."""
    if len(k) and not kept:  # none at all when a new cache asks whether its backend has the format
        seen.append((k.copy(), v.copy()))
    attention.append_kv(rounded(k, rounding["k"]), rounded(v, rounding["v"]), *slots, **stored)


# A backend is any object with these operations: here NumPy's, but for one.
operations = {name: getattr(attention, name) for name in OPERATIONS} | {"append_kv": append_kv}
model = pagedref.load_model(*sys.argv[1:] or ["tiny"], SimpleNamespace(**operations))
if sys.argv[1:]:
    ids = model.encode(Path(__file__).with_suffix(".txt").read_text(), chat=False)
    scored, prompts = np.arange(len(ids) - 1), [ids[end - 100 : end] for end in range(100, len(ids), 100)]
else:
    tale = story(300, facts(12, seed=5), seed=300)
    ids, prompts, answers = encode(tale.text), [], []
    for fact in tale.facts:
        prompts.append(ids + encode(fact.question, bos=False))
        ids = prompts[-1] + list(fact.answer_ids)
        answers += range(len(prompts[-1]) - 1, len(ids) - 1)
    scored = np.array(answers)


def read(form: KVFormat):
    """Return the logits after every token, and how surprising each scored token was."""
    logits = model.logits(ids, kv_format=form, tokens_per_step=PIECE)  # (tokens, vocab)
    rows = logits[scored].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return logits, np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(rows)), np.asarray(ids)[scored + 1]]


def greedy(form: KVFormat) -> list[list[int]]:
    return [generation.token_ids for generation in model.generate(prompts, NEW, kv_format=form)]


def same(found: list[int], exact: list[int]) -> int:
    """Count the tokens before the first that differs."""
    return [*(a != b for a, b in zip(found, exact, strict=False)), True].index(True)


def error(side: int, form: KVFormat) -> float:
    lost = sum(np.square(rounded(pair[side], form) - pair[side], dtype=np.float64).sum() for pair in kept)
    return float(np.sqrt(lost / sum(np.square(pair[side], dtype=np.float64).sum() for pair in kept)))


def shape_of(side: int) -> str:
    """Say how large the numbers are, how far the largest of a head stands out, and how often in its usual channel."""
    # (layers, tokens, heads, head_dim)
    sizes = np.abs([np.concatenate([pair[side] for pair in kept[index::depth]]) for index in range(depth)])
    peak = np.median(sizes.max(axis=-1) / np.sqrt(np.square(sizes).mean(axis=-1)))
    alike = (sizes.argmax(axis=-1)[..., None] == np.arange(sizes.shape[-1])).mean(axis=1).max(axis=-1)
    common = f"in one channel for {np.median(alike):.0%} of tokens"
    return f"at most {sizes.max():.1f}; peak of a head {peak:.1f} times its root mean square, {common}"


def percent(share: float) -> str:
    return f"{round(share, 4) + 0.0:+.2%}" if share < 10 else ">1000%"


# The last has one scale for each head of a token, no groups and no zero point.
named = {name: KVFormat.named(name, model.config.head_dim) for name in NAMES}
forms = {**named, "int4, one scale": KVFormat("int4", "slot_head")}
exact, surprise = read(PLAIN)
kept += seen  # of every piece and layer
continued, table, depth = greedy(PLAIN), {}, model.config.num_layers
print(f"{len(ids)} tokens in pieces of {PIECE}, {len(scored)} of them scored; {len(prompts)} continuations")
print(f"keys    {shape_of(0)}\nvalues  {shape_of(1)}\n")
print("                 bytes    key  value logit  perp-    change of      only   only   same  greedy")
print("                        error  error error lexity   perplexity      keys values   next")
for name, form in forms.items():
    logits, found = read(form)
    change = [float(np.expm1((found - surprise).mean()))]
    for rounding["k"], rounding["v"] in ((form, PLAIN), (PLAIN, form)):
        change.append(float(np.expm1((read(PLAIN)[1] - surprise).mean())))
    rounding.update(k=PLAIN, v=PLAIN)
    size = model.transformer.cache_spec(16, form).bytes_per_token
    table[name] = size, error(0, form), error(1, form), *change
    print(
        f"{name:15} {size:6,} {table[name][1]:6.2%} {table[name][2]:6.2%} {np.abs(logits - exact).max():5.2f} "
        f"{np.exp(found.mean()):#6.5g} {percent(change[0]):>7} ±{np.std(found - surprise) / len(found) ** 0.5:5.2%} "
        f"{percent(change[1]):>7} {percent(change[2]):>6} {(logits.argmax(1) == exact.argmax(1)).mean():6.1%} "
        f"{sum(map(same, greedy(form), continued)):3}/{sum(map(len, continued))}"
    )

assert table["float32"][1:] == (0,) * 5, "float32 is what it is compared with"
assert table["float32"][0] == 2 * table["bfloat16"][0] == 4 * table["e4m3fn"][0], "half and a quarter of the bytes"
assert table["int4, one scale"][0] < table["int4"][0] < table["int8"][0], "scales are memory too"
assert max(table[name][3] for name in NAMES if name != "int4") < 0.03, "eight bits and more cost little"
assert table["int4"][4] > 2 * table["int4"][5], "keys are harder than values"
