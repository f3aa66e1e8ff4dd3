"""What an engine is set up with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagedref.kv_format import KVFormat
from pagedref.memory._numbers import whole_number
from pagedref.models.draft import Speculation
from pagedref.models.fields import count, refuse
from pagedref.scheduling import Limits

__all__ = ["EngineConfig"]


@dataclass(frozen=True)
class EngineConfig:
    """Say how much memory an engine has, how much it does in a step, and what it does when memory runs short.

    Parameters
    ----------
    num_frames : int
        Frames of the pool, >= 1.
    page_size : int
        Positions in a page, >= 1.
    token_budget : int
        Tokens of a step: those that decode, and pieces of prompts in what they leave.
    max_running : int
        Sequences at once, at most `token_budget`; a request of several samples takes as many.
    watermark : int, optional
        Frames that an admission leaves free (S34), fewer than `num_frames`; by default a hundredth of them.
    preemption : {"recompute", "swap", "none"}
        What a victim loses (see `Limits`). Several samples would lose what they share by swapping, and groups of
        layers and pools on a device cannot be swapped: those are computed again.
    swap_frames : int, optional
        Pages that fit the host's memory beside the pool; by default as many as the pool has with ``"swap"``, else none.
    prefix_cache : bool
        Whether pages are kept and hit by other prompts (S28-S30).
    kv_format : KVFormat or str, optional
        How keys and values are stored (S17).
    deterministic : bool
        Whether outputs are equal to the bit whatever the batch, the page size, hits and preemptions: attention and
        matrix products in a fixed order, several times slower.
    speculation : Speculation, optional
        Guess tokens ahead by looking the last ones up in what is there, and check them in one step.
    poison : bool
        Fill freed frames with NaN: a read of something that is not live shows.

    Raises
    ------
    ContractError
        A number is out of range.
    """

    num_frames: int = 512
    page_size: int = 16
    token_budget: int = 512
    max_running: int = 32
    watermark: int | None = None
    preemption: Literal["recompute", "swap", "none"] = "recompute"
    swap_frames: int | None = None
    prefix_cache: bool = True
    kv_format: KVFormat | str | None = None
    deterministic: bool = False
    speculation: Speculation | None = None
    poison: bool = False

    def __post_init__(self) -> None:
        for name in ("num_frames", "page_size", "token_budget", "max_running"):
            object.__setattr__(self, name, count("EngineConfig", name, getattr(self, name)))
        watermark = self.num_frames // 100 if self.watermark is None else self.watermark
        watermark = whole_number("EngineConfig", "watermark", watermark, high=self.num_frames - 1)
        object.__setattr__(self, "watermark", watermark)
        swap_frames = self.num_frames * (self.preemption == "swap") if self.swap_frames is None else self.swap_frames
        swap_frames = whole_number("EngineConfig", "swap_frames", swap_frames, high=2**31 - 1)
        object.__setattr__(self, "swap_frames", swap_frames)
        for name in ("prefix_cache", "deterministic", "poison"):
            if not isinstance(getattr(self, name), bool):
                refuse("EngineConfig", name, "is no truth value", getattr(self, name), "True or False")
        if not isinstance(self.speculation, Speculation | None):
            refuse("EngineConfig", "speculation", "is none", self.speculation, "a Speculation, or None")
        _ = self.limits
        if self.speculation is not None and self.speculation.branches > 1:
            got = self.speculation.branches
            refuse("EngineConfig", "speculation", "has several drafts side by side", got, "branches=1 in an engine")

    @property
    def limits(self) -> Limits:
        """What the scheduler keeps to."""
        return Limits(self.token_budget, self.max_running, self.preemption)
