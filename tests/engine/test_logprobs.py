"""Log-probabilities: natural, of the model's own logits, ranked with ties by id."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.models.logprobs import log_softmax, prompt_logprobs, token_logprob
from pagedref.models.model import load_model

Logits = np.ndarray[Any, Any]

rows = st.one_of(
    st.lists(st.sampled_from([-math.inf, -2.0, 0.0, 1.0]), min_size=1, max_size=9),
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40),
).map(lambda row: np.array(row, np.float32))
logits_rows = rows.filter(lambda row: bool(np.isfinite(row.max())))


def plain(row: Logits) -> list[float]:
    """``x - log(sum(exp(x)))`` in float64, one token at a time, with an exact sum."""
    x = [float(value) for value in row]
    total = math.fsum(math.exp(value - max(x)) for value in x)
    return [value - max(x) - math.log(total) for value in x]


@given(logits_rows)
def test_log_softmax_is_the_natural_log_rounded_once(row: Logits) -> None:
    for got, exact in zip(log_softmax(row), plain(row), strict=True):
        if math.isinf(exact):
            assert got == exact
            continue
        double = len(row) * np.spacing(max(1.0, abs(exact)))  # of the sum, in float64
        assert abs(float(got) - exact) <= np.spacing(np.float32(abs(exact))) + double
    assert (log_softmax(row) <= 0).all()


def test_rows_do_not_depend_on_each_other() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 40, 50)).astype(np.float32)
    together = log_softmax(logits)
    assert together.shape == logits.shape
    for i in range(3):
        for j in range(40):
            assert (together[i, j] == log_softmax(logits[i, j])).all()


@given(logits_rows, st.data())
def test_report_of_a_token(row: Logits, data: st.DataObject) -> None:
    token, k = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(0, len(row)))
    report = token_logprob(row, token, k)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    assert report.token_id == token
    assert order[report.rank - 1] == token
    assert [i for i, _ in report.top] == order[:k]
    everything = log_softmax(row)
    assert report.logprob == everything[token]
    assert [logprob for _, logprob in report.top] == everything[order[:k]].tolist()


@pytest.mark.parametrize("row", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf]])
def test_logits_without_a_largest_are_refused(row: list[float]) -> None:
    with pytest.raises(ContractError, match=r"^log_softmax: logits have no largest one"):
        log_softmax(np.float32(row))


def test_a_prompt_is_as_probable_as_its_tokens() -> None:
    model = load_model("tiny")
    prompt = [0, 9, 40, 7, 7, 33]
    logits = model.logits(prompt)
    reports = prompt_logprobs(logits[:-1], prompt[1:], 2)
    assert [report.token_id for report in reports] == prompt[1:]
    for at, report in enumerate(reports):
        assert report == token_logprob(logits[at], prompt[at + 1], 2)
    assert prompt_logprobs(logits[:0], [], 2) == []
