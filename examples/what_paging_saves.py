"""What paging saves: one request in a cache, contiguous against paged.

A contiguous cache reserves room for the longest request it may ever see, before it knows how long this one gets.
A paged cache takes one frame at a time, so it can waste no more than the rest of one page. The numbers are those of
SmolLM2-135M in float32 (30 layers, 3 key and value heads of 64); the last line counts what fits into the same memory.
"""

from pagedref.cache_spec import CacheSpec

ROOM = 4000  # tokens that a contiguous cache reserves for every request
PAGE_SIZE = 16
spec = CacheSpec(num_layers=30, num_kv_heads=3, head_dim=64, page_size=PAGE_SIZE)


def megabytes(num_tokens: int) -> str:
    """Write the bytes of some tokens in MB (1 MB = 1,000,000 bytes)."""
    return f"{num_tokens * spec.bytes_per_token / 1e6:,.1f} MB"


def waste(used: int, reserved: int) -> float:
    """Return the share of reserved tokens that hold nothing, in percent."""
    return 100 * (reserved - used) / reserved


print(f"| tokens in the request | contiguous, room for {ROOM:,} | wasted ", end="")
print(f"| paged, {PAGE_SIZE} a page | pages | wasted |")
print("|---:|---:|---:|---:|---:|---:|")
paged_waste = {}
for tokens in (10, 100, 500, 1000, 2000, 3990):
    pages = spec.num_pages(tokens)
    held = pages * PAGE_SIZE
    paged_waste[tokens] = waste(tokens, held)
    print(
        f"| {tokens:,} | {megabytes(ROOM)} | {waste(tokens, ROOM):.1f} % "
        f"| {megabytes(held)} | {pages} | {paged_waste[tokens]:.1f} % |"
    )

budget = 10 * ROOM  # the memory of ten contiguous reservations, in tokens
fit = budget // PAGE_SIZE // spec.num_pages(100)
print()
print(
    f"One token takes {spec.bytes_per_token:,} bytes. In the memory of {budget // ROOM} contiguous reservations "
    f"({megabytes(budget)}), paging holds {fit} requests of 100 tokens."
)

assert waste(100, ROOM) == 97.5
assert paged_waste[100] < 11
assert all(spec.num_pages(n) * PAGE_SIZE - n < PAGE_SIZE for n in range(1, ROOM + 1))
