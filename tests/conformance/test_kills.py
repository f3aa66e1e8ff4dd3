"""Every mutant dies, and the documentation says by what; at least 25 kinds of mistake are named from the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedref.conformance.kills import Kill, kill, mutants, row
from pagedref.conformance.move_slips import MOVE_SLIPS
from pagedref.conformance.slips import SLIPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutants.rst"
BACKENDS = {name: (fault, backend) for name, fault, backend in mutants()}
DONE: dict[str, Kill] = {}


@pytest.fixture(autouse=True)
def once(backend_name: str) -> None:
    if backend_name != "numpy":
        pytest.skip("no question to the backend under test: NumPy's run has asked it")


def dead(name: str) -> Kill:
    if name not in DONE:
        DONE[name] = kill(name, *BACKENDS[name])
    return DONE[name]


@pytest.mark.parametrize("name", BACKENDS)
def test_mutant_dies_and_is_in_the_documentation(name: str) -> None:
    """To write the page again: print the rows of ``pagedref.conformance.kills.table()`` below its head."""
    found = dead(name)
    assert found.dead, f"{found.fault}: nothing notices it"
    assert row(found) in PAGE.read_text(encoding="utf-8"), f"docs/mutants.rst does not say\n{row(found)}"


@pytest.mark.parametrize("slip", [slip.name for slip in (*SLIPS, *MOVE_SLIPS)])
def test_the_diagnosis_names_the_slip(slip: str) -> None:
    assert dead(f"slip {slip}").diagnosis[:1] == (slip,)


def test_many_kinds_are_named() -> None:
    named = {slip for name in BACKENDS for slip in dead(name).diagnosis}
    assert len(named) >= 100
    assert PAGE.read_text(encoding="utf-8").count("   * - ") == len(BACKENDS) + 1, "a row too many"
