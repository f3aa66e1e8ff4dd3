"""The safetensors format: round trips, bfloat16 (P70), and files that are damaged in every field of the header."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedref.errors import ContractError, PagedRefError
from pagedref.models.safetensors_file import FORMATS, SafetensorsFile, write_safetensors

MEGABYTE = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.safetensors"


@pytest.fixture
def few_bytes() -> Iterator[None]:
    """No more than a few megabytes may be asked for, whatever a header claims."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MEGABYTE


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def refused(path: Path, *words: str) -> None:
    with pytest.raises(ContractError) as caught:
        SafetensorsFile(path)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400 and path.name in text
    assert all(word in text for word in words), text


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_every_type_comes_back(path: Path) -> None:
    rng = np.random.default_rng(0)
    names = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32"]
    names += ["uint64", "int64", "float64"]
    tensors = {name: rng.integers(0, 2, (3, 1, 2)).astype(name) for name in names}
    tensors["empty"] = np.zeros((0, 4), np.float32)
    tensors["scalar"] = np.array(2.5)
    tensors["big-endian"] = np.arange(5, dtype=">i4")
    tensors["strided"] = np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2].T
    write_safetensors(path, tensors, {"made by": "a test"})
    file = SafetensorsFile(path)
    assert file.metadata == {"made by": "a test"}
    for name, array in tensors.items():
        again = file.read(name)
        assert again.dtype == array.dtype.newbyteorder("=") and again.flags.c_contiguous
        np.testing.assert_array_equal(again, array)


def test_tensors_begin_where_their_type_may(path: Path) -> None:
    write_safetensors(path, {"a": np.zeros(3, np.uint8), "b": np.zeros(2), "c": np.zeros(1, np.float16)})
    for info in SafetensorsFile(path).tensors.values():
        assert info.start % np.dtype(FORMATS[info.dtype]).itemsize == 0


def test_bfloat16_widens_exactly_p70(path: Path) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    write_safetensors(path, {"w": bits}, formats={"w": "BF16"})
    wide = SafetensorsFile(path).read_float32("w")
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)
    assert wide[0x3F80] == 1.0 and np.isnan(wide[0x7FC0])


def test_small_float_types_are_written_by_name(path: Path) -> None:
    values = np.array([1.0, -2.5, 0.0])
    types = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
    write_safetensors(path, {name: values.astype(type_) for name, type_ in types.items()})
    file = SafetensorsFile(path)
    for name, type_ in types.items():
        assert file.tensors[name].dtype == name
        np.testing.assert_array_equal(file.read(name).view(type_).astype(np.float64), values)
    np.testing.assert_array_equal(file.read_float32("BF16"), values)


