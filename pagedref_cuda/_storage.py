"""Caches as kernels see them: numbers, scales and zero points, read as ``(stored - zero) * scale`` (S16, S17)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.storage import Storage
from pagedref_cuda import _runtime
from pagedref_cuda._numbers import BFLOAT16, FLOAT32, NUMBERS, Numbers, kind_of_cache, number, of_words, quiet, words
from pagedref_cuda._runtime import device_function

__all__ = ["STORED", "Stored", "four_axes", "of_pieces", "pieces", "stored", "stored_number", "token_scale"]

Array = npt.NDArray[Any]

_NAN = np.float32(np.nan)
_ONE = np.ones((1, 1, 1, 1), np.float32)
_FOUR = "[:, :, :, :]"


class Stored(NamedTuple):
    """A cache with its scales and zero points.

    Attributes
    ----------
    numbers : Numbers
        (num_frames, page_size, num_kv_heads, dim).
    scale, zero : arrays of float32
        The same axes, the last one counting groups of channels; an axis of size 1 covers all of it. One element where
        there is none.
    scaled, zeroed, plain : int
        Whether there are scales, zero points, or neither.
    channels : int
        Channels that share a scale.
    """

    numbers: Numbers
    scale: Array
    zero: Array
    scaled: int
    zeroed: int
    plain: int
    channels: int


STORED = (Stored, (NUMBERS, f"float32{_FOUR}", f"float32{_FOUR}", *("int64",) * 4))
"""Type of :class:`Stored` in the signature of a kernel."""


@device_function
def token_scale(factors: Array, frame: int, offset: int, head: int, group: int) -> Any:
    """Return the scale or zero point of a group of channels; an axis of size 1 covers all."""
    return factors[
        frame if factors.shape[0] > 1 else 0,
        offset if factors.shape[1] > 1 else 0,
        head if factors.shape[2] > 1 else 0,
        group if factors.shape[3] > 1 else 0,
    ]


@device_function
def stored_number(source: Stored, frame: int, offset: int, head: int, d: int) -> Any:
    """Return ``(stored - zero) * scale`` (S16); a NaN is not computed with, so that its bits are those of NumPy."""
    x = number(source.numbers, frame, offset, head, d)
    if source.plain:
        return x
    if x != x:
        kind = source.numbers.kind
        return quiet(x) if kind in (FLOAT32, BFLOAT16) else _NAN
    if source.zeroed:
        x -= token_scale(source.zero, frame, offset, head, d // source.channels)
    if source.scaled:
        x *= token_scale(source.scale, frame, offset, head, d // source.channels)
    return x


def pieces(array: Any, side: Storage) -> tuple[Any, Any, Any]:
    """Return what a cache is made of, with four axes each.

    Parameters
    ----------
    array : array (num_frames, page_size, num_kv_heads, stored dim)
        Keys or values, of any strides.
    side : Storage
        The stored form, checked.

    Returns
    -------
    words, scale, zero : arrays
        They share memory with the arguments; one element stands for scales or zero points that are absent.
    """
    return words(array), four_axes(side.scale), four_axes(side.zero)


def of_pieces(lent: tuple[Any, Any, Any], side: Storage, dim: int) -> Stored:
    """Return a cache as kernels see it.

    Parameters
    ----------
    lent : tuple of arrays
        From :func:`pieces`, on the device.
    side : Storage
        The stored form.
    dim : int
        Head size.

    Returns
    -------
    Stored
    """
    has = int(side.scale is not None), int(side.zero is not None), int(side.plain)
    return Stored(of_words(lent[0], kind_of_cache(side.form)), lent[1], lent[2], *has, side.form.group_size or dim)


def stored(array: Any, side: Storage, dim: int) -> Stored:
    """Return a cache that is only read as kernels see it.

    Parameters
    ----------
    array, side, dim
        As in :func:`pieces` and :func:`of_pieces`.

    Returns
    -------
    Stored
    """
    words_, scale, zero = (_runtime.readable(piece) for piece in pieces(array, side))
    return of_pieces((words_, scale, zero), side, dim)


def four_axes(part: Any) -> Any:
    """Bring scales to four axes, with 1 for an axis that they do not have.

    Parameters
    ----------
    part : array of float32 or None
        Scales or zero points; None is one element 1.

    Returns
    -------
    array (num_frames, page_size, num_kv_heads, groups) of float32
        It shares memory with `part`.
    """
    if part is None:
        return _ONE
    if part.ndim == 2:
        return part[:, None, :, None]
    if part.ndim < 2:
        return part.reshape(1, 1, -1, 1)
    return part if part.ndim == 4 else part[..., None]
