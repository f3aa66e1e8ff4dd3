"""What an engine has done, and where its memory is."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagedref.engine._request import Request
from pagedref.memory import KVManager

__all__ = ["EngineMetrics", "Meter"]


@dataclass(frozen=True)
class EngineMetrics:
    """Describe an engine at one moment; counts are since it was made.

    Attributes
    ----------
    steps : int
        Steps that ran.
    busy : float
        Seconds spent in them.
    prompt_tokens, output_tokens : int
        Tokens of prompts that were computed (again, after a preemption), and new tokens, each once.
    queued, running : int
        Requests in the queue now, and with memory now.
    finished : dict of str to int
        Requests by the reason of their first sample.
    recomputed, swapped : int
        Preemptions of either kind.
    requests_looked_up, tokens_looked_up, tokens_hit : int
        Of the prefix cache; `tokens_hit` need not be computed.
    drafted, accepted : int
        Guessed tokens, and those that came true.
    frames_free, frames_held, frames_cached, frames_peak : int
        Of the pool now, and the most that were held at once.
    first_token : tuple of float
        Seconds to the first token: mean and largest over requests that have one.
    """

    steps: int
    busy: float
    prompt_tokens: int
    output_tokens: int
    queued: int
    running: int
    finished: dict[str, int]
    recomputed: int
    swapped: int
    requests_looked_up: int
    tokens_looked_up: int
    tokens_hit: int
    drafted: int
    accepted: int
    frames_free: int
    frames_held: int
    frames_cached: int
    frames_peak: int
    first_token: tuple[float, float]

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of work."""
        return self.output_tokens / self.busy if self.busy else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the looked-up prompt tokens that were found, 0 to 1."""
        return self.tokens_hit / self.tokens_looked_up if self.tokens_looked_up else 0.0


@dataclass
class Meter:
    """Count while an engine runs."""

    steps: int = 0
    busy: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    recomputed: int = 0
    swapped: int = 0
    drafted: int = 0
    accepted: int = 0
    frames_peak: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    first_tokens: int = 0
    first_sum: float = 0.0
    first_most: float = 0.0

    def first_token(self, seconds: float) -> None:
        """Take note of the first token of a request."""
        self.first_tokens += 1
        self.first_sum += seconds
        self.first_most = max(self.first_most, seconds)

    def ended(self, request: Request) -> None:
        """Take note of the end of a request."""
        reason = request.branches[0].reason or "error"
        self.finished[reason] = self.finished.get(reason, 0) + 1

    def read(self, manager: KVManager, queued: int, running: int) -> EngineMetrics:
        """Return everything as it is now."""
        stats, available = manager.prefix_stats, manager.num_available
        return EngineMetrics(
            steps=self.steps,
            busy=self.busy,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            queued=queued,
            running=running,
            finished=dict(self.finished),
            recomputed=self.recomputed,
            swapped=self.swapped,
            requests_looked_up=stats.requests,
            tokens_looked_up=stats.queried,
            tokens_hit=stats.hit_tokens,
            drafted=self.drafted,
            accepted=self.accepted,
            frames_free=manager.num_free,
            frames_held=manager.num_frames - available,
            frames_cached=available - manager.num_free,
            frames_peak=self.frames_peak,
            first_token=(self.first_sum / self.first_tokens if self.first_tokens else 0.0, self.first_most),
        )
