"""PagedKVCache: a random life of sequences against plain lists, and what happens when something fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pagedref.attention as reference
from pagedref.attention import dense_attention, dense_mla
from pagedref.cache_spec import CacheSpec
from pagedref.conformance import assert_exact, assert_state
from pagedref.errors import BackendUnavailable, ContractError, OutOfFrames
from pagedref.kv_cache import PagedKVCache
from pagedref.kv_format import KVFormat

SPEC = CacheSpec(2, 2, 3, page_size=4, v_head_dim=2)


def rows(numbers: list[int], dim: int, layer: int) -> Any:
    """Keys or values that tell which token they belong to."""
    return np.repeat(np.asarray(numbers, np.float32) + layer / 2, 2 * dim).reshape(-1, 2, dim)


class Life(RuleBasedStateMachine):
    """Every live token is written with its own number; all of them are read back after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PagedKVCache(SPEC, 12, poison=True, frame_order=np.random.default_rng(1).permutation(12))
        self.model: dict[int, list[int]] = {}
        self.next = 1

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.model)))

    @rule()
    def add(self) -> None:
        self.model[self.cache.add()] = []

    @precondition(lambda self: self.model)
    @rule(data=st.data(), finish=st.booleans())
    def step(self, data: st.DataObject, finish: bool) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, max_size=4))
        counts = [data.draw(st.integers(0, 6)) for _ in ids]
        free = self.cache.manager.num_free
        try:
            step = self.cache.begin(ids, counts)
        except OutOfFrames as error:
            assert error.needed > error.available == free
            return
        tokens = list(range(self.next, self.next + sum(counts)))
        self.next += len(tokens)
        for layer in range(2):
            self.cache.append(step, rows(tokens, 3, layer), -rows(tokens, 2, layer), layer=layer)
        if not finish:
            self.cache.abort(step)
            return
        self.cache.commit(step)
        for seq, count in zip(ids, counts, strict=True):
            self.model[seq] += tokens[:count]
            tokens = tokens[count:]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = self.some(data)
        self.model[self.cache.fork(parent)] = list(self.model[parent])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        seq = self.some(data)
        self.cache.free(seq)
        del self.model[seq]

    @invariant()
    def everything_reads_back(self) -> None:
        self.cache.audit()
        for seq, tokens in self.model.items():
            assert self.cache.seq_len(seq) == len(tokens)
            for layer in range(2):
                keys, values = self.cache.gather(seq, layer=layer)
                assert_exact(keys, rows(tokens, 3, layer), f"keys of sequence {seq}")
                assert_exact(values, -rows(tokens, 2, layer), f"values of sequence {seq}")
        report = self.cache.memory_report(max_model_len=100)
        assert report.num_tokens == sum(map(len, self.model.values()))
        assert report.bytes_contiguous == 100 * len(self.model) * SPEC.bytes_per_token

    def teardown(self) -> None:
        self.cache.free(sorted(self.model))
        self.cache.audit()
        assert self.cache.manager.num_free == 12


TestLife = Life.TestCase
TestLife.settings = settings(deadline=None, max_examples=60, stateful_step_count=25)


def test_attend_takes_the_operation_that_fits() -> None:
    called: list[str] = []

    class Spy:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return getattr(reference, name)

    cache = PagedKVCache(CacheSpec(1, 1, 2, page_size=2), 8, backend=Spy())
    a, b = cache.add(), cache.add()
    rng = np.random.default_rng(0)
    history: dict[int, list[Any]] = {a: [], b: []}
    for counts, expected in (([3, 1], "paged_prefill"), ([1, 1], "paged_decode")):
        step = cache.begin([a, b], counts)
        k, q = (rng.standard_normal((sum(counts), 1, 2)).astype(np.float32) for _ in range(2))
        called.clear()
        cache.append(step, k, k)
        state = cache.attend(step, q)
        cache.commit(step)
        assert called == ["append_kv", expected]
        for seq, begin, end in zip((a, b), step.qo_indptr, step.qo_indptr[1:], strict=False):
            history[seq] += list(k[begin:end])
            keys = np.array(history[seq])
            expected = dense_attention(q[begin:end], keys, keys, with_bound=True)
            assert_state((state.out[begin:end], state.lse[begin:end]), expected)
    assert step.positions.tolist() == [3, 1]


