"""Panels multiply like the matrix they were cut from, whatever the number of rows and of threads."""

from __future__ import annotations

import numpy as np
import pytest

from pagedref.errors import ContractError
from pagedref.layers.crew import Crew, hired
from pagedref.layers.linear import ROWS, Linear, panel_width
from pagedref.numerics import gamma

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 8, 9, 15, 17, 100])
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (63, 5), (64, 40), (200, 96), (130, 2500)])
def test_equals_the_product(tokens: int, out_features: int, in_features: int) -> None:
    weight, rows, bias = random(out_features, in_features), random(tokens, in_features), random(out_features)
    layer = Linear([weight], [bias])
    x, out = layer.buffers(tokens)
    x[:tokens], x[tokens:], out[...] = rows, np.nan, np.nan  # what lies behind the rows has no say
    found = layer(x, out, tokens)
    exact = rows.astype(np.float64) @ weight.T.astype(np.float64) + bias
    bound = gamma(in_features + 1, "float32") * (np.abs(rows) @ np.abs(weight).T.astype(np.float64) + np.abs(bias))
    assert found.shape == (tokens, out_features)
    assert (np.abs(found - exact) <= bound).all()


def test_stacks_several_matrices() -> None:
    weights, biases = [random(n, 12) for n in (24, 8, 70)], [random(n) for n in (24, 8, 70)]
    layer = Linear(weights, biases)
    alone = Linear([np.concatenate(weights)], [np.concatenate(biases)])
    x, out = layer.buffers(3)
    x[:3] = random(3, 12)
    first = layer(x, out, 3).copy()
    assert np.array_equal(first, alone(x, out, 3))


def test_threads_change_no_bit() -> None:
    layer = Linear([random(640, 576)], [random(640)])
    x, out = layer.buffers(40)
    x[:40] = random(40, 576)
    one = layer(x, out, 40).copy()
    assert np.array_equal(layer(x, out, 40, Crew(2)), one)
    assert np.array_equal(layer(x, out, 40, Crew(3)), one)
    with hired() as crew:
        assert np.array_equal(layer(x, out, 40, crew), one)


def test_parts_cover_all_panels_once() -> None:
    layer = Linear([random(64 * 5 + 1, 8)])
    for parts in (1, 2, 3, 7):
        columns = [np.arange(layer.padded_features)[layer.columns(part, parts)] for part in range(parts)]
        assert np.concatenate(columns).tolist() == list(range(layer.padded_features))


def test_rows_of_returns_the_weights_to_the_bit() -> None:
    weight = random(150, 24)
    layer, wanted = Linear([weight]), np.array([149, 0, 64, 63, 64])
    assert np.array_equal(layer.rows_of(wanted), weight[wanted])


def test_long_rows_make_narrow_panels() -> None:
    for in_features in (1, 576, 2048, 5000, 14336, 100_000):
        width = panel_width(in_features)
        assert width in (16, 32, 64)
        assert width == 16 or ROWS * width * in_features <= 1_000_000


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ContractError, match="weights do not fit"):
        Linear([random(2, 3), random(2, 4)])
    with pytest.raises(ContractError, match="weights do not fit"):
        Linear([])
    with pytest.raises(ContractError, match="biases do not fit"):
        Linear([random(2, 3)], [random(3)])


def test_crew_raises_what_a_part_raised_after_all_have_ended() -> None:
    crew, ended = Crew(3), []

    def work(part: int, parts: int) -> None:
        if part == 1:
            raise ZeroDivisionError("part 1")
        ended.append(part)

    with pytest.raises(ZeroDivisionError, match="part 1"):
        crew.run(work, cost=10**9)
    assert sorted(ended) == [0, 2]

    def own(part: int, parts: int) -> None:
        if part == 0:
            raise KeyError("own part")
        ended.append(part)

    with pytest.raises(KeyError):
        crew.run(own, cost=10**9)
    assert sorted(ended) == [0, 1, 2, 2]
    done: list[int] = []
    crew.run(lambda part, parts: done.append(part), cost=10**9)  # still at work
    assert sorted(done) == [0, 1, 2]


def test_a_crew_serves_one_at_a_time() -> None:
    with hired(), hired() as second:
        assert second.size == 1
