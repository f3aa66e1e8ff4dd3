"""The oracle and the NumPy backend against stored vectors of public systems.

Runs where ``PAGEDREF_GOLDEN`` names the folder of golden data; the manifest there states conventions and tolerance.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedref.attention import dense_attention, merge_states, paged_prefill
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.dense import DenseState
from pagedref.conformance import assert_state

FOLDER = os.environ.get("PAGEDREF_GOLDEN")
pytestmark = pytest.mark.skipif(not FOLDER, reason="PAGEDREF_GOLDEN does not name the golden data")


def _vectors(kind: str) -> list[dict[str, Any]]:
    if not FOLDER:
        return []
    manifest = json.loads((Path(FOLDER) / "attention" / "manifest.json").read_text())
    return [vector for vector in manifest["vectors"] if vector["kind"] == kind]


def _load(vector: dict[str, Any]) -> dict[str, Any]:
    with np.load(Path(str(FOLDER)) / "attention" / vector["file"], allow_pickle=False) as data:
        return {name: data[name] for name in data.files}


def _agree(vector: dict[str, Any], actual: Any, stored: Any, what: str) -> None:
    """Compare with the manifest's tolerance; infinities and zero rows exactly."""
    scale = max(1.0, float(np.abs(stored[np.isfinite(stored)]).max(initial=0.0)))
    tolerance = {"f64": 1e-11, "f32": 3e-5}[vector["tolerance"]] * scale  # the manifest's words
    finite = np.isfinite(stored)
    assert np.array_equal(np.isneginf(actual), np.isneginf(stored)), f"{what}: empty rows differ"
    assert np.abs(actual[finite] - stored[finite]).max(initial=0.0) <= tolerance, what


@pytest.mark.parametrize("vector", _vectors("attention"), ids=lambda vector: vector["id"])
def test_attention(vector: dict[str, Any]) -> None:
    data, params, shapes = _load(vector), vector["params"], vector["shapes"]
    keywords: dict[str, Any] = {
        "causal": params["causal"],
        "sm_scale": params["scale"],
        "softcap": params["softcap"],
        "attention_chunk": params["chunk"],
    }
    if params["window_left"] is not None or params["window_right"] is not None:
        keywords["window"] = (params["window_left"], params["window_right"])
    for name in ("alibi_slopes", "sinks"):
        if name in data:
            keywords[name] = data[name].astype(np.float64)
    factor_k, factor_v = (np.float32(params[name] or 1.0) for name in ("k_scale", "v_scale"))
    q_lens, kv_lens = np.asarray(shapes["q_lens"]), np.asarray(shapes["kv_lens"])
    cu_q, cu_kv = np.concatenate([[0], np.cumsum(q_lens)]), np.concatenate([[0], np.cumsum(kv_lens)])
    masks = None
    if "mask_bits" in data:
        bits = np.unpackbits(data["mask_bits"]).astype(bool)
        starts = data["mask_indptr"]
        masks = [bits[starts[b] : starts[b] + q * k].reshape(q, k) for b, (q, k) in enumerate(zip(q_lens, kv_lens))]
    parts = []
    for b in range(len(q_lens)):
        q = data["q"][cu_q[b] : cu_q[b + 1]]
        k, v = (data[name][cu_kv[b] : cu_kv[b + 1]] for name in ("k", "v"))
        mask = {} if masks is None else {"mask": masks[b]}
        scaled = Arithmetic(scaled=params["k_scale"] is not None or params["v_scale"] is not None)
        parts.append(
            dense_attention(q, k * factor_k, v * factor_v, with_bound=True, arithmetic=scaled, **mask, **keywords)
        )
    expected = DenseState(*(np.concatenate([np.asarray(part[at]) for part in parts]) for at in range(4)))
    _agree(vector, expected.out, data["out"], "oracle: out")
    lse = data.get("lse_with_sink", data["lse"]) if "sinks" in data else data["lse"]
    _agree(vector, expected.lse, lse, "oracle: lse")

    scales = {name: params[name] for name in ("k_scale", "v_scale") if params[name] is not None}
    page_size = shapes["page_size"]
    counts = -(-kv_lens // page_size)
    table = data["block_table"]
    for name in ("alibi_slopes", "sinks"):
        if name in keywords:
            keywords[name] = keywords[name].astype(np.float32)
    state = paged_prefill(
        data["q"].astype(np.float32),
        cu_q,
        data["k_cache"].astype(np.float32),
        data["v_cache"].astype(np.float32),
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([table[b, :count] for b, count in enumerate(counts)]).astype(np.int32),
        np.where(kv_lens > 0, (kv_lens - 1) % page_size + 1, 0),
        **({} if masks is None else {"mask": masks}),
        **scales,
        **keywords,
    )
    narrow = all(np.array_equal(data[n], data[n].astype(np.float32)) for n in ("q", "k", "v"))
    assert narrow, "the stored inputs are not float32 numbers: the bound would not apply"
    assert_state(state, expected, vector["id"])


@pytest.mark.parametrize("vector", _vectors("merge"), ids=lambda vector: vector["id"])
def test_merge(vector: dict[str, Any]) -> None:
    data = _load(vector)
    state = merge_states(data["part_out"].astype(np.float64), data["part_lse"].astype(np.float64))
    _agree(vector, state.out, data["out"], "out")
    _agree(vector, state.lse, data["lse"], "lse")