def test_weights_become_float32(path: Path) -> None:
    values = np.array([[1.0, -0.1], [65504.0, 1e-7]])
    write_safetensors(path, {"F16": values.astype(np.float16), "F32": values.astype(np.float32), "F64": values * 1e300})
    file = SafetensorsFile(path)
    np.testing.assert_array_equal(file.read_float32("F16"), values.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(file.read_float32("F32"), values.astype(np.float32))
    assert np.isinf(file.read_float32("F64")[0, 0]) and file.read_float32("F64").dtype == np.float32


def test_integers_are_no_weights(path: Path) -> None:
    write_safetensors(path, {"ids": np.arange(3)})
    with pytest.raises(ContractError, match="'ids' is not a weight, got 'I64'"):
        SafetensorsFile(path).read_float32("ids")


def test_reads_what_the_safetensors_package_writes(path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.int8)}
    library.save_file(tensors, path, metadata={"format": "np"})
    file = SafetensorsFile(path)
    for name, array in tensors.items():
        np.testing.assert_array_equal(file.read(name), array)
    write_safetensors(path, tensors)
    for name, array in library.load_file(path).items():
        np.testing.assert_array_equal(array, tensors[name])


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    write_safetensors(path, {"a": np.zeros(1)})
    before = path.read_bytes()
    for bad in ({"a": np.zeros(1, np.complex64)}, {"__metadata__": np.zeros(1)}):
        with pytest.raises(ContractError):
            write_safetensors(path, bad)
    with pytest.raises(ContractError):
        write_safetensors(path, {"a": np.zeros(1)}, formats={"a": "F32"})
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize(
    ("header", "words"),
    [
        ([], ["not a JSON object"]),
        (b"{", ["not JSON"]),
        (b"\xff\xfe", ["not JSON"]),
        (b"[" * 100_000, ["not JSON"]),
        (b'{"a": 1, "a": 2}', ["not JSON"]),
        ({"a": 1}, ["'a'", "malformed"]),
        ({"a": {"dtype": "F32"}}, ["'a'", "malformed"]),
        ({"a": {**entry(), "more": 1}}, ["'a'", "malformed"]),
        ({"a": entry(dtype="F33")}, ["'a'", "F33"]),
        ({"a": entry(dtype=["F32"])}, ["'a'", "format"]),
        ({"a": entry(shape=[-1])}, ["'a'", "shape"]),
        ({"a": entry(shape=[2.0])}, ["'a'", "shape"]),
        ({"a": entry(shape=[True])}, ["'a'", "shape"]),
        ({"a": entry(shape=2)}, ["'a'", "shape"]),
        ({"a": entry(shape=[1] * 33)}, ["'a'", "shape"]),
        ({"a": entry(shape=[0, 2**62], offsets=[0, 0])}, ["'a'", "shape"]),
        ({"a": entry(shape=[2**40])}, ["'a'", "wrong number of bytes"]),
        ({"a": entry(shape=[3])}, ["'a'", "wrong number of bytes", "12"]),
        ({"a": entry(offsets=[0, 2**40], shape=[2**38])}, ["'a'", "outside"]),
        ({"a": entry(offsets=[8, 0])}, ["'a'", "outside"]),
        ({"a": entry(offsets=[0])}, ["'a'", "outside"]),
        ({"a": entry(offsets=[-8, 0])}, ["'a'", "outside"]),
        ({"a": entry(), "b": entry()}, ["'b'", "overlaps"]),
        ({"a": entry(shape=[1], offsets=[4, 8])}, ["'a'", "hole"]),
        ({"a": entry(shape=[1], offsets=[0, 4])}, ["no tensor"]),
        ({"__metadata__": {"a": 1}, "a": entry()}, ["metadata"]),
        ({"__metadata__": [], "a": entry()}, ["metadata"]),
    ],
)
def test_a_damaged_header_is_named(path: Path, header: Any, words: list[str]) -> None:
    write_raw(path, header, bytes(8))
    refused(path, *words)


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("length", [3, 2**20, 2**40, 2**64 - 1])
def test_a_wrong_header_length_allocates_nothing(path: Path, length: int) -> None:
    write_raw(path, {"a": entry()}, bytes(8), length)
    refused(path)


def test_every_truncation_is_refused(path: Path) -> None:
    write_safetensors(path, {"a": np.arange(3, dtype=np.float32), "b": np.ones(2)})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(path)
    path.write_bytes(whole + b"\x00")
    refused(path, "no tensor")


def test_a_file_that_shrinks_after_it_was_opened(path: Path) -> None:
    write_safetensors(path, {"a": np.arange(100.0)})
    file = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ContractError, match="truncated"):
        file.read("a")
    path.unlink()
    with pytest.raises(ContractError, match="cannot be read"):
        file.read("a")
    refused(path, "cannot be read")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=1000)
@given(st.data())
def test_flipped_bytes_never_surprise(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2)}, {"k": "v"})
    raw = bytearray(path.read_bytes())
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)):
        raw[place] = byte
    path.write_bytes(raw)
    try:
        file = SafetensorsFile(path)
        for name in file.tensors:
            assert file.read(name).nbytes <= len(raw)
    except PagedRefError as error:
        assert "\n" not in str(error)
