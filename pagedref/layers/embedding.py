"""Embedding: the row of each token, scaled and with its position where a model wants that."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["embed"]

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def embed(
    token_ids: npt.NDArray[np.int64],
    table: Array,
    out: Float32,
    *,
    scale: float = 1.0,
    positions: npt.NDArray[np.int64] | None = None,
    position_table: Array | None = None,
) -> None:
    """Look up the row of each token.

    Parameters
    ----------
    token_ids : array (tokens,) of int64
        In ``0 .. vocab_size - 1``.
    table : array (vocab_size, hidden) of float32, float16 or bfloat16
        A row for each token.
    out : array (tokens, hidden) of float32
        Takes the result.
    scale : float
        Factor on the row of the token, rounded to float32.
    positions : array (tokens,) of int64, optional
        Rows of `position_table`, one for each token.
    position_table : array (num_positions, hidden) of float32, float16 or bfloat16, optional
        Added to the scaled row.

    Notes
    -----
    Mutates: `out`. Agreement: EXACT; product and sum are rounded one after the other. Twin:
    ``pagedref_cuda.layers.embed``.

    Examples
    --------
    >>> out = np.empty((2, 2), np.float32)
    >>> embed(np.array([1, 0]), np.array([[1, 2], [3, 4]], np.float32), out, scale=2.0)
    >>> out.tolist()
    [[6.0, 8.0], [2.0, 4.0]]
    """
    out[...] = table[token_ids]
    if scale != 1:
        out *= np.float32(scale)
    if position_table is not None:
        out += position_table[positions].astype(np.float32, copy=False)