def test_failed_copy_changes_nothing() -> None:
    """S26: the backend fails in the copy on write; the books are as before and the next try works."""

    class Broken:
        broken = True

        def __getattr__(self, name: str) -> Any:
            return getattr(reference, name)

        def copy_frames(self, *arguments: Any) -> None:
            if self.broken:
                raise RuntimeError("device lost")
            reference.copy_frames(*arguments)

    backend = Broken()
    cache = PagedKVCache(SPEC, 4, backend=backend, poison=True)
    parent = cache.add()
    step = cache.begin([parent], [2])
    for layer in range(2):
        cache.append(step, rows([1, 2], 3, layer), rows([1, 2], 2, layer), layer=layer)
    cache.commit(step)
    child = cache.fork(parent)
    before = cache.block_table([parent, child]).copy(), cache.manager.refcount.copy()
    with pytest.raises(RuntimeError, match="device lost"):
        cache.begin([child], [1])
    assert (cache.block_table([parent, child]) == before[0]).all() and (cache.manager.refcount == before[1]).all()
    cache.audit()
    backend.broken = False
    cache.abort(cache.begin([child], [1]))
    cache.audit()


def test_open_steps_are_not_opened_twice() -> None:
    cache = PagedKVCache(SPEC, 4)
    seq = cache.add()
    step = cache.begin([seq], [1])
    with pytest.raises(ContractError, match="open step"):
        cache.begin([seq], [1])
    cache.abort(step)
    with pytest.raises(ContractError, match="does not fit"):
        cache.begin([seq], [1, 2])
    with pytest.raises(ContractError, match=r"layer is out of range, got 2, need 0\.\.1"):
        cache.append(cache.begin([seq], [1]), rows([1], 3, 0), rows([1], 2, 0), layer=2)


def test_report_counts_shared_pages_once() -> None:
    cache = PagedKVCache(SPEC, 8)
    seq = cache.add()
    cache.commit(cache.begin([seq], [6]))
    alone = cache.memory_report()
    assert (alone.frames_held, alone.num_pages, alone.bytes_wasted) == (2, 2, 2 * SPEC.bytes_per_token)
    assert alone.waste == 0.25
    cache.fork(seq)
    both = cache.memory_report()
    assert (both.frames_held, both.num_pages, both.num_tokens) == (2, 4, 12)
    assert both.bytes_wasted == 2 * SPEC.bytes_per_token
    assert both.frames_peak == 2


@pytest.mark.parametrize(
    "form",
    [
        KVFormat("bfloat16"),
        KVFormat("e4m3fn", "head"),
        KVFormat("int8", "frame_head"),
        KVFormat("int8", "slot_head"),
        KVFormat("int4", "group", group_size=2, zero_point=True),
    ],
)
def test_stored_forms_move_with_their_frames(form: KVFormat) -> None:
    """S18: append, copy on write, gather and attention of a quantised cache; scales are copied with their frames."""
    spec = CacheSpec(2, 2, 4, page_size=4, kv_format=form)
    inputs = {"k_scale": 0.05, "v_scale": 0.05} if form.granularity and not form.computed else {}
    cache = PagedKVCache(spec, 6, poison=True, **inputs)
    rng = np.random.default_rng(0)
    first = cache.add()
    numbers = rng.standard_normal((6, 2, 4)).astype(np.float32)
    step = cache.begin([first], [6])
    for layer in range(2):
        cache.append(step, numbers + layer, numbers - layer, layer=layer)
    cache.commit(step)
    before = [cache.gather(first, layer=layer) for layer in range(2)]
    second = cache.fork(first)
    step = cache.begin([second], [1])
    for layer in range(2):
        cache.append(step, numbers[:1], numbers[:1], layer=layer)
    state = cache.attend(step, numbers[:1], layer=1)
    cache.commit(step)
    for sequence, length in ((first, 6), (second, 7)):
        for layer in range(2):
            for old, new in zip(before[layer], cache.gather(sequence, layer=layer), strict=True):
                assert len(new) == length
                assert_exact(np.asarray(new[:6]), np.asarray(old))
    keys, values = (np.asarray(part, np.float32) for part in cache.gather(second, layer=1))
    assert_state(state, dense_attention(numbers[:1], keys, values, with_bound=True))
    assert np.abs(keys[:6] - numbers - 1).max() < 0.5
    cache.free([first, second])
    cache.audit()


