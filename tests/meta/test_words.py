"""One word for each idea (the table of words in the architecture): other systems' words are no identifiers here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.meta.sources import all_modules

# Not ours -> ours. `layouts` may use them: it is the border.
FOREIGN = {
    "block_tables": "block_table",
    "cu_seqlens": "kv_indptr or qo_indptr",
    "cu_seqlens_q": "qo_indptr",
    "cu_seqlens_k": "kv_indptr",
    "logical_block": "page",
    "logical_blocks": "pages",
    "num_blocks": "num_frames or num_pages",
    "num_gpu_blocks": "num_frames",
    "physical_block": "frame",
    "physical_blocks": "frames",
    "free_blocks": "free frames",
    "page_tables": "block_table, or one PageTable each",
    "softmax_scale": "sm_scale",
    "seqlens": "seq_lens",
    "num_q_heads": "num_qo_heads",
    "n_kv_heads": "num_kv_heads",
    "logsumexp": "lse",
}
# Too short to forbid everywhere, but no parameter of a function is called so.
FOREIGN_PARAMETERS = {"pos": "position", "nh": "num_qo_heads", "H": "num_qo_heads", "block_size": "page_size"}


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every identifier that the source introduces or uses as its own name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.value.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def wrong_words(text: str, module: str) -> list[str]:
    tree = ast.parse(text)
    wrong = [
        f"{module}:{line} {name}: our word is {FOREIGN[name.lower()]}"
        for line, name in identifiers(tree)
        if name.lower() in FOREIGN
    ]
    parameters = FOREIGN_PARAMETERS if module.startswith("pagedref.") else {}
    wrong += [
        f"{module}:{node.lineno} parameter {node.arg}: our word is {parameters[node.arg]}"
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) and node.arg in parameters
    ]
    return wrong


def test_our_words() -> None:
    wrong = [
        line
        for module, path in all_modules().items()
        if not module.startswith("pagedref.layouts")
        for line in wrong_words(path.read_text(), module)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "num_blocks = 3",
        "f(block_tables=x)",
        "x.physical_block",
        "def g(cu_seqlens): ...",
        "class Logical_Block: ...",
        "def g(pos): ...",
    ],
)
def test_check_can_fail(text: str) -> None:
    assert wrong_words(text, "pagedref.ragged")


def test_our_own_words_pass() -> None:
    assert not wrong_words("num_frames = page_size; block_table = f(kv_indptr=x)", "pagedref.ragged")
