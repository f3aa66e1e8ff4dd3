"""Which checks kill which mutant: the table that proves that the suite can fail."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagedref.conformance.checks import CHECKS
from pagedref.conformance.diagnosis import diagnose
from pagedref.conformance.fault_cases import FAULT_CASES, NotHere
from pagedref.conformance.move_slips import MOVE_SLIPS, MoveSlip
from pagedref.conformance.mutants import MUTANTS
from pagedref.conformance.slips import SLIPS, Slip

__all__ = ["Kill", "kill", "mutants", "row", "table"]


@dataclass(frozen=True)
class Kill:
    """A mutant and what became of it.

    Attributes
    ----------
    name, fault : str
        The mutant.
    cases : tuple of str
        Probes, and cases of faults, that fail.
    checks : tuple of str
        Checks that fail, where neither does.
    diagnosis : tuple of str
        Slips that the diagnosis names.
    """

    name: str
    fault: str
    cases: tuple[str, ...]
    checks: tuple[str, ...]
    diagnosis: tuple[str, ...]

    @property
    def dead(self) -> bool:
        """Whether anything noticed it."""
        return bool(self.cases or self.checks)


def mutants() -> Iterator[tuple[str, str, Any]]:
    """Yield name, fault and backend of every mutant: by hand, slips of attention, slips of movement.

    Yields
    ------
    tuple of str, str, backend

    Examples
    --------
    >>> len(list(mutants())) > 150
    True
    """
    for name, mutant in MUTANTS.items():
        yield name, mutant.fault, mutant.backend
    slips: list[Slip | MoveSlip] = [*SLIPS, *MOVE_SLIPS]
    for slip in slips:
        yield f"slip {slip.name}", slip.text, slip.backend


def kill(name: str, fault: str, backend: Any) -> Kill:
    """Let the suite at a mutant: probes first, then the case of its fault, then checks until one notices.

    Parameters
    ----------
    name, fault : str
        The mutant.
    backend : object
        Its operations.

    Returns
    -------
    Kill
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = diagnose(backend)
        cases = [reply.probe.name for reply in found.replies.values() if not reply.right]
        for number, case in FAULT_CASES.items():
            if name in case.mutants and _fails(lambda case=case: case.run(backend)):
                cases.insert(0, number)
        checks = []
        if not cases:
            checks = [check for check in CHECKS if _fails(lambda check=check: CHECKS[check](backend, "float32"))][:1]
    names = tuple(slip for named in found.named for slip in named.names)
    return Kill(name, fault, tuple(cases), tuple(checks), names)


def _fails(call: Any) -> bool:
    """Tell whether a check fails."""
    try:
        call()
    except NotHere:
        return False
    except Exception:
        return True
    return False


def row(one: Kill) -> str:
    """Return a mutant as a row of the documentation.

    Parameters
    ----------
    one : Kill
        The mutant, dead.

    Returns
    -------
    str
        A row of a list-table in reStructuredText.
    """
    shown = [*one.cases[:2], *one.checks]
    more = len(one.cases) + len(one.checks) - len(shown)
    by = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    cells = [f"``{one.name}``", one.fault, by, ", ".join(f"``{slip}``" for slip in one.diagnosis) or "by its case"]
    return "\n".join([f"   * - {cells[0]}", *(f"     - {cell}" for cell in cells[1:])])


def table() -> str:
    """Return the table of mutants, killing cases and diagnoses for the documentation.

    Returns
    -------
    str
        Rows of a list-table in reStructuredText.
    """
    return "\n".join(row(kill(*mutant)) for mutant in mutants()) + "\n"
