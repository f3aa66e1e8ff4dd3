"""Answers to the exercises of tutorial 2."""

from pagedref.memory.contiguous import make_space

# Answers
# 1. None: every hole that opens is filled exactly by the next request.
space = make_space("firstfit", 1000)
starts = [space.alloc(100) for _ in range(10)]
space.free(starts[3])
assert space.alloc(100) == starts[3] and space.num_allocated == 1000

# 2. Holes are powers of two as well, and two neighbours join again, so they fit one another. But 65 tokens get 128
#    slots.
buddies = make_space("buddy", 1024)
buddies.alloc(65)
assert buddies.num_allocated == 128

# 3. Three against 107: a request of 100 tokens takes seven pieces, 112 slots.
assert 12_000 // 4_000 == 3
assert 12_000 // 16 // 7 == 107
