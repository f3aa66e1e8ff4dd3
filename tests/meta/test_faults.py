"""Every fault that code, tests or documentation name (P01, P02, ...) is told in docs/faults.rst; so is every kernel."""

from __future__ import annotations

import ast
import re

from tests.meta.sources import ROOT, modules

FAULTS = (ROOT / "docs" / "faults.rst").read_text()
CUDA = (ROOT / "docs" / "cuda.rst").read_text()
NUMBER = re.compile(r"\bP[0-9]{2}\b")


def told(text: str) -> set[str]:
    """List the numbers that a page has a label for."""
    return set(re.findall(r"^\.\. _(P[0-9]{2}):$", text, flags=re.M))


def kernels(text: str) -> set[str]:
    """List the functions that are declared with ``@kernel(...)``."""
    return {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "kernel"
    }


def test_every_cited_fault_is_told() -> None:
    cited: dict[str, str] = {}
    for folder in ("pagedref", "pagedref_cuda", "tests", "docs", "examples"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".rst") and "_build" not in path.parts and path.name != "test_faults.py":
                cited |= dict.fromkeys(NUMBER.findall(path.read_text()), str(path.relative_to(ROOT)))
    assert cited
    missing = {number: where for number, where in cited.items() if number not in told(FAULTS)}
    assert not missing, f"not in docs/faults.rst: {missing}"


def test_every_fault_names_its_report() -> None:
    parts = re.split(r"^\.\. _(P[0-9]{2}):$", FAULTS, flags=re.M)
    silent = [number for number, text in zip(parts[1::2], parts[2::2], strict=True) if ":report:" not in text]
    assert not silent
    assert parts[1::2] == sorted(parts[1::2]), "in order"


def test_every_kernel_is_in_the_table() -> None:
    declared = set().union(*(kernels(path.read_text()) for path in modules("pagedref_cuda").values()))
    listed = set(re.findall(r"^   \* - ``(\w+_[0-9]+)``$", CUDA, flags=re.M))
    assert declared == listed


def test_check_can_fail() -> None:
    assert told(".. _P01:\n\nP01 x\n~~~~~\n\nSee P02.") == {"P01"}
    assert kernels("@kernel(('int64',))\ndef a_1(): ...\n@device_function\ndef b(): ...") == {"a_1"}
