"""Geometry of a cache and its byte arithmetic.

A :class:`CacheSpec` says how large one token is and how large one page is; it holds no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagedref import addressing
from pagedref.errors import ContractError

__all__ = ["CacheSpec"]

_STORAGE = ("float32", "float64")


@dataclass(frozen=True)
class CacheSpec:
    """Describe the key and value cache of one model.

    Parameters
    ----------
    num_layers : int
        Layers that keep keys and values, >= 1.
    num_kv_heads : int
        Heads of keys and values in each layer, >= 1.
    head_dim : int
        Numbers in one key, >= 1.
    page_size : int
        Positions in one page, >= 1; any number, not only powers of two (S19).
    dtype : str
        Storage type: ``"float32"`` or ``"float64"``.
    v_head_dim : int, optional
        Numbers in one value; by default `head_dim`.

    Raises
    ------
    ContractError
        If a number is below 1 or the storage type is unknown.

    Examples
    --------
    SmolLM2-135M keeps 30 layers of 3 heads of 64:

    >>> spec = CacheSpec(num_layers=30, num_kv_heads=3, head_dim=64, page_size=16)
    >>> spec.bytes_per_token, spec.bytes_per_frame
    (46080, 737280)
    >>> spec.num_pages(100), spec.bytes_for(100) - 100 * spec.bytes_per_token
    (7, 552960)
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: str = "float32"
    v_head_dim: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "page_size", "v_head_dim"):
            value = getattr(self, name)
            if name == "v_head_dim" and value is None:
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ContractError(f"CacheSpec: {name} is not a positive integer, got {value!r}, need >= 1")
        if self.dtype not in _STORAGE:
            raise ContractError(
                f"CacheSpec: dtype is not a storage type, got {self.dtype!r}, need one of {', '.join(_STORAGE)}"
            )

    @property
    def value_dim(self) -> int:
        """Numbers in one value."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def itemsize(self) -> int:
        """Bytes of one stored number."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers, keys and values together."""
        return self.num_layers * self.num_kv_heads * (self.head_dim + self.value_dim) * self.itemsize

    @property
    def bytes_per_frame(self) -> int:
        """Bytes of one frame over all layers."""
        return self.bytes_per_token * self.page_size

    def num_pages(self, num_tokens: int) -> int:
        """Return the pages that hold `num_tokens` tokens of one sequence."""
        return int(addressing.num_pages(num_tokens, self.page_size))

    def bytes_for(self, num_tokens: int) -> int:
        """Return the bytes of all frames that `num_tokens` tokens of one sequence occupy."""
        return self.num_pages(num_tokens) * self.bytes_per_frame
