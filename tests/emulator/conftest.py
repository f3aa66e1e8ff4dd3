"""The emulator verifies its own registers while it is tested."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def verify_registers() -> None:
    """Compare instructions' registers for shared memory after their first executions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDREF_EMULATOR_DEBUG", "1")
        yield
