"""Answers to the exercises of tutorial 6."""

from pagedref.addressing import num_pages
from pagedref.memory import KVManager

# Answers
# 1. Page 0 is full. Keys and values of past tokens never change, so a full page is only read.

# 2. Of the prompt, 62 full pages are shared. Its last 8 tokens lie in a page that every writer must copy: each has 58
#    tokens of its own, in 4 pages. Together 862 frames, and 13,200 without sharing.
shared, own = 1000 // 16, num_pages(1000 % 16 + 50, 16)
assert shared + 200 * own == 862
assert 200 * num_pages(1050, 16) == 13_200

# 3. None from the changed page on. The key of a token depends on all tokens before it (through the layers of the
#    model), so a page is known by its tokens *and all before them*. With 4 to a page, token 3 is in page 0: nothing
#    is hit.
manager = KVManager(num_frames=8, page_size=4)
first, _, _ = manager.admit(list(range(12)))
manager.commit(first, 12)
changed = [0, 1, 2, 99, *range(4, 12)]
assert manager.match_prefix(changed).num_tokens == 0
assert manager.match_prefix([*range(8), 99, 9]).num_tokens == 8
