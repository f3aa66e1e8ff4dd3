"""Layers on the device: the checks that judge every backend, which rung runs, and what it reads, counted."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pagedref import backends
from pagedref import layers as reference
from pagedref.conformance.agreement import assert_exact
from pagedref.conformance.layer_checks import LAYER_CHECKS
from pagedref.contract import LAYER_OPERATIONS
from pagedref.errors import BackendUnavailable, ContractError

pytest.importorskip("pagedref_cuda.cache", reason="numba-cuda is not installed", exc_type=ImportError)

import pagedref_cuda as twin
from pagedref_cuda import _runtime, layers

try:
    MODE = _runtime.mode()
except BackendUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

# The simulator starts a Python thread for each number of a product.
SEEDS = {"linear": 1, "activate": 1, "gate": 1, "embed": 2} if MODE == "simulator" else {"linear": 12}
only_compiled = pytest.mark.skipif(MODE == "simulator", reason="the simulator has no warps")
only_emulated = pytest.mark.skipif(MODE != "emulator", reason="counts are those of the emulator")


@pytest.mark.parametrize("name", LAYER_OPERATIONS)
def test_layer_agrees_with_float64(name: str) -> None:
    with twin.emulator_options(races=True, global_races=True):
        for seed in range(SEEDS.get(name, 5)):
            LAYER_CHECKS[name](layers, np.random.default_rng(seed))


@pytest.mark.parametrize("name", LAYER_OPERATIONS)
def test_signatures_and_docstrings(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)) for module in (layers, reference))
    assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
        (p.name, p.kind, p.default) for p in theirs.parameters.values()
    ]
    assert f"Twin: ``pagedref.layers.{name}``" in (getattr(layers, name).__doc__ or "")
    assert f"Twin: ``pagedref_cuda.layers.{name}``" in " ".join((getattr(reference, name).__doc__ or "").split())


def test_a_model_asks_its_backend_for_its_layers() -> None:
    assert backends.layers("cuda") is layers
    assert set(layers.__all__) == set(LAYER_OPERATIONS)


def product(tokens: int, width: int, features: int, dtype: Any) -> Any:
    """Run one product on the emulator and return its name and counts."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    weight, out = rng.standard_normal((features, width)).astype(dtype), np.empty((tokens, features), np.float32)
    with twin.counting() as counts:
        layers.linear(x, weight, out)
    ((name, (stats,)),) = counts.items()
    return name, stats


@only_emulated
@pytest.mark.parametrize(
    ("tokens", "width", "dtype", "name"),
    [
        (1, 128, np.float32, "linear_2_float32_1"),
        (3, 128, np.float32, "linear_2_float32_4"),
        (9, 128, np.float32, "linear_2_float32_8"),
        (1, 256, np.float16, "linear_2_float16_1"),
        (4, 256, ml_dtypes.bfloat16, "linear_2_bfloat16_4"),
        (5, 256, ml_dtypes.bfloat16, "linear_3_bfloat16"),
        (5, 256, np.float16, "linear_3_float16"),
        (1, 130, np.float32, "linear_1"),  # rows that are no whole pieces of 16 bytes
        (9, 260, np.float16, "linear_1"),
    ],
)
def test_the_rung_follows_shape_and_type(tokens: int, width: int, dtype: Any, name: str) -> None:
    assert product(tokens, width, 20, dtype)[0] == name


@only_emulated
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_matrix_is_read_once_16_bytes_a_lane(dtype: Any) -> None:
    """For up to as many rows as share a read, 512 bytes and 16 sectors at a time; the float32 of the rows beside 16-bit
    weights lie two pieces apart, and come from the cache the second time."""
    width, features, outputs = 512, 64, 4
    apart = 1 if dtype == np.float32 else 2
    for tokens in (1, 4):
        _, stats = product(tokens, width, features, dtype)
        matrix, rows = features * width * np.dtype(dtype).itemsize, tokens * width * 4 * features // outputs
        assert stats.global_bytes("ld") == matrix + rows
        stores = tokens * features // outputs  # of four numbers each
        assert stats.sectors == (matrix + apart * rows) // 32 + stores


@only_emulated
@pytest.mark.parametrize(
    ("tokens", "dtype", "instructions", "sectors"),
    [(1, np.float32, 2, 6), (8, np.float32, 7, 20), (32, ml_dtypes.bfloat16, 25, 50)],
)
def test_what_a_rung_gains(tokens: int, dtype: Any, instructions: int, sectors: int) -> None:
    """Rows of 512 and 64 outputs: so many times fewer instructions and sectors than rung 1, as docs/cuda.rst says."""
    from pagedref_cuda.layers._weights import Weight
    from pagedref_cuda.layers.linear import linear_1

    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((tokens, 512)).astype(np.float32), Weight(np.ones((64, 512), dtype))
    out = np.empty((tokens, 64), np.float32)
    with twin.counting() as counts:
        linear_1.launch(tokens * 64, x, weight.kind, weight.halves, weight.words, np.zeros(0, np.float32), 0, out)
    (first,) = counts["linear_1"]
    _, stats = product(tokens, 512, 64, dtype)
    assert stats.warp_instructions * instructions < first.warp_instructions
    assert stats.sectors * sectors < first.sectors


