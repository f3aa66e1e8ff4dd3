"""Numbers of every type on the device: read and written to the bit as NumPy does it (S15-S18)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import pagedref.attention as reference
from pagedref.attention import dense_attention
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.quantize import dequantize, quantize
from pagedref.cache_spec import CacheSpec
from pagedref.conformance import assert_exact, assert_state
from pagedref.conformance.storage_checks import FORMATS
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.kv_format import KINDS, KVFormat

twin = pytest.importorskip("pagedref_cuda")
pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

from pagedref_cuda._runtime import SIMULATOR  # noqa: E402

Array = npt.NDArray[Any]

FORMS = [form for form in FORMATS if form.kind != "float64"]
QUERIES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
ROWS = 40 if SIMULATOR else 400
DIM = 8
HEADS = 2


def strange_numbers(seed: int, count: int) -> Array:
    """Draw float32 of every size and kind: random bits, ends of formats and their neighbours, ties, NaNs, zeros."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ends = [0.0, 448.0, 464.0, 465.0, 1000.0, 57344.0, 61440.0, 65504.0, 65520.0, 127.0, 7.5, 0.5, 2.5, 1e-7, 6e-8]
    edges = np.array([*ends, *(-x for x in ends), np.inf, -np.inf, np.nan, -np.nan], np.float32)
    ordinary = rng.standard_normal(count).astype(np.float32) * np.float32(2.0) ** rng.integers(-24, 17, count)
    every = np.concatenate([edges, bits, ordinary.astype(np.float32)])
    quiet = every.view(np.uint32) | np.where(np.isnan(every), np.uint32(0x00400000), np.uint32(0))
    return rng.permutation(quiet)[:count].view(np.float32)  # what becomes of a signalling NaN, each processor decides


def caches(form: KVFormat, seed: int) -> dict[str, Any]:
    """Return junk caches of pages of 4, with the scales that the form needs."""
    frames = -(-ROWS // 4) + 1
    made: dict[str, Any] = {}
    for side in "kv":
        shape = form.scale_shape(frames, 4, HEADS, DIM)
        made[f"{side}_cache"] = np.zeros((frames, 4, HEADS, form.stored_dim(DIM)), form.dtype)
        if shape is not None:
            scale = np.random.default_rng([seed, 7]).uniform(0.01, 30, shape).astype(np.float32)
            made[f"{side}_scale"] = np.full(shape, np.nan, np.float32) if form.computed else scale
            if form.zero_point:
                made[f"{side}_zero"] = np.full(shape, np.nan, np.float32)
    return {**made, "kv_format": form}


def described(form: KVFormat) -> str:
    return "-".join(str(part) for part in (form.kind, form.granularity, form.group_size, form.zero_point) if part)


@pytest.mark.parametrize("dtype", QUERIES, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=described)
def test_append_and_gather_have_the_bits_of_numpy(form: KVFormat, dtype: Any) -> None:
    """Any row of any type, in any format, with any scale: cache, scales, zero points, and what is read back."""
    rng = np.random.default_rng([3, FORMS.index(form)])
    with np.errstate(all="ignore"):
        k, v = (strange_numbers(seed, ROWS * HEADS * DIM).reshape(ROWS, HEADS, DIM).astype(dtype) for seed in (1, 2))
    k[: ROWS // 2] = rng.standard_normal((ROWS // 2, HEADS, DIM)).astype(dtype)  # ordinary rows have ordinary scales
    slots = rng.permutation(ROWS + 4)[:ROWS]
    slots[rng.random(ROWS) < 0.1] = -1
    made = [caches(form, 5), caches(form, 5)]
    gathered = []
    for backend, given in zip((reference, twin), made, strict=True):
        pools = given["k_cache"], given["v_cache"]
        stored = {name: value for name, value in given.items() if not name.endswith("cache")}
        backend.append_kv(k, v, *pools, slots, **stored)
        frames = np.arange(len(pools[0]))
        live = np.array([0, len(frames)]), frames, np.array([4])
        with np.errstate(all="ignore"):
            gathered += backend.gather_kv(*pools, *live, **stored)
    for name, expected in made[0].items():
        if isinstance(expected, np.ndarray):
            assert_exact(made[1][name], expected, f"{form}, rows of {dtype}: {name}")
    for name, at in (("keys", 0), ("values", 1)):
        if form.computed:  # slots that were not written have scales of NaN, whose sign is nobody's business
            gathered[at], gathered[at + 2] = (np.nan_to_num(x.astype(np.float64), nan=0.0) for x in gathered[at::2])
        assert_exact(gathered[at + 2], gathered[at], f"{form}, rows of {dtype}: gathered {name}")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("float64", "float32")])
