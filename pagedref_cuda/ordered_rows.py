"""Query rows in ordered arithmetic on the device: parts of a row, then the row.

Every operation is that of :mod:`pagedref.attention.ordered`, in its order, rounded by itself (``fma=False``), so the
bits are those of NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import cuda

from pagedref_cuda._device import offset_of, page_of
from pagedref_cuda._numbers import FLOAT32, NUMBERS, Numbers, narrow, number, put
from pagedref_cuda._result import RESULT, Result
from pagedref_cuda._runtime import device_function, kernel
from pagedref_cuda._storage import STORED, Stored, stored_number
from pagedref_cuda.elementary import ordered_exp, ordered_lse, ordered_tanh
from pagedref_cuda.tiles import PAGES, RULES, Pages, Rules, refused, visible
from pagedref_cuda.tree import FOREST, TILE, Forest, add_node, close, join, maximum, tree_sum

__all__ = ["SHAPE", "Shape", "ordered_join_1", "ordered_part_1"]

Array = npt.NDArray[Any]

_ZERO, _ONE = np.float32(0), np.float32(1)
_MINUS_INFINITY, _NAN = np.float32(-np.inf), np.float32(np.nan)
_HIGH_BITS = np.int32(-4096)


class Shape(NamedTuple):
    """What one launch computes.

    Attributes
    ----------
    first_row, num_rows : int
        Query rows of this launch.
    num_qo_heads, group_size, head_dim : int
        Geometry.
    parts : int
        Parts of each row.
    sm_low : float32
        What float32 drops of ``sm_scale``.
    sloped : int
        Whether there is a bias.
    """

    first_row: int
    num_rows: int
    num_qo_heads: int
    group_size: int
    head_dim: int
    parts: int
    sm_low: np.float32
    sloped: int


SHAPE = (Shape, (*("int64",) * 6, "float32", "int64"))
"""Type of :class:`Shape` in the signature of a kernel."""


@device_function
def _seen(key: int, start: int, stop: int, first_pair: int, pages: Pages) -> Any:
    if key < start or key >= stop:
        return False
    return pages.mask.shape[0] == 0 or pages.mask[first_pair + key] != 0


@device_function
def _biased(score: np.float32, key: int, position: int, slope: np.float32) -> np.float32:
    """Add the bias in two parts, so that neither product is rounded up to 4096 positions."""
    high = np.int32(slope.view(np.int32) & _HIGH_BITS).view(np.float32)
    distance = np.float32(key - position)
    return (score + (slope - high) * distance) + high * distance


@device_function
def _tile(
    item: int,
    begin: int,
    tile: int,
    sequence: int,
    row: int,
    head: int,
    keys: Stored,
    values: Stored,
    shape: Shape,
    pages: Pages,
    rules: Rules,
    work: Array,
    forest: Forest,
    count: int,
) -> int:
    """Put the leaf of one tile behind the nodes of a part, if a key of it is seen; return how many there are.

    A row of `work` holds the scaled query, the scores or weights of the tile, and terms that are being added up.
    """
    position, start, stop, first_pair = visible(sequence, row, pages, rules)
    first_page = pages.kv_indptr[sequence]
    kv_head = head // shape.group_size
    weights = shape.head_dim
    terms = weights + TILE
    top = _MINUS_INFINITY
    any_seen = False
    for lane in range(TILE):
        key = tile * TILE + lane
        score = _MINUS_INFINITY
        if _seen(key, start, stop, first_pair, pages):
            any_seen = True
            frame = pages.kv_indices[first_page + page_of(key, pages.page_size)]
            offset = offset_of(key, pages.page_size)
            for d in range(shape.head_dim):
                work[item, terms + d] = work[item, d] * stored_number(keys, frame, offset, kv_head, d)
            score = tree_sum(work, item, terms, shape.head_dim)
            if rules.softcap >= _ZERO:
                score = rules.softcap * ordered_tanh(score / rules.softcap)
            if shape.sloped:
                score = _biased(score, key, position, rules.alibi_slopes[head])
        work[item, weights + lane] = score
        top = maximum(top, score)
    if not any_seen:
        return count
    count = close(forest, item, count, begin, tile)
    shift = _ZERO if top == _MINUS_INFINITY else top
    for lane in range(TILE):
        weight = ordered_exp(work[item, weights + lane] - shift)
        work[item, weights + lane] = weight
        work[item, terms + lane] = weight
    forest.firsts[item, count] = tile
    forest.nodes[item, count, 0] = top
    forest.nodes[item, count, 1] = tree_sum(work, item, terms, TILE)
    for d in range(forest.nodes.shape[2] - 2):
        for lane in range(TILE):
            key = tile * TILE + lane
            term = _ZERO
            if _seen(key, start, stop, first_pair, pages):
                frame = pages.kv_indices[first_page + page_of(key, pages.page_size)]
                offset = offset_of(key, pages.page_size)
                term = work[item, weights + lane] * stored_number(values, frame, offset, kv_head, d)
            work[item, terms + lane] = term
        forest.nodes[item, count, 2 + d] = tree_sum(work, item, terms, TILE)
    return count + 1


@device_function
def _border(part: int, shape: Shape, cuts: Array, first: int, stop: int) -> Any:
    """Return the tile at which a part begins: by given tiles, or as even as it goes."""
    if part == 0:
        return first
    if part == shape.parts:
        return stop
    if cuts.shape[0] > 0:
        return min(max(cuts[part - 1], first), stop)
    return first + (stop - first) * part // shape.parts


@kernel(
    (NUMBERS, "int64[:]", STORED, STORED, SHAPE, "int64[:]", PAGES, RULES, "float32[:, :]", FOREST, "int64[:]"),
    fma=False,
)
def ordered_part_1(
    q: Numbers,
    owner: Array,
    keys: Stored,
    values: Stored,
    shape: Shape,
    cuts: Array,
    pages: Pages,
    rules: Rules,
    work: Array,
    forest: Forest,
    counts: Array,
) -> None:
    """Bring one part of the keys of one row and one head down to the nodes whose neighbours lie outside.

    Launch: a thread owns one (row, query head, part); `owner` is the sequence of each row. Reads: its query, the
    visible keys and values of its part. Writes: its row of `work`, of `forest` and of `counts`. Barriers: none. Rung:
    1, the reference line by line; nothing is fused.
    """
    item = cuda.grid(1)
    if item >= shape.num_rows * shape.num_qo_heads * shape.parts:
        return
    if refused(pages.flag):
        return
    part = item % shape.parts
    head = item // shape.parts % shape.num_qo_heads
    row = shape.first_row + item // shape.parts // shape.num_qo_heads
    sequence = owner[row]
    _, start, stop, _ = visible(sequence, row, pages, rules)
    count = 0
    if start < stop:
        for d in range(shape.head_dim):
            x = number(q, 0, row, head, d)
            work[item, d] = x * rules.sm_scale + x * shape.sm_low
        first_tile = page_of(start, TILE)
        stop_tile = page_of(stop - 1, TILE) + 1
        begin = _border(part, shape, cuts, first_tile, stop_tile)
        end = _border(part + 1, shape, cuts, first_tile, stop_tile)
        for tile in range(begin, end):
            count = _tile(
                item, begin, tile, sequence, row, head, keys, values, shape, pages, rules, work, forest, count
            )
        count = close(forest, item, count, begin, end)
    counts[item] = count


@kernel((SHAPE, RULES, "int32[:]", FOREST, "int64[:]", FOREST, RESULT), fma=False)
def ordered_join_1(
    shape: Shape, rules: Rules, flag: Array, parts: Forest, counts: Array, whole: Forest, result: Result
) -> None:
    """Join the parts of one row and one head, merge the sink, divide, take the logarithm.

    Launch: a thread owns one (row, query head). Reads: the nodes of its parts. Writes: its row of `whole` and of
    `result`. Barriers: none. Rung: 1, the reference line by line; nothing is fused.
    """
    item = cuda.grid(1)
    if item >= shape.num_rows * shape.num_qo_heads:
        return
    if refused(flag):
        return
    head = item % shape.num_qo_heads
    row = shape.first_row + item // shape.num_qo_heads
    nodes = whole.nodes
    count = 0
    for part in range(shape.parts):
        source = item * shape.parts + part
        for at in range(counts[source]):
            count = add_node(whole, item, count, parts.firsts[source, at], parts, source, at)
    while count > 1:  # as if the tiles that are missing had no keys
        join(whole, item, count - 2)
        count -= 1
    if count == 0:
        nodes[item, 0, 0] = _MINUS_INFINITY
        nodes[item, 0, 1] = _ZERO
    if nodes[item, 0, 1] == _ZERO:  # scores of -inf have no weight, whatever their values hold
        for i in range(2, nodes.shape[2]):
            nodes[item, 0, i] = _ZERO
    nodes[item, 1, 0] = rules.sinks[head]
    nodes[item, 1, 1] = _ONE
    for i in range(2, nodes.shape[2]):
        nodes[item, 1, i] = _ZERO
    join(whole, item, 0)
    total = nodes[item, 0, 1]
    divisor = _ONE if total == _ZERO else total
    for d in range(result.mean.shape[2]):
        x = nodes[item, 0, 2 + d] / divisor + _ZERO  # +0 for -0
        x = _NAN if x != x else x
        result.mean[row, head, d] = x
        if result.out.kind != FLOAT32:
            put(result.out, 0, row, head, d, narrow(x, result.out.kind))
    lse = ordered_lse(nodes[item, 0, 0], total)
    result.lse[row, head] = _NAN if lse != lse else lse
