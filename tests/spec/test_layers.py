"""The layers of NumPy against float64, by the checks that judge every backend; and that those checks can fail."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pagedref import backends, layers
from pagedref.conformance.layer_checks import LAYER_CHECKS
from pagedref.contract import DTYPES, LAYER_OPERATIONS
from pagedref.errors import BackendUnavailable, ContractError


@pytest.mark.parametrize("name", LAYER_OPERATIONS)
@pytest.mark.parametrize("seed", range(12))
def test_layer_agrees_with_float64(name: str, seed: int) -> None:
    LAYER_CHECKS[name](layers, np.random.default_rng(seed))


@pytest.mark.parametrize("name", LAYER_OPERATIONS)
def test_reference_has_the_arguments_of_the_table(name: str) -> None:
    operation = LAYER_OPERATIONS[name]
    parameters = inspect.signature(getattr(layers, name)).parameters
    assert set(parameters) == {*operation.by_name, *operation.options}
    for array in operation.arrays:
        assert all(array.dtype in table for table in DTYPES.values())


def test_layers_of_a_backend() -> None:
    assert backends.layers("numpy") is layers
    assert set(layers.__all__) == set(LAYER_OPERATIONS) == set(LAYER_CHECKS)
    with pytest.raises(BackendUnavailable):
        backends.layers("nobody")


def _mean_not_square(x: Any, weight: Any, eps: Any, out: Any, *, added: Any = None, offset: float = 0.0) -> None:
    layers.rms_norm(x, weight, eps, out, added=added, offset=offset)
    out *= np.float32(1 + 1e-4)


def _residual_lost(x: Any, weight: Any, eps: Any, out: Any, *, added: Any = None, offset: float = 0.0) -> None:
    layers.rms_norm(x.copy(), weight, eps, out, added=added, offset=offset)


def _variance_of_squares(x: Any, weight: Any, bias: Any, eps: Any, out: Any, *, added: Any = None) -> None:
    if added is not None:
        x += added
    mean = x.mean(axis=1, keepdims=True)
    variance = np.vecdot(x, x)[:, None] / np.float32(x.shape[1] + 1) - mean**2
    out[...] = (x - mean) / np.sqrt(np.abs(variance) + np.float32(eps)) * weight + (0 if bias is None else bias)


def _half_rows(x: Any, weight: Any, out: Any, *, bias: Any = None) -> None:
    layers.linear(x.astype(np.float16).astype(np.float32), weight, out, bias=bias)


def _other_pairs(x: Any, cos: Any, sin: Any, *, interleaved: bool = False) -> None:
    layers.rotate(x, cos, sin, interleaved=not interleaved)


def _tanh_for_erf(x: Any, out: Any, *, kind: str) -> None:
    layers.activate(x, out, kind="gelu_tanh" if kind == "gelu" else kind)


def _ungated(x: Any, up: Any, out: Any, *, kind: str) -> None:
    layers.activate(x, out, kind=kind)


def _last_of_equals(logits: Any) -> Any:
    return logits.shape[1] - 1 - logits[:, ::-1].argmax(axis=1)


def _unstable(logits: Any, k: int) -> Any:
    columns = np.argsort(logits, axis=1, kind="stable")[:, ::-1][:, :k]
    return np.take_along_axis(logits, columns, axis=1), columns


def _always_normalised(logits: Any, k: int, *, normalise: bool) -> Any:
    return layers.route(logits, k, normalise=True)


def _one_stream(logits: Any, temperature: float, seed: int, draw: int, *, streams: Any = None) -> Any:
    return layers.sample(logits, temperature, seed, draw)


def _fused(token_ids: Any, table: Any, out: Any, *, scale: float = 1.0, positions: Any = None, **rest: Any) -> None:
    layers.embed(token_ids, table, out)
    row = 0.0 if positions is None else rest["position_table"][positions].astype(np.float64)
    out[...] = out.astype(np.float64) * float(np.float32(scale)) + row


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("embed", _fused),
        ("rms_norm", _mean_not_square),
        ("rms_norm", _residual_lost),
        ("layer_norm", _variance_of_squares),
        ("linear", _half_rows),
        ("rotate", _other_pairs),
        ("activate", _tanh_for_erf),
        ("gate", _ungated),
        ("argmax", _last_of_equals),
        ("top_k", _unstable),
        ("route", _always_normalised),
        ("sample", _one_stream),
    ],
)
def test_checks_can_fail(name: str, wrong: Any) -> None:
    with pytest.raises(AssertionError):
        for seed in range(12):
            LAYER_CHECKS[name](SimpleNamespace(**{name: wrong}), np.random.default_rng(seed))


def test_unknown_activations_are_refused() -> None:
    x = np.zeros((1, 2), np.float32)
    with pytest.raises(ContractError, match=r"activate: kind is not an activation, got 'swish', need one of silu"):
        layers.activate(x, x.copy(), kind="swish")
    with pytest.raises(ContractError, match=r"gate: kind is not an activation"):
        layers.gate(x, x, x.copy(), kind="")


def test_norms_of_zeros_are_zeros() -> None:
    x, out = np.zeros((1, 4), np.float32), np.empty((1, 4), np.float32)
    layers.rms_norm(x, np.ones(4, np.float32), 1e-5, out)
    assert not out.any()
    layers.layer_norm(x, np.ones(4, np.float32), None, 1e-5, out)
    assert not out.any()


def test_heads_are_normed_each_for_itself() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 8), dtype=np.float32)
    out, rows = np.empty_like(x), np.empty((12, 8), np.float32)
    layers.rms_norm(x, np.ones(8, np.float32), 1e-5, out)
    layers.rms_norm(x.reshape(12, 8), np.ones(8, np.float32), 1e-5, rows)
    assert np.array_equal(out.reshape(12, 8), rows)
