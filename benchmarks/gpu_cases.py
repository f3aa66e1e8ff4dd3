"""The cases of the GPU table: what is called, on which shapes, and the least that it must move or multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import pagedref_cuda as twin
from pagedref.kv_format import KVFormat
from pagedref_cuda import layers

Call = Callable[[], object]

TYPES: dict[str, Any] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass
class Case:
    """One line of the table: made when its turn comes, so that memory is free again afterwards."""

    group: str
    name: str
    make: Callable[[], Call]
    num_bytes: float
    flops: float = 0.0
    shape: dict[str, Any] = field(default_factory=dict)


def _device(array: Any) -> Any:
    """Return an array on the device."""
    return twin.to_device(array)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Random numbers, those of a large array repeated."""
    size = int(np.prod(shape))
    some = rng.standard_normal(min(size, 1 << 20), dtype=np.float32).astype(dtype)
    return np.resize(some, shape)


def pages(rng: np.random.Generator, batch: int, length: int, page_size: int) -> tuple[Any, Any, Any, int]:
    """CSR of equal sequences in frames of random order."""
    each = -(-length // page_size)
    order = rng.permutation(batch * each).astype(np.int32)
    last = np.full(batch, length - (each - 1) * page_size, np.int32)
    return np.arange(batch + 1, dtype=np.int32) * each, order, last, batch * each


def _cache(
    rng: np.random.Generator, form: KVFormat, heads: tuple[int, int, int], dim: int
) -> tuple[Any, dict[str, Any]]:
    """Keys and values on the device, with the keywords that say how they are stored."""
    shape = (*heads, form.stored_dim(dim))
    make = rng.integers(-127, 127, shape, np.int8) if form.integer else numbers(rng, shape, form.dtype)
    pair = [_device(make.view(form.dtype) if form.integer else make) for _ in range(2)]
    if form.granularity is None:
        return pair, {}
    scales = np.full(form.scale_shape(*heads, dim) or (), 0.01, np.float32)
    keywords: dict[str, Any] = {"kv_format": form, "k_scale": _device(scales), "v_scale": _device(scales)}
    if form.zero_point:
        keywords |= {"k_zero": _device(scales), "v_zero": _device(scales)}
    return pair, keywords


def decode(
    batch: int, heads: tuple[int, int], dim: int, length: int, kind: str = "bfloat16", page_size: int = 16
) -> Case:
    """One token of each sequence over pages."""
    form = KVFormat.named(kind, dim)
    queries = TYPES.get(kind, TYPES["bfloat16"])

    def make() -> Call:
        rng = np.random.default_rng(0)
        indptr, indices, last, frames = pages(rng, batch, length, page_size)
        (k, v), stored = _cache(rng, form, (frames, page_size, heads[1]), dim)
        q = _device(numbers(rng, (batch, heads[0], dim), queries))
        return lambda: twin.paged_decode(q, k, v, indptr, indices, last, **stored)

    kv = 2 * batch * length * heads[1] * form.stored_dim(dim) * form.dtype.itemsize
    scales = 0 if form.granularity is None else 2 * batch * length * heads[1] * 4
    moved = kv + scales + 2 * batch * heads[0] * dim * queries.itemsize
    name = f"decode {kind}, batch {batch}, {length} keys, heads {heads[0]}/{heads[1]} of {dim}, pages of {page_size}"
    shape = {"batch": batch, "heads": heads, "dim": dim, "length": length, "kind": kind, "page_size": page_size}
    return Case("decode", name, make, moved, 4.0 * batch * length * heads[0] * dim, shape)


def prefill(batch: int, heads: tuple[int, int], dim: int, new: int, length: int, kind: str = "bfloat16") -> Case:
    """The last `new` tokens of each sequence, causal."""
    page_size, dtype = 16, TYPES[kind]

    def make() -> Call:
        rng = np.random.default_rng(0)
        indptr, indices, last, frames = pages(rng, batch, length, page_size)
        (k, v), _ = _cache(rng, KVFormat.named(kind, dim), (frames, page_size, heads[1]), dim)
        q = _device(numbers(rng, (batch * new, heads[0], dim), dtype))
        starts = np.arange(batch + 1, dtype=np.int32) * new
        return lambda: twin.paged_prefill(q, starts, k, v, indptr, indices, last)

    pairs = batch * (new * (length - new) + new * (new + 1) / 2)
    moved = (2 * batch * length * heads[1] * dim + 2 * batch * new * heads[0] * dim) * dtype.itemsize
    name = f"prefill {kind}, batch {batch}, {new} of {length} tokens, heads {heads[0]}/{heads[1]} of {dim}"
    shape = {"batch": batch, "heads": heads, "dim": dim, "length": length, "new": new, "kind": kind}
    return Case("prefill", name, make, moved, 4.0 * pairs * heads[0] * dim, shape)


def append(tokens: int, heads: int, dim: int, kind: str) -> Case:
    """New keys and values into random slots."""
    form, page_size = KVFormat.named(kind, dim), 16
    source = TYPES.get(kind, TYPES["bfloat16"])

    def make() -> Call:
        rng = np.random.default_rng(0)
        frames = -(-tokens // page_size)
        (k_cache, v_cache), stored = _cache(rng, form, (frames, page_size, heads), dim)
        k, v = (_device(numbers(rng, (tokens, heads, dim), source)) for _ in "kv")
        slots = rng.permutation(frames * page_size)[:tokens]
        return lambda: twin.append_kv(k, v, k_cache, v_cache, slots, **stored)

    moved = 2 * tokens * heads * (dim * source.itemsize + form.stored_dim(dim) * form.dtype.itemsize)
    return Case("cache", f"append {kind}, {tokens} tokens, {heads} heads of {dim}", make, moved)


def gather(batch: int, length: int, heads: int, dim: int, kind: str = "bfloat16") -> Case:
    """All keys and values of some sequences, in order."""
    page_size, dtype = 16, TYPES[kind]

    def make() -> Call:
        rng = np.random.default_rng(0)
        indptr, indices, last, frames = pages(rng, batch, length, page_size)
        (k, v), _ = _cache(rng, KVFormat.named(kind, dim), (frames, page_size, heads), dim)
        return lambda: twin.gather_kv(k, v, indptr, indices, last)

    moved = 4 * batch * length * heads * dim * dtype.itemsize
    return Case("cache", f"gather {kind}, batch {batch} of {length} tokens, {heads} heads of {dim}", make, moved)


def product(tokens: int, width: int, features: int, kind: str) -> Case:
    """Rows times a matrix that lies on the device."""
    dtype = TYPES[kind]

    def make() -> Call:
        rng = np.random.default_rng(0)
        x = _device(numbers(rng, (tokens, width), TYPES["float32"]))
        weight = _device(numbers(rng, (features, width), dtype))
        out = _device(np.zeros((tokens, features), np.float32))
        return lambda: layers.linear(x, weight, out)

    moved = width * features * dtype.itemsize + 4 * tokens * (width + features)
    shape = {"tokens": tokens, "width": width, "features": features, "kind": kind}
    name = f"linear {kind}, {tokens} rows, {width} to {features}"
    return Case("layers", name, make, moved, 2.0 * tokens * width * features, shape)


def rows(operation: str, tokens: int, width: int) -> Case:
    """Layers that read and write each number once."""

    def make() -> Call:
        rng = np.random.default_rng(0)
        x, y, out = (_device(numbers(rng, (tokens, width), TYPES["float32"])) for _ in range(3))
        weight = _device(np.ones(width, np.float32))
        calls: dict[str, Call] = {
            "rms_norm": lambda: layers.rms_norm(x, weight, 1e-5, out),
            "rms_norm with residual": lambda: layers.rms_norm(x, weight, 1e-5, out, added=y),
            "gate": lambda: layers.gate(x, y, out, kind="silu"),
            "argmax": lambda: layers.argmax(x),
            "sample": lambda: layers.sample(x, 0.8, 1, 2),
        }
        return calls[operation]

    arrays = {"rms_norm": 2, "rms_norm with residual": 4, "gate": 3, "argmax": 1, "sample": 1}[operation]
    shape = {"operation": operation, "tokens": tokens, "width": width}
    return Case("layers", f"{operation}, {tokens} rows of {width}", make, 4.0 * arrays * tokens * width, shape=shape)


def cases(group: str, *, tiny: bool) -> Iterator[Case]:
    """Yield the cases of a group; tiny shapes for the emulator."""
    if group == "decode":
        yield from _decode_cases(tiny)
    elif group == "prefill":
        if tiny:
            yield prefill(1, (4, 2), 64, 16, 24)
            return
        yield prefill(1, (32, 8), 128, 4096, 4096)
        yield prefill(8, (32, 8), 128, 1024, 1024)
        yield prefill(4, (32, 8), 128, 512, 8192)
        yield prefill(8, (32, 8), 128, 1024, 1024, "float16")
    elif group == "cache":
        for kind in ("bfloat16", "int8") if tiny else ("bfloat16", "float32", "int8", "e4m3fn-scaled", "int4"):
            yield append(8 if tiny else 8192, 2 if tiny else 8, 64 if tiny else 128, kind)
        yield gather(2 if tiny else 64, 20 if tiny else 1024, 2 if tiny else 8, 64 if tiny else 128)
    else:
        shapes = [(1, 128, 64), (5, 128, 64)] if tiny else [(n, 4096, 4096) for n in (1, 4, 16, 64, 512)]
        for kind in ("float32", "bfloat16") if tiny else ("float32", "bfloat16", "float16"):
            for shape in shapes:
                yield product(*shape, kind)
        if not tiny:
            yield product(1, 576, 49152, "float32")
        names = ("rms_norm", "rms_norm with residual", "gate", "argmax", "sample")
        for name in names[2:] if tiny else names:
            wide = 128256 if name in ("argmax", "sample") else 4096
            yield rows(name, 2 if tiny else 64, 96 if tiny else wide)


def _decode_cases(tiny: bool) -> Iterator[Case]:
    if tiny:
        yield decode(2, (4, 4), 64, 40)
        yield decode(2, (8, 1), 64, 40)
        yield decode(1, (4, 2), 64, 40, "float32")
        yield decode(1, (4, 2), 64, 20, "int8")
        return
    for batch, length in ((64, 1024), (16, 8192)):
        for group in (4, 1, 8, 16):
            yield decode(batch, (32, 32 // group), 128, length)
    for batch, length in ((1, 8192), (1, 65536), (16, 4096)):
        yield decode(batch, (32, 8), 128, length)
    for kind in ("float32", "float16", "e4m3fn", "int8", "int4"):
        yield decode(64, (32, 8), 128, 4096, kind)
    for page_size in (1, 64):
        yield decode(64, (32, 8), 128, 4096, page_size=page_size)
    yield decode(64, (9, 3), 64, 2048, "float32")  # SmolLM2
