"""Linear layers, laid out once so that a product of a few rows reads each weight once and copies none.

A matrix library multiplies large matrices by first copying pieces of both into an order it likes. For one token or
sixteen, that copy costs more than the product. But libraries multiply *small* matrices where they lie; so the weights
are cut into **panels** of 64 outputs, small enough for that, and each panel meets the tokens eight rows at a time ::

              in_features
           +---------------+  panel 0: outputs 0 .. 63,      stored (in_features, 64)
    W.T =  | p0 | p1 | ... |  panel 1: outputs 64 .. 127     one after the other: memory is read from end to end
           +---------------+
                 width

While a panel lies in the cache of its core, all rows pass by it, so the same layout serves a prompt of 512 tokens as
fast as one large product would. And since every row is computed by the same small product whatever the batch, its
result does not depend on its neighbours (L2): on processors with such a path to the bit, elsewhere within rounding.
Under :func:`fixed_rows` all products have the same number of rows, too, so that nothing is left that could differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref.errors import ContractError
from pagedref.layers.crew import Crew

__all__ = ["ROWS", "Linear", "fixed_rows", "linear", "panel_width"]

Float32 = npt.NDArray[np.float32]

ROWS = 8
"""Rows that meet a panel at a time; buffers have at least this many rows more than they have tokens."""

_SMALL_PRODUCT = 1_000_000
_fixed = 0  # how many ask for products of a fixed number of rows


@contextmanager
def fixed_rows() -> Iterator[None]:
    """Give every product of a :class:`Linear` the same number of rows meanwhile, however few tokens there are.

    Yields
    ------
    None

    Notes
    -----
    Costs up to four times the multiplications for one token; weights are read once either way. It holds for all
    threads.
    """
    global _fixed
    _fixed += 1
    try:
        yield
    finally:
        _fixed -= 1


def panel_width(in_features: int) -> int:
    """Return how many outputs make a panel: 64, fewer where rows are so long that the product is no longer small.

    Parameters
    ----------
    in_features : int
        Length of a row, >= 1.

    Returns
    -------
    int
        64, 32 or 16.

    Examples
    --------
    >>> panel_width(576), panel_width(1536), panel_width(2048), panel_width(14336)
    (64, 64, 32, 16)
    """
    width = 64
    while width > 16 and ROWS * width * in_features > _SMALL_PRODUCT:
        width //= 2
    return width


class Linear:
    """Multiply rows by a matrix: ``out = x @ W.T + bias``.

    Parameters
    ----------
    weights : sequence of arrays (out_features_i, in_features) of float32
        Stacked along the outputs, such as q, k and v; they are copied.
    biases : sequence of arrays (out_features_i,) of float32, optional
        One for each.

    Raises
    ------
    ContractError
        Shapes do not fit.

    Notes
    -----
    ``panels`` is an array (num_panels, in_features, width); outputs behind the last one are 0.

    Examples
    --------
    >>> layer = Linear([np.array([[1.0, 2.0], [0.0, 1.0]], np.float32)])
    >>> x, out = layer.buffers(1)
    >>> x[0] = [10, 1]
    >>> layer(x, out, 1).tolist()
    [[12.0, 1.0]]
    """

    def __init__(self, weights: Sequence[Float32], biases: Sequence[Float32] = ()) -> None:
        shapes = [weight.shape for weight in weights]
        if not shapes or any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
            raise ContractError(f"Linear: weights do not fit, got shapes {shapes}, need (out_features, in_features)")
        if biases and [bias.shape for bias in biases] != [shape[:1] for shape in shapes]:
            raise ContractError(f"Linear: biases do not fit, got {[b.shape for b in biases]}, need one for each output")
        stacked = weights[0] if len(weights) == 1 else np.concatenate(weights)  # (out_features, in_features)
        self.out_features, self.in_features = stacked.shape
        self.width = width = panel_width(self.in_features)
        self._rows = max(2, min(ROWS, _SMALL_PRODUCT // (width * self.in_features)))
        whole, rest = divmod(self.out_features, width)
        self.panels: Float32 = np.zeros((whole + (rest > 0), self.in_features, width), np.float32)
        self.panels[:whole] = stacked[: whole * width].reshape(whole, width, self.in_features).transpose(0, 2, 1)
        if rest:
            self.panels[whole, :, :rest] = stacked[whole * width :].T
        self.bias: Float32 | None = None
        if biases:
            self.bias = np.zeros(self.padded_features, np.float32)
            self.bias[: self.out_features] = np.concatenate(biases)

    @property
    def padded_features(self) -> int:
        """Columns that the output buffer must have: whole panels."""
        return len(self.panels) * self.width

    def buffers(self, tokens: int) -> tuple[Float32, Float32]:
        """Return an input and an output buffer that are large enough for `tokens` rows.

        Parameters
        ----------
        tokens : int
            Rows, >= 0.

        Returns
        -------
        x : array (tokens + ROWS, in_features) of float32
            Zeros.
        out : array (tokens + ROWS, padded_features) of float32
            Zeros.
        """
        rows = tokens + ROWS
        return np.zeros((rows, self.in_features), np.float32), np.zeros((rows, self.padded_features), np.float32)

    def __call__(self, x: Float32, out: Float32, tokens: int, crew: Crew | None = None) -> Float32:
        """Compute the first `tokens` rows.

        Parameters
        ----------
        x : array (>= tokens + ROWS, in_features) of float32
            Rows; what lies behind the first `tokens` is computed with, and means nothing.
        out : array (>= tokens + ROWS, >= padded_features) of float32
            Buffer for the result.
        tokens : int
            Rows that count.
        crew : Crew, optional
            Threads to share the panels.

        Returns
        -------
        array (tokens, out_features) of float32
            A view of `out`.

        Notes
        -----
        Mutates: `out`, up to ``tokens + ROWS`` rows. Sums run over `in_features` as the library orders them.
        """
        if crew is None:
            self.part(x, out, tokens, 0, 1)
        else:
            cost = tokens * self.out_features * self.in_features
            crew.run(lambda part, parts: self.part(x, out, tokens, part, parts), cost=cost)
        return out[:tokens, : self.out_features]

    def columns(self, part: int, parts: int) -> slice:
        """Return the outputs that a part computes: whole panels.

        Parameters
        ----------
        part, parts : int
            Number of the part and of all parts.

        Returns
        -------
        slice
        """
        bounds = [len(self.panels) * i // parts * self.width for i in (part, part + 1)]
        return slice(*bounds)

    def part(self, x: Float32, out: Float32, tokens: int, part: int, parts: int) -> None:
        """Compute one part of the outputs of the first `tokens` rows; arguments as in a call.

        Parameters
        ----------
        x, out, tokens
            As in a call.
        part, parts : int
            Number of the part and of all parts.
        """
        columns = self.columns(part, parts)
        panels = self.panels[columns.start // self.width : columns.stop // self.width]
        if not tokens or not len(panels):
            return
        groups = -(-tokens // self._rows)
        rows = self._rows if _fixed else max(2, -(-tokens // groups))  # one would take another path, with other bits
        source = x[: groups * rows].reshape(groups, rows, self.in_features)
        target = out[: groups * rows, columns].reshape(groups, rows, len(panels), self.width)
        # for each panel, for each group: (rows, in_features) @ (in_features, width)
        np.matmul(source, panels[:, None], out=target.transpose(2, 0, 1, 3))
        if self.bias is not None:
            out[:tokens, columns] += self.bias[columns]

    def rows_of(self, outputs: npt.NDArray[np.int64]) -> Float32:
        """Return rows of the matrix: an embedding that is tied to the output layer.

        Parameters
        ----------
        outputs : array (n,) of int64
            In ``0 .. out_features - 1``.

        Returns
        -------
        array (n, in_features) of float32
        """
        panel, column = np.divmod(outputs, self.width)
        return self.panels[panel, :, column]


def linear(x: Float32, weight: npt.NDArray[Any], out: Float32, *, bias: Float32 | None = None) -> None:
    """Multiply rows by a matrix as it lies: ``out = x @ weight.T + bias``.

    Parameters
    ----------
    x : array (tokens, in_features) of float32
        Rows.
    weight : array (out_features, in_features) of float32, float16 or bfloat16
        The matrix; its numbers are widened to float32.
    out : array (tokens, out_features) of float32
        Takes the result.
    bias : array (out_features,) of float32, optional
        Added to each row.

    Notes
    -----
    Mutates: `out`. Agreement: BOUND. For a matrix that is used again and again, :class:`Linear` is faster. Twin:
    ``pagedref_cuda.layers.linear``.

    Examples
    --------
    >>> out = np.empty((1, 2), np.float32)
    >>> linear(np.array([[10, 1]], np.float32), np.array([[1, 2], [0, 1]], np.float16), out)
    >>> out.tolist()
    [[12.0, 1.0]]
    """
    np.matmul(x, weight.astype(np.float32, copy=False).T, out=out)
    if bias is not None:
        out += bias
