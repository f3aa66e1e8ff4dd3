"""What a test vector is: an operation, its arguments, and what must come out, with the tolerance written beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.conformance.cases import PagedCase, oracle
from pagedref.contract import OPERATIONS

__all__ = ["SCHEMA", "Expected", "Vector", "attention_vector", "expected_state"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Expected:
    """What one result, or one written argument, must be.

    Attributes
    ----------
    agreement : str
        ``exact``: equal bits. ``bound``: at most `bound` away, element by element; infinities and elements of bound 0
        exactly. ``either``: each element has the bits of one of several arrays.
    values : tuple of arrays
        One; several for ``either``.
    bound : array of float64, optional
        Of the shape of the value.
    """

    agreement: str
    values: tuple[Array, ...]
    bound: Array | None = None


@dataclass(frozen=True)
class Vector:
    """One call and its answer.

    Attributes
    ----------
    fault : str
        The fault that it catches, or the rule where no fault is known: the group.
    name : str
        One word, unique.
    comment : str
        What goes wrong, in a line.
    operation : str
        Of the contract.
    arguments : dict
        Arrays, numbers, truth values, None, or pairs of them.
    expected : dict of str to Expected
        By result (``out``, ``lse``, ``keys``, ``values``) or by written argument (``k_cache`` ...).
    flags : tuple of str
        What the case is made of: ``poison``, ``empty``, ``window`` ...
    outcome : str
        ``values``; ``refused``: the call must be refused and nothing written; ``either``: refused, or these values.
    """

    fault: str
    name: str
    comment: str
    operation: str
    arguments: dict[str, Any]
    expected: dict[str, Expected] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    outcome: str = "values"


def expected_state(state: Any) -> dict[str, Expected]:
    """Return what output and lse must be.

    Parameters
    ----------
    state : DenseState
        Of the oracle, with bounds.

    Returns
    -------
    dict of str to Expected
    """
    return {
        "out": Expected("bound", (np.asarray(state.out, np.float64),), np.asarray(state.out_bound, np.float64)),
        "lse": Expected("bound", (np.asarray(state.lse, np.float64),), np.asarray(state.lse_bound, np.float64)),
    }


def attention_vector(
    fault: str, name: str, comment: str, case: PagedCase, *, flags: tuple[str, ...] = (), outcome: str = "values"
) -> Vector:
    """Return the vector of a paged case.

    Parameters
    ----------
    fault, name, comment, flags, outcome
        As in `Vector`; the flag ``decode`` makes it one of ``paged_decode``.
    case : PagedCase
        The batch.

    Returns
    -------
    Vector
    """
    decode = "decode" in flags
    arguments: dict[str, Any] = {"q": case.q} if decode else {"q": case.q, "qo_indptr": case.qo_indptr}
    names = [array.name for array in OPERATIONS["paged_decode"].arrays[1:6]]
    arguments |= dict(zip(names, case.pages, strict=True))
    for keyword, value in {**case.keywords, **case.stored}.items():
        if keyword == "mask":  # flat, sequence after sequence (S14)
            value = np.concatenate([part.reshape(-1) for part in value])
        elif keyword == "window" and not isinstance(value, tuple):
            value = (value - 1, value - 1)  # keys beside the own one: the form that cannot be misread (S5)
        elif keyword == "kv_format":
            value = {part: getattr(value, part) for part in ("kind", "granularity", "group_size", "zero_point")}
        arguments[keyword] = value
    answer = {} if outcome == "refused" else expected_state(oracle(case))
    operation = "paged_decode" if decode else "paged_prefill"
    return Vector(fault, name, comment, operation, arguments, answer, flags, outcome)


_TEXT = {"type": "string"}
_TENSOR = {
    "type": "object",
    "required": ["tensor"],
    "properties": {"tensor": {**_TEXT, "description": "name in the file of the vector"}},
    "additionalProperties": False,
}
_STEP = {"type": "object", "required": ["do", "expect"], "properties": {"do": _TEXT, "expect": {"type": "object"}}}

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Test vectors of paged attention",
    "type": "object",
    "required": ["format", "version", "specification", "arithmetic", "groups", "logs"],
    "properties": {
        "format": {"const": "pagedref.vectors"},
        "version": {"const": 1},
        "specification": {"type": "integer", "description": "SPEC_VERSION of the rules that are meant"},
        "arithmetic": {**_TEXT, "description": "type of products, sums and lse for which the bounds hold"},
        "groups": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["fault", "vectors"],
                "properties": {
                    "fault": {**_TEXT, "description": "what all vectors of the group catch"},
                    "vectors": {"type": "array", "items": {"$ref": "#/$defs/vector"}},
                },
                "additionalProperties": False,
            },
        },
        "logs": {"type": "array", "items": {"$ref": "#/$defs/log"}},
    },
    "additionalProperties": False,
    "$defs": {
        "vector": {
            "type": "object",
            "required": ["name", "comment", "flags", "operation", "outcome", "file", "sha256", "arguments", "expected"],
            "properties": {
                "name": _TEXT,
                "comment": _TEXT,
                "flags": {"type": "array", "items": _TEXT},
                "operation": {"enum": sorted(OPERATIONS)},
                "outcome": {"enum": ["values", "refused", "either"]},
                "file": {**_TEXT, "description": "a safetensors file in this folder"},
                "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
                "arguments": {
                    "type": "object",
                    "additionalProperties": {
                        "anyOf": [_TENSOR, {"type": ["number", "boolean", "null", "string", "array", "object"]}]
                    },
                },
                "expected": {"type": "object", "additionalProperties": {"$ref": "#/$defs/expected"}},
            },
            "additionalProperties": False,
        },
        "expected": {
            "type": "object",
            "required": ["agreement", "values"],
            "properties": {
                "agreement": {"enum": ["exact", "bound", "either"]},
                "values": {"type": "array", "items": _TENSOR, "minItems": 1},
                "bound": {**_TENSOR, "description": "float64, of the shape of the value"},
            },
            "additionalProperties": False,
        },
        "log": {
            "type": "object",
            "required": ["name", "comment", "fault", "num_frames", "page_size", "steps"],
            "properties": {
                "name": _TEXT,
                "comment": _TEXT,
                "fault": _TEXT,
                "num_frames": {"type": "integer", "minimum": 1},
                "page_size": {"type": "integer", "minimum": 1},
                "steps": {"type": "array", "items": _STEP},
            },
            "additionalProperties": False,
        },
    },
}
"""The JSON schema of the manifest."""
