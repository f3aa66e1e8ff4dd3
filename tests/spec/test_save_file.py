"""Saving one sequence: the same bits in new frames, one file that is whole or not there, all else refused."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref import _files, save_file, tensor_file
from pagedref._files import LOCAL
from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError, OutOfFrames
from pagedref.kv_cache import PagedKVCache
from pagedref.kv_format import KVFormat
from pagedref.save_file import read_save, tensor_forms, write_save
from pagedref.tensor_file import FORMATS, TensorFile, write_tensors
from tests.spec.faulty_files import Crash, FaultyFiles
from tests.spec.test_swap import FORMS

PATH = Path("sequence")
SPEC = CacheSpec(1, 1, 2, page_size=2)
SPECS = [
    CacheSpec(2, 2, 4, page_size=3, v_head_dim=2, kv_format=form)
    for form in (
        *(KVFormat(kind) for kind in ("float64", "float32", "float16", "bfloat16", "e4m3fn", "e5m2")),
        KVFormat("int8", "tensor"),
        KVFormat("int8", "head"),
        KVFormat("int8", "frame_head"),
        KVFormat("int8", "slot_head", zero_point=True),
        KVFormat("int4", "group", group_size=2, zero_point=True),
    )
]


def any_bits(spec: CacheSpec, num_tokens: int, seed: int) -> dict[str, Any]:
    """Tensors of a sequence filled with any bits: every kind of NaN is among them."""
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8).view(dtype).reshape(shape)
        for name, (shape, dtype) in tensor_forms(spec, num_tokens).items()
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes())
        == (other[name].dtype, other[name].shape, other[name].tobytes())
        for name in one
    )


@given(st.sampled_from(SPECS), st.integers(0, 10), st.integers(0, 2**32), st.booleans())
@settings(max_examples=100, deadline=None)
def test_every_bit_comes_back(spec: CacheSpec, num_tokens: int, seed: int, with_ids: bool) -> None:
    files, tensors = FaultyFiles(), any_bits(spec, num_tokens, seed)
    ids = np.arange(num_tokens + 1, dtype=np.int32) if with_ids else None
    write_save(PATH, spec, num_tokens, tensors, token_ids=ids, files=files)
    saved = read_save(PATH, spec, files=files)
    assert saved.num_tokens == num_tokens and same(saved.tensors, tensors)
    assert (saved.token_ids is None) == (ids is None) and (ids is None or (saved.token_ids == ids).all())


def filled(form: str, num_tokens: int = 7, num_frames: int = 8, **options: Any) -> tuple[PagedKVCache, int]:
    kv_format, scales = FORMS[form]
    spec = CacheSpec(2, 2, 4, page_size=3, kv_format=kv_format)
    order = np.random.default_rng(3).permutation(num_frames)
    cache = PagedKVCache(spec, num_frames, poison=True, frame_order=order, **{**scales, **options})
    seq = cache.add()
    step = cache.begin([seq], [num_tokens])
    for layer in range(2):
        tokens = np.random.default_rng(layer).standard_normal((2, num_tokens, 2, 4)).astype(np.float32)
        cache.append(step, *tokens, layer=layer)
    cache.commit(step)
    return cache, seq


def gathered(cache: PagedKVCache, seq: int) -> list[bytes]:
    return [array.tobytes() for layer in range(2) for array in cache.gather(seq, layer=layer)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_tokens", [0, 1, 6, 7])
def test_a_cache_saves_and_restores(tmp_path: Path, form: str, num_tokens: int) -> None:
    """L8: into the same cache and into another one; live tokens of other frames are not touched."""
    cache, seq = filled(form, num_tokens)
    cache.save(seq, tmp_path / "s", token_ids=range(num_tokens))
    again = cache.restore(tmp_path / "s")
    other, _ = filled(form, 4)
    elsewhere = other.restore(tmp_path / "s")
    assert gathered(cache, again) == gathered(other, elsewhere) == gathered(cache, seq)
    assert cache.seq_len(again) == num_tokens
    assert not set(cache.block_table([seq])[0]) & set(cache.block_table([again])[0])
    step = other.begin([elsewhere], [2])  # and it goes on from there
    other.abort(step)
    for each in (cache, other):
        each.audit()
        each.free(list(each.manager.sequences))
        assert each.memory_report().frames_held == 0


def test_only_live_tokens_are_saved(tmp_path: Path) -> None:
    """What others left in the frames of a sequence does not leave the process."""
    cache, seq = filled("plain", 4)
    secret = np.float32(123456.789)
    k, v = cache.arrays(0)
    last = cache.block_table([seq])[0, -1]
    k[last, 1:], v[last, 1:] = secret, secret
    cache.save(seq, tmp_path / "s")
    assert secret.tobytes() not in (tmp_path / "s").read_bytes()
    assert len(TensorFile(tmp_path / "s").tensors) == 2


def test_a_stranger_can_read_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    cache, seq = filled("plain")
    cache.save(seq, tmp_path / "s", token_ids=range(7))
    tensors = safetensors.load_file(tmp_path / "s")
    assert (tensors["k"][1] == cache.gather(seq, layer=1)[0]).all()
    assert tensors["token_ids"].tolist() == list(range(7))
    assert json.loads(TensorFile(tmp_path / "s").metadata["cache_spec"])["page_size"] == 3


# Mismatches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (CacheSpec(2, 1, 2, page_size=2), "num_layers of sequence does not fit, got 1, need 2"),
        (CacheSpec(1, 2, 2, page_size=2), "num_kv_heads of sequence does not fit, got 1, need 2"),
        (CacheSpec(1, 1, 4, page_size=2), "head_dim of sequence does not fit, got 2, need 4"),
        (CacheSpec(1, 1, 2, page_size=16), "page_size of sequence does not fit, got 2, need 16"),
        (CacheSpec(1, 1, 2, page_size=2, v_head_dim=1), "v_head_dim of sequence does not fit, got 2, need 1"),
        (
            CacheSpec(1, 1, 2, page_size=2, dtype="float16"),
            "kind of sequence does not fit, got 'float32', need 'float16'",
        ),
        (
            CacheSpec(1, 1, 2, page_size=2, kv_format=KVFormat("int8", "head")),
            "kind of sequence does not fit, got 'float32', need 'int8'",
        ),
    ],
)
def test_other_geometries_are_refused_with_both_values(spec: CacheSpec, text: str) -> None:
    files = FaultyFiles()
    write_save(PATH, SPEC, 3, any_bits(SPEC, 3, 0), files=files)
    with pytest.raises(ContractError, match=f"restore: {text}"):
        read_save(PATH, spec, files=files)


def test_the_same_geometry_written_otherwise_fits() -> None:
    files = FaultyFiles()
    write_save(PATH, SPEC, 3, any_bits(SPEC, 3, 0), files=files)
    read_save(PATH, CacheSpec(1, 1, 2, page_size=2, v_head_dim=2, kv_format=KVFormat("float32")), files=files)


def test_other_fixed_scales_are_refused_and_change_nothing(tmp_path: Path) -> None:
    cache, seq = filled("head")
    cache.save(seq, tmp_path / "s")
    other, _ = filled("head", v_scale=0.25)
    assert other.geometry != cache.geometry
    before = other.manager.refcount.copy()
    with pytest.raises(ContractError, match=r"restore: v_scale of the file does not fit the cache, got \[0.2"):
        other.restore(tmp_path / "s")
    assert (other.manager.refcount == before).all() and len(other.manager) == 1


def test_scales_by_frame_come_along(tmp_path: Path) -> None:
    """Given to the frames of the writer (S17), they hold in the new frames too."""
    cache, seq = filled("frame_head")
    frames = cache.block_table([seq])[0]
    scales = cache._pool.stored(1)["k_scale"]
    scales[frames] *= np.arange(1, 4, dtype=np.float32)[:, None]
    cache.save(seq, tmp_path / "s")
    other, _ = filled("frame_head", 1)
    again = other.restore(tmp_path / "s")
    assert gathered(other, again) == gathered(cache, seq)


def test_a_pool_that_is_full_refuses_and_changes_nothing(tmp_path: Path) -> None:
    cache, seq = filled("plain", 13)
    cache.save(seq, tmp_path / "s")
    before = cache.manager.refcount.copy(), gathered(cache, seq)
    with pytest.raises(OutOfFrames) as caught:
        cache.restore(tmp_path / "s")
    assert (caught.value.needed, caught.value.available) == (5, 3)
    assert (cache.manager.refcount == before[0]).all() and gathered(cache, seq) == before[1]
    assert len(cache.manager) == 1
    cache.audit()


def test_wrong_calls(tmp_path: Path) -> None:
    cache, seq = filled("plain")
    with pytest.raises(ContractError):
        cache.save(seq + 1, tmp_path / "s")
    for ids in (range(6), [0.5] * 7, [[0] * 7]):
        with pytest.raises(ContractError, match="write_save: token_ids has"):
            cache.save(seq, tmp_path / "s", token_ids=ids)
    tensors = any_bits(SPEC, 3, 0)
    for wrong in ({"k": tensors["k"]}, tensors | {"x": tensors["k"]}, tensors | {"v": tensors["v"].astype("f8")}):
        with pytest.raises(ContractError, match=r"write_save: tensor '.' does not fit"):
            write_save(tmp_path / "s", SPEC, 3, wrong)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ContractError, match="s cannot be read, got No such file"):
        cache.restore(tmp_path / "s")


# Crashes and damage -------------------------------------------------------------------------------------------------


def version(number: int) -> dict[str, Any]:
    return any_bits(SPEC, 3, number)


def outcome(files: FaultyFiles) -> int:
    """Tell which version is there, 0 for none; anything else is an error."""
    if files.size(PATH) is None:
        return 0
    found = read_save(PATH, SPEC, files=files).tensors
    return next(number for number in (1, 2) if same(found, version(number)))


def outcomes(make: Callable[[], FaultyFiles], error: BaseException, *, power: bool) -> set[int]:
    """Save version 1, then 2 with a failure at every call in turn; return all that is found afterwards."""
    found = set()
    whole = make()
    for number in (1, 2):
        write_save(PATH, SPEC, 3, version(number), files=whole)
    calls = whole.calls // 2
    assert whole.calls == 2 * calls >= 2 * 6
    for call in range(calls + 1):
        for seed in range(20 if power else 1):
            files = make()
            write_save(PATH, SPEC, 3, version(1), files=files)
            files.fail_at, files.torn, files.error = files.calls + call, bool(seed % 2), error
            returned = False
            try:
                write_save(PATH, SPEC, 3, version(2), files=files)
                returned = True
            except type(error):
                pass
            if power:
                files.power_cut(Random(seed))
            files.restart()
            seen = outcome(files)
            assert seen == 2 or (seen == 1 and not returned), f"call {call} seed {seed}: {seen}"
            found.add(seen)
            if not power and not isinstance(error, Crash):
                assert set(files.names) == {PATH}  # nothing is left lying about
    return found


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "injected"), Crash()])
@pytest.mark.parametrize("power", [False, True])
def test_every_write_sync_and_rename_fails_in_turn(error: BaseException, power: bool) -> None:
    assert outcomes(FaultyFiles, error, power=power) == {1, 2}


def test_a_disk_that_does_not_sync_is_caught() -> None:
    def make() -> FaultyFiles:
        files = FaultyFiles()
        files.honest = False
        return files

    with pytest.raises((AssertionError, ContractError, StopIteration)):
        outcomes(make, Crash(), power=True)


def test_a_file_written_in_place_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the bytes go to the file itself."""

    def in_place(files: Any, path: Path, parts: Any, *, sync: bool) -> None:
        file, offset = files.open(path, "create"), 0
        for part in parts:
            file.write_at(offset, part)
            offset += len(part)
        file.sync()
        files.sync_folder(path.parent)

    monkeypatch.setattr(tensor_file, "write_atomic", in_place)
    with pytest.raises((AssertionError, ContractError, StopIteration)):
        outcomes(FaultyFiles, OSError(errno.ENOSPC, "injected"), power=False)


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_the_real_file_system_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_save(tmp_path / "s", SPEC, 3, version(1))
    before = (tmp_path / "s").read_bytes()

    def fail(*arguments: Any) -> None:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="injected"):
        write_save(tmp_path / "s", SPEC, 3, version(2))
    assert (tmp_path / "s").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "s"]


