"""Metadata on the device: checked there by a flag, refused with the text of the host, and nothing written (S22)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pagedref.attention as reference
from pagedref.conformance import PagedCase, assert_exact, make_case
from pagedref.errors import PagedRefError
from pagedref.kv_format import KVFormat

twin = pytest.importorskip("pagedref_cuda")
pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

from pagedref_cuda import _batch, _runtime, to_device  # noqa: E402

METADATA = ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len")


def lent(case: PagedCase, *, wide: bool = False) -> PagedCase:
    """Put the metadata of a case on the device."""
    dtype = np.int64 if wide else np.int32
    return replace(case, **{name: to_device(getattr(case, name).astype(dtype)) for name in METADATA})


def flat_mask(case: PagedCase) -> PagedCase:
    """Put the masks of a case into one flat array on the device."""
    flat = np.concatenate([part.reshape(-1) for part in case.keywords["mask"]])
    return case.using(**{**case.keywords, "mask": to_device(flat)})


def entry(name: str, at: int, value: int) -> Callable[[PagedCase], PagedCase]:
    """Return a change of one number."""

    def change(case: PagedCase) -> PagedCase:
        array = getattr(case, name).copy()
        array[at] = value
        return replace(case, **{name: array})

    return change


def batch(**keywords: Any) -> PagedCase:
    return make_case(60, [2, 1, 0, 3], [7, 3, 5, 9], poison=0.0, **keywords)


RIGHT: list[dict[str, Any]] = [{}, {"window": 3}, {"attention_chunk": 4, "causal": False}, {"softcap": 2.0}]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("keywords", RIGHT, ids=lambda keywords: "+".join(keywords) or "plain")
def test_right_metadata_changes_no_bit(keywords: dict[str, Any], wide: bool) -> None:
    case = batch(**keywords)
    for operation in (twin.paged_prefill, twin.ordered_prefill):
        there, here = (
            operation(one.q, one.qo_indptr, *one.pages, **one.keywords) for one in (lent(case, wide=wide), case)
        )
        assert isinstance(there.out, _runtime.DeviceArray), "results stay where the metadata is"
        assert_exact(np.asarray(there.out), np.asarray(here.out), "output")
        assert_exact(np.asarray(there.lse), np.asarray(here.lse), "lse")


def test_masks_and_decode() -> None:
    rng = np.random.default_rng(3)
    shapes = [(2, 7), (1, 3), (0, 5), (3, 9)]
    case = batch(mask=[rng.random(shape) < 0.6 for shape in shapes])
    assert_exact(np.asarray(flat_mask(lent(case)).prefill(twin).out), np.asarray(case.prefill(twin).out), "masked")
    one = make_case(61, [1, 1, 1], [5, 0, 12])
    assert_exact(np.asarray(lent(one).decode(twin).out), np.asarray(one.decode(twin).out), "decode")


def test_a_geometry_of_the_fast_rungs() -> None:
    """Their list of work is made on the host, from a copy of the metadata; the answers are the same."""
    case = make_case(66, [1, 1], [9, 20], head_dim=64, page_size=16)
    assert_exact(np.asarray(lent(case).decode(twin).out), np.asarray(case.decode(twin).out), "decode")
    with pytest.raises(PagedRefError, match="kv_indices is out of range"):
        lent(entry("kv_indices", 1, 99)(case)).decode(twin)


def test_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with metadata on the device copies none of it to the host."""
    case = lent(batch())

    def copied(self: Any, dtype: Any = None, copy: Any = None) -> Any:
        raise AssertionError("an array was copied to the host")

    monkeypatch.setattr(_runtime.DeviceArray, "__array__", copied)
    case.prefill(twin)
    pools = to_device(case.k_cache), to_device(case.v_cache)
    twin.append_kv(case.q[:, :2], case.q[:, :2], *pools, to_device(np.arange(6)))


