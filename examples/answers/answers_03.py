"""Answers to the exercises of tutorial 3."""

from pagedref import addressing

# Answers
# 1. Page 37 // 16 = 2, offset 5, frame 7:
assert addressing.slot_of(7, 5, 16) == 7 * 16 + 5 == 117

# 2. Seven pages are 112 slots, of which 12 are empty; with one token to a page, none is:
pages = addressing.num_pages(100, 16)
assert pages == 7
assert f"{(16 * pages - 100) / (16 * pages):.1%}" == "10.7%"
assert addressing.num_pages(100, 1) * 1 - 100 == 0

# 3. The table has an entry for each page: 100 entries in place of 7, each looked up for every token that is written.
#    And memory is fastest when it is read in long runs: a page of 16 keys is one run, 16 pages are 16 short ones.
