"""Answers to the exercises of tutorial 1."""

from pagedref import CacheSpec

# Answers
# 1. One token costs twice as much, because it computes twice as many keys; the text, a sum over its tokens, four times:
cost = [sum(range(1, length + 1)) for length in (1000, 2000)]
assert 3.99 < cost[1] / cost[0] < 4.0

# 2. A token takes 819,200 bytes, so 14,648 tokens fit: seven conversations of 2,000.
spec = CacheSpec(num_layers=40, num_kv_heads=40, head_dim=128, page_size=16, dtype="float16")
assert 12_000_000_000 // spec.bytes_per_token == 14_648

# 3. The query of a token is used once, by the token itself. Nobody asks for it later: old keys and values are compared
#    with the query of the newest token only.
