"""The safetensors format: a small strict reader and a writer, with an optional seal over the whole file.

A file is three runs of bytes, and nothing else::

    0        8                 8 + n                                end of file
    +--------+-----------------+------------------------------------+
    | n: u64 | header: n bytes | tensor bytes, no hole, no overlap  |
    +--------+-----------------+------------------------------------+

The header is one JSON object: name -> ``{"dtype", "shape", "data_offsets": [start, stop]}``, offsets counted from the
end of the header, and ``__metadata__`` -> texts. Everything is little-endian. Every number of the header is checked
against the size of the file before anything is allocated. A seal is the text ``sha256`` among the metadata: the SHA-256
of the whole file with 64 zeros in the seal's own place.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeGuard

import numpy as np
import numpy.typing as npt

from pagedref._files import LOCAL, Files, RawFile, write_atomic
from pagedref.errors import ContractError

__all__ = ["FORMATS", "TensorFile", "TensorInfo", "format_of", "write_tensors"]

HEADER_LIMIT = 100 << 20
"""Bytes of the longest header that is read."""

FORMATS: dict[str, str] = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
    "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4",
    "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
"""Number formats of the file and the NumPy type that holds their bits (bfloat16 and fp8: unsigned integers)."""

_FORMAT_OF = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16",
    "uint32": "U32", "int32": "I32", "float32": "F32",
    "uint64": "U64", "int64": "I64", "float64": "F64",
}  # fmt: skip
_BITS = ("BF16", "F8_E4M3", "F8_E5M2")
_SEAL = "sha256"
_OPEN_SEAL = "0" * 64


def format_of(dtype: np.dtype[Any]) -> str:
    """Return the number format of a type of array.

    Parameters
    ----------
    dtype : dtype
        Of NumPy or ``ml_dtypes``.

    Returns
    -------
    str
        A key of :data:`FORMATS`; empty where there is none.

    Examples
    --------
    >>> format_of(np.dtype(np.float16)), format_of(np.dtype(complex))
    ('F16', '')
    """
    return _FORMAT_OF.get(dtype.name, "")


class TensorInfo(NamedTuple):
    """Where a tensor lies: format, shape, first byte and end in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class TensorFile:
    """Open a safetensors file: read and check its header, no tensor yet.

    Parameters
    ----------
    path : str or Path
        The file. It is opened again to read tensors, so no handle stays open.
    function : str
        What the error text names.
    files : Files
        The file system.

    Attributes
    ----------
    tensors : dict of str to TensorInfo
        In the order of their bytes.
    metadata : dict of str to str
        Texts of the header.

    Raises
    ------
    ContractError
        One line, if the file is truncated, has bytes too many, or its header is not sound in any respect.
    """

    def __init__(self, path: str | os.PathLike[str], *, function: str = "TensorFile", files: Files = LOCAL) -> None:
        self.path, self._function, self._files = Path(path), function, files
        file = self._open()
        try:
            size = file.size()
            self._front = self._checked_front(file, size)
        except OSError as error:
            self._refuse("cannot be read", error.strerror or str(error), "a readable file")
        finally:
            file.close()
        header = self._parsed(self._front[8:])
        base = len(self._front)
        self.metadata: dict[str, str] = self._checked_metadata(header.pop("__metadata__", {}))
        entries = {name: self._checked_entry(name, entry, base, size) for name, entry in header.items()}
        self.tensors: dict[str, TensorInfo] = dict(sorted(entries.items(), key=lambda item: item[1][2:]))
        end = base
        for name, info in self.tensors.items():
            if info.start != end:
                self._refuse(f"tensor {_show(name)} overlaps or leaves a hole", info.start - base, str(end - base))
            end = info.stop
        if end != size:
            self._refuse("has bytes that belong to no tensor, or too few", f"{size} bytes", f"{end} bytes")

    def read(self, *, sealed: bool = False) -> dict[str, npt.NDArray[Any]]:
        """Read all tensors as they are stored.

        Parameters
        ----------
        sealed : bool
            Whether the file must have a seal, and every byte of it be as it was when it was sealed.

        Returns
        -------
        dict of str to array
            C-contiguous, owned; bfloat16 and fp8 as their bits (see :data:`FORMATS`).

        Raises
        ------
        ContractError
            The seal is missing or broken, or the file has become shorter since it was opened.
        """
        digest = hashlib.sha256(self._without_seal() if sealed else b"")
        arrays = self._arrays(self.tensors, digest.update)
        if sealed and digest.hexdigest() != self.metadata[_SEAL]:
            self._refuse("is damaged", f"SHA-256 {digest.hexdigest()}", self.metadata[_SEAL][:64])
        return arrays

    def read_one(self, name: str) -> npt.NDArray[Any]:
        """Read one tensor as it is stored.

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
        return self._arrays([name], lambda raw: None)[name]

    def _arrays(self, names: Iterable[str], seen: Callable[[memoryview], None]) -> dict[str, npt.NDArray[Any]]:
        """Read some tensors in order, and show the bytes of each."""
        arrays = {}
        file = self._open()
        try:
            for name in names:
                info = self.tensors[name]
                array = np.empty(info.shape, dtype=FORMATS[info.dtype])
                raw = array.reshape(-1).view(np.uint8)
                got = file.read_into(info.start, raw.data) if array.size else 0
                if got != info.stop - info.start:
                    self._refuse(f"tensor {_show(name)} is truncated", got, f"{info.stop - info.start} bytes")
                seen(raw.data)
                arrays[name] = array if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("="))
        except OSError as error:
            self._refuse("cannot be read", error.strerror or str(error), "a readable file")
        finally:
            file.close()
        return arrays

    def _refuse(self, wrong: str, got: object, need: str) -> NoReturn:
        text = got if isinstance(got, str) else _show(got)
        raise ContractError(f"{self._function}: {self.path.name} {wrong}, got {text}, need {need}")

    def _open(self) -> RawFile:
        try:
            return self._files.open(self.path, "read")
        except OSError as error:
            self._refuse("cannot be read", error.strerror or str(error), "a readable file")

    def _without_seal(self) -> bytes:
        """Return the front of the file as it was before it was sealed."""
        text = json.dumps(self.metadata.get(_SEAL, "")).encode()
        if len(text) != 66 or self._front.count(text) != 1:
            self._refuse("has no seal", self.metadata.get(_SEAL, "none")[:64], "one SHA-256 among its metadata")
        return self._front.replace(text, f'"{_OPEN_SEAL}"'.encode())

    def _checked_front(self, file: RawFile, size: int) -> bytes:
        """Return the bytes before the first tensor."""
        if size < 8:
            self._refuse("is truncated", f"{size} bytes", "at least 8 bytes")
        length = int.from_bytes(file.read_at(0, 8), "little")
        if length > min(size - 8, HEADER_LIMIT):
            self._refuse("has a header longer than the file", length, f"at most {min(size - 8, HEADER_LIMIT)} bytes")
        return file.read_at(0, 8 + length)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
        except (ValueError, RecursionError) as error:
            self._refuse("has a header that is not JSON", str(error)[:80], "a JSON object")
        if not isinstance(header, dict):
            self._refuse("has a header that is not a JSON object", type(header).__name__, "a JSON object")
        return header

    def _checked_metadata(self, metadata: object) -> dict[str, str]:
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            self._refuse("has metadata that is not text", metadata, "texts by name")
        return metadata

    def _checked_entry(self, name: str, entry: object, base: int, size: int) -> TensorInfo:
        """Return the place of one tensor, after all checks that need only this tensor."""
        about = f"tensor {_show(name)}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self._refuse(f"{about} has a malformed entry", entry, "dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in FORMATS:
            self._refuse(f"{about} has an unknown format", _show(dtype), " or ".join(FORMATS))
        if not _is_counts(shape) or len(shape) > 32 or math.prod(max(length, 1) for length in shape) > 2**56:
            self._refuse(f"{about} has an impossible shape", shape, "at most 32 integers >= 0")
        if not _is_counts(offsets) or len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] <= size - base:
            self._refuse(f"{about} has offsets outside the file", offsets, f"0 <= start <= stop <= {size - base}")
        need = math.prod(shape) * np.dtype(FORMATS[dtype]).itemsize
        if offsets[1] - offsets[0] != need:
            self._refuse(f"{about} has the wrong number of bytes", offsets[1] - offsets[0], f"{need} for {shape}")
        return TensorInfo(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, npt.NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    *,
    seal: bool = False,
    sync: bool = False,
    files: Files = LOCAL,
) -> None:
    """Write arrays to a safetensors file, completely or not at all.

    Parameters
    ----------
    path : str or Path
        The file; written under a temporary name in the same directory and renamed.
    tensors : mapping of str to array
        Types of :data:`FORMATS`, or the bfloat16 and float8 types of ``ml_dtypes``; any strides.
    metadata : mapping of str to str, optional
        Texts kept in the header.
    seal : bool
        Whether a checksum of everything is kept among them.
    sync : bool
        Whether the file is to survive a power cut once this has returned.
    files : Files
        The file system.

    Raises
    ------
    ContractError
        If a type has no format or a name is reserved.
    OSError
        The disk refused: the old file is as it was.

    Mutates
    -------
    The file system only.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tensors(folder + "/w", {"w": np.array([[1.5, -2.0]], dtype=np.float32)}, seal=True)
    ...     TensorFile(folder + "/w").read(sealed=True)["w"].tolist()
    [[1.5, -2.0]]
    """
    texts = dict(metadata or {}) | ({_SEAL: _OPEN_SEAL} if seal else {})
    header: dict[str, Any] = {"__metadata__": texts} if texts else {}
    parts: list[npt.NDArray[np.uint8]] = []
    offset = 0
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        format_ = format_of(array.dtype)
        if name == "__metadata__" or not format_:
            got = f"{name!r} of {array.dtype}"
            need = ", ".join(FORMATS)
            raise ContractError(f"write_tensors: tensors have no such form, got {got}, need {need}")
        little = array if format_ in _BITS else array.astype(FORMATS[format_], copy=False)
        parts.append(np.ascontiguousarray(little).reshape(-1).view(np.uint8))
        header[name] = {"dtype": format_, "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    front = len(text).to_bytes(8, "little") + text
    if seal:
        digest = hashlib.sha256(front)
        for part in parts:
            digest.update(part.data)
        front = front.replace(f'"{_SEAL}":"{_OPEN_SEAL}"'.encode(), f'"{_SEAL}":"{digest.hexdigest()}"'.encode())
    write_atomic(files, Path(path), [front, *(part.data for part in parts)], sync=sync)


def _show(thing: object) -> str:
    """Return a thing as one line of at most 80 characters."""
    try:
        text = ascii(thing)
    except (RecursionError, ValueError):
        text = type(thing).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, refusing a key that stands twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _is_counts(value: object) -> TypeGuard[list[int]]:
    """Return whether a value is a list of non-negative integers."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)
