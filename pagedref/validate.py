"""Argument checks, shared by all backends: the same class and the same text everywhere, before any write.

Shapes and types come from the table in :mod:`pagedref.contract`; what a table cannot say (a CSR that is sound, slots
that are inside the pool and named once, heads that divide) is written out below, rule by rule. Nothing here reads a
key or a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from pagedref.contract import DTYPES, EXTENDED_OPERATIONS, LAYER_OPERATIONS, NOT_BUILT, OPERATIONS, Array
from pagedref.errors import ContractError

__all__ = ["arrays", "built", "copies", "csr", "fail", "heads", "qo_lens", "slots", "writable"]

IndexArray = npt.NDArray[np.int64]


def fail(function: str, argument: str, wrong: str, got: object, need: str) -> NoReturn:
    """Raise a ContractError in the one form of the house.

    Parameters
    ----------
    function, argument, wrong, got, need : str, and got any object
        The parts of ``<function>: <argument> <what is wrong>, got <value>, need <rule>``.
    """
    raise ContractError(f"{function}: {argument} {wrong}, got {got}, need {need}")


@cache
def _parsed(function: str) -> tuple[tuple[Array, tuple[tuple[str, int], ...], str], ...]:
    """Split the shapes of an operation into (name, extra) pairs once: ``"num_seqs+1"`` is ``("num_seqs", 1)``."""
    result = []
    operation = {**OPERATIONS, **EXTENDED_OPERATIONS, **LAYER_OPERATIONS}[function]
    for spec in operation.arrays:
        pairs = [(str(name).removesuffix("+1"), int(str(name).endswith("+1"))) for name in spec.shape]
        text = "(" + ", ".join(map(str, spec.shape)) + ("," if len(spec.shape) == 1 else "") + ")"
        result.append((spec, tuple(pairs), text))
    return tuple(result)


_NEVER_EMPTY = frozenset({"head_dim", "v_head_dim", "rank", "page_size", "num_qo_heads", "num_kv_heads"})


def writable(function: str, name: str, array: Any) -> None:
    """Refuse a read-only array that is to be written, with a ContractError.

    Parameters
    ----------
    function, name : str
        Operation and argument.
    array : array
        Arrays without flags (of other libraries) are taken as they are.
    """
    if not getattr(getattr(array, "flags", None), "writeable", True):
        fail(function, name, "is read-only", "a read-only array", "an array that can be written")


@cache
def _types(backend: str, kind: str) -> frozenset[np.dtype[Any]]:
    """Return the types of a kind of array in a backend."""
    return frozenset(np.dtype(name) for name in DTYPES[backend][kind])


def arrays(function: str, backend: str, given: Mapping[str, Any]) -> dict[str, int]:
    """Check dimensions, sizes and types of the arrays of one operation.

    Parameters
    ----------
    function : str
        Name of the operation in the contract.
    backend : str
        Key of :data:`pagedref.contract.DTYPES`.
    given : mapping
        Arrays by argument name; ``None`` for an optional one that is absent.

    Returns
    -------
    dict of str to int
        The sizes of the named dimensions.

    Raises
    ------
    ContractError
        Names the first argument that breaks the contract.

    Examples
    --------
    >>> state = {"out": np.zeros((2, 5, 4, 8), np.float32), "lse": np.zeros((2, 5, 4), np.float32)}
    >>> arrays("merge_states", "numpy", state)["num_tokens"]
    5
    """
    dims: dict[str, int] = {}
    for spec, pairs, text in _parsed(function):
        array = given.get(spec.name)
        if array is None:
            if not spec.optional:
                fail(function, spec.name, "is missing", None, f"an array {text}")
            continue
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            fail(function, spec.name, "is not an array", type(array).__name__, f"an array {text}")
        if len(array.shape) != len(pairs):
            fail(function, spec.name, "has the wrong number of dimensions", tuple(array.shape), text)
        if array.dtype not in _types(backend, spec.dtype):
            fail(function, spec.name, "has the wrong type", array.dtype, " or ".join(DTYPES[backend][spec.dtype]))
        if spec.written:
            writable(function, spec.name, array)
        for (name, extra), size in zip(pairs, array.shape, strict=True):
            if size < 1 and name in _NEVER_EMPTY:
                fail(function, spec.name, f"has an empty {name}", tuple(array.shape), f"{text} with {name} >= 1")
            known = dims.setdefault(name, int(name) if name.isdecimal() else size - extra)
            if known < 0 or known + extra != size:
                rule = f"{text} with {name} = {max(known, 0)}"
                fail(function, spec.name, "has the wrong shape", tuple(array.shape), rule)
    return dims


def built(function: str, backend: str, keywords: Mapping[str, object]) -> None:
    """Refuse keywords that the backend does not compute yet.

    Parameters
    ----------
    function, backend : str
        Operation and backend.
    keywords : mapping
        Keyword arguments as given; ``None`` is off.

    Raises
    ------
    ContractError
        Names the first keyword that is given and not built.
    """
    for name in sorted(NOT_BUILT[backend]):
        if keywords.get(name) is not None:
            fail(function, name, f"is not built yet in the {backend} backend", "a value", "None")


def heads(function: str, num_qo_heads: int, num_kv_heads: int) -> int:
    """Return the query heads per kv head (S12).

    Parameters
    ----------
    function : str
        Operation.
    num_qo_heads, num_kv_heads : int
        Head counts.

    Returns
    -------
    int
        ``group_size``.

    Raises
    ------
    ContractError
        If the counts do not divide; the text names both.

    Examples
    --------
    >>> heads("paged_decode", 32, 8)
    4
    """
    if num_kv_heads < 1 or num_qo_heads < 1 or num_qo_heads % num_kv_heads:
        rule = "num_qo_heads to be a positive multiple of num_kv_heads (S12)"
        fail(function, "q", "has heads that do not divide", f"{num_qo_heads} / {num_kv_heads}", rule)
    return num_qo_heads // num_kv_heads


def _indptr(function: str, name: str, indptr: npt.NDArray[Any], stop: int, what: str) -> IndexArray:
    """Check a row pointer and return it in 64 bits."""
    wide = indptr.astype(np.int64)
    if wide[0] != 0 or wide[-1] != stop:
        fail(function, name, "does not span its rows", f"{wide[0]}..{wide[-1]}", f"0..{stop} = len({what})")
    back = wide[1:] < wide[:-1]  # compared, not subtracted: a difference could wrap
    if back.any():
        at = int(np.argmax(back))
        fail(function, name, f"decreases at entry {at}", f"{wide[at]}, {wide[at + 1]}", "non-decreasing")
    return wide


def csr(
    function: str,
    kv_indptr: npt.NDArray[Any],
    kv_indices: npt.NDArray[Any],
    kv_last_page_len: npt.NDArray[Any],
    num_frames: int,
    page_size: int,
) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Check the CSR form of a batch (S20, S21).

    Parameters
    ----------
    function : str
        Operation.
    kv_indptr : array (num_seqs + 1,) of int32 or int64
        Starts of the sequences in `kv_indices`.
    kv_indices : array (num_pages,) of int32 or int64
        Frames, ``-1 .. num_frames - 1``.
    kv_last_page_len : array (num_seqs,) of int32 or int64
        ``1 .. page_size``, and 0 exactly when a sequence has no page.
    num_frames, page_size : int
        Geometry of the pool.

    Returns
    -------
    kv_indptr, kv_indices, kv_lens : arrays of int64
        The same in 64 bits (S19), and the number of keys of each sequence.

    Raises
    ------
    ContractError
        Names the argument, the place and the rule.

    Examples
    --------
    >>> csr("f", np.array([0, 2]), np.array([7, 3]), np.array([1]), 8, 4)[2].tolist()
    [5]
    """
    if page_size < 1:
        fail(function, "k_cache", "has empty pages", page_size, "page_size >= 1 (S19)")
    indptr = _indptr(function, "kv_indptr", kv_indptr, len(kv_indices), "kv_indices")
    frames = kv_indices.astype(np.int64)
    last = kv_last_page_len.astype(np.int64)
    if frames.size and (frames.min() < -1 or frames.max() >= num_frames):
        at = int(np.flatnonzero((frames < -1) | (frames >= num_frames))[0])
        fail(function, "kv_indices", f"is out of range at entry {at}", frames[at], f"-1..{num_frames - 1} (S21)")
    pages = indptr[1:] - indptr[:-1]
    wrong = (last > page_size) | (last < 0) | ((last == 0) != (pages == 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        rule = f"1..{page_size}, and 0 exactly without pages (S20)"
        fail(function, "kv_last_page_len", f"of sequence {at} with {pages[at]} pages is wrong", last[at], rule)
    return indptr, frames, np.where(pages > 0, (pages - 1) * page_size + last, 0)


def qo_lens(function: str, qo_indptr: npt.NDArray[Any], num_tokens: int) -> IndexArray:
    """Check the row pointer of the queries.

    Parameters
    ----------
    function : str
        Operation.
    qo_indptr : array (num_seqs + 1,) of int32 or int64
        Starts of the sequences in q.
    num_tokens : int
        Rows of q.

    Returns
    -------
    array (num_seqs + 1,) of int64
        The same in 64 bits.

    Raises
    ------
    ContractError
        If it does not start at 0, decreases, or does not end at `num_tokens`.
    """
    return _indptr(function, "qo_indptr", qo_indptr, num_tokens, "q")


def slots(function: str, slot_mapping: npt.NDArray[Any], num_slots: int) -> IndexArray:
    """Check the slots of a write (S22).

    Parameters
    ----------
    function : str
        Operation.
    slot_mapping : array (num_tokens,) of int32 or int64
        ``-1 .. num_slots - 1``, each slot at most once; -1 skips its row.
    num_slots : int
        ``num_frames * page_size``.

    Returns
    -------
    array (num_tokens,) of int64
        The same in 64 bits (S19).

    Raises
    ------
    ContractError
        If a slot is out of range or named twice.

    Examples
    --------
    >>> slots("append_kv", np.array([3, -1, 0]), 4).tolist()
    [3, -1, 0]
    """
    wide = slot_mapping.astype(np.int64)
    if not wide.size:
        return wide
    if wide.min() < -1 or wide.max() >= num_slots:
        at = int(np.flatnonzero((wide < -1) | (wide >= num_slots))[0])
        fail(function, "slot_mapping", f"is out of range at entry {at}", wide[at], f"-1..{num_slots - 1} (S22)")
    if wide.size > 1:
        ordered = np.sort(wide)
        twice = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
        if twice.any():
            slot = int(ordered[1:][twice][0])
            fail(function, "slot_mapping", "names a slot twice", slot, "each slot at most once in a call (S22)")
    return wide


def copies(
    function: str, pools: Sequence[Any], src: npt.NDArray[Any], dst: npt.NDArray[Any]
) -> tuple[IndexArray, IndexArray]:
    """Check a copy of frames: all sources are read before any destination is written.

    Parameters
    ----------
    function : str
        Operation.
    pools : sequence of arrays
        Arrays whose first axis is the frame.
    src, dst : arrays (num_copies,) of int32 or int64
        Frames to read and to write; `dst` names each frame once and none of `src`.

    Returns
    -------
    src, dst : arrays of int64
        The same in 64 bits.

    Raises
    ------
    ContractError
        Names the argument and the frame.
    """
    wide_src, wide_dst = src.astype(np.int64), dst.astype(np.int64)
    for number, pool in enumerate(pools):
        if not hasattr(pool, "shape") or len(pool.shape) < 1:
            fail(function, f"arrays[{number}]", "is not an array", type(pool).__name__, "an array with a frame axis")
        writable(function, f"arrays[{number}]", pool)
        for name, frames in (("src", wide_src), ("dst", wide_dst)):
            if frames.size and (frames.min() < 0 or frames.max() >= pool.shape[0]):
                at = int(np.flatnonzero((frames < 0) | (frames >= pool.shape[0]))[0])
                rule = f"0..{pool.shape[0] - 1} of arrays[{number}]"
                fail(function, name, f"is out of range at entry {at}", frames[at], rule)
    unique, counts = np.unique(wide_dst, return_counts=True)
    if unique.size < wide_dst.size:
        fail(function, "dst", "names a frame twice", int(unique[counts > 1][0]), "each frame at most once")
    both = np.intersect1d(wide_src, unique)
    if both.size:
        fail(function, "dst", "names a frame that is also read", int(both[0]), "no frame in both src and dst")
    return wide_src, wide_dst
