"""Ordered attention of one query and one head, number by number: what the fast path and every kernel must equal.

No array operation, no batch, no pages: the loops below *are* the definition of the bits. It is written to be read, and
takes milliseconds for what :mod:`pagedref.attention.ordered` does in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref.attention.elementary import ordered_exp, ordered_lse, ordered_tanh
from pagedref.attention.tree import TILE

__all__ = ["ordered_row"]

Array = npt.NDArray[Any]
_f = np.float32
_ZERO, _INFINITY, _NAN = _f(0), _f(np.inf), _f(np.nan)


class _State(NamedTuple):
    """A node of the tree: largest score, total weight, weighted values."""

    top: Any
    total: Any
    values: list[Any]


def _tree(terms: Sequence[Any]) -> Any:
    """Add up neighbours in pairs, the pairs in pairs, until one is left; a last single one goes up as it is."""
    while len(terms) > 1:
        sums = [left + right for left, right in zip(terms[0::2], terms[1::2], strict=False)]
        terms = sums + ([terms[-1]] if len(terms) % 2 else [])
    return terms[0]


def _merge(left: _State, right: _State) -> _State:
    """Merge two nodes whose keys lie side by side."""
    top = max(left.top, right.top)
    shift = _ZERO if top == -_INFINITY else top
    scale_left, scale_right = ordered_exp(left.top - shift), ordered_exp(right.top - shift)
    total = left.total * scale_left + right.total * scale_right
    values = [a * scale_left + b * scale_right for a, b in zip(left.values, right.values, strict=True)]
    return _State(top, total, values)


def _tile(scores: dict[int, Any], values: Array, first: int) -> _State:
    """Return the leaf of the tree that holds the positions ``first .. first + TILE - 1``; `scores` are those seen."""
    lanes = [scores.get(position, -_INFINITY) for position in range(first, first + TILE)]
    top = max(lanes)
    shift = _ZERO if top == -_INFINITY else top
    weights = [ordered_exp(score - shift) for score in lanes]
    weighted = [
        [weight * values[first + lane, d] if first + lane in scores else _ZERO for lane, weight in enumerate(weights)]
        for d in range(values.shape[1])
    ]
    return _State(top, _tree(weights), [_tree(terms) for terms in weighted])


def _node(tiles: dict[int, _State], first: int, count: int) -> _State | None:
    """Return the node of the tiles ``first .. first + count - 1``, `count` a power of two; None without keys."""
    if count == 1:
        return tiles.get(first)
    left, right = (_node(tiles, start, count // 2) for start in (first, first + count // 2))
    if left is None or right is None:
        return left if right is None else right
    return _merge(left, right)


def ordered_row(
    query: Array,
    keys: Array,
    values: Array,
    position: int,
    seen: Sequence[int],
    *,
    sm_scale: float,
    softcap: float | None = None,
    slope: float | None = None,
    sink: float | None = None,
) -> tuple[Array, np.float32]:
    """Attend with one query of one head.

    Parameters
    ----------
    query : array (head_dim,) of float32
        The query.
    keys, values : arrays (kv_len, head_dim) and (kv_len, v_head_dim) of float32
        All live keys and values of the kv head, in order of position.
    position : int
        Of the query (S3).
    seen : sequence of int
        Positions of the keys that the query sees, ascending.
    sm_scale, softcap, slope, sink : float
        As in ``paged_prefill``, for this head; None = off.

    Returns
    -------
    out : array (v_head_dim,) of float32
    lse : numpy.float32

    Notes
    -----
    Mutates: nothing. Agreement: ORDERED.

    Examples
    --------
    Two of three keys, of equal score 0:

    >>> keys, values = np.zeros((3, 1), np.float32), np.float32([[1], [3], [np.nan]])
    >>> out, lse = ordered_row(np.ones(1, np.float32), keys, values, 2, [0, 1], sm_scale=1.0)
    >>> out.tolist(), round(float(np.exp(lse)), 5)
    ([2.0], 2.0)
    """
    with np.errstate(all="ignore"):
        high = _f(sm_scale)
        low = _f(sm_scale - float(high)) if np.isfinite(high) else _ZERO
        scaled = [number * high + number * low for number in query]
        scores = {}
        for key in seen:
            score = _tree([a * b for a, b in zip(scaled, keys[key], strict=True)])
            if softcap is not None and np.isfinite(cap := _f(softcap)):
                score = cap * ordered_tanh(score / cap)
            if slope is not None:
                upper = _f((_f(slope).view(np.int32) & np.int32(-4096)).view(np.float32))
                distance = _f(key - position)
                score = (score + (_f(slope) - upper) * distance) + upper * distance
            scores[key] = score
        tiles = {key // TILE: key // TILE * TILE for key in seen}
        padded = np.concatenate([values, np.zeros((TILE, values.shape[1]), np.float32)])
        leaves = {tile: _tile(scores, padded, first) for tile, first in tiles.items()}
        root = _node(leaves, 0, 1 << max(tiles, default=0).bit_length())
        if root is None or root.total == 0:
            root = _State(-_INFINITY, _ZERO, [_ZERO] * values.shape[1])
        if sink is not None:
            root = _merge(root, _State(_f(sink), _f(1), [_ZERO] * values.shape[1]))
        total = _f(1) if root.total == 0 else root.total
        out = [number / total + _ZERO for number in root.values]
        lse: Any = ordered_lse(root.top, root.total)
        canonical = [_NAN if np.isnan(number) else number for number in out]  # one NaN of many
        return np.array(canonical, np.float32), _NAN if np.isnan(lse) else lse
