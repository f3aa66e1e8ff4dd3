"""Every mutant is caught: by the check that is named for its fault, or by a case of ``test_cases.py``."""

from __future__ import annotations

import pytest

from pagedref.conformance import CHECKS, FAULT_CASES, MUTANTS

EXPECTED = {
    "last_page_one_longer": "decode_at_page_borders",
    "lse_in_base_two": "decode_at_page_borders",
    "scale_missing": "prefill_is_bottom_right",
    "kv_head_by_modulo": "grouped_heads",
    "mask_top_left": "prefill_is_bottom_right",
    "slot_minus_one": "append_writes_its_slots_alone",
    "merge_without_shift": "merge_of_large_lse",
    "stale_frame_after_copy": "fork_keeps_its_sibling",
    "slots_in_32_bits": "slots_are_64_bits_wide",
    "zero_times_nan": "poison_changes_no_bit",
}


def test_table_is_complete() -> None:
    """A mutant without a check belongs to a fault case, and is caught there."""
    assert set(EXPECTED) <= set(MUTANTS)
    assert set(MUTANTS) - set(EXPECTED) <= {name for case in FAULT_CASES.values() for name in case.mutants}


@pytest.mark.parametrize("name", EXPECTED)
def test_mutant_is_caught(name: str) -> None:
    with pytest.raises(AssertionError):
        CHECKS[EXPECTED[name]](MUTANTS[name].backend, "float32")
