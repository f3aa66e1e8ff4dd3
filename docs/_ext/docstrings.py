"""Keep docstrings of properties and constants as they are written.

Napoleon reads the text before a colon in such a docstring as a type: "Holders of every frame: a read-only view". So the
text is put back after it.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

PLAIN = ("attribute", "data", "property")
saved: dict[str, list[str]] = {}


def save(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what in PLAIN:
        saved[name] = list(lines)


def restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what in PLAIN:
        lines[:] = saved.pop(name, lines)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", save, priority=400)
    app.connect("autodoc-process-docstring", restore, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
