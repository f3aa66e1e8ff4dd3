"""Turning keys as they are read: a cache of unrotated keys (``rotary=``).

Angles need more than float32, and kernels have no float64: cosine and sine come in a table, computed as
:meth:`pagedref.attention.Rotary.apply` computes them, one row for each position. A turned key has the bits of NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pagedref.attention.rotary import Rotary
from pagedref_cuda import _runtime
from pagedref_cuda._device import multiply_rounded
from pagedref_cuda._runtime import device_function
from pagedref_cuda._storage import Stored, stored_number

__all__ = ["ROTATION", "Rotation", "rotated_number", "rotation"]

Array = npt.NDArray[Any]


class Rotation(NamedTuple):
    """A rotation of keys by their positions.

    Attributes
    ----------
    table : array (2, positions, rotary_dim / 2) of float32
        Cosine and sine, magnitude included; without pairs, nothing is turned.
    interleaved : int
        Whether neighbours make a pair, not channels half of the width apart.
    """

    table: Array
    interleaved: int


ROTATION = (Rotation, ("float32[:, :, :]", "int64"))
"""Type of :class:`Rotation` in the signature of a kernel."""


@device_function
def rotated_number(
    keys: Stored, rotation: Rotation, key: int, frame: int, offset: int, kv_head: int, d: int
) -> Any:
    """Return channel `d` of the key at position `key`, turned: the twin of ``Rotary.apply``."""
    pairs = rotation.table.shape[2]
    if d >= 2 * pairs:
        return stored_number(keys, frame, offset, kv_head, d)
    if rotation.interleaved:
        pair = d // 2
        second_half = d % 2 == 1
        first_at = 2 * pair
        second_at = first_at + 1
    else:
        pair = d % pairs
        second_half = d >= pairs
        first_at = pair
        second_at = pair + pairs
    first = stored_number(keys, frame, offset, kv_head, first_at)
    second = stored_number(keys, frame, offset, kv_head, second_at)
    cos = rotation.table[0, key, pair]
    sin = rotation.table[1, key, pair]
    if second_half:  # products are rounded before they are added, as in NumPy
        return multiply_rounded(first, sin) + multiply_rounded(second, cos)
    return multiply_rounded(first, cos) - multiply_rounded(second, sin)


_tables: WeakKeyDictionary[Rotary, tuple[int, Rotation]] = WeakKeyDictionary()


def rotation(rotary: Rotary | None, length: int) -> Rotation:
    """Return a rotation as kernels see it; the longest table of each is kept on the device for the next call.

    Parameters
    ----------
    rotary : Rotary or None
        None turns nothing.
    length : int
        Positions that are read.

    Returns
    -------
    Rotation
    """
    if rotary is None:
        return Rotation(_runtime.readable(np.zeros((2, 0, 0), np.float32)), 0)
    known, found = _tables.get(rotary, (-1, None))
    if found is None or known < length:
        known = 1 << max(length - 1, 0).bit_length()
        angles = np.arange(known, dtype=np.float64)[:, None] * rotary.inv_freq
        table = np.stack([rotary.magnitude * part for part in (np.cos(angles), np.sin(angles))]).astype(np.float32)
        found = Rotation(_runtime.readable(table), int(rotary.layout == "interleaved"))
        _tables[rotary] = known, found
    return found
