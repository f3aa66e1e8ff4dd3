"""How keys and values are stored: kind of number, and what the scales stand for (S15-S17).

A format is data: the arithmetic of rounding and reading lives in :mod:`pagedref.attention.quantize`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError

__all__ = ["GRANULARITIES", "KINDS", "NAMES", "KVFormat", "Kind"]


@dataclass(frozen=True)
class Kind:
    """One kind of stored number.

    Attributes
    ----------
    name : str
        ``float32``, ``e4m3fn``, ``int4`` ...
    dtype : dtype
        Type of the arrays that hold it; two int4 lie in one uint8, the low nibble first.
    largest : float
        Where writing saturates (S16); infinite where it does not.
    integer : bool
        Needs a scale and has no NaN.
    bits : int
        Bits of one number.
    """

    name: str
    dtype: np.dtype[Any]
    largest: float
    integer: bool
    bits: int


_INFINITY = float("inf")
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("float64", np.dtype(np.float64), _INFINITY, False, 64),
            Kind("float32", np.dtype(np.float32), _INFINITY, False, 32),
            Kind("float16", np.dtype(np.float16), _INFINITY, False, 16),
            Kind("bfloat16", np.dtype(ml_dtypes.bfloat16), _INFINITY, False, 16),
            Kind("e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), 448.0, False, 8),
            Kind("e5m2", np.dtype(ml_dtypes.float8_e5m2), 57344.0, False, 8),
            Kind("int8", np.dtype(np.int8), 127.0, True, 8),
            Kind("int4", np.dtype(np.uint8), 7.0, True, 4),
        )
    }
)
"""The kinds by name."""

GRANULARITIES = ("tensor", "head", "frame_head", "slot_head", "group")
"""What one scale covers, by the number of dimensions of the array of scales:

