"""What can go wrong, in five kinds.

Errors are part of the specification: every backend raises the same class with the same text, before any write.
The text reads ``<function>: <argument> <what is wrong>, got <value>, need <rule>``.
"""

from __future__ import annotations

__all__ = [
    "BackendUnavailable",
    "ContractError",
    "CorruptionError",
    "NotOffered",
    "OutOfFrames",
    "PageFault",
    "PagedRefError",
]


class PagedRefError(Exception):
    """Base class of every error that pagedref raises on purpose."""


class ContractError(PagedRefError, ValueError):
    """An argument breaks a rule of the contract (shape, dtype, range, combination)."""


class NotOffered(ContractError):
    """A backend does not offer this operation, keyword or stored form: no fault, but the call cannot be served."""


class OutOfFrames(PagedRefError, MemoryError):
    """The pool cannot serve a request; nothing was changed (S26).

    Parameters
    ----------
    message : str
        The full text of the error.
    needed : int
        Frames that the operation needs.
    available : int
        Frames that were available when it was refused.

    Examples
    --------
    >>> error = OutOfFrames("alloc: pool is empty, got 0, need 3", needed=3, available=0)
    >>> error.needed, error.available
    (3, 0)
    """

    def __init__(self, message: str, *, needed: int = 0, available: int = 0) -> None:
        super().__init__(message)
        self.needed = int(needed)
        self.available = int(available)


class PageFault(PagedRefError, LookupError):
    """A page that is needed has no frame (S21)."""


class CorruptionError(PagedRefError):
    """The books do not balance: double free, count underflow, an audit that fails (S25)."""


class BackendUnavailable(PagedRefError):
    """A backend cannot run here; the text says what to install or set."""
