"""Swapping: every bit of every number format comes back (L8), in order, and nothing is given away too early (S33)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError, CorruptionError, OutOfFrames
from pagedref.kv_cache import PagedKVCache
from pagedref.kv_format import KVFormat
from pagedref.memory import swap
from pagedref.memory.disk import DiskStore
from pagedref.memory.swap import ArrayFrames, HostStore, SwapPlan, SwapQueue, carry_out
from tests.spec.faulty_files import FaultyFiles

DTYPES = [
    np.dtype(name) for name in ("float64", "float32", "float16", "int8", "uint8", "int64", "bool", "complex64", ">f4")
] + [np.dtype(kind) for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]
FORMS = {
    "plain": (None, {}),
    "bfloat16": (KVFormat("bfloat16"), {}),
    "head": (KVFormat("e4m3fn", "head"), {"k_scale": 0.1, "v_scale": 0.2}),
    "frame_head": (KVFormat("int8", "frame_head"), {"k_scale": 0.1, "v_scale": 0.2}),
    "slot_head": (KVFormat("int8", "slot_head"), {}),
    "group": (KVFormat("int4", "group", group_size=2, zero_point=True), {}),
}


def pool_of(draw: Any, num_frames: int, random: np.random.Generator) -> dict[str, Any]:
    """Arrays of any type and strides, filled with any bits: every kind of NaN is among them."""
    arrays = {}
    for number in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(DTYPES))
        shape = (num_frames, *draw(st.lists(st.integers(1, 3), max_size=3)))
        order = draw(st.permutations(range(len(shape))))
        step = draw(st.integers(1, 3))
        whole = np.zeros([step * shape[axis] for axis in order], dtype)
        array = whole[tuple(slice(None, None, step) for _ in order)].transpose(np.argsort(order))
        array[...] = random.integers(0, 256, array.size * dtype.itemsize, np.uint8).view(dtype).reshape(shape)
        arrays[f"a{number}"] = array
    return arrays


def bits(arrays: dict[str, Any], frame: int) -> list[bytes]:
    return [np.ascontiguousarray(array[frame]).tobytes() for array in arrays.values()]


@given(st.data(), st.sampled_from(["host", "disk"]), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_every_bit_comes_back(data: Any, where: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = pool_of(data.draw, 6, random)
    frames = ArrayFrames(arrays)
    size = frames.bytes_per_frame
    store = DiskStore(Path("p"), 4, size, files=FaultyFiles()) if where == "disk" else HostStore(4, size)
    out = data.draw(st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=4))
    back = data.draw(st.permutations(range(6)))[: len(out)]
    before = [bits(arrays, frame) for frame in range(6)]
    slots = store.alloc(len(out))
    swap.CHUNK_BYTES, kept = data.draw(st.sampled_from([1, 2 * size, 1 << 20])), swap.CHUNK_BYTES
    try:
        assert carry_out(SwapPlan("out", np.array(out), slots), frames, store).all()
        for array in arrays.values():
            array[...] = np.zeros((), array.dtype)
        assert carry_out(SwapPlan("in", np.array(back), slots), frames, store).all()
    finally:
        swap.CHUNK_BYTES = kept
    for source, target in zip(out, back, strict=True):
        assert bits(arrays, target) == before[source]
    for frame in set(range(6)) - set(back):
        assert not any(map(any, bits(arrays, frame)))  # and nothing else was written
    store.free(slots)
    store.audit()
    assert store.num_free == 4


@given(st.data(), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_copies_cover_every_array(data: Any, seed: int) -> None:
    arrays = pool_of(data.draw, 6, np.random.default_rng(seed))
    before = [bits(arrays, frame) for frame in range(6)]
    dst = data.draw(st.lists(st.integers(0, 5), unique=True, max_size=6))
    src = [data.draw(st.integers(0, 5)) for _ in dst]
    ArrayFrames(arrays).copy(src, dst)
    moved = dict(zip(dst, src, strict=True))
    assert [bits(arrays, frame) for frame in range(6)] == [before[moved.get(frame, frame)] for frame in range(6)]


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_comes_back_with_other_frames_and_the_same_bits(form: str) -> None:
    """L8, and S18: scales move with their frames."""
    kv_format, scales = FORMS[form]
    cache = PagedKVCache(CacheSpec(2, 2, 4, page_size=3, kv_format=kv_format), 8, poison=True, **scales)
    frames = cache.frame_store()
    assert frames.bytes_per_frame == cache.spec.bytes_per_frame
    seq = cache.add()
    step = cache.begin([seq], [7])
    random = np.random.default_rng(7)
    for layer in range(2):
        cache.append(step, *random.standard_normal((2, 7, 2, 4)).astype(np.float32), layer=layer)
    cache.commit(step)
    before = [cache.gather(seq, layer=layer) for layer in range(2)]
    states = [cache._pool.stored(layer) for layer in range(2)]
    pages = cache.block_table([seq])[0]
    store = HostStore(3, frames.bytes_per_frame)
    slots = store.alloc(3)
    assert carry_out(SwapPlan("out", pages, slots), frames, store).all()
    other = np.setdiff1d(np.arange(8), pages)[:3]
    cache._pool.poison(pages)
    assert carry_out(SwapPlan("in", other, slots), frames, store).all()
    for layer, (k, v) in enumerate(before):
        csr = (np.array([0, 3]), other, np.array([1]))
        again = cache.backend.gather_kv(*cache.arrays(layer), *csr, **states[layer])
        assert (again[0].tobytes(), again[1].tobytes()) == (k.tobytes(), v.tobytes())
    cache.audit()


def test_a_pool_without_its_scales_is_caught() -> None:
    """The check above can fail: a store of numbers alone gives back other numbers."""
    kv_format, _ = FORMS["slot_head"]
    cache = PagedKVCache(CacheSpec(1, 1, 2, page_size=1, kv_format=kv_format), 2)
    seq = cache.add()
    step = cache.begin([seq], [1])
    cache.append(step, np.full((1, 1, 2), 3.0, np.float32), np.full((1, 1, 2), 3.0, np.float32))
    cache.commit(step)
    k, v = cache.arrays()
    ArrayFrames({"k": k, "v": v}).copy([0], [1])
    csr = (np.array([0, 1]), np.array([1]), np.array([1]))
    assert (cache.backend.gather_kv(k, v, *csr, **cache._pool.stored(0))[0] != 3).all()


@pytest.mark.parametrize("fail_at", range(8))
def test_a_failed_write_leaves_the_source(fail_at: int) -> None:
    """Every write of a swap to disk fails in turn: the frames are as they were, and the plan can be tried again."""
    files = FaultyFiles()
    pool = np.arange(12, dtype=np.float32).reshape(4, 3)
    frames, store = ArrayFrames({"k": pool}), DiskStore(Path("p"), 4, 12, align=64, files=files)
    queue, slots, before = SwapQueue(), store.alloc(4), pool.copy()
    plan = queue.issue("out", np.arange(4), slots)
    files.fail_at, files.torn = files.calls + fail_at, True
    with pytest.raises(OSError, match="injected"):
        carry_out(plan, frames, store)
    assert (pool == before).all() and queue.pending == (plan,)
    assert not store.read(slots)[1].all()  # half of a page is never read
    assert carry_out(plan, frames, store).all()
    queue.done(plan)
    pool[...] = 0
    assert carry_out(SwapPlan("in", np.arange(4), slots), frames, store).all() and (pool == before).all()


def test_a_damaged_page_is_a_miss_and_harms_nobody() -> None:
    files = FaultyFiles()
    pool = np.arange(6, dtype=np.uint8).reshape(3, 2)
    frames, store = ArrayFrames({"k": pool}), DiskStore(Path("p"), 3, 2, align=64, files=files)
    slots = store.alloc(3)
    carry_out(SwapPlan("out", np.arange(3), slots), frames, store)
    files.names[Path("p")].data[store._file._start(1) + 128] ^= 4
    pool[...] = 99
    assert carry_out(SwapPlan("in", np.arange(3), slots), frames, store).tolist() == [True, False, True]
    assert pool.tolist() == [[0, 1], [99, 99], [4, 5]]
    assert store.num_damaged == 1


# Order and owners ---------------------------------------------------------------------------------------------------


class Model:
    """What may happen next, in plain sets."""

    def __init__(self) -> None:
        self.plans: list[tuple[str, list[int], list[int]]] = []

    def busy(self, which: int) -> set[int]:
        return {number for plan in self.plans for number in plan[which]}


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_the_queue_agrees_with_sets(data: Any) -> None:
    queue, model, issued = SwapQueue(), Model(), []
    for _ in range(data.draw(st.integers(0, 12))):
        action = data.draw(st.sampled_from(["issue", "issue", "done", "cancel"]))
        if action == "issue":
            direction = data.draw(st.sampled_from(["out", "in"]))
            count = data.draw(st.integers(0, 3))
            frames, slots = ([data.draw(st.integers(0, 5)) for _ in range(count)] for _ in range(2))
            target, busy = (slots, model.busy(2)) if direction == "out" else (frames, model.busy(1))
            if len(set(target)) < count or set(target) & busy:
                with pytest.raises(ContractError, match=r"issue: (slots|frames) are"):
                    queue.issue(direction, frames, slots)
            else:
                issued.append(queue.issue(direction, frames, slots))
                model.plans.append((direction, frames, slots))
        elif issued:
            at = data.draw(st.integers(0, len(issued) - 1))
            plan, turn = issued[at], 0 if action == "done" else len(model.plans) - 1
            if queue.pending and queue.pending[turn] is plan:
                getattr(queue, action)(plan)
                del model.plans[turn]
            else:
                with pytest.raises(ContractError, match=f"{action}: plan is out of turn"):
                    getattr(queue, action)(plan)
        assert [(p.direction, p.frames.tolist(), p.slots.tolist()) for p in queue.pending] == model.plans
        assert set(queue.frames().tolist()) == model.busy(1) and set(queue.slots().tolist()) == model.busy(2)
        assert len(queue) == len(model.plans)


def test_plans_carried_out_in_order_give_what_they_promise() -> None:
    """A page that is still on its way out is called back, and its frame is not given away before the plan is done."""
    pool = np.arange(4, dtype=np.int64).reshape(4, 1)
    frames, store, queue = ArrayFrames({"k": pool}), HostStore(2, 8), SwapQueue()
    slots = store.alloc(2)
    out = queue.issue("out", [2, 3], slots)
    back = queue.issue("in", [0], slots[1:])
    with pytest.raises(ContractError, match="frames are in use by a plan that is not done, got 2"):
        queue.issue("in", [2], slots[:1])
    with pytest.raises(ContractError, match="got number 1 of 2, need the oldest"):
        queue.done(back)
    for plan in queue.pending:
        carry_out(plan, frames, store)
        queue.done(plan)
    assert pool.ravel().tolist() == [3, 1, 2, 3]
    with pytest.raises(ContractError, match="got one that is not pending"):
        queue.done(out)
    queue.issue("in", [2], slots[:1])


@pytest.mark.parametrize("mutant", ["out of order", "given away"])
def test_why_there_is_an_order_and_an_owner(mutant: str) -> None:
    """The check above can fail: plans carried out in another order, or a frame given away too early, lose a page."""
    pool = np.arange(4, dtype=np.int64).reshape(4, 1)
    frames, store, queue = ArrayFrames({"k": pool}), HostStore(2, 8), SwapQueue()
    slots = store.alloc(2)
    out = queue.issue("out", [2, 3], slots)
    back = queue.issue("in", [0], slots[1:])
    if mutant == "given away":
        pool[3] = 99
    for plan in (out, back) if mutant == "given away" else (back, out):
        carry_out(plan, frames, store)
    assert pool[0, 0] != 3


def test_refusals() -> None:
    pool = np.zeros((3, 2), np.float32)
    for arrays in ({}, {"k": np.float32(1)}, {"k": pool, "v": pool[:2]}, {"k": pool[:0]}, {"k": pool[:, :0]}):
        with pytest.raises(ContractError, match="ArrayFrames: arrays"):
            ArrayFrames(arrays)
    with pytest.raises(ContractError, match="hold objects, got 'o'"):
        ArrayFrames({"o": np.array([[None]])})
    frames = ArrayFrames({"k": pool})
    page = frames.read([0])
    for frame in ([3], [-1], [0.5], [[0]]):
        with pytest.raises(ContractError, match="frames"):
            frames.read(frame)
    for given_frames, pages in (([0, 0], np.repeat(page, 2, 0)), ([0], page[:, :7]), ([0], page.view(np.int8))):
        with pytest.raises(ContractError, match="write: "):
            frames.write(given_frames, pages)
    for src, dst in (([0], [1, 2]), ([0, 1], [2, 2])):
        with pytest.raises(ContractError, match="copy: dst"):
            frames.copy(src, dst)
    store = HostStore(2, 8)
    with pytest.raises(OutOfFrames) as caught:
        store.alloc(3)
    assert (caught.value.needed, caught.value.available, store.num_free) == (3, 2, 2)
    with pytest.raises(CorruptionError, match="nobody holds, got 0"):
        store.write([0], page)
    (slot,) = store.alloc(1)
    with pytest.raises(ContractError, match="names one twice"):
        store.write([slot, slot], np.repeat(page, 2, 0))
    with pytest.raises(ContractError, match="carry_out: store does not fit the pool, got 9 bytes, need 8"):
        carry_out(SwapPlan("out", np.array([0]), np.array([0])), frames, HostStore(1, 9))
    with pytest.raises(ContractError, match="direction is unknown, got 'up'"):
        SwapQueue().issue("up", [0], [0])  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="slots have the wrong length, got 1, need 2"):
        SwapQueue().issue("out", [0, 1], [0])
    store.free([slot])
    with pytest.raises(CorruptionError):
        store.free([slot])
    store.audit()