def test_every_code_is_read(kind: str) -> None:
    """All codes of 8 bits, and all of 16 bits on the emulator, with and without a scale."""
    granularity = "tensor" if kind.startswith("int") else None
    bits = 8 if kind not in ("float16", "bfloat16") else 16
    codes = np.arange(1 << bits, dtype=f"u{bits // 8}")[:: 97 if SIMULATOR and bits == 16 else 1]
    codes = codes[: len(codes) // DIM * DIM]
    for form in {KVFormat(kind, granularity), KVFormat(kind, "tensor")}:
        cache = codes.reshape(-1, 1, 1, DIM).view(form.dtype)
        scale = None if form.granularity is None else np.float32(0.37)
        expected = dequantize(cache, form, scale) if form.granularity else cache
        pages = np.array([0, len(cache)]), np.arange(len(cache)), np.array([1])
        stored = {} if scale is None else {"k_scale": scale, "v_scale": scale}
        keys, values = twin.gather_kv(cache, cache, *pages, kv_format=form, **stored)
        assert_exact(keys, expected[:, 0], f"keys of {form}")
        assert_exact(values, expected[:, 0], f"values of {form}")


def test_the_numbers_of_the_specification() -> None:
    """S16 at 448, 464, 465, -1000, Inf and NaN."""
    numbers = np.array([448, 464, 465, -1000, np.inf, np.nan, 57344, 61440], np.float32).reshape(-1, 1, 1)
    for kind in ("e4m3fn", "e5m2", "float16", "bfloat16"):
        form = KVFormat(kind)
        pools = [np.zeros((2, 4, 1, 1), form.dtype) for _ in range(2)]
        twin.append_kv(numbers, numbers, *pools, np.arange(8))
        assert_exact(pools[0].reshape(-1, 1, 1), quantize(numbers, form).stored, kind)


def test_float64_is_for_numpy_alone() -> None:
    cache = np.zeros((1, 1, 1, 2))
    pages = np.array([0, 1]), np.array([0]), np.array([1])
    with pytest.raises(ContractError, match="q has the wrong type, got float64"):
        twin.paged_decode(np.zeros((1, 1, 2)), cache, cache, *pages)
    with pytest.raises(ContractError, match="k_cache has the wrong type, got float64"):
        twin.gather_kv(cache, cache, *pages)


def test_a_wrong_rounding_is_found() -> None:
    """The comparison notices one bit."""
    cache = np.array([[1.0, 2.0]], np.float16)
    other = cache.copy()
    other.view(np.uint16)[0, 1] ^= 1
    with pytest.raises(AssertionError):
        assert_exact(other, cache)


@pytest.mark.parametrize("name", ["float16", "e4m3fn-scaled", "int8", "int4"])
def test_a_cache_that_a_user_holds(name: str) -> None:
    """Two sequences, a fork, a copy on write: the twin holds the bits of NumPy, and attends within the bound (S18)."""
    gathered = []
    for backend in (reference, twin):
        rng = np.random.default_rng(3)
        spec = CacheSpec(1, HEADS, DIM, page_size=4, kv_format=KVFormat.named(name, DIM))
        cache = PagedKVCache(spec, 8, backend=backend, poison=True)
        first = cache.add()
        step = cache.begin([first], [7])
        rows = rng.standard_normal((7, HEADS, DIM)).astype(np.float32)
        cache.append(step, rows, 2 * rows)
        cache.commit(step)
        second = cache.fork(first)
        step = cache.begin([second, first], [1, 1])
        rows, q = rng.standard_normal((2, HEADS, DIM)), rng.standard_normal((2, 2 * HEADS, DIM))
        cache.append(step, rows.astype(np.float32), -rows.astype(np.float32))
        state = cache.attend(step, q.astype(np.float32))
        cache.commit(step)
        for row, seq_id in enumerate((second, first)):
            keys, values = (np.asarray(part) for part in cache.gather(seq_id))
            gathered.append((keys, values))
            exact = dense_attention(
                q[row : row + 1].astype(np.float32),
                keys,
                values,
                with_bound=True,
                arithmetic=Arithmetic("float32", out_dtype="float32", scaled=True),
            )
            assert_state(tuple(np.asarray(part)[row : row + 1] for part in state), exact, f"{name}, sequence {seq_id}")
    for mine, theirs in zip(gathered[2:], gathered[:2], strict=True):
        assert_exact(mine[0], theirs[0], f"{name}: keys")
        assert_exact(mine[1], theirs[1], f"{name}: values")
