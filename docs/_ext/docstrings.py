"""Two helps for docstrings.

Docstrings of properties and constants are kept as they are written: napoleon reads the text before a colon in them as a
type ("Holders of every frame: a read-only view"), so the text is put back after it.

A name that is not found where it is used, such as ``:class:`Token``` in another module than its own, or under the name
that its package offers (``pagedref.attention.paged_decode``), leads to the object of that name, if there is but one.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

PLAIN = ("attribute", "data", "property")
saved: dict[str, list[str]] = {}


def save(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what in PLAIN:
        saved[name] = list(lines)


def restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what in PLAIN:
        lines[:] = saved.pop(name, lines)


def by_last_word(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Element) -> nodes.Element | None:
    if node.get("refdomain") != "py":
        return None
    package, dot, word = node["reftarget"].rpartition(".")
    objects = env.get_domain("py").data["objects"]
    found = [
        (name, entry)
        for name, entry in objects.items()
        if name.startswith(package + dot) and name.endswith(f".{word}") and not entry.aliased
    ]
    if len(found) != 1:
        return None
    ((name, entry),) = found
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, text, name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", save, priority=400)
    app.connect("autodoc-process-docstring", restore, priority=600)
    app.connect("missing-reference", by_last_word)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
