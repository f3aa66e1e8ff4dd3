"""Where kernels put a state: output and lse, in the types that the caller asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagedref_cuda import _runtime
from pagedref_cuda._numbers import FLOAT32, NUMBERS, Numbers, kind_of, of_words

__all__ = ["RESULT", "Result", "result", "result_arrays"]

Array = npt.NDArray[Any]


class Result(NamedTuple):
    """Where a row goes.

    Attributes
    ----------
    mean : array (tokens, num_qo_heads, v_head_dim) of float32
        The running mean; the output itself where that is float32.
    out : Numbers
        The output in the type of the queries, (1, tokens, num_qo_heads, v_head_dim).
    lse : array (tokens, num_qo_heads) of float32
        Natural log (S9).
    """

    mean: Array
    out: Numbers
    lse: Array


RESULT = (Result, ("float32[:, :, :]", NUMBERS, "float32[:, :]"))
"""Type of :class:`Result` in the signature of a kernel."""


def result(dtype: np.dtype[Any], tokens: int, num_qo_heads: int, v_head_dim: int) -> Result:
    """Return the arrays of a result, not initialised.

    Parameters
    ----------
    dtype : dtype
        Type of the queries.
    tokens, num_qo_heads, v_head_dim : int
        Shape of the output.

    Returns
    -------
    Result
    """
    shape = tokens, num_qo_heads, v_head_dim
    mean = _runtime.empty(shape, np.float32)
    kind = kind_of(dtype)
    out = _runtime.empty((0, 0, 0, 0) if kind == FLOAT32 else (1, *shape), np.uint32 if kind == FLOAT32 else np.uint16)
    return Result(mean, of_words(out, kind), _runtime.empty(shape[:2], np.float32))


def result_arrays(given: Result, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return output and lse on the host.

    Parameters
    ----------
    given : Result
        What a kernel wrote.
    dtype : dtype
        Type of the queries.

    Returns
    -------
    out : array (tokens, num_qo_heads, v_head_dim)
        In that type.
    lse : array (tokens, num_qo_heads) of float32
    """
    if given.out.kind == FLOAT32:
        return _runtime.to_host(given.mean), _runtime.to_host(given.lse)
    return _runtime.to_host(given.out.halves)[0].view(dtype), _runtime.to_host(given.lse)
