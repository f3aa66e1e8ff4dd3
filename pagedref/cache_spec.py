"""Geometry of a cache and its byte arithmetic.

A :class:`CacheSpec` says how large one token is and how large one page is; it holds no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagedref import addressing
from pagedref.errors import ContractError
from pagedref.kv_format import KINDS, KVFormat

__all__ = ["CacheSpec"]


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
        Kind of stored number, a key of :data:`pagedref.kv_format.KINDS`.
    v_head_dim : int, optional
        Numbers in one value; by default `head_dim`.
    kv_format : KVFormat, optional
        Stored form with its scales (S17); takes the place of `dtype`.

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
    kv_format: KVFormat | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "page_size", "v_head_dim"):
            value = getattr(self, name)
            if name == "v_head_dim" and value is None:
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ContractError(f"CacheSpec: {name} is not a positive integer, got {value!r}, need >= 1")
            object.__setattr__(self, name, int(value))  # 64 bits and more, whatever came in (S19)
        if self.kv_format is not None and not isinstance(self.kv_format, KVFormat):
            raise ContractError(f"CacheSpec: kv_format is no KVFormat, got {self.kv_format!r}, need one or None")
        if self.kv_format is None and (not isinstance(self.dtype, str) or self.dtype not in KINDS):
            raise ContractError(f"CacheSpec: dtype is no kind, got {self.dtype!r}, need one of {', '.join(KINDS)}")
        for dim in (self.head_dim, self.value_dim):
            self.form.stored_dim(dim)

    @property
    def form(self) -> KVFormat:
        """The stored form; plain numbers of kind `dtype` unless `kv_format` is given."""
        return KVFormat(self.dtype) if self.kv_format is None else self.kv_format

    @property
    def value_dim(self) -> int:
        """Numbers in one value."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers: keys and values, with the scales of its own slot."""
        dims = (self.head_dim, self.value_dim)
        return self.num_layers * sum(self.form.bytes_per_token(self.num_kv_heads, dim) for dim in dims)

    @property
    def bytes_per_frame(self) -> int:
        """Bytes of one frame over all layers, with scales that belong to a frame."""
        scales = 2 * 4 * self.num_kv_heads * self.num_layers if self.form.granularity == "frame_head" else 0
        return self.bytes_per_token * self.page_size + scales

    def num_pages(self, num_tokens: int) -> int:
        """Return the pages that hold `num_tokens` tokens of one sequence."""
        return int(addressing.num_pages(num_tokens, self.page_size))

    def bytes_for(self, num_tokens: int) -> int:
        """Return the bytes of all frames that `num_tokens` tokens of one sequence occupy."""
        return self.num_pages(num_tokens) * self.bytes_per_frame
