"""One test for each fault of public systems, on the backend under test; and each mutant fails the case of its fault."""

from __future__ import annotations

from typing import Any

import pytest

from pagedref.conformance import FAULT_CASES, MUTANTS
from pagedref.conformance.fault_cases import FaultCase, NotHere
from pagedref.contract import DTYPES, NOT_BUILT

# Issue C asks for these; a number is never left without a case again.
NUMBERS = (
    *("P01", "P02", "P05", "P06", "P07", "P08", "P09", "P10", "P12", "P13", "P15", "P17"),
    *("P20", "P23", "P24", "P25", "P27", "P28", "P30", "P32", "P33", "P35", "P36"),
)


def why_not(case: FaultCase, backend: Any, name: str) -> str:
    """Say what the backend lacks for a case; empty if nothing."""
    stored = DTYPES.get(name, DTYPES["numpy"])["storage"]
    lacking = [f"storage of {dtype}" for dtype in case.stores if dtype not in stored]
    if case.layer == "quantise" and "kv_format" in NOT_BUILT.get(name, frozenset()):
        lacking.append("scales")
    if name != "numpy":
        lacking += [operation for operation in case.beyond if not hasattr(backend, operation)]
    return f"the backend has no {', no '.join(lacking)}" if lacking else ""


@pytest.mark.parametrize("number", NUMBERS)
def test_case(backend: Any, backend_name: str, number: str) -> None:
    """The right answer of the report, and of the whole kind."""
    case = FAULT_CASES[number]
    if reason := why_not(case, backend, backend_name):
        pytest.skip(reason)
    try:
        case.run(backend)
    except NotHere as reason_here:
        pytest.skip(str(reason_here))


OWNERS = {name: case.number for case in FAULT_CASES.values() for name in case.mutants}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_fails_its_case(name: str) -> None:
    """It fails the case of its own fault, those where the same fault must show, and no other."""
    mutant, noticed = MUTANTS[name], []
    for case in FAULT_CASES.values():
        if mutant.broad and case.number != OWNERS.get(name):
            continue
        try:
            case.run(mutant.backend)
        except AssertionError:
            noticed.append(case.number)
        except NotHere as reason:
            if case.number == OWNERS.get(name):
                pytest.skip(str(reason))
    own = {OWNERS[name]} if name in OWNERS else set()
    assert set(noticed) == own | set(() if mutant.broad else mutant.also)


def test_every_number_has_a_case_and_a_mutant() -> None:
    assert set(FAULT_CASES) == set(NUMBERS)
    for number, case in FAULT_CASES.items():
        assert case.number == number and case.what.endswith((".", ").")), number
        assert case.mutants and set(case.mutants) <= set(MUTANTS), number
        assert set(MUTANTS[case.mutants[0]].also) <= set(NUMBERS), number
    assert len(OWNERS) == sum(len(case.mutants) for case in FAULT_CASES.values()), "a mutant belongs to one number"


def test_a_case_that_the_backend_cannot_answer_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DTYPES", {"narrow": {"storage": ("float32",)}, "numpy": DTYPES["numpy"]})
    assert "float8_e4m3fn" in why_not(FAULT_CASES["P33"], object(), "narrow")
    assert "mla_decode" in why_not(FAULT_CASES["P28"], object(), "narrow")
    assert not why_not(FAULT_CASES["P28"], object(), "numpy")
