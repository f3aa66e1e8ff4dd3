"""Every check of the suite on the backend under test, for every storage type it has."""

from __future__ import annotations

from typing import Any

import pytest

from pagedref.conformance import CHECKS


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHECKS)
def test_check(backend: Any, storage_dtypes: tuple[str, ...], name: str, dtype: str) -> None:
    if dtype not in storage_dtypes:
        pytest.skip(f"the backend does not store {dtype}")
    CHECKS[name](backend, dtype)
