"""The suite as pytest runs it from the package: one test for each group of checks."""

from __future__ import annotations

from typing import Any

import pytest

from pagedref.conformance.runner import run
from pagedref.conformance.verdict import Finding, Verdict

__all__ = ["verdict"]  # pytest finds what it runs by name

_GROUPS = ("probes", "checks", "stored forms", "faults", "laws", "index widths", "random cases")


@pytest.fixture(scope="module")
def verdict(request: pytest.FixtureRequest, pagedref_backend: Any, pagedref_backend_name: str) -> Verdict:
    """Judge the backend under test, once.

    Parameters
    ----------
    request, pagedref_backend, pagedref_backend_name
        Of pytest and of the plugin.

    Returns
    -------
    Verdict
    """
    profile = str(request.config.getoption("--pagedref-profile"))
    return run(pagedref_backend, pagedref_backend_name, profile=profile)


@pytest.mark.parametrize("group", _GROUPS)
def test_group(verdict: Verdict, group: str) -> None:
    """Every check of a group holds; the report names those that fail, and what is wrong with the backend."""
    found = [finding for finding in verdict.findings if finding.group == group]
    if not any(finding.status in ("holds", "fails") for finding in found):
        pytest.skip("; ".join(dict.fromkeys(finding.text for finding in found)) or "not offered")
    failing = [finding for finding in found if finding.status == "fails"]
    assert not failing, _report(verdict, failing)


def test_alarm(verdict: Verdict) -> None:
    """Long sums lose no more than those of NumPy."""
    if verdict.ratio is None:
        pytest.skip("the alarm listens where everything else is right")
    assert not verdict.ratio.rings, verdict.ratio


def _report(verdict: Verdict, failing: list[Finding]) -> str:
    """Return what fails and the diagnosis, in lines."""
    lines = [f"{len(failing)} checks fail"]
    lines += [f"diagnosis: {named}" for named in verdict.named] + verdict.hints
    lines += [f"{finding.name}: {finding.text}" for finding in failing[:10]]
    return "\n".join([*lines, *verdict.script.splitlines()])
