"""Norms: each row is brought to a common size. What a sub-layer returned can be added to the rows on the way."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["layer_norm", "rms_norm"]

Float32 = npt.NDArray[np.float32]


def rms_norm(
    x: Float32, weight: Float32, eps: float, out: Float32, *, added: Float32 | None = None, offset: float = 0.0
) -> None:
    """Divide each row by its root mean square and multiply it by the weight.

    Parameters
    ----------
    x : array (tokens, hidden) of float32
        Rows; more axes in front are as good, so heads are normed as ``(tokens, heads, head_dim)``.
    weight : array (hidden,) of float32
        Factor of each column.
    eps : float
        Added to the mean square, > 0.
    out : array (tokens, hidden) of float32
        Takes the result; not `x`.
    added : array (tokens, hidden) of float32, optional
        Added to `x` first, in place: the residual stream takes what a sub-layer returned.
    offset : float
        Added to every factor; 1 where a file stores the difference from 1.

    Notes
    -----
    Mutates: `out`, and `x` if `added` is given. Agreement: BOUND. Twin: ``pagedref_cuda.layers.rms_norm``.

    References
    ----------
    B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, 2019.

    Examples
    --------
    >>> out = np.empty((1, 2), np.float32)
    >>> rms_norm(np.array([[3.0, 3.0]], np.float32), np.array([1.0, 2.0], np.float32), 1e-9, out)
    >>> out.tolist()
    [[1.0, 2.0]]
    """
    if added is not None:
        x += added
    size = np.vecdot(x, x)  # (tokens,)
    size /= np.float32(x.shape[-1])
    size += np.float32(eps)
    np.sqrt(size, out=size)
    np.divide(x, size[..., None], out=out)
    out *= weight if offset == 0 else weight + np.float32(offset)


def layer_norm(
    x: Float32, weight: Float32, bias: Float32 | None, eps: float, out: Float32, *, added: Float32 | None = None
) -> None:
    """Take the mean off each row, divide by the standard deviation, multiply by the weight and add the bias.

    Parameters
    ----------
    x : array (tokens, hidden) of float32
        Rows.
    weight : array (hidden,) of float32
        Factor of each column.
    bias : array (hidden,) of float32, optional
        Added to each column.
    eps : float
        Added to the variance, > 0.
    out : array (tokens, hidden) of float32
        Takes the result; not `x`.
    added : array (tokens, hidden) of float32, optional
        Added to `x` first, in place.

    Notes
    -----
    Mutates: `out`, and `x` if `added` is given. Agreement: BOUND. The variance is the mean square of the differences,
    not a difference of mean squares: nothing cancels. Twin: ``pagedref_cuda.layers.layer_norm``.

    References
    ----------
    J. L. Ba, J. R. Kiros and G. E. Hinton, Layer Normalization, 2016.

    Examples
    --------
    >>> out = np.empty((1, 2), np.float32)
    >>> layer_norm(np.array([[3.0, 5.0]], np.float32), np.ones(2, np.float32), np.ones(2, np.float32), 1e-9, out)
    >>> out.tolist()
    [[0.0, 2.0]]
    """
    if added is not None:
        x += added
    mean = x.mean(axis=-1, keepdims=True)  # (tokens, 1)
    np.subtract(x, mean, out=out)
    size = np.vecdot(out, out)  # (tokens,)
    size /= np.float32(x.shape[-1])
    size += np.float32(eps)
    np.sqrt(size, out=size)
    out /= size[..., None]
    out *= weight
    if bias is not None:
        out += bias
