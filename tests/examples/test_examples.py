"""Every script in examples/ runs by itself, from anywhere, to its asserts."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "examples" / folder for folder in (".", "tutorials", "answers")]
SCRIPTS = [path for folder in FOLDERS for path in sorted(folder.glob("*.py"))]
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))


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
    assert done.stdout.strip() or script.parent.name == "answers", "an example prints what it found"


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_asks_and_answers(tutorial: Path) -> None:
    text = tutorial.read_text()
    number = tutorial.stem[:2]
    question = text.split("===\n\n", 1)[1].split("\n\n", 1)[0]
    assert question.startswith("*") and question.endswith("?*"), "a tutorial starts with a question"
    assert "# Exercises\n# ---------" in text
    assert f"/../examples/answers/answers_{number}.py" in text
    answers = (ROOT / "examples" / "answers" / f"answers_{number}.py").read_text()
    asked = text.split("# Exercises\n", 1)[1].split(".. dropdown", 1)[0]
    exercises = [line for line in asked.splitlines() if line[2:3].isdigit()]
    assert len(exercises) >= 2
    assert all(f"# {at}. " in answers for at in range(1, len(exercises) + 1)), "each exercise has its answer"
