"""Broken kernels are caught: each change below is a mistake that people make, and a test or the emulator sees it."""

from __future__ import annotations

import numpy as np
import pytest

from pagedref_cuda.emulator import EmulatorError
from pagedref_cuda.fast import choose, split, steps
from tests.kernels.fast_runs import COMPILED, agrees, changed, decode, make_case, tiles, twin

pytestmark = COMPILED

DECODE = {
    "missing wait": ("cp_async_wait(pending)", "cp_async_wait(stages)"),
    "off-by-one tail": ("seen = start <= key and key < stop", "seen = start <= key and key <= stop"),
    "stale page": ("if ahead == first_tile or ahead & 1 == 0:", "if ahead == first_tile:"),
    "wrong fragment lane": ("8 * t + 4 + (g >> 1)", "8 * t + 5 + (g >> 1)"),
    "no mask by selection": ("value if seen else _MINUS_INFINITY", "value"),
    "stage read too early": ("pending = stages - 1", "pending = stages"),
}
PREFILL = {
    "missing barrier": ("next copy goes where it lies.\n            cuda.syncthreads()\n", "next copy goes there.\n"),
    "missing wait": ("cp_async_wait(pending)", "cp_async_wait(stages)"),
    "wrong swizzle": ("(piece ^ (piece_row & 7))", "(piece ^ (piece_row & 3))"),
    "diagonal hidden": (
        "value if low[r] <= key and key < high[r] else",
        "value if low[r] <= key and key < high[r] - 1 else",
    ),
    "group of another head": ("row % group_size", "row // q_len"),
}


@pytest.mark.parametrize("fault", DECODE)
def test_broken_decode_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(1, [1] * 2, [150, 77], head_dim=64, group_size=8, dtype="bfloat16", page_size=4, sinks=None)
    agrees(case, decode(case))
    with changed("decode_mma", *DECODE[fault], monkeypatch), pytest.raises((AssertionError, EmulatorError)):
        agrees(case, decode(case))


@pytest.mark.parametrize("fault", PREFILL)
def test_broken_prefill_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(2, [70, 20], [150, 77], head_dim=64, group_size=2, dtype="bfloat16", page_size=4)
    agrees(case, tiles(case))
    with (
        changed("prefill_mma", *PREFILL[fault], monkeypatch),
        twin.emulator_options(races=True),
        pytest.raises((AssertionError, EmulatorError)),
    ):
        agrees(case, tiles(case))


def test_a_sink_in_every_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """P25."""
    sinks = np.full(4, 2.0, np.float32)
    case = make_case(3, [1], [150], head_dim=64, group_size=2, dtype="bfloat16", page_size=4, sinks=sinks)
    agrees(case, decode(case, split=32))
    old, new = "part_sum[row, 1] * exp2", "(part_sum[row, 1] + exp2(sinks[head] - part_sum[row, 0])) * exp2"
    with changed("split", old, new, monkeypatch) as copy:
        monkeypatch.setattr(steps, "finish_rows", copy.finish_rows)
        with pytest.raises(AssertionError):
            agrees(case, decode(case, split=32))
    assert split is not copy
    assert choose.choose_decode.cache_info().currsize == 0
