"""No module is longer than one sitting: 350 lines, 700 for the emulator; examples have at most 80 lines of code."""

from __future__ import annotations

import ast
import io
import tokenize

from tests.meta.sources import ROOT, all_modules

LIMIT = 350
LIMIT_EMULATOR = 700
LIMIT_EXAMPLE = 80
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def limit_of(module: str) -> int:
    return LIMIT_EMULATOR if module.startswith("pagedref_cuda.emulator") else LIMIT


def too_long(lengths: dict[str, int]) -> list[str]:
    over = {name: count for name, count in lengths.items() if count > limit_of(name)}
    return [f"{name}: {count} lines, at most {limit_of(name)}" for name, count in over.items()]


def code_lines(text: str) -> int:
    """Count the lines that hold code: no blanks, no comments, no docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for t in tokens if t.type not in SILENT for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        is_documented = isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        if is_documented and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_no_module_is_too_long() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in all_modules().items()}
    assert lengths
    assert not too_long(lengths), "\n".join(too_long(lengths))


def test_no_example_is_too_long() -> None:
    counts = {path.name: code_lines(path.read_text()) for path in (ROOT / "examples").glob("*.py")}
    long = {name: count for name, count in counts.items() if count > LIMIT_EXAMPLE}
    assert not long, f"more than {LIMIT_EXAMPLE} lines of code: {long}"


def test_check_can_fail() -> None:
    assert too_long({"pagedref.errors": 351, "pagedref_cuda.emulator.run": 701, "pagedref_cuda.decode": 351})
    assert not too_long({"pagedref.errors": 350, "pagedref_cuda.emulator.run": 700})
    assert code_lines('"""Doc\nstring."""\n\n# comment\nx = (\n    1\n)\n') == 3
