"""Scenarios: names of policies, what does not go together, and which memory is made."""

from __future__ import annotations

from typing import Any

import pytest

from pagedref.errors import ContractError
from pagedref.scheduling import Limits
from pagedref.simulate import Scenario
from pagedref.simulate._managed_memory import ManagedMemory
from pagedref.simulate._plain_memories import ContiguousMemory, CountedMemory
from pagedref.simulate.scenario import make_memory, policy_names


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"policy": "paged-8"}, CountedMemory),
        ({"policy": "contiguous-max"}, ContiguousMemory),
        ({"policy": "contiguous-oracle-bestfit"}, ContiguousMemory),
        ({"sharing": True}, ManagedMemory),
        ({"window": 8}, ManagedMemory),
        ({"frame_map": True}, ManagedMemory),
        ({"limits": Limits(preemption="swap"), "host_slots": 64}, ManagedMemory),
    ],
)
def test_the_memory_fits_the_scenario(given: dict[str, Any], kind: type) -> None:
    memory = make_memory(Scenario(slots=128, max_len=64, **given))
    assert type(memory) is kind and memory.num_slots == 128
    assert memory.waste() == (0, 0, 0, 128)


def test_names() -> None:
    assert Scenario(slots=64, policy="paged-4").page_size == 4
    assert Scenario(slots=64, policy="contiguous-max", max_len=9).policy == "contiguous-max-firstfit"
    assert Scenario(slots=64, policy="contiguous-pow2", max_len=9).policy == "contiguous-pow2-buddy"
    assert "paged" in policy_names()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": "paged-0"}, "policy is unknown, got 'paged-0'"),
        ({"policy": "contiguous"}, "policy is unknown"),
        ({"policy": "contiguous-max-worstfit", "max_len": 9}, "placement is unknown"),
        ({"policy": "contiguous-max"}, "max_len is missing"),
        ({"policy": "contiguous-max", "max_len": 9, "window": 4}, "window does not go with contiguous memory"),
        ({"slots": 0}, "slots is wrong, got 0"),
        ({"slots": 8}, "slots are too few, got 8, need at least one page of 16"),
        ({"page_size": 1.5}, "page_size is wrong"),
        ({"beams": 2}, "beams do not go alone"),
        ({"beams": 2, "samples": 2, "sharing": True}, "beams do not go alone"),
        ({"until": "never"}, "until is unknown"),
        ({"window": 0}, "window is wrong"),
        ({"watermark": 4}, "watermark leaves nothing, got 4, need fewer than the 4 frames"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        Scenario(**({"slots": 64} | given))


def test_an_unknown_eviction_is_refused_when_the_memory_is_made() -> None:
    with pytest.raises(ContractError, match="make_policy: policy is unknown, got 'mru'"):
        make_memory(Scenario(slots=64, sharing=True, eviction="mru"))
