"""Peers with the conventions of other systems pass as backends; what they lack is not offered; faults are named."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagedref.attention as reference
from pagedref.conformance import adapters, assert_state, make_case, oracle
from pagedref.conformance.runner import run
from pagedref.errors import ContractError, NotOffered, PageFault
from tests.conformance import peers


def infer(layout: str, *, combined: bool) -> adapters.Adapter:
    functions = peers.infer_decode(layout), peers.infer_prefill(layout), peers.infer_append(layout), peers.infer_merge
    return adapters.flashinfer(*functions, layout=layout, combined=combined)


ADAPTERS: dict[str, adapters.Adapter] = {
    "flash-attention": adapters.flash_attention(peers.flash_varlen, peers.flash_kvcache),
    "flash-attention padded with -1": adapters.flash_attention(peers.flash_varlen, padding=-1),
    "vllm": adapters.vllm(peers.flash_varlen, peers.reshape_and_cache_flash, peers.merge_attn_states),
    "vllm packed": adapters.vllm(None, peers.reshape_and_cache, packed=True),
    "flashinfer NHD": infer("NHD", combined=False),
    "flashinfer HND": infer("HND", combined=False),
    "flashinfer HND in one tensor": infer("HND", combined=True),
    "jax": adapters.jax_ragged(peers.jax_ragged),
    "dense": adapters.gathered(peers.dense),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_right_peer_is_not_accused(name: str) -> None:
    verdict = run(ADAPTERS[name], name)
    assert verdict.ok, verdict.text()


def test_flash_mla() -> None:
    adapter = adapters.flash_mla(peers.flash_mla)
    rng = np.random.default_rng(0)
    ckv, kpe = (rng.standard_normal((5, 3, size)).astype(np.float32) for size in (6, 2))
    ckv[2], kpe[4, 2:] = np.nan, np.nan  # frame of nobody, and a tail
    q_nope, q_pe = (rng.standard_normal((3, 2, size)).astype(np.float32) for size in (6, 2))
    pages = np.array([0, 2, 2, 3], np.int32), np.array([1, 4, 0], np.int32), np.array([2, 0, 3], np.int32)
    theirs = adapter.mla_decode(q_nope, q_pe, ckv, kpe, *pages, sm_scale=0.3)
    ours = reference.mla_decode(q_nope, q_pe, ckv, kpe, *pages, sm_scale=0.3)
    wide = [array.astype(np.float64) for array in (q_nope, q_pe, ckv, kpe)]
    exact = reference.mla_decode(*wide, *pages, sm_scale=0.3)
    for theirs_part, ours_part, exact_part in zip(theirs, ours, exact, strict=True):
        assert theirs_part.shape == ours_part.shape
        # the peer computes in float64 and rounds once: half a step of float32
        finite = np.isfinite(exact_part)
        assert np.array_equal(theirs_part[~finite], exact_part[~finite])
        assert (np.abs(theirs_part[finite] - exact_part[finite]) <= np.spacing(np.abs(ours_part[finite]))).all()
    with pytest.raises(NotOffered, match="mla_decode: softcap has no place in this convention"):
        adapter.mla_decode(q_nope, q_pe, ckv, kpe, *pages, sm_scale=0.3, softcap=2.0)


def test_what_a_peer_lacks_is_not_offered() -> None:
    case = make_case(1, [1], [5], sinks=np.zeros(4, np.float32))
    with pytest.raises(NotOffered, match="paged_decode: s_aux is not offered by this peer"):
        case.decode(ADAPTERS["flash-attention"])
    case = make_case(1, [2], [5], causal=False, window=2)
    with pytest.raises(NotOffered, match="window_left_from_window: window has a right side without causal"):
        case.prefill(ADAPTERS["flashinfer NHD"])
    with pytest.raises(NotOffered, match="causal is always on in this convention"):
        case.prefill(ADAPTERS["jax"])
    assert not hasattr(ADAPTERS["jax"], "append_kv")
    assert make_case(1, [1], [5]).decode(ADAPTERS["jax"]).lse is None
    with pytest.raises(ContractError, match="flashinfer: layout is unknown, got 'DNH'"):
        adapters.flashinfer(layout="DNH")


def test_the_call_is_checked_as_every_backend_checks_it() -> None:
    case = make_case(2, [2, 1], [6, 5])
    for adapter in (ADAPTERS["flash-attention"], ADAPTERS["flashinfer HND"], ADAPTERS["dense"]):
        with pytest.raises(ContractError, match="paged_prefill: window"):
            case.using(window=0).prefill(adapter)
        holed = case.kv_indices.copy()
        holed[0] = -1
        with pytest.raises(PageFault, match="page 0 of sequence 0"):
            adapter.paged_prefill(case.q, case.qo_indptr, case.k_cache, case.v_cache, case.kv_indptr, holed,
                                  case.kv_last_page_len)  # fmt: skip


def _wrong(change: Any) -> adapters.Adapter:
    """A flash-attention whose keywords, or results, are changed on the way."""

    @functools.wraps(peers.flash_varlen)
    def varlen(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        return change(lambda **new: peers.flash_varlen(q, k, v, **{**keywords, **new}), keywords)

    return adapters.flash_attention(varlen)


def _wider(window_size: tuple[int, int]) -> tuple[int, int]:
    left, right = window_size
    return (left + 1 if left >= 0 else left), right


WRONG = {
    "lse is base 2": _wrong(lambda call, given: (call()[0], call()[1] / peers.LN_2)),
    "window counts one key more": _wrong(
        lambda call, given: call(**{"window_size": _wider(given["window_size"])} if "window_size" in given else {})
    ),
    "sm_scale is applied twice": _wrong(lambda call, given: call(softmax_scale=given["softmax_scale"] ** 2)),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_peer_is_named_through_the_adapter(text: str) -> None:
    verdict = run(WRONG[text], "wrong", operations=["paged_decode", "paged_prefill"])
    assert not verdict.ok
    assert text in verdict.text(), verdict.text()


def test_torch_passes() -> None:
    """torch's scaled_dot_product_attention over gathered pages: another library, another order of sums."""
    torch = pytest.importorskip("torch", reason="torch is not installed (tox -e torch-sdpa)")

    def sdpa(q: Any, k: Any, v: Any, mask: Any, sm_scale: float) -> Any:
        attend = torch.nn.functional.scaled_dot_product_attention
        bias = None if mask is None else mask[None]
        # the scale goes into q, as torch takes the root of it for both sides, and L14 asks for the bits
        return attend((q * sm_scale)[None], k[None], v[None], attn_mask=bias, scale=1.0, enable_gqa=True)[0]

    verdict = run(adapters.gathered(sdpa, library=torch, one_row=True), "torch SDPA")
    assert verdict.ok, verdict.text()