0. ``tensor``: everything; 1. ``head``: (num_kv_heads,); 2. ``frame_head``: (num_frames, num_kv_heads). These are given
before the first write. 3. ``slot_head``: (num_frames, page_size, num_kv_heads); 4. ``group``: one more axis of groups
of channels. These are computed at the write and stored (S17).
"""

_BY_DTYPE = {kind.dtype: kind for kind in KINDS.values()}

NAMES: Mapping[str, tuple[str, str | None]] = MappingProxyType(
    {
        "float32": ("float32", None),
        "float16": ("float16", None),
        "bfloat16": ("bfloat16", None),
        "e4m3fn": ("e4m3fn", None),
        "e4m3fn-scaled": ("e4m3fn", "slot_head"),
        "e5m2": ("e5m2", None),
        "e5m2-scaled": ("e5m2", "slot_head"),
        "int8": ("int8", "slot_head"),
        "int4": ("int4", "group"),
    }
)
"""Names of formats for people, with kind and granularity; none of them needs scales beforehand."""

_GROUP = 32  # channels of int4 that share a scale and a zero point


@dataclass(frozen=True)
class KVFormat:
    """The format of a cache (S17).

    Parameters
    ----------
    kind : str
        A key of :data:`KINDS`.
    granularity : str, optional
        One of :data:`GRANULARITIES`; None without scales. Integer kinds need one.
    group_size : int, optional
        Channels that share a scale, for granularity ``group``; divides the head sizes.
    zero_point : bool
        Whether values are stored as ``0 .. 15`` (int4) or ``-127 .. 127`` (int8) around a zero point.

    Raises
    ------
    ContractError
        If the parts do not fit together.

    Examples
    --------
    >>> KVFormat("int4", "group", group_size=32, zero_point=True).bytes_per_token(1, 64)
    48
    >>> KVFormat.of(np.dtype(np.float32))
    KVFormat(kind='float32', granularity=None, group_size=None, zero_point=False)
    """

    kind: str = "float32"
    granularity: str | None = None
    group_size: int | None = None
    zero_point: bool = False

    def __post_init__(self) -> None:
        def refuse(argument: str, got: object, need: str) -> None:
            raise ContractError(f"KVFormat: {argument} is wrong, got {got!r}, need {need}")

        if not isinstance(self.kind, str) or self.kind not in KINDS:
            refuse("kind", self.kind, f"one of {', '.join(KINDS)} (S15)")
        if self.granularity is not None and self.granularity not in GRANULARITIES:
            refuse("granularity", self.granularity, f"None or one of {', '.join(GRANULARITIES)} (S17)")
        if self.integer and self.granularity is None:
            refuse("granularity", None, f"a granularity for {self.kind}: integers mean nothing without a scale (S16)")
        if (self.granularity == "group") != (self.group_size is not None):
            refuse("group_size", self.group_size, "a number exactly for granularity 'group' (S17)")
        whole = isinstance(self.group_size, int | np.integer) and not isinstance(self.group_size, bool)
        if self.group_size is not None and (not whole or self.group_size < 1):
            refuse("group_size", self.group_size, "an integer >= 1 (S17)")
        if not isinstance(self.zero_point, bool):
            refuse("zero_point", self.zero_point, "True or False (S17)")
        if self.computed and not np.isfinite(KINDS[self.kind].largest):
            refuse("granularity", self.granularity, "a kind that saturates for scales computed at the write (S17)")
        if self.zero_point and (not self.integer or not self.computed):
            refuse("zero_point", True, "an integer kind whose scales are computed at the write (S17)")

    @staticmethod
    def named(name: str, *dims: int) -> KVFormat:
        """Return a format by its short name: what a model or the command is asked for.

        Parameters
        ----------
        name : str
            A key of :data:`NAMES`. ``int8`` and the scaled floats have one scale for each kv head of a token; ``int4``
            has a scale and a zero point for each group of 32 channels. All are computed at the write.
        *dims : int
            Head sizes, >= 1; a group is 32 channels, or fewer where 32 does not divide them.

        Returns
        -------
        KVFormat

        Raises
        ------
        ContractError
            There is no such name; the text lists those that exist.

        Examples
        --------
        >>> KVFormat.named("int8")
        KVFormat(kind='int8', granularity='slot_head', group_size=None, zero_point=False)
        >>> KVFormat.named("int4", 64).group_size, KVFormat.named("int4", 80).group_size
        (32, 16)
        """
        if name not in NAMES:
            raise ContractError(f"KVFormat.named: name is unknown, got {name!r}, need one of {', '.join(NAMES)}")
        kind, granularity = NAMES[name]
        grouped = granularity == "group"
        return KVFormat(kind, granularity, math.gcd(_GROUP, *dims) if grouped else None, zero_point=grouped)

    @staticmethod
    def of(dtype: npt.DTypeLike) -> KVFormat:
        """Return the format that a type of array says by itself.

        Parameters
        ----------
        dtype : dtype
            Type of a cache. ``uint8`` (int4) says nothing by itself, nor does int8 about its scales.

        Returns
        -------
        KVFormat
            Without scales; for int8 with one scale.

        Raises
        ------
        ContractError
            If the type is none of a cache.
        """
        try:
            kind = _BY_DTYPE.get(np.dtype(dtype))
        except TypeError:
            kind = None
        if kind is None:
            known = ", ".join(str(each.dtype) for each in KINDS.values())
            got = getattr(dtype, "__name__", dtype)
            raise ContractError(f"KVFormat.of: dtype is no storage type, got {got}, need one of {known}")
        return KVFormat(kind.name, "tensor" if kind.integer else None)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the arrays."""
        return KINDS[self.kind].dtype

    @property
    def integer(self) -> bool:
        """Whether the kind is an integer."""
        return KINDS[self.kind].integer

    @property
    def computed(self) -> bool:
        """Whether the scales are computed at the write."""
        return self.granularity in ("slot_head", "group")

    def stored_dim(self, dim: int) -> int:
        """Return the last axis of an array that holds `dim` numbers: half of it for int4.

        Parameters
        ----------
        dim : int
            Head size.

        Returns
        -------
        int
            Entries.

        Raises
        ------
        ContractError
            If an int4 head size is odd, or the groups do not divide it.
        """
        if self.kind == "int4" and dim % 2:
            raise ContractError(f"KVFormat: head size is odd, got {dim}, need an even one: two int4 share a byte (S16)")
        if self.group_size is not None and dim % self.group_size:
            raise ContractError(f"KVFormat: group_size does not divide, got {dim} / {self.group_size}, need a divisor")
        return dim // 2 if self.kind == "int4" else dim

    def scale_shape(self, num_frames: int, page_size: int, num_kv_heads: int, dim: int) -> tuple[int, ...] | None:
        """Return the shape of the array of scales beside an array of keys or values.

        Parameters
        ----------
        num_frames, page_size, num_kv_heads, dim : int
            Geometry; `dim` is the head size.

        Returns
        -------
        tuple of int or None
            None without scales.
        """
        whole = (num_frames, page_size, num_kv_heads)
        return {
            None: None,
            "tensor": (),
            "head": (num_kv_heads,),
            "frame_head": (num_frames, num_kv_heads),
            "slot_head": whole,
            "group": (*whole, dim // (self.group_size or 1)),
        }[self.granularity]

    def bytes_per_token(self, num_kv_heads: int, dim: int) -> int:
        """Return the bytes of one token in one array, stored scales and zero points included.

        Parameters
        ----------
        num_kv_heads, dim : int
            Heads and head size.

        Returns
        -------
        int
            Scales that cover a page or more are not counted.
        """
        numbers = num_kv_heads * self.stored_dim(dim) * self.dtype.itemsize
        if not self.computed:
            return numbers
        scales = num_kv_heads * (dim // self.group_size if self.group_size else 1)
        return numbers + scales * 4 * (2 if self.zero_point else 1)
