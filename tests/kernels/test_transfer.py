"""The route of host arrays to a GPU and back, walked in the simulator; it must change no bit.

In the simulator kernels normally use the host's arrays where they lie. Here each is copied to a (simulated) device
without its gaps and copied back, as on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

twin = pytest.importorskip("pagedref_cuda", reason="numba-cuda is not installed", exc_type=ImportError)

from pagedref_cuda._runtime import SIMULATOR, readable, transfer  # noqa: E402

pytestmark = pytest.mark.skipif(not SIMULATOR, reason="needs NUMBA_ENABLE_CUDASIM=1")

Array = npt.NDArray[Any]


def strided() -> tuple[Array, Array, Array]:
    """Keys and values of one layer inside a buffer of all layers (S23)."""
    buffer = np.full((6, 2, 2, 4, 2, 9), np.nan, np.float32)
    return buffer, buffer[:, 1, 0, :, :, :8], buffer[:, 1, 1, :, :, 1:5]


def everything(seed: int) -> list[Array]:
    """Run each operation once; return all results and the whole buffer."""
    rng = np.random.default_rng(seed)
    buffer, k_cache, v_cache = strided()
    pages = np.array([0, 2, 2, 3]), np.array([5, 0, 3], np.int32), np.array([3, 0, 1])
    slots = np.array([20, 21, 22, 23, 0, 1, 2, 12, -1])
    k, v = (rng.standard_normal((9, 2, dim)).astype(np.float32) for dim in (8, 4))
    twin.append_kv(k, v, k_cache, v_cache, slots)
    gathered = twin.gather_kv(k_cache, v_cache, *pages)
    decoded = twin.paged_decode(rng.standard_normal((3, 4, 8)).astype(np.float32), k_cache, v_cache, *pages)
    q = rng.standard_normal((5, 4, 8)).astype(np.float32)
    mask = [rng.random(shape) < 0.5 for shape in ((3, 7), (1, 0), (1, 1))]
    starts = np.array([0, 3, 4, 5])
    filled = twin.paged_prefill(q, starts, k_cache, v_cache, *pages, mask=mask, sinks=np.zeros(4, np.float32))
    plain = twin.paged_prefill(q, starts, k_cache, v_cache, *pages, softcap=2.0, window=3)
    merged = twin.merge_states(np.stack([filled.out, plain.out]), np.stack([filled.lse, plain.lse]))
    odd = np.arange(24, dtype=np.float16).reshape(6, 4)[:, ::2]
    complex_ = np.arange(6) + 1j
    twin.copy_frames([k_cache, v_cache, odd, complex_], np.array([5, 3]), np.array([1, 4]))
    return [buffer, *gathered, *decoded, *filled, *plain, *merged, odd, complex_]


@pytest.mark.parametrize("seed", range(3))
def test_copies_change_no_bit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = everything(seed)
    monkeypatch.setattr(transfer, "DIRECT", False)
    copied = everything(seed)
    for a, b in zip(direct, copied, strict=True):
        assert a.dtype == b.dtype
        assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


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