def test_scales_that_do_not_fit_are_refused() -> None:
    for form, inputs in (
        (KVFormat("int8", "head"), {}),
        (KVFormat("int8", "head"), {"k_scale": np.ones(3, np.float32), "v_scale": 1.0}),
        (KVFormat("int8", "slot_head"), {"k_scale": 1.0}),
        (KVFormat("float32"), {"v_scale": 1.0}),
        (KVFormat("int8", "tensor"), {"k_scale": -1.0, "v_scale": 1.0}),
    ):
        with pytest.raises(ContractError, match=r"PagedKVCache: [kv]_scale"):
            PagedKVCache(CacheSpec(1, 2, 4, page_size=4, kv_format=form), 2, **inputs)


@pytest.mark.parametrize("partial_tail", [False, True])
def test_a_prefix_is_attached_with_its_contents(partial_tail: bool) -> None:
    """S28-S30 through the cache: hits after the donor is gone, poison around, a partly matching tail page copied."""
    cache = PagedKVCache(SPEC, 8, poison=True)
    prompt = list(range(10, 21))  # two whole pages and three tokens

    def write(seq: int, begin: int) -> None:
        step = cache.begin([seq], [len(prompt) - begin])
        for layer in range(2):
            cache.append(step, rows(prompt[begin:], 3, layer), -rows(prompt[begin:], 2, layer), layer=layer)
        cache.commit(step)

    donor = cache.add()
    assert cache.attach_prefix(donor, prompt) == 0
    write(donor, 0)
    cache.free(donor)
    cache.audit()
    assert cache.manager.stats().cached == 2
    other = cache.add()
    wanted = [*prompt[:6], 99, 98, 97]
    hit = cache.attach_prefix(other, wanted, partial_tail=partial_tail)
    assert hit == cache.seq_len(other) == (6 if partial_tail else 4)
    for layer in range(2):
        keys, values = cache.gather(other, layer=layer)
        assert_exact(keys, rows(wanted[:hit], 3, layer))
        assert_exact(values, -rows(wanted[:hit], 2, layer))
    cache.free(other)
    again = cache.add()
    assert cache.attach_prefix(again, prompt) == 8, "a copied tail did not spoil the page that it came from"
    assert_exact(cache.gather(again)[0], rows(prompt[:8], 3, 0))
    cache.free(again)
    cache.audit()


def test_a_step_that_is_not_open_is_refused_everywhere() -> None:
    """S27, L7: an old step, an aborted one, one of another cache, one of a freed sequence: nothing is written."""
    cache, other = (PagedKVCache(CacheSpec(1, 1, 1, page_size=2), 6) for _ in range(2))
    one = np.ones((3, 1, 1), np.float32)
    first = cache.add()
    old = cache.begin([first], [3])
    cache.append(old, one, one)
    cache.commit(old)
    child = cache.fork(first)
    aborted = cache.begin([first], [1])
    cache.abort(aborted)
    foreign = other.begin([other.add()], [3])
    second = cache.add()
    freed = cache.begin([second, first], [2, 1])
    cache.free(second)
    assert cache.manager.reserved([first]).tolist() == [0], "the whole step was aborted"
    for step in (old, aborted, foreign, freed, None):
        for call in (
            lambda step: cache.append(step, 9 * one, 9 * one),
            lambda step: cache.attend(step, one),
            cache.commit,
            cache.abort,
        ):
            with pytest.raises(ContractError, match="step is not open in this cache"):
                call(step)
    assert_exact(cache.gather(child)[0], one)
    cache.free([first, child])
    cache.audit()
    assert cache.manager.num_free == 6


