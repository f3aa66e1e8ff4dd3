"""The README tells the truth: its test command is what CI runs, its numbers are what the example prints."""

from __future__ import annotations

import configparser
import os
import re
import runpy
import subprocess
import sys

from tests.meta.sources import ROOT

README = (ROOT / "README.md").read_text()
EXAMPLE = "examples/what_paging_saves.py"


def commands(text: str) -> list[str]:
    """List the command lines in shell fences."""
    fences = re.findall(r"^```(?:bash|sh|shell)\n(.*?)^```", text, flags=re.M | re.S)
    return [line for fence in fences for line in fence.splitlines() if line and not line.startswith("#")]


def printed_block(text: str, script: str) -> str | None:
    """Return the text between the two marks that name a script."""
    found = re.search(rf"<!-- printed by {re.escape(script)} -->\n(.*?)<!-- end -->", text, flags=re.S)
    return found and found[1].strip()


def run_python(*arguments: str) -> str:
    """Run Python on this source, installed or not, and return what it prints."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_first_commands_are_the_two() -> None:
    first, second = commands(README)[:2]
    assert first.endswith('pagedref generate "What is the capital of France?"')
    assert second.endswith("tox")
    for command in (first, second):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install "), "each stands alone"


def test_ci_runs_the_readme_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands(README)[1] in lines


def test_numbers_are_printed_numbers() -> None:
    block = printed_block(README, EXAMPLE)
    assert block, f"README has no block printed by {EXAMPLE}"
    assert block == run_python(EXAMPLE), f"paste what {EXAMPLE} prints"


def test_figure_is_what_the_memory_says() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "_ext" / "front_figure.py"))["figure"]()
    assert (ROOT / "docs" / "_static" / "front.svg").read_text() == drawn, "run python docs/_ext/front_figure.py"


def test_python_example_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)
    assert run_python("-c", code) == "[[0 1]]"


def test_named_files_and_environments_exist() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [name for name in linked if not (ROOT / name).exists()]
    assert not missing, f"README links to {missing}"
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    named = set(re.findall(r"tox -e ([a-z]+)", README + (ROOT / "CONTRIBUTING.md").read_text()))
    unknown = [name for name in named if f"testenv:{name}" not in tox]
    assert named
    assert not unknown, f"no tox environment {unknown}"


def test_every_environment_is_described() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    silent = [name for name in tox.sections() if name.startswith("testenv:") and not tox[name].get("description")]
    assert not silent


def test_check_can_fail() -> None:
    assert commands("```bash\n# note\ntox\n```\n```python\nx\n```") == ["tox"]
    assert printed_block("<!-- printed by a.py -->\nx\n<!-- end -->", "a.py") == "x"
    assert printed_block("<!-- printed by a.py -->\nx\n<!-- end -->", "b.py") is None
