"""Batch: decode steps as array operations, in agreement with the manager at any time (S24, S26)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedref.errors import ContractError, OutOfFrames, PageFault
from pagedref.memory import Batch, KVManager
from pagedref.memory.stores import HostStore
from tests.spec.cache_machine import full_state


def filled(num_frames: int, page_size: int, *lens: int) -> tuple[KVManager, list[int]]:
    made = KVManager(num_frames, page_size)
    ids = [made.add() for _ in lens]
    made.reserve(ids, list(lens))
    made.commit(ids, list(lens))
    return made, ids


def check(made: KVManager, batch: Batch, step: Any) -> None:
    ids = batch.seq_ids
    assert step.block_table.tolist() == made.block_table(ids, extra=made.reserved(ids)).tolist()
    assert step.slot_mapping.tolist() == made.slot_mapping(ids, step.seq_lens - 1, step.seq_lens).tolist()
    for mine, theirs in zip(batch.csr(), made.csr(ids, extra=made.reserved(ids))):
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist()
    made.audit()


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_many_steps(page_size: int) -> None:
    made, ids = filled(400, page_size, 0, 1, 5, 16, 17)
    batch = made.batch(np.array(ids)[[3, 0, 4, 1, 2]])
    for _ in range(40):
        check(made, batch, batch.step())
        batch.commit()
    assert made.seq_lens(ids).tolist() == [40, 41, 45, 56, 57]
    assert (len(batch), repr(batch)) == (5, "Batch(5 sequences)")


def test_the_arrays_are_views() -> None:
    made, ids = filled(40, 4, 3, 4)
    batch = made.batch(ids)
    first, second = batch.step(), batch.step()
    assert np.shares_memory(first.slot_mapping, second.slot_mapping)
    assert made.reserved(ids).tolist() == [2, 2]


def test_whatever_else_happens_is_noticed() -> None:
    made, (a, b) = filled(60, 4, 6, 7)
    batch = made.batch([a, b])
    batch.step()
    batch.commit()
    child = made.fork(a)
    step = batch.step()
    assert step.plan.src.size == 1, "a page that is shared now is copied"
    check(made, batch, step)
    made.rollback([a, b])
    check(made, batch, batch.step())
    batch.commit()
    made.truncate(a, 3)
    check(made, batch, batch.step())
    batch.commit()
    made.reserve(b, 6)
    made.commit(b, 6)
    check(made, batch, batch.step())
    other = made.batch([child])
    check(made, other, other.step())
    made.free(a)
    with pytest.raises(ContractError, match="batch: sequence is gone, got 0"):
        batch.step()
    made.audit()


def test_out_of_frames_changes_nothing() -> None:
    made, ids = filled(3, 4, 4, 4)
    batch = made.batch(ids)
    before = full_state(made)
    with pytest.raises(OutOfFrames):
        batch.step()
    assert full_state(made) == before
    made.free(ids[1])
    check(made, made.batch(ids[:1]), made.batch(ids[:1]).step())


def test_tokens_are_published() -> None:
    made = KVManager(40, 4)
    a, b = (made.admit(prompt).seq_id for prompt in ([1, 2, 3], [1, 2, 4]))
    made.commit([a, b], 3)
    batch = made.batch([a, b])
    for token in range(9):
        batch.step()
        batch.commit([token, token])
    assert made.match_prefix([1, 2, 3, 0, 1, 2, 3, 4, 9]).num_tokens == 8
    assert made.match_prefix([1, 2, 4, 0, 1, 2, 3, 4, 9]).num_tokens == 8
    made.audit()


def test_a_swapped_sequence_is_a_fault() -> None:
    made, ids = filled(12, 4, 3, 4)
    batch, store = made.batch(ids), HostStore(12, bytes_per_page=1)
    batch.step()
    batch.commit()
    plan = made.swap_out(ids[0], store)
    for _ in range(2):
        before = full_state(made)
        with pytest.raises(PageFault, match="batch: sequence 0 is"):
            batch.step()
        assert full_state(made) == before
        if len(made.swaps):
            made.swap_done(plan)
    made.pager = lambda seq_id: made.swap_done(made.swap_in(seq_id)) and None
    check(made, batch, batch.step())


def test_an_empty_batch() -> None:
    made, _ = filled(4, 4, 1)
    batch = made.batch([])
    assert batch.step().block_table.shape == (0, 0)
    assert batch.csr().kv_indptr.tolist() == [0]
    with pytest.raises(ContractError, match="batch: seq_ids names a sequence twice"):
        made.batch([0, 0])
    made.audit()
