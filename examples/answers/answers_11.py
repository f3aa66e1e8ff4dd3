"""Answers to the exercises of tutorial 11."""

from pagedref.scheduling import Limits
from pagedref.simulate import Scenario, Synthetic, replay

# Answers
# 1. 983 frames, seven for each request: 140. A prompt of 100 with one output never grows.
equal = Synthetic(requests=400, prompt_mean=100, output_mean=1, prompt_sigma=0, output_sigma=0)
assert 15_728 // 16 // 7 == 140
assert replay(equal, Scenario(slots=15_728)).summary.most_running == 140

# 2. For prompts with very short answers: what is reserved is room for tokens that will come.
short = Synthetic(requests=300, prompt_mean=161, output_mean=1, output_sigma=0, seed=1)
oracle = Scenario(slots=15_728, policy="contiguous-oracle", max_len=2048, until="saturated")
assert replay(short, oracle).summary.reserved_share < 0.01

# 3. It falls. Each request is let in only when all that it may ever need can be set aside, so what it does not need yet
#    stays empty, as with the oracle (but no piece has to be in one place).
chats = Synthetic(requests=300, prompt_mean=161, output_mean=338, seed=1)
counts = [
    replay(chats, Scenario(slots=15_728, limits=Limits(preemption=rule), until="saturated")).summary.mean_running
    for rule in ("recompute", "none")
]
assert counts[1] < 0.8 * counts[0]
