"""The script for a machine with a GPU, run on the emulator with tiny shapes: its first minute there is no surprise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedref.errors import BackendUnavailable
from tests.meta.sources import ROOT

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

from pagedref_cuda import _runtime

try:
    MODE = _runtime.mode()
except BackendUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

pytestmark = pytest.mark.skipif(MODE != "emulator", reason="needs the emulator")


def test_every_part_ends_with_its_result(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ})
    report = json.loads((tmp_path / "gpu_emulator_sm_90_ptx.json").read_text())
    assert [name for name, part in report.items() if isinstance(part, dict) and "stopped" in part] == []
    assert report["environment"]["runs on"] == "emulator (sm_90 PTX)"
    for part in ("decode", "prefill", "cache", "layers"):
        assert report[part]["rows"]
        for row in report[part]["rows"]:
            assert "error" not in row and "time" not in row, row
            assert row["counts"]["warp_instructions"] > 0
    assert report["model"]["runs"] == {"float32, batch 1": {"same ids as NumPy": True}}
    assert report["conformance"]["passed"] > 0 and report["conformance"]["failed"] == {}
    text = (tmp_path / "gpu_emulator_sm_90_ptx.md").read_text()
    assert "Emulated, not timed" in text and "µs" not in text
    assert text in done.stdout
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".md"]
