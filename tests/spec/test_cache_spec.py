"""Byte arithmetic of caches."""

from __future__ import annotations

from typing import Any

import pytest

from pagedref.cache_spec import CacheSpec
from pagedref.errors import ContractError
from pagedref.kv_cache import PagedKVCache
from pagedref.kv_format import KVFormat


def test_opt_13b_as_published() -> None:
    """W. Kwon et al., SOSP 2023, section 3: 40 layers of hidden size 5,120 in float16 are 800 KiB a token."""
    spec = CacheSpec(num_layers=40, num_kv_heads=40, head_dim=128, page_size=16, dtype="float16")
    assert spec.bytes_per_token == 819_200


def test_bytes_are_those_of_the_arrays() -> None:
    spec = CacheSpec(3, 2, 5, page_size=7, dtype="float64", v_head_dim=4)
    cache = PagedKVCache(spec, 11)
    total = sum(array.nbytes for layer in range(3) for array in cache.arrays(layer))
    assert total == 11 * spec.bytes_per_frame
    assert spec.bytes_for(15) == 3 * spec.bytes_per_frame


@pytest.mark.parametrize(
    "form",
    [
        KVFormat("bfloat16"),
        KVFormat("e4m3fn", "frame_head"),
        KVFormat("int8", "slot_head"),
        KVFormat("int4", "group", group_size=2, zero_point=True),
    ],
)
def test_bytes_of_formats_are_those_of_the_arrays(form: KVFormat) -> None:
    spec = CacheSpec(3, 2, 6, page_size=5, v_head_dim=4, kv_format=form)
    inputs = {"k_scale": 1.0, "v_scale": 1.0} if form.granularity and not form.computed else {}
    cache = PagedKVCache(spec, 7, **inputs)
    assert sum(array.nbytes for array in cache._pool.frame_arrays()) == 7 * spec.bytes_per_frame


@pytest.mark.parametrize(
    "change", [{"num_layers": 0}, {"page_size": -1}, {"head_dim": 1.5}, {"v_head_dim": 0}, {"dtype": "int3"}]
)
def test_refusals(change: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match=f"CacheSpec: {next(iter(change))}"):
        CacheSpec(**{"num_layers": 1, "num_kv_heads": 1, "head_dim": 1, "page_size": 1, **change})
