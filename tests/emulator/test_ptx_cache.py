"""Compiled PTX is found again by everything that it depends on, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tests.emulator.bridge", reason="numba-cuda is not installed", exc_type=ImportError)

import pagedref_cuda
from pagedref_cuda._runtime.compiler import CompileOptions
from pagedref_cuda._runtime.ptx_cache import PtxCache, dependencies

FACTOR = 2


def ours(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__module__ = "pagedref_cuda.none"
    return function


def doubled(x):
    return x * FACTOR


def test_the_key_is_what_the_text_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGEDREF_PTX_CACHE", raising=False)
    cache, function = PtxCache(), ours(doubled)
    key = cache.key(function, ("int64",), CompileOptions())
    assert key == cache.key(function, ("int64",), CompileOptions())
    assert key != cache.key(function, ("float32",), CompileOptions())
    assert key != cache.key(function, ("int64",), CompileOptions(fma=False))
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert key != cache.key(function, ("int64",), CompileOptions())
    monkeypatch.setenv("PAGEDREF_PTX_CACHE", "0")
    assert cache.key(function, ("int64",), CompileOptions()) is None


def test_kernels_of_others_are_not_kept() -> None:
    def function(x):
        return x

    assert PtxCache().key(function, ("int64",), CompileOptions()) is None


def test_modules_that_a_kernel_reaches_count() -> None:
    found = dependencies(pagedref_cuda.KERNELS["paged_decode_1"].function)
    modules = {line.split()[0] for line in found}
    assert {"pagedref_cuda.decode", "pagedref_cuda.tiles", "pagedref_cuda._device", "pagedref.addressing"} <= modules


def test_texts_are_kept_and_damaged_ones_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDREF_CACHE", str(tmp_path))
    cache = PtxCache()
    assert cache.load("a") is None
    cache.store("a", ["text", "helper"])
    assert cache.load("a") == ["text", "helper"]
    assert [path.name for path in (tmp_path / "ptx").iterdir()] == ["a.json"]
    (tmp_path / "ptx" / "a.json").write_text("[1")
    assert cache.load("a") is None
    monkeypatch.setenv("PAGEDREF_CACHE", str(tmp_path / "ptx" / "a.json"))  # a folder that cannot be made
    cache.store("a", ["text"])
    assert cache.load(None) is None
