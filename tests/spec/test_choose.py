"""Choices: known answers of the generator, the distribution of what is drawn, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pagedref.errors import ContractError
from pagedref.layers import sample, top_k
from pagedref.layers.choose import gumbel, random_words, softmax
from pagedref.numerics import gamma


def philox_in_integers(counter: list[int], key: list[int]) -> list[int]:
    """The definition, in plain integers."""
    a, b, c, d = counter
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ key[0], second & 0xFFFFFFFF, (first >> 32) ^ d ^ key[1], first & 0xFFFFFFFF
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return [a, b, c, d]


def test_definition_has_the_answers_of_its_authors() -> None:
    """Two of the known answers of Philox4x32-10; the second takes digits of pi."""
    assert [f"{word:08x}" for word in philox_in_integers([0] * 4, [0] * 2)][:2] == ["6627e8d5", "e169c58d"]
    answer = philox_in_integers([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0])
    assert [f"{word:08x}" for word in answer] == ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]


def test_words_follow_the_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        draw, stream, seed = int(rng.integers(2**32)), int(rng.integers(2**32)), int(rng.integers(2**63)) * 2 + 1
        counters = rng.integers(0, 2**32, 3).astype(np.uint64)
        for counter, words in zip(counters.tolist(), random_words(counters, draw, stream, seed).tolist(), strict=True):
            assert words == philox_in_integers([counter, draw, stream, 0], [seed & 0xFFFFFFFF, seed >> 32])


def test_gumbel_is_what_it_says() -> None:
    """Within what rounding w to float32 and two logarithms may do."""
    words = np.array([0, 1, 2, 1000, 2**22 - 1, 2**22, 2**22 + 1, 2**31, 2**32 - 2**9, 2**32 - 2], np.uint32)
    unit = gamma(8, "float32")
    for word, found in zip(words.tolist(), gumbel(words).tolist(), strict=True):
        w = min((word + 0.5) / 2**32, 1 - 2.0**-24)
        waiting = -math.log1p(-w)
        slack = unit * (1 + w / (1 - w) / waiting + abs(math.log(waiting)))
        assert abs(found + math.log(waiting)) <= slack, word


def test_chances_are_those_of_softmax() -> None:
    """A chi-square test that fails by chance once in a million, with a fixed seed."""
    logits = np.array([[0.0, 1.0, -1.0, 2.0, -np.inf, 0.5]], np.float32)
    temperature, draws = 1.3, 6000
    counts = np.zeros(6)
    for draw in range(draws):
        counts[sample(logits, temperature, 11, draw)[0]] += 1
    expected = softmax(logits / np.float32(temperature))[0] * draws
    assert counts[4] == 0
    live = expected > 0
    chi = float(((counts[live] - expected[live]) ** 2 / expected[live]).sum())
    assert chi < 33.4  # 4 degrees of freedom, one in a million


def test_neighbours_change_nothing() -> None:
    rng = np.random.default_rng(0)
    logits, streams = rng.standard_normal((5, 101)).astype(np.float32), np.array([3, 3, 0, 2**32 - 1, 7])
    together = sample(logits, 0.7, 5, 9, streams=streams)
    alone = [int(sample(logits[i : i + 1], 0.7, 5, 9, streams=streams[i : i + 1])[0]) for i in range(5)]
    assert together.tolist() == alone
    assert sample(logits, 0.7, 5, 10, streams=streams).tolist() != alone


def test_a_cold_choice_is_the_largest() -> None:
    logits = np.random.default_rng(0).standard_normal((20, 50)).astype(np.float32)
    assert np.array_equal(sample(logits, 1e-6, 1, 0), logits.argmax(axis=1))


@pytest.mark.parametrize("width", [5, 40, 400])
def test_top_k_by_partition_and_by_sorting_agree(width: int) -> None:
    logits = np.round(np.random.default_rng(1).standard_normal((4, width)) * 3).astype(np.float32)
    for k in (1, 3, 5):
        values, columns = top_k(logits, k)
        assert np.array_equal(columns, np.argsort(-logits, axis=1, kind="stable")[:, :k])
        assert np.array_equal(values, np.take_along_axis(logits, columns, axis=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature is out of range, got 0.0, need > 0 and finite"),
        ({"temperature": np.nan}, "temperature is out of range"),
        ({"temperature": 1e-46}, "temperature is out of range"),
        ({"seed": -1}, r"seed is out of range, got -1, need 0..2\*\*64 - 1"),
        ({"seed": 2**64}, "seed is out of range"),
        ({"draw": 2**32}, "draw is out of range"),
        ({"streams": np.array([-1])}, "streams are out of range, got -1"),
    ],
)
def test_wrong_numbers_are_refused(changes: dict[str, object], message: str) -> None:
    arguments = {"temperature": 1.0, "seed": 0, "draw": 0} | changes
    with pytest.raises(ContractError, match=message):
        sample(np.zeros((1, 3), np.float32), **arguments)  # type: ignore[arg-type]


def test_k_out_of_range_is_refused() -> None:
    for k in (0, 4):
        with pytest.raises(ContractError, match=rf"top_k: k is out of range, got {k}, need 1..3"):
            top_k(np.zeros((1, 3), np.float32), k)
