"""Test vectors for any language: a JSON manifest with its schema, arrays in safetensors, answers of the float64 oracle.

A folder of vectors holds ``manifest.json``, ``schema.json`` and one safetensors file for each vector. Vectors are
grouped by the fault that they catch; inputs are in paged form with poison wherever no live token is; the tolerance is
written beside each expected value: *exact* bits, an error *bound* for each element, or *either* of several. Logs of
operations say how a cache manager behaves, without a number of a frame.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref._files import LOCAL, write_atomic
from pagedref.conformance._manager_logs import check_log, make_logs
from pagedref.conformance._vector_cases import all_vectors
from pagedref.conformance._vector_forms import SCHEMA, Vector
from pagedref.conformance.agreement import assert_exact, bound_fraction
from pagedref.contract import OPERATIONS
from pagedref.errors import ContractError, NotOffered, PagedRefError
from pagedref.kv_format import KINDS, KVFormat
from pagedref.tensor_file import TensorFile, write_tensors

__all__ = ["VectorResult", "check_logs", "check_vectors", "write_vectors"]

Array = npt.NDArray[Any]

_RESULTS = {"gather_kv": ("keys", "values"), "append_kv": (), "copy_frames": ()}
_KINDS = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


class VectorResult(NamedTuple):
    """How a backend did on one vector.

    Attributes
    ----------
    fault, name : str
        Of the vector.
    status : str
        ``passed``, ``failed`` or ``not offered``.
    detail : str
        What is wrong; empty where nothing is.
    fraction : float
        Largest error as a part of its bound, 0 where bits are compared.
    """

    fault: str
    name: str
    status: str
    detail: str = ""
    fraction: float = 0.0


def write_vectors(folder: str | os.PathLike[str]) -> int:
    """Write all vectors and logs into a folder; the same bits each time.

    Parameters
    ----------
    folder : str or Path
        Made if it is not there; files of the same names are replaced.

    Returns
    -------
    int
        Vectors written.

    Raises
    ------
    OSError
        The disk refused.

    Mutates
    -------
    The file system only.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[dict[str, Any]]] = {}
    vectors = all_vectors()
    for vector in vectors:
        groups.setdefault(vector.fault, []).append(_write(place, vector))
    manifest = {
        "format": "pagedref.vectors",
        "version": 1,
        "specification": 1,
        "arithmetic": "float32",
        "groups": [{"fault": fault, "vectors": entries} for fault, entries in groups.items()],
        "logs": make_logs(),
    }
    for name, content in (("schema.json", SCHEMA), ("manifest.json", manifest)):
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        write_atomic(LOCAL, place / name, [text.encode()], sync=False)
    return len(vectors)


def _write(place: Path, vector: Vector) -> dict[str, Any]:
    """Write the arrays of a vector and return its entry."""
    tensors: dict[str, Array] = {}

    def keep(name: str, value: Any) -> Any:
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
            return value.item()
        if not isinstance(value, np.ndarray):
            return list(value) if isinstance(value, tuple) else value
        tensors[name] = value
        return {"tensor": name}

    arguments = {name: keep(name, value) for name, value in vector.arguments.items()}
    expected: dict[str, Any] = {}
    for side, answer in vector.expected.items():
        names = [f"expected.{side}" + (f".{at}" if at else "") for at in range(len(answer.values))]
        entry: dict[str, Any] = {"agreement": answer.agreement}
        entry["values"] = [keep(name, value) for name, value in zip(names, answer.values, strict=True)]
        if answer.bound is not None:
            entry["bound"] = keep(f"expected.{side}.bound", answer.bound)
        expected[side] = entry
    path = place / f"{vector.name}.safetensors"
    write_tensors(path, tensors, {"vector": vector.name})
    return {
        "name": vector.name,
        "comment": vector.comment,
        "flags": sorted(vector.flags),
        "operation": vector.operation,
        "outcome": vector.outcome,
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "arguments": arguments,
        "expected": expected,
    }


def check_vectors(folder: str | os.PathLike[str], backend: Any) -> Iterator[VectorResult]:
    """Run a backend on every vector of a folder.

    Parameters
    ----------
    folder : str or Path
        As `write_vectors` left it; every file is checked against its digest first.
    backend : module or object
        Any subset of the operations.

    Yields
    ------
    VectorResult
        One for each vector.

    Raises
    ------
    ContractError
        No such folder, or a file of it is damaged.
    """
    place = Path(folder)
    manifest = _manifest(place)
    for group in manifest["groups"]:
        for entry in group["vectors"]:
            path = place / Path(entry["file"]).name
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
                raise ContractError(f"check_vectors: file is missing or damaged, got {path.name}, need its SHA-256")
            yield _run(group["fault"], entry, _tensors(path), backend)


