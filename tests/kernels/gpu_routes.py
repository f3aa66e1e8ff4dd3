"""Walks of the route of a GPU on a pretended driver; in a process of its own, as numba has to believe in it at once.

``python -m tests.kernels.gpu_routes`` prints one line for each walk: its name, and what went wrong if anything did.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

from tests.kernels.pretended_gpu import JUNK, install

DRIVER = install()

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402

from pagedref.errors import ContractError  # noqa: E402

twin: Any = import_module("pagedref_cuda")
attention: Any = import_module("pagedref.attention")
_runtime: Any = import_module("pagedref_cuda._runtime")
Array = npt.NDArray[Any]
Walk = Callable[[], None]
WALKS: dict[str, Walk] = {}
STREAM, OTHER = 7, 9


def walk(function: Walk) -> Walk:
    """Enter a walk."""
    WALKS[function.__name__] = function
    return function


class Foreign:
    """An array of another library on a stream, whose numbers come when that stream gets to them; never freed."""

    held_ones: ClassVar[list[Foreign]] = []

    def __init__(self, array: Array, stream: int = STREAM) -> None:
        self.held_ones.append(self)
        self.stream, self.source = stream, np.array(array)
        self.held = np.full(array.nbytes + 16, JUNK, np.uint8)
        self.address = -(-self.held.ctypes.data // 16) * 16
        if array.nbytes:
            DRIVER.cuMemcpyHtoDAsync(self.address, self.source.ctypes.data, array.nbytes, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.source.shape,
            "strides": None,
            "typestr": self.source.dtype.str,
            "data": (self.address if self.source.size else 0, False),
            "version": 3,
            "stream": self.stream,
        }

    def result(self) -> Array:
        """Return the numbers as its own stream sees them."""
        DRIVER.run(self.stream)
        start = self.address - self.held.ctypes.data
        return self.held[start : start + self.source.nbytes].view(self.source.dtype).reshape(self.source.shape)


def inputs(dtype: Any = np.float32) -> dict[str, Any]:
    """Return a small batch: three sequences, one without keys."""
    rng = np.random.default_rng(3)
    return {
        "q": rng.standard_normal((3, 4, 16), np.float32).astype(dtype),
        "rows": rng.standard_normal((5, 4, 16), np.float32).astype(dtype),
        "caches": tuple(rng.standard_normal((2, 6, 4, 2, 16), np.float32).astype(dtype)),
        "pages": (np.array([0, 2, 2, 3]), np.array([5, 0, 3], np.int32), np.array([3, 0, 1])),
        "starts": np.array([0, 3, 4, 5]),
        "new": tuple(rng.standard_normal((2, 5, 2, 16), np.float32).astype(dtype)),
        "slots": np.array([20, 0, 1, 12, -1]),
    }


def near(ours: Any, expected: Any) -> None:
    """Compare with the reference; classes of agreement are the matter of other tests."""
    ours, expected = np.asarray(ours, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    assert ours.shape == expected.shape, (ours.shape, expected.shape)
    assert (finite == np.isfinite(ours)).all() and np.abs(ours[finite] - expected[finite]).max(initial=0) < 2.0**-6


def everything(put: Callable[[Array], Any], read: Callable[[Any], Array]) -> None:
    """Run each operation on arrays as `put` gives them; compare with NumPy."""
    given = inputs()
    caches = tuple(np.array(cache) for cache in given["caches"])
    pages, slots, starts = tuple(map(put, given["pages"])), put(given["slots"]), put(given["starts"])
    k_cache, v_cache = map(put, caches)
    twin.append_kv(*map(put, given["new"]), k_cache, v_cache, slots)
    twin.copy_frames([k_cache, v_cache], put(np.array([5, 3])), put(np.array([1, 4])))
    expected = tuple(np.array(cache) for cache in given["caches"])
    attention.append_kv(*given["new"], *expected, given["slots"])
    attention.copy_frames(expected, np.array([5, 3]), np.array([1, 4]))
    for ours, theirs in zip((k_cache, v_cache), expected, strict=True):
        assert (read(ours) == theirs).all()
    for ours, theirs in zip(
        twin.gather_kv(k_cache, v_cache, *pages), attention.gather_kv(*expected, *given["pages"]), strict=True
    ):
        assert (read(ours) == theirs).all()
    decoded = twin.paged_decode(put(given["q"]), k_cache, v_cache, *pages, sinks=put(np.zeros(4, np.float32)))
    theirs = attention.paged_decode(given["q"], *expected, *given["pages"], sinks=np.zeros(4, np.float32))
    near(read(decoded.out), theirs.out)
    near(read(decoded.lse), theirs.lse)
    filled = twin.paged_prefill(put(given["rows"]), starts, k_cache, v_cache, *pages, softcap=2.0, window=3)
    theirs = attention.paged_prefill(
        given["rows"], given["starts"], *expected, *given["pages"], softcap=2.0, window=3
    )
    near(read(filled.out), theirs.out)
    both = tuple(np.stack([np.asarray(part)] * 2) for part in theirs)
    merged = twin.merge_states(*map(put, both))
    near(read(merged.out), attention.merge_states(*both).out)
    ordered = twin.ordered_decode(put(given["q"]), k_cache, v_cache, *pages)
    bits = attention.ordered_decode(given["q"], *expected, *given["pages"])
    assert (read(ordered.out) == bits.out).all()


@walk
def host_arrays() -> None:
    everything(lambda array: array, np.asarray)


@walk
def read_only_and_strided_host_arrays() -> None:
    def put(array: Array) -> Array:
        if array.ndim == 4:  # caches: any strides
            wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        fixed = array.copy()
        fixed.flags.writeable = False
        return fixed

    everything(put, np.asarray)


@walk
def arrays_that_stay_on_the_device() -> None:
    everything(twin.to_device, np.asarray)


@walk
def arrays_on_a_stream() -> None:
    before = DRIVER.waits
    everything(Foreign, lambda ours: ours.result() if isinstance(ours, Foreign) else np.asarray(ours))
    assert DRIVER.waits > before


@walk
def arrays_on_two_streams() -> None:
    streams = iter([STREAM, OTHER] * 40)

    def put(array: Array) -> Foreign:
        return Foreign(array, next(streams))

    everything(put, lambda ours: ours.result() if isinstance(ours, Foreign) else np.asarray(ours))


@walk
def device_arrays_first_and_a_stream_later() -> None:
    given = inputs()
    theirs = attention.paged_decode(given["q"], *given["caches"], *given["pages"])
    caches = tuple(map(Foreign, given["caches"]))
    out = twin.paged_decode(twin.to_device(given["q"]), *caches, *map(twin.to_device, given["pages"])).out
    near(out, theirs.out)


@walk
def host_caches_and_slots_on_a_stream() -> None:
    given = inputs()
    caches, expected = (tuple(np.array(cache) for cache in given["caches"]) for _ in range(2))
    twin.append_kv(*given["new"], *caches, Foreign(given["slots"]))
    attention.append_kv(*given["new"], *expected, given["slots"])
    assert all((ours == theirs).all() for ours, theirs in zip(caches, expected, strict=True))


@walk
def metadata_on_the_device_is_not_waited_for() -> None:
    given = inputs()
    for put in (Foreign, twin.to_device):
        arrays = [put(array) for array in (given["q"], *given["caches"], *given["pages"])]
        twin.paged_decode(*arrays)  # compiled and loaded
        before = DRIVER.waits
        for _ in range(20):
            twin.paged_decode(*arrays)
        assert DRIVER.waits == before, "the host waited"


@walk
def room_is_used_again_on_its_own_stream_only() -> None:
    given = inputs()
    arrays = {
        stream: [Foreign(array, stream) for array in (given["q"] * stream, *given["caches"], *given["pages"])]
        for stream in (STREAM, OTHER)
    }
    for _ in range(2):
        results = {STREAM: twin.paged_decode(*arrays[STREAM]).out}
        halfway = DRIVER.put[STREAM] - 2  # before the last kernel, and the copy of its flag
        results[OTHER] = twin.paged_decode(*arrays[OTHER]).out
        DRIVER.run(STREAM, halfway)
        for stream in (OTHER, STREAM):
            theirs = attention.paged_decode(given["q"] * stream, *given["caches"], *given["pages"])
            near(results[stream], theirs.out)


@walk
def sizes_from_numpy() -> None:
    copy_frames_1: Any = import_module("pagedref_cuda._copy").copy_frames_1
    pool = np.arange(4, dtype=np.uint32).reshape(4, 1, 1, 1)
    frames = _runtime.readable(np.array([2])), _runtime.readable(np.array([0]))
    with _runtime.written(pool) as lent:
        copy_frames_1.launch(np.int64(1), *lent, *frames)
        copy_frames_1.launch_grid((np.int64(1), 1), np.int32(32), *lent, *frames, shared_bytes=np.int64(0))
    assert pool.ravel().tolist() == [2, 1, 2, 3]


@walk
def frames_through_pinned_buffers() -> None:
    from pagedref.cache_spec import CacheSpec
    from pagedref.kv_cache import PagedKVCache
    from pagedref_cuda.runner import DeviceCache

    spec = CacheSpec(num_layers=2, num_kv_heads=2, head_dim=4, page_size=4)
    device, host = DeviceCache(spec, 6), PagedKVCache(spec, 6)
    source, target = host.frame_store(), device.frame_store()
    pages = np.random.default_rng(0).integers(0, 64, (3, source.bytes_per_frame)).astype(np.uint8)
    source.write([4, 0, 2], pages)
    target.write([1, 5, 3], source.read([4, 0, 2]))
    pages[...] = 0
    target.copy([1], [2])
    assert (target.read([5, 3, 2, 1]) == source.read([0, 2, 4, 4])).all()
    assert (np.asarray(device.arrays(1)[1])[3] == host.arrays(1)[1][2]).all()


@walk
def wrong_metadata_raises_when_a_result_is_read() -> None:
    given = inputs()
    indptr, frames, last = given["pages"]
    frames = np.array([5, 6, 3], np.int32)  # there are 6 frames
    arrays = [Foreign(array) for array in (given["q"], *given["caches"], indptr, frames, last)]
    out = twin.paged_decode(*arrays).out
    try:
        np.asarray(out)
    except ContractError as error:
        assert "kv_indices" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    _runtime.settle()


@walk
def numbers_of_two_bytes() -> None:
    import ml_dtypes

    for dtype in (np.float16, ml_dtypes.bfloat16):
        given = inputs(dtype)
        theirs = attention.paged_decode(given["q"], *given["caches"], *given["pages"])
        ours = twin.paged_decode(*map(twin.to_device, (given["q"], *given["caches"], *given["pages"])))
        assert ours.out.dtype == np.dtype(dtype)
        near(np.asarray(ours.out, np.float32), np.asarray(theirs.out, np.float32))
        near(twin.paged_decode(given["q"], *given["caches"], *given["pages"]).out, theirs.out)


@walk
def fast_rungs_on_a_stream() -> None:
    import ml_dtypes

    rng = np.random.default_rng(0)
    for group, dtype in ((1, np.float32), (8, ml_dtypes.bfloat16)):
        caches = rng.standard_normal((2, 4, 16, 1, 64), np.float32).astype(dtype)
        q = rng.standard_normal((2, group, 64), np.float32).astype(dtype)
        pages = np.array([0, 2, 4]), np.array([3, 0, 2, 1]), np.array([16, 5])
        theirs = attention.paged_decode(q, *caches, *pages)

        def put(array: Array) -> Any:
            return twin.to_device(array) if array.dtype == np.dtype(ml_dtypes.bfloat16) else Foreign(array)

        for ours in (twin.paged_decode(q, *caches, *pages), twin.paged_decode(*map(put, (q, *caches, *pages)))):
            near(np.asarray(ours.out, np.float32), np.asarray(theirs.out, np.float32))
            near(ours.lse, theirs.lse)


@walk
def nothing_is_launched_for_nothing() -> None:
    none, cache = np.zeros((0, 2, 4), np.float32), np.zeros((2, 4, 2, 4), np.float32)
    pages = np.array([0]), np.empty(0, np.int64), np.empty(0, np.int64)
    ways: tuple[Callable[[Array], Any], ...] = lambda array: array, twin.to_device, Foreign
    for put in ways:
        twin.append_kv(*map(put, (none, none, cache, cache, np.empty(0, np.int64))))
        assert twin.gather_kv(*map(put, (cache, cache, *pages)))[0].shape == (0, 2, 4)
        assert twin.paged_decode(*map(put, (none, cache, cache, *pages))).lse.shape == (0, 2)
        out = twin.paged_prefill(*map(put, (none, np.array([0]), cache, cache, *pages))).out
        assert np.asarray(out).shape == (0, 2, 4)
        if put is not Foreign:
            continue
        assert out.__cuda_array_interface__["data"][0] == 0  # torch takes no other pointer for no numbers


@walk
def parts_of_device_arrays() -> None:
    host = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    array = twin.to_device(host)
    array[1] = 7.0
    array[:, 1, ::2] = np.float32(3)
    array[2, :, ::-1][0] = np.arange(5, dtype=np.float32)
    array[0, 3] = array[2, 0]
    host[1], host[:, 1, ::2], host[2, :, ::-1][0], host[0, 3] = 7.0, 3.0, np.arange(5), np.arange(5)[::-1]
    assert (np.asarray(array) == host).all()
    assert (np.asarray(array[:, ::-2, ::-1]) == host[:, ::-2, ::-1]).all()
    assert np.asarray(array[1, 2, 3]) == 7


@walk
def layers_and_a_model() -> None:
    from pagedref.models.checkpoint import load_checkpoint
    from pagedref.models.hub import resolve_model
    from pagedref.models.transformer import Transformer
    from pagedref_cuda.runner import Runner

    logits: list[Any] = []
    classes: tuple[Any, ...] = Transformer, Runner
    for cls in classes:
        checkpoint = load_checkpoint(resolve_model("tiny"))
        model = cls(checkpoint.config, checkpoint.weights)
        spec = model.cache_spec(16)
        from pagedref.kv_cache import PagedKVCache

        cache = model.make_cache(spec, 2) if cls is Runner else PagedKVCache(spec, 2)
        sequence = cache.add()
        for ids in ([5, 6, 7], [8]):
            step = cache.begin([sequence], [len(ids)])
            logits.append(model.forward(cache, step, np.array(ids), np.array([len(ids) - 1])))
            cache.commit(step)
    near(logits[2], logits[0])
    near(logits[3], logits[1])


def main() -> None:
    for name, one in WALKS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        try:
            one()
            print(f"{name}: ok", flush=True)
        except Exception as error:
            traceback.print_exc()
            print(f"{name}: {type(error).__name__}: {error}".splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
