"""Recall over thousands of tokens: the shipped model answers from its pages, and a spoiled page costs it the fact.

The tiny model was written by hand so that it can do nothing but look facts up. It is told forty facts in a story of
6,000 tokens and asked for some of them. Then one of its 375 pages is spoiled, as a frame that was given to somebody
else would be: the fact in it is gone, and every other one is still there.
"""

import numpy as np

import pagedref
from pagedref.addressing import num_pages, page_of
from pagedref.models.tiny_text import decode, encode, facts, story

PAGE_SIZE, LENGTH = 16, 6000
model = pagedref.load_model("tiny")
told = facts(40, seed=5)
tale = story(LENGTH, told, seed=5)
asked = [told[0], told[13], told[39]]

# Read the story once, into frames in random order.
frames = int(num_pages(LENGTH, PAGE_SIZE)) + 8
order = np.random.default_rng(0).permutation(frames)
cache = model.cache(frames, page_size=PAGE_SIZE, frame_order=order, poison=True)
past = cache.add()
ids = encode(tale.text)
for start in range(0, LENGTH, 500):
    piece = ids[start : start + 500]
    step = cache.begin([past], [len(piece)])
    model.transformer.forward(cache, step, piece, rows=[])
    cache.commit(step)


def ask(question: str) -> str:
    """Answer from a fork of the story: nothing of it is read again, and nothing of it is written."""
    sequence = cache.fork(past)
    tokens = new = encode(question, bos=False)
    answer: list[int] = []
    while not answer or (answer[-1] not in model.config.eos_token_ids and len(answer) < 8):
        step = cache.begin([sequence], [len(new)])
        logits = model.transformer.forward(cache, step, new, rows=[len(new) - 1])  # (1, vocab)
        cache.commit(step)
        new = [int(logits.argmax())]
        answer += new
    cache.free(sequence)
    print(f"  {question}  ->  {decode(answer)}   ({len(tokens)} tokens read)")
    return decode(answer)


report = cache.memory_report()
print(f"{report.num_tokens:,} tokens in {report.num_pages} pages of {PAGE_SIZE}, {report.bytes_held:,} bytes:")
right = [ask(fact.question) for fact in asked]

# Spoil one page: the one with the first word of the second answer, "the KIND of WHO is WORD", as layer 1 remembers it.
page = page_of(tale.positions[13] + 5, PAGE_SIZE)
spoiled = cache.block_table([past])[0, page]
_, values = cache.arrays(layer=1)
values[spoiled] *= -1
print(f"page {page} in frame {spoiled} spoiled, one of {report.num_pages}:")
wrong = [ask(fact.question) for fact in asked]
values[spoiled] *= -1
print("and restored:")
again = [ask(fact.question) for fact in asked]
cache.free(past)
cache.audit()

assert right == [fact.answer for fact in asked]
assert wrong[1] != right[1], "one spoiled page, one lost fact"
assert [wrong[0], wrong[2]] == [right[0], right[2]], "the others lie elsewhere"
assert again == right
