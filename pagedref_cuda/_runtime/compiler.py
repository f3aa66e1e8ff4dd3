"""Compiling without a GPU: Python to PTX with NVVM (``pagedref[cuda]``).

Two things that numba-cuda 0.30 offers no switch for are done here, around one compilation: NVVM's option ``fma``, and
answers to questions for a device where there is none.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from numba.cuda import types

from pagedref.errors import BackendUnavailable
from pagedref_cuda._runtime.cpp import cpp_to_ptx
from pagedref_cuda._runtime.detect import EMULATED_CAPABILITY, SIMULATOR, missing_compiler

LOCK = threading.RLock()
"""Held while something in numba-cuda is exchanged."""


@dataclass(frozen=True)
class CompileOptions:
    """How a kernel is compiled.

    Parameters
    ----------
    fma : bool
        Whether ``a * b + c`` may be one rounding.
    fastmath : bool
        Approximate division and roots, no subnormals; implies `fma`.
    launch_bounds : int or pair of int, optional
        Most threads of a block, fewest blocks per multiprocessor.
    max_registers : int, optional
        Most registers of a thread.
    line_info : bool
        Whether instructions know the line of Python that they come from.
    """

    fma: bool = True
    fastmath: bool = False
    launch_bounds: int | tuple[int, int] | None = None
    max_registers: int | None = None
    line_info: bool = False


def numba_type(text: Any) -> Any:
    """Read a type: ``"int64"``, ``"float32[:, :]"`` (any strides) or ``"float32[:, ::1]"`` (no gaps).

    Parameters
    ----------
    text : str or pair
        Name of a scalar, with one colon per axis of an array; or a NamedTuple class and the types of its fields.

    Returns
    -------
    numba type
        A scalar, an array or a named tuple.
    """
    if not isinstance(text, str):
        cls, fields = text
        return types.NamedTuple([numba_type(field) for field in fields], cls)
    name, bracket, axes = text.partition("[")
    scalar = getattr(types, name)
    if not bracket:
        return scalar
    return types.Array(scalar, axes.count(",") + 1, "C" if "::1" in axes else "A")


@contextmanager
def _exchanged(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes of modules for a while."""
    with LOCK:
        before = [(module, name, getattr(module, name)) for module, name, _ in changes]
        for module, name, value in changes:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)


def _with_options(compile_cuda: Callable[..., Any], extra: dict[str, Any]) -> Callable[..., Any]:
    """Wrap numba-cuda's compilation so that NVVM gets more options."""

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        keywords["nvvm_options"] = {**(keywords.get("nvvm_options") or {}), **extra}
        return compile_cuda(*arguments, **keywords)

    return wrapped


@contextmanager
def nvvm_options(options: CompileOptions) -> Iterator[None]:
    """Compile with contraction off, if the options say so, whatever ``@cuda.jit`` kernel is compiled inside.

    Parameters
    ----------
    options : CompileOptions
        Of a kernel.

    Yields
    ------
    None
    """
    if options.fma:
        yield
        return
    modules = [import_module(f"numba.cuda.{name}") for name in ("compiler", "dispatcher")]
    with _exchanged(*((module, "compile_cuda", _with_options(module.compile_cuda, {"fma": 0})) for module in modules)):
        yield


@contextmanager
def _without_device(compute_capability: tuple[int, int], options: CompileOptions) -> Iterator[None]:
    """Answer what numba-cuda asks the driver for, even when only compiling: the current device, its own NVRTC."""
    modules: list[Any] = [import_module(f"numba.cuda.{name}") for name in ("compiler", "dispatcher")]

    def get_current_device() -> Any:
        return SimpleNamespace(compute_capability=compute_capability, id=0, name=b"none")

    def compile_cpp(source: Any, name: str, cc: tuple[int, int], **_: Any) -> tuple[bytes, str]:
        return cpp_to_ptx(source, name, cc, options.fma), ""

    with _exchanged(
        *((module, "get_current_device", get_current_device) for module in modules),
        (modules[0].nvrtc, "compile", compile_cpp),
    ):
        yield


def compile_function(
    function: Callable[..., None],
    argument_types: tuple[Any, ...],
    options: CompileOptions | None = None,
    compute_capability: tuple[int, int] = EMULATED_CAPABILITY,
) -> list[str]:
    """Compile a plain function to PTX.

    Parameters
    ----------
    function : callable
        Of a kernel.
    argument_types : tuple of numba type
        For which.
    options : CompileOptions, optional
        How.
    compute_capability : pair of int
        Such as (9, 0).

    Returns
    -------
    list of str
        PTX of the kernel, and of the helpers in CUDA C++ that it calls.

    Raises
    ------
    BackendUnavailable
        The compiler is not installed, or numba is in simulator mode.
    """
    if SIMULATOR:
        raise BackendUnavailable("compile_ptx: numba is in simulator mode, got NUMBA_ENABLE_CUDASIM=1, need it unset")
    if missing_compiler():
        raise BackendUnavailable(f'compile_ptx: {missing_compiler()}, got none, need pip install "pagedref[cuda]"')
    options = options or CompileOptions()
    compiler: Any = import_module("numba.cuda.compiler")
    nvvm: Any = import_module("numba.cuda.cudadrv.nvvm")
    with _without_device(compute_capability, options), nvvm_options(options), warnings.catch_warnings():
        warnings.simplefilter("error", nvvm.NvvmWarning)  # an operand that is no constant is reported as a warning
        codes, _ = compiler.compile_all(
            function,
            types.void(*argument_types),
            cc=compute_capability,
            device=False,
            abi="numba",
            output="ptx",
            fastmath=options.fastmath,
            lineinfo=options.line_info,
            launch_bounds=options.launch_bounds,
        )
    texts = []
    for code in codes:
        text = getattr(code, "code", code)
        texts.append(bytes(text).rstrip(b"\0").decode() if isinstance(text, bytes | bytearray) else str(text))
    return texts


def compile_ptx(kernel: Any, signature: tuple[Any, ...], compute_capability: tuple[int, int] = (9, 0)) -> str:
    """Compile a kernel to PTX.

    Parameters
    ----------
    kernel : Kernel
        One of ``KERNELS``; its options hold.
    signature : tuple
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
    arguments = tuple(map(numba_type, signature)) if not SIMULATOR else ()
    return compile_function(kernel.function, arguments, kernel.options, compute_capability)[0]


def is_compiled_kernel(function: Any) -> bool:
    """Tell whether this is a ``@cuda.jit`` kernel and not a device function.

    Parameters
    ----------
    function : object
        Whatever a user gave.

    Returns
    -------
    bool
        True for a kernel.
    """
    dispatcher: Any = import_module("numba.cuda.dispatcher").CUDADispatcher
    return isinstance(function, dispatcher) and not function.targetoptions.get("device")


__all__ = [
    "CompileOptions",
    "compile_function",
    "compile_ptx",
    "is_compiled_kernel",
    "numba_type",
    "nvvm_options",
]
