"""Arguments of layers, checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from pagedref import validate
from pagedref_cuda import _runtime

__all__ = ["checked", "rows", "written_rows"]


def checked(function: str, arrays: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of the dimensions of a layer's arrays, after checking that kernels can run here.

    Parameters
    ----------
    function : str
        A key of ``LAYER_OPERATIONS``.
    arrays : mapping
        By argument name; None for an optional one that is absent.

    Returns
    -------
    dict of str to int

    Raises
    ------
    ContractError
        Shapes or types do not fit.
    BackendUnavailable
        Nothing here can run kernels.
    """
    _runtime.ensure_available()
    return validate.arrays(function, "cuda", arrays)


def rows(array: Any) -> Any:
    """Return an array of two axes: those before the last one become one, without a copy where that is possible.

    Parameters
    ----------
    array : array
        Two axes or more.

    Returns
    -------
    array (n, columns)
    """
    if len(array.shape) == 2:
        return array
    return array.reshape(-1, array.shape[-1])


@contextmanager
def written_rows(*arrays: Any) -> Iterator[list[Any]]:
    """Lend arrays of two axes or more to kernels that write into them as rows.

    Parameters
    ----------
    *arrays : array
        On the host (any strides) or on the device.

    Yields
    ------
    list of array (n, columns)
        What to pass to the kernels, in the same order.
    """
    lent = [rows(array) for array in arrays]
    with _runtime.written(*lent) as found:
        yield found
    for array, two_axes in zip(arrays, lent, strict=True):
        if isinstance(array, np.ndarray) and not np.may_share_memory(array, two_axes):
            array[...] = two_axes.reshape(array.shape)
