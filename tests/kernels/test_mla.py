"""Attention over latents on the device, against the oracle of MLA: every option, stored form and selection (S13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pagedref.attention.bounds import Arithmetic
from pagedref.attention.mla_forms import dense_mla
from pagedref.attention.quantize import dequantize, quantize
from pagedref.conformance import assert_exact, assert_state
from pagedref.errors import ContractError
from pagedref.kv_format import KVFormat
from tests.spec.latent_cases import LatentCase, latent_oracle, make_latent
from tests.spec.test_mla import CHECKS, FORMATS, selection

twin = pytest.importorskip("pagedref_cuda")
pytest.importorskip("pagedref_cuda.decode", reason="numba-cuda is not installed", exc_type=ImportError)

Q_LENS, KV_LENS = [3, 1, 0, 2, 1], [9, 13, 4, 1, 0]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check(check: Callable[[Any], None]) -> None:
    check(twin)


def _options(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {
        "causal": False,
        "mask": [rng.random(shape) < 0.6 for shape in zip(Q_LENS, KV_LENS, strict=True)],
        "sparse_positions": selection(seed, Q_LENS, KV_LENS, 6),
        "window": 4,
        "attention_chunk": 5,
        "softcap": 0.7,
        "sinks": rng.standard_normal(3).astype(np.float32),
        "sm_scale": -0.5,
    }
    return options


@pytest.mark.parametrize("names", [*([name] for name in _options(0)), list(_options(0))], ids="+".join)
def test_every_option(names: list[str]) -> None:
    """Each alone, and all of them together; pages of 1 and of 5."""
    for page_size in (1, 5):
        chosen = {name: value for name, value in _options(page_size).items() if name in names}
        case = make_latent(page_size, Q_LENS, KV_LENS, page_size=page_size, heads=3, spread=3.0, **chosen)
        assert_state(case.prefill(twin), latent_oracle(case), f"pages of {page_size}")


def test_decode_with_options() -> None:
    chosen = selection(3, [1, 1, 1], [7, 0, 12], 4)
    for keywords in ({}, {"sparse_positions": chosen}, {"window": 3, "softcap": 2.0}):
        case = make_latent(3, [1, 1, 1], [7, 0, 12], heads=2, **keywords)
        assert_state(case.decode(twin), latent_oracle(case), str(sorted(keywords)))


@pytest.mark.parametrize("storage", ["float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_other_storage_types(storage: Any) -> None:
    case = make_latent(6, [3, 1], [9, 13], storage=storage)
    assert_state(case.prefill(twin), latent_oracle(case))
    mixed = replace(case, kpe_cache=case.kpe_cache.astype(np.float32))
    assert_exact(np.asarray(mixed.prefill(twin).out), np.asarray(case.prefill(twin).out))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.kind}-{form.granularity}")
def test_quantised_latents(form: KVFormat) -> None:
    """S16-S18, with and without a selection."""
    case = make_latent(16, [3, 1], [9, 13], poison=0.0)
    scale = zero = None
    if form.computed:
        stored, scale, zero = quantize(case.ckv_cache[:, :, None], form)
    else:
        shape = form.scale_shape(*case.ckv_cache.shape[:2], 1, 8) or ()
        scale = np.random.default_rng(0).uniform(0.02, 0.05, shape).astype(np.float32)
        stored = quantize(case.ckv_cache[:, :, None], form, scale[:, None] if scale.ndim == 2 else scale).stored
    read = dequantize(stored, form, scale[:, None] if scale.ndim == 2 else scale, zero)[:, :, 0]
    owners = [case.kv_indices[case.kv_indptr[at] : case.kv_indptr[at + 1]] for at in range(2)]
    live = [read[frames].reshape(-1, 8)[: len(ckv)] for frames, ckv in zip(owners, case.ckv, strict=True)]
    keywords = {"ckv_format": form, "ckv_scale": scale, "ckv_zero": zero}
    for chosen in (None, selection(16, [3, 1], [9, 13], 5)):
        expected = latent_oracle(replace(case, ckv=live).using(sparse_positions=chosen))
        stored_case = replace(case, ckv_cache=stored[:, :, 0]).using(sparse_positions=chosen, **keywords)
        assert_state(stored_case.prefill(twin), expected, f"selection {chosen is not None}")


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_narrow_queries(dtype: Any) -> None:
    """Output in the type of the queries, rounded once; the lse stays float32 (S15)."""
    case = make_latent(11, [2, 1], [9, 6], dtype=dtype, storage="float32")
    out, lse = case.prefill(twin)
    assert out.dtype == np.dtype(dtype) and lse.dtype == np.float32
    arithmetic = Arithmetic("float32", out_dtype=np.dtype(dtype).name)
    for sequence in range(2):
        rows = case.rows(sequence)
        queries = case.q_nope[rows].astype(np.float64), case.q_pe[rows].astype(np.float64)
        latents = case.ckv[sequence], case.kpe[sequence]
        exact = dense_mla(*queries, *latents, sm_scale=0.3, with_bound=True, arithmetic=arithmetic)
        assert_state((out[rows], lse[rows]), exact, f"sequence {sequence}")


def test_placement_strides_and_order_change_no_bit() -> None:
    """L1, L2, L3, L9 and the order of a selection."""
    chosen = selection(9, [2, 1], [20, 7], 9)
    case = make_latent(9, [2, 1], [20, 7], sparse_positions=chosen)
    whole = case.prefill(twin)
    joined = np.concatenate([case.ckv_cache, case.kpe_cache], axis=-1)
    strided = replace(case, ckv_cache=joined[..., :8], kpe_cache=joined[..., 8:])
    shuffled = case.using(sparse_positions=np.ascontiguousarray(chosen[:, ::-1]))
    clean = make_latent(9, [2, 1], [20, 7], sparse_positions=chosen, poison=0.0, spare_frames=9)
    for other in (strided, shuffled, clean):
        assert_exact(np.asarray(other.prefill(twin).out), np.asarray(whole.out))
        assert_exact(np.asarray(other.prefill(twin).lse), np.asarray(whole.lse))
    for sequence in range(2):
        alone = case.only(sequence).prefill(twin)
        assert_exact(np.asarray(alone.out), np.asarray(whole.out)[case.rows(sequence)])


def test_refusals() -> None:
    case = make_latent(4, [1], [5])
    with pytest.raises(ContractError, match="mla_decode: sm_scale is missing"):
        twin.mla_decode(case.q_nope, case.q_pe, *case.pages)
    with pytest.raises(ContractError, match="got float64"):
        LatentCase.prefill(replace(case, q_nope=case.q_nope.astype(np.float64)), twin)
