"""Answers to the exercises of tutorial 7."""

from pagedref.addressing import num_pages

# Answers
# 1. A prompt is matched from its first page on, and stops at the first page that is missing. Without the first page all
#    others are useless; without the last one, all others still help.

# 2. Swapping: 46 MB out and 46 MB in take about five milliseconds. Reading takes half a second, a hundred times more.
#    (A GPU reads much faster, and then it is closer.)
swap = 2 * 1_000 * 46_080 / 20e9
read = 1_000 / 2_000
assert 0.0045 < swap < 0.0047
assert 105 < read / swap < 110

# 3. No. It may grow to 159 tokens, because the last one is never stored: ten frames, and nine may be used.
assert num_pages(100 + 60 - 1, 16) == 10 > 10 - 1
