"""Options and fixtures of the whole suite."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

from pagedref import backends
from pagedref.contract import DTYPES
from pagedref.errors import PagedRefError

# Where the emulator runs the kernels, tests check all that it can.
os.environ.setdefault("PAGEDREF_CUDA_CHECKS", "all")

settings.register_profile("pagedref", deadline=None)  # a busy machine is no fault
settings.register_profile("kernels", deadline=None, max_examples=5)  # what runs a kernel without a GPU is slow
settings.load_profile("pagedref")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Choose the backend that the conformance suite judges."""
    parser.addoption("--pagedref-backend", default="numpy", help="backend under test: numpy, cuda or an entry point")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a backend that is none once, before hundreds of tests do."""
    if config.getoption("--pagedref-backend") != "numpy":
        settings.load_profile("kernels")
    try:
        backends.get(config.getoption("--pagedref-backend"))
    except PagedRefError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str:
    """Say which backend is judged, and what runs it."""
    name = config.getoption("--pagedref-backend")
    describe = getattr(backends.get(name), "device", None)
    return f"pagedref backend: {name}" + (f" ({describe()})" if callable(describe) else "")


@pytest.fixture(scope="session")
def backend_name(request: pytest.FixtureRequest) -> str:
    """Name of the backend under test."""
    return str(request.config.getoption("--pagedref-backend"))


@pytest.fixture(scope="session")
def backend(backend_name: str) -> Any:
    """The backend under test."""
    return backends.get(backend_name)


@pytest.fixture(scope="session")
def storage_dtypes(backend_name: str) -> tuple[str, ...]:
    """Storage types of the backend under test."""
    return DTYPES.get(backend_name, DTYPES["numpy"])["storage"]
