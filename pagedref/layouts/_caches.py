"""The tensors that hold keys and values: axes exchanged, joined and split; views wherever strides can say it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagedref import validate

Array = npt.NDArray[Any]

_NHD = "(num_frames, page_size, num_kv_heads, head_dim)"


def axes_of(function: str, name: str, array: Any, count: int, shape: str) -> Array:
    """Return an array that has the right number of axes.

    Parameters
    ----------
    function, name : str
        For the error text.
    array : object
        As given.
    count : int
        Axes.
    shape : str
        What is needed, for the error text.

    Returns
    -------
    array
        The same.

    Raises
    ------
    ContractError
        Not an array of NumPy, or of another number of axes.
    """
    if not isinstance(array, np.ndarray):
        validate.fail(function, name, "is not an array of NumPy", type(array).__name__, f"{shape}; see numpy_from_any")
    if array.ndim != count:
        validate.fail(function, name, "has the wrong number of dimensions", array.shape, shape)
    return array


def _pair(function: str, k_cache: Any, v_cache: Any, count: int = 4, shape: str = _NHD) -> tuple[Array, Array]:
    """Return two caches of one shape and type."""
    k, v = axes_of(function, "k_cache", k_cache, count, shape), axes_of(function, "v_cache", v_cache, count, shape)
    if v.shape != k.shape:
        validate.fail(function, "v_cache", "has another shape than k_cache", v.shape, str(k.shape))
    if v.dtype != k.dtype:
        validate.fail(function, "v_cache", "has another type than k_cache", v.dtype, str(k.dtype))
    return k, v


def hnd_from_nhd(cache: Array) -> Array:
    """Return a cache with the axis of heads before that of slots (S23).

    Parameters
    ----------
    cache : array (num_frames, page_size, num_kv_heads, head_dim)
        Ours.

    Returns
    -------
    array (num_frames, num_kv_heads, page_size, head_dim)
        A view.

    Raises
    ------
    ContractError
        Not four axes.

    Examples
    --------
    >>> hnd_from_nhd(np.zeros((8, 16, 2, 64))).shape
    (8, 2, 16, 64)
    """
    return axes_of("hnd_from_nhd", "cache", cache, 4, _NHD).transpose(0, 2, 1, 3)


def nhd_from_hnd(cache: Array) -> Array:
    """Return a cache with the axis of slots before that of heads: ours (S23).

    Parameters
    ----------
    cache : array (num_frames, num_kv_heads, page_size, head_dim)
        HND of FlashInfer, vLLM and TensorRT-LLM.

    Returns
    -------
    array (num_frames, page_size, num_kv_heads, head_dim)
        A view: every operation takes it as it is.

    Raises
    ------
    ContractError
        Not four axes.

    Examples
    --------
    >>> nhd_from_hnd(np.zeros((8, 2, 16, 64))).shape
    (8, 16, 2, 64)
    """
    shape = "(num_frames, num_kv_heads, page_size, head_dim)"
    return axes_of("nhd_from_hnd", "cache", cache, 4, shape).transpose(0, 2, 1, 3)


def combined_from_kv(k_cache: Array, v_cache: Array, axis: int = 1) -> Array:
    """Return one tensor that holds keys (0) and values (1) along a further axis.

    Parameters
    ----------
    k_cache, v_cache : arrays of one shape, NHD or HND
        Ours.
    axis : int
        Where the further axis stands: 1 is FlashInfer's ``[pages, 2, ...]``, 0 vLLM's ``[2, pages, ...]``.

    Returns
    -------
    array of five axes
        A copy: two tensors cannot be one.

    Raises
    ------
    ContractError
        Different shapes or types, or an axis that is neither 0 nor 1.

    Examples
    --------
    >>> combined_from_kv(np.zeros((8, 16, 2, 64)), np.ones((8, 16, 2, 64))).shape
    (8, 2, 16, 2, 64)
    """
    k, v = _pair("combined_from_kv", k_cache, v_cache)
    _axis("combined_from_kv", axis)
    return np.stack([k, v], axis=axis)


def kv_from_combined(combined: Array, axis: int = 1) -> tuple[Array, Array]:
    """Return keys and values of one tensor that holds both.

    Parameters
    ----------
    combined : array of five axes
        Keys (0) and values (1) along `axis`.
    axis : int
        1 is FlashInfer's ``[pages, 2, ...]``, 0 vLLM's ``[2, pages, ...]``.

    Returns
    -------
    k_cache, v_cache : arrays of four axes
        Views.

    Raises
    ------
    ContractError
        Not five axes, or the axis is not of length 2.

    Examples
    --------
    >>> k_cache, v_cache = kv_from_combined(np.zeros((8, 2, 16, 4, 64)))
    >>> k_cache.shape
    (8, 16, 4, 64)
    """
    _axis("kv_from_combined", axis)
    both = axes_of("kv_from_combined", "combined", combined, 5, "five axes, one of them of length 2")
    if both.shape[axis] != 2:
        validate.fail("kv_from_combined", "combined", f"holds no pair on axis {axis}", both.shape, "length 2 there")
    k, v = np.moveaxis(both, axis, 0)
    return k, v


def _axis(function: str, axis: object) -> None:
    if axis not in (0, 1) or isinstance(axis, bool):
        validate.fail(function, "axis", "is wrong", repr(axis), "0 or 1")


def interleaved_from_kv(k_cache: Array, v_cache: Array) -> Array:
    """Return pages whose heads are K0, V0, K1, V1, ...: JAX ragged paged attention.

    Parameters
    ----------
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, head_dim)
        Ours, of one shape.

    Returns
    -------
    array (num_frames, page_size, 2 * num_kv_heads, head_dim)
        A copy.

    Raises
    ------
    ContractError
        Different shapes or types.

    Examples
    --------
    >>> interleaved_from_kv(np.zeros((8, 16, 2, 1)), np.ones((8, 16, 2, 1)))[0, 0].ravel().tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    k, v = _pair("interleaved_from_kv", k_cache, v_cache)
    frames, page_size, heads, dim = k.shape
    return np.stack([k, v], axis=3).reshape(frames, page_size, 2 * heads, dim)


