"""Rotary position embedding of keys and queries, at the write or at the read of the cache.

A pair of channels is turned by an angle proportional to its position. Rotations add up, which has two uses for a
cache: keys may be stored unrotated and turned when they are read (``rotary=`` of ``paged_decode``), and keys that are
stored rotated can be moved to other positions by turning them once more (:func:`shift_positions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate

__all__ = ["LAYOUTS", "Rotary", "check_rotary", "shift_positions"]

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

_WIDEST = 2**20

LAYOUTS = ("half", "interleaved")
"""Which channels make a pair: ``half``: (i, i + rotary_dim / 2), as GPT-NeoX and Hugging Face; ``interleaved``:
(2 i, 2 i + 1), as the original paper, GPT-J and the Llama weights in GGUF files."""


@dataclass(frozen=True, eq=False)
class Rotary:
    """The rotation of one model.

    Parameters
    ----------
    inv_freq : array (rotary_dim / 2,) of float64
        Radians per position of each pair, scaling included.
    layout : str
        One of :data:`LAYOUTS`.
    magnitude : float
        Factor on the rotated channels (YaRN's and LongRoPE's attention factor).

    Raises
    ------
    ContractError
        An argument is out of range.

    Notes
    -----
    Only the first ``2 * len(inv_freq)`` channels of a head are turned; the others pass (partial rotary, P67). Angles,
    cosine and sine are computed in float64 and rounded once to the type of the rows, so a position has one table
    whatever else is in the batch (P66).

    References
    ----------
    J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021, section 3.2.

    Examples
    --------
    Position 1 and one pair: sin(1) lands in channel 1 or 2 of four.

    >>> x = np.array([[[1.0, 0.0, 0.0, 0.0]]])
    >>> for layout in LAYOUTS:
    ...     Rotary(np.array([1.0, 0.01]), layout).apply(x, np.array([1])).round(2).ravel().tolist()
    [0.54, 0.0, 0.84, 0.0]
    [0.54, 0.84, 0.0, 0.0]
    """

    inv_freq: Float64
    layout: str = "half"
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        freq = _frequencies(self.inv_freq)
        if not isinstance(self.layout, str) or self.layout not in LAYOUTS:
            validate.fail("Rotary", "layout", "is unknown", repr(self.layout)[:80], " or ".join(LAYOUTS))
        if not _positive(self.magnitude):
            validate.fail("Rotary", "magnitude", "is out of range", repr(self.magnitude)[:80], "> 0 and finite")
        object.__setattr__(self, "inv_freq", freq)
        object.__setattr__(self, "magnitude", _positive(self.magnitude))

    @property
    def rotary_dim(self) -> int:
        """Channels that are turned."""
        return 2 * len(self.inv_freq)

    def apply(self, x: Array, positions: Array) -> Array:
        """Turn rows by their positions.

        Parameters
        ----------
        x : array (tokens, heads, head_dim) of a floating type
            Queries or keys.
        positions : array (tokens,) of int
            Any integers; differences work too, since rotations add up.

        Returns
        -------
        array like `x`
            A new array of the same type.

        Raises
        ------
        ContractError
            Shapes do not fit.
        """
        _check_rows("Rotary.apply", "x", x)
        if not isinstance(positions, np.ndarray) or positions.dtype.kind not in "iu":
            got = getattr(positions, "dtype", type(positions).__name__)
            validate.fail("Rotary.apply", "positions", "are no integers", got, "an integer array (tokens,)")
        if x.ndim != 3 or x.shape[2] < self.rotary_dim or positions.shape != x.shape[:1]:
            rule = f"(tokens, heads, at least {self.rotary_dim}) and one position for each token"
            validate.fail("Rotary.apply", "x", "does not fit", (x.shape, positions.shape), rule)
        dtype = np.float64 if x.dtype == np.float64 else np.float32
        angles = positions.astype(np.float64)[:, None, None] * self.inv_freq  # (tokens, 1, rotary_dim / 2)
        cos, sin = ((self.magnitude * part).astype(dtype) for part in (np.cos(angles), np.sin(angles)))
        result: Array = np.array(x, dtype)
        half = len(self.inv_freq)
        if self.layout == "half":
            first, second = result[..., :half], result[..., half : 2 * half]
        else:
            first, second = result[..., 0 : 2 * half : 2], result[..., 1 : 2 * half : 2]
        turned = first * sin + second * cos
        first[...] = first * cos - second * sin
        second[...] = turned
        return result.astype(x.dtype, copy=False)

    def to_layout(self, x: Array, layout: str) -> Array:
        """Reorder channels so that the same rotation in another layout turns the same pairs.

        Parameters
        ----------
        x : array (..., head_dim)
            Rows in this layout.
        layout : str
            One of :data:`LAYOUTS`.

        Returns
        -------
        array like `x`
            Dot products of rows reordered alike are unchanged.

        Raises
        ------
        ContractError
            There is no such layout, or the rows are narrower than the rotation.
        """
        if not isinstance(layout, str) or layout not in LAYOUTS:
            validate.fail("Rotary.to_layout", "layout", "is unknown", repr(layout)[:80], " or ".join(LAYOUTS))
        if not isinstance(x, np.ndarray) or not x.ndim or x.shape[-1] < self.rotary_dim:
            rule = f"an array (..., at least {self.rotary_dim})"
            validate.fail("Rotary.to_layout", "x", "does not fit", np.shape(x), rule)
        order = np.arange(x.shape[-1])
        if layout != self.layout:
            pairs = np.arange(self.rotary_dim).reshape(2, -1).T.ravel()  # half -> interleaved
            order[: self.rotary_dim] = pairs if layout == "interleaved" else np.argsort(pairs)
        return x[..., order]

    @staticmethod
    def plain(rotary_dim: int, theta: float = 10000.0, *, layout: str = "half") -> Rotary:
        """Return the rotation without scaling: ``theta ** (-2 i / rotary_dim)``.

        Parameters
        ----------
        rotary_dim : int
            Channels that are turned, even; less than head_dim for partial rotary.
        theta : float
            Base of the wavelengths, > 0.
        layout : str
            One of :data:`LAYOUTS`.

        Returns
        -------
        Rotary

        Raises
        ------
        ContractError
            An argument is out of range.

        Examples
        --------
        >>> Rotary.plain(8, 10000.0).inv_freq.round(6).tolist()
        [1.0, 0.1, 0.01, 0.001]
        """
        width = rotary_dim if isinstance(rotary_dim, int | np.integer) and not isinstance(rotary_dim, bool) else 0
        if not 2 <= width <= _WIDEST or width % 2 or not _positive(theta):
            rule = f"an even width in 2..{_WIDEST}, theta > 0 and finite"
            validate.fail("Rotary.plain", "rotary_dim", "is wrong", repr((rotary_dim, theta))[:80], rule)
        return Rotary(_positive(theta) ** (-np.arange(0, width, 2, dtype=np.float64) / rotary_dim), layout)


def _frequencies(given: Any) -> Float64:
    """Return a copy of radians per position, which nobody else can change."""
    try:
        freq = np.array(given)
    except (TypeError, ValueError):
        freq = np.empty((), object)
    if freq.ndim != 1 or freq.dtype.kind not in "iuf" or not np.isfinite(freq).all():
        validate.fail("Rotary", "inv_freq", "is wrong", (freq.dtype, freq.shape), "finite numbers (rotary_dim / 2,)")
    freq = freq.astype(np.float64)
    freq.flags.writeable = False
    return freq


def _positive(value: Any) -> float:
    """Return a positive finite number; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return 0.0
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if 0 < number < np.inf else 0.0


