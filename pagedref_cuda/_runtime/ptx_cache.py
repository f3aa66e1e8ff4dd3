"""Compiled PTX of our own kernels, kept on disk: compiling takes a second, reading it back a millisecond.

The key is everything that the text depends on: the sources of the modules that the kernel reaches, the constants it
reads, its types and options, and the versions of the compilers. ``PAGEDREF_PTX_CACHE=0`` turns it off.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from pagedref_cuda._runtime.compiler import CompileOptions, compile_function
from pagedref_cuda._runtime.detect import EMULATED_CAPABILITY

__all__ = ["PTX_CACHE", "PtxCache", "compiled"]

_OURS = ("pagedref_cuda", "pagedref")
_COMPILERS = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-cuda-nvrtc", "numpy")
_KEPT = 400


@cache
def _versions() -> tuple[str, ...]:
    found = []
    for name in _COMPILERS:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return tuple(found)


@cache
def _source_hash(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in _OURS


def dependencies(function: Callable[..., Any]) -> list[str]:
    """List what the compiled text of a function depends on: our modules by the hash of their source, and constants.

    Parameters
    ----------
    function : callable
        Plain Python.

    Returns
    -------
    list of str
        Sorted.
    """
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        value = waiting.pop()
        value = getattr(value, "py_func", value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) or ""
        if _is_ours(module):
            found.add(f"{module} {_source_hash(module)}")
        if isinstance(value, FunctionType) and (_is_ours(module) or value is function):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            reached = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
            for item in cells + reached:
                if isinstance(item, bool | int | float | str | tuple | np.generic | np.ndarray | type(None)):
                    found.add(f"constant {item!r}")
                else:
                    waiting.append(item)
    return sorted(found)


class PtxCache:
    """A folder of PTX texts."""

    def folder(self) -> Path:
        """Return where the texts lie.

        Returns
        -------
        Path
            ``ptx`` in ``PAGEDREF_CACHE``, else in ``pagedref`` of the user's cache directory.
        """
        own = os.environ.get("PAGEDREF_CACHE")
        shared = os.environ.get("XDG_CACHE_HOME")
        base = Path(own) if own else (Path(shared) if shared else Path.home() / ".cache") / "pagedref"
        return base / "ptx"

    def key(
        self,
        function: Callable[..., Any],
        argument_types: tuple[Any, ...],
        options: Any,
        compute_capability: tuple[int, int] = EMULATED_CAPABILITY,
    ) -> str | None:
        """Return the name under which a text is kept; None for what is not ours.

        Parameters
        ----------
        function : callable
            Plain Python.
        argument_types : tuple of numba type
            What it is compiled for.
        options : CompileOptions
            How.
        compute_capability : pair of int
            For which device.

        Returns
        -------
        str or None
            A hash.
        """
        if not _is_ours(function.__module__ or "") or os.environ.get("PAGEDREF_PTX_CACHE") == "0":
            return None
        parts = [function.__qualname__, *map(str, argument_types), repr(options), repr(compute_capability)]
        return hashlib.sha256("\n".join([*parts, *dependencies(function), *_versions()]).encode()).hexdigest()

    def load(self, key: str | None) -> list[str] | None:
        """Return the texts of a key, or None.

        Parameters
        ----------
        key : str or None
            From :meth:`key`.

        Returns
        -------
        list of str or None
            PTX.
        """
        if key is None:
            return None
        try:
            texts = json.loads((self.folder() / f"{key}.json").read_text())
        except (OSError, ValueError):
            return None
        good = isinstance(texts, list) and bool(texts) and all(isinstance(text, str) for text in texts)
        return texts if good else None

    def store(self, key: str | None, texts: list[str]) -> None:
        """Keep the texts of a key; a folder that cannot be written is no fault. The oldest of many go.

        Parameters
        ----------
        key : str or None
            From :meth:`key`.
        texts : list of str
            PTX.
        """
        if key is None:
            return
        folder = self.folder()
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            half = folder / f"{key}.{os.getpid()}"
            half.write_text(json.dumps(texts))
            half.replace(folder / f"{key}.json")
            for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
                old.unlink(missing_ok=True)


PTX_CACHE = PtxCache()
"""The one of this process."""


def compiled(
    function: Callable[..., None],
    argument_types: tuple[Any, ...],
    options: CompileOptions,
    compute_capability: tuple[int, int] = EMULATED_CAPABILITY,
) -> list[str]:
    """Return the PTX of a function, from the folder if it is there.

    Parameters
    ----------
    function : callable
        Plain Python.
    argument_types : tuple of numba type
        For which.
    options : CompileOptions
        How.
    compute_capability : pair of int
        For which device.

    Returns
    -------
    list of str
        PTX of the kernel, and of the helpers in CUDA C++ that it calls.
    """
    key = PTX_CACHE.key(function, argument_types, options, compute_capability)
    texts = PTX_CACHE.load(key)
    if texts is None:
        texts = compile_function(function, argument_types, options, compute_capability)
        PTX_CACHE.store(key, texts)
    return texts
