"""What a replay assumes: how memory is given out, how large it is, who runs at once, and how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pagedref.errors import ContractError
from pagedref.memory import KVManager
from pagedref.memory._numbers import MAX_PAGE_SIZE, MAX_SLOTS, whole_number
from pagedref.memory.contiguous import PLACEMENTS, RESERVATIONS, make_space
from pagedref.memory.stores import HostStore
from pagedref.scheduling import Limits
from pagedref.simulate._beams import Beams
from pagedref.simulate._managed_memory import ManagedMemory
from pagedref.simulate._plain_memories import ContiguousMemory, CountedMemory
from pagedref.simulate.service import Service

__all__ = ["Scenario", "make_memory", "policy_names"]

USUAL_PLACE = {"max": "firstfit", "pow2": "buddy", "oracle": "firstfit"}


@dataclass(frozen=True)
class Scenario:
    """The assumptions of a replay.

    Parameters
    ----------
    slots : int
        Token slots of the pool; paged policies use whole frames of it.
    policy : str
        ``paged``, ``paged-N`` (pages of N whatever `page_size` says), or ``contiguous-RULE`` or
        ``contiguous-RULE-PLACE`` with the names of :mod:`pagedref.memory.contiguous`: rules max, pow2, oracle; places
        firstfit, bestfit, buddy (by default buddy for pow2, else firstfit).
    page_size : int
        Slots in a page.
    max_len : int, optional
        The longest request there may be; needed by contiguous policies, which refuse longer ones.
    eviction : str
        Which cached page is given up first, a name of :mod:`pagedref.memory.eviction`.
    sharing : bool
        Whether rows of a request share its prompt, and prompts hit cached pages if `names_per` is given.
    names_per : int, optional
        Tokens for which one name of a request's pages stands: the page size of the recording.
    samples : int
        Rows that each request decodes at once, independent of each other.
    beams : int
        Rows of a beam search in place of samples; needs `sharing`.
    window : int, optional
        Sliding window of all layers, in tokens.
    limits : Limits
        Token budget, rows at once, preemption: recompute, swap or none.
    watermark : int
        Frames that an admission leaves free.
    host_slots, disk_slots : int
        Room of the slower tiers in token slots, for preemption by swap.
    bytes_per_token : int
        Of the model; says how long a swap takes.
    service : Service
        How long a step takes.
    until : {"drained", "saturated"}
        Whether the run ends with the last request, or, not counting that step, when nobody waits any more.
    frame_map : bool
        Whether who holds which frame is recorded.
    seed : int
        Of the beams.

    Raises
    ------
    ContractError
        A value is out of range, or two do not go together.

    Examples
    --------
    >>> Scenario(slots=4096, policy="contiguous-pow2", max_len=2048).policy
    'contiguous-pow2-buddy'
    >>> Scenario(slots=4096, policy="paged-64").page_size
    64
    """

    slots: int
    policy: str = "paged"
    page_size: int = 16
    max_len: int | None = None
    eviction: str = "lru"
    sharing: bool = False
    names_per: int | None = None
    samples: int = 1
    beams: int = 1
    window: int | None = None
    limits: Limits = field(default_factory=Limits)
    watermark: int = 0
    host_slots: int = 0
    disk_slots: int = 0
    bytes_per_token: int = 819_200
    service: Service = field(default_factory=Service)
    until: Literal["drained", "saturated"] = "drained"
    frame_map: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("slots", 1, MAX_SLOTS), ("page_size", 1, MAX_PAGE_SIZE), ("samples", 1, 1024), ("beams", 1, 1024),
            ("watermark", 0, None), ("host_slots", 0, MAX_SLOTS), ("disk_slots", 0, MAX_SLOTS),
            ("bytes_per_token", 1, None), ("seed", 0, None),
        ):  # fmt: skip
            whole_number("Scenario", name, getattr(self, name), low=low, high=high)
        for name in ("max_len", "names_per", "window"):
            if getattr(self, name) is not None:
                whole_number("Scenario", name, getattr(self, name), low=1)
        if self.until not in ("drained", "saturated"):
            raise ContractError(f"Scenario: until is unknown, got {self.until!r}, need 'drained' or 'saturated'")
        kind, *rest = self.policy.split("-")
        if kind == "paged" and len(rest) < 2 and all(part.isdecimal() and int(part) > 0 for part in rest):
            object.__setattr__(self, "page_size", int(rest[0]) if rest else self.page_size)
            if self.slots < self.page_size:
                text = f"got {self.slots}, need at least one page of {self.page_size}"
                raise ContractError(f"Scenario: slots are too few, {text}")
            if self.watermark >= self.slots // self.page_size:
                text = f"got {self.watermark}, need fewer than the {self.slots // self.page_size} frames"
                raise ContractError(f"Scenario: watermark leaves nothing, {text}")
        elif kind == "contiguous" and rest and rest[0] in RESERVATIONS and len(rest) < 3:
            place = rest[1] if len(rest) == 2 else USUAL_PLACE[rest[0]]
            object.__setattr__(self, "policy", f"contiguous-{rest[0]}-{place}")
            make_space(place, 1)
            if self.max_len is None:
                text = f"got none for {self.policy}, need the longest request"
                raise ContractError(f"Scenario: max_len is missing, {text}")
            unfit = [name for name in ("sharing", "window", "watermark") if getattr(self, name)]
            if unfit:
                text = f"got {self.policy} with it, need a paged policy"
                raise ContractError(f"Scenario: {unfit[0]} does not go with contiguous memory, {text}")
        else:
            text = f"got {self.policy!r:.40}, need one of {', '.join(policy_names())}"
            raise ContractError(f"Scenario: policy is unknown, {text}")
        if self.beams > 1 and (not self.sharing or self.samples > 1):
            raise ContractError(f"Scenario: beams do not go alone, got {self.beams}, need sharing and one sample")
        if self.rows > 1 and self.names_per is not None and not self.sharing:
            raise ContractError("Scenario: names_per is of no use, got one without sharing, need sharing")

    @property
    def rows(self) -> int:
        """Rows that a request decodes at once."""
        return self.samples * self.beams


def policy_names() -> list[str]:
    """Return the names of policies.

    Returns
    -------
    list of str
    """
    return ["paged", "paged-N", *(f"contiguous-{rule}[-PLACE]" for rule in RESERVATIONS), *PLACEMENTS]


def make_memory(scenario: Scenario) -> ContiguousMemory | CountedMemory | ManagedMemory:
    """Return the empty memory of a scenario.

    Parameters
    ----------
    scenario : Scenario
        What is assumed.

    Returns
    -------
    memory
        One that fulfils :class:`pagedref.scheduling.Memory`.
    """
    kind, *rest = scenario.policy.split("-")
    if kind == "contiguous":
        assert scenario.max_len is not None
        return ContiguousMemory(make_space(rest[1], scenario.slots), rest[0], scenario.max_len, scenario.page_size)
    num_frames = scenario.slots // scenario.page_size
    swaps = scenario.limits.preemption == "swap"
    if not (scenario.sharing or scenario.window or swaps or scenario.frame_map):
        return CountedMemory(num_frames, scenario.page_size, scenario.watermark)
    tiers = [slots // scenario.page_size for slots in (scenario.host_slots, scenario.disk_slots)]
    return ManagedMemory(
        KVManager(num_frames, scenario.page_size, policy=scenario.eviction),
        share=scenario.sharing,
        names_per=scenario.names_per,
        window=scenario.window,
        watermark=scenario.watermark,
        beams=Beams(scenario.beams, scenario.seed) if scenario.beams > 1 else None,
        tiers=tuple(HostStore(pages, bytes_per_page=1) if pages else None for pages in tiers),
    )
