"""Every public name explains itself: a docstring, and its Parameters and Returns where it takes or gives something."""

from __future__ import annotations

import ast
from itertools import pairwise

import pytest

from tests.meta.sources import FunctionNode, modules, public_definitions

GOOD = '''"""M."""
__all__ = ["f"]
def f(x) -> int:
    """Do.

    Parameters
    ----------
    x : int

    Returns
    -------
    int
    """
def g(x):
    pass
'''


def has_section(doc: str, *names: str) -> bool:
    lines = [line.strip() for line in doc.splitlines()]
    return any(line in names and set(below) == {"-"} for line, below in pairwise(lines) if below)


def gives_something(node: FunctionNode) -> bool:
    return node.returns is not None and ast.unparse(node.returns) not in ("None", "NoReturn", "Never")


def wrong_in_function(node: FunctionNode, where: str) -> list[str]:
    doc = ast.get_docstring(node)
    if not doc:
        return [f"{where} has no docstring"]
    wrong = []
    arguments = node.args
    takes = [
        a for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs] if a.arg not in ("self", "cls")
    ]
    if takes and not has_section(doc, "Parameters"):
        wrong.append(f"{where} takes {takes[0].arg!r} but has no section Parameters")
    if gives_something(node) and not has_section(doc, "Returns", "Yields"):
        wrong.append(f"{where} returns something but has no section Returns")
    return wrong


def wrong_docstrings(text: str, module: str) -> list[str]:
    tree = ast.parse(text)
    wrong = [] if ast.get_docstring(tree) else [f"{module} has no docstring"]
    for node in public_definitions(tree):
        where = f"{module}:{node.lineno} {node.name}"
        if not isinstance(node, ast.ClassDef):
            wrong += wrong_in_function(node, where)
            continue
        if not ast.get_docstring(node):
            wrong.append(f"{where} has no docstring")
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name[0] != "_" and not ast.get_docstring(method):
                wrong.append(f"{module}:{method.lineno} {node.name}.{method.name} has no docstring")
    return wrong


def test_public_names_have_docstrings() -> None:
    wrong = [
        line for module, path in modules("pagedref").items() for line in wrong_docstrings(path.read_text(), module)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        '"""M."""\ndef f():\n    pass',
        '"""M."""\ndef f(x):\n    """Do."""',
        '"""M."""\ndef f() -> int:\n    """Do."""',
        '"""M."""\nclass C:\n    pass',
        '"""M."""\nclass C:\n    """C."""\n    def m(self): pass',
    ],
)
def test_check_can_fail(text: str) -> None:
    assert wrong_docstrings(text, "m")


def test_good_docstrings_pass() -> None:
    assert not wrong_docstrings(GOOD, "m")
