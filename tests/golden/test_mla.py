"""MLA against stored vectors of public systems: the oracle at the manifest's tolerance, operations within the bound.

Runs where ``PAGEDREF_GOLDEN`` names the folder of golden data; the manifest there states conventions and tolerance.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedref.attention import dense_attention
from pagedref.attention.bounds import Arithmetic
from pagedref.attention.dense import DenseState
from pagedref.attention.mla import mla_decode, mla_prefill
from pagedref.attention.mla_forms import dense_mla, mla_absorb, mla_expand, mla_project
from pagedref.conformance import assert_exact, assert_state

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
    """Compare with the manifest's tolerance."""
    scale = max(1.0, float(np.abs(stored).max(initial=0.0)))
    tolerance = {"f64": 1e-11, "f32": 3e-5}[vector["tolerance"]] * scale  # the manifest's words
    assert np.abs(actual - stored).max(initial=0.0) <= tolerance, what


def _pages(data: dict[str, Any], page_size: int) -> tuple[Any, Any, Any]:
    """Return the CSR of the stored block table."""
    kv_lens = data["seq_lens"].astype(np.int64)
    counts = -(-kv_lens // page_size)
    indices = [data["block_table"][at, :count] for at, count in enumerate(counts)]
    last = np.where(kv_lens > 0, (kv_lens - 1) % page_size + 1, 0)
    return np.concatenate([[0], np.cumsum(counts)]), np.concatenate(indices), last


def _oracle(data: dict[str, Any], queries: tuple[Any, Any], scale: float, dtype: str) -> DenseState:
    """Attend by the oracle, sequence after sequence, with the bound for an arithmetic."""
    parts = []
    for at in range(len(data["seq_lens"])):
        rows = slice(*data["cu_q"][at : at + 2])
        live = [data[name][slice(*data["cu_kv"][at : at + 2])] for name in ("ckv", "kpe")]
        q_nope, q_pe = (query[rows] for query in queries)
        parts.append(dense_mla(q_nope, q_pe, *live, sm_scale=scale, with_bound=True, arithmetic=Arithmetic(dtype)))
    return DenseState(*(np.concatenate([np.asarray(part[at]) for part in parts]) for at in range(4)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("vector", _vectors("mla_latent"), ids=lambda vector: vector["id"])
def test_latent(vector: dict[str, Any], dtype: str) -> None:
    data, scale = _load(vector), vector["params"]["scale"]
    queries = data["q_nope"].astype(dtype), data["q_pe"].astype(dtype)
    expected = _oracle(data, queries, scale, dtype)
    _agree(vector, expected.out, data["out"], "oracle: out")
    _agree(vector, expected.lse, data["lse"], "oracle: lse")
    pools = data["ckv_cache"], data["kpe_cache"]
    pages = _pages(data, vector["shapes"]["page_size"])
    state = mla_prefill(*queries, data["cu_q"], *pools, *pages, sm_scale=scale)
    assert_state(state, expected, "mla_prefill")
    positions = np.full((len(queries[0]), int(data["seq_lens"].max())), -1)  # the causal rule as a selection
    owners = np.repeat(np.arange(len(data["q_lens"])), data["q_lens"])
    for row, owner in enumerate(owners):
        last = data["seq_lens"][owner] - data["q_lens"][owner] + row - data["cu_q"][owner]
        positions[row, : last + 1] = np.arange(last + 1)
    chosen = mla_prefill(*queries, data["cu_q"], *pools, *pages, sm_scale=scale, sparse_positions=positions)
    assert_state(chosen, expected, "mla_prefill, selected")
    if (data["q_lens"] == 1).all():
        decoded = mla_decode(*queries, *pools, *pages, sm_scale=scale)
        assert_exact(decoded.out, state.out, "decode")
        assert_state(decoded, expected, "mla_decode")


@pytest.mark.parametrize("vector", _vectors("mla_expanded"), ids=lambda vector: vector["id"])
def test_expanded(vector: dict[str, Any]) -> None:
    """Explicit form by the dense oracle; absorbed form by the latent oracle and by ``mla_prefill``, then projected."""
    data, scale, nope_dim = _load(vector), vector["params"]["scale"], vector["shapes"]["nope_dim"]
    wide = {name: data[name].astype(np.float64) for name in ("q", "ckv", "kpe", "w_kv_b")}
    k_nope, v = mla_expand(wide["w_kv_b"], wide["ckv"], nope_dim=nope_dim)
    rotated = np.repeat(wide["kpe"][:, None], k_nope.shape[1], axis=1)
    explicit = dense_attention(wide["q"], np.concatenate([k_nope, rotated], axis=-1), v, sm_scale=scale)
    _agree(vector, explicit.out, data["out"], "explicit: out")
    _agree(vector, explicit.lse, data["lse"], "explicit: lse")

    absorbed = mla_absorb(wide["w_kv_b"], wide["q"][..., :nope_dim])
    pages = _pages(data, vector["shapes"]["page_size"])
    for dtype in ("float64", "float32"):
        queries = absorbed.astype(dtype), data["q"][..., nope_dim:].astype(dtype)
        expected = _oracle(data, queries, scale, dtype)
        state = mla_prefill(*queries, data["cu_q"], data["ckv_cache"], data["kpe_cache"], *pages, sm_scale=scale)
        assert_state(state, expected, f"mla_prefill in {dtype}")
        if dtype == "float64":
            for what, latent in (("oracle", expected.out), ("mla_prefill", state.out)):
                _agree(vector, mla_project(wide["w_kv_b"], latent, nope_dim=nope_dim), data["out"], f"{what}: out")
            _agree(vector, state.lse, data["lse"], "mla_prefill: lse")
