"""The small steps between the matrix products: norm, gate, rotary embedding. Each works row by row and in place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["rms_norm", "rotary_tables", "rotate", "silu_gate"]

Float32 = npt.NDArray[np.float32]


def rms_norm(x: Float32, weight: Float32, eps: float, out: Float32) -> None:
    """Divide each row by its root mean square and multiply it by the weight.

    Parameters
    ----------
    x : array (tokens, hidden) of float32
        Rows.
    weight : array (hidden,) of float32
        Factor of each column.
    eps : float
        Added to the mean square, > 0.
    out : array (tokens, hidden) of float32
        Takes the result; not `x`.

    Notes
    -----
    Mutates: `out`.

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
    size = np.vecdot(x, x)  # (tokens,)
    size /= np.float32(x.shape[1])
    size += np.float32(eps)
    np.sqrt(size, out=size)
    np.divide(x, size[:, None], out=out)
    out *= weight


def silu_gate(gate: Float32, up: Float32, out: Float32) -> None:
    """Compute ``silu(gate) * up``, with ``silu(g) = g / (1 + exp(-g))``.

    Parameters
    ----------
    gate, up : arrays (tokens, intermediate) of float32
        The two projections.
    out : array (tokens, intermediate) of float32
        Takes the result; neither `gate` nor `up`.

    Notes
    -----
    Mutates: `out`. Safe for any gate: ``exp`` may overflow to infinity, which gives 0.

    References
    ----------
    N. Shazeer, GLU Variants Improve Transformer, 2020.

    Examples
    --------
    >>> gate, out = np.array([[0.0, 100.0, -200.0]], np.float32), np.empty((1, 3), np.float32)
    >>> silu_gate(gate, np.full((1, 3), 2.0, np.float32), out)
    >>> out.tolist()
    [[0.0, 200.0, -0.0]]
    """
    with np.errstate(over="ignore"):
        np.negative(gate, out=out)
        np.exp(out, out=out)
    out += np.float32(1)
    np.divide(gate, out, out=out)
    out *= up


def rotary_tables(inv_freq: npt.NDArray[np.float64], positions: npt.NDArray[np.int64]) -> tuple[Float32, Float32]:
    """Return cosine and sine of the angle of each position and pair.

    Parameters
    ----------
    inv_freq : array (head_dim / 2,) of float64
        Radians per position, scaling included.
    positions : array (tokens,) of int64
        Absolute positions, >= 0.

    Returns
    -------
    cos, sin : arrays (tokens, 1, head_dim / 2) of float32
        Computed in float64 and rounded once: the same for prefill and for decode (P66).

    Examples
    --------
    >>> cos, sin = rotary_tables(np.array([1.0]), np.array([0, 1]))
    >>> cos.shape, np.round(sin.ravel(), 4).tolist()
    ((2, 1, 1), [0.0, 0.8414999842643738])
    """
    angles = positions[:, None, None] * inv_freq  # (tokens, 1, head_dim / 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: Float32, cos: Float32, sin: Float32) -> None:
    """Turn the pairs ``(i, i + head_dim / 2)`` of each head by the angle of its position.

    Parameters
    ----------
    x : array (tokens, heads, head_dim) of float32
        Queries or keys, or both side by side.
    cos, sin : arrays (tokens, 1, head_dim / 2) of float32
        From :func:`rotary_tables`.

    Notes
    -----
    Mutates: `x`.

    References
    ----------
    J. Su et al., RoFormer, 2021; the half-split order of pairs is that of GPT-NeoX and Hugging Face.

    Examples
    --------
    Position 1, one head of four: the first pair is ``(0, 2)``.

    >>> x = np.array([[[1.0, 0.0, 0.0, 0.0]]], np.float32)
    >>> rotate(x, *rotary_tables(np.array([1.0, 0.01]), np.array([1])))
    >>> np.round(x.ravel(), 4).tolist()
    [0.5403000116348267, 0.0, 0.8414999842643738, 0.0]
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    turned = first * sin
    back = second * sin
    first *= cos
    first -= back
    second *= cos
    second += turned
