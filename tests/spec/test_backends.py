"""Finding backends."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pagedref import backends
from pagedref.contract import OPERATIONS
from pagedref.errors import BackendUnavailable


def test_numpy_has_every_operation() -> None:
    assert all(callable(getattr(backends.get("numpy"), name)) for name in OPERATIONS)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(BackendUnavailable, match=r"'tpu', need one of .*numpy"):
        backends.get("tpu")


class Point:
    """An entry point."""

    def __init__(self, name: str, target: Any) -> None:
        self.name, self.target = name, target

    def load(self) -> Any:
        if isinstance(self.target, Exception):
            raise self.target
        return self.target


def test_entry_points_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SimpleNamespace(**dict.fromkeys(OPERATIONS, print))
    part = SimpleNamespace(append_kv=print)
    points = [Point("whole", whole), Point("part", part), Point("absent", ImportError("no module"))]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert backends.get("whole") is whole
    assert {"whole", "numpy", "cuda"} <= set(backends.available())
    with pytest.raises(BackendUnavailable, match=r"lacks operations, got none of .*paged_decode"):
        backends.get("part")
    with pytest.raises(BackendUnavailable, match="cannot be imported"):
        backends.get("absent")


def test_twin_without_device_gives_the_line_to_try() -> None:
    code = "import pagedref.backends as b\ntry: b.get('cuda')\nexcept Exception as x: print(type(x).__name__, x)"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert result.stdout.startswith("BackendUnavailable"), result.stdout + result.stderr
    assert "pip install" in result.stdout and "pagedref[cuda" in result.stdout, result.stdout + result.stderr
