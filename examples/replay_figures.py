"""Five figures of what paging buys, on traffic that is drawn: python examples/replay_figures.py [FOLDER].

With your own trace the command makes the same: pagedref simulate TRACE --plot FOLDER. Lengths are log-normal with the
means of ShareGPT, arrivals come in bursts, memory is 12 GiB of OPT-13B; for the prefix cache, prompts begin with one of
200 texts, popular ones more often than others. The pictures in the documentation were made by this script.
"""

import sys
from pathlib import Path

from pagedref.plotting import simulation
from pagedref.scheduling import Limits
from pagedref.simulate import Scenario, Summary, Synthetic, hit_rates, jobs_of, replay, sweep

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "figures")
POLICIES = ["contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged"]
scenario = Scenario(slots=15_728, max_len=2048, limits=Limits(token_budget=2048))

# Where the memory goes while there is more to do than fits, and who runs over time.
busy = Synthetic(requests=600, rate=4.0, burstiness=2.0, prompt_mean=161, output_mean=338, seed=1)
runs = sweep(jobs_of(busy, scenario, policy=POLICIES))
simulation.draw_concurrency(runs, folder)
full = Synthetic(requests=600, prompt_mean=161, output_mean=338, seed=1)
saturated = sweep(jobs_of(full, scenario, policy=POLICIES, until=["saturated"]))
simulation.draw_waste([run.summary for run in saturated], folder)

# The size of a page.
sizes = sweep(jobs_of(full, scenario, slots=[7_864, 15_728], page_size=[1, 8, 16, 32, 64, 128], until=["saturated"]))
simulation.draw_page_sizes([run.summary for run in sizes], folder)

# Who holds what, over time.
few = Synthetic(requests=90, rate=9.0, prompt_mean=161, output_mean=338, seed=2)
strips = [
    replay(few, Scenario(slots=8192, policy=policy, max_len=2048, limits=Limits(token_budget=2048), frame_map=True))
    for policy in ("contiguous-max", "paged")
]
simulation.draw_frames(strips, folder)

# What a prefix cache finds.
chats = Synthetic(requests=3000, prompt_mean=600, prefixes=200, zipf=0.9, prefix_len=512, page_size=16, seed=3)
marks = []
for name in ("fifo", "lfu", "s3fifo", "arc", "belady"):
    for capacity in (200, 500, 1000, 2000, 4000, 8000):
        counts = hit_rates(chats, 16, capacity, name)
        marks.append(Summary(eviction=name, slots=16 * capacity, token_hit_rate=counts.token_hit_rate))
simulation.draw_hits(chats, 16, marks, "request", folder)

for path in sorted(folder.glob("*.png")):
    print(f"drawn: {path}")
paged = saturated[-1].summary
print(f"paged: {paged.token_state_share:.1%} token states, {paged.mean_running:.1f} requests at once")

assert {path.stem for path in folder.glob("*.png")} == {"waste", "concurrency", "page_size", "frames", "hit_rate"}
assert all(run.summary.token_state_share < paged.token_state_share for run in saturated[:-1])
assert max(mark.token_hit_rate for mark in marks if mark.eviction == "fifo") <= marks[-1].token_hit_rate