def damaged(raw: bytes) -> set[int]:
    """Return the places where a flipped byte, or the end of the file, is not noticed."""
    missed = set()
    for at in range(len(raw)):
        for spoilt in (raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :], raw[:at]):
            files = FaultyFiles()
            files.open(PATH, "create").write_at(0, spoilt)
            try:
                read_save(PATH, SPEC, files=files)
            except ContractError:
                continue
            missed.add(at)
    return missed


def test_a_flipped_byte_anywhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles()
    write_save(PATH, SPEC, 3, version(1), token_ids=[5, 6, 7], files=files)
    raw = bytes(files.names[PATH].data)
    assert not damaged(raw)
    genuine = TensorFile.read
    monkeypatch.setattr(TensorFile, "read", lambda self, sealed: genuine(self))  # mutant: the seal is not looked at
    assert len(damaged(raw)) > 50


def test_hostile_files_are_refused_before_anything_is_allocated() -> None:
    files = FaultyFiles()
    write_save(PATH, SPEC, 3, version(1), files=files)
    raw = bytes(files.names[PATH].data)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])

    def refused(change: Any, text: str) -> None:
        spoilt = json.loads(json.dumps(header))
        change(spoilt)
        front = json.dumps(spoilt).encode()
        files.open(PATH, "create").write_at(0, struct.pack("<Q", len(front)) + front + raw[8 + length :])
        with pytest.raises(ContractError, match=f"restore: {text}"):
            read_save(PATH, SPEC, files=files)

    def set_meta(name: str, text: str) -> Any:
        return lambda spoilt: spoilt["__metadata__"].__setitem__(name, text)

    refused(set_meta("format", "other"), "format of sequence does not fit, got 'other', need 'pagedref.sequence'")
    refused(set_meta("version", "2"), "version of sequence does not fit, got '2', need '1'")
    refused(set_meta("cache_spec", "[]"), "num_layers of sequence does not fit, got None, need 1")
    refused(set_meta("cache_spec", "{" * 10**5), "num_layers of sequence does not fit")
    refused(set_meta("num_tokens", "1" * 40), "num_tokens of sequence does not fit")
    refused(set_meta("sha256", "0"), "sequence has no seal")
    refused(set_meta("sha256", "0" * 64), "sequence is damaged")
    refused(set_meta("other", header["__metadata__"]["sha256"]), "sequence has no seal")
    refused(lambda spoilt: spoilt.pop("__metadata__"), "format of sequence does not fit, got None")
    refused(lambda spoilt: spoilt["k"].update(shape=[1, 10**12, 1, 2]), "sequence tensor 'k' has the wrong number")
    refused(lambda spoilt: spoilt["k"].update(shape=[1, 2, 1, 3]), "num_tokens of sequence does not fit")
    refused(lambda spoilt: spoilt["v"].update(dtype="I32"), "tensor 'v' of sequence does not fit")
    refused(lambda spoilt: spoilt["v"].update(shape=[6]), "tensor 'v' of sequence does not fit")
    refused(lambda spoilt: spoilt.update(x=spoilt.pop("v")), "tensor 'v' of sequence does not fit, got None")


