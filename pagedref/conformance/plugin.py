"""The pytest plugin that the package installs: ``pytest --pagedref-backend my_module:adapter``.

Without other arguments, and outside a project with tests of its own, pytest then runs the suite of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

__all__ = ["pagedref_backend", "pagedref_backend_name"]

_SUITE = Path(__file__).with_name("_suite.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite.

    Parameters
    ----------
    parser : pytest.Parser
        Of pytest.

    Notes
    -----
    Mutates: `parser`.
    """
    group = parser.getgroup("pagedref", "conformance of paged attention")
    group.addoption(
        "--pagedref-backend", metavar="NAME", help="backend under test: numpy, cuda, an entry point or module:attribute"
    )
    group.addoption("--pagedref-profile", metavar="NAME", default="quick", help="quick, full or gpu (quick)")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a backend that is none once, before hundreds of tests do, and choose the suite where nothing is chosen.

    Parameters
    ----------
    config : pytest.Config
        Of pytest.

    Notes
    -----
    Mutates: `config`.
    """
    name = config.getoption("--pagedref-backend")
    if name is None:
        return
    from pagedref import backends
    from pagedref.errors import PagedRefError

    try:
        backends.load(name)
    except PagedRefError as error:
        raise pytest.UsageError(str(error)) from error
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
        config.args[:] = [str(_SUITE)]


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which backend is judged, and what runs it.

    Parameters
    ----------
    config : pytest.Config
        Of pytest.

    Returns
    -------
    str or None
    """
    name = config.getoption("--pagedref-backend")
    if name is None:
        return None
    from pagedref import backends

    describe = getattr(backends.load(name), "device", None)
    return f"pagedref backend: {name}" + (f" ({describe()})" if callable(describe) else "")


@pytest.fixture(scope="session")
def pagedref_backend_name(request: pytest.FixtureRequest) -> str:
    """Name the backend under test; NumPy where none is given.

    Parameters
    ----------
    request : pytest.FixtureRequest
        Of pytest.

    Returns
    -------
    str
    """
    return str(request.config.getoption("--pagedref-backend") or "numpy")


@pytest.fixture(scope="session")
def pagedref_backend(pagedref_backend_name: str) -> Any:
    """Load the backend under test.

    Parameters
    ----------
    pagedref_backend_name : str
        Its name.

    Returns
    -------
    module or object
    """
    from pagedref import backends

    return backends.load(pagedref_backend_name)
