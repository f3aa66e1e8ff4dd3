"""The table of operations as data: arrays, shapes, types per backend, agreement class, rules.

Everything that both twins must have in common is written once, here: :mod:`pagedref.validate` derives the checks of
shapes and types from it, :mod:`pagedref.backends` asks a backend for these names, the conformance suite compares under
the agreement class that stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from pagedref.kv_format import KINDS

__all__ = [
    "DTYPES",
    "EXTENDED_OPERATIONS",
    "LAYER_OPERATIONS",
    "NOT_BUILT",
    "OPERATIONS",
    "Agreement",
    "Array",
    "Operation",
]


class Agreement(Enum):
    """How closely a backend agrees with the reference."""

    EXACT = "equal bits, untouched slots too"
    BOUND = "within the forward error bound that the oracle computes from the data"
    ORDERED = "equal bits between twins that perform the same operations in the same order"


@dataclass(frozen=True)
class Array:
    """One array argument of an operation.

    Parameters
    ----------
    name : str
        Argument name.
    shape : tuple of str or int
        Names of dimensions; one name means one size within a call. ``"num_seqs+1"`` is one more than ``num_seqs``.
    dtype : str
        A key of the table in :data:`DTYPES`.
    doc : str
        Unit and range.
    optional : bool
        ``None`` is accepted.
    written : bool
        The operation writes into it.
    """

    name: str
    shape: tuple[str | int, ...]
    dtype: str
    doc: str
    optional: bool = False
    written: bool = False


@dataclass(frozen=True)
class Operation:
    """One operation of the contract.

    Parameters
    ----------
    name : str
        Its name in every backend.
    arrays : tuple of Array
        Array arguments, in order; those after ``*`` too.
    options : tuple of str
        Further keyword arguments.
    agreement : Agreement
        How closely backends agree.
    rules : tuple of str
        The rules of the specification that it rests on.
    """

    name: str
    arrays: tuple[Array, ...]
    options: tuple[str, ...]
    agreement: Agreement
    rules: tuple[str, ...]
    by_name: Mapping[str, Array] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {array.name: array for array in self.arrays})


_K_CACHE = Array("k_cache", ("num_frames", "page_size", "num_kv_heads", "head_dim"), "storage", "keys by frame, NHD")
_V_CACHE = Array("v_cache", ("num_frames", "page_size", "num_kv_heads", "v_head_dim"), "storage", "values by frame")
_K_WRITTEN = Array("k_cache", _K_CACHE.shape, "storage", "keys by frame, NHD", written=True)
_V_WRITTEN = Array("v_cache", _V_CACHE.shape, "storage", "values by frame, NHD", written=True)
_CSR = (
    Array("kv_indptr", ("num_seqs+1",), "index", "where the pages of each sequence start in kv_indices"),
    Array("kv_indices", ("num_pages",), "index", "frames in page order, -1 = unmapped"),
    Array("kv_last_page_len", ("num_seqs",), "index", "live positions of the last page, 1..page_size, 0 without pages"),
)
_PER_HEAD = (
    Array("alibi_slopes", ("num_qo_heads",), "accumulator", "ALiBi slope per query head, finite", optional=True),
    Array("sinks", ("num_qo_heads",), "accumulator", "sink logit per query head, -inf = none", optional=True),
)
_PAGED = (_K_CACHE, _V_CACHE, *_CSR, *_PER_HEAD)
_STORED = ("kv_format", "k_scale", "v_scale", "k_zero", "v_zero")
_OPTIONS = ("sm_scale", "window", "attention_chunk", "softcap", "rotary", *_STORED)

_TABLE = (
    Operation(
        "paged_decode",
        (
            Array("q", ("num_seqs", "num_qo_heads", "head_dim"), "query", "one query token per sequence"),
            *_PAGED,
        ),
        _OPTIONS,
        Agreement.BOUND,
        ("S1", "S2", "S3", "S5", "S6", "S7", "S8", "S9", "S11", "S12", "S15", "S19", "S20", "S21", "S23"),
    ),
    Operation(
        "paged_prefill",
        (
            Array("q", ("num_tokens", "num_qo_heads", "head_dim"), "query", "query tokens, sequence after sequence"),
            Array("qo_indptr", ("num_seqs+1",), "index", "where the tokens of each sequence start in q"),
            *_PAGED,
        ),
        ("causal", "mask", *_OPTIONS),
        Agreement.BOUND,
        ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S11", "S12", "S14", "S15", "S19", "S20", "S21", "S23"),
    ),
    Operation(
        "append_kv",
        (
            Array("k", ("num_tokens", "num_kv_heads", "head_dim"), "query", "new keys"),
            Array("v", ("num_tokens", "num_kv_heads", "v_head_dim"), "query", "new values"),
            _K_WRITTEN,
            _V_WRITTEN,
            Array("slot_mapping", ("num_tokens",), "index", "slot of each token, -1 = skip"),
        ),
        _STORED,
        Agreement.EXACT,
        ("S16", "S17", "S18", "S19", "S22", "S23"),
    ),
    Operation(
        "gather_kv",
        (_K_CACHE, _V_CACHE, *_CSR),
        _STORED,
        Agreement.EXACT,
        ("S16", "S18", "S19", "S20", "S21", "S23"),
    ),
    Operation(
        "copy_frames",
        (
            Array("src", ("num_copies",), "index", "frames to read, 0..num_frames-1"),
            Array("dst", ("num_copies",), "index", "frames to write, each once, none of them in src"),
        ),
        ("arrays",),
        Agreement.EXACT,
        ("S18", "S27"),
    ),
    Operation(
        "merge_states",
        (
            Array("out", ("num_states", "num_tokens", "num_qo_heads", "v_head_dim"), "query", "outputs of the parts"),
            Array("lse", ("num_states", "num_tokens", "num_qo_heads"), "accumulator", "natural log, -inf = empty"),
        ),
        ("out_state",),
        Agreement.BOUND,
        ("S9", "S10"),
    ),
)

OPERATIONS: Mapping[str, Operation] = MappingProxyType({operation.name: operation for operation in _TABLE})
"""The operations by name."""

_LATENT = (
    Array("ckv_cache", ("num_frames", "page_size", "rank"), "storage", "latents by frame: values, and keys of q_nope"),
    Array("kpe_cache", ("num_frames", "page_size", "rope_dim"), "storage", "rotated keys by frame, for all heads"),
    *_CSR,
    Array("sinks", ("num_qo_heads",), "accumulator", "sink logit per query head, -inf = none", optional=True),
)
_LATENT_STORED = tuple(f"{side}_{part}" for side in ("ckv", "kpe") for part in ("format", "scale", "zero"))
_LATENT_OPTIONS = ("sm_scale", "window", "attention_chunk", "softcap", *_LATENT_STORED)
_LATENT_RULES = (
    *("S1", "S2", "S3", "S5", "S7", "S8", "S9", "S11", "S13", "S15", "S16", "S17", "S18", "S19", "S20", "S21", "S23"),
)


def _latent_queries(tokens: str) -> tuple[Array, Array, Array]:
    """Return queries and selection of an operation on latents."""
    return (
        Array("q_nope", (tokens, "num_qo_heads", "rank"), "query", "absorbed queries"),
        Array("q_pe", (tokens, "num_qo_heads", "rope_dim"), "query", "rotated queries"),
        Array("sparse_positions", (tokens, "top_k"), "index", "keys of each query, -1 = unused", optional=True),
    )


def _ordered(operation: Operation) -> Operation:
    """Return the operation in ordered arithmetic: the same arguments, float32, equal bits."""
    arrays = tuple(replace(array, dtype="narrow_query") if array.name == "q" else array for array in operation.arrays)
    name = operation.name.replace("paged", "ordered")
    options = tuple(option for option in operation.options if option != "rotary")
    return Operation(name, arrays, (*options, "splits"), Agreement.ORDERED, operation.rules)


_EXTENDED = (
    Operation(
        "mla_decode",
        (*_latent_queries("num_seqs"), *_LATENT),
        _LATENT_OPTIONS,
        Agreement.BOUND,
        _LATENT_RULES,
    ),
    Operation(
        "mla_prefill",
        (
            *_latent_queries("num_tokens"),
            Array("qo_indptr", ("num_seqs+1",), "index", "where the tokens of each sequence start in q_nope"),
            *_LATENT,
        ),
        ("causal", "mask", *_LATENT_OPTIONS),
        Agreement.BOUND,
        (*_LATENT_RULES, "S4", "S14"),
    ),
    _ordered(OPERATIONS["paged_decode"]),
    _ordered(OPERATIONS["paged_prefill"]),
)

EXTENDED_OPERATIONS: Mapping[str, Operation] = MappingProxyType({operation.name: operation for operation in _EXTENDED})
"""Operations that a backend may have beside :data:`OPERATIONS`, by name."""

_ROWS = ("num_tokens", "features")
_OUT = Array("out", _ROWS, "row", "the result", written=True)
_X = Array("x", _ROWS, "row", "rows")
_NORMED = (
    Array("x", _ROWS, "row", "rows; takes `added`", written=True),
    Array("weight", ("features",), "row", "factor of each column"),
)
_ADDED = Array("added", _ROWS, "row", "added to x first", optional=True)
_BIAS = Array("bias", ("features",), "row", "added to each column", optional=True)
_LOGITS = Array("logits", ("num_tokens", "columns"), "row", "scores, no NaN")
_TURNS = ("num_tokens", 1, "pairs")

_LAYERS = (
    Operation(
        "embed",
        (
            Array("token_ids", ("num_tokens",), "index", "0..vocab_size-1"),
            Array("table", ("vocab_size", "features"), "weight", "a row for each token"),
            _OUT,
            Array("positions", ("num_tokens",), "index", "0..num_positions-1", optional=True),
            Array("position_table", ("num_positions", "features"), "weight", "added to the scaled row", optional=True),
        ),
        ("scale",),
        Agreement.EXACT,
        (),
    ),
    Operation("rms_norm", (*_NORMED, _OUT, _ADDED), ("eps", "offset"), Agreement.BOUND, ()),
    Operation("layer_norm", (*_NORMED, _BIAS, _OUT, _ADDED), ("eps",), Agreement.BOUND, ()),
    Operation(
        "linear",
        (
            Array("x", ("num_tokens", "in_features"), "row", "rows"),
            Array("weight", ("features", "in_features"), "weight", "the matrix, outputs first"),
            _OUT,
            _BIAS,
        ),
        (),
        Agreement.BOUND,
        (),
    ),
    Operation(
        "rotate",
        (
            Array("x", ("num_tokens", "num_heads", "head_dim"), "row", "queries or keys", written=True),
            Array("cos", _TURNS, "row", "cosine of the angle of each pair, -1..1"),
            Array("sin", _TURNS, "row", "sine of the angle of each pair, -1..1"),
        ),
        ("interleaved",),
        Agreement.BOUND,
        (),
    ),
    Operation("activate", (_X, _OUT), ("kind",), Agreement.BOUND, ()),
    Operation(
        "gate", (_X, Array("up", _ROWS, "row", "multiplied by the activation"), _OUT), ("kind",), Agreement.BOUND, ()
    ),
    Operation("argmax", (_LOGITS,), (), Agreement.EXACT, ()),
    Operation("top_k", (_LOGITS,), ("k",), Agreement.EXACT, ()),
    Operation("route", (_LOGITS,), ("k", "normalise"), Agreement.BOUND, ()),
    Operation(
        "sample",
        (_LOGITS, Array("streams", ("num_tokens",), "index", "text of each row, 0..2**32-1", optional=True)),
        ("temperature", "seed", "draw"),
        Agreement.EXACT,
        (),
    ),
)

LAYER_OPERATIONS: Mapping[str, Operation] = MappingProxyType({operation.name: operation for operation in _LAYERS})
"""What models compute beside attention, by name: the functions that :func:`pagedref.backends.layers` gives."""

_INDEX = ("int32", "int64")

DTYPES: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "numpy": {
            "query": ("float32", "float64", "float16", "bfloat16"),
            "narrow_query": ("float32", "float16", "bfloat16"),
            "storage": tuple(kind.dtype.name for kind in KINDS.values()),
            "accumulator": ("float32", "float64"),
            "index": _INDEX,
            "row": ("float32",),
            "weight": ("float32", "float16", "bfloat16"),
        },
        "cuda": {
            "query": ("float32", "float16", "bfloat16"),
            "narrow_query": ("float32", "float16", "bfloat16"),
            "storage": tuple(kind.dtype.name for kind in KINDS.values() if kind.name != "float64"),
            "accumulator": ("float32",),
            "index": _INDEX,
            "row": ("float32",),
            "weight": ("float32", "float16", "bfloat16"),
        },
    }
)
"""Types that each backend takes, by kind of array (S15)."""

NOT_BUILT: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "numpy": frozenset(),
        "cuda": frozenset(),
    }
)
"""Keywords of the contract that a backend does not compute yet; passing one is a ContractError."""
