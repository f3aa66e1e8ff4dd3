"""Options and fixtures of the whole suite; the option itself is that of the plugin which the package installs."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

from pagedref.contract import DTYPES

# Where the emulator runs the kernels, tests check all that it can.
os.environ.setdefault("PAGEDREF_CUDA_CHECKS", "all")

pytest_plugins = ["pagedref.conformance.plugin"]  # the entry point has the same name: it is registered once

settings.register_profile("pagedref", deadline=None)  # a busy machine is no fault
settings.register_profile("kernels", deadline=None, max_examples=5)  # what runs a kernel without a GPU is slow
settings.load_profile("pagedref")


def pytest_configure(config: pytest.Config) -> None:
    """Ask less of what runs a kernel without a GPU."""
    if config.getoption("--pagedref-backend") not in (None, "numpy"):
        settings.load_profile("kernels")


@pytest.fixture(scope="session")
def backend_name(pagedref_backend_name: str) -> str:
    """Name of the backend under test."""
    return pagedref_backend_name


@pytest.fixture(scope="session")
def backend(pagedref_backend: Any) -> Any:
    """The backend under test."""
    return pagedref_backend


@pytest.fixture(scope="session")
def storage_dtypes(backend_name: str) -> tuple[str, ...]:
    """Storage types of the backend under test."""
    return DTYPES.get(backend_name, DTYPES["numpy"])["storage"]
