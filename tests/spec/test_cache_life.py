"""A cache with everything around it that can fail: copies, writes into the pool, files; contents are read each time.

First every operation fails at every call that changes something, one after the other. Then a state machine does all of
them in any order, failures among them: every live token is read back through `gather_kv` after each step, and every
slot that holds neither a live token nor a page that can be hit is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedref.errors import ContractError, OutOfFrames
from pagedref.memory import ACCESSED, DIRTY
from tests.spec.cache_machine import full_state
from tests.spec.cache_scene import SAVED, Lost, Scene

# -- every operation fails at every call that changes something


def crowd() -> tuple[Scene, dict[str, int]]:
    """Sequences that share a tail, a cached prefix, a saved one, one on disk, one without tokens."""
    scene = Scene()
    a, b, away, gone, new = (scene.add() for _ in range(5))
    scene.grow([a], [[1, 2, 3, 4, 5, 6, 7]])
    child = scene.fork(a)
    scene.grow([b, away, gone], [[8, 8, 8, 8], [9] * 5, [4, 4, 4, 5, 5, 5]])
    scene.free(gone)
    scene.save(b)
    scene.swap_out(away)
    scene.grow([b], [[1]])
    return scene, {"a": a, "b": b, "child": child, "away": away, "new": new}


Operation = Callable[[Scene, dict[str, int]], Any]
OPERATIONS: dict[str, tuple[int, bool, Operation]] = {  # calls that can fail, is the state to the bit as before, what
    "begin": (1, True, lambda s, ids: s.cache.abort(s.begin([ids["child"]], [2]))),
    "begin both": (1, True, lambda s, ids: s.cache.abort(s.begin([ids["b"], ids["a"], ids["child"]], [3, 1, 4]))),
    "append": (2, True, lambda s, ids: s.grow([ids["b"]], [[1, 1, 1, 1]])),
    "copy and append": (3, False, lambda s, ids: s.grow([ids["child"], ids["b"]], [[1, 1], [1] * 5])),
    "attach, partly": (1, False, lambda s, ids: s.attach(ids["new"], [4, 4, 4, 5, 5, 1])),
    "attach whole pages": (0, True, lambda s, ids: s.attach(ids["new"], [4, 4, 4, 1, 1, 1])),
    "fork": (0, True, lambda s, ids: s.fork(ids["a"])),
    "free": (0, True, lambda s, ids: s.free(ids["a"])),
    "abort": (0, True, lambda s, ids: s.cache.abort(s.begin([ids["b"]], [2]))),
    "save": (5, True, lambda s, ids: s.save(ids["b"])),
    "restore": (0, True, lambda s, ids: s.restore()),
    "swap out": (4, True, lambda s, ids: s.swap_out(ids["b"])),
    "swap in": (0, True, lambda s, ids: s.swap_in(ids["away"])),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_fails_at_every_write(name: str) -> None:
    least, exact, operation = OPERATIONS[name]
    for fail_at in itertools.count():
        scene, ids = crowd()
        scene.check()
        before, tokens, saved = full_state(scene.manager), {i: list(t) for i, t in scene.tokens.items()}, scene.saved
        scene.arm(fail_at)
        try:
            operation(scene, ids)
        except (Lost, OSError):
            assert scene.tokens == tokens and scene.saved == saved
            assert not exact or full_state(scene.manager) == before
            free = np.flatnonzero(~scene.manager.occupied)
            assert all(np.isnan(array[free]).all() for layer in range(2) for array in scene.cache.arrays(layer))
            scene.check()
            scene.disarm()
            scene.free(scene.restore())  # the file is there, and whole
            scene.check()
            operation(scene, ids)
            failed = True
        else:
            failed = False
        scene.disarm()
        scene.check()
        if scene.manager.is_swapped(ids["away"]):
            scene.swap_in(ids["away"])
        scene.check()
        scene.end()
        if not failed:
            break
    assert fail_at >= least


def test_a_restore_that_does_not_fit_changes_nothing() -> None:
    scene, ids = crowd()
    filler = scene.cache.add()
    scene.tokens[filler] = []
    scene.manager.evict(scene.manager.num_frames)
    scene.cache.begin([filler], [3 * scene.manager.num_available - 3])
    before = full_state(scene.manager)
    with pytest.raises(OutOfFrames):
        scene.restore()
    inode = scene.files.names[SAVED]
    for at in range(0, len(inode.data), 7):
        inode.data[at] ^= 8
        with pytest.raises(ContractError):
            scene.restore()
        inode.data[at] ^= 8
    assert full_state(scene.manager)[1:3] == before[1:3] and len(scene.manager) == len(before[0])
    scene.free(filler)
    scene.restore()
    scene.check()
    scene.end()
    assert ids


# -- all of it in any order


def tables(scene: Scene) -> list[Any]:
    """Return ids, lengths and tables; that pages were looked at stays after a failure."""
    looked = int(ACCESSED | DIRTY)
    return [(*row[:3], [entry & ~looked for entry in row[3]]) for row in full_state(scene.manager)[0]]


class CacheLife(RuleBasedStateMachine):
    """Drive a cache; a call that writes may fail in each operation, and is then tried again."""

    @initialize(num_frames=st.integers(3, 14))
    def start(self, num_frames: int) -> None:
        self.scene = Scene(num_frames)

    def pick(self, data: Any, *, swapped: bool = False) -> int | None:
        scene = self.scene
        live = [seq_id for seq_id in sorted(scene.tokens) if scene.manager.is_swapped(seq_id) == swapped]
        return int(data.draw(st.sampled_from(live), label="sequence")) if live else None

    def attempt(self, data: Any, call: Callable[[], Any], *, exact: bool = True) -> None:
        """Call with a failure armed; if it fails, or frames run out, all is as before: then once more without one."""
        scene = self.scene
        for fail_at in (data.draw(st.sampled_from([-1, -1, 0, 1, 2, 5]), label="fail at"), -1):
            before, tokens = tables(scene), {i: list(t) for i, t in scene.tokens.items()}
            scene.arm(fail_at)  # -1: none of them
            try:
                call()
                return
            except (Lost, OSError, OutOfFrames) as error:
                assert scene.tokens == tokens
                if exact or isinstance(error, OutOfFrames):
                    assert tables(scene) == before, "tables and lengths"
                if isinstance(error, OutOfFrames):
                    return
                scene.check()

    @rule()
    def add(self) -> None:
        self.scene.add()

    @rule(data=st.data(), prompt=st.lists(st.integers(0, 1), max_size=10))
    def attach(self, data: Any, prompt: list[int]) -> None:
        seq_id = self.scene.add()
        self.attempt(data, lambda: self.scene.attach(seq_id, prompt))

    @rule(data=st.data(), new=st.lists(st.lists(st.integers(0, 1), max_size=5), min_size=1, max_size=3))
    def step(self, data: Any, new: list[list[int]]) -> None:
        live = [seq_id for seq_id in sorted(self.scene.tokens) if not self.scene.manager.is_swapped(seq_id)]
        ids = data.draw(st.permutations(live), label="batch")[: len(new)]
        named = [self.scene.as_prompted(seq_id, some) for seq_id, some in zip(ids, new)]
        self.attempt(data, lambda: self.scene.grow(ids, named), exact=False)

    @rule(data=st.data(), count=st.integers(0, 5))
    def abort(self, data: Any, count: int) -> None:
        if (seq_id := self.pick(data)) is not None:
            self.attempt(data, lambda: self.scene.cache.abort(self.scene.begin([seq_id], [count])))

    @rule(data=st.data(), times=st.integers(1, 2))
    def fork(self, data: Any, times: int) -> None:
        for _ in range(times):
            if (seq_id := self.pick(data)) is not None:
                self.attempt(data, lambda seq_id=seq_id: self.scene.fork(seq_id))  # type: ignore[misc]

    @rule(data=st.data(), swapped=st.sampled_from([False, False, True]))
    def free(self, data: Any, swapped: bool) -> None:
        if (seq_id := self.pick(data, swapped=swapped)) is not None:
            self.scene.free(seq_id)

    @rule(data=st.data())
    def save(self, data: Any) -> None:
        if (seq_id := self.pick(data)) is not None:
            self.attempt(data, lambda: self.scene.save(seq_id))

    @precondition(lambda self: self.scene.saved is not None)
    @rule(data=st.data())
    def restore(self, data: Any) -> None:
        self.attempt(data, self.scene.restore)

    @rule(data=st.data())
    def swap_out(self, data: Any) -> None:
        if (seq_id := self.pick(data)) is not None:
            self.attempt(data, lambda: self.scene.swap_out(seq_id))

    @rule(data=st.data())
    def swap_in(self, data: Any) -> None:
        if (seq_id := self.pick(data, swapped=True)) is not None:
            self.attempt(data, lambda: self.scene.swap_in(seq_id))

    @rule(n=st.integers(0, 3))
    def evict(self, n: int) -> None:
        self.scene.manager.evict(n)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "scene"):
            self.scene.disarm()
            self.scene.check()

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            self.scene.disarm()
            self.scene.end()


TestCacheLife = CacheLife.TestCase
TestCacheLife.settings = settings(deadline=None, max_examples=60, stateful_step_count=25)
