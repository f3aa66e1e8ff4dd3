"""Every stored form on the backend under test."""

from __future__ import annotations

from typing import Any

import pytest

from pagedref.conformance.storage_checks import FORMATS, STORED_CHECKS
from pagedref.contract import DTYPES, NOT_BUILT
from pagedref.kv_format import KVFormat


def describe(form: KVFormat) -> str:
    parts = [form.kind, form.granularity, form.group_size and str(form.group_size), form.zero_point and "zero"]
    return "-".join(part for part in parts if part)


@pytest.mark.parametrize("form", FORMATS, ids=describe)
@pytest.mark.parametrize("name", STORED_CHECKS)
def test_stored_form(backend: Any, backend_name: str, name: str, form: KVFormat) -> None:
    scaled = form != KVFormat.of(form.dtype) or form.integer
    if form.dtype.name not in DTYPES.get(backend_name, DTYPES["numpy"])["storage"]:
        pytest.skip(f"the backend does not store {form.kind}")
    if scaled and "kv_format" in NOT_BUILT.get(backend_name, frozenset()):
        pytest.skip("the backend has no scales yet")
    STORED_CHECKS[name](backend, form)
