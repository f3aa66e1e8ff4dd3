"""Read our own source: modules, imports and public names, without importing anything."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pagedref", "pagedref_cuda")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One import of one name, made absolute: ``from .state import X`` in ``pagedref.attention.cache`` has
    the candidates ``pagedref.attention.state.X`` and ``pagedref.attention.state``, longest first."""

    line: int
    module: str
    name: str


def modules(package: str) -> dict[str, Path]:
    """Map dotted module names of a package to files, packages under their own name."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def all_modules() -> dict[str, Path]:
    """Map dotted module names of both packages to files."""
    return {name: path for package in PACKAGES for name, path in modules(package).items()}


def is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/") / "__init__.py").exists()


def imports(text: str, module: str, *, package: bool = False) -> Iterator[Import]:
    """Yield every import in a source text, also those inside functions and under ``TYPE_CHECKING``."""
    parents = module.split(".") if package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, "")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                yield Import(node.lineno, base, alias.name)


def public_definitions(tree: ast.Module) -> list[FunctionNode | ast.ClassDef]:
    """List the functions and classes that a module defines and offers (``__all__``, else no leading underscore)."""
    offered: set[str] | None = None
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            with contextlib.suppress(ValueError):  # a computed list offers nothing defined here
                offered = set(ast.literal_eval(node.value))
    definitions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    return [node for node in definitions if (node.name in offered if offered is not None else node.name[0] != "_")]
