"""Compile a kernel of a test with any option of numba-cuda and run it on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.cuda.compiler as numba_compiler
from numba.cuda import types

from pagedref_cuda._runtime import compiler, cpp
from pagedref_cuda._runtime.arguments import flatten, type_of
from pagedref_cuda._runtime.compiler import CompileOptions
from pagedref_cuda.emulator import Module, Stats

typeof = type_of

_MODULES: dict[Any, Module] = {}


def cpp_to_ptx(source: str, name: str, compute_capability: tuple[int, int], fma: bool) -> str:
    return cpp.cpp_to_ptx(source, name, compute_capability, fma).rstrip(b"\0").decode()


def compile_ptx(
    function: Callable[..., None],
    kinds: Any,
    *,
    cc: tuple[int, int] = (9, 0),
    fma: bool = True,
    opt: bool = True,
    debug: bool = False,
    lineinfo: bool = True,
) -> list[str]:
    function = getattr(function, "py_func", function)
    if opt and not debug:
        return compiler.compile_function(function, tuple(kinds), CompileOptions(fma=fma, line_info=lineinfo), cc)
    options = CompileOptions(fma=fma)
    with compiler._without_device(cc, options), compiler.nvvm_options(options):
        codes, _ = numba_compiler.compile_all(
            function,
            types.void(*kinds),
            cc=cc,
            device=False,
            abi="numba",
            output="ptx",
            opt=opt,
            debug=debug,
            lineinfo=lineinfo,
        )
    return [str(code) for code in codes]


def launch(
    function: Callable[..., None],
    grid: Any,
    block: Any,
    *arguments: Any,
    sig: Any = None,
    cc: tuple[int, int] = (9, 0),
    fma: bool = True,
    opt: bool = True,
    debug: bool = False,
    lineinfo: bool = True,
    **options: Any,
) -> Stats:
    function = getattr(function, "py_func", function)
    kinds = tuple(sig) if sig else tuple(map(typeof, arguments))
    how = {"cc": cc, "fma": fma, "opt": opt, "debug": debug, "lineinfo": lineinfo and not debug}
    key = function, kinds, *how.values()
    if key not in _MODULES:
        _MODULES[key] = Module(compile_ptx(function, kinds, **how))
    flat: list[Any] = []
    names: list[str] = []
    for position, (argument, kind) in enumerate(zip(arguments, kinds, strict=True)):
        parts = flatten(argument, kind)
        flat += parts
        names += [function.__code__.co_varnames[position]] * len(parts)
    stats = _MODULES[key].launch(None, grid, block, flat, names=names, **options)
    stats.module = _MODULES[key]  # type: ignore[attr-defined]
    return stats
