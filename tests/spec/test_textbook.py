"""The textbook path judged by the whole suite, and against the fast path."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import pagedref.attention as fast
from pagedref.attention.textbook import textbook_decode, textbook_prefill
from pagedref.conformance import CHECKS, assert_state, make_case, oracle
from pagedref.conformance.storage_checks import FORMATS, STORED_CHECKS
from pagedref.contract import OPERATIONS

TEXTBOOK = SimpleNamespace(
    **{
        **{name: getattr(fast, name) for name in OPERATIONS},
        "paged_decode": textbook_decode,
        "paged_prefill": textbook_prefill,
    }
)
# Checks of refusals name the function in the text, which is prefill for both here.
ATTENTION = [name for name in CHECKS if name.startswith(("decode", "prefill", "grouped", "head_", "large", "hidden"))]
ATTENTION += ["variants", "variants_together", "holes_are_not_read", "poison_changes_no_bit", "chunks_make_the_whole"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ATTENTION)
def test_the_suite_accepts_it(name: str, dtype: str) -> None:
    CHECKS[name](TEXTBOOK, dtype)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_every_stored_form(form: object) -> None:
    STORED_CHECKS["attention_reads_the_declared_numbers"](TEXTBOOK, form)  # type: ignore[arg-type]


def test_both_paths_agree_on_a_long_batch() -> None:
    case = make_case(1, [3, 1], [150, 90], page_size=16, group_size=3, window=70, softcap=5.0)
    expected = oracle(case)
    assert_state(case.prefill(TEXTBOOK), expected, "textbook")
    assert_state(case.prefill(fast), expected, "fast")
