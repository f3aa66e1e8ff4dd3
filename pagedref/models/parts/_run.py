"""What the parts of a model share while new tokens run through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.kv_cache import PagedKVCache, Step
from pagedref.layers.crew import Crew
from pagedref.layers.linear import ROWS

__all__ = ["Run", "Scratch"]

Array = npt.NDArray[Any]


class Scratch:
    """Memory for activations by name, used again by the next layer and the next step.

    Parameters
    ----------
    dtype : dtype
        Type of the numbers.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._arrays: dict[tuple[str, int], Array] = {}

    def rows(self, name: str, width: int, tokens: int) -> Array:
        """Return an array (at least tokens + ROWS, width); what it holds is left from before.

        Parameters
        ----------
        name : str
            Arrays of two names never overlap.
        width : int
            Columns.
        tokens : int
            Rows that will count.

        Returns
        -------
        array
        """
        found = self._arrays.get((name, width))
        if found is None or len(found) < tokens + ROWS:
            found = self._arrays[name, width] = np.zeros((tokens + ROWS, width), self._dtype)
        return found


@dataclass(frozen=True)
class Run:
    """One run of the new tokens of a step through all layers.

    Attributes
    ----------
    cache : PagedKVCache
        Where keys and values go and come from.
    step : Step
        Open step of `cache`.
    crew : Crew
        Threads that share large products.
    scratch : Scratch
        Memory for activations.
    tables : mapping
        Cosine and sine (tokens, 1, pairs) of each kind of rotation.
    """

    cache: PagedKVCache
    step: Step
    crew: Crew
    scratch: Scratch
    tables: Mapping[str, tuple[Array, Array]]