# The format ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"{", "has a header that is not JSON"),
        (b"[" * 100_000, "has a header that is not JSON"),
        (b"[]", "has a header that is not a JSON object"),
        (b'{"a":1,"a":1}', "has a header that is not JSON, got a key stands twice"),
        (b'{"__metadata__":{"a":1}}', "has metadata that is not text"),
        (b'{"a":1}', "tensor 'a' has a malformed entry"),
        (b'{"a":{"dtype":"F4","shape":[],"data_offsets":[0,4]}}', "tensor 'a' has an unknown format"),
        (b'{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,4]}}', "tensor 'a' has an impossible shape"),
        (b'{"a":{"dtype":"U8","shape":[0,9e9],"data_offsets":[0,4]}}', "tensor 'a' has an impossible shape"),
        (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,5]}}', "tensor 'a' has offsets outside the file"),
        (b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}}', "tensor 'a' has the wrong number of bytes"),
        (b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}', "has bytes that belong to no tensor"),
        (b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}', "tensor 'a' overlaps or leaves a hole"),
    ],
)
def test_headers_that_are_not_sound(tmp_path: Path, header: bytes, text: str) -> None:
    (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + b"data")
    with pytest.raises(ContractError, match=f"TensorFile: f {text}"):
        TensorFile(tmp_path / "f")
    (tmp_path / "f").write_bytes((len(header) + 5).to_bytes(8, "little") + header + b"data")
    with pytest.raises(ContractError, match="f has a header longer than the file"):
        TensorFile(tmp_path / "f")


