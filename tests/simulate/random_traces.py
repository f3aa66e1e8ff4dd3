"""Small random traces and scenarios for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pagedref.scheduling import Limits
from pagedref.simulate import UNIT, Request, Scenario, Service

POLICIES = ["paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle-bestfit", "contiguous-oracle-buddy"]
PAGE = 4  # of the recording


@st.composite
def requests(draw: Any, *, named: bool = False, most: int = 12) -> list[Request]:
    """Draw a trace: arrivals in order, short prompts, names that are prefixes."""
    arrivals = sorted(draw(st.lists(st.integers(0, 60), min_size=1, max_size=most)))
    found = []
    for arrival in arrivals:
        prompt, output = draw(st.integers(1, 14)), draw(st.integers(1, 9))
        pages: tuple[int, ...] = ()
        if named:
            path = draw(st.lists(st.integers(0, 1), min_size=4, max_size=4))
            names = [int("1" + "".join(map(str, path[: n + 1])), 2) << 40 for n in range(4)]
            pages = tuple(names[: -(-prompt // PAGE)])
        found.append(Request(arrival * 10**9, prompt, output, pages))
    return found


@st.composite
def scenarios(draw: Any, *, policies: list[str] = POLICIES, **fixed: Any) -> Scenario:
    """Draw a scenario in which requests of those traces fit, mostly."""
    limits = fixed.pop("limits", None) or draw(
        st.builds(
            Limits,
            token_budget=st.sampled_from([None, 5, 16]),
            max_running=st.sampled_from([None, 3]),
            preemption=st.sampled_from(["recompute", "none"]),
        )
    )
    given: dict[str, Any] = {
        "slots": draw(st.integers(24, 80)),
        "policy": draw(st.sampled_from(policies)),
        "page_size": draw(st.sampled_from([1, 2, 3, 4, 7])),
        "max_len": 24,
        "limits": limits,
        "service": draw(st.sampled_from([UNIT, Service(), Service(step=10**9, token=3 * 10**8, cached=10**7)])),
        "until": draw(st.sampled_from(["drained", "saturated"])),
    }
    return Scenario(**(given | fixed))
