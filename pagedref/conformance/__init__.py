"""The suite that judges every backend: cases, agreement, checks, and mutants that prove that the checks can fail."""

from __future__ import annotations

from pagedref.conformance.agreement import assert_bound, assert_exact, assert_state, bound_fraction
from pagedref.conformance.cases import PagedCase, make_case, oracle
from pagedref.conformance.checks import CHECKS
from pagedref.conformance.fault_cases import FAULT_CASES
from pagedref.conformance.mutants import MUTANTS

__all__ = [
    "CHECKS",
    "FAULT_CASES",
    "MUTANTS",
    "PagedCase",
    "assert_bound",
    "assert_exact",
    "assert_state",
    "bound_fraction",
    "make_case",
    "oracle",
]
