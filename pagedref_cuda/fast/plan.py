"""The list of work made on the device, where the lengths of sequences lie there: nobody waits for them.

The same cuts as :func:`pagedref_cuda.fast.split.units_of`, in the order of the rows; a list on the host is sorted so
that long units start first. Neither order changes a bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, int32, int64

from pagedref_cuda import _runtime
from pagedref_cuda._device import interval
from pagedref_cuda._runtime import Kernel
from pagedref_cuda.fast.split import Units

__all__ = ["plan_units"]

_FAR = 1 << 62


@cache
def _plan() -> Kernel:
    def plan_units(
        kv_lens: Any,
        flag: Any,
        window_left: Any,
        window_right: Any,
        attention_chunk: Any,
        split: Any,
        units: Any,
        rows: Any,
    ) -> None:
        """Cut the visible keys of each sequence into units.

        Launch: a thread owns a row, and a unit that may remain over. Reads: all lengths. Writes: its row and the units
        of it; -1 into a unit that there is no work for, and everywhere if the metadata is wrong. Barriers: none. Rung:
        5.
        """
        item = cuda.grid(1)
        if item >= units.shape[0]:
            return
        wrong = flag[0] != 0
        num_units, num_parts = int64(0), int64(0)
        for row in range(rows.shape[0]):
            position = kv_lens[row] - 1
            start, stop = interval(position, kv_lens[row], 1, window_left, window_right, attention_chunk)
            stop = max(start, stop)
            first = start // split
            count = max((stop + split - 1) // split - first, 1)
            if row == item and not wrong:
                for i in range(count):
                    unit = num_units + i
                    units[unit, 0] = int32(row)
                    units[unit, 1] = int32(max(start, (first + i) * split))
                    units[unit, 2] = int32(max(min(stop, (first + i + 1) * split), units[unit, 1]))
                    units[unit, 3] = int32(num_parts + i if count > 1 else -1)
                    units[unit, 4] = int32(row)
                    units[unit, 5] = int32(position)
                rows[row, 0] = int32(start)
                rows[row, 1] = int32(stop)
                rows[row, 2] = int32(num_parts)
                rows[row, 3] = int32(count if count > 1 else 0)
                rows[row, 4] = int32(row)
                rows[row, 5] = int32(position)
            num_units += count
            num_parts += count if count > 1 else 0
        if item >= num_units or wrong:
            units[item, 0] = -1
        if wrong and item < rows.shape[0]:
            rows[item, 3] = -1

    counts = ("int64[:]", "int32[:]", "int64", "int64", "int64", "int64", "int32[:, ::1]", "int32[:, ::1]")
    return Kernel(plan_units, (counts,))


def plan_units(kv_lens: Any, flag: Any, options: Any, most_keys: int, split: int) -> Units:
    """Return the work of a decode step as arrays that a kernel fills.

    Parameters
    ----------
    kv_lens : array (num_seqs,) of int64
        On the device.
    flag : array (1,) of int32
        Nonzero: the metadata is wrong, there is no work.
    options : AttentionOptions
        Windows and chunks.
    most_keys : int
        All sequences together have no more.
    split : int
        Keys of a unit.

    Returns
    -------
    Units
        Arrays on the device; `num_parts` is a number that is not exceeded.
    """
    num_seqs = kv_lens.shape[0]
    most = num_seqs + most_keys // split
    units, rows = _runtime.empty((most, 6), np.int32), _runtime.empty((num_seqs, 6), np.int32)
    sides = (-1 if side is None else min(side, _FAR) for side in (options.window_left, options.window_right))
    _plan().launch(most, kv_lens, flag, *sides, min(options.attention_chunk or 0, _FAR), split, units, rows)
    return Units(units, rows, most)