def test_jax_has_its_known_deviation() -> None:
    """JAX's reference gives the mean of V to rows that see no key: named, and nothing else is."""
    jax = pytest.importorskip("jax", reason="jax is not installed (tox -e jax)")
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention

    adapter = adapters.jax_ragged(ref_ragged_paged_attention, library=jax, dtypes=("float32",))
    case = make_case(3, [1, 2], [7, 5], poison=0.0)
    state = case.prefill(adapter)
    assert state.lse is None
    assert_state((state.out, oracle(case).lse), oracle(case), "jax, rows that see keys")
    case = make_case(4, [4], [2], group_size=1, poison=0.0)
    out = np.asarray(case.prefill(adapter).out)
    mean = case.values[0].astype(np.float64).mean(axis=0)
    assert (np.abs(out[:2] - mean) <= np.spacing(np.abs(case.values[0]).max(axis=0))).all()
    verdict = run(adapter, "jax", operations=["paged_prefill"])
    assert not verdict.ok
    assert "P08" in verdict.text(), verdict.text()


FOLDER = os.environ.get("PAGEDREF_GOLDEN")


@pytest.mark.skipif(not FOLDER, reason="PAGEDREF_GOLDEN does not name the golden data")
@pytest.mark.parametrize("name", ["flash-attention", "flashinfer HND", "jax", "dense"])
def test_stored_vectors_agree_through_the_adapters(name: str) -> None:
    """Answers of public systems, wherever the convention can express the question."""
    folder = Path(str(FOLDER)) / "attention"
    judged = 0
    for vector in json.loads((folder / "manifest.json").read_text())["vectors"]:
        if vector["kind"] != "attention" or vector["params"]["k_scale"] or vector["params"]["v_scale"]:
            continue
        with np.load(folder / vector["file"], allow_pickle=False) as file:
            data = {key: file[key] for key in file.files}
        judged += _stored(ADAPTERS[name], vector, data)
    assert judged >= 10


def _stored(adapter: Any, vector: dict[str, Any], data: dict[str, Any]) -> bool:
    """Ask one stored question; return whether it could be asked."""
    params, shapes = vector["params"], vector["shapes"]
    keywords: dict[str, Any] = {"causal": params["causal"], "sm_scale": params["scale"], "softcap": params["softcap"],
                                "attention_chunk": params["chunk"]}  # fmt: skip
    if params["window_left"] is not None or params["window_right"] is not None:
        keywords["window"] = (params["window_left"], params["window_right"])
    keywords |= {key: data[key].astype(np.float32) for key in ("alibi_slopes", "sinks") if key in data}
    q_lens, kv_lens = np.asarray(shapes["q_lens"]), np.asarray(shapes["kv_lens"])
    counts = -(-kv_lens // shapes["page_size"])
    if "mask_bits" in data:
        bits, starts = np.unpackbits(data["mask_bits"]).astype(bool), data["mask_indptr"]
        keywords["mask"] = [
            bits[starts[b] : starts[b] + rows * keys].reshape(rows, keys)
            for b, (rows, keys) in enumerate(zip(q_lens, kv_lens, strict=True))
        ]
    case = (
        data["q"].astype(np.float32),
        np.concatenate([[0], np.cumsum(q_lens)]),
        data["k_cache"].astype(np.float32),
        data["v_cache"].astype(np.float32),
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([data["block_table"][b, :count] for b, count in enumerate(counts)]).astype(np.int32),
        np.where(kv_lens > 0, (kv_lens - 1) % shapes["page_size"] + 1, 0),
    )
    try:
        state = adapter.paged_prefill(*case, **keywords)
    except NotOffered:
        return False
    exact = data["lse_with_sink"] if "sinks" in data and "lse_with_sink" in data else data["lse"]
    scale = max(1.0, float(np.abs(data["out"]).max(initial=0.0)))
    tolerance = {"f64": 1e-11, "f32": 3e-5}[vector["tolerance"]] * scale  # the manifest's words
    for found, stored in ((state.out, data["out"]), (state.lse, exact)):
        if found is None:
            continue
        finite = np.isfinite(stored)
        assert np.array_equal(np.isneginf(found), np.isneginf(stored)), vector["id"]
        # the peer rounds once to float32, and an lse to another base once more on the way
        rounded = 2 * np.spacing(np.abs(stored[finite]).astype(np.float32))
        assert (np.abs(found[finite] - stored[finite]) <= tolerance + rounded).all(), vector["id"]
    return True