@only_emulated
def test_tensor_cores_multiply() -> None:
    for dtype, products in ((ml_dtypes.bfloat16, 3), (np.float16, 6)):
        _, stats = product(32, 64, 16, dtype)
        assert sum(stats.mma.values()) == products * (64 // 16) * (32 // 16) * (16 // 8)  # columns, rows, outputs


@only_emulated
@pytest.mark.parametrize(
    "name",
    ["linear_2_float32_1", "linear_gate_2_float32_8", "linear_2_bfloat16_4", "linear_3_float16", "linear_3_bfloat16"],
)
def test_products_are_compiled_to_wide_loads_and_tensor_cores(name: str) -> None:
    declared = twin.KERNELS[name]
    ptx = _runtime.compile_ptx(declared, declared.signatures[0])
    loads = Counter(re.findall(r"ld\.global(?:\.nc)?(\.v4)?\.[uf]32", ptx))
    assert loads[".v4"] >= 2
    assert loads[""] <= 2 * ptx.count("st.global.f32"), "only bias and stream are read one by one"
    assert ("mma.sync.aligned.m16n8k16" in ptx) == name.startswith("linear_3")
    assert ".local" not in ptx


@only_compiled
def test_float16_and_bfloat16_weights_lose_nothing_on_tensor_cores() -> None:
    """Integers whose sums are exact in float32, of more digits than a 16-bit number has."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2**15, 2**15, (9, 64)).astype(np.float32)
    for dtype, most in ((np.float16, 8), (ml_dtypes.bfloat16, 8)):
        weight = rng.integers(-most, most, (24, 64)).astype(dtype)
        out = np.empty((9, 24), np.float32)
        layers.linear(x, weight, out)
        assert_exact(out, (x.astype(np.int64) @ weight.astype(np.int64).T).astype(np.float32))


def test_strided_rows_are_written_where_they_lie() -> None:
    rng = np.random.default_rng(0)
    buffer = rng.standard_normal((3, 6, 8)).astype(np.float32)
    before, weight = buffer.copy(), np.ones(8, np.float32)
    layers.rms_norm(buffer[:, :2], weight, 1e-5, buffer[:, 2:4])
    expected = before.copy()
    reference.rms_norm(before[:, :2], weight, 1e-5, expected[:, 2:4])
    assert np.array_equal(buffer[:, [0, 1, 4, 5]], before[:, [0, 1, 4, 5]])
    assert not np.array_equal(buffer[:, 2:4], before[:, 2:4])
    cos = sin = np.full((3, 1, 4), 0.5, np.float32)
    layers.rotate(buffer[:, 4:], cos, sin)
    reference.rotate(before[:, 4:], cos, sin)
    assert_exact(buffer[:, :2], before[:, :2])


@only_compiled
def test_arrays_on_the_device_stay_there() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 64)).astype(np.float32), rng.standard_normal((40, 64)).astype(np.float32)
    out = twin.to_device(np.zeros((2, 40), np.float32))
    layers.linear(twin.to_device(x), twin.to_device(weight), out)
    chosen = layers.argmax(out)
    assert isinstance(chosen, twin.DeviceArray)
    expected = np.empty((2, 40), np.float32)
    layers.linear(x, weight, expected)
    assert_exact(np.asarray(out), expected)
    assert_exact(np.asarray(chosen), expected.argmax(axis=1))


ROWS = np.zeros((2, 3), np.float32)
ONE = ROWS[:1].copy()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.rms_norm(ROWS, np.ones(4, "f4"), 1e-5, ROWS.copy()), "rms_norm: weight has the wrong shape"),
        (lambda: layers.rms_norm(ROWS, np.ones(3), 1e-5, ROWS.copy()), "rms_norm: weight has the wrong type"),
        (lambda: layers.linear(ROWS, np.ones((2, 4), np.float32), ROWS.copy()), "linear: weight has the wrong shape"),
        (lambda: layers.activate(ROWS, ROWS.copy(), kind="swish"), "activate: kind is not an activation, got 'swish'"),
        (lambda: layers.gate(ROWS, ROWS, ROWS.copy(), kind=""), "gate: kind is not an activation"),
        (lambda: layers.embed(np.array([2]), ROWS, ONE), "embed: token_ids are out of range, got 2, need 0..1"),
        (lambda: layers.embed(np.array([-1]), ROWS, ONE), "embed: token_ids are out of range, got -1"),
        (lambda: layers.embed(np.array([1]), ROWS, ONE, position_table=ROWS), "embed: positions are missing"),
        (lambda: layers.top_k(ROWS, 4), "top_k: k is out of range, got 4, need 1..3"),
        (lambda: layers.route(ROWS, 0, normalise=True), "route: k is out of range, got 0, need 1..3"),
        (lambda: layers.argmax(ROWS[:, :0]), "argmax: logits have no columns"),
        (lambda: layers.sample(ROWS, 0.0, 1, 1), "sample: temperature is out of range, got 0.0"),
        (lambda: layers.sample(ROWS, 1.0, -1, 1), "sample: seed is out of range, got -1"),
        (lambda: layers.sample(ROWS, 1.0, 1, 2**32), "sample: draw is out of range"),
        (lambda: layers.sample(ROWS, 1.0, 1, 1, streams=np.array([0, -1])), "sample: streams are out of range, got -1"),
        (
            lambda: layers.rotate(ROWS[None], *[np.zeros((1, 1, 2), np.float32)] * 2),
            "rotate: cos has too many pairs, got 2, need at most 1",
        ),
        (lambda: layers.rotate(ROWS[None], *[np.zeros((1, 2, 1), np.float32)] * 2), "rotate: cos has the wrong shape"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message.replace("(", r"\(")):
        call()


def test_nothing_to_do_launches_nothing() -> None:
    none = np.zeros((0, 3), np.float32)
    layers.rms_norm(none, np.ones(3, np.float32), 1e-5, none.copy())
    layers.linear(none, ROWS, np.zeros((0, 2), np.float32))
    layers.gate(none, none, none.copy(), kind="silu")
    assert layers.argmax(none).shape == layers.sample(none, 1.0, 0, 0).shape == (0,)
    assert layers.top_k(none, 2)[1].shape == (0, 2)
