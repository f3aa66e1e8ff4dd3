"""Events: every change tells of itself, once, and truly."""

from __future__ import annotations

from typing import Any

from pagedref.memory import KVManager
from pagedref.memory.events import Copied, Evicted, Freed, Hit, Published, Reserved, Shared, Swapped
from pagedref.memory.stores import HostStore


def test_a_life_in_events() -> None:
    events: list[Any] = []
    made = KVManager(4, 2, on_event=events.append)

    def news() -> list[Any]:
        told, events[:] = list(events), []
        return told

    a = made.admit([1, 2, 3]).seq_id
    assert news() == [Hit(a, 0, 3), Reserved((a,), (3,), (0, 1))]
    made.commit(a, 3)
    assert news() == [Published(a, 0, (0,))]
    b = made.fork(a)
    assert news() == [Shared(b, (0, 1))]
    made.reserve(b, 1)
    assert news() == [Reserved((b,), (1,), (2,)), Copied((1,), (2,))]
    made.free(a)
    assert news() == [Freed((a,), (1,))]
    made.free(b)
    assert news() == [Freed((b,), (2, 0))]
    c = made.admit([1, 2, 9]).seq_id
    assert news() == [Hit(c, 2, 3), Shared(c, (0,)), Reserved((c,), (1,), (2,))]
    made.rollback(c)
    news()
    store = HostStore(4, bytes_per_page=1)
    made.swap_done(made.swap_out(c, store))
    assert news() == [Swapped(c, True, (0,), (0,))]
    made.swap_done(made.swap_in(c))
    assert [type(event) for event in news()] == [Swapped]
    made.evict(4)
    assert news() == [Evicted((0,))]
    batch = made.batch([c])
    batch.step()
    assert [type(event) for event in news()] == [Reserved]
    made.audit()


def test_silence_costs_nothing_and_changes_nothing() -> None:
    made = KVManager(4, 2)
    made.commit(made.admit([1, 2, 3]).seq_id, 3)
    made.audit()