def test_formats_there_and_back(tmp_path: Path) -> None:
    kinds = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
    arrays = {name: np.zeros((2, 3), kinds.get(name, kind))[:, ::2] for name, kind in FORMATS.items()}
    arrays["empty"], arrays["scalar"] = np.zeros((0, 4), np.int8), np.array(7.0)
    arrays["big"] = np.arange(3, dtype=">i4")
    write_tensors(tmp_path / "f", arrays, {"a": '"sha256":"' + "0" * 64 + '"'}, seal=True)
    file = TensorFile(tmp_path / "f")
    assert file.metadata["a"] == '"sha256":"' + "0" * 64 + '"'
    for name, array in file.read(sealed=True).items():
        assert file.tensors[name].dtype == name or name in ("empty", "scalar", "big")
        assert array.shape == arrays[name].shape and (array == arrays[name].astype(array.dtype)).all()
    for wrong in ({"c": np.zeros(1, complex)}, {"__metadata__": np.zeros(1)}):
        with pytest.raises(ContractError, match="write_tensors: tensors have no such form"):
            write_tensors(tmp_path / "g", wrong)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "f", {"a": np.zeros(4)})
    file = TensorFile(tmp_path / "f")
    os.truncate(tmp_path / "f", file.tensors["a"].stop - 1)
    with pytest.raises(ContractError, match="tensor 'a' is truncated, got 31, need 32 bytes"):
        file.read()
    (tmp_path / "f").unlink()
    with pytest.raises(ContractError, match="cannot be read"):
        file.read()