def _check_rows(function: str, argument: str, rows: object) -> None:
    """Refuse what is no array of floating numbers."""
    if not isinstance(rows, np.ndarray) or not (rows.dtype.kind == "f" or rows.dtype.name == "bfloat16"):
        got = getattr(rows, "dtype", type(rows).__name__)
        validate.fail(function, argument, "has the wrong type", got, "an array of a floating type")


def check_rotary(function: str, rotary: object, head_dim: int) -> None:
    """Refuse a rotation that does not fit the keys.

    Parameters
    ----------
    function : str
        Operation.
    rotary : object
        As given.
    head_dim : int
        Channels of a key.

    Raises
    ------
    ContractError
        It is no Rotary, or wider than a key.
    """
    if not isinstance(rotary, Rotary):
        validate.fail(function, "rotary", "is no Rotary", type(rotary).__name__, "a Rotary or None")
    if rotary.rotary_dim > head_dim:
        validate.fail(function, "rotary", "is wider than a key", rotary.rotary_dim, f"at most head_dim = {head_dim}")


def shift_positions(keys: Array, delta: int | Array, rotary: Rotary) -> Array:
    """Move rotated keys to other positions: a cached passage is used again at another place.

    Parameters
    ----------
    keys : array (tokens, num_kv_heads, head_dim)
        Keys rotated for their old positions.
    delta : int or array (tokens,) of int
        New position minus old position; may be negative.
    rotary : Rotary
        The rotation that they carry.

    Returns
    -------
    array like `keys`
        As if rotated for the new positions, within rounding (float32 keys err by about 2 units of the last place).

    Raises
    ------
    ContractError
        The keys or the differences do not fit, or a difference is no integer.

    Notes
    -----
    The magnitude is not applied again. Only the rotation moves: keys and values of deeper layers still know the text
    that stood before them when they were computed, so a shifted passage is an approximation of the model, while the
    shift itself is exact mathematics.

    Examples
    --------
    >>> rotary, key = Rotary.plain(4), np.ones((1, 1, 4))
    >>> moved = shift_positions(rotary.apply(key, np.array([3])), 7, rotary)
    >>> bool(np.allclose(moved, rotary.apply(key, np.array([10])), rtol=0, atol=1e-15))
    True
    """
    name = "shift_positions"
    if not isinstance(rotary, Rotary):
        validate.fail(name, "rotary", "is no Rotary", type(rotary).__name__, "a Rotary")
    _check_rows(name, "keys", keys)
    if keys.ndim != 3 or keys.shape[2] < rotary.rotary_dim:
        rule = f"(tokens, heads, at least {rotary.rotary_dim})"
        validate.fail(name, "keys", "do not fit", keys.shape, rule)
    try:
        given = np.asarray(delta)
    except ValueError:  # a list of unlike parts
        given = np.empty(0, object)
    if given.dtype.kind not in "iu" and not (given.shape == keys.shape[:1] == (0,) and given.dtype != object):
        validate.fail(name, "delta", "is no integer", repr(delta)[:80], "an integer, or an integer for each token")
    if given.shape not in ((), keys.shape[:1]):
        validate.fail(name, "delta", "has the wrong shape", given.shape, f"() or {keys.shape[:1]}")
    deltas = np.broadcast_to(given.astype(np.int64), keys.shape[:1])
    return Rotary(rotary.inv_freq, rotary.layout).apply(keys, deltas)
