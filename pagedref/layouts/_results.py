"""The lse of other systems: base, order of axes, and what stands where there is no key (S8, S9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate

Array = npt.NDArray[Any]

_LN_2 = float(np.log(2.0))


def _floats(function: str, lse: Any) -> Array:
    if not isinstance(lse, np.ndarray) or lse.dtype.kind != "f":
        validate.fail(function, "lse", "is no array of floats", getattr(lse, "dtype", type(lse).__name__), "an array")
    return lse


def base_2_from_natural(lse: Array) -> Array:
    """Return an lse to base 2: FlashInfer (S9).

    Parameters
    ----------
    lse : float array
        Natural logarithms.

    Returns
    -------
    array of the same shape and type
        A copy, divided by ``ln 2`` in float64 and rounded once; infinities stay.

    Raises
    ------
    ContractError
        Not an array of floats.

    Examples
    --------
    >>> base_2_from_natural(np.log([2.0, 8.0])).round(12).tolist()
    [1.0, 3.0]
    """
    natural = _floats("base_2_from_natural", lse)
    return (natural.astype(np.float64) / _LN_2).astype(natural.dtype)


def natural_from_base_2(lse: Array) -> Array:
    """Return the natural lse of one to base 2 (S9).

    Parameters
    ----------
    lse : float array
        Logarithms to base 2.

    Returns
    -------
    array of the same shape and type
        A copy, multiplied by ``ln 2`` in float64 and rounded once; infinities stay.

    Raises
    ------
    ContractError
        Not an array of floats.

    Examples
    --------
    >>> np.exp(natural_from_base_2(np.array([1.0, 3.0]))).round(12).tolist()
    [2.0, 8.0]
    """
    binary = _floats("natural_from_base_2", lse)
    return (binary.astype(np.float64) * _LN_2).astype(binary.dtype)


def heads_first_from_tokens_first(lse: Array) -> Array:
    """Return an lse as flash-attention and vLLM lay it out: heads before tokens.

    Parameters
    ----------
    lse : array (..., num_tokens, num_qo_heads)
        Ours.

    Returns
    -------
    array (..., num_qo_heads, num_tokens)
        A view.

    Raises
    ------
    ContractError
        Fewer than two axes.

    Examples
    --------
    >>> heads_first_from_tokens_first(np.zeros((5, 8))).shape
    (8, 5)
    """
    return _exchanged("heads_first_from_tokens_first", lse)


def tokens_first_from_heads_first(lse: Array) -> Array:
    """Return an lse as we lay it out: tokens before heads.

    Parameters
    ----------
    lse : array (..., num_qo_heads, num_tokens)
        Of flash-attention and vLLM.

    Returns
    -------
    array (..., num_tokens, num_qo_heads)
        A view.

    Raises
    ------
    ContractError
        Fewer than two axes.

    Examples
    --------
    >>> tokens_first_from_heads_first(np.zeros((8, 5))).shape
    (5, 8)
    """
    return _exchanged("tokens_first_from_heads_first", lse)


def _exchanged(function: str, lse: Any) -> Array:
    array = _floats(function, lse)
    if array.ndim < 2:
        validate.fail(function, "lse", "has too few dimensions", array.shape, "at least 2")
    return array.swapaxes(-1, -2)


def plus_infinity_from_empty(lse: Array) -> Array:
    """Return an lse that is +inf where no key is seen: flash-attention 2, FlashMLA (S8).

    Parameters
    ----------
    lse : float array
        -inf where no key is seen.

    Returns
    -------
    array of the same shape and type
        A copy.

    Raises
    ------
    ContractError
        Not an array of floats.

    Examples
    --------
    >>> plus_infinity_from_empty(np.array([1.0, -np.inf])).tolist()
    [1.0, inf]
    """
    array = _floats("plus_infinity_from_empty", lse)
    return np.where(np.isneginf(array), np.asarray(np.inf, array.dtype), array)


def empty_from_plus_infinity(lse: Array) -> Array:
    """Return an lse that is -inf where no key is seen (S8).

    Parameters
    ----------
    lse : float array
        +inf where no key is seen, as flash-attention 2 and FlashMLA have it.

    Returns
    -------
    array of the same shape and type
        A copy if there is such a row, what went in otherwise.

    Raises
    ------
    ContractError
        Not an array of floats.

    Notes
    -----
    A key whose score is +inf has an lse of +inf by right; a system that means "empty" by it cannot tell the two apart.

    Examples
    --------
    >>> empty_from_plus_infinity(np.array([1.0, np.inf])).tolist()
    [1.0, -inf]
    """
    array = _floats("empty_from_plus_infinity", lse)
    empty = np.isposinf(array)
    return np.where(empty, np.asarray(-np.inf, array.dtype), array) if empty.any() else array
