"""Formats as data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedref.errors import ContractError
from pagedref.kv_format import GRANULARITIES, KINDS, NAMES, KVFormat


def test_kinds() -> None:
    assert list(KINDS) == ["float64", "float32", "float16", "bfloat16", "e4m3fn", "e5m2", "int8", "int4"]
    for kind in KINDS.values():
        assert kind.bits == kind.dtype.itemsize * (4 if kind.name == "int4" else 8)


def test_a_type_says_its_format() -> None:
    assert KVFormat.of(np.float16) == KVFormat("float16")
    assert KVFormat.of(np.int8) == KVFormat("int8", "tensor")
    with pytest.raises(ContractError, match=r"KVFormat\.of: dtype is no storage type, got int32"):
        KVFormat.of(np.int32)


def test_names() -> None:
    """Every name is a format that needs no scales beforehand, and fits heads of any even size."""
    sizes = {name: KVFormat.named(name, 64).bytes_per_token(1, 64) for name in NAMES}
    assert list(sizes.values()) == [256, 128, 128, 64, 68, 64, 68, 68, 48]
    assert sizes["int4"] == 32 + 2 * 2 * 4  # two groups, each with a scale and a zero point of four bytes
    for name in NAMES:
        form = KVFormat.named(name)
        assert form.granularity is None or form.computed
    groups = {dims: KVFormat.named("int4", *dims).group_size for dims in ((), (64,), (80,), (6,), (128, 48), (2,))}
    assert groups == {(): 32, (64,): 32, (80,): 16, (6,): 2, (128, 48): 16, (2,): 2}
    with pytest.raises(ContractError, match=r"KVFormat\.named: name is unknown, got 'fp8', need one of float32,"):
        KVFormat.named("fp8")


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_shapes_of_scales_differ_in_dimensions(granularity: str) -> None:
    """The number of dimensions of an array of scales tells what one of them covers."""
    group = 4 if granularity == "group" else None
    shape = KVFormat("int8", granularity, group).scale_shape(10, 16, 2, 8)
    assert shape is not None and len(shape) == GRANULARITIES.index(granularity)


def test_bytes_per_token() -> None:
    """One head of 64: 64 bytes in int8 and 4 for a scale; 32 in int4 with two scales and zero points of 4 bytes."""
    assert KVFormat("int8", "tensor").bytes_per_token(1, 64) == 64
    assert KVFormat("int8", "slot_head").bytes_per_token(1, 64) == 68
    assert KVFormat("int4", "group", 32, zero_point=True).bytes_per_token(1, 64) == 32 + 2 * 8


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"kind": "fp8"}, "kind"),
        ({"kind": "int8"}, "granularity"),
        ({"kind": "float32", "granularity": "page"}, "granularity"),
        ({"kind": "float16", "granularity": "slot_head"}, "granularity"),
        ({"kind": "int8", "granularity": "group"}, "group_size"),
        ({"kind": "int8", "granularity": "head", "group_size": 4}, "group_size"),
        ({"kind": "e4m3fn", "granularity": "slot_head", "zero_point": True}, "zero_point"),
        ({"kind": "int4", "granularity": "head", "zero_point": True}, "zero_point"),
    ],
)
def test_refusals(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ContractError, match=f"KVFormat: {word} is wrong"):
        KVFormat(**arguments)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ContractError, match="odd"):
        KVFormat("int4", "head").stored_dim(7)
    with pytest.raises(ContractError, match="7 / 4"):
        KVFormat("int8", "group", 4).stored_dim(7)