def check_logs(folder: str | os.PathLike[str], factory: Callable[[int, int], Any]) -> Iterator[VectorResult]:
    """Run a cache manager on every log of a folder.

    Parameters
    ----------
    folder : str or Path
        As `write_vectors` left it.
    factory : callable
        Makes a `pagedref.conformance.manager_model.CacheManager` of ``(num_frames, page_size)``.

    Yields
    ------
    VectorResult
        One for each log.

    Raises
    ------
    ContractError
        No such folder.
    """
    for log in _manifest(Path(folder))["logs"]:
        wrong = check_log(log, factory)
        yield VectorResult(f"{log['fault']}: {log['comment']}", log["name"], "failed" if wrong else "passed", wrong)


def _manifest(place: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((place / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        text = f"check_vectors: folder has no manifest, got {place.name!r} ({type(error).__name__}), need manifest.json"
        raise ContractError(text) from error
    found = (manifest.get("format"), manifest.get("version")) if isinstance(manifest, dict) else None
    if found != ("pagedref.vectors", 1):
        raise ContractError(f"check_vectors: manifest is none of ours, got {found}, need ('pagedref.vectors', 1)")
    return dict(manifest)


def _tensors(path: Path) -> dict[str, Array]:
    """Return the arrays of a file in their own types."""
    file = TensorFile(path, function="check_vectors")
    arrays = file.read()
    types = {kind.dtype.name: kind.dtype for kind in KINDS.values()}
    narrow = {name: types[_KINDS[info.dtype]] for name, info in file.tensors.items() if info.dtype in _KINDS}
    return {name: array.view(narrow.get(name, array.dtype)) for name, array in arrays.items()}


def _run(fault: str, entry: dict[str, Any], tensors: dict[str, Array], backend: Any) -> VectorResult:
    """Run one vector and judge it."""
    operation, name = entry["operation"], entry["name"]
    function = getattr(backend, operation, None)
    if not callable(function):
        return VectorResult(fault, name, "not offered", f"no {operation}")
    arguments = {
        key: tensors[value["tensor"]].copy() if isinstance(value, dict) and "tensor" in value else _plain(key, value)
        for key, value in entry["arguments"].items()
    }
    needed = [array.name for array in OPERATIONS[operation].arrays if not array.optional]
    positional = [key for key in needed if key in arguments]
    before = {key: arguments[key].copy() for key in positional}
    try:
        result = function(
            *(arguments[key] for key in positional),
            **{key: value for key, value in arguments.items() if key not in positional},
        )
    except NotOffered as error:
        return VectorResult(fault, name, "not offered", str(error))
    except Exception as error:
        if "unexpected keyword argument" in str(error):
            return VectorResult(fault, name, "not offered", str(error))
        if entry["outcome"] == "values" or not isinstance(error, PagedRefError | ValueError | IndexError):
            return VectorResult(fault, name, "failed", f"raised {type(error).__name__}: {error}")
        result, refused = None, True
    else:
        refused = False
    if refused or entry["outcome"] == "refused":
        if not refused:
            return VectorResult(fault, name, "failed", "was accepted")
        changed = [key for key in positional if before[key].tobytes() != arguments[key].tobytes()]
        return VectorResult(fault, name, "failed" if changed else "passed", f"wrote {changed}" if changed else "")
    names = _RESULTS.get(operation, ("out", "lse"))
    found = {**arguments, **dict(zip(names, result if names else (), strict=True))}
    largest = 0.0
    for side, answer in entry["expected"].items():
        if found[side] is None:
            continue  # a peer without lse
        try:
            largest = max(largest, _judge(side, np.asarray(found[side]), answer, tensors))
        except AssertionError as error:
            return VectorResult(fault, name, "failed", str(error), largest)
    return VectorResult(fault, name, "passed", "", largest)


def _plain(name: str, value: Any) -> Any:
    """Return an argument that is no array as the operations take it."""
    if name == "kv_format" and isinstance(value, dict):
        return KVFormat(**value)
    return tuple(value) if isinstance(value, list) else value


def _judge(side: str, found: Array, answer: dict[str, Any], tensors: dict[str, Array]) -> float:
    """Compare one result; return the part of the bound, or raise AssertionError."""
    values = [tensors[value["tensor"]] for value in answer["values"]]
    if answer["agreement"] == "exact":
        assert_exact(found, values[0], side)
    elif answer["agreement"] == "bound":
        fraction = bound_fraction(found, values[0], tensors[answer["bound"]["tensor"]])
        if fraction > 1:
            raise AssertionError(f"{side}: error is {fraction:.3g} times its bound")
        return fraction
    else:
        unsigned = f"u{values[0].itemsize}"
        fits = np.zeros(values[0].shape, bool)
        for value in values:
            fits |= np.ascontiguousarray(found).view(unsigned) == value.view(unsigned)
        if not fits.all():
            raise AssertionError(f"{side}: {int((~fits).sum())} elements are none of {len(values)} allowed values")
    return 0.0
