"""Eviction policies (S31): each in its order, deepest first in every one, and never a frame in use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory import FIFO, LRU, Clock, EvictionPolicy, FrameAllocator, KVManager, Priority
from pagedref.memory._queue import FrameQueue
from pagedref.memory.eviction import make_policy

ALONE = np.array([-1])
POLICIES = ["lru", "fifo", "lfu", "clock", "s3fifo", "arc", "priority"]


def enter(policy: EvictionPolicy, *frames: int) -> None:
    for frame in frames:
        policy.enter(np.array([frame]), ALONE)


@given(st.data())
def test_the_queue_agrees_with_a_list(data: Any) -> None:
    n = data.draw(st.integers(1, 100))
    queue, model = FrameQueue(n), []
    for _ in range(data.draw(st.integers(0, 30))):
        outside = sorted(set(range(n)) - set(model))
        match data.draw(st.sampled_from(["push", "push", "remove", "pop", "back"])):
            case "push":
                frames = data.draw(st.permutations(outside))[: data.draw(st.integers(0, 60))]
                queue.push(np.array(frames, dtype=np.int64))
                model += frames
            case "remove":
                frames = data.draw(st.lists(st.sampled_from(model), unique=True)) if model else []
                queue.remove(np.array(frames, dtype=np.int64))
                model = [frame for frame in model if frame not in frames]
            case "pop":
                k = data.draw(st.integers(0, len(model)))
                assert queue.pop(k).tolist() == model[:k]
                model = model[k:]
            case "back":
                k = data.draw(st.integers(0, len(model)))
                keep = data.draw(st.integers(0, k))
                queue.push_front(queue.pop(k)[keep:])
                model = model[keep:]
        assert (len(queue), queue.frames().tolist()) == (len(model), model)
        assert [queue.holds(frame) for frame in range(n)] == [frame in model for frame in range(n)]
    assert queue.nbytes <= 4 * n + 5 * n + 4 * 64


def test_each_policy_has_its_order() -> None:
    expected = {name: [1, 2, 0] for name in POLICIES} | {"fifo": [0, 1, 2]}
    for name, order in expected.items():
        policy = make_policy(name, 8)
        enter(policy, 0, 1, 2)
        policy.hit(np.array([0]))
        policy.leave(np.array([0]))
        enter(policy, 0)
        assert policy.victims(3).tolist() == order, name
        assert len(policy) == 0
    clock = Clock(8)
    enter(clock, 0, 1, 2)
    clock.hit(np.array([0, 1]))
    assert clock.victims(3).tolist() == [2, 0, 1], "a set bit buys one more round, not more"


def test_what_has_gone_and_comes_again_is_kept_longer() -> None:
    """S3-FIFO and ARC know content by its name, whatever frame it is in."""
    expected = {"s3fifo": [1, 2, 0, 5], "arc": [1, 2, 5, 0]}  # ARC's balance has moved to what was used once
    for name, order in expected.items():
        policy: Any = make_policy(name, 8)
        policy.named(np.array([0, 1, 2]), np.array([70, 71, 72], dtype=np.uint64))
        enter(policy, 0, 1, 2)
        assert policy.victims(1).tolist() == [0]
        policy.named(np.array([0, 5]), np.array([99, 70], dtype=np.uint64))  # 70 comes again, in another frame
        enter(policy, 5, 0)
        assert policy.victims(4).tolist() == order, name


@pytest.mark.parametrize("name", ["s3fifo", "arc"])
def test_a_scan_does_not_push_out_what_is_hit(name: str) -> None:
    """One prompt that comes again and again, among many that come once, in a pool that LRU would empty of it."""
    hits = {}
    for policy in ("lru", name):
        manager = KVManager(12, 1, policy=policy)
        hits[policy] = 0
        for turn in range(40):
            for prompt in ([1, 2, 3], [1000 + 9 * turn + n for n in range(9)], [5000 + 9 * turn + n for n in range(9)]):
                admitted = manager.admit(prompt)
                hits[policy] += admitted.hit.num_tokens
                manager.commit(admitted.seq_id, manager.reserved(admitted.seq_id))
                manager.free(admitted.seq_id)
        manager.audit()
    assert hits[name] > hits["lru"]


def test_priority_and_time_to_live() -> None:
    time = [0.0]
    policy = Priority(8, clock=lambda: time[0])
    policy.grade([0], priority=2)
    policy.grade([1], priority=2, ttl=5.0)
    policy.grade([2], priority=-1)
    enter(policy, 0, 1, 2, 3)
    assert policy.victims(1).tolist() == [2]
    time[0] = 6.0
    assert policy.victims(3).tolist() == [1, 3, 0]
    with pytest.raises(ContractError, match="grade: priority is out of range, got 32768"):
        policy.grade([0], priority=2**15)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
def test_deepest_first(name: str, data: Any) -> None:
    """Chains come, are hit and extended, and go: never does a page go before one below it that is cached."""
    made = KVManager(10, 1, policy=name)
    for _ in range(data.draw(st.integers(1, 12))):
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
        try:
            seq_id = made.admit(prompt).seq_id
        except OutOfFrames:
            break
        made.commit(seq_id, made.reserved(seq_id))
        if data.draw(st.booleans()):
            made.free(seq_id)
        made.audit()
        made.evict(data.draw(st.integers(0, 2)))
        assert made._publisher is not None
        index = made._publisher.index
        alive = np.flatnonzero(index.alive())
        bare = [n for n in alive.tolist() if n and index.root_name(n) is None and index.first_frame[n] < 0]
        cached = set(made._frames.policy.frames().tolist())
        for node in bare:
            below = alive[index.parent[alive] == node]
            assert not {int(index.first_frame[child]) for child in below} & cached, "a page outlived the page above it"


@pytest.mark.parametrize("name", POLICIES)
def test_never_a_frame_in_use(name: str) -> None:
    made = KVManager(4, 1, policy=name)
    a = made.admit([1, 2]).seq_id
    made.commit(a, 2)
    b = made.admit([3, 4]).seq_id
    made.commit(b, 2)
    made.free(b)
    c = made.add()
    made.reserve(c, 2)
    with pytest.raises(OutOfFrames):
        made.reserve(c, 1)
    assert made.match_prefix([1, 2, 0]).num_tokens == 2
    assert made.match_prefix([3, 4, 0]).num_tokens == 0
    made.audit()


def test_free_frames_go_before_cached_ones() -> None:
    made = KVManager(3, 1)
    a = made.admit([1]).seq_id
    made.commit(a, 1)
    made.free(a)
    made.reserve(made.add(), 2)
    assert made.match_prefix([1, 0]).num_tokens == 1
    made.audit()


def test_a_policy_of_ones_own() -> None:
    class Newest(LRU):
        def victims(self, n: int) -> Any:
            frames = self._queue.frames()[::-1][:n]
            self.leave(frames)
            return frames

    made = KVManager(4, 1, policy=Newest)
    for token in (1, 2, 3):
        seq_id = made.admit([token]).seq_id
        made.commit(seq_id, 1)
        made.free(seq_id)
    made.evict(1)
    assert [made.match_prefix([token, 0]).num_tokens for token in (1, 2, 3)] == [1, 1, 0]
    made.audit()
    for wrong, text in (("mru", "policy is unknown, got 'mru'"), (3, "lacks a method"), (object, "lacks a method")):
        with pytest.raises((ContractError, TypeError), match=text if wrong is not object else ""):
            make_policy(wrong, 4)
    assert isinstance(make_policy(FIFO(4), 4), FIFO)


def test_the_pool_revives_and_forgets() -> None:
    pool = FrameAllocator(4)
    frames = pool.alloc(3)
    pool.keep(frames[:2])
    pool.free(frames[::-1])
    assert (pool.num_free, pool.num_held, pool.num_cached, pool.num_available) == (2, 0, 2, 4)
    assert repr(pool) == "FrameAllocator(num_frames=4, free=2, held=0, cached=2)"
    with pytest.raises(CorruptionError, match="revive: frame 2 has too few holders"):
        pool.revive([0, 2])
    pool.revive([0])
    pool.forget([1])
    assert (pool.num_free, pool.num_held, pool.num_cached) == (3, 1, 0)
    pool.audit()
    with pytest.raises(OutOfFrames, match="got 4, need at most 3"):
        pool.alloc(4)
    pool._kept[3] = True
    with pytest.raises(CorruptionError, match=r"\[3\] are kept and free at once"):
        pool.audit()
