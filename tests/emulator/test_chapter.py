"""What the chapter on the emulator prints is what comes out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.meta.sources import ROOT, all_modules

EXAMPLE = ROOT / "examples" / "wrong_kernel.py"
CHAPTER = (ROOT / "docs" / "emulator.rst").read_text()


def test_the_stored_output_is_that_of_the_script() -> None:
    pytest.importorskip("tests.emulator.bridge", reason="numba-cuda is not installed", exc_type=ImportError)
    done = subprocess.run([sys.executable, str(EXAMPLE)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "docs" / "wrong_kernel.txt").read_text()


def test_the_emulator_needs_numpy_and_ml_dtypes_only() -> None:
    code = (
        "import sys\n"
        "for name in ('numba', 'llvmlite', 'scipy'): sys.modules[name] = None\n"
        "import pagedref_cuda.emulator\n"
        "print(sorted(name for name in sys.modules if name.startswith('pagedref') and sys.modules[name]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "pagedref.attention" not in done.stdout


@pytest.mark.parametrize("name", [name for name in all_modules() if name.startswith("pagedref_cuda.emulator.")])
def test_every_part_is_in_the_chapter(name: str) -> None:
    word = name.split(".")[-1]
    if word.startswith("_"):
        pytest.skip("a script")
    assert f"``{word}``" in CHAPTER
