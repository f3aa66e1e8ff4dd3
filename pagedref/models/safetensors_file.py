"""The safetensors format: a small strict reader and a writer.

A file is three runs of bytes, and nothing else::

    0        8                 8 + n                                end of file
    +--------+-----------------+------------------------------------+
    | n: u64 | header: n bytes | tensor bytes, no hole, no overlap  |
    +--------+-----------------+------------------------------------+

The header is one JSON object: name -> ``{"dtype", "shape", "data_offsets": [start, stop]}``, offsets counted from the
end of the header, and ``__metadata__`` -> texts. Everything is little-endian. Every number of the header is checked
against the size of the file before anything is allocated; no third-party package is needed.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeGuard

import numpy as np
import numpy.typing as npt

from pagedref.models.fields import refuse, show
from pagedref.numerics import widen_bfloat16

__all__ = ["FORMATS", "SafetensorsFile", "TensorInfo", "write_safetensors"]

HEADER_LIMIT = 100 << 20
"""Bytes of the longest header that is read."""

FORMATS: dict[str, str] = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
    "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4",
    "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
"""Number formats of the file and the NumPy type that holds their bits (bfloat16 and fp8: unsigned integers)."""

_BITS = ("BF16", "F8_E4M3", "F8_E5M2")
_WEIGHTS = ("F64", "F32", "F16", "BF16")
_FORMAT_OF = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16",
    "uint32": "U32", "int32": "I32", "float32": "F32",
    "uint64": "U64", "int64": "I64", "float64": "F64",
}  # fmt: skip


class TensorInfo(NamedTuple):
    """Where a tensor lies: format, shape, first byte and end in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """Open a safetensors file: read and check its header, no tensor yet.

    Parameters
    ----------
    path : str or Path
        The file. It is opened again for each tensor, so no handle stays open.

    Attributes
    ----------
    tensors : dict of str to TensorInfo
        In the order of their bytes.
    metadata : dict of str to str

    Raises
    ------
    ContractError
        One line, if the file is truncated, has bytes too many, or its header is not sound in any respect.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                header, base = self._read_header(file, size)
        except OSError as error:
            self._refuse("cannot be read", error.strerror or str(error), "a readable file")
        self.metadata: dict[str, str] = self._checked_metadata(header.pop("__metadata__", {}))
        entries = {name: self._checked_entry(name, entry, base, size) for name, entry in header.items()}
        self.tensors: dict[str, TensorInfo] = dict(sorted(entries.items(), key=lambda item: item[1][2:]))
        end = base
        for name, info in self.tensors.items():
            if info.start != end:
                self._refuse(f"tensor {show(name)} overlaps or leaves a hole", info.start - base, str(end - base))
            end = info.stop
        if end != size:
            self._refuse("has bytes that belong to no tensor, or too few", f"{size} bytes", f"{end} bytes")

    def _refuse(self, wrong: str, got: object, need: str) -> NoReturn:
        refuse("SafetensorsFile", self.path.name, wrong, got, need)

    def _read_header(self, file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
        """Return the header and the position of the first tensor byte."""
        if size < 8:
            self._refuse("is truncated", f"{size} bytes", "at least 8 bytes")
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, HEADER_LIMIT):
            self._refuse("has a header longer than the file", length, f"at most {min(size - 8, HEADER_LIMIT)} bytes")
        try:
            header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_without_duplicates)
        except (ValueError, RecursionError) as error:
            self._refuse("has a header that is not JSON", str(error), "a JSON object")
        if not isinstance(header, dict):
            self._refuse("has a header that is not a JSON object", type(header).__name__, "a JSON object")
        return header, 8 + length

    def _checked_metadata(self, metadata: object) -> dict[str, str]:
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            self._refuse("has metadata that is not text", metadata, "texts by name")
        return metadata

    def _checked_entry(self, name: str, entry: object, base: int, size: int) -> TensorInfo:
        """Return the place of one tensor, after all checks that need only this tensor."""
        about = f"tensor {show(name)}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self._refuse(f"{about} has a malformed entry", entry, "dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in FORMATS:
            self._refuse(f"{about} has an unknown format", dtype, " or ".join(FORMATS))
        if not _is_counts(shape) or len(shape) > 32 or math.prod(max(size, 1) for size in shape) > 2**56:
            self._refuse(f"{about} has an impossible shape", shape, "at most 32 integers >= 0")
        if not _is_counts(offsets) or len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] <= size - base:
            self._refuse(f"{about} has offsets outside the file", offsets, f"0 <= start <= stop <= {size - base}")
        need = math.prod(shape) * np.dtype(FORMATS[dtype]).itemsize
        if offsets[1] - offsets[0] != need:
            self._refuse(f"{about} has the wrong number of bytes", offsets[1] - offsets[0], f"{need} for {shape}")
        return TensorInfo(dtype, tuple(shape), base + offsets[0], base + offsets[1])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.tensors[name].shape

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor as it is stored.

        Parameters
        ----------
        name : str
            A key of `tensors`.

        Returns
        -------
        array
            C-contiguous, owned; bfloat16 and fp8 as their bits (see :data:`FORMATS`).

        Raises
        ------
        ContractError
            If the file has become shorter since it was opened.
        """
        info = self.tensors[name]
        array = np.empty(info.shape, dtype=FORMATS[info.dtype])
        try:
            with self.path.open("rb") as file:
                file.seek(info.start)
                got = file.readinto(array.reshape(-1).view(np.uint8).data) if array.size else 0
        except OSError as error:
            self._refuse("cannot be read", error.strerror or str(error), "a readable file")
        if got != info.stop - info.start:
            self._refuse(f"tensor {show(name)} is truncated", f"{got} bytes", f"{info.stop - info.start} bytes")
        return array if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("="))

    def read_float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a weight as float32; float16 and bfloat16 exactly, float64 rounded (P70).

        Parameters
        ----------
        name : str
            A key of `tensors`.

        Returns
        -------
        array of float32
            C-contiguous, owned.

        Raises
        ------
        ContractError
            If the tensor does not hold floating-point numbers of 16, 32 or 64 bits.
        """
        dtype = self.tensors[name].dtype
        if dtype not in _WEIGHTS:
            self._refuse(f"tensor {show(name)} is not a weight", dtype, " or ".join(_WEIGHTS))
        array = self.read(name)
        if dtype == "BF16":
            return widen_bfloat16(array)
        with np.errstate(over="ignore"):  # a float64 beyond the range of float32 becomes an infinity
            return np.ascontiguousarray(array, dtype=np.float32)


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, npt.NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    *,
    formats: Mapping[str, str] | None = None,
) -> None:
    """Write arrays to a safetensors file, completely or not at all.

    Parameters
    ----------
    path : str or Path
        The file; written under a temporary name in the same directory and renamed.
    tensors : mapping of str to array
        Types of :data:`FORMATS`, or the bfloat16 and float8 types of ``ml_dtypes``.
    metadata : mapping of str to str, optional
        Texts kept in the header.
    formats : mapping of str to str, optional
        Format of single tensors whose array holds bits, such as ``{"w": "BF16"}`` for uint16.

    Raises
    ------
    ContractError
        If a type has no format or a name is reserved.

    Mutates
    -------
    The file system only.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_safetensors(folder + "/w.safetensors", {"w": np.array([[1.5, -2.0]], dtype=np.float32)})
    ...     file = SafetensorsFile(folder + "/w.safetensors")
    >>> file.tensors["w"].dtype, file.shape("w")
    ('F32', (1, 2))
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts: list[npt.NDArray[Any]] = []
    offset = 0
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        format_ = (formats or {}).get(name, _FORMAT_OF.get(array.dtype.name, ""))
        if name == "__metadata__":
            refuse("write_safetensors", "tensors", "use a reserved name", name, "another name")
        if format_ not in FORMATS or np.dtype(FORMATS[format_]).itemsize != array.dtype.itemsize:
            refuse("write_safetensors", f"tensor {show(name)}", "has no format", str(array.dtype), " or ".join(FORMATS))
        little = array if format_ in _BITS else array.astype(FORMATS[format_], copy=False)
        parts.append(np.ascontiguousarray(little).reshape(-1).view(np.uint8))
        header[name] = {"dtype": format_, "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for part in parts:
                file.write(part.data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, refusing a key that stands twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _is_counts(value: object) -> TypeGuard[list[int]]:
    """Return whether a value is a list of non-negative integers."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)
