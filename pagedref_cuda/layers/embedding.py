"""Embedding on the device: the twin of :mod:`pagedref.layers.embedding`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref import validate
from pagedref_cuda import _runtime
from pagedref_cuda._runtime import kernel, multiply_rounded
from pagedref_cuda.layers._checks import checked
from pagedref_cuda.layers._weights import Weight, weight_number

__all__ = ["embed", "launch_embed"]

Array = npt.NDArray[Any]

_IDS, _TABLE = "int64[:]", ("int64", "uint16[:, :]", "uint32[:, :]")


@kernel((_IDS, *_TABLE, "float32", _IDS, *_TABLE, "float32[:, :]"))
def embed_1(
    token_ids: Array,
    kind: int,
    halves: Array,
    words: Array,
    scale: np.float32,
    positions: Array,
    position_kind: int,
    position_halves: Array,
    position_words: Array,
    out: Array,
) -> None:
    """Copy the row of each token, scaled, and add the row of its position if there are positions.

    Launch: a thread owns one number of the result. Reads: its number of the tables. Writes: its number of `out`.
    Barriers: none. Rung: 1; every number is read and written once, by neighbouring threads, and there is nothing to
    gain above it. The product is rounded before the sum, as NumPy does it.
    """
    item = cuda.grid(1)
    hidden = out.shape[1]
    if item >= out.shape[0] * hidden:
        return
    token = item // hidden
    column = item % hidden
    number = multiply_rounded(weight_number(kind, halves, words, token_ids[token], column), scale)
    if positions.shape[0] > 0:
        number += weight_number(position_kind, position_halves, position_words, positions[token], column)
    out[token, column] = number


def launch_embed(
    token_ids: Any, table: Weight, out: Any, scale: float = 1.0, positions: Any = None, more: Weight | None = None
) -> None:
    """Look up rows of a table that lies on the device.

    Parameters
    ----------
    token_ids, out, positions : arrays
        As in :func:`embed`, on the device.
    table, more : Weight
        The table of tokens, and that of positions.
    scale : float
        As there.
    """
    second = table if more is None else more
    embed_1.launch(
        out.shape[0] * out.shape[1],
        *(token_ids, table.kind, table.halves, table.words, np.float32(scale)),
        token_ids[:0] if positions is None else positions,
        *(second.kind, second.halves, second.words, out),
    )


def embed(
    token_ids: Array,
    table: Array,
    out: Array,
    *,
    scale: float = 1.0,
    positions: Array | None = None,
    position_table: Array | None = None,
) -> None:
    """Look up the row of each token.

    Parameters
    ----------
    token_ids : array (tokens,) of int32 or int64
        In ``0 .. vocab_size - 1``.
    table : array (vocab_size, hidden) of float32, float16 or bfloat16
        A row for each token.
    out : array (tokens, hidden) of float32
        Takes the result.
    scale : float
        Factor on the row of the token, rounded to float32.
    positions : array (tokens,) of int32 or int64, optional
        Rows of `position_table`, one for each token.
    position_table : array (num_positions, hidden) of float32, float16 or bfloat16, optional
        Added to the scaled row.

    Raises
    ------
    ContractError
        Shapes or types do not fit, or an id of the host is out of range.

    Notes
    -----
    Mutates: `out`. Agreement: EXACT. Twin: ``pagedref.layers.embed``.
    """
    arrays = {"token_ids": token_ids, "table": table, "out": out}
    dims = checked("embed", arrays | {"positions": positions, "position_table": position_table})
    ids = _in_range("token_ids", token_ids, dims["vocab_size"])
    places = None
    if position_table is not None:
        if positions is None:
            validate.fail("embed", "positions", "are missing", None, "one for each token beside position_table")
        places = _runtime.readable(_in_range("positions", positions, dims["num_positions"]))
    more = None if position_table is None else Weight(position_table)
    with _runtime.written(out) as (target,):
        if _runtime.SIMULATOR and places is None:
            places = _runtime.readable(ids[:0])
        launch_embed(_runtime.readable(ids), Weight(table), target, scale, places, more)


def _in_range(name: str, ids: Any, size: int) -> Any:
    """Return ids as int64; those of the host are looked at."""
    if hasattr(ids, "__cuda_array_interface__"):
        return ids
    whole = np.asarray(ids, np.int64)
    if whole.size and not (whole.min() >= 0 and whole.max() < size):
        wrong = int(whole.min() if whole.min() < 0 else whole.max())
        validate.fail("embed", name, "are out of range", wrong, f"0..{size - 1}")
    return whole
