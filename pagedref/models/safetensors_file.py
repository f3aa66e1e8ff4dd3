"""Checkpoints in the safetensors format: tensors by name, weights as float32, and a writer.

The bytes are read and checked by :class:`pagedref.tensor_file.TensorFile`: every number of the header is held against
the size of the file before anything is allocated, and no third-party package is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.models.fields import refuse, show
from pagedref.numerics import widen_bfloat16
from pagedref.tensor_file import FORMATS, TensorFile, TensorInfo, format_of

__all__ = ["FORMATS", "SafetensorsFile", "TensorInfo", "write_safetensors"]

_BITS = ("BF16", "F8_E4M3", "F8_E5M2")
_WEIGHTS = ("F64", "F32", "F16", "BF16")


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
        self._file = TensorFile(path, function="SafetensorsFile")
        self.tensors: dict[str, TensorInfo] = self._file.tensors
        self.metadata: dict[str, str] = self._file.metadata

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
            C-contiguous, owned; bfloat16 and fp8 as their bits (see ``tensor_file.FORMATS``).

        Raises
        ------
        ContractError
            If the file has become shorter since it was opened.
        """
        return self._file.read_one(name)

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
            wrong, need = f"tensor {show(name)} is not a weight", " or ".join(_WEIGHTS)
            refuse("SafetensorsFile", self.path.name, wrong, dtype, need)
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
        Types of ``tensor_file.FORMATS``, or the bfloat16 and float8 types of ``ml_dtypes``.
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
        format_ = (formats or {}).get(name, format_of(array.dtype))
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
