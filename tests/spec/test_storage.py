"""Stored forms of a call: what is inferred, what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pagedref.errors import ContractError
from pagedref.kv_format import KVFormat
from pagedref.storage import storage, unpacked

DIMS = {"num_frames": 5, "page_size": 4, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 8}


def cache(dtype: Any) -> Any:
    return np.zeros((5, 4, 2, 4 if dtype == np.uint8 else 8), dtype)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("dtype", "keywords", "expected"),
    [
        (np.float32, {}, KVFormat("float32")),
        (np.float16, {"k_scale": 2}, KVFormat("float16", "tensor")),
        (ml_dtypes.float8_e4m3fn, {"k_scale": ones(2)}, KVFormat("e4m3fn", "head")),
        (np.int8, {"k_scale": ones(5, 2)}, KVFormat("int8", "frame_head")),
        (np.int8, {"k_scale": ones(5, 4, 2), "k_zero": ones(5, 4, 2)}, KVFormat("int8", "slot_head", None, True)),
        (np.uint8, {"kv_format": "int4", "k_scale": ones(5, 4, 2, 2)}, KVFormat("int4", "group", 4)),
    ],
)
def test_the_format_is_inferred(dtype: Any, keywords: dict[str, Any], expected: KVFormat) -> None:
    """From the type of the cache and the number of dimensions of the scales."""
    assert storage("f", "k", cache(dtype), DIMS, keywords).form == expected
    explicit = {**keywords, "kv_format": expected}
    assert storage("f", "k", cache(dtype), DIMS, explicit).form == expected


@pytest.mark.parametrize(
    ("dtype", "keywords", "words"),
    [
        (np.int8, {}, ["k_scale", "is missing", "S16"]),
        (np.uint8, {"k_scale": 1.0}, ["kv_format", "uint8"]),
        (np.float32, {"kv_format": "float16"}, ["k_cache", "float16"]),
        (np.float32, {"kv_format": "fp8"}, ["kv_format", "fp8"]),
        (np.float32, {"kv_format": 8}, ["kv_format", "8"]),
        (np.int8, {"k_scale": ones(3)}, ["k_scale", "(3,)", "(2,)"]),
        (np.int8, {"k_scale": np.ones(2)}, ["k_scale", "float64", "float32"]),
        (np.int8, {"k_scale": 0.0}, ["k_scale", "> 0"]),
        (np.int8, {"k_scale": float("nan")}, ["k_scale", "finite"]),
        (np.int8, {"k_scale": ones(1, 1, 1, 1, 1)}, ["k_scale", "dimensions"]),
        (np.int8, {"k_scale": 1.0, "k_zero": ones(2)}, ["k_zero"]),
        (np.float32, {"kv_format": KVFormat("float32"), "k_scale": 1.0}, ["k_scale", "does not fit"]),
        (np.int8, {"kv_format": KVFormat("int8", "head")}, ["k_scale", "does not fit", "got None"]),
    ],
)
def test_refusals(dtype: Any, keywords: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ContractError) as error:
        storage("f", "k", cache(dtype), DIMS, keywords)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_two_int4_share_a_byte() -> None:
    assert unpacked(cache(np.uint8), "int4").shape == (5, 4, 2, 8)
    assert unpacked(cache(np.uint8), None).shape == (5, 4, 2, 4)
