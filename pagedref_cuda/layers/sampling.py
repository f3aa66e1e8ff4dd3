"""A random token on the device: the twin of :func:`pagedref.layers.sample`, the same token for the same logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda, float32, int32

from pagedref import validate
from pagedref_cuda import _runtime
from pagedref_cuda._runtime import device_function, kernel
from pagedref_cuda.elementary import ordered_log
from pagedref_cuda.layers._checks import checked
from pagedref_cuda.layers._warps import NO_COLUMN, block_best

__all__ = ["launch_sample", "sample"]

Array = npt.NDArray[Any]

_word = np.uint64
_MULTIPLIER_A, _MULTIPLIER_C = _word(0xD2511F53), _word(0xCD9E8D57)
_WEYL_A, _WEYL_C = _word(0x9E3779B9), _word(0xBB67AE85)
_LOW, _HALF_WORD, _ZERO_WORD = _word(0xFFFFFFFF), _word(32), _word(0)
_UNIT, _NEAR_ZERO = np.float32(2.0**-32), np.float32(2.0**-10)
_ONE, _HALF, _THIRD = np.float32(1), np.float32(0.5), np.float32(1 / 3)
_SMALLEST, _LARGEST = np.float32(2.0**-33), np.float32(1 - 2.0**-24)
_LOWEST = np.float32(-np.inf)
_THREADS = 512


@device_function
def _random_words(counter: Any, draw: Any, stream: Any, seed: Any) -> tuple[Any, Any, Any, Any]:
    """Return four random words: Philox4x32 with ten rounds, all arguments of uint64."""
    a = counter
    b = draw
    c = stream
    d = _ZERO_WORD
    key_a = seed & _LOW
    key_c = seed >> _HALF_WORD
    for _turn in range(10):
        first = a * _MULTIPLIER_A
        second = c * _MULTIPLIER_C
        a = (second >> _HALF_WORD) ^ b ^ key_a
        c = (first >> _HALF_WORD) ^ d ^ key_c
        b = second & _LOW
        d = first & _LOW
        key_a = (key_a + _WEYL_A) & _LOW
        key_c = (key_c + _WEYL_C) & _LOW
    return a, b, c, d


@device_function
def _gumbel(word: Any) -> Any:
    """Turn a random word into a number of the Gumbel distribution."""
    w = min(np.float32(np.uint32(word)) * _UNIT + _SMALLEST, _LARGEST)
    if w < _NEAR_ZERO:
        waiting = w + w * w * (_HALF + w * _THIRD)
    else:
        waiting = -ordered_log(_ONE - w)
    return -ordered_log(waiting)


_SIGNATURE = ("float32[:, :]", "float32", "uint64", "uint64", "int64[:]", "int64[:]")


@kernel(_SIGNATURE, fma=False)
def sample_1(logits: Array, factor: np.float32, seed: Any, draw: Any, streams: Array, chosen: Array) -> None:
    """Add noise to each number of each row and find the largest sum, the first of equals.

    Launch: a thread owns one row. Reads: its row. Writes: its number of `chosen`. Barriers: none. Rung: 1, the
    reference line by line; products and sums are rounded one after the other.
    """
    row = cuda.grid(1)
    if row >= logits.shape[0]:
        return
    stream = np.uint64(streams[row]) if streams.shape[0] > 0 else _ZERO_WORD
    width = logits.shape[1]
    value = _LOWEST
    best = 0
    for group in range((width + 3) // 4):
        words = _random_words(np.uint64(group), draw, stream, seed)
        for j in range(min(4, width - 4 * group)):
            column = 4 * group + j
            number = logits[row, column] * factor + _gumbel(words[j])
            if column == 0 or number > value:
                value = number
                best = column
    chosen[row] = best


@kernel(_SIGNATURE, fma=False, launch_bounds=_THREADS)
def sample_2(logits: Array, factor: np.float32, seed: Any, draw: Any, streams: Array, chosen: Array) -> None:
    """Add noise to each number of each row and find the largest sum, the first of equals.

    Launch: a block of 512 threads owns one row, a thread four numbers at a time, which share one mixing. Reads: its
    row. Writes: its number of `chosen`. Barriers: two. Rung: 2, as in `argmax_2`.
    """
    row = cuda.blockIdx.x
    if row >= logits.shape[0]:
        return
    values = cuda.shared.array(32, float32)
    columns = cuda.shared.array(32, int32)
    stream = np.uint64(streams[row]) if streams.shape[0] > 0 else _ZERO_WORD
    width = logits.shape[1]
    value = _LOWEST
    best = NO_COLUMN
    for group in range(cuda.threadIdx.x, (width + 3) // 4, _THREADS):
        words = _random_words(np.uint64(group), draw, stream, seed)
        for j in range(4):
            column = 4 * group + j
            if column < width:
                number = logits[row, column] * factor + _gumbel(words[j])
                if best == NO_COLUMN or number > value:
                    value = number
                    best = np.int32(column)
    value, best = block_best(value, best, values, columns)
    if cuda.threadIdx.x == 0:
        chosen[row] = best


def launch_sample(logits: Any, factor: np.float32, seed: int, draw: int, streams: Any, chosen: Any) -> None:
    """Choose a random column of rows that lie on the device.

    Parameters
    ----------
    logits : array (tokens, columns) of float32
        At least one column.
    factor : float32
        ``1 / temperature``.
    seed, draw : int
        As in :func:`sample`.
    streams : array (tokens,) of int64
        One without elements is all 0.
    chosen : array (tokens,) of int64
        Takes the columns.
    """
    arguments = (logits, factor, np.uint64(seed), np.uint64(draw), streams, chosen)
    if _runtime.SIMULATOR:
        with np.errstate(over="ignore"):  # products of uint64 wrap
            sample_1.launch(logits.shape[0], *arguments)
    else:
        sample_2.launch_grid(logits.shape[0], _THREADS, *arguments)


def sample(logits: Array, temperature: float, seed: int, draw: int, *, streams: Array | None = None) -> Any:
    """Choose a random column of each row, with the chances of ``softmax(logits / temperature)``.

    Parameters
    ----------
    logits : array (tokens, columns) of float32
        ``-inf`` is never chosen, unless the row has nothing else; no NaN.
    temperature : float
        > 0.
    seed : int
        In ``0 .. 2**64 - 1``.
    draw : int
        Number of the choice within a text, ``0 .. 2**32 - 1``.
    streams : array (tokens,) of int64, optional
        Number of the text of each row, ``0 .. 2**32 - 1``; by default all 0.

    Returns
    -------
    array (tokens,) of int64

    Raises
    ------
    ContractError
        A number is out of range, or shape or type does not fit.

    Notes
    -----
    Agreement: EXACT. Twin: ``pagedref.layers.sample``.
    """
    if checked("sample", {"logits": logits, "streams": streams})["columns"] < 1:
        validate.fail("sample", "logits", "have no columns", tuple(logits.shape), "one or more")
    with np.errstate(all="ignore"):
        factor = _ONE / np.float32(temperature)
    if not 0 < factor < np.inf:
        validate.fail("sample", "temperature", "is out of range", temperature, "> 0 and finite")
    for name, value, bits in (("seed", seed, 64), ("draw", draw, 32)):
        if not 0 <= value < 1 << bits:
            validate.fail("sample", name, "is out of range", value, f"0..2**{bits} - 1")
    texts = np.zeros(0, np.int64) if streams is None else streams
    if isinstance(texts, np.ndarray):
        texts = texts.astype(np.int64, copy=False)
        wrong = [stream for stream in texts.tolist() if not 0 <= stream < 1 << 32]
        if wrong:
            validate.fail("sample", "streams", "are out of range", wrong[0], "0..2**32 - 1")
    chosen = _runtime.empty((logits.shape[0],), np.int64)
    launch_sample(_runtime.readable(logits), factor, seed, draw, _runtime.readable(texts), chosen)
    return _runtime.to_host(chosen)
