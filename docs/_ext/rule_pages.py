"""A page for each rule and law: its text, and what rests on it.

The text comes from semantics.rst; errors, tests and declared mistakes are read from the sources, and the names whose
docstrings rest on the rule are those that the site describes. The pages are written into ``docs/rules`` before the site
is read.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from rules import link
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\b[SL][1-9][0-9]?\b")
SECTION = re.compile(r"^\.\. _([SL]\d+):\n\n([^\n]+)\n~+\n\n(.*?)(?=^\.\. _|^[^\n]+\n[-~]{3,}\n|\Z)", flags=re.M | re.S)
FAULT = re.compile(r"^\.\. _(P\d+):\n\n([^\n]+)\n~+\n\n(.*?)(?=^\.\. _|\Z)", flags=re.M | re.S)
RAISERS = ("fail", "refuse")  # functions that raise, by the words of the error
MISTAKES = ("Slip", "MoveSlip")


class Sources(NamedTuple):
    """What in the sources rests on rules: rule to lines of text."""

    errors: dict[str, list[str]]
    tests: dict[str, list[str]]
    mistakes: dict[str, list[str]]
    chapters: dict[str, list[str]]
    checks: dict[str, list[str]]
    faults: dict[str, list[str]]


class Uses(nodes.General, nodes.Element):
    """Stands where the names that rest on a rule are listed, once the site knows them."""


def page_name(rule: str) -> str:
    """Return the name of the page of a rule, in an order that sorts."""
    return f"{rule[0].lower()}{int(rule[1:]):02d}"


def rules(text: str) -> list[tuple[str, str, str]]:
    """Split the page of rules into number, title and text."""
    return [(found[1], found[2], found[3].strip()) for found in SECTION.finditer(text)]


def words(node: ast.expr) -> str:
    """Return the text of an expression, with … where it holds a value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(words(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return words(node.left) + words(node.right)
    return "…"


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def error_text(node: ast.Call) -> str:
    """Return the text that a call raises with: ``fail`` takes it in five parts."""
    parts = [words(argument) for argument in node.args]
    if name_of(node.func) in RAISERS and len(parts) == 5:
        return f"{parts[0]}: {parts[1]} {parts[2]}, got …, need {parts[4]}"
    if name_of(node.func) in RAISERS:
        return f"…: {parts[0]} is wrong, got …, need {parts[-1]}"
    return " ".join(parts)


def scan() -> Sources:
    """Read errors and declared mistakes from the package, tests from the tests, and which chapter names which rule."""
    found = Sources(*(defaultdict(list) for _ in Sources._fields))
    for path in sorted((ROOT / "pagedref").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                note(found.errors, error_text(node.exc))
            elif isinstance(node, ast.Call) and name_of(node.func) in RAISERS:
                note(found.errors, error_text(node))
            elif isinstance(node, ast.Call) and name_of(node.func) in MISTAKES and len(node.args) >= 3:
                found.mistakes[words(node.args[2])].append(words(node.args[1]))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        note_functions(found.tests, path, path.relative_to(ROOT), "test", "Test")
    for path in sorted((ROOT / "pagedref" / "conformance").glob("[!_]*.py")):
        if "slips" not in path.stem:
            note_functions(found.checks, path, path.relative_to(ROOT))
    for number, _, text in FAULT.findall((ROOT / "docs" / "faults.rst").read_text()):
        for rule in set(NUMBER.findall(text)):
            found.faults[rule].append(number)
    for path in sorted((ROOT / "docs" / "spec").glob("*.rst")):
        for rule in set(NUMBER.findall(path.read_text())):
            found.chapters[rule].append(f"/spec/{path.stem}")
    return found


def note_functions(table: dict[str, list[str]], path: Path, where: Path, *starts: str) -> None:
    """Note the functions and classes of a module whose source names a rule, or those whose names start in some way."""
    text = path.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.startswith(starts or ""):
            for rule in set(NUMBER.findall(ast.get_source_segment(text, node) or "")):
                table[rule].append(f"{where} · {node.name}")


def note(table: dict[str, list[str]], text: str) -> None:
    for rule in set(NUMBER.findall(text)):
        if text not in table[rule]:
            table[rule].append(text)


def listed(title: str, lines: list[str], form: str) -> list[str]:
    """Return a rubric and its list, or nothing."""
    if not lines:
        return []
    items = [f"- {form.format(line)}" for line in sorted(lines)]
    return ["", f".. rubric:: {title}", "", ".. rst-class:: rests", "", *items]


def page(rule: str, title: str, text: str, found: Sources) -> str:
    """Write the page of one rule."""
    lines = [f".. _rule-{rule}:", "", title, "=" * len(title), "", text, "", f"All rules: :ref:`{rule}`.", ""]
    lines += [f".. rule-uses:: {rule}"]
    lines += listed("Errors that say so", found.errors[rule], "``{}``")
    lines += listed("Mistakes that the conformance suite knows by name", found.mistakes[rule], "{}")
    lines += listed("Faults of public systems that break it", found.faults[rule], ":ref:`{}`")
    lines += listed("Checks of every backend", found.checks[rule], "``{}``")
    lines += listed("Tests", found.tests[rule], "``{}``")
    lines += listed("Chapters", found.chapters[rule], ":doc:`{}`")
    return "\n".join(lines) + "\n"


def write_pages(app: Sphinx) -> None:
    """Write the pages that changed, and remove those of rules that are no more."""
    folder = Path(app.srcdir) / "rules"
    folder.mkdir(exist_ok=True)
    found = scan()
    whole = (Path(app.srcdir) / "semantics.rst").read_text()
    pages = {f"{page_name(rule)}.rst": page(rule, title, text, found) for rule, title, text in rules(whole)}
    missing = {f"{page_name(rule)}.rst" for rule in re.findall(r"^\.\. _([SL]\d+):", whole, flags=re.M)} - {*pages}
    if missing:
        raise ExtensionError(f"rules without a title and a text in semantics.rst: {sorted(missing)}")
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()


class RuleUses(Directive):
    """``.. rule-uses:: S5``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        node = Uses()
        node["rule"] = self.arguments[0]
        return [node]


def point_to_pages(app: Sphinx, doctree: nodes.document) -> None:
    """End each rule of semantics.rst with a link to its page."""
    if app.env.docname != "semantics":
        return
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title)
        found = title and NUMBER.match(title.astext())
        if found:
            rests = nodes.paragraph("", "What rests on ", classes=["rests"])
            rests += [link(found[0], "semantics"), nodes.Text(": names, errors, tests.")]
            section += rests


def docstrings(objects: dict[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """Yield every documented name and the rules that its docstring names."""
    for name, entry in objects.items():
        if entry.objtype == "module" or entry.aliased:
            continue
        pieces = name.split(".")
        for cut in range(len(pieces) - 1, 0, -1):
            try:
                found: Any = import_module(".".join(pieces[:cut]))
            except ImportError:
                continue
            for piece in pieces[cut:]:
                found = inspect.getattr_static(found, piece, None)
            doc = getattr(getattr(found, "__func__", found), "__doc__", None) or ""
            yield name, set(NUMBER.findall(doc))
            break


def fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the links in, when all names are known."""
    for node in list(doctree.findall(Uses)):
        if not hasattr(app, "_rules_of_names"):
            app._rules_of_names = list(docstrings(app.env.get_domain("py").data["objects"]))  # type: ignore[attr-defined]
        objects = app.env.get_domain("py").data["objects"]
        names = sorted(name for name, its in app._rules_of_names if node["rule"] in its)  # type: ignore[attr-defined]
        items = nodes.bullet_list(classes=["rests"])
        for name in names:
            entry = objects[name]
            text = nodes.literal(name, name)
            link = make_refnode(app.builder, docname, entry.docname, entry.node_id, text, name)
            items += nodes.list_item("", nodes.paragraph("", "", link))
        node.replace_self([nodes.rubric("", "Names whose docstrings rest on it"), items] if names else [])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_node(Uses)
    app.add_directive("rule-uses", RuleUses)
    app.connect("builder-inited", write_pages)
    app.connect("doctree-read", point_to_pages)
    app.connect("doctree-resolved", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
