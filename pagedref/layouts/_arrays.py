"""Arrays of other libraries, without importing one: an array, or the caller, brings its library along."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pagedref import validate
from pagedref.errors import NotOffered

Array = npt.NDArray[Any]

# Types that NumPy has from ml_dtypes: torch exchanges them as plain bits. Name in torch and type of the bits.
_BITS = {
    np.dtype(ml_dtypes.bfloat16): ("bfloat16", "int16", np.int16),
    np.dtype(ml_dtypes.float8_e4m3fn): ("float8_e4m3fn", "uint8", np.uint8),
    np.dtype(ml_dtypes.float8_e5m2): ("float8_e5m2", "uint8", np.uint8),
}


def _home(thing: Any) -> str:
    """Return the library of an array or a module."""
    name = getattr(thing, "__name__", None) if hasattr(thing, "__spec__") else type(thing).__module__
    return str(name or "").split(".")[0]


def numpy_from_any(array: Any) -> Array:
    """Return an array of any library as one of NumPy.

    Parameters
    ----------
    array : array
        Of NumPy, torch, JAX, CuPy, Numba, or anything with ``__dlpack__`` or ``__array_interface__``.

    Returns
    -------
    array of the same shape and type
        A view if the memory can be seen from here (JAX gives a read-only one); a copy of what lies on a GPU.
        bfloat16 and fp8 are those of ``ml_dtypes``.

    Raises
    ------
    ContractError
        Not an array.

    Examples
    --------
    >>> import array
    >>> numpy_from_any(memoryview(array.array("f", [1, 2]))).tolist()
    [1.0, 2.0]
    """
    if isinstance(array, np.ndarray):
        return array
    if _home(array) == "torch":
        return _numpy_from_torch(array)
    for method in ("copy_to_host", "get"):  # Numba, CuPy
        if hasattr(array, "__cuda_array_interface__") and callable(getattr(array, method, None)):
            return np.asarray(getattr(array, method)())
    if _home(array) not in ("jax", "jaxlib") and hasattr(array, "__dlpack__"):
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, AttributeError):  # another device or type: NumPy's own way then
            pass
    plain = np.asarray(array)
    if plain.dtype == object:
        validate.fail("numpy_from_any", "array", "is not an array", type(array).__name__, "an array of numbers")
    return plain


def _numpy_from_torch(array: Any) -> Array:
    torch = sys.modules["torch"]
    plain = array.detach().cpu()
    for dtype, (name, bits, _) in _BITS.items():
        if plain.dtype == getattr(torch, name, None):
            return np.asarray(plain.view(getattr(torch, bits)).numpy()).view(dtype)
    return np.asarray(plain.numpy())


def any_from_numpy(array: Array, library: Any, device: Any = None) -> Any:
    """Return an array of NumPy as one of a library.

    Parameters
    ----------
    array : array
        Of NumPy.
    library : module
        ``numpy``, ``torch``, ``jax`` or ``jax.numpy``, ``cupy``, ``numba.cuda``, or any with ``asarray``.
    device : optional
        Where torch puts it.

    Returns
    -------
    array of the library
        Torch on the CPU shares the memory, unless it is read-only or has negative strides; all others copy.

    Raises
    ------
    NotOffered
        The library holds the numbers in another type: JAX has no float64 unless told so.

    Examples
    --------
    >>> numbers = np.arange(3)
    >>> any_from_numpy(numbers, np) is numbers
    True
    """
    home = _home(library)
    if home == "numpy":
        return array
    if home == "torch":
        return _torch_from_numpy(array, library, device)
    if home == "numba":
        return library.to_device(np.ascontiguousarray(array))
    module = library if hasattr(library, "asarray") else library.numpy
    found = module.asarray(array)
    if array.dtype.kind not in "iu" and np.dtype(found.dtype) != array.dtype:
        raise NotOffered(
            f"any_from_numpy: array has a type that {home} does not hold, got {array.dtype}, need e.g. {found.dtype}"
        )
    return found


def _torch_from_numpy(array: Array, torch: Any, device: Any) -> Any:
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    if array.dtype in _BITS:
        name, _, bits = _BITS[array.dtype]
        found = torch.from_numpy(array.view(bits)).view(getattr(torch, name))
    else:
        found = torch.from_numpy(array)
    return found if device is None else found.to(device)