def kv_from_interleaved(pages: Array) -> tuple[Array, Array]:
    """Return keys and values of pages whose heads are K0, V0, K1, V1, ...

    Parameters
    ----------
    pages : array (num_frames, page_size, 2 * num_kv_heads, head_dim)
        Of JAX ragged paged attention.

    Returns
    -------
    k_cache, v_cache : arrays (num_frames, page_size, num_kv_heads, head_dim)
        Views.

    Raises
    ------
    ContractError
        Not four axes, or an odd number of heads.

    Examples
    --------
    >>> k_cache, v_cache = kv_from_interleaved(np.zeros((8, 16, 4, 64)))
    >>> v_cache.shape
    (8, 16, 2, 64)
    """
    shape = "(num_frames, page_size, 2 * num_kv_heads, head_dim)"
    both = axes_of("kv_from_interleaved", "pages", pages, 4, shape)
    if both.shape[2] % 2:
        validate.fail("kv_from_interleaved", "pages", "has an odd number of heads", both.shape[2], shape)
    return both[:, :, 0::2], both[:, :, 1::2]


def packed_from_k(k_cache: Array, x: int | None = None) -> Array:
    """Return keys with x channels side by side: vLLM's first layout.

    Parameters
    ----------
    k_cache : array (num_frames, page_size, num_kv_heads, head_dim)
        Ours.
    x : int, optional
        Channels side by side, a divisor of head_dim; by default 16 bytes of them.

    Returns
    -------
    array (num_frames, num_kv_heads, head_dim / x, page_size, x)
        A view.

    Raises
    ------
    ContractError
        Not four axes, or `x` does not divide head_dim.

    Examples
    --------
    >>> packed_from_k(np.zeros((8, 16, 2, 64), np.float16)).shape
    (8, 2, 8, 16, 8)
    """
    cache = axes_of("packed_from_k", "k_cache", k_cache, 4, _NHD)
    frames, page_size, heads, dim = cache.shape
    width = max(16 // cache.itemsize, 1) if x is None else x
    if isinstance(width, bool) or not isinstance(width, int | np.integer) or width < 1 or dim % width:
        validate.fail("packed_from_k", "x", "does not divide head_dim", width, f"a divisor of {dim}")
    return cache.reshape(frames, page_size, heads, dim // width, width).transpose(0, 2, 3, 1, 4)


def k_from_packed(packed: Array) -> Array:
    """Return the keys of vLLM's first layout.

    Parameters
    ----------
    packed : array (num_frames, num_kv_heads, head_dim / x, page_size, x)
        Theirs.

    Returns
    -------
    array (num_frames, page_size, num_kv_heads, head_dim)
        A copy if the packs lie apart, as in vLLM they do; a view of what `packed_from_k` gave.

    Raises
    ------
    ContractError
        Not five axes.

    Examples
    --------
    >>> k_from_packed(np.zeros((8, 2, 8, 16, 8))).shape
    (8, 16, 2, 64)
    """
    shape = "(num_frames, num_kv_heads, head_dim / x, page_size, x)"
    frames, heads, packs, page_size, x = axes_of("k_from_packed", "packed", packed, 5, shape).shape
    return packed.transpose(0, 3, 1, 2, 4).reshape(frames, page_size, heads, packs * x)


def channels_first_from_v(v_cache: Array) -> Array:
    """Return values with the axis of channels before that of slots: vLLM's first layout.

    Parameters
    ----------
    v_cache : array (num_frames, page_size, num_kv_heads, v_head_dim)
        Ours.

    Returns
    -------
    array (num_frames, num_kv_heads, v_head_dim, page_size)
        A view.

    Raises
    ------
    ContractError
        Not four axes.

    Examples
    --------
    >>> channels_first_from_v(np.zeros((8, 16, 2, 64))).shape
    (8, 2, 64, 16)
    """
    return axes_of("channels_first_from_v", "v_cache", v_cache, 4, _NHD).transpose(0, 2, 3, 1)


def v_from_channels_first(cache: Array) -> Array:
    """Return the values of vLLM's first layout.

    Parameters
    ----------
    cache : array (num_frames, num_kv_heads, v_head_dim, page_size)
        Theirs.

    Returns
    -------
    array (num_frames, page_size, num_kv_heads, v_head_dim)
        A view.

    Raises
    ------
    ContractError
        Not four axes.

    Examples
    --------
    >>> v_from_channels_first(np.zeros((8, 2, 64, 16))).shape
    (8, 16, 2, 64)
    """
    shape = "(num_frames, num_kv_heads, v_head_dim, page_size)"
    return axes_of("v_from_channels_first", "cache", cache, 4, shape).transpose(0, 3, 1, 2)
