"""Kernels on the emulator: from a function and its arguments to PTX, a launch, and what was counted."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from pagedref.errors import ContractError
from pagedref_cuda._runtime.arguments import argument_types, flatten, type_of
from pagedref_cuda._runtime.checks import current_options, record
from pagedref_cuda._runtime.compiler import LOCK, CompileOptions, is_compiled_kernel
from pagedref_cuda._runtime.ptx_cache import compiled
from pagedref_cuda.emulator import Module, Stats

if TYPE_CHECKING:
    from pagedref_cuda._runtime.kernels import Kernel, Size

__all__ = ["emulate", "launch", "module_of"]

_MODULES: dict[Any, Module] = {}


def module_of(
    function: Callable[..., None], argument_types: tuple[Any, ...], options: CompileOptions | None = None
) -> Module:
    """Compile a function for the emulator, once.

    Parameters
    ----------
    function : callable
        Plain Python.
    argument_types : tuple of numba type
        For which.
    options : CompileOptions, optional
        How.

    Returns
    -------
    Module
        Has the kernel as its only entry; ``module.texts`` is the PTX.
    """
    options = options or CompileOptions()
    key = function, argument_types, options
    with LOCK:
        module = _MODULES.get(key)
        if module is None:
            module = _MODULES[key] = Module(compiled(function, argument_types, options))
    return module


def _run(
    function: Callable[..., None],
    kinds: tuple[Any, ...],
    compile_options: CompileOptions,
    grid: Any,
    block: Any,
    arguments: tuple[Any, ...],
    shared_bytes: int,
    options: dict[str, Any],
) -> Stats:
    """Compile a function for types, once, and launch it."""
    names, flat = [], []
    for position, (argument, kind) in enumerate(zip(arguments, kinds, strict=True)):
        parts = flatten(argument, kind)
        flat += parts
        names += [function.__code__.co_varnames[position]] * len(parts)
    stats: Stats = module_of(function, kinds, compile_options).launch(
        None, grid, block, flat, shared_bytes, names=names, **options
    )
    return stats


def launch(kernel: Kernel, grid: Size, block: Size, arguments: tuple[Any, ...], shared_bytes: int = 0) -> Stats:
    """Run one of our kernels on the emulator; arrays are changed in place.

    Parameters
    ----------
    kernel : Kernel
        Declared with ``kernel``.
    grid, block : int or tuple of up to 3 int
        Blocks and threads.
    arguments : tuple
        Host arrays and numbers.
    shared_bytes : int
        Dynamic shared memory of a block.

    Returns
    -------
    Stats
        What was counted.

    Raises
    ------
    EmulatorError
        The kernel did what it may not.
    """
    kinds = argument_types(kernel, arguments)
    options = current_options()
    if kernel.blocks_meet:
        options |= {"global_races": False, "cooperative": True}
    stats = _run(kernel.function, kinds, kernel.options, grid, block, arguments, shared_bytes, options)
    record(kernel.name, stats)
    return stats


def emulate(
    kernel: Any,
    grid: Size,
    block: Size,
    *arguments: Any,
    shared_bytes: int = 0,
    races: bool = True,
    global_races: bool = True,
    strict: bool = True,
    traffic: bool = True,
    fma: bool = True,
    fastmath: bool = False,
) -> Stats:
    """Compile a kernel of your own and run it on the emulator: a GPU for people who have none.

    Parameters
    ----------
    kernel : callable
        A ``@cuda.jit`` kernel, or the plain function of one.
    grid, block : int or tuple of up to 3 int
        Blocks of the grid and threads of a block, x first.
    *arguments : array or number
        NumPy arrays are the device's memory: results appear in them. float8 arrays as ``.view(np.uint8)``.
    shared_bytes : int
        Dynamic shared memory of a block.
    races : bool
        Report two threads at one shared byte with no barrier between, at least one writing.
    global_races : bool
        Report two blocks at one global byte, at least one writing, not both atomically. Blocks that pass values to
        each other through flags need it off.
    strict : bool
        Report reads of shared bytes and registers that nothing has written, copies that were not waited for, barriers
        that some threads have left.
    traffic : bool
        Count sectors and bank conflicts.
    fma : bool
        Whether ``a * b + c`` may be one rounding.
    fastmath : bool
        Approximate division and roots, no subnormals.

    Returns
    -------
    Stats
        Instructions, traffic, conflicts; ``print(stats)`` reports them.

    Raises
    ------
    EmulatorError
        The kernel did what it may not; the text names the thread, the place and the line.
    ContractError
        It is not a kernel, or an argument cannot be passed.
    BackendUnavailable
        The compiler is not installed, or numba is in simulator mode.

    Notes
    -----
    Mutates: the arrays that the kernel writes.

    Examples
    --------
    A kernel of three lines, on 128 threads::

        @cuda.jit
        def double(x):
            x[cuda.grid(1)] *= 2

        stats = pagedref_cuda.emulate(double, 2, 64, np.ones(128, np.float32))
    """
    function = kernel.py_func if is_compiled_kernel(kernel) else kernel
    if not isinstance(function, FunctionType):
        raise ContractError(
            f"emulate: kernel is not a kernel, got {type(kernel).__name__}, need a @cuda.jit kernel or a plain function"
        )
    takes = function.__code__.co_argcount
    if takes != len(arguments):
        raise ContractError(
            f"emulate: {function.__name__} has the wrong number of arguments, got {len(arguments)}, need {takes}"
        )
    kinds = tuple(map(type_of, arguments))
    compile_options = CompileOptions(fma=fma, fastmath=fastmath, line_info=True)
    options = {
        "strict": strict,
        "races": races,
        "global_races": global_races,
        "traffic": traffic,
        "batch_threads": current_options()["batch_threads"],
    }
    stats = _run(function, kinds, compile_options, grid, block, arguments, shared_bytes, options)
    record(function.__name__, stats)
    return stats
