"""What the rotation and the splits of ordered arithmetic refuse, and what they keep for themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedref.attention.ordered import ordered_decode
from pagedref.attention.rotary import Rotary, shift_positions
from pagedref.errors import ContractError

X = np.ones((2, 1, 4), np.float32)
R = Rotary.plain(4)


def refused(name: str, argument: str, call: Any) -> None:
    with pytest.raises(ContractError) as error:
        call()
    text = str(error.value)
    assert text.startswith(f"{name}: ") and argument in text and "got" in text and "need" in text, text
    assert "\n" not in text and len(text) < 400


@pytest.mark.parametrize(
    "delta", [1.9, np.array([1.0, 2.0]), "a", None, True, [1, [2]], [2**70, 0], np.arange(3), [[1, 2]]]
)
def test_shifts_are_whole(delta: Any) -> None:
    refused("shift_positions", "delta", lambda: shift_positions(X, delta, R))


def test_shift_takes_what_it_took() -> None:
    assert shift_positions(X[:0], [], R).shape == (0, 1, 4)
    for delta in (3, np.int32(3), [3, 3], np.array([3, 3], np.int16)):
        assert np.array_equal(shift_positions(X, delta, R), shift_positions(X, 3, R))
    for keys in (None, [1.0], np.ones((2, 1, 4), int), X[0], X[..., :2]):
        refused("shift_positions", "keys", lambda keys=keys: shift_positions(keys, 1, R))
    refused("shift_positions", "rotary", lambda: shift_positions(X, 1, "R"))  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["foo", "", None, 3, ["half"]])
def test_layouts(layout: Any) -> None:
    refused("Rotary.to_layout", "layout", lambda: R.to_layout(X, layout))
    refused("Rotary", "layout", lambda: Rotary(np.ones(2), layout))


@pytest.mark.parametrize(
    "freq", ["abc", None, [1, [2]], ["a"], [True], [1j], np.ones(()), [np.inf], object(), [10**400]]
)
def test_frequencies(freq: Any) -> None:
    refused("Rotary", "inv_freq", lambda: Rotary(freq))


@pytest.mark.parametrize("magnitude", ["1", None, True, [1.0], 10**400, -1, np.inf, 1j])
def test_magnitudes(magnitude: Any) -> None:
    refused("Rotary", "magnitude", lambda: Rotary(np.ones(2), magnitude=magnitude))


def test_a_rotation_is_nobody_elses() -> None:
    given = np.array([1.0, 0.1])
    rotary = Rotary(given)
    given[:] = 7
    assert rotary.inv_freq.tolist() == [1.0, 0.1]
    with pytest.raises(ValueError, match="read-only"):
        rotary.inv_freq[0] = 2.0


@pytest.mark.parametrize(
    "arguments", [("4",), (None,), (4.0,), (3,), (0,), (True,), (2**70,), (4, "1"), (4, 0), (4, np.inf)]
)
def test_plain(arguments: Any) -> None:
    refused("Rotary.plain", "rotary_dim", lambda: Rotary.plain(*arguments))


def test_rows_and_positions() -> None:
    for positions in (np.array([1.0, 2.0]), [1, 2], None, "ab"):
        refused("Rotary.apply", "positions", lambda positions=positions: R.apply(X, positions))
    for rows in (None, [1.0], X.astype(int), "a"):
        refused("Rotary.apply", "x", lambda rows=rows: R.apply(rows, np.arange(2)))
    refused("Rotary.to_layout", "x", lambda: R.to_layout(X[..., :2], "interleaved"))


CACHE = np.random.default_rng(1).standard_normal((1, 100, 1, 4)).astype(np.float32)


def ordered(splits: Any) -> Any:
    return ordered_decode(X[:1], CACHE, CACHE, np.array([0, 1]), np.array([0]), np.array([100]), splits=splits)


@pytest.mark.parametrize(
    "splits",
    [
        "",
        "ab",
        b"",
        b"ab",
        [True],
        True,
        0,
        -1,
        1.5,
        [1.0],
        [64, 32],
        [-1],
        np.array([1.0]),
        {32},
        np.array([[1], [2]]),
    ],
)
def test_splits_that_cut_nothing(splits: Any) -> None:
    refused("ordered_decode", "splits", lambda: ordered(splits))


@pytest.mark.parametrize(
    "splits", [[2**70], [32, 2**70], 2**70, np.array([32]), np.int8(2), (32, 64), range(0, 99, 40), []]
)
def test_splits_change_no_bit(splits: Any) -> None:
    whole, part = ordered(None), ordered(splits)
    assert np.array_equal(whole.out.view(np.uint32), part.out.view(np.uint32))
    assert np.array_equal(whole.lse.view(np.uint32), part.lse.view(np.uint32))
