"""The suite that judges every backend: cases, agreement, checks, laws, diagnosis, mutants.

The names below are loaded when they are first used: a pytest plugin lives here, and must cost nothing where it has
nothing to do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedref.conformance.agreement import assert_bound as assert_bound
    from pagedref.conformance.agreement import assert_exact as assert_exact
    from pagedref.conformance.agreement import assert_state as assert_state
    from pagedref.conformance.agreement import bound_fraction as bound_fraction
    from pagedref.conformance.cases import PagedCase as PagedCase
    from pagedref.conformance.cases import make_case as make_case
    from pagedref.conformance.cases import oracle as oracle
    from pagedref.conformance.checks import CHECKS as CHECKS
    from pagedref.conformance.diagnosis import diagnose as diagnose
    from pagedref.conformance.fault_cases import FAULT_CASES as FAULT_CASES
    from pagedref.conformance.laws import LAWS as LAWS
    from pagedref.conformance.mutants import MUTANTS as MUTANTS
    from pagedref.conformance.runner import run as run

_HOME = {
    "CHECKS": "checks",
    "FAULT_CASES": "fault_cases",
    "LAWS": "laws",
    "MUTANTS": "mutants",
    "PagedCase": "cases",
    "assert_bound": "agreement",
    "assert_exact": "agreement",
    "assert_state": "agreement",
    "bound_fraction": "agreement",
    "diagnose": "diagnosis",
    "make_case": "cases",
    "oracle": "cases",
    "run": "runner",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'pagedref.conformance' has no attribute {name!r}")
    value = getattr(import_module(f"pagedref.conformance.{_HOME[name]}"), name)
    globals()[name] = value
    return value
