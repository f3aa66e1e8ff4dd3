"""Rotary embedding of rows: pairs of numbers of each head are turned by the angle of their position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["rotary_tables", "rotate"]

Float32 = npt.NDArray[np.float32]


def rotary_tables(inv_freq: npt.NDArray[np.float64], positions: npt.NDArray[np.int64]) -> tuple[Float32, Float32]:
    """Return cosine and sine of the angle of each position and pair.

    Parameters
    ----------
    inv_freq : array (pairs,) of float64
        Radians per position, scaling included.
    positions : array (tokens,) of int64
        Absolute positions, >= 0.

    Returns
    -------
    cos, sin : arrays (tokens, 1, pairs) of float32
        Computed in float64 and rounded once: the same for prefill and for decode (P66).

    Examples
    --------
    >>> cos, sin = rotary_tables(np.array([1.0]), np.array([0, 1]))
    >>> cos.shape, np.round(sin.ravel(), 4).tolist()
    ((2, 1, 1), [0.0, 0.8414999842643738])
    """
    angles = positions[:, None, None] * inv_freq  # (tokens, 1, pairs)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: Float32, cos: Float32, sin: Float32, *, interleaved: bool = False) -> None:
    """Turn the pairs of each head by the angle of its position.

    Parameters
    ----------
    x : array (tokens, heads, head_dim) of float32
        Queries or keys, or both side by side.
    cos, sin : arrays (tokens, 1, pairs) of float32
        From :func:`rotary_tables`. With fewer pairs than ``head_dim / 2``, the numbers behind the first ``2 * pairs``
        stay as they are.
    interleaved : bool
        Pairs are ``(2 i, 2 i + 1)``; by default ``(i, i + pairs)``.

    Notes
    -----
    Mutates: `x`. Agreement: BOUND. Twin: ``pagedref_cuda.layers.rotate``.

    References
    ----------
    J. Su et al., RoFormer, 2021 (interleaved); the half-split order of pairs is that of GPT-NeoX and Hugging Face.

    Examples
    --------
    Position 1, one head of four: the first pair is ``(0, 2)``.

    >>> x = np.array([[[1.0, 0.0, 0.0, 0.0]]], np.float32)
    >>> rotate(x, *rotary_tables(np.array([1.0, 0.01]), np.array([1])))
    >>> np.round(x.ravel(), 4).tolist()
    [0.5403000116348267, 0.0, 0.8414999842643738, 0.0]
    """
    pairs = cos.shape[-1]
    if interleaved:
        first, second = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    else:
        first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
    turned = first * sin
    back = second * sin
    first *= cos
    first -= back
    second *= cos
    second += turned
