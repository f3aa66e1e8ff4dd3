"""Arrays on their way to kernels and back where there is no GPU; none may change a bit.

Kernels use the host's arrays where they lie, and those of another library that pretends to lie on a device.
:mod:`tests.kernels.test_gpu_route` walks the route of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

import pagedref_cuda as twin
from pagedref.errors import ContractError
from pagedref_cuda._runtime import SIMULATOR, mode, readable, settle, watch

needs_simulator = pytest.mark.skipif(not SIMULATOR, reason="needs NUMBA_ENABLE_CUDASIM=1")

Array = npt.NDArray[Any]


def strided() -> tuple[Array, Array, Array]:
    """Keys and values of one layer inside a buffer of all layers (S23)."""
    buffer = np.full((6, 2, 2, 4, 2, 9), np.nan, np.float32)
    return buffer, buffer[:, 1, 0, :, :, :8], buffer[:, 1, 1, :, :, 1:5]


class Foreign:
    """An array of some other library: an address, a shape and a stream."""

    def __init__(self, array: Array, stream: int | None = 7) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": array.dtype.str,
            "data": (array.__array_interface__["data"][0], not array.flags.writeable),
            "version": 3,
            "stream": stream,
            "pagedref_emulator": True,
        }


def everything(seed: int, put: Callable[[Array], Any] = lambda array: array) -> list[Array]:
    """Run each operation once, on arrays as `put` gives them; return all results and the whole buffer."""
    rng = np.random.default_rng(seed)
    buffer, k_cache, v_cache = strided()
    pages = np.array([0, 2, 2, 3]), np.array([5, 0, 3], np.int32), np.array([3, 0, 1])
    slots = np.array([20, 21, 22, 23, 0, 1, 2, 12, -1])
    k, v = (rng.standard_normal((9, 2, dim)).astype(np.float32) for dim in (8, 4))
    caches = put(k_cache), put(v_cache)
    pages = tuple(map(put, pages))
    twin.append_kv(put(k), put(v), *caches, put(slots))
    gathered = twin.gather_kv(*caches, *pages)
    decoded = twin.paged_decode(put(rng.standard_normal((3, 4, 8)).astype(np.float32)), *caches, *pages)
    q = rng.standard_normal((5, 4, 8)).astype(np.float32)
    mask = [rng.random(shape) < 0.5 for shape in ((3, 7), (1, 0), (1, 1))]
    starts = np.array([0, 3, 4, 5])
    sinks = put(np.zeros(4, np.float32))
    filled = twin.paged_prefill(put(q), put(starts), *caches, *pages, mask=mask, sinks=sinks)
    plain = twin.paged_prefill(put(q), put(starts), *caches, *pages, softcap=2.0, window=3)
    merged = twin.merge_states(*(put(np.stack([np.asarray(x), np.asarray(y)])) for x, y in zip(filled, plain)))
    odd = np.arange(24, dtype=np.float16).reshape(6, 4)[:, ::2]
    complex_ = np.arange(6) + 1j
    twin.copy_frames([*caches, odd, complex_], put(np.array([5, 3])), put(np.array([1, 4])))
    return [buffer, *gathered, *decoded, *filled, *plain, *merged, odd, complex_]


def same(left: list[Any], right: list[Any]) -> None:
    for a, b in zip(map(np.asarray, left), map(np.asarray, right), strict=True):
        assert a.dtype == b.dtype
        assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@pytest.mark.skipif(mode() == "gpu", reason="the addresses are a host's")
@pytest.mark.parametrize("seed", range(2))
def test_arrays_of_another_library_change_no_bit_and_results_stay_on_the_device(seed: int) -> None:
    direct = everything(seed)
    lent = everything(seed, Foreign)
    same(direct, lent)
    results = lent[1:-2]
    assert all(isinstance(array, twin.DeviceArray) for array in results)
    assert {array.__cuda_array_interface__["stream"] for array in results} == {7}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_device_arrays_are_used_where_they_lie(dtype: str) -> None:
    rng = np.random.default_rng(0)
    k_cache, v_cache = rng.standard_normal((2, 4, 2, 1, 4), np.float32).astype(np.dtype(dtype))
    q = rng.standard_normal((1, 2, 4), np.float32).astype(np.dtype(dtype))
    table = np.array([0, 2]), np.array([3, 1]), np.array([1])
    host = twin.paged_decode(q, k_cache, v_cache, *table)
    device = twin.paged_decode(*map(twin.to_device, (q, k_cache, v_cache, *table)))
    assert isinstance(device.out, twin.DeviceArray)
    same([*host], [*device])
    pools = twin.to_device(k_cache), twin.to_device(v_cache)
    twin.append_kv(np.ones((1, 1, 4), q.dtype), np.ones((1, 1, 4), q.dtype), *pools, np.array([5]))
    assert (np.asarray(pools[0])[2, 1] == 1).all() and (np.asarray(pools[1])[2, 1] == 1).all()


def test_a_result_goes_where_the_caller_said() -> None:
    out, lse = np.zeros((2, 1, 1, 4), np.float32), np.zeros((2, 1, 1), np.float32)
    target = twin.AttentionState(Foreign(np.ones((1, 1, 4), np.float32)), Foreign(np.ones((1, 1), np.float32)))
    if mode() == "gpu":
        pytest.skip("the addresses are a host's")
    returned = twin.merge_states(Foreign(out), Foreign(lse), out_state=target)
    assert returned.out is target.out
    assert not target.out.array.any()


@pytest.mark.skipif(mode() == "gpu", reason="there is a GPU")
def test_an_array_on_a_gpu_is_refused_where_kernels_run_elsewhere() -> None:
    array = Foreign(np.zeros((1, 1, 4), np.float32))
    del array.__cuda_array_interface__["pagedref_emulator"]
    with pytest.raises(ContractError, match="an array lies on a GPU"):
        twin.merge_states(array, np.zeros((1, 1), np.float32))


def test_device_arrays_share_memory_or_refuse() -> None:
    array = twin.to_device(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    assert len(array) == 2
    assert array[1, :, ::2].view(np.uint32).dtype == np.uint32
    assert (np.asarray(array[1, 2, 3]) == 23).all()
    assert array[:, 1].reshape(1, 2, 4).shape == (1, 2, 4)
    assert array.astype(np.int64).sum() == 276
    with pytest.raises(ContractError, match="reshape needs a copy"):
        array[:, ::2].reshape(-1)
    with pytest.raises(ContractError, match="index is not basic"):
        array[np.array([0, 1])]
    with pytest.raises(AttributeError, match="DeviceArray has no mean"):
        array.mean()


def test_host_arrays_of_another_library_come_back_in_kind() -> None:
    class OnHost:
        def __init__(self, array: Array) -> None:
            self.array = array

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    rng = np.random.default_rng(1)
    out, lse = rng.standard_normal((2, 1, 2, 4), np.float32), rng.standard_normal((2, 1, 2), np.float32)
    same([*twin.merge_states(out, lse)], [*twin.merge_states(OnHost(out), OnHost(lse))])


def test_a_watched_flag_is_looked_at() -> None:
    seen: list[int] = []
    flag = readable(np.array([3, 0], np.int32))
    watch(flag, lambda host: seen.append(int(host[0])))
    settle()
    assert seen == [3]


@needs_simulator
def test_negative_indices_are_errors_in_kernels() -> None:
    array = readable(np.zeros((2, 2)))
    assert array[1, 1] == 0
    for index in ((-1, 0), (0, np.int64(-1))):
        with pytest.raises(IndexError, match="negative index"):
            array[index]
        with pytest.raises(IndexError, match="negative index"):
            array[index] = 1


def test_nothing_to_do_launches_nothing() -> None:
    none = np.zeros((0, 2, 4), np.float32)
    pages = np.array([0]), np.empty(0, np.int64), np.empty(0, np.int64)
    cache = np.full((2, 4, 2, 4), np.nan, np.float32)
    twin.append_kv(none, none, cache, cache, np.empty(0, np.int64))
    assert twin.gather_kv(cache, cache, *pages)[0].shape == (0, 2, 4)
    assert twin.paged_decode(none, cache, cache, *pages).lse.shape == (0, 2)
    assert twin.paged_prefill(none, np.array([0]), cache, cache, *pages).out.shape == (0, 2, 4)
    identity = twin.merge_states(np.zeros((0, 1, 2, 4), np.float32), np.zeros((0, 1, 2), np.float32))
    assert identity.out.tobytes() == np.zeros((1, 2, 4), np.float32).tobytes()
    assert np.isneginf(identity.lse).all()
