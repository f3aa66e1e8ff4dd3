"""What a backend answers to probes, and how far that is from an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from pagedref.conformance.agreement import bound_fraction
from pagedref.conformance.probes import Probe, right_answer
from pagedref.conformance.steps import Answer

__all__ = ["Reply", "ask", "distance"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Reply:
    """What a backend answered to a probe.

    Attributes
    ----------
    probe : Probe
        The question.
    parts : dict or None
        Results by name; None where there are none.
    error : str
        What was raised instead; empty otherwise.
    offered : bool
        Whether the backend offers what was asked.
    fraction : float
        Largest error in parts of the bound; infinite where bits or shapes are wrong.
    """

    probe: Probe
    parts: dict[str, Array] | None
    error: str = ""
    offered: bool = True
    fraction: float = float("inf")

    @property
    def wrong(self) -> str:
        """What is wrong with the answer; empty if nothing."""
        if self.error or self.right:
            return self.error
        if self.fraction == float("inf"):
            return "bits, shape, an infinity or a NaN is wrong"
        return f"error is {self.fraction:.3g} times its bound"

    @property
    def right(self) -> bool:
        """Whether the answer agrees with the specification."""
        return self.fraction <= 1


def ask(
    backend: Any,
    probe: Probe,
    offered: Callable[[Exception], bool] = lambda error: False,
    arithmetic: str = "float32",
) -> Reply:
    """Ask a backend one probe.

    Parameters
    ----------
    backend : module or object
        May lack operations.
    probe : Probe
        The question.
    offered : callable, optional
        Tells whether an error means that the backend does not offer what was asked.
    arithmetic : str
        Type in which the backend says that it computes.

    Returns
    -------
    Reply
        Errors are caught and told.
    """
    if not callable(getattr(backend, probe.operation, None)):
        return Reply(probe, None, f"{probe.operation} is not there", offered=False)
    try:
        parts = probe.run(backend)
    except Exception as error:
        text = f"{probe.operation} raised {type(error).__name__}: {' '.join(str(error).split())}"
        return Reply(probe, None, text, offered=not offered(error))
    return Reply(probe, parts, fraction=distance(parts, right_answer(probe.name, arithmetic)))


def distance(parts: Mapping[str, Array], answer: Answer) -> float:
    """Return the largest error of results in parts of the bounds of an answer; only parts that are there count.

    Parameters
    ----------
    parts : mapping of str to array
        Results by name.
    answer : Answer
        What they should be.

    Returns
    -------
    float
        Infinite where shapes, infinities, NaNs or names are others.
    """
    if not parts or not set(parts) <= set(answer.parts):
        return float("inf")
    try:
        return max(bound_fraction(part, answer.parts[name], answer.bounds[name]) for name, part in parts.items())
    except (TypeError, ValueError):
        return float("inf")
