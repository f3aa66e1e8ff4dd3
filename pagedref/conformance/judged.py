"""A backend under judgement: its operations, with what they return brought into one form and their errors named.

A foreign kernel fails in its own ways. Whoever reads the verdict wants to know which function did what,
so every error names the operation; what is not offered is told from what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

import pagedref.attention as reference
from pagedref.attention.state import AttentionState
from pagedref.contract import EXTENDED_OPERATIONS, OPERATIONS
from pagedref.errors import BackendUnavailable, NotOffered, PagedRefError

__all__ = ["Judged", "is_not_offered"]

Array = npt.NDArray[Any]
_STATES = ("paged_decode", "paged_prefill")


class _Missing(NotOffered, AttributeError):
    """An operation that is not there."""


def is_not_offered(error: BaseException | None) -> bool:
    """Tell whether an error means that a backend lacks something, and not that it is wrong.

    Parameters
    ----------
    error : exception or None
        As raised.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_not_offered(NotOffered("paged_decode: sinks are not offered")), is_not_offered(ValueError("wrong"))
    (True, False)
    """
    while error is not None:
        if isinstance(error, NotOffered | BackendUnavailable):
            return True
        if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
            return True
        if type(error).__name__ == "NotHere":
            return True
        error = error.__cause__
    return False


class Judged:
    """A backend, or some of its operations.

    Parameters
    ----------
    backend : module or object
        May lack operations.
    operations : iterable of str, optional
        Offered are only these; by default all that it has.

    Attributes
    ----------
    offered : tuple of str
        Operations that are judged.
    lacks_lse : bool
        Whether attention gave an output without lse: then the output is judged alone.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> kernel = SimpleNamespace(merge_states=lambda out, lse: out)
    >>> Judged(kernel).merge_states(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1)))
    Traceback (most recent call last):
        ...
    AssertionError: merge_states: returned ndarray, need a pair (out, lse)
    """

    def __init__(self, backend: Any, operations: Iterable[str] | None = None) -> None:
        self.backend = backend
        wanted = None if operations is None else set(operations)
        self.offered = tuple(
            name
            for name in (*OPERATIONS, *EXTENDED_OPERATIONS)
            if callable(getattr(backend, name, None)) and (wanted is None or name in wanted)
        )
        self.lacks_lse = False

    def __getattr__(self, name: str) -> Any:
        if name in OPERATIONS or name in EXTENDED_OPERATIONS:
            if name not in self.offered:
                raise _Missing(f"{name}: is not offered by the backend, got none, need the operation")
            return self._operation(name)
        return getattr(self.backend, name)

    def _operation(self, name: str) -> Any:
        """Return an operation whose errors name it."""

        def call(*arrays: Any, **keywords: Any) -> Any:
            try:
                result = getattr(self.backend, name)(*arrays, **keywords)
            except (PagedRefError, AssertionError):
                raise
            except TypeError as error:
                if "unexpected keyword argument" in str(error):
                    raise NotOffered(f"{name}: a keyword is not offered, got {error}, need it") from error
                raise AssertionError(f"{name}: raised TypeError: {error}") from error
            except Exception as error:
                raise AssertionError(f"{name}: raised {type(error).__name__}: {error}") from error
            return self._state(name, result, arrays, keywords) if name not in _PLAIN else result

        return call

    def _state(self, name: str, result: Any, arrays: Any, keywords: dict[str, Any]) -> AttentionState:
        """Return output and lse as NumPy arrays of the right shapes."""
        pair = result if isinstance(result, tuple | list) else (result, None)
        if len(pair) != 2 or pair[0] is None or (pair[1] is None and name not in _STATES):
            raise AssertionError(f"{name}: returned {type(result).__name__}, need a pair (out, lse)")
        out = np.asarray(pair[0])
        if out.dtype.kind in "USO" or not out.ndim:
            raise AssertionError(f"{name}: returned {type(result).__name__}, need a pair (out, lse)")
        if pair[1] is None:
            self.lacks_lse = True
            lse = getattr(reference, name)(*arrays, **keywords).lse
        else:
            lse = np.asarray(pair[1])
        shape = arrays[0].shape[1:3] if name == "merge_states" else arrays[0].shape[:2]
        if out.ndim != 3 or out.shape[:2] != shape:
            raise AssertionError(f"{name}: out has the wrong shape, got {out.shape}, need {(*shape, 'v_head_dim')}")
        if lse.shape != shape:
            raise AssertionError(f"{name}: lse has the wrong shape, got {lse.shape}, need {shape} (S9)")
        return AttentionState(out, lse)


_PLAIN = frozenset({"append_kv", "gather_kv", "copy_frames"})
