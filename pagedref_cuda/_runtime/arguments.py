"""Arguments of compiled kernels: their types, the signature that they fit, and how they are passed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda import types

from pagedref.errors import ContractError
from pagedref_cuda._runtime.compiler import numba_type

if TYPE_CHECKING:
    from pagedref_cuda._runtime.kernels import Kernel

__all__ = ["argument_types", "flatten", "type_of"]


def type_of(argument: Any) -> Any:
    """Return the numba type of an argument of a kernel.

    Parameters
    ----------
    argument : array or number
        NumPy array (bfloat16 too; float8 as words), or number.

    Returns
    -------
    numba type
        Never a literal.

    Raises
    ------
    ContractError
        Numba has no type for it.
    """
    if isinstance(argument, np.ndarray) and argument.dtype.hasobject:
        raise ContractError("emulate: an argument has no numba type, got an array of objects, need numbers")
    if isinstance(argument, np.ndarray) and argument.dtype.name == "bfloat16":
        flags = argument.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        return types.Array(types.bfloat16, argument.ndim, layout, readonly=not flags.writeable, aligned=flags.aligned)
    module: Any = import_module("numba.cuda.typing.typeof")
    try:
        found = module.typeof(argument, module.Purpose.argument)
    except Exception as error:
        what = argument.dtype if isinstance(argument, np.ndarray) else type(argument).__name__
        raise ContractError(
            f"emulate: an argument has no numba type, got {what}, need an array or number that numba knows "
            "(float8 arrays as .view(np.uint8))"
        ) from error
    return found.literal_type if isinstance(found, types.Literal) else found


def flatten(argument: Any, kind: Any) -> list[Any]:
    """Return the kernel parameters that one argument is passed as: an array is its ABI of Numba.

    Parameters
    ----------
    argument : object
        As the kernel takes it.
    kind : numba type
        Its type.

    Returns
    -------
    list
        Arrays stand for their address; the rest are numbers of the right width.

    Raises
    ------
    ContractError
        Such an argument cannot be passed.
    """
    if isinstance(kind, types.Array):
        sizes = [np.int64(size) for size in (*argument.shape, *argument.strides)]
        return [np.int64(0), np.int64(0), np.int64(argument.size), np.int64(argument.dtype.itemsize), argument, *sizes]
    if isinstance(kind, types.BaseTuple):
        return [part for value, inner in zip(argument, kind, strict=True) for part in flatten(value, inner)]
    if isinstance(kind, types.Boolean):
        return [bool(argument)]
    if isinstance(kind, types.Integer | types.Float):
        return [np.dtype(kind.name).type(argument)]
    if isinstance(kind, types.Complex):
        value = np.dtype(kind.name).type(argument)
        return [value.real, value.imag]
    if isinstance(kind, types.NoneType):
        return [np.int64(0)]
    raise ContractError(f"emulate: an argument cannot be passed, got {kind}, need an array, a number or a tuple")


@cache
def _declared(signature: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read a signature as numba types."""
    return tuple(map(numba_type, signature))


@cache
def _element(kind: Any) -> np.dtype[Any]:
    """Return the element type of an array type."""
    return np.dtype("bool" if isinstance(kind.dtype, types.Boolean) else kind.dtype.name)


def _is_array(argument: Any) -> bool:
    """Tell whether an argument is NumPy's array, or numba's on a device."""
    return isinstance(argument, np.ndarray) or hasattr(argument, "__cuda_ndarray__")


def _fits(argument: Any, kind: Any) -> bool:
    """Tell whether an argument may be passed as this type; a number as any number."""
    if isinstance(kind, types.Array):
        return (
            _is_array(argument)
            and argument.ndim == kind.ndim
            and argument.dtype == _element(kind)
            and (kind.layout != "C" or bool(argument.flags["C_CONTIGUOUS"]))
        )
    if isinstance(kind, types.BaseTuple):
        same = isinstance(argument, tuple) and len(argument) == len(kind)
        return same and all(map(_fits, argument, kind))
    return not (_is_array(argument) or isinstance(argument, tuple))


def argument_types(kernel: Kernel, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Choose the types to compile for: the first declared signature that fits, else those of the arguments.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    arguments : tuple
        What it is launched with.

    Returns
    -------
    tuple of numba type
        One each.
    """
    for signature in kernel.signatures:
        kinds = _declared(signature)
        if len(kinds) == len(arguments) and all(map(_fits, arguments, kinds)):
            return kinds
    return tuple(map(type_of, arguments))
