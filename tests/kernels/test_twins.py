"""The twin has the names, signatures and house rules of the reference (no GPU, no compiler needed)."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

import pagedref.attention as reference
from pagedref.contract import EXTENDED_OPERATIONS, OPERATIONS

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

import pagedref_cuda as twin

NAMES = [*OPERATIONS, *EXTENDED_OPERATIONS, "cascade_attention", "cascade_mla", "split_kv"]


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_equal(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)) for module in (twin, reference))
    assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
        (p.name, p.kind, p.default) for p in theirs.parameters.values()
    ]
    assert ours.return_annotation == theirs.return_annotation


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_name_each_other(name: str) -> None:
    assert f"Twin: ``pagedref.attention.{name}``" in " ".join((getattr(twin, name).__doc__ or "").split())
    assert f"Twin: ``pagedref_cuda.{name}``" in " ".join((getattr(reference, name).__doc__ or "").split())


@pytest.mark.parametrize("name", list(twin.KERNELS))
def test_kernels_say_what_they_do(name: str) -> None:
    text = twin.KERNELS[name].function.__doc__ or ""
    assert [word for word in ("Launch:", "Reads:", "Writes:", "Barriers:", "Rung:") if word not in text] == []


@pytest.mark.parametrize("name", [name for name in twin.KERNELS if name.endswith("_1")])
def test_kernels_guard_first(name: str) -> None:
    """On the first rung: before the guard only plain assignments; no array is touched by a thread without work."""
    source = textwrap.dedent(inspect.getsource(twin.KERNELS[name].function))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:]  # after the docstring
    guard = next(i for i, node in enumerate(body) if isinstance(node, ast.If))
    assert isinstance(body[guard].body[0], ast.Return)
    before = [node for statement in body[:guard] for node in ast.walk(statement) if isinstance(node, ast.Subscript)]
    assert all(ast.unparse(node).split("[")[0].endswith(".shape") for node in before)
