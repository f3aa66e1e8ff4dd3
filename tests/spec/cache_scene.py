"""A cache over a backend and files that fail when told to, with the tokens of every sequence beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import pagedref.attention as reference
from pagedref.cache_spec import CacheSpec
from pagedref.kv_cache import PagedKVCache, Step
from pagedref.memory.disk import DiskStore
from pagedref.memory.swap import carry_out
from tests.spec.cache_machine import content
from tests.spec.faulty_files import FaultyFiles

SPEC = CacheSpec(2, 1, 2, page_size=3, dtype="float64")
SAVED, PAGES = Path("saved"), Path("pages")


class Lost(RuntimeError):
    """What the backend raises."""


class Failing:
    """The NumPy operations. Of those that write, call number `fail_at` does half of its work and raises."""

    def __init__(self) -> None:
        self.calls, self.fail_at = 0, -1

    def __getattr__(self, name: str) -> Any:
        return getattr(reference, name)

    def failing(self) -> bool:
        self.calls += 1
        return self.calls - 1 == self.fail_at

    def copy_frames(self, arrays: list[Any], src: Any, dst: Any) -> None:
        failing = self.failing()
        reference.copy_frames(arrays[: len(arrays) // 2] if failing else arrays, src, dst)
        if failing:
            raise Lost("copy_frames")

    def append_kv(self, k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any, **stored: Any) -> None:
        failing = self.failing()
        stop = len(slots) // 2 if failing else len(slots)
        reference.append_kv(k[:stop], v[:stop], k_cache, v_cache, slots[:stop], **stored)
        if failing:
            raise Lost("append_kv")


class Scene:
    """A cache over a backend and files that fail, a tier on disk, and the tokens of every sequence."""

    def __init__(self, num_frames: int = 16) -> None:
        self.backend, self.files = Failing(), FaultyFiles()
        order = np.random.default_rng(2).permutation(num_frames)
        self.cache = PagedKVCache(SPEC, num_frames, backend=self.backend, poison=True, frame_order=order)
        self.manager = self.cache.manager
        self.frames = self.cache.frame_store()
        self.store = DiskStore(PAGES, 2 * num_frames, self.frames.bytes_per_frame, align=64, files=self.files)
        self.tokens: dict[int, list[int]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.saved: list[int] | None = None

    def arm(self, fail_at: int) -> None:
        """Let a call that writes fail, counted from now: of the backend, and of the files; -1 for none."""
        self.backend.fail_at, self.files.torn = self.backend.calls + fail_at, True
        self.files.fail_at = self.files.calls + fail_at

    def disarm(self) -> None:
        self.backend.fail_at = self.files.fail_at = -1

    # -- the operations, as an engine does them; each undoes what it began when a part of it fails

    def add(self) -> int:
        seq_id = self.cache.add()
        self.tokens[seq_id] = []
        return seq_id

    def begin(self, ids: list[int], counts: list[int]) -> Step:
        return self.cache.begin(ids, counts)

    def write(self, step: Step, new: list[list[int]]) -> None:
        numbers = [
            content(None, self.tokens[seq_id] + some[: at + 1])
            for seq_id, some in zip(step.seq_ids, new)
            for at in range(len(some))
        ]
        k = np.repeat(np.array(numbers, np.float64), 2).reshape(-1, 1, 2)
        try:
            for layer in range(2):
                self.cache.append(step, k + layer / 2, -k - layer / 2, layer=layer)
        except Lost:
            self.cache.abort(step)
            raise
        self.cache.commit(step, [token for some in new for token in some])
        for seq_id, some in zip(step.seq_ids, new):
            self.tokens[seq_id] += some

    def grow(self, ids: list[int], new: list[list[int]]) -> None:
        self.write(self.begin(ids, [len(some) for some in new]), new)

    def fork(self, seq_id: int) -> int:
        child = self.cache.fork(seq_id)
        self.tokens[child] = list(self.tokens[seq_id])
        self.prompts[child] = self.prompts.get(seq_id, [])
        return child

    def attach(self, seq_id: int, prompt: list[int]) -> None:
        found = self.cache.attach_prefix(seq_id, prompt, partial_tail=True)
        self.tokens[seq_id], self.prompts[seq_id] = prompt[:found], prompt

    def as_prompted(self, seq_id: int, some: list[int]) -> list[int]:
        """Return the next tokens of a sequence: those of its prompt as long as there are any."""
        have = len(self.tokens[seq_id])
        rest = self.prompts.get(seq_id, [])[have : have + len(some)]
        return rest + some[len(rest) :]

    def free(self, seq_id: int) -> None:
        self.cache.free(seq_id)
        del self.tokens[seq_id]

    def save(self, seq_id: int) -> None:
        self.cache.save(seq_id, SAVED, files=self.files)
        self.saved = list(self.tokens[seq_id])

    def restore(self) -> int:
        assert self.saved is not None
        seq_id = self.cache.restore(SAVED, files=self.files)
        self.tokens[seq_id] = list(self.saved)
        return seq_id

    def swap_out(self, seq_id: int) -> None:
        plan = self.manager.swap_out(seq_id, self.store)
        try:
            assert carry_out(plan, self.frames, self.store).all()
        except OSError:
            self.manager.swap_cancel(plan)
            raise
        self.manager.swap_done(plan)

    def swap_in(self, seq_id: int) -> None:
        plan = self.manager.swap_in(seq_id)
        self.manager.swap_done(plan, carry_out(plan, self.frames, self.store))

    # -- what always holds

    def poison(self) -> None:
        """Fill with NaN whatever nobody may read."""
        live = np.zeros((self.manager.num_frames, SPEC.page_size), dtype=np.bool_)
        if self.manager._publisher is not None:
            live[self.manager._publisher.index.node_of >= 0] = True
        for seq_id, tokens in self.tokens.items():
            if not self.manager.is_swapped(seq_id):
                for page, frame in enumerate(self.cache.block_table([seq_id])[0].tolist()):
                    live[frame, : max(len(tokens) - page * SPEC.page_size, 0)] = True
        for layer in range(2):
            for array in self.cache.arrays(layer):
                array[~live] = np.nan

    def check(self) -> None:
        self.cache.audit()
        self.poison()
        assert self.manager.sequences == tuple(sorted(self.tokens))
        for seq_id, tokens in self.tokens.items():
            assert self.cache.seq_len(seq_id) == len(tokens)
            if self.manager.is_swapped(seq_id):
                continue
            numbers = np.array([content(None, tokens[: at + 1]) for at in range(len(tokens))])
            for layer in range(2):
                keys, values = self.cache.gather(seq_id, layer=layer)
                assert (keys == (numbers + layer / 2)[:, None, None]).all()
                assert (values == (-numbers - layer / 2)[:, None, None]).all()

    def end(self) -> None:
        """Free everything: nothing has leaked."""
        self.cache.free(sorted(self.tokens))
        self.manager.clear_prefixes()
        self.cache.audit()
        assert self.manager.num_free == self.manager.num_frames
        assert self.store.num_free == self.store.num_slots
        assert self.manager._publisher is None or self.manager._publisher.index.num_nodes == 1
