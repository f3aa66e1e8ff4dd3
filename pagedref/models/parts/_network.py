"""The feed-forward network: two products with an activation between them, or three with a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from pagedref.models.parts._build import Build
from pagedref.models.parts._run import Run

__all__ = ["Network"]

Array = npt.NDArray[Any]


class Network:
    """Transform rows one by one.

    Parameters
    ----------
    build : Build
        Gives the weights.
    prefix : str
        What stands before ``gate``, ``up`` and ``down``.
    part : callable, optional
        Takes this network's weights out of a stack; the stack is left where it is.
    limit : float, optional
        The gate is clipped, as :class:`pagedref.models.config.Experts` says.
    """

    def __init__(
        self, build: Build, prefix: str, part: Callable[[Array], Array] | None = None, limit: float | None = None
    ) -> None:
        config = build.config
        kinds = ("gate", "up", "down") if config.gated else ("up", "down")
        chosen = (lambda weight: weight) if part is None else part
        made = {kind: build.linear_of(prefix, (kind,), chosen) for kind in kinds}
        if part is None:
            build.drop(prefix, *kinds)
        self._gate, self._up, self._down = made.get("gate"), made["up"], made["down"]
        self._arithmetic, self._kind, self._limit = build.arithmetic, config.activation, limit

    def __call__(self, x: Array, tokens: int, run: Run) -> Array:
        """Return what the network makes of the first `tokens` rows.

        Parameters
        ----------
        x : array (>= tokens + ROWS, hidden)
            Rows, normed.
        tokens : int
            Rows that count.
        run : Run
            Where everything goes.

        Returns
        -------
        array (tokens, hidden)
            A view of scratch memory.
        """
        scratch, width, first = run.scratch, self._up.padded_features, self._gate or self._up
        gate, up = scratch.rows("gate", width, tokens), scratch.rows("up", width, tokens)
        inner = scratch.rows("inner", width, tokens)

        def between(part: int, parts: int) -> None:
            """Both products, and the gate while they are still in the cache of this core."""
            columns = first.columns(part, parts)
            self._up.part(x, up, tokens, part, parts)
            if self._gate is not None:
                self._gate.part(x, gate, tokens, part, parts)
            self._activate(gate[:tokens, columns], up[:tokens, columns], inner[:tokens, columns])

        products = 1 if self._gate is None else 2
        run.crew.run(between, cost=products * tokens * self._up.out_features * self._up.in_features)
        out = scratch.rows("added", self._down.padded_features, tokens)
        return self._down(inner[:, : self._up.out_features], out, tokens, run.crew)  # type: ignore[no-any-return]

    def _activate(self, gate: Array, up: Array, out: Array) -> None:
        """Compute what goes into the last product."""
        if self._gate is None:
            self._arithmetic.activate(up, out, kind=self._kind)
        elif self._limit is None:
            self._arithmetic.gate(gate, up, out, kind=self._kind)
        else:  # the gate of GPT-OSS
            gate.clip(None, self._limit, out=gate)
            up.clip(-self._limit, self._limit, out=up)
            up += 1
            up *= gate
            gate *= gate.dtype.type(1.702)
            self._arithmetic.gate(gate, up, out, kind="sigmoid")
