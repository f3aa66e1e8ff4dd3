"""The GGUF container: header, metadata and tensors, read with every count checked first.

A file is a header, padding to the alignment, and the tensors, all little-endian::

    "GGUF"  version: u32  num_tensors: u64  num_entries: u64
    num_entries x { key: string, type: u32, value }
    num_tensors x { name: string, num_dims: u32, dims: u64 ..., format: u32, offset: u64 }
    padding | tensor bytes, each tensor at a multiple of the alignment

A string is its length (u64) and its bytes; an array is a type (u32), a length (u64) and the values. Dimensions stand
fastest first, the reverse of C order. Block formats are expanded by ``gguf.quants``; the header is parsed here,
because a count of 2**60 in a damaged file must be an error and not an allocation.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.models.fields import refuse, show
from pagedref.numerics import widen_bfloat16

__all__ = ["GGUFFile", "GGUFTensor"]

_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MAX_DIMS, _MAX_NESTING = 4, 3


class GGUFTensor(NamedTuple):
    """Where a tensor lies: format, shape in C order, first byte and end in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class GGUFFile:
    """Open a GGUF file: read and check its header, no tensor yet.

    Parameters
    ----------
    path : str or Path
        The file. It is opened again for each tensor, so no handle stays open.

    Attributes
    ----------
    metadata : dict of str to value
        Numbers, truth values, texts, or lists of them. A 32-bit float is given as the shortest decimal number that
        rounds to it (1e-05, not 9.999999747378752e-06).
    tensors : dict of str to GGUFTensor

    Raises
    ------
    ContractError
        One line, if the file is truncated or its header is not sound, or if the package ``gguf`` is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._formats = _block_formats()
        try:
            with self.path.open("rb") as file:
                self._size = os.fstat(file.fileno()).st_size
                self._left = self._size
                self._file = file
                self._read_header()
        except OSError as error:
            self._refuse("cannot be read", error.strerror or str(error), "a readable file")
        finally:
            self.__dict__.pop("_file", None)

    _file: BinaryIO

    def _refuse(self, wrong: str, got: object, need: str) -> NoReturn:
        refuse("GGUFFile", self.path.name, wrong, got, need)

    def _take(self, count: int) -> bytes:
        """Return the next `count` bytes; the file is known to have them before they are read."""
        if count > self._left:
            self._refuse("is truncated or damaged", f"{self._left} bytes left", f"{count} bytes")
        self._left -= count
        return self._file.read(count)

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _count(self, what: str, smallest: int) -> int:
        """Return a count of items of at least `smallest` bytes each, if the file can hold them."""
        count = self._u64()
        if count * smallest > self._left:
            self._refuse(f"is truncated or damaged: too many {what}", count, f"at most {self._left // smallest}")
        return count

    def _text(self) -> str:
        return self._take(self._u64()).decode("utf-8", errors="replace")

    def _value(self, kind: int, nesting: int = 0) -> Any:
        """Return a metadata value of a given type."""
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY and nesting < _MAX_NESTING:
            inner = self._u32()
            if inner in _SCALARS:
                dtype = np.dtype(_SCALARS[inner])
                count = self._count("array items", dtype.itemsize)
                return np.frombuffer(self._take(count * dtype.itemsize), dtype=dtype).tolist()
            return [self._value(inner, nesting + 1) for _ in range(self._count("array items", 8))]
        if kind not in _SCALARS:
            self._refuse("has an unknown metadata type", kind, "0 .. 12, arrays not nested deeper")
        scalar = np.frombuffer(self._take(np.dtype(_SCALARS[kind]).itemsize), dtype=_SCALARS[kind])[0]
        return float(str(scalar)) if kind == 6 else scalar.item()

    def _read_header(self) -> None:
        """Read metadata and the places of all tensors."""
        if self._left < 24 or self._take(4) != b"GGUF":
            self._refuse("is not a GGUF file", f"{self._size} bytes", "a file that starts with GGUF")
        version = self._u32()
        if version not in (2, 3):
            self._refuse("has an unsupported version", version, "2 or 3, little-endian")
        num_tensors, num_entries = self._count("tensors", 24), self._count("entries", 13)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._text()
            if key in self.metadata:
                self._refuse("has a key twice", key, "each key once")
            self.metadata[key] = self._value(self._u32())
        places: list[tuple[str, str, tuple[int, ...], int, int]] = []
        for _ in range(num_tensors):
            places.append(self._tensor_entry())
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            self._refuse("has an impossible alignment", alignment, "a power of two up to 1048576")
        base = self._size - self._left
        base += -base % alignment
        self.tensors: dict[str, GGUFTensor] = {}
        end = base
        for name, dtype, shape, offset, num_bytes in sorted(places, key=lambda place: (place[3], place[4])):
            start = base + offset
            if name in self.tensors:
                self._refuse("has a tensor twice", name, "each tensor once")
            if offset % alignment or start < end:
                self._refuse(f"tensor {show(name)} overlaps or is not aligned", offset, f"at least {end - base}")
            end = start + num_bytes
            if end > self._size:
                self._refuse(f"is truncated: tensor {show(name)} lies outside", f"{self._size} bytes", f"{end} bytes")
            self.tensors[name] = GGUFTensor(dtype, shape, start, end)

    def _tensor_entry(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Return name, format, shape in C order, offset and number of bytes of the next tensor."""
        name = self._text()
        about = f"tensor {show(name)}"
        num_dims = self._u32()
        if num_dims > _MAX_DIMS:
            self._refuse(f"{about} has too many dimensions", num_dims, f"at most {_MAX_DIMS}")
        shape = tuple(reversed([self._u64() for _ in range(num_dims)]))
        kind, offset = self._u32(), self._u64()
        if kind not in self._formats:
            self._refuse(f"{about} has an unknown format", kind, "a format of the gguf package")
        dtype, block, block_bytes = self._formats[kind]
        if 0 in shape or (shape[-1] if shape else 1) % block:
            self._refuse(f"{about} has an impossible shape", shape, f"rows of a multiple of {block} numbers")
        return name, dtype, shape, offset, math.prod(shape) // block * block_bytes

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in C order."""
        return self.tensors[name].shape

    def read_float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as float32, block formats expanded.

        Parameters
        ----------
        name : str
            A key of `tensors`.

        Returns
        -------
        array of float32
            C-contiguous, owned; for linear weights ``(out_features, in_features)``.

        Raises
        ------
        ContractError
            If the ``gguf`` package cannot expand the format, or the file has become shorter.
        """
        dtype, shape, start, stop = self.tensors[name]
        try:
            raw = np.fromfile(self.path, dtype=np.uint8, count=stop - start, offset=start)
        except OSError as error:
            self._refuse("cannot be read", error.strerror or str(error), "a readable file")
        if raw.size != stop - start:
            self._refuse(f"tensor {show(name)} is truncated", f"{raw.size} bytes", f"{stop - start} bytes")
        if dtype in _PLAIN:
            plain = raw.view(_PLAIN[dtype]).reshape(shape)
            with np.errstate(over="ignore"):  # a float64 beyond the range of float32 becomes an infinity
                return widen_bfloat16(plain) if dtype == "BF16" else np.ascontiguousarray(plain, dtype=np.float32)
        from gguf import GGMLQuantizationType
        from gguf.quants import QuantError, dequantize

        try:
            with np.errstate(all="ignore"):  # scales of a damaged block may be infinite; the bits are what they are
                rows = dequantize(raw.reshape(*shape[:-1], -1), GGMLQuantizationType[dtype])
        except (NotImplementedError, QuantError, ValueError):
            self._refuse(f"tensor {show(name)} has a format that does not expand", dtype, "a format of gguf.quants")
        return np.ascontiguousarray(rows, dtype=np.float32).reshape(shape)


def _block_formats() -> dict[int, tuple[str, int, int]]:
    """Return name, numbers per block and bytes per block of each format that the ``gguf`` package knows."""
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError:
        raise ContractError(
            'GGUFFile: the package gguf is missing, got no module gguf, need: pip install "pagedref[models]"'
        ) from None
    return {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
