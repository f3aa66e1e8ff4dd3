"""Requests drawn from stated distributions; see `Synthetic`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

import numpy as np

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number
from pagedref.simulate.trace import MAX_LEN, Request

__all__ = ["Synthetic"]

BATCH = 1024  # requests drawn at once
NANO = 10**9
OWN = 1 << 63  # names of pages that nobody shares


@dataclass(frozen=True)
class Synthetic:
    """A trace that is drawn and not recorded: the same each time it is iterated.

    Parameters
    ----------
    requests : int
        How many, >= 1.
    rate : float
        Arrivals per second in the mean; infinite: all at time 0.
    burstiness : float
        Standard deviation of the gaps between arrivals by their mean: 1 is a Poisson process, more comes in bursts
        (gamma distribution).
    prompt_mean, output_mean : float
        Mean lengths in tokens of log-normal distributions, before rounding and before longer ones are cut.
    prompt_sigma, output_sigma : float
        Standard deviations of the logarithms of the lengths; 0: all alike.
    max_len : int
        Prompt and output together are cut to this.
    prefixes : int
        Shared beginnings; a request has number k with a probability proportional to ``1 / k**zipf``. 0: none.
    zipf : float
        See there.
    prefix_len : int
        Tokens of each, cut to whole pages and to the prompt.
    page_size : int
        Tokens for which a name stands.
    seed : int
        Of the draws.

    Raises
    ------
    ContractError
        A number is out of range.

    Examples
    --------
    >>> trace = Synthetic(requests=2, rate=10.0, prompt_mean=100, output_mean=50, seed=1)
    >>> [request[:3] for request in trace] == [request[:3] for request in trace]
    True
    """

    requests: int
    rate: float = float("inf")
    burstiness: float = 1.0
    prompt_mean: float = 161.0
    output_mean: float = 338.0
    prompt_sigma: float = 1.0
    output_sigma: float = 1.0
    max_len: int = 2048
    prefixes: int = 0
    zipf: float = 1.0
    prefix_len: int = 512
    page_size: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("requests", 1), ("max_len", 2), ("prefixes", 0), ("prefix_len", 0), ("page_size", 1)):
            whole_number("Synthetic", name, getattr(self, name), low=low, high=MAX_LEN)
        whole_number("Synthetic", "seed", self.seed)
        for name in ("rate", "burstiness", "prompt_mean", "output_mean"):
            if not getattr(self, name) > 0:
                raise ContractError(f"Synthetic: {name} is wrong, got {getattr(self, name)}, need a number > 0")
        for name in ("prompt_sigma", "output_sigma", "zipf"):
            if not 0 <= getattr(self, name) < 100:
                raise ContractError(f"Synthetic: {name} is wrong, got {getattr(self, name)}, need a number in [0, 100)")

    @property
    def name(self) -> str:
        """What it is called in a report."""
        return "synthetic"

    def __iter__(self) -> Iterator[Request]:
        """Draw the requests, in order of arrival."""
        draws = np.random.default_rng(self.seed)
        weights = 1 / np.arange(1, self.prefixes + 1) ** self.zipf
        time = 0.0
        for first in range(0, self.requests, BATCH):
            count = min(BATCH, self.requests - first)
            shape = 1 / self.burstiness**2
            gaps = draws.gamma(shape, 1 / (shape * self.rate), count)
            times = time + np.cumsum(gaps)
            time = float(times[-1])
            lengths = []
            for mean, sigma in ((self.prompt_mean, self.prompt_sigma), (self.output_mean, self.output_sigma)):
                drawn = draws.lognormal(log(mean) - sigma**2 / 2, sigma, count)
                lengths.append(np.clip(np.rint(drawn), 1, self.max_len - 1).astype(np.int64))
            prompts = lengths[0]
            outputs = np.minimum(lengths[1], self.max_len - prompts)
            chosen = draws.choice(self.prefixes, count, p=weights / weights.sum()) if self.prefixes else None
            for at in range(count):
                prompt = int(prompts[at])
                pages = () if chosen is None else self._pages(first + at, prompt, int(chosen[at]))
                yield Request(round(times[at] * NANO), prompt, int(outputs[at]), pages)

    def _pages(self, number: int, prompt: int, prefix: int) -> tuple[int, ...]:
        """Name the pages of a prompt: whole ones of its prefix, then its own."""
        shared = min(self.prefix_len, prompt) // self.page_size
        total = -(-prompt // self.page_size)
        ours = [prefix << 32 | page for page in range(shared)]
        return (*ours, *(OWN | number << 31 | page for page in range(shared, total)))
