"""Every script in examples/ runs by itself, from anywhere, to its asserts."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_checks_itself(script: Path) -> None:
    tree = ast.parse(script.read_text())
    assert ast.get_docstring(tree), "an example starts by saying what it shows"
    assert isinstance(tree.body[-1], ast.Assert), "an example ends in asserts"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "an example prints what it found"
