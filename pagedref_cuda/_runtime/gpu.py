"""Kernels on a GPU: the PTX that the emulator runs and the tests read, linked for the device and given to its driver.

Numba's own launches compile for the types of each call; here the first declared signature that fits is compiled, so
that what runs is what was tested, one compilation serves arrays with and without gaps, and texts are kept on disk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from numba import cuda

from pagedref_cuda._runtime.arguments import argument_types, flatten
from pagedref_cuda._runtime.compiler import LOCK
from pagedref_cuda._runtime.detect import compute_capability
from pagedref_cuda._runtime.linker import link
from pagedref_cuda._runtime.ptx_cache import compiled
from pagedref_cuda._runtime.streams import handle_of

if TYPE_CHECKING:
    from pagedref_cuda._runtime.kernels import Kernel

__all__ = ["launch"]

PLAIN_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory that every kernel may have; for more, the driver wants to be asked before the launch."""


@dataclass
class Loaded:
    """A kernel in the device's memory.

    Attributes
    ----------
    function : object
        Numba's handle of it.
    shared_bytes : int
        Dynamic shared memory that it may have.
    """

    function: Any
    shared_bytes: int = PLAIN_SHARED_BYTES


_LOADED: dict[Any, Loaded] = {}


def entry_of(ptx: str) -> str:
    """Return the name of the kernel in a PTX text.

    Parameters
    ----------
    ptx : str
        The text; it has one kernel.

    Returns
    -------
    str
    """
    (name,) = re.findall(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)", ptx, re.MULTILINE)
    return str(name)


def load(cubin: bytes, name: str) -> Loaded:
    """Load machine code into the current context.

    Parameters
    ----------
    cubin : bytes
        From :func:`pagedref_cuda._runtime.linker.link`.
    name : str
        Of the kernel in it.

    Returns
    -------
    Loaded
    """
    core: Any = import_module("cuda.core")
    module = cuda.current_context().create_module_image(core.ObjectCode.from_cubin(cubin))
    return Loaded(module.get_function(name))


def start(
    loaded: Loaded, grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int, stream: Any, flat: list[Any]
) -> None:
    """Give a launch to the driver.

    Parameters
    ----------
    loaded : Loaded
        The kernel.
    grid, block : tuple of 3 int
        x first.
    shared_bytes : int
        Dynamic shared memory of a block.
    stream : stream
        Numba's.
    flat : list
        From :func:`pagedref_cuda._runtime.arguments.flatten`; arrays stand for their address.
    """
    core: Any = import_module("cuda.core")
    driver: Any = import_module("numba.cuda.cudadrv.driver")
    if shared_bytes > loaded.shared_bytes:
        attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        function = loaded.function
        driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, function.device.id)
        loaded.shared_bytes = shared_bytes
    config = core.LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)
    values = [item.device_ctypes_pointer.value or 0 if hasattr(item, "__cuda_ndarray__") else item for item in flat]
    core.launch(core.Stream.from_handle(handle_of(stream)), config, loaded.function.kernel, *values)


def loaded_kernel(kernel: Kernel, kinds: tuple[Any, ...]) -> Loaded:
    """Compile, link and load a kernel, once for each device.

    Parameters
    ----------
    kernel : Kernel
        Declared with ``kernel``.
    kinds : tuple of numba type
        Its arguments.

    Returns
    -------
    Loaded
    """
    key = kernel.function, kinds, kernel.options, cuda.current_context().device.id
    found = _LOADED.get(key)
    if found is None:
        with LOCK:
            found = _LOADED.get(key)
            if found is None:
                capability = compute_capability()
                texts = compiled(kernel.function, kinds, kernel.options, capability)
                cubin, _ = link(texts, capability, kernel.options.max_registers)
                found = _LOADED[key] = load(cubin, entry_of(texts[0]))
    return found


def launch(
    kernel: Kernel,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    arguments: tuple[Any, ...],
    shared_bytes: int,
    stream: Any,
) -> None:
    """Run one of our kernels on the GPU; it is not waited for.

    Parameters
    ----------
    kernel : Kernel
        Declared with ``kernel``.
    grid, block : tuple of int
        Blocks and threads, x first.
    arguments : tuple
        Numba's device arrays, numbers, and tuples of them.
    shared_bytes : int
        Dynamic shared memory of a block.
    stream : stream
        Numba's.
    """
    kinds = argument_types(kernel, arguments)
    loaded = loaded_kernel(kernel, kinds)
    flat = [part for argument, kind in zip(arguments, kinds, strict=True) for part in flatten(argument, kind)]
    start(loaded, grid, block, shared_bytes, stream, flat)
