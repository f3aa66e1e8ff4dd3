"""Faults found by people who tried to break the reference, each as its kind."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.attention import append_kv, copy_frames, merge_states, paged_decode, paged_prefill, parallel
from pagedref.attention.quantize import dequantize, quantize
from pagedref.cache_spec import CacheSpec
from pagedref.conformance import assert_exact, make_case
from pagedref.conformance.storage_checks import FORMATS
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.kv_format import KINDS, KVFormat

CASE = make_case(0, [1], [7], poison=0.0)


def decode(**keywords: Any) -> Any:
    return paged_decode(CASE.q, *CASE.pages, **keywords)


@given(low=st.floats(-(2.0**126), 2.0**126, width=32), steps=st.integers(1, 40), kind=st.sampled_from(["int4", "int8"]))
def test_neighbouring_values_keep_a_finite_zero_point(low: float, steps: int, kind: str) -> None:
    """S17: a range of a few ulp far from 0; the width divided, not the difference of the quotients."""
    high = np.float32(low)
    for _ in range(steps):
        high = np.nextafter(high, np.float32(np.inf))
    row = np.array([[low, high]], np.float32)
    form = KVFormat(kind, "slot_head", zero_point=True)
    stored, scale, zero = quantize(row, form)
    assert scale is not None and zero is not None and np.isfinite(scale).all() and np.isfinite(zero).all()
    back = dequantize(stored, form, scale, zero).astype(np.float64)
    smallest = 16 * float(np.finfo(np.float32).tiny)  # a step is never subnormal where a range has two values
    assert np.abs(back - row).max() <= (float(high) - low) + 4e-7 * abs(low) + smallest


@pytest.mark.parametrize("constant", [1e-42, 5e-39, -1e-45])
@pytest.mark.parametrize("kind", ["e4m3fn", "e5m2", "int8", "int4"])
def test_a_subnormal_constant_comes_back(kind: str, constant: float) -> None:
    """S17: one value, however small, is stored as 1 or -1 beside its own size."""
    row = np.full((1, 4), constant, np.float32)
    form = KVFormat(kind, "slot_head")
    stored, scale, zero = quantize(row, form)
    assert (dequantize(stored, form, scale, zero) == row).all()


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_every_format_in_one_buffer_of_all_layers(form: KVFormat) -> None:
    """L9, S23, for types that ``as_strided`` does not know."""
    case = make_case(1, [2], [9], form=form)
    plain = case.prefill(sys.modules["pagedref.attention"])
    wide = np.stack([case.k_cache, case.v_cache, case.k_cache], axis=1)
    keywords = {**case.keywords, **case.stored}
    state = paged_prefill(case.q, case.qo_indptr, wide[:, 0], wide[:, 1], *case.pages[2:], **keywords)
    assert_exact(state.out, plain.out)


@pytest.mark.parametrize("size", [2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**30])
def test_windows_and_chunks_of_any_length(size: int) -> None:
    """L13: as long as the sequence or far beyond, no bit changes and nothing wraps."""
    plain = decode()
    for keywords in ({"window": size}, {"window": (None, size)}, {"window": (size, None)}, {"attention_chunk": size}):
        assert_exact(decode(**keywords).out, plain.out, str(keywords))


@pytest.mark.parametrize("indptr", [[0, 2**63 - 1, -2, 2], [0, 3, 1, 2], [0, -1, 2, 2]])
def test_a_row_pointer_that_goes_back_is_refused(indptr: list[int]) -> None:
    """Compared, not subtracted: the difference of the first one wraps to a positive number."""
    q = np.zeros((3, 4, 8), np.float32)
    with pytest.raises(ContractError, match="kv_indptr decreases"):
        paged_decode(q, CASE.k_cache, CASE.v_cache, np.array(indptr), np.arange(2), np.array([1, 1, 1]))
    with pytest.raises(ContractError, match="qo_indptr decreases"):
        pages = np.array([0, 2, 2, 2]), np.arange(2), np.array([1, 0, 0])
        paged_prefill(q[:2], np.array(indptr), *CASE.pages[:2], *pages)


@pytest.mark.parametrize(
    ("keywords", "word"),
    [
        ({"sinks": np.array([1e300, 0, 0, 0])}, "sinks"),
        ({"alibi_slopes": np.array([0, 1e39, 0, 0])}, "alibi_slopes"),
        ({"sm_scale": 1e300}, "sm_scale"),
        ({"sm_scale": 10**400}, "sm_scale"),
        ({"softcap": 1e-50}, "softcap"),
        ({"k_scale": 1e60}, "k_scale"),
        ({"v_scale": float("inf")}, "v_scale"),
        ({"k_scale": 10**400}, "k_scale"),
    ],
)
def test_numbers_are_checked_in_the_type_that_computes(keywords: dict[str, Any], word: str) -> None:
    """Finite in float64 and not in float32 is not finite."""
    with pytest.raises(ContractError, match=f"paged_decode: {word}"):
        decode(**keywords)


def test_merged_lse_beyond_its_type_is_refused() -> None:
    with pytest.raises(ContractError, match="merge_states: lse is out of range"):
        merge_states(np.zeros((2, 1, 1, 1), np.float32), np.array([1e39, 0]).reshape(2, 1, 1))


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("float64", "float32", "int8", "int4")])
def test_numbers_are_taken_as_float32_whatever_the_kind(kind: str) -> None:
    """S16: float64 rows are rounded to float32, divided, saturated and rounded once; all kinds alike."""
    value = np.float64(1 + 2.0**-11 + 2.0**-40)
    cache = np.zeros((1, 1, 1, 1), KINDS[kind].dtype)
    append_kv(np.full((1, 1, 1), value), np.full((1, 1, 1), value), cache, cache.copy(), np.array([0]))
    assert cache.astype(np.float32).item() == np.float32(value).astype(KINDS[kind].dtype).astype(np.float32)


def test_sizes_of_numpy_integers_do_not_wrap(tmp_path: Any) -> None:
    """S19: 32-bit sizes multiply in 64 bits, and can be saved."""
    narrow = np.int32
    spec = CacheSpec(narrow(64), narrow(64), narrow(576), page_size=narrow(4096))
    assert spec.bytes_per_frame == 77_309_411_328
    cache = PagedKVCache(CacheSpec(np.int64(1), 1, 1, page_size=2), 4)
    cache.save(cache.add(), tmp_path / "empty.safetensors")


@pytest.mark.parametrize("scale", [1e37, 1e-37])
def test_a_scale_is_applied_to_the_score(scale: float) -> None:
    """S16: ``stored * scale`` is finite where ``q * scale`` is not."""
    key = np.full((1, 1, 1, 1), 2.0**-16, ml_dtypes.float8_e5m2)
    q, pages = np.full((1, 1, 1), 100.0, np.float32), (np.array([0, 1]), np.array([0]), np.array([1]))
    stored = paged_decode(q, key, key, *pages, k_scale=scale, sm_scale=1e-3)
    plain = key.astype(np.float32) * np.float32(scale)
    read = paged_decode(q, plain, key.astype(np.float32), *pages, sm_scale=1e-3)
    assert np.isfinite(stored.lse).all() and np.allclose(stored.lse, read.lse, rtol=1e-6)


def read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


def test_read_only_arrays_are_refused_before_anything_is_written() -> None:
    """S26, also for the second of two arrays, for scales, and for the target of a merge."""
    k_cache, rows = np.zeros((2, 2, 1, 2), np.float32), np.ones((1, 1, 2), np.float32)
    for name, call in {
        "append_kv: v_cache is read-only": lambda: append_kv(rows, rows, k_cache, read_only(k_cache), np.array([0])),
        r"copy_frames: arrays\[1\] is read-only": lambda: copy_frames(
            [k_cache, read_only(k_cache)], np.array([0]), np.array([1])
        ),
        "append_kv: v_scale is read-only": lambda: append_kv(
            rows,
            rows,
            k_cache.astype(np.int8),
            k_cache.astype(np.int8),
            np.array([0]),
            k_scale=np.ones((2, 2, 1), np.float32),
            v_scale=read_only(np.ones((2, 2, 1), np.float32)),
        ),
        r"merge_states: out_state\.lse is read-only": lambda: merge_states(
            np.zeros((1, 1, 1, 1)),
            np.zeros((1, 1, 1)),
            out_state=(np.zeros((1, 1, 1)), read_only(np.zeros((1, 1)))),  # type: ignore[arg-type]
        ),
    }.items():
        with pytest.raises(ContractError, match=name):
            call()
    assert (k_cache == 0).all()


def test_scales_of_frames_in_use_are_checked() -> None:
    """S17: those of frames without content may hold anything."""
    case = make_case(3, [1], [7], form=KVFormat("int8", "frame_head"))
    unused = sorted(set(range(len(case.k_cache))) - set(case.kv_indices.tolist()))[0]
    stored = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in case.stored.items()}
    stored["k_scale"][unused] = np.nan
    expected = paged_decode(case.q, *case.pages, **case.stored)
    assert_exact(paged_decode(case.q, *case.pages, **stored).out, expected.out)
    stored["k_scale"][case.kv_indices[0]] = -1
    with pytest.raises(ContractError, match="k_scale is out of range"):
        paged_decode(case.q, *case.pages, **stored)
    rows = np.ones((1, 2, 8), np.float32)
    with pytest.raises(ContractError, match="k_scale is out of range"):
        append_kv(rows, rows, case.k_cache, case.v_cache, np.array([int(case.kv_indices[0]) * 4]), **stored)


@pytest.mark.parametrize("dim", ["head_dim", "v_head_dim"])
def test_empty_heads_are_refused(dim: str) -> None:
    case = make_case(4, [1], [3], **{dim: 8})
    arrays = {"q": case.q, "k_cache": case.k_cache, "v_cache": case.v_cache}
    for name in ("q", "k_cache") if dim == "head_dim" else ("v_cache",):
        arrays[name] = arrays[name][..., :0]
    with pytest.raises(ContractError, match=f"has an empty {dim}"):
        paged_decode(*arrays.values(), *case.pages[2:])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: KVFormat([]),  # type: ignore[arg-type]
        lambda: KVFormat("int4", "group", 1.5),  # type: ignore[arg-type]
        lambda: KVFormat("int8", "slot_head", zero_point="no"),  # type: ignore[arg-type]
        lambda: KVFormat.of("nonsense"),
        lambda: CacheSpec(1, 1, 1, 1, dtype=[]),  # type: ignore[arg-type]
        lambda: merge_states(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)), out_state=5),  # type: ignore[arg-type]
        lambda: merge_states(
            np.zeros((1, 1, 1, 1)),
            np.zeros((1, 1, 1)),
            out_state=(np.zeros((1, 1, 1), int), np.zeros((1, 1))),  # type: ignore[arg-type]
        ),
        lambda: PagedKVCache(CacheSpec(1, 1, 2, 2, kv_format=KVFormat("int8", "tensor")), 2, k_scale=np.inf, v_scale=1),
    ],
)
def test_foreign_types_are_contract_errors(wrong: Any) -> None:
    with pytest.raises(ContractError):
        wrong()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of the parent are not in the child: it starts its own."""
    pytest.importorskip("threadpoolctl", reason="threads are used where threadpoolctl is installed")
    monkeypatch.setenv("PAGEDREF_THREADS", "2")
    monkeypatch.setattr(parallel, "_LARGE", 1)
    case = make_case(5, [1] * 4, [40] * 4)
    expected = paged_decode(case.q, *case.pages)
    child = os.fork()
    if child == 0:
        same = np.array_equal(paged_decode(case.q, *case.pages).out, expected.out)
        os._exit(0 if same else 1)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return


        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")
