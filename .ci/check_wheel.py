"""Check the built sdist and wheel: content, then a fresh environment that imports it and runs the command.

Usage: python check_wheel.py DIST_FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROBE = """
import importlib.metadata, importlib.resources, pagedref, sys
assert "site-packages" in pagedref.__file__, pagedref.__file__
assert pagedref.__version__ == importlib.metadata.version("pagedref") == sys.argv[1], pagedref.__version__
assert importlib.resources.files("pagedref").joinpath("py.typed").is_file()
names = {point.name for point in importlib.metadata.entry_points(group="pagedref.backends")}
assert {"numpy", "cuda"} <= names, names
assert pagedref.backends.get("numpy").paged_decode
assert "numba" not in sys.modules
print("imported", pagedref.__version__, "backends", sorted(names))
"""


def shipped_files() -> set[str]:
    """List what the wheel must hold: every file of both packages, caches aside."""
    files = (path for package in ("pagedref", "pagedref_cuda") for path in (ROOT / package).rglob("*"))
    return {
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def check_content(wheel: Path, sdist: Path) -> None:
    """Compare the archives with the source tree."""
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = shipped_files() - names
    assert not missing, f"wheel lacks {sorted(missing)}"
    for needed in ("pagedref/py.typed", "pagedref_cuda/py.typed"):
        assert needed in names, f"wheel lacks {needed}"
    assert any(name.startswith("pagedref/models/data/") for name in names), "wheel lacks the tiny model"
    assert any(name.endswith("/licenses/LICENSE") for name in names), "wheel lacks LICENSE"
    strange = {name for name in names if not name.startswith(("pagedref/", "pagedref_cuda/", "pagedref-"))}
    assert not strange, f"wheel holds {sorted(strange)}"
    with tarfile.open(sdist) as archive:
        members = {name.split("/", 1)[-1] for name in archive.getnames()}
    for needed in ("pyproject.toml", "tox.ini", "README.md", "LICENSE", "tests/meta/test_floors.py", "docs/conf.py"):
        assert needed in members, f"sdist lacks {needed}"
    print(f"content: {len(names)} files in {wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB")


def check_install(wheel: Path, version: str) -> None:
    """Install the wheel with its hard dependencies only, then import it and run the command elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        bin_folder = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        python = str(bin_folder / "python")

        def run(*command: str) -> None:
            print("$", Path(command[0]).name, *("..." if "\n" in part else part for part in command[1:]), flush=True)
            subprocess.run(command, cwd=folder, check=True)

        run(python, "-m", "pip", "install", "--quiet", str(wheel))
        run(python, "-c", PROBE, version)
        run(str(bin_folder / "pagedref"), "--help")
        run(python, "-m", "pagedref", "--help")


def main() -> None:
    """Check what lies in the folder named on the command line."""
    dist = Path(sys.argv[1])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (wheel,) = dist.glob(f"pagedref-{version}-*.whl")
    (sdist,) = dist.glob(f"pagedref-{version}.tar.gz")
    check_content(wheel, sdist)
    check_install(wheel, version)
    print("package: good")


if __name__ == "__main__":
    main()
