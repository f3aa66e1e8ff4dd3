"""Deliberately wrong backends, one for each fault; the checks and the fault cases must catch every one.

Each mutant is the NumPy backend with something replaced by a version that has the fault of a public report.
"""

from __future__ import annotations

from pagedref.conformance.mutants import _addresses, _masks, _states
from pagedref.conformance.mutants._base import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: dict[str, Mutant] = {**_masks.MUTANTS, **_states.MUTANTS, **_addresses.MUTANTS}
"""All mutants by name."""