@pytest.mark.parametrize(("ids", "counts"), [(["x"], [1]), ([0], [2.7]), ([2**70], [1]), ([0], ["a"]), ([[0]], [1])])
def test_begin_takes_integers_alone(ids: Any, counts: Any) -> None:
    cache = PagedKVCache(SPEC, 4)
    cache.add()
    with pytest.raises(ContractError, match="begin:"):
        cache.begin(ids, counts)


def test_a_backend_that_lacks_an_operation_is_refused_at_once() -> None:
    with pytest.raises(BackendUnavailable, match="lacks operations"):
        PagedKVCache(SPEC, 2, backend=type("Part", (), {"append_kv": reference.append_kv})())


@pytest.mark.parametrize("form", [None, KVFormat("int8", "slot_head"), KVFormat("bfloat16")], ids=str)
@pytest.mark.parametrize("pieces", [[7], [4, 1, 1, 1]])
def test_latents_lie_in_pages_of_one_kv_head(form: KVFormat | None, pieces: list[int]) -> None:
    """S13: keys are latents, values are rotated keys; every new token attends to what is stored, however it is."""
    rng = np.random.default_rng(0)
    spec = CacheSpec(2, 1, 8, page_size=3, v_head_dim=4, kv_format=form)
    cache = PagedKVCache(spec, 6, poison=True, frame_order=rng.permutation(6))
    ckv, kpe, q_nope, q_pe = (
        rng.standard_normal(shape, dtype=np.float32) for shape in ((7, 1, 8), (7, 1, 4), (7, 5, 8), (7, 5, 4))
    )
    sequence, at = cache.add(), 0
    for count in pieces:
        step, now = cache.begin([sequence], [count]), slice(at, at + count)
        cache.append(step, ckv[now], kpe[now], layer=1)
        state = cache.attend_latent(step, q_nope[now], q_pe[now], layer=1, sm_scale=0.4)
        cache.commit(step)
        at += count
        latents, turned = (side[:at, 0].astype(np.float64) for side in cache.gather(sequence, layer=1))
        rows = q_nope[now].astype(np.float64), q_pe[now].astype(np.float64)
        assert_state(state, dense_mla(*rows, latents, turned, sm_scale=0.4, with_bound=True))
    cache.audit()


def test_latents_are_refused_where_they_do_not_fit() -> None:
    rows = np.ones((1, 2, 8), np.float32)
    for spec, queries in (
        (SPEC, (rows[..., :3], rows[..., :2])),
        (CacheSpec(1, 1, 8, page_size=2, v_head_dim=4), (rows, rows)),
    ):
        cache = PagedKVCache(spec, 4)
        step = cache.begin([cache.add()], [1])
        with pytest.raises(ContractError, match="attend_latent: queries do not fit the cache"):
            cache.attend_latent(step, *queries, sm_scale=1.0)

    class Plain:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("mla"):
                raise AttributeError(name)
            return getattr(reference, name)

    cache = PagedKVCache(CacheSpec(1, 1, 8, page_size=2, v_head_dim=8), 4, backend=Plain())
    step = cache.begin([cache.add()], [1])
    with pytest.raises(ContractError, match="attend_latent: the backend lacks mla_decode, got none"):
        cache.attend_latent(step, rows, rows, sm_scale=1.0)
