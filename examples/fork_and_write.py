"""Fork and write: two futures of one past, seen through the block table and the memory report.

A sequence of ten tokens is forked three times. A fork copies no key and no value: the children share every frame. When
a child writes, only the page that it writes into is copied first, and only if somebody else still holds it (copy on
write). What the parent remembers never changes.
"""

import numpy as np

from pagedref import CacheSpec, PagedKVCache

PAGE_SIZE = 4
spec = CacheSpec(num_layers=1, num_kv_heads=1, head_dim=2, page_size=PAGE_SIZE)
cache = PagedKVCache(spec, num_frames=12, poison=True)


def write(sequence: int, numbers: list[float]) -> None:
    """Append one token for each number; all its keys and values are that number."""
    step = cache.begin([sequence], [len(numbers)])
    tokens = np.repeat(np.array(numbers, np.float32), 2).reshape(-1, 1, 2)  # (tokens, num_kv_heads, head_dim)
    cache.append(step, tokens, tokens)
    cache.commit(step)


def show(title: str, sequences: list[int]) -> list[list[int]]:
    """Print which frames the sequences have, and what they take together."""
    report = cache.memory_report()
    print(f"{title}: {report.num_pages} pages in {report.frames_held} frames, {report.bytes_held:,} bytes")
    table = cache.block_table(sequences).tolist()
    for sequence, row in zip(sequences, table, strict=True):
        frames = " ".join(f"{frame:>3}" for frame in row if frame >= 0)
        print(f"  sequence {sequence}, {cache.seq_len(sequence):>2} tokens, frames {frames}")
    return table


parent = cache.add()
write(parent, [float(n) for n in range(10)])  # two full pages and half of a third
before = show("one sequence", [parent])
remembered, _ = cache.gather(parent)

family = [parent, *(cache.fork(parent) for _ in range(3))]
forked = show("after three forks", family)
held_by_fork = cache.memory_report().frames_held

for n, child in enumerate(family[1:], start=1):
    write(child, [100.0 * n])  # each child goes another way, in the half-filled page
written = show("after each child wrote a token", family)
held = cache.memory_report().frames_held

write(parent, [10.0])  # the parent is the last holder of its page by now: it writes in place
in_place = show("after the parent wrote one too", family)
alone = sum(-(-cache.seq_len(sequence) // PAGE_SIZE) for sequence in family)
print(f"without sharing, the four would take {alone} frames")

after, _ = cache.gather(parent)
first_child, _ = cache.gather(family[1])
cache.free(family)
cache.audit()

assert forked == before * 4 and held_by_fork == 3, "a fork takes no frame"
assert [row[:2] for row in written] == [row[:2] for row in before * 4], "full pages stay shared"
assert len({row[2] for row in written}) == 4 and held == 6, "the written page has a copy for each writer"
assert in_place[0] == before[0], "the last holder writes in place"
assert (after[:10] == remembered).all() and after[10, 0, 0] == 10, "the past of the parent is what it was"
assert (first_child[:10] == remembered).all() and first_child[10, 0, 0] == 100
assert cache.memory_report().frames_held == 0, "everything came back"