WRONG: dict[str, tuple[Callable[[PagedCase], PagedCase], dict[str, Any]]] = {
    "frame beyond the pool": (entry("kv_indices", 1, 999), {}),
    "frame of -2": (entry("kv_indices", 4, -2), {}),
    "last page too long": (entry("kv_last_page_len", 0, 5), {}),
    "last page of 0": (entry("kv_last_page_len", 3, 0), {}),
    "last page of -1": (entry("kv_last_page_len", 1, -1), {}),
    "rows that end early": (entry("qo_indptr", 4, 5), {}),
    "rows that begin late": (entry("qo_indptr", 0, 1), {}),
    "rows that go back": (entry("qo_indptr", 1, 4), {}),
    "rows far away": (entry("qo_indptr", 2, 1 << 30), {}),
    "table that ends early": (entry("kv_indptr", 4, 7), {}),
    "table that goes back": (entry("kv_indptr", 2, 1), {}),
    "table far away": (entry("kv_indptr", 1, -(1 << 30)), {}),
    "hole with a visible key": (entry("kv_indices", 1, -1), {}),
    "hole in a window": (entry("kv_indices", 7, -1), {"window": 2}),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_metadata_is_refused_with_the_same_text(what: str) -> None:
    change, keywords = WRONG[what]
    wrong = change(batch(**keywords))
    with pytest.raises(PagedRefError) as here:
        wrong.prefill(twin)
    with pytest.raises(PagedRefError) as there:
        lent(wrong).prefill(twin)
    assert (type(there.value), str(there.value)) == (type(here.value), str(here.value))


def test_a_hole_outside_every_view_is_none() -> None:
    case = entry("kv_indices", 5, -1)(batch(window=2))  # first page of the last sequence: keys 0..3 of 9
    assert_exact(np.asarray(lent(case).prefill(twin).out), np.asarray(case.prefill(twin).out))
    none = make_case(62, [], [])
    assert lent(none).prefill(twin).out.shape == (0, 4, 8)


def test_a_mask_of_another_size_is_refused() -> None:
    case = lent(batch()).using(mask=to_device(np.ones(9, bool)))
    with pytest.raises(PagedRefError, match="paged_prefill: mask has the wrong shape"):
        case.prefill(twin)


SLOTS = {"beyond the pool": [0, 10_000], "-2": [0, -2], "named twice": [3, -1, 1, 3]}


@pytest.mark.parametrize("what", SLOTS)
def test_wrong_slots_write_nothing(what: str) -> None:
    pools = [np.arange(4 * 4 * 2 * 3, dtype=np.float32).reshape(4, 4, 2, 3) for _ in range(2)]
    before = [pool.copy() for pool in pools]
    slots = np.array(SLOTS[what])
    rows = np.ones((len(slots), 2, 3), np.float32)
    with pytest.raises(PagedRefError) as here:
        twin.append_kv(rows, rows, *pools, slots)
    for given in (slots, slots.astype(np.int32)):
        with pytest.raises(PagedRefError) as there:
            twin.append_kv(rows, rows, *pools, to_device(given))
        assert (type(there.value), str(there.value)) == (type(here.value), str(here.value))
    for pool, want in zip(pools, before, strict=True):
        assert_exact(pool, want, "pool")


def test_right_slots_are_written() -> None:
    pools, expected = ([np.zeros((4, 4, 2, 3), np.float32) for _ in range(2)] for _ in range(2))
    slots = np.array([7, -1, 0], np.int32)
    rows = np.random.default_rng(1).standard_normal((3, 2, 3)).astype(np.float32)
    twin.append_kv(rows, rows, *pools, to_device(slots))
    reference.append_kv(rows, rows, *expected, slots)
    for pool, want in zip(pools, expected, strict=True):
        assert_exact(pool, want, "pool")


def test_scales_of_frames_in_use_are_checked() -> None:
    case = make_case(63, [1, 1], [6, 3], form=KVFormat("int8", "frame_head"))
    scale = case.stored["k_scale"].copy()
    scale[case.kv_indices[1], 1] = np.nan
    for one in (case, lent(case)):
        assert np.isfinite(np.asarray(one.decode(twin).lse)).all()
        with pytest.raises(PagedRefError, match="paged_decode: k_scale is out of range"):
            replace(one, stored={**case.stored, "k_scale": scale}).decode(twin)


def test_a_check_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel of rows, a hole with a visible key is read."""
    wrong = lent(entry("kv_indices", 1, -1)(batch()))
    monkeypatch.setattr(_batch, "check_rows_1", _NoCheck())
    with pytest.raises(Exception) as error:
        wrong.prefill(twin)
    assert not isinstance(error.value, PagedRefError)


class _NoCheck:
    """Finds the sequence of each row, and looks for no holes."""

    def launch(self, items: int, pages: Any, rules: Any, owner: Any, flag: Any) -> None:
        host = owner.array if hasattr(owner, "array") else owner
        host[...] = [0, 0, 1, 3, 3, 3]


def everywhere(value: Any) -> Any:
    """Put every array of a value on the device."""
    if isinstance(value, np.ndarray) and value.ndim:
        return to_device(value)
    return value


@pytest.mark.parametrize("form", [KVFormat("bfloat16"), KVFormat("int8", "frame_head"), KVFormat("int4", "group", 4)])
def test_every_array_may_lie_on_the_device(form: KVFormat) -> None:
    """Caches, scales, rows, states and metadata; the answers are those of the host, to the bit."""
    case = make_case(64, [1, 1, 1], [7, 0, 12], form=form)
    stored = {name: everywhere(value) for name, value in case.stored.items()}
    there = [everywhere(array) for array in (case.q, case.qo_indptr, *case.pages)]
    q, qo_indptr, *pages = there
    for operation, given, host in (
        ("paged_decode", (q, *pages), (case.q, *case.pages)),
        ("paged_prefill", (q, qo_indptr, *pages), (case.q, case.qo_indptr, *case.pages)),
        ("ordered_decode", (q, *pages), (case.q, *case.pages)),
        ("gather_kv", tuple(pages), case.pages),
    ):
        actual = getattr(twin, operation)(*given, **stored)
        expected = getattr(twin, operation)(*host, **case.stored)
        for one, other in zip(actual, expected, strict=True):
            assert isinstance(one, _runtime.DeviceArray)
            assert_exact(np.asarray(one), np.asarray(other), f"{operation} of {form}")
    out, lse = np.stack([case.q, -case.q]), np.stack([case.q[..., 0], case.q[..., 1]])
    merged = twin.merge_states(everywhere(out), everywhere(lse))
    assert_exact(np.asarray(merged.out), np.asarray(twin.merge_states(out, lse).out), "merged")
    target = type(merged)(everywhere(out[0].copy()), everywhere(lse[0].copy()))
    twin.merge_states(everywhere(out), everywhere(lse), out_state=target)
    assert_exact(np.asarray(target.out), np.asarray(merged.out), "merged in place")
    rows = np.random.default_rng(5).standard_normal((3, 2, 8)).astype(np.float32)
    slots = np.array([5, -1, 2])
    pools = [case.k_cache.copy(), case.v_cache.copy()]
    lent_pools = [everywhere(pool) for pool in pools]
    host_stored = {name: np.copy(x) if isinstance(x, np.ndarray) else x for name, x in case.stored.items()}
    lent_stored = {name: everywhere(np.copy(x)) if isinstance(x, np.ndarray) else x for name, x in case.stored.items()}
    twin.append_kv(rows, rows, *pools, slots, **host_stored)
    twin.append_kv(everywhere(rows), everywhere(rows), *lent_pools, everywhere(slots), **lent_stored)
    for one, other in zip(lent_pools, pools, strict=True):
        assert_exact(np.asarray(one), other, f"pool of {form}")
    for name, value in host_stored.items():
        if isinstance(value, np.ndarray):
            assert_exact(np.asarray(lent_stored[name]), value, name)


def test_latents_on_the_device() -> None:
    from tests.spec.latent_cases import make_latent

    case = make_latent(65, [2, 1], [9, 5], sparse_positions=np.array([[0, 3], [8, -1], [1, 4]], np.int32))
    arrays = case.q_nope, case.q_pe, case.qo_indptr, *case.pages
    keywords = {name: everywhere(value) for name, value in case.keywords.items()}
    actual = twin.mla_prefill(*map(everywhere, arrays), **keywords)
    assert_exact(np.asarray(actual.out), np.asarray(case.prefill(twin).out), "latents")
