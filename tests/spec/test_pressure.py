"""Admission, watermark and victims (S34; P41, P53)."""

from __future__ import annotations

import numpy as np
import pytest

from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory import KVManager, pressure
from pagedref.memory.pressure import Claim, Need, choose_victims, largest_need, refuse_if_never
from tests.spec.cache_machine import full_state


def p53_never_fits() -> None:
    """4 pages of 4: 20 tokens are refused with the numbers, 16 and one generated fit, 17 do not, 4 do."""
    for prompt, fits in ((20, False), (16, True), (17, False), (4, True)):
        if fits:
            refuse_if_never(prompt, 1, 4, 4)
        else:
            with pytest.raises(ContractError, match=rf"admit: .* got 5 pages \({prompt} \+ 1 tokens\), need at most 4"):
                refuse_if_never(prompt, 1, 4, 4)
    with pytest.raises(ContractError, match=r"need at most 3 \(4 - 1 frames\)"):
        refuse_if_never(16, 1, 4, 4, watermark=1)


def test_p53() -> None:
    p53_never_fits()


@pytest.mark.parametrize("wrong", [lambda p, m, s: -(-(p + m) // s), lambda p, m, s: p // s])
def test_p53_catches(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "largest_need", wrong)
    with pytest.raises((AssertionError, ContractError, pytest.fail.Exception)):
        p53_never_fits()


def test_a_pool_serves_the_largest_request_that_is_not_refused() -> None:
    made = KVManager(4, 4)
    refuse_if_never(13, 4, 4, 4)
    a = made.admit(np.arange(13)).seq_id
    made.commit(a, 13)
    for token in range(3):
        made.reserve(a, 1)
        made.commit(a, 1, [token])
    assert largest_need(13, 4, 4) == made.stats().held == 4
    made.audit()


def test_the_watermark_is_for_those_that_run() -> None:
    made = KVManager(6, 2)
    a = made.admit([1, 2, 3], watermark=2).seq_id
    made.commit(a, 3)
    assert made.need([4, 5, 6, 7, 8], watermark=2) == Need(new=3, revived=0, available=4, watermark=2)
    before = full_state(made)
    with pytest.raises(OutOfFrames, match=r"got 5 \(3 new, 0 cached hits, 2 to be left\), need at most 4"):
        made.admit([4, 5, 6, 7, 8], watermark=2)
    assert full_state(made) == before
    b = made.admit([4, 5, 6, 7, 8], 4, watermark=2).seq_id
    assert made.reserved(b).tolist() == [4], "what it needs now"
    made.commit(b, 4)
    made.reserve(a, 5)
    made.audit()


def test_victims() -> None:
    made = KVManager(12, 1)
    ids = []
    for prompt in ([1, 2], [1, 3], [7], [8, 9]):
        ids.append(made.admit(prompt).seq_id)
        made.commit(ids[-1], made.reserved(ids[-1]))
    a, b, c, d = ids
    assert made.frames_released_by(b) == 1, "the other page is that of a, too"
    assert made.preemption(1, ids) == [d]
    assert made.preemption(99, ids) == [d, c, b], "never the oldest"
    assert made.preemption(2, ids, [1, 0, 0, 1]) == [c, b]
    assert made.preemption(99, ids, [0, 0, 0, 1]) == [c, b, a], "never the oldest of the highest class"
    made.pin(c)
    assert made.preemption(99, ids) == [d, b]
    assert choose_victims([], 1) == choose_victims([Claim(0, 0, 0.0, 9)], 1) == []
    made.audit()
