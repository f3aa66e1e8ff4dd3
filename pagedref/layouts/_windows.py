"""Windows as numbers of other systems: -1 is off, the own position is not counted."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from pagedref import validate
from pagedref.errors import NotOffered

Window: TypeAlias = int | tuple[int | None, int | None] | None


def _sides(function: str, window: object) -> tuple[int | None, int | None]:
    """Read a window of ours as counts beside the own position (S5)."""
    if window is None:
        return None, None
    if isinstance(window, tuple | list) and len(window) == 2:
        left, right = (None if side is None else _count(function, "window", side, 0) for side in window)
        return left, right
    count = _count(function, "window", window, 1)
    return count - 1, count - 1


def _count(function: str, name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        validate.fail(function, name, "is out of range", repr(value), f"an integer >= {least} (S5)")
    return int(value)


def window_left_from_window(window: Window, *, causal: bool = True) -> int:
    """Return FlashInfer's ``window_left``: keys before the own position, -1 = all.

    Parameters
    ----------
    window : int, pair or None
        Ours (S5).
    causal : bool
        Whether the causal rule holds too; then the right side says nothing.

    Returns
    -------
    int
        At least -1.

    Raises
    ------
    NotOffered
        Without the causal rule, a window that ends on the right: FlashInfer has none.
    ContractError
        Not a window.

    Examples
    --------
    >>> window_left_from_window(4), window_left_from_window(None), window_left_from_window((7, 0))
    (3, -1, 7)
    """
    left, right = _sides("window_left_from_window", window)
    if right is not None and not causal:
        raise NotOffered(
            f"window_left_from_window: window has a right side without causal, got {window}, need (left, None)"
        )
    return -1 if left is None else left


def window_from_window_left(window_left: int) -> Window:
    """Return the window that FlashInfer's ``window_left`` means.

    Parameters
    ----------
    window_left : int
        Keys before the own position; -1 = all.

    Returns
    -------
    pair or None
        ``(window_left, None)``: the right side is open, causal or not.

    Raises
    ------
    ContractError
        Less than -1.

    Examples
    --------
    >>> window_from_window_left(3), window_from_window_left(-1)
    ((3, None), None)
    """
    left = _count("window_from_window_left", "window_left", window_left, -1)
    return None if left == -1 else (left, None)


def window_size_from_window(window: Window, *, causal: bool = True) -> tuple[int, int]:
    """Return flash-attention's ``window_size``: keys before and behind the own position, -1 = all.

    Parameters
    ----------
    window : int, pair or None
        Ours (S5).
    causal : bool
        Whether the causal rule holds too; then the right side is 0 or open, which is the same.

    Returns
    -------
    left, right : int
        At least -1.

    Raises
    ------
    ContractError
        Not a window.

    Notes
    -----
    flash-attention takes its causal rule from a flag of its own; with it a right side of 0 is what its wrappers pass.

    Examples
    --------
    >>> window_size_from_window(4), window_size_from_window((4, None), causal=False), window_size_from_window(None)
    ((3, 0), (4, -1), (-1, -1))
    """
    left, right = _sides("window_size_from_window", window)
    if causal and right is not None:
        right = 0
    return -1 if left is None else left, -1 if right is None else right


def window_from_window_size(window_size: tuple[int, int]) -> Window:
    """Return the window that flash-attention's ``window_size`` means.

    Parameters
    ----------
    window_size : pair of int
        Keys before and behind the own position; -1 = all.

    Returns
    -------
    pair or None
        None if both sides are open.

    Raises
    ------
    ContractError
        Not a pair, or less than -1.

    Examples
    --------
    >>> window_from_window_size((3, 0)), window_from_window_size((-1, -1))
    ((3, 0), None)
    """
    if not isinstance(window_size, tuple | list) or len(window_size) != 2:
        validate.fail("window_from_window_size", "window_size", "is not a pair", repr(window_size), "(left, right)")
    left, right = (_count("window_from_window_size", "window_size", side, -1) for side in window_size)
    pair = (None if left == -1 else left, None if right == -1 else right)
    return None if pair == (None, None) else pair
