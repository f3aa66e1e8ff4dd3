"""What all adapters share: the call is checked as every backend checks it, then carried over the border and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.attention.state import AttentionState
from pagedref.call import AttentionCall, attention_call
from pagedref.contract import OPERATIONS
from pagedref.errors import ContractError, NotOffered
from pagedref.layouts import any_from_numpy, numpy_from_any

__all__ = ["Adapter", "Border", "PagedCall", "paged_call"]

Array: TypeAlias = npt.NDArray[Any]
Names: TypeAlias = tuple[str, ...]

_LARGEST_COPY = 1 << 28
_DTYPES = ("float32", "float16", "bfloat16")


class Border:
    """The way to a library and back.

    Parameters
    ----------
    library : module
        Of the arrays that the peer takes.
    device : optional
        Where torch puts them.
    """

    def __init__(self, library: Any, device: Any) -> None:
        self.library, self.device = library, device

    def give(self, array: Any) -> Any:
        """Return an array of NumPy, or a tuple of them, as the library's own."""
        if isinstance(array, tuple):
            return tuple(self.give(part) for part in array)
        return any_from_numpy(array, self.library, self.device)

    def call(
        self, function: Callable[..., Any], operation: str, positional: tuple[Any, ...], facts: Mapping[Names, Any],
        asked: Mapping[Names, Any],
    ) -> Any:  # fmt: skip
        """Call a peer.

        Parameters
        ----------
        function : callable
            The peer.
        operation : str
            For the error text.
        positional : tuple
            Arrays of NumPy, or tuples of them.
        facts : mapping
            What describes the batch, by the names that peers have for it: left out where the peer has none of them.
        asked : mapping
            What the caller asks for, likewise; None is not asked for. A peer that lacks it does not offer the call.

        Returns
        -------
        object
            As the peer returned it.
        """
        known = _parameters(function)
        keywords: dict[str, Any] = {}
        for mapping, must in ((facts, False), (asked, True)):
            for names, value in mapping.items():
                name = names[0] if known is None else next((name for name in names if name in known), None)
                if value is None or (name is None and not must):
                    continue
                if name is None:
                    text = f"{operation}: {names[0]} is not offered by this peer, got {value!r:.60}, need None"
                    raise NotOffered(text)
                keywords[name] = self.give(value) if isinstance(value, np.ndarray) else value
        return function(*(self.give(array) for array in positional), **keywords)


