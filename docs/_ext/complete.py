"""A public module or name that is on no page is a warning, so documentation covers all of it or the build fails."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)
PACKAGES = ("pagedref",)  # operations of the twin have a table, in cuda.rst


def public_modules(package: str) -> Iterator[str]:
    """Name the modules of a package that have no leading underscore."""
    yield package
    root = import_module(package)
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        pieces = found.name.split(".")
        if not any(piece.startswith("_") for piece in pieces) and find_spec(found.name) is not None:
            yield found.name


def homes(module: str, name: str) -> set[str]:
    """Name the places where an object may be documented: where it is offered, and where it is defined."""
    found = getattr(import_module(module), name)
    where = {f"{module}.{name}"}
    if inspect.isclass(found) or inspect.isfunction(found):
        where.add(f"{found.__module__}.{found.__qualname__}")
    return where


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of every public module and name that no page describes."""
    domain = env.get_domain("py").data
    for package in PACKAGES:
        for module in public_modules(package):
            if module not in domain["modules"] and module not in (package, f"{package}.__main__"):
                logger.warning("no page describes the module %s", module)
            for name in getattr(import_module(module), "__all__", ()):
                if name.startswith("__") or inspect.ismodule(getattr(import_module(module), name)):
                    continue
                known = homes(module, name)
                if not any(place in domain["objects"] for place in known) and not documented(name, domain["objects"]):
                    logger.warning("no page describes %s of %s", name, module)


def documented(name: str, objects: dict[str, Any]) -> bool:
    """Tell whether a name that another module defines (a constant, a type) stands under that module."""
    return any(place.rpartition(".")[2] == name for place in objects)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
