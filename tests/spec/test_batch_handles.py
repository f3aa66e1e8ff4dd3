"""Several handles over the same sequences: each sees what the others did (S24, S26)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.errors import OutOfFrames
from pagedref.memory import Batch, KVManager


class Scene:
    """A pool of written slots, and what each sequence should read."""

    def __init__(self, page_size: int, num_sequences: int = 2) -> None:
        self.made = KVManager(48, page_size)
        self.pool: list[int | None] = [None] * (48 * page_size)
        self.ids = [self.made.add() for _ in range(num_sequences)]
        self.live: dict[int, list[int]] = {seq_id: [] for seq_id in self.ids}
        self.ahead: dict[int, list[int]] = {seq_id: [] for seq_id in self.ids}
        self.next = 0

    def copy(self, plan: Any) -> None:
        size = self.made.page_size
        for src, dst in zip(plan.src.tolist(), plan.dst.tolist()):
            self.pool[dst * size : (dst + 1) * size] = self.pool[src * size : (src + 1) * size]

    def write(self, seq_ids: list[int], slots: list[int]) -> None:
        for seq_id, slot in zip(seq_ids, slots, strict=True):
            self.pool[slot] = self.next
            self.ahead[seq_id].append(self.next)
            self.next += 1

    def step(self, batch: Batch) -> None:
        step = batch.step()
        self.copy(step.plan)
        self.write(batch.seq_ids.tolist(), step.slot_mapping.tolist())
        ids = batch.seq_ids
        assert step.seq_lens.tolist() == [len(self.live[i]) + len(self.ahead[i]) for i in ids.tolist()]
        assert step.block_table.tolist() == self.made.block_table(ids, extra=self.made.reserved(ids)).tolist()

    def reserve(self, seq_id: int, n: int) -> None:
        self.copy(self.made.reserve(seq_id, n))
        end = len(self.live[seq_id]) + len(self.ahead[seq_id])
        self.write([seq_id] * n, self.made.slot_mapping(seq_id, end, end + n).tolist())

    def commit(self, batch: Batch) -> None:
        batch.commit()
        self.committed(batch.seq_ids.tolist())

    def committed(self, seq_ids: list[int]) -> None:
        for seq_id in seq_ids:
            self.live[seq_id] += self.ahead[seq_id]
            self.ahead[seq_id] = []

    def check(self) -> None:
        self.made.audit()
        for seq_id in self.ids:
            expected = self.live[seq_id] + self.ahead[seq_id]
            slots = self.made.slot_mapping(seq_id, 0, len(expected)).tolist()
            assert [self.pool[slot] for slot in slots] == expected
            assert self.made.seq_len(seq_id) == len(self.live[seq_id])
            assert self.made.reserved(seq_id).tolist() == [len(self.ahead[seq_id])]


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
@pytest.mark.parametrize("commits", [True, False])
def test_two_handles_take_turns(page_size: int, commits: bool) -> None:
    scene = Scene(page_size)
    a, b = scene.ids
    handles = [scene.made.batch([a, b]), scene.made.batch([b]), scene.made.batch([b, a])]
    for turn in (0, 0, 1, 0, 2, 1, 1, 0, 2, 2, 0, 1):
        scene.step(handles[turn])
        scene.check()
        if commits:
            scene.commit(handles[turn - 1])
            scene.check()
    assert scene.made.csr([a, b], extra=scene.made.reserved([a, b])).kv_indices.tolist() == (
        handles[0].csr().kv_indices.tolist()
    )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 3, 4]), st.data())
def test_handles_and_the_manager_in_any_order(page_size: int, data: st.DataObject) -> None:
    scene = Scene(page_size, 3)
    handles: list[Batch] = []
    for _ in range(data.draw(st.integers(1, 25))):
        kind = data.draw(st.sampled_from(
            ["handle", "step", "step", "step", "commit", "reserve", "commit all", "rollback", "fork", "free"]
        ))  # fmt: skip
        seq_id = data.draw(st.sampled_from(scene.ids))
        if kind == "handle" or not handles:
            handles.append(scene.made.batch(data.draw(st.permutations(scene.ids))[: data.draw(st.integers(1, 3))]))
            continue
        batch = data.draw(st.sampled_from(handles))
        try:
            if kind == "step":
                scene.step(batch)
            elif kind == "commit":
                scene.commit(batch)
            elif kind == "reserve":
                scene.reserve(seq_id, data.draw(st.integers(0, 5)))
            elif kind == "commit all":
                scene.made.commit(scene.ids, scene.made.reserved(scene.ids))
                scene.committed(scene.ids)
            elif kind == "rollback":
                scene.made.rollback(seq_id)
                scene.ahead[seq_id] = []
            elif kind == "fork" and not scene.ahead[seq_id]:
                child = scene.made.fork(seq_id)
                scene.ids.append(child)
                scene.live[child], scene.ahead[child] = list(scene.live[seq_id]), []
            elif kind == "free" and len(scene.ids) > 2:
                scene.made.free(seq_id)
                scene.ids.remove(seq_id)
                handles = [handle for handle in handles if seq_id not in handle.seq_ids.tolist()]
        except OutOfFrames:
            pass
        scene.check()
