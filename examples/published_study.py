"""The study that introduced paged attention, repeated: OPT-13B, 12 GB for keys and values, at most 2,048 tokens.

Lengths are drawn, log-normal with the published means (ShareGPT 161 and 338 tokens, Alpaca 19 and 58) and a standard
deviation of 1 of their logarithms; all requests wait from the beginning, and what is counted ends when nobody waits any
more. Nothing is fitted to the published numbers, which stand in brackets. The baselines are Orca's: buddies in the
address space, and room for the maximum, for the next power of two, or (an oracle) for exactly the outputs to come.

Where ours differs: of the recorded lengths only the means are published, ours are drawn, and how lengths spread decides
how requests pack and how many whole pages of a prompt samples share. Which beams go on is chance here (see
pagedref.simulate.scenario), in the place of a model's probabilities, so what beams share differs most.
"""

from pagedref.scheduling import Limits
from pagedref.simulate import Job, Scenario, Synthetic, cache_cost, sweep

BYTES = cache_cost("opt-13b").bytes_per_token
SLOTS = (12 << 30) // BYTES
SHAREGPT = Synthetic(requests=1500, prompt_mean=161, output_mean=338, max_len=2048, seed=1)
ALPACA = Synthetic(requests=200, prompt_mean=19, output_mean=58, max_len=2048, seed=1)
PUBLISHED = {  # token states in percent, requests at once
    "contiguous-max-buddy": (20.4, 7.0),
    "contiguous-pow2-buddy": (26.8, 9.8),
    "contiguous-oracle-buddy": (38.2, 13.6),
    "paged": (96.3, 30.4),
}
ROWS = {2: (6.1, 37.6), 4: (8.5, 53.1), 6: (9.8, 55.2)}  # percent saved: samples, beams

limits = Limits(token_budget=2048)
jobs = [
    Job(SHAREGPT, Scenario(slots=SLOTS, policy=policy, max_len=2048, limits=limits, until="saturated"))
    for policy in PUBLISHED
]
shares, concurrent = {}, {}
print(f"{BYTES:,} bytes a token, {SLOTS:,} slots; {SHAREGPT.requests:,} requests; in brackets the published numbers\n")
print(f"{'policy':24}{'token states':>16}{'reserved':>10}{'internal':>10}{'external':>10}{'at once':>15}")
for run in sweep(jobs):
    one = run.summary
    share, at_once = PUBLISHED[one.policy]
    shares[one.policy], concurrent[one.policy] = one.token_state_share, one.mean_running
    print(
        f"{one.policy:24}{one.token_state_share:>8.1%} ({share:4} %)".ljust(42)
        + f"{one.reserved_share:>8.1%}{one.internal_share:>10.1%}{one.external_share:>10.1%}"
        + f"{one.mean_running:>8.1f} ({at_once:4})"
    )
    if one.policy == "paged":
        unused = one.reserved_share + one.internal_share
        print(f"\npaged: {unused:.1%} of the pool is unused ends of pages, {one.external_share:.1%} is free frames")

print(f"\n{'Alpaca, rows':24}{'samples save':>20}{'beams save':>20}")
saved = {}
for rows, (samples, beams) in ROWS.items():
    scenario = Scenario(slots=SLOTS, limits=limits, sharing=True)
    for kind in ("samples", "beams"):
        run = Job(ALPACA, Scenario(**{**vars(scenario), kind: rows}))()
        saved[kind, rows] = run.summary.shared_share
    print(f"{rows:<24}{saved['samples', rows]:>12.1%} ({samples} %){saved['beams', rows]:>12.1%} ({beams} %)")

order = list(PUBLISHED)
assert [shares[policy] for policy in order] == sorted(shares.values())
assert [concurrent[policy] for policy in order] == sorted(concurrent.values())
assert unused < 0.04 and 1 - shares["paged"] < 0.04
assert all(saved["beams", rows] > saved["samples", rows] > 0 for rows in ROWS)
