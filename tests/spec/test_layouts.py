"""The border: every converter there and back, views where they say so, and refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref import layouts
from pagedref.addressing import last_page_len, num_pages
from pagedref.errors import ContractError, NotOffered
from pagedref.options import attention_options
from pagedref.ragged import CSR, slot_mapping_from_csr

sizes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.sampled_from([2, 4, 8]))
dtypes = st.sampled_from(["float32", "float16", "bfloat16", "float8_e4m3fn", "int8"])


def numbered(shape: tuple[int, ...], dtype: str = "float32", first: int = 0) -> Any:
    """Numbers that tell every element apart, up to the type's own limits."""
    bits = np.arange(first, first + int(np.prod(shape))).reshape(shape)
    return bits.astype(dtype)


def same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@given(sizes, dtypes)
def test_views_of_one_cache_go_there_and_back(shape: tuple[int, int, int, int], dtype: str) -> None:
    cache = numbered(shape, dtype)
    for there, back in (
        (layouts.hnd_from_nhd, layouts.nhd_from_hnd),
        (layouts.packed_from_k, layouts.k_from_packed),
        (lambda k: layouts.packed_from_k(k, 2), layouts.k_from_packed),
        (layouts.channels_first_from_v, layouts.v_from_channels_first),
    ):
        if there is layouts.packed_from_k and shape[3] % (16 // cache.itemsize):
            continue
        theirs = there(cache)
        assert np.shares_memory(theirs, cache)
        ours = back(theirs)
        assert same(ours, cache)
        assert np.shares_memory(ours, cache)


@given(sizes, dtypes)
def test_joined_caches_come_apart_as_views(shape: tuple[int, int, int, int], dtype: str) -> None:
    k, v = numbered(shape, dtype), numbered(shape, dtype, first=1)
    for joined, apart in (
        (layouts.combined_from_kv(k, v), layouts.kv_from_combined),
        (layouts.combined_from_kv(k, v, 0), lambda both: layouts.kv_from_combined(both, 0)),
        (layouts.interleaved_from_kv(k, v), layouts.kv_from_interleaved),
    ):
        first, second = apart(joined)
        assert same(first, k)
        assert same(second, v)
        assert np.shares_memory(first, joined)
        assert np.shares_memory(second, joined)
        assert not np.shares_memory(joined, k)


def test_where_an_element_lies() -> None:
    """Each layout, element by element, written down from its own description."""
    frames, page_size, heads, dim, x = 3, 4, 2, 8, 4
    k, v = numbered((frames, page_size, heads, dim)), numbered((frames, page_size, heads, dim), first=1000)
    hnd, packed = layouts.hnd_from_nhd(k), layouts.packed_from_k(k)
    turned = layouts.channels_first_from_v(v)
    flashinfer, vllm = layouts.combined_from_kv(k, v), layouts.combined_from_kv(k, v, axis=0)
    jax = layouts.interleaved_from_kv(k, v)
    for at in np.ndindex(k.shape):
        f, s, h, c = at
        assert hnd[f, h, s, c] == k[at]
        assert packed[f, h, c // x, s, c % x] == k[at]
        assert turned[f, h, c, s] == v[at]
        assert (flashinfer[f, 0, s, h, c], flashinfer[f, 1, s, h, c]) == (k[at], v[at])
        assert (vllm[0, f, s, h, c], vllm[1, f, s, h, c]) == (k[at], v[at])
        assert (jax[f, s, 2 * h, c], jax[f, s, 2 * h + 1, c]) == (k[at], v[at])


def test_a_packed_cache_of_vllm_is_copied() -> None:
    packed = numbered((3, 2, 4, 5, 2))  # contiguous as vLLM allocates it
    ours = layouts.k_from_packed(packed)
    assert ours.shape == (3, 5, 2, 8)
    assert not np.shares_memory(ours, packed)
    assert same(np.ascontiguousarray(layouts.packed_from_k(ours, 2)), packed)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(0, 4))
def test_latent_pages(frames: int, page_size: int, rank: int, rope_dim: int) -> None:
    ckv, kpe = numbered((frames, page_size, rank)), numbered((frames, page_size, rope_dim), first=500)
    pages = layouts.latent_pages_from_parts(ckv, kpe)
    for form in (pages, pages[:, :, None]):
        parts = layouts.parts_from_latent_pages(form, rank)
        assert same(parts[0], ckv)
        assert same(parts[1], kpe)
        assert np.shares_memory(parts[0], form)


@st.composite
def batches(draw: st.DrawFn) -> tuple[CSR, int, Any]:
    """A CSR, its page size, and where the queries start."""
    page_size = draw(st.integers(1, 5))
    lens = np.array(draw(st.lists(st.integers(0, 14), max_size=5)), np.int64)
    pages = num_pages(lens, page_size).reshape(-1)
    frames = np.array(draw(st.permutations(range(int(pages.sum()) + 2))))[: int(pages.sum())]
    indptr = np.concatenate([[0], np.cumsum(pages)]).astype(np.int32)
    queries = np.concatenate([[0], np.cumsum([draw(st.integers(0, int(n))) for n in lens])]).astype(np.int32)
    last = last_page_len(lens, page_size).reshape(-1).astype(np.int32)
    return CSR(indptr, frames.astype(np.int32), last), page_size, queries


@given(batches(), st.integers(-1, 1), st.integers(0, 2))
def test_tables_go_there_and_back(batch: tuple[CSR, int, Any], padding: int, spare: int) -> None:
    csr, page_size, queries = batch
    table, lens = layouts.padded_table_from_csr(*csr, page_size, padding=padding)
    assert table.shape[1] >= 1
    again = layouts.csr_from_padded_table(table, lens, page_size)
    ragged = layouts.ragged_jax_from_csr(queries, *csr, page_size, max_num_seqs=len(lens) + spare)
    starts, third = layouts.csr_from_ragged_jax(ragged, page_size)
    assert np.array_equal(starts, queries)
    for one, two, three in zip(again, csr, third, strict=True):
        assert np.array_equal(one, two)
        assert np.array_equal(three, two)


@given(batches(), st.integers(1, 4))
def test_kernel_pages_keep_the_slots(batch: tuple[CSR, int, Any], ratio: int) -> None:
    csr, page_size, _ = batch
    large = page_size * ratio  # the same table, its pages `ratio` times as large, all full
    full = np.where(np.diff(csr.kv_indptr) > 0, large, 0)
    small = layouts.kernel_pages_from_pages(csr.kv_indices, ratio)
    ends = np.where(full > 0, page_size, 0)
    slots = slot_mapping_from_csr(csr.kv_indptr * ratio, small, ends, page_size)
    assert np.array_equal(slots, slot_mapping_from_csr(csr.kv_indptr, csr.kv_indices, full, large))
    assert np.array_equal(layouts.pages_from_kernel_pages(small, ratio), csr.kv_indices)


sides = st.none() | st.integers(0, 6)
windows = st.none() | st.integers(1, 7) | st.tuples(sides, sides)


def _seen(window: Any, causal: bool) -> list[list[int]]:
    options = attention_options("test", 4, np.float32, causal=causal, window=window)
    return [bound.tolist() for bound in options.intervals(np.arange(-1, 9), 9)]


@given(windows, st.booleans())
def test_windows_see_the_same_keys(window: Any, causal: bool) -> None:
    size = layouts.window_size_from_window(window, causal=causal)
    assert _seen(layouts.window_from_window_size(size), causal) == _seen(window, causal)
    assert layouts.window_size_from_window(layouts.window_from_window_size(size), causal=causal) == size
    try:
        left = layouts.window_left_from_window(window, causal=causal)
    except NotOffered:
        assert not causal
    else:
        assert _seen(layouts.window_from_window_left(left), causal) == _seen(window, causal)


def test_a_count_includes_the_own_position() -> None:
    """W keys are W - 1 before the own one, in both conventions."""
    assert layouts.window_left_from_window(5) == 4
    assert layouts.window_size_from_window(5) == (4, 0)
    assert layouts.window_size_from_window(5, causal=False) == (4, 4)


@given(st.lists(st.floats(-1e4, 1e4, width=32) | st.just(float("-inf")), min_size=1), st.sampled_from(["f4", "f8"]))
def test_lse_of_the_other_base(numbers: list[float], dtype: str) -> None:
    lse = np.array(numbers, dtype)
    binary = layouts.base_2_from_natural(lse)
    back = layouts.natural_from_base_2(binary)
    assert binary.dtype == back.dtype == lse.dtype
    finite = np.isfinite(lse)
    assert np.array_equal(back[~finite], lse[~finite])
    # each way rounds once in the type (and a product in float64): at most two neighbours away
    tiny = np.finfo(dtype).smallest_normal
    assert (np.abs(back[finite] - lse[finite]) <= 2 * np.spacing(np.maximum(np.abs(lse[finite]), tiny))).all()
    assert np.array_equal(np.sign(binary), np.sign(lse))
    assert (np.abs(binary[finite]) >= np.abs(lse[finite])).all()


def test_lse_of_the_other_order_and_of_empty_rows() -> None:
    lse = np.array([[1.0, -np.inf, 3.0], [4.0, 5.0, -np.inf]], np.float32)
    theirs = layouts.heads_first_from_tokens_first(layouts.plus_infinity_from_empty(lse))
    assert theirs.shape == (3, 2)
    assert np.isposinf(theirs[1, 0])
    ours = layouts.tokens_first_from_heads_first(layouts.empty_from_plus_infinity(theirs))
    assert same(np.ascontiguousarray(ours), lse)
    assert layouts.empty_from_plus_infinity(lse) is lse
    assert np.shares_memory(layouts.heads_first_from_tokens_first(lse), lse)


class _Offering:
    """An array of nobody we know, that offers DLPack alone."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class _OnDevice:
    """An array on a device: it has to be asked for a copy."""

    def __init__(self, array: Any) -> None:
        self._array, self.__cuda_array_interface__ = array, array.__array_interface__

    def copy_to_host(self) -> Any:
        return self._array.copy()


def test_arrays_of_others() -> None:
    array = numbered((2, 3))
    assert layouts.numpy_from_any(array) is array
    assert np.shares_memory(layouts.numpy_from_any(_Offering(array)), array)
    assert same(layouts.numpy_from_any(_OnDevice(array)), array)
    assert layouts.any_from_numpy(array, np) is array
    with pytest.raises(ContractError, match="numpy_from_any: array is not an array, got object"):
        layouts.numpy_from_any(object())


class _Narrow:
    """A library without float64."""

    __spec__ = None
    __name__ = "narrow"

    @staticmethod
    def asarray(array: Any) -> Any:
        return array.astype(np.float32)


def test_a_type_that_a_library_lacks_is_not_offered() -> None:
    with pytest.raises(NotOffered, match=r"got float64, need e\.g\. float32"):
        layouts.any_from_numpy(np.zeros(2), _Narrow)


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (tox -e torch-sdpa)")
    array = numbered((2, 3), dtype)
    theirs = layouts.any_from_numpy(array, torch)
    assert str(theirs.dtype) == f"torch.{dtype}"
    back = layouts.numpy_from_any(theirs)
    assert same(back, array)
    assert np.shares_memory(back, array)
    read_only = array.copy()
    read_only.flags.writeable = False
    assert same(layouts.numpy_from_any(layouts.any_from_numpy(read_only[::-1], torch)), read_only[::-1].copy())


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "bfloat16"])
def test_arrays_of_jax(dtype: str) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed (tox -e jax)")
    array = numbered((2, 3), dtype)
    theirs = layouts.any_from_numpy(array, jax)
    assert same(np.ascontiguousarray(layouts.numpy_from_any(theirs)), array)
    with pytest.raises(NotOffered, match="got float64"):
        layouts.any_from_numpy(np.zeros(2), jax)


def test_no_library_is_imported() -> None:
    code = (
        "import sys, pagedref.layouts, pagedref.conformance.adapters; "
        "print([name for name in ('torch', 'jax', 'cupy', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NHD = np.zeros((2, 4, 2, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: layouts.hnd_from_nhd(NHD[0]), "hnd_from_nhd: cache has the wrong number of dimensions"),
        (lambda: layouts.nhd_from_hnd([1]), "nhd_from_hnd: cache is not an array of NumPy, got list"),
        (lambda: layouts.combined_from_kv(NHD, NHD[:1]), "combined_from_kv: v_cache has another shape"),
        (lambda: layouts.combined_from_kv(NHD, NHD.astype(np.float16)), "combined_from_kv: v_cache has another type"),
        (lambda: layouts.combined_from_kv(NHD, NHD, 2), "combined_from_kv: axis is wrong, got 2"),
        (lambda: layouts.kv_from_combined(np.stack([NHD] * 3, 1)), "kv_from_combined: combined holds no pair on axis"),
        (lambda: layouts.kv_from_interleaved(NHD[:, :, :1]), "kv_from_interleaved: pages has an odd number of heads"),
        (lambda: layouts.packed_from_k(NHD, 3), "packed_from_k: x does not divide head_dim, got 3, need a"),
        (lambda: layouts.parts_from_latent_pages(NHD[:, :, 0], 9), "parts_from_latent_pages: rank is out of range"),
        (lambda: layouts.latent_pages_from_parts(NHD[0], NHD[1][:1]), "latent_pages_from_parts: kpe_cache does not"),
        (lambda: layouts.window_from_window_left(-2), "window_from_window_left: window_left is out of range, got -2"),
        (lambda: layouts.window_from_window_size((1,)), "window_from_window_size: window_size is not a pair"),
        (lambda: layouts.window_size_from_window(0), "window_size_from_window: window is out of range, got 0"),
        (lambda: layouts.base_2_from_natural(np.arange(3)), "base_2_from_natural: lse is no array of floats"),
        (lambda: layouts.tokens_first_from_heads_first(np.zeros(3)), "tokens_first_from_heads_first: lse has too few"),
        (lambda: layouts.kernel_pages_from_pages([1], 0), "kernel_pages_from_pages: ratio is wrong, got 0"),
        (lambda: layouts.pages_from_kernel_pages([11, 12], 2), "pages_from_kernel_pages: frames are no whole pages"),
        (
            lambda: layouts.ragged_jax_from_csr([0, 1], [0, 1], [0], [1], 4, max_num_seqs=0),
            "ragged_jax_from_csr: max_num_seqs is too small, got 0",
        ),
        (
            lambda: layouts.csr_from_padded_table(np.zeros((1, 1), np.int32), [5], 4),
            "csr_from_block_table",
        ),
    ],
)
def test_refusals(call: Any, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        call()


def test_bits_of_narrow_types_are_those_of_ml_dtypes() -> None:
    assert layouts.numpy_from_any(np.zeros(1, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16
