"""The duration of a step: whole nanoseconds that add up in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.simulate import UNIT, Request, Scenario, Service, replay


@given(
    st.integers(0, 10**9), st.integers(1, 10**7), st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**7)
)
def test_a_step_is_the_sum_of_its_parts(step: int, token: int, cached: int, computed: int, stored: int) -> None:
    service = Service(step=step, token=token, cached=cached)
    duration = service.duration(computed, stored)
    assert duration == step + token * computed + cached * stored and isinstance(duration, int)
    assert UNIT.duration(computed, stored) == 10**9


def test_the_time_of_a_run_by_hand() -> None:
    """A prompt of 3 and 2 outputs: step 1 reads 3 tokens and stores 3, step 2 computes 1 and stores 4."""
    service = Service(step=1000, token=10, cached=1)
    summary = replay([Request(0, 3, 2)], Scenario(slots=16, service=service)).summary
    assert round(summary.makespan * 1e9) == (1000 + 30 + 3) + (1000 + 10 + 4)
    assert round(summary.first_token_mean * 1e9) == 1033 and round(summary.latency_mean * 1e9) == 2047


def test_swapping_takes_its_time() -> None:
    assert Service(host_bandwidth=1e9, disk_bandwidth=1e8).moving(10, 5, 100) == 1000 + 5000


def test_refusals() -> None:
    with pytest.raises(ContractError, match="Service: token is wrong, got -1"):
        Service(token=-1)
    with pytest.raises(ContractError, match="Service: step is wrong, got 0 with token 0"):
        Service(step=0, token=0)
    with pytest.raises(ContractError, match="Service: disk_bandwidth is wrong, got 0"):
        Service(disk_bandwidth=0)
