"""FrameAllocator: free list and counts (S25, S26), against a model of plain lists."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.memory import PRESENT, FrameAllocator, PageTable


def state(allocator: FrameAllocator) -> tuple[list[int], list[int]]:
    return allocator.refcount.tolist(), allocator._stack[: allocator._top].tolist()


@given(st.data())
def test_every_operation_agrees_with_lists(data: Any) -> None:
    num_frames = data.draw(st.integers(1, 8))
    order = data.draw(st.permutations(range(num_frames)))
    allocator = FrameAllocator(num_frames, frame_order=np.array(order))
    free, counts = order[::-1], Counter()
    for _ in range(data.draw(st.integers(0, 15))):
        before = state(allocator)
        match data.draw(st.sampled_from(["alloc", "share", "free"])):
            case "alloc":
                n = data.draw(st.integers(0, 4))
                if n > len(free):
                    with pytest.raises(OutOfFrames) as caught:
                        allocator.alloc(n)
                    assert (caught.value.needed, caught.value.available) == (n, len(free))
                    assert state(allocator) == before
                    continue
                taken = allocator.alloc(n)
                assert taken.dtype == np.int64
                assert taken.tolist() == [free.pop() for _ in range(n)]
                counts.update(taken.tolist())
            case "share":
                frames = data.draw(st.lists(st.integers(0, num_frames - 1), max_size=4))
                if any(not counts[frame] for frame in frames):
                    with pytest.raises(CorruptionError):
                        allocator.share(frames)
                    assert state(allocator) == before
                    continue
                allocator.share(frames)
                counts.update(frames)
            case "free":
                frames = data.draw(st.lists(st.integers(0, num_frames - 1), max_size=5))
                if any(counts[frame] < times for frame, times in Counter(frames).items()):
                    with pytest.raises(CorruptionError):
                        allocator.free(frames)
                    assert state(allocator) == before
                    continue
                counts.subtract(frames)
                gone = [f for i, f in enumerate(frames) if not counts[f] and f not in frames[i + 1 :]]
                assert allocator.free(np.array(frames, dtype=np.int32)).tolist() == gone
                free += gone
        allocator.audit()
        assert state(allocator) == ([counts[frame] for frame in range(num_frames)], free)
        assert allocator.num_free + allocator.num_held + allocator.num_cached == num_frames


def test_freed_last_is_handed_out_first() -> None:
    allocator = FrameAllocator(6)
    frames = allocator.alloc(4)
    before = state(allocator)
    more = allocator.alloc(2)
    allocator.free(more[::-1])
    assert state(allocator) == before, "giving back in reverse restores every bit"
    allocator.free(frames[::-1])
    assert allocator.alloc(6).tolist() == [0, 1, 2, 3, 4, 5]
    allocator.audit()


def test_p48_a_new_frame_has_one_holder() -> None:
    allocator = FrameAllocator(2)
    assert allocator.refcount[allocator.alloc(2)].tolist() == [1, 1]
    assert allocator.free([0, 1]).tolist() == [0, 1]
    assert allocator.refcount.tolist() == [0, 0]
    allocator.audit()


def test_double_free_changes_nothing() -> None:
    allocator = FrameAllocator(4)
    allocator.alloc(3)
    allocator.share([1])
    before = state(allocator)
    for frames in ([3], [0, 0], [1, 1, 1], [2, 1, 1, 1], [0, 3, 2]):
        with pytest.raises(CorruptionError, match=r"free: frame \d has too few holders, got \d, need one holder"):
            allocator.free(frames)
        assert state(allocator) == before
    for frames in ([-1], [4], [0, 99]):
        with pytest.raises(CorruptionError, match="none of the pool"):
            allocator.free(frames)
        with pytest.raises(CorruptionError, match="none of the pool"):
            allocator.share(frames)
    with pytest.raises(CorruptionError, match="share: frame 3 has too few holders, got 0, need a holder"):
        allocator.share([0, 3])
    assert state(allocator) == before
    allocator.audit()


def test_one_call_may_let_go_of_a_frame_twice() -> None:
    allocator = FrameAllocator(3)
    allocator.alloc(3)
    allocator.share([1])
    assert allocator.free([1, 0, 1, 2]).tolist() == [0, 1, 2]
    assert allocator.alloc(3).tolist() == [2, 1, 0]
    allocator.audit()


def test_wrong_arguments() -> None:
    wrong: Any
    for wrong in (0, -1, 2**31, 1.5, True, "8"):
        with pytest.raises(ContractError, match="FrameAllocator: num_frames is out of range"):
            FrameAllocator(wrong)
    for order in ([0, 0, 1], [0, 1], [0, 1, 2, 2], []):
        with pytest.raises(ContractError, match="frame_order is no permutation"):
            FrameAllocator(3, frame_order=order)
    with pytest.raises(ContractError, match="frame_order is out of range, got 3"):
        FrameAllocator(3, frame_order=[1, 2, 3])
    allocator = FrameAllocator(3)
    for wrong in (-1, 1.0, None, True):
        with pytest.raises(ContractError, match="alloc: n is wrong"):
            allocator.alloc(wrong)
    with pytest.raises(ContractError, match="free: frames has the wrong dtype"):
        allocator.free([0.5])
    allocator.audit()


def test_the_counts_are_seen_but_not_written() -> None:
    allocator = FrameAllocator(3)
    with pytest.raises(ValueError, match="read-only"):
        allocator.refcount[0] = 1
    allocator.alloc(1)
    assert repr(allocator) == "FrameAllocator(num_frames=3, free=2, held=1)"


def test_the_audit_names_what_is_wrong() -> None:
    def broken(tamper: Any) -> FrameAllocator:
        allocator = FrameAllocator(5)
        allocator.alloc(2)
        tamper(allocator)
        return allocator

    faults = {
        "frames \\[0\\] are lost": lambda a: a._refcount.__setitem__(0, 0),
        "frames \\[4\\] are free and held at once": lambda a: a._refcount.__setitem__(4, 1),
        "frames \\[1\\] have a count below zero": lambda a: a._refcount.__setitem__(1, -1),
        "frames \\[4\\] are in the free list more than once": lambda a: a._stack.__setitem__(1, 4),
        "none of the pool": lambda a: a._stack.__setitem__(0, 5),
        "!= 5 frames": lambda a: setattr(a, "_top", 2),
    }
    for text, tamper in faults.items():
        with pytest.raises(CorruptionError, match=text):
            broken(tamper).audit()


class CountsFrames:
    """How a fork and a free count the holders of a table: per entry on both sides, as the specification has it."""

    @staticmethod
    def fork(allocator: FrameAllocator, table: PageTable) -> PageTable:
        child = table.fork()
        allocator.share(child.frames())
        return child

    @staticmethod
    def free(allocator: FrameAllocator, table: PageTable) -> None:
        allocator.free(table.unmap(np.arange(table.num_pages)[::-1]))


class CountsDistinctFramesOnFork(CountsFrames):
    """A mutant: one holder for each frame on a fork, one for each entry on a free."""

    @staticmethod
    def fork(allocator: FrameAllocator, table: PageTable) -> PageTable:
        child = table.fork()
        allocator.share(np.unique(child.frames()))
        return child


def ring(way: type[CountsFrames]) -> FrameAllocator:
    """P38: page 1, window 2, table [0, 1, 0, 1]; fork; both append over a copy; free both."""
    allocator = FrameAllocator(8)
    parent = PageTable(page_size=1)
    frames = allocator.alloc(2)
    allocator.share(frames)
    parent.map([0, 1, 2, 3], [*frames, *frames], PRESENT)
    child = way.fork(allocator, parent)
    for table in (parent, child):
        for page in (0, 2):  # the ring's next frame is written: a copy, at both of its places
            allocator.free(table.unmap(page))
        copy = allocator.alloc(1)
        allocator.share(copy)
        table.map([0, 2], [*copy, *copy])
    way.free(allocator, parent)
    way.free(allocator, child)
    return allocator


def test_p38_fork_of_a_ring() -> None:
    allocator = ring(CountsFrames)
    assert allocator.num_free == 8
    assert not allocator.refcount.any()
    allocator.audit()
    with pytest.raises(CorruptionError, match="double free"):
        ring(CountsDistinctFramesOnFork)


def test_counts_do_not_cost_by_pool_size() -> None:
    """The same calls on pools of a hundred and of a million frames touch the same, and a frame costs 12 bytes."""
    small, large = FrameAllocator(100), FrameAllocator(1_000_000)
    for allocator in (small, large):
        frames = allocator.alloc(64)
        allocator.share(frames[:32])
        assert allocator.free(frames).size == 32
    assert np.array_equal(small.refcount[:100], large.refcount[:100])
    assert large._refcount.nbytes + large._stack.nbytes + large._scratch.nbytes <= 32 * 1_000_000
    small.audit()
    large.audit()