def _parameters(function: Callable[..., Any]) -> set[str] | None:
    """Return the names that a function takes; None if it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


class PagedCall:
    """A checked call of attention, in the terms that peers share.

    Attributes
    ----------
    call : AttentionCall
        Checked.
    given, keywords : dict
        As given; keywords that are None are left out.
    """

    def __init__(self, operation: str, call: AttentionCall, given: dict[str, Any], keywords: dict[str, Any]) -> None:
        self.operation, self.call, self.given, self.keywords = operation, call, given, keywords

    @property
    def pages(self) -> tuple[Array, Array, Array]:
        """CSR in int32, with frame 0 for unmapped pages: none of them has a visible key."""
        frames = np.maximum(self.given["kv_indices"], 0).astype(np.int32)
        return self.given["kv_indptr"].astype(np.int32), frames, self.given["kv_last_page_len"].astype(np.int32)

    @property
    def qo_indptr(self) -> Array:
        """Where the queries of each sequence start, in int32."""
        return self.call.qo_indptr.astype(np.int32)

    def pick(self, *names: str) -> dict[str, Any]:
        """Return keywords that the adapter carries over, and refuse all others that are given."""
        others = [name for name in self.keywords if name not in names]
        if others:
            text = f"{self.operation}: {others[0]} has no place in this convention, got a value, need None"
            raise NotOffered(text)
        return {name: self.keywords.get(name) for name in names}

    def state(self, out: Any, lse: Any, lse_form: Callable[[Array], Array] = lambda lse: lse) -> AttentionState:
        """Return a result of a peer as ours; without an lse where the peer has none."""
        found = None if lse is None else np.asarray(lse_form(numpy_from_any(lse)))
        return AttentionState(numpy_from_any(out), found)  # type: ignore[arg-type]

    def nothing(self) -> AttentionState | None:
        """Return the result of a call without query rows, which peers need not be asked for."""
        q, dims = self.given["q"], self.call.dims
        if q.shape[0]:
            return None
        shape = (0, dims["num_qo_heads"])
        return AttentionState(np.zeros((*shape, dims["v_head_dim"]), q.dtype), np.zeros(shape, np.float32))


def paged_call(operation: str, arrays: tuple[Any, ...], keywords: dict[str, Any]) -> PagedCall:
    """Check a call of ``paged_decode`` or ``paged_prefill``.

    Parameters
    ----------
    operation : str
        Which of the two.
    arrays : tuple
        The arrays that are not optional, in the order of the contract; of any library.
    keywords : dict
        The rest.

    Returns
    -------
    PagedCall

    Raises
    ------
    ContractError, PageFault
        As every backend.
    """
    names = [array.name for array in OPERATIONS[operation].arrays if not array.optional]
    if len(arrays) != len(names):
        raise ContractError(f"{operation}: arguments are not complete, got {len(arrays)}, need {', '.join(names)}")
    given: dict[str, Any] = {name: numpy_from_any(array) for name, array in zip(names, arrays, strict=True)}
    kept = {name: value for name, value in keywords.items() if value is not None}
    given |= {name: kept.get(name) for name in ("alibi_slopes", "sinks")}
    rest = {name: value for name, value in kept.items() if name not in ("alibi_slopes", "sinks")}
    return PagedCall(operation, attention_call(operation, "numpy", given, rest), given, kept)


class Adapter:
    """A backend made of a peer: has the operations that it was given, no others.

    Parameters
    ----------
    border : Border
        The way to the peer's library.
    operations : mapping
        Functions by the name of the operation; None is left out.
    dtypes : tuple of str
        Types of queries and caches that the peer takes.

    Attributes
    ----------
    storage, query : tuple of str
        These types: the suite asks for no others.
    """

    def __init__(
        self, border: Border, operations: Mapping[str, Callable[..., Any] | None], dtypes: Names = _DTYPES
    ) -> None:
        self.border = border
        self.storage = self.query = dtypes
        self.operations = tuple(name for name, function in operations.items() if function is not None)
        for name, function in operations.items():
            if function is not None:
                setattr(self, name, function)

    def __repr__(self) -> str:
        return f"Adapter({', '.join(self.operations)})"


def joinable(k_cache: Array, v_cache: Array) -> None:
    """Refuse caches that do not fit into one tensor, or are too large to be copied into one."""
    found = [f"{cache.dtype}{cache.shape[1:]}" for cache in (k_cache, v_cache)]
    if found[0] != found[1]:
        raise NotOffered(f"adapter: K and V lie in one tensor, got {' and '.join(found)}, need one form")
    if k_cache.nbytes > _LARGEST_COPY:
        need = f"at most {_LARGEST_COPY}"
        raise NotOffered(f"adapter: pool has to be copied into one tensor, got {k_cache.nbytes} bytes, need {need}")


def append_arguments(arrays: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Array]:
    """Check a call of ``append_kv`` and return its arrays by name."""
    names = [array.name for array in OPERATIONS["append_kv"].arrays]
    if any(value is not None for value in keywords.values()):
        raise NotOffered("append_kv: stored forms are not offered by this adapter, got one, need None")
    given = {name: numpy_from_any(array) for name, array in zip(names, arrays, strict=True)}
    dims = validate.arrays("append_kv", "numpy", given)
    validate.slots("append_kv", given["slot_mapping"], dims["num_frames"] * dims["page_size"])
    return given


def written(target: Array, found: Any) -> None:
    """Bring back what a peer wrote, where it does not share the memory."""
    array = numpy_from_any(found)
    if not np.shares_memory(array, target):
        np.copyto(target, array.reshape(target.shape))
