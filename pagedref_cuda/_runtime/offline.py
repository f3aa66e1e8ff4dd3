"""Compiling without a GPU: Python to PTX with NVVM, PTX to machine code with nvJitLink (``pagedref[cuda]``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from numba import cuda
from numba.cuda import types

from pagedref.errors import BackendUnavailable
from pagedref_cuda._runtime.detect import SIMULATOR
from pagedref_cuda._runtime.kernels import Kernel


def numba_type(text: str) -> Any:
    """Read a type: ``"int64"``, ``"float32[:, :]"`` (any strides) or ``"float32[:, ::1]"`` (no gaps).

    Parameters
    ----------
    text : str
        Name of a scalar, with one colon per axis of an array.

    Returns
    -------
    numba type
        A scalar or an array type.
    """
    name, bracket, axes = text.partition("[")
    scalar = getattr(types, name)
    if not bracket:
        return scalar
    return types.Array(scalar, axes.count(",") + 1, "C" if "::1" in axes else "A")


@contextmanager
def _pretend_device(compute_capability: tuple[int, int]) -> Iterator[None]:
    """Answer numba-cuda's question for the current device, which device functions ask even when only compiling."""
    modules: list[Any] = [import_module("numba.cuda.dispatcher"), import_module("numba.cuda.compiler")]
    asked = [module.get_current_device for module in modules]
    for module in modules:
        module.get_current_device = lambda: SimpleNamespace(compute_capability=compute_capability)
    try:
        yield
    finally:
        for module, function in zip(modules, asked, strict=True):
            module.get_current_device = function


def compile_ptx(kernel: Kernel, signature: tuple[str, ...], compute_capability: tuple[int, int] = (9, 0)) -> str:
    """Compile a kernel to PTX.

    Parameters
    ----------
    kernel : Kernel
        One of ``KERNELS``.
    signature : tuple of str
        One of its signatures, or another.
    compute_capability : pair of int
        Such as (9, 0).

    Returns
    -------
    str
        PTX text.

    Raises
    ------
    BackendUnavailable
        The compiler is not installed, or numba is in simulator mode.
    """
    if SIMULATOR:
        raise BackendUnavailable("compile_ptx: numba is in simulator mode, got NUMBA_ENABLE_CUDASIM=1, need it unset")
    arguments = types.void(*map(numba_type, signature))
    try:
        import_module("numba.cuda.cudadrv.nvvm").NVVM()
    except Exception as error:
        raise BackendUnavailable(
            f'compile_ptx: libNVVM cannot be loaded, got {error}, need pip install "pagedref[cuda]"'
        ) from error
    with _pretend_device(compute_capability):
        text, _ = cuda.compile(
            kernel.function, arguments, cc=compute_capability, output="ptx", device=False, abi="numba"
        )
    return str(text)


def link_report(ptx: str, compute_capability: tuple[int, int] = (9, 0)) -> str:
    """Assemble PTX and return what the assembler reports: registers, stack, spills.

    Parameters
    ----------
    ptx : str
        From :func:`compile_ptx`.
    compute_capability : pair of int
        Such as (9, 0).

    Returns
    -------
    str
        The log of nvJitLink.

    Raises
    ------
    BackendUnavailable
        nvJitLink is not installed.
    """
    try:
        linker = import_module("cuda.bindings.nvjitlink")
        major, minor = compute_capability
        handle = linker.create(2, [f"-arch=sm_{major}{minor}", "-verbose"])
    except Exception as error:
        raise BackendUnavailable(
            f'link_report: nvJitLink cannot be loaded, got {error}, need pip install "pagedref[cuda]"'
        ) from error
    data = ptx.encode()
    try:
        linker.add_data(handle, linker.InputType.PTX, data, len(data), "kernel.ptx")
        linker.complete(handle)
        log = bytearray(linker.get_info_log_size(handle))
        linker.get_info_log(handle, log)
    finally:
        linker.destroy(handle)
    return log.decode(errors="replace").rstrip("\0")
