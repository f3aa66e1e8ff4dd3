"""The keywords of attention, checked once and brought into one form.

Every visibility rule without a mask gives each query one interval of keys: :meth:`AttentionOptions.intervals` is the
one place where causal, window and chunk are written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate

__all__ = ["AttentionOptions", "attention_options"]

IndexArray = npt.NDArray[np.int64]
_FAR = 1 << 62  # beyond every position; sums with positions stay in 64 bits


@dataclass(frozen=True)
class AttentionOptions:
    """The meaning of the keywords of one call, in one form.

    Attributes
    ----------
    sm_scale : float
        Factor on q.k (S1).
    causal : bool
        Key position <= query position (S4).
    window_left, window_right : int or None
        Keys visible on either side beside the own position; None = unlimited (S5).
    attention_chunk : int or None
        Keys of the same chunk only (S5).
    softcap : float or None
        ``softcap * tanh(score / softcap)`` (S2).
    alibi_slopes, sinks : array (num_qo_heads,) or None
        Bias per distance (S6); one more logit per head (S11).
    """

    sm_scale: float
    causal: bool
    window_left: int | None = None
    window_right: int | None = None
    attention_chunk: int | None = None
    softcap: float | None = None
    alibi_slopes: npt.NDArray[Any] | None = None
    sinks: npt.NDArray[Any] | None = None

    @property
    def reaches_back(self) -> bool:
        """Whether every query sees all keys up to where its view ends: no window, no chunk."""
        return self.window_left is None and self.window_right is None and self.attention_chunk is None

    def intervals(self, positions: IndexArray, kv_len: int) -> tuple[IndexArray, IndexArray]:
        """Return the keys that each query may see before any mask: ``start <= key < stop``.

        Parameters
        ----------
        positions : array (rows,) of int64
            Absolute positions of the queries; negative ones see nothing under causal (S3).
        kv_len : int
            Number of keys.

        Returns
        -------
        start, stop : arrays (rows,) of int64
            In ``0 .. kv_len``; empty where ``start >= stop``.

        Examples
        --------
        >>> options = AttentionOptions(sm_scale=1.0, causal=True, window_left=1)
        >>> [bound.tolist() for bound in options.intervals(np.arange(-1, 3), 3)]
        [[0, 0, 0, 1], [0, 1, 2, 3]]
        """
        start = np.zeros(positions.shape, np.int64)
        stop = np.full(positions.shape, kv_len, np.int64)
        if self.causal:
            stop = np.minimum(stop, positions + 1)
        if self.window_left is not None:
            start = np.maximum(start, positions - self.window_left)
        if self.window_right is not None:
            stop = np.minimum(stop, positions + self.window_right + 1)
        if self.attention_chunk is not None:
            first = positions // self.attention_chunk * self.attention_chunk  # floor, also for negative positions
            start = np.maximum(start, first)
            stop = np.minimum(stop, first + self.attention_chunk)
        return start, np.maximum(stop, 0)


def _number(
    function: str, name: str, value: object, dtype: npt.DTypeLike, rule: str, *, positive: bool = False
) -> float:
    """Read a real number that is finite, and positive where it must be, in the accumulator type."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        validate.fail(function, name, "is not a number", repr(value), rule)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    with np.errstate(over="ignore", under="ignore"):
        narrow = float(np.asarray(number).astype(dtype))
    far = positive and number > 0 and math.isinf(narrow)  # a cap beyond the type caps nothing (L13)
    if not math.isfinite(number) or not (math.isfinite(narrow) or far) or (positive and narrow <= 0):
        validate.fail(function, name, "is out of range", value, f"{rule} in {np.dtype(dtype)}")
    return number


def _count(function: str, name: str, value: object, least: int, rule: str) -> int:
    """Read an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        validate.fail(function, name, "is not an integer", repr(value), rule)
    if value < least:
        validate.fail(function, name, "is too small", value, rule)
    return min(int(value), _FAR)


def _window(function: str, window: object) -> tuple[int | None, int | None]:
    """Read a window: a count that includes the own position, or a pair of counts beside it (S5)."""
    if window is None:
        return None, None
    if isinstance(window, tuple | list):
        if len(window) != 2:
            validate.fail(function, "window", "is not a pair", window, "(left, right) or one count (S5)")
        left, right = (
            None if side is None else _count(function, "window", side, 0, "sides >= 0 or None (S5)") for side in window
        )
        return left, right
    count = _count(function, "window", window, 1, "W >= 1, None is off (S5)")
    return count - 1, count - 1


def _per_head(
    function: str, name: str, values: npt.NDArray[Any] | None, dtype: npt.DTypeLike, *, negative_infinity: bool
) -> npt.NDArray[Any] | None:
    """Read one number per query head."""
    if values is None:
        return None
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype)
    bad = ~np.isfinite(narrow) & ~(np.isneginf(values) & negative_infinity)
    if bad.any():
        at = int(np.argmax(bad))
        rule = "finite or -inf = no sink (S11)" if negative_infinity else "finite (S6)"
        validate.fail(function, name, f"is out of range at head {at}", values[at], rule)
    return narrow


def attention_options(
    function: str,
    head_dim: int,
    dtype: npt.DTypeLike,
    *,
    causal: bool,
    sm_scale: object = None,
    window: object = None,
    attention_chunk: object = None,
    softcap: object = None,
    alibi_slopes: npt.NDArray[Any] | None = None,
    sinks: npt.NDArray[Any] | None = None,
) -> AttentionOptions:
    """Check the keywords of attention (S1-S6, S11).

    Parameters
    ----------
    function : str
        Name for error texts.
    head_dim : int
        Of queries and keys; gives the default of `sm_scale`.
    dtype : dtype
        Accumulator type.
    causal : bool
        Whether the causal rule holds.
    sm_scale, window, attention_chunk, softcap, alibi_slopes, sinks
        As in ``paged_prefill``.

    Returns
    -------
    AttentionOptions
        The same in one form.

    Raises
    ------
    ContractError
        Names the keyword and the rule.
    """
    left, right = _window(function, window)
    return AttentionOptions(
        sm_scale=(
            1.0 / math.sqrt(head_dim)
            if sm_scale is None
            else _number(function, "sm_scale", sm_scale, dtype, "finite (S1)")
        ),
        causal=causal,
        window_left=left,
        window_right=right,
        attention_chunk=(
            None
            if attention_chunk is None
            else _count(function, "attention_chunk", attention_chunk, 1, "C >= 1, None is off (S5)")
        ),
        softcap=(
            None
            if softcap is None
            else _number(function, "softcap", softcap, dtype, "> 0, None is off (S2)", positive=True)
        ),
        alibi_slopes=_per_head(function, "alibi_slopes", alibi_slopes, dtype, negative_infinity=False),
        sinks=_per_head(function, "sinks", sinks, dtype, negative_infinity=True),
    )


