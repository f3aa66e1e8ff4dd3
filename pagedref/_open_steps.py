"""Which steps of a cache are open: a step that is not can write into frames of others."""

from __future__ import annotations

from collections.abc import Iterable

from pagedref._step import Step
from pagedref.errors import ContractError

__all__ = ["OpenSteps"]


class OpenSteps:
    """Hold the open steps of one cache.

    Examples
    --------
    >>> steps = OpenSteps()
    >>> steps.of([7])
    []
    """

    def __init__(self) -> None:
        self._steps: set[Step] = set()

    def open(self, step: Step) -> None:
        """Take note of a step."""
        self._steps.add(step)

    def need(self, function: str, step: object) -> None:
        """Refuse a step that was committed or aborted, or that another cache opened.

        Parameters
        ----------
        function : str
            Name for the error text.
        step : object
            As given.

        Raises
        ------
        ContractError
            It is not open here.
        """
        if not isinstance(step, Step) or step not in self._steps:
            got = f"one of sequences {step.seq_ids}" if isinstance(step, Step) else type(step).__name__
            raise ContractError(f"{function}: step is not open in this cache, got {got}, need one from begin")

    def close(self, step: Step) -> None:
        """Forget a step."""
        self._steps.discard(step)

    def of(self, seq_ids: Iterable[int]) -> list[Step]:
        """Return the open steps in which one of some sequences takes part."""
        ids = set(seq_ids)
        return [step for step in self._steps if ids.intersection(step.seq_ids)]
