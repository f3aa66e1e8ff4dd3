"""Attention over pages, three ways: the formula, an online softmax of our own, and ``paged_decode``.

The keys of one sequence lie in pages, scattered over a pool full of NaN. The formula wants all scores at once. The
online softmax reads a page, keeps three numbers, and brings them to the new maximum when a larger score turns up. All
three agree, and how far they may differ is not a tolerance: the oracle computes it from the data.
"""

import numpy as np

from pagedref import addressing, dense_attention
from pagedref.attention import append_kv, paged_decode

TOKENS, PAGE_SIZE, DIM = 37, 8, 64
rng = np.random.default_rng(7)
q = 2 * rng.standard_normal(DIM, dtype=np.float32)
k, v = rng.standard_normal((2, TOKENS, DIM), dtype=np.float32)
sm_scale = 1 / np.sqrt(DIM)


def formula() -> np.ndarray:
    """All scores at once, in float64."""
    scores = sm_scale * (k.astype(float) @ q.astype(float))
    weights = np.exp(scores - scores.max())
    return weights @ v / weights.sum()


def online(k_cache: np.ndarray, v_cache: np.ndarray, frames: list[int]) -> np.ndarray:
    """One page at a time, in float32."""
    top, total, mean = np.float32(-np.inf), np.float32(0), np.zeros(DIM, np.float32)
    for page, frame in enumerate(frames):
        live = min(PAGE_SIZE, TOKENS - page * PAGE_SIZE)  # the rest of the last page was never written
        scores = k_cache[frame, :live, 0] @ (q * np.float32(sm_scale))
        new_top = max(top, scores.max())
        weights, rescale = np.exp(scores - new_top), np.exp(top - new_top)
        total = total * rescale + weights.sum()
        mean = mean * rescale + weights @ v_cache[frame, :live, 0]
        print(f"page {page} in frame {frame:2}: {live} keys, maximum {new_top:7.4f}, earlier sums times {rescale:.4f}")
        top = new_top
    return mean / total


# Five pages in any five of sixteen frames; everything else is NaN.
frames = rng.permutation(16)[: int(addressing.num_pages(TOKENS, PAGE_SIZE))]
k_cache, v_cache = np.full((2, 16, PAGE_SIZE, 1, DIM), np.nan, np.float32)
positions = np.arange(TOKENS)
slots = addressing.slot_of(
    frames[addressing.page_of(positions, PAGE_SIZE)], addressing.offset_of(positions, PAGE_SIZE), PAGE_SIZE
)
append_kv(k[:, None], v[:, None], k_cache, v_cache, slots)

by_hand = online(k_cache, v_cache, frames.tolist())
last = np.array([addressing.last_page_len(TOKENS, PAGE_SIZE)])
state = paged_decode(q[None, None], k_cache, v_cache, np.array([0, len(frames)]), frames, last)
oracle = dense_attention(q[None, None], k[:, None], v[:, None], with_bound=True)

bound = oracle.out_bound[0, 0]
used = {
    "online, by hand": (np.abs(by_hand - oracle.out[0, 0]) / bound).max(),
    "paged_decode": (np.abs(state.out[0, 0] - oracle.out[0, 0]) / bound).max(),
}
for name, fraction in used.items():
    print(f"{name:>16}: {fraction:.2%} of what float32 may be off")

# What one lost key would do: many times the bound.
lost = dense_attention(q[None, None], k[1:, None], v[1:, None])
beyond = (np.abs(lost.out[0, 0] - oracle.out[0, 0]) / bound).max()
print(f"{'one key lost':>16}: {beyond:,.0f} times the bound")

assert np.allclose(formula(), oracle.out[0, 0], rtol=1e-12)
assert max(used.values()) <= 1
assert beyond > 1