def test_the_local_file_system(tmp_path: Path) -> None:
    """What the tests put a failing one in the place of does what it says."""
    path = tmp_path / "f"
    assert LOCAL.size(path) is None
    LOCAL.remove(path)
    file = LOCAL.open(path, "create")
    file.write_at(3, b"abc")
    file.write_at(0, memoryview(b"xy"))
    file.sync()
    assert (file.size(), file.read_at(1, 99), file.read_at(9, 1)) == (6, b"y\0abc", b"")
    file.refresh()
    buffer = bytearray(4)
    assert (file.read_into(4, buffer), buffer) == (2, bytearray(b"bc\0\0"))
    file.close()
    LOCAL.replace(path, tmp_path / "g")
    LOCAL.sync_folder(tmp_path)
    assert LOCAL.size(tmp_path / "g") == 6
    with pytest.raises(FileNotFoundError):
        LOCAL.open(path, "update")
    assert isinstance(_files.LOCAL, _files.LocalFiles) and save_file.VERSION == "1"


@pytest.mark.parametrize("path", ["a\0b", "\0", "", ".", "/", None, 7, b"bytes", ["a"]])
def test_paths_that_name_no_file(path: Any) -> None:
    cache, seq = filled("plain")
    before = gathered(cache, seq)
    for name, call in (("save", lambda: cache.save(seq, path)), ("restore", lambda: cache.restore(path))):
        with pytest.raises(ContractError, match=rf"^{name}: path .*, got .*, need ") as error:
            call()
        assert "\n" not in str(error.value)
    assert gathered(cache, seq) == before
    cache.manager.audit()


def test_geometry_in_integers_of_numpy(tmp_path: Path) -> None:
    """A CacheSpec takes them, so its files must."""
    spec = CacheSpec(np.int64(1), np.int32(2), np.int16(8), page_size=np.uint8(4), v_head_dim=np.int64(8))
    cache = PagedKVCache(spec, 4)
    seq = cache.add()
    step, ones = cache.begin([seq], [5]), np.ones((5, 2, 8), np.float32)
    cache.append(step, ones, ones)
    cache.commit(step)
    cache.save(seq, tmp_path / "s")
    plain = PagedKVCache(CacheSpec(1, 2, 8, page_size=4), 4)
    assert plain.manager.seq_len(plain.restore(tmp_path / "s")) == 5
    assert cache.manager.seq_len(cache.restore(tmp_path / "s")) == 5
    for one in (cache, plain):
        one.manager.audit()
