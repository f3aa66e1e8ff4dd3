"""Layers of any backend against float64: each check draws one case and compares under the class of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pagedref import layers as reference
from pagedref.conformance.agreement import assert_bound, assert_exact
from pagedref.layers.activation import ACTIVATIONS
from pagedref.numerics import EXP_ULPS, gamma, tiny, unit_roundoff

__all__ = ["LAYER_CHECKS"]

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Check = Callable[[Any, np.random.Generator], None]

_U = unit_roundoff("float32")
_UNDERFLOW = 8 * tiny("float32")
_EXP = 2 * EXP_ULPS * _U  # relative error of one exp
_SMALL = float(np.finfo(np.float32).tiny)
_ERF_ULPS = 8.0
_OVERFLOW = 88.0  # from here on exp may be infinite, or held at this power
_WIDTHS = (1, 3, 32, 33, 64, 100, 257, 576)


def _rows(rng: np.random.Generator, *shape: int) -> Float32:
    """Return numbers of many sizes."""
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3)).astype(np.float32)


def _shape(rng: np.random.Generator) -> tuple[int, int]:
    return int(rng.integers(1, 8)), int(rng.choice(_WIDTHS))


def _check_embed(layers: Any, rng: np.random.Generator) -> None:
    tokens, width = _shape(rng)
    kind = rng.choice(np.array(["float32", "float16", "bfloat16"]))
    table = _rows(rng, 11, width).astype(np.dtype(str(kind)))
    positions_table = _rows(rng, 9, width).astype(table.dtype)
    ids, positions = rng.integers(0, 11, tokens), rng.integers(0, 9, tokens)
    both = {"scale": 0.1, "positions": positions, "position_table": positions_table}
    cases: tuple[dict[str, Any], ...] = ({}, {"scale": 7.3}, both)
    for keywords in cases:
        found, expected = np.full((2, tokens, width), np.nan, np.float32)
        layers.embed(ids, table, found, **keywords)
        reference.embed(ids, table, expected, **keywords)
        assert_exact(found, expected, f"embed {kind}")


def _check_rms_norm(layers: Any, rng: np.random.Generator) -> None:
    tokens, width = _shape(rng)
    weight, eps = _rows(rng, width), 1e-5
    for with_added, offset in ((False, 0.0), (True, 1.0)):
        x, added, out = _rows(rng, tokens, width), _rows(rng, tokens, width), np.full((tokens, width), np.nan, "f4")
        stream = x + added if with_added else x.copy()
        layers.rms_norm(x, weight, eps, out, added=added if with_added else None, offset=offset)
        assert_exact(x, stream, "rms_norm: x")
        wide = stream.astype(np.float64)
        size = np.sqrt((wide**2).mean(axis=1, keepdims=True) + float(np.float32(eps)))
        exact = wide / size * (weight.astype(np.float64) + offset)
        slack = np.abs(wide / size * offset) * gamma(1, "float32")
        bound = np.abs(exact) * gamma(width / 2 + 8, "float32") + slack + _UNDERFLOW
        assert_bound(out, exact, bound, f"rms_norm added={with_added}")


def _check_layer_norm(layers: Any, rng: np.random.Generator) -> None:
    tokens, width = _shape(rng)
    weight, bias, eps = _rows(rng, width), _rows(rng, width), 1e-5
    for with_added in (False, True):
        x, added, out = _rows(rng, tokens, width), _rows(rng, tokens, width), np.full((tokens, width), np.nan, "f4")
        stream = x + added if with_added else x.copy()
        used = bias if with_added else None
        layers.layer_norm(x, weight, used, eps, out, added=added if with_added else None)
        assert_exact(x, stream, "layer_norm: x")
        wide = stream.astype(np.float64)
        away = wide - wide.mean(axis=1, keepdims=True)
        size = np.sqrt((away**2).mean(axis=1, keepdims=True) + float(np.float32(eps)))
        shift = gamma(width + 2, "float32") * np.abs(wide).mean(axis=1, keepdims=True) + 2 * _U * np.abs(away)
        part = gamma(width / 2 + 8, "float32") + np.sqrt((shift**2).mean(axis=1, keepdims=True)) / size
        exact = away / size * weight + (0 if used is None else used)
        bound = np.abs(weight) * (shift * (1 + part) + np.abs(away) * part) / size + 2 * _U * np.abs(exact) + _UNDERFLOW
        assert_bound(out, exact, bound, f"layer_norm bias={with_added}")


def _check_linear(layers: Any, rng: np.random.Generator) -> None:
    tokens, width = int(rng.choice((1, 2, 5, 16, 33))), int(rng.choice((8, 20, 64, 96, 264)))
    features = int(rng.choice((1, 7, 64, 72, 130)))
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        x, weight, bias = _rows(rng, tokens, width), _rows(rng, features, width).astype(dtype), _rows(rng, features)
        for used in (None, bias):
            out = np.full((tokens, features), np.nan, np.float32)
            layers.linear(x, weight, out, bias=used)
            wide, factor = x.astype(np.float64), weight.astype(np.float64).T
            extra = 0.0 if used is None else used.astype(np.float64)
            bound = gamma(width + 2, "float32") * (np.abs(wide) @ np.abs(factor) + np.abs(extra)) + width * _UNDERFLOW
            assert_bound(out, wide @ factor + extra, bound, f"linear {dtype}, {tokens} rows")


def _check_rotate(layers: Any, rng: np.random.Generator) -> None:
    tokens, heads, pairs = (int(rng.integers(1, most)) for most in (5, 5, 33))
    head_dim = 2 * pairs + int(rng.choice((0, 2, 7)))
    angle = rng.uniform(-4, 4, (tokens, 1, pairs))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    for interleaved in (False, True):
        x = _rows(rng, tokens, heads, head_dim)
        wide, exact, bound = x.astype(np.float64), x.astype(np.float64), np.zeros(x.shape)
        first = np.s_[..., 0 : 2 * pairs : 2] if interleaved else np.s_[..., :pairs]
        second = np.s_[..., 1 : 2 * pairs : 2] if interleaved else np.s_[..., pairs : 2 * pairs]
        c, s = cos.astype(np.float64), sin.astype(np.float64)
        exact[first], exact[second] = wide[first] * c - wide[second] * s, wide[second] * c + wide[first] * s
        for here, there in ((first, second), (second, first)):
            bound[here] = gamma(2, "float32") * (np.abs(wide[here] * c) + np.abs(wide[there] * s)) + _UNDERFLOW
        layers.rotate(x, cos, sin, interleaved=interleaved)
        assert_bound(x, exact, bound, f"rotate interleaved={interleaved}")


def _activation(kind: str, x: Float64) -> tuple[Float64, Float64]:
    """Return an activation in float64 and the bound of one that is computed in float32."""
    from math import erfc

    lost = np.where(np.abs(x) > _OVERFLOW, 1 + np.abs(x), 0.0) * _SMALL + _UNDERFLOW
    with np.errstate(over="ignore"):
        chance = 1 / (1 + np.exp(-x))
    if kind == "sigmoid":
        return chance, chance * (2 * _EXP + gamma(4, "float32")) + lost
    if kind == "silu":
        return x * chance, np.abs(x * chance) * (2 * _EXP + gamma(4, "float32")) + lost
    if kind == "gelu":
        tail = np.array([0.5 * erfc(-float(number) * 0.5**0.5) for number in x.ravel()]).reshape(x.shape)
        steep = np.minimum(x, 0) ** 2  # the tail falls like exp(-x x / 2)
        return x * tail, np.abs(x * tail) * (2 * _ERF_ULPS + 2 * steep) * _U * 1.01 + lost
    if kind == "gelu_tanh":
        v = 2 * (2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)
        with np.errstate(over="ignore"):
            chance, other = 1 / (1 + np.exp(-v)), 1 / (1 + np.exp(v))
        relative = 2 * _EXP + gamma(4, "float32") + gamma(8, "float32") * np.abs(v) * other
        return x * chance, np.abs(x * chance) * relative + np.where(v < -_OVERFLOW, np.abs(x), 0.0) * _SMALL + lost
    positive = np.maximum(x, 0)
    return (positive, np.zeros_like(x)) if kind == "relu" else (positive**2, positive**2 * 2 * _U + _UNDERFLOW)


def _check_activate(layers: Any, rng: np.random.Generator) -> None:
    x = _rows(rng, *_shape(rng))
    x.ravel()[: min(x.size, 4)] = np.array([0, -1e4, 1e4, -89], np.float32)[: x.size]
    for kind in ACTIVATIONS:
        out = np.full_like(x, np.nan)
        layers.activate(x, out, kind=kind)
        exact, bound = _activation(kind, x.astype(np.float64))
        assert_bound(out, exact, bound, f"activate {kind}")


def _check_gate(layers: Any, rng: np.random.Generator) -> None:
    x = _rows(rng, *_shape(rng))
    up = _rows(rng, *x.shape)
    for kind in ACTIVATIONS:
        out = np.full_like(x, np.nan)
        layers.gate(x, up, out, kind=kind)
        exact, bound = _activation(kind, x.astype(np.float64))
        wide = up.astype(np.float64)
        bound = 2 * bound * np.abs(wide) + 2 * _U * np.abs(exact * wide) + _UNDERFLOW
        assert_bound(out, exact * wide, bound, f"gate {kind}")


def _ties(rng: np.random.Generator) -> Float32:
    """Return scores among which many are equal, some infinite."""
    tokens, width = _shape(rng)
    logits = np.round(_rows(rng, tokens, width))
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    return logits


def _check_argmax(layers: Any, rng: np.random.Generator) -> None:
    logits = _ties(rng)
    expected = [next(i for i, value in enumerate(row) if value == max(row)) for row in logits.tolist()]
    assert_exact(np.asarray(layers.argmax(logits)), np.array(expected, np.int64), "argmax")


def _check_top_k(layers: Any, rng: np.random.Generator) -> None:
    logits = _ties(rng)
    k = int(rng.integers(1, min(logits.shape[1], 20) + 1))
    order = [sorted(range(len(row)), key=lambda i: (-row[i], i))[:k] for row in logits.tolist()]
    values, columns = layers.top_k(logits, k)
    assert_exact(np.asarray(columns), np.array(order, np.int64), f"top_k {k}: columns")
    assert_exact(np.asarray(values), np.take_along_axis(logits, np.array(order), axis=1), f"top_k {k}: values")


def _check_route(layers: Any, rng: np.random.Generator) -> None:
    logits = _rows(rng, int(rng.integers(1, 6)), int(rng.choice((2, 8, 60))))
    k = int(rng.integers(1, min(logits.shape[1], 8) + 1))
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    for normalise in (False, True):
        weights, experts = layers.route(logits, k, normalise=normalise)
        assert_exact(np.asarray(experts), order, "route: experts")
        wide = logits.astype(np.float64)
        away = wide - wide.max(axis=1, keepdims=True)
        chosen = np.exp(np.take_along_axis(away, order, axis=1))
        total = chosen.sum(axis=1, keepdims=True) if normalise else np.exp(away).sum(axis=1, keepdims=True)
        relative = 2 * _EXP + gamma(logits.shape[1] + 4, "float32")
        relative = relative + 2 * _U * np.abs(np.take_along_axis(away, order, axis=1)) + 2 * _U * 104
        exact = chosen / total
        assert_bound(np.asarray(weights), exact, exact * relative + 2.0**-120, f"route normalise={normalise}")


def _check_sample(layers: Any, rng: np.random.Generator) -> None:
    logits = _ties(rng)
    logits[:, 0] = np.maximum(logits[:, 0], np.float32(-5))
    temperature, seed, draw = float(rng.uniform(0.1, 3)), int(rng.integers(0, 2**63)) * 2 + 1, int(rng.integers(2**32))
    streams = rng.integers(0, 2**32, len(logits))
    for texts in (None, streams):
        found = layers.sample(logits, temperature, seed, draw, streams=texts)
        expected = reference.sample(logits, temperature, seed, draw, streams=texts)
        assert_exact(np.asarray(found), expected, "sample")


LAYER_CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "embed": _check_embed,
        "rms_norm": _check_rms_norm,
        "layer_norm": _check_layer_norm,
        "linear": _check_linear,
        "rotate": _check_rotate,
        "activate": _check_activate,
        "gate": _check_gate,
        "argmax": _check_argmax,
        "top_k": _check_top_k,
        "route": _check_route,
        "sample": _check_sample,
    }
)
"""A check for each layer of the contract: called with the layers of a backend and a generator, it raises
AssertionError."""
