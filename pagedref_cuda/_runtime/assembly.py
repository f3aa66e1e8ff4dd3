"""How inline PTX reaches the compiler: the functions of :mod:`pagedref_cuda._ptx` are replaced by their instructions.

A function of plain Python is the name that kernels use; here it gets a type for the compiler and a lowering, which
passes the arguments to one piece of assembly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.templates import AbstractTemplate, signature

__all__ = ["async_copy", "group", "loader", "registers", "storer"]

Function = Callable[..., Any]

_WORD, _ADDRESS = ir.IntType(32), ir.IntType(64)
_KINDS = {"r": (types.uint32, _WORD), "f": (types.float32, ir.FloatType())}
_SIZES = {1: "", 2: ".v2", 4: ".v4"}


def _replace(function: Function, result: Callable[[tuple[Any, ...]], Any], lower: Callable[..., Any]) -> None:
    """Give a function of plain Python a type and instructions.

    `result` gives the type of the result for the types of the arguments; ``lower(context, builder, signature, args)``
    emits code.
    """

    class Template(AbstractTemplate):  # type: ignore[misc]
        key = function
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            return signature(result(args), *args)

    typing_registry.register_global(function, types.Function(Template))
    lowering_registry.lower(function, types.VarArg(types.Any))(lower)


def _emit(builder: Any, result: Any, text: str, constraints: list[str], values: list[Any], *, stays: bool) -> Any:
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(ir.InlineAsm(kind, text, ",".join(constraints), side_effect=stays), values)


def _words(context: Any, builder: Any, signature: Any, found: Any) -> Any:
    """Return the results of an assembly as a tuple."""
    count = signature.return_type.count
    parts = [builder.extract_value(found, i) for i in range(count)] if count > 1 else [found]
    return context.make_tuple(builder, signature.return_type, parts)


def _scalars(builder: Any, kind: Any, value: Any) -> list[tuple[Any, Any]]:
    """Return the scalars of a tuple, or the scalar, with their types."""
    if isinstance(kind, types.BaseTuple):
        return [(part, builder.extract_value(value, i)) for i, part in enumerate(kind.types)]
    return [(kind, value)]


def registers(function: Function, text: str, results: str, arguments: str, *, warp: bool = False) -> None:
    """Replace a function of scalars, or of tuples of scalars, by one piece of assembly without memory.

    Parameters
    ----------
    function : callable
        The twin.
    text : str
        The assembly: results first, ``$0`` onwards, then the arguments.
    results, arguments : str
        ``r`` for a word and ``f`` for a float32, one for each; several results make a tuple.
    warp : bool
        Whether the lanes of a warp work together, so that the call must stay where it is.
    """
    kinds = [_KINDS[letter] for letter in results]
    returned = kinds[0][0] if len(kinds) == 1 else types.UniTuple(kinds[0][0], len(kinds))
    emitted = kinds[0][1] if len(kinds) == 1 else ir.LiteralStructType([kind for _, kind in kinds])

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = [pair for kind, arg in zip(signature.args, args, strict=True) for pair in _scalars(builder, kind, arg)]
        values = [
            context.cast(builder, value, kind, _KINDS[letter][0])
            for letter, (kind, value) in zip(arguments, given, strict=True)
        ]
        constraints = [f"={letter}" for letter in results] + list(arguments)
        found = _emit(builder, emitted, text, constraints, values, stays=warp)
        return _words(context, builder, signature, found) if len(results) > 1 else found

    _replace(function, lambda args: returned, lower)


def _address(context: Any, builder: Any, signature: Any, args: Any, at: int, space: int) -> Any:
    """Return where an element lies; argument `at` is a contiguous array of words, the next one an index."""
    kind = signature.args[at]
    if not (isinstance(kind, types.Array) and kind.ndim == 1 and kind.layout == "C" and kind.dtype.bitwidth == 32):
        raise TypeError(f"need a contiguous array of words, got {kind}")
    index = context.cast(builder, args[at + 1], signature.args[at + 1], types.int64)
    pointer = builder.gep(context.make_array(kind)(context, builder, args[at]).data, [index])
    inside = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, addrspace=space))
    return builder.ptrtoint(inside, _ADDRESS if space == 1 else _WORD)


def _names(first: int, count: int) -> str:
    names = ", ".join(f"${first + i}" for i in range(count))
    return f"{{{names}}}" if count > 1 else names


def _constant(kind: Any) -> int:
    if not isinstance(kind, types.IntegerLiteral):
        raise TypeError(f"need a constant, got {kind}")
    return int(kind.literal_value)


def _bytes(context: Any, builder: Any, signature: Any, args: Any, at: int) -> Any:
    """Return an offset in bytes, from argument `at` in words; 0 where there is no such argument."""
    if at >= len(args):
        return ir.Constant(_WORD, 0)
    return builder.mul(context.cast(builder, args[at], signature.args[at], types.int32), ir.Constant(_WORD, 4))


def loader(function: Function, instruction: str, space: int, *, matrices: bool = False) -> None:
    """Replace ``function(array, index, count, offset=0)`` by one load of `count` words, or of four matrices.

    `offset` (words beyond `index`) must be a constant once loops are unrolled: it becomes a part of the instruction.

    Parameters
    ----------
    function : callable
        The twin.
    instruction : str
        Such as ``ld.global``.
    space : int
        1 is global memory, 3 shared memory.
    matrices : bool
        Whether it is ``ldmatrix``, which has no argument `count`.
    """

    def result(args: tuple[Any, ...]) -> Any:
        return types.UniTuple(types.uint32, 4 if matrices else _constant(args[2]))

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count = signature.return_type.count
        address = _address(context, builder, signature, args, 0, space)
        size = "" if matrices else f"{_SIZES[count]}.u32"
        offset = _bytes(context, builder, signature, args, 2 if matrices else 3)
        text = f"{instruction}{size} {_names(0, count)}, [${count}+${count + 1}];"
        constraints = ["=r"] * count + ["l" if space == 1 else "r", "n", "~{memory}"]
        kind = ir.LiteralStructType([_WORD] * count) if count > 1 else _WORD
        found = _emit(builder, kind, text, constraints, [address, offset], stays=True)
        return _words(context, builder, signature, found)

    _replace(function, result, lower)


def storer(function: Function, instruction: str, space: int) -> None:
    """Replace ``function(array, index, values)`` by one store of a tuple of words.

    Parameters
    ----------
    function : callable
        The twin.
    instruction : str
        Such as ``st.global``.
    space : int
        1 is global memory, 3 shared memory.
    """

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature, args, 0, space)
        given = _scalars(builder, signature.args[2], args[2])
        values = [context.cast(builder, value, kind, types.uint32) for kind, value in given]
        text = f"{instruction}{_SIZES[len(values)]}.u32 [$0], {_names(1, len(values))};"
        constraints = ["l" if space == 1 else "r"] + ["r"] * len(values) + ["~{memory}"]
        _emit(builder, ir.VoidType(), text, constraints, [address, *values], stays=True)
        return context.get_dummy_value()

    _replace(function, lambda args: types.none, lower)


def async_copy(function: Function) -> None:
    """Replace ``function(shared, s, words, i, count, live, s_offset=0, i_offset=0)`` by ``cp.async``.

    It writes zeros unless `live`. The offsets (in words) must be constants once loops are unrolled.

    Parameters
    ----------
    function : callable
        The twin.
    """

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = 4 * _constant(signature.args[4])
        target = _address(context, builder, signature, args, 0, 3)
        source = _address(context, builder, signature, args, 2, 1)
        live = context.cast(builder, args[5], signature.args[5], types.boolean)
        bytes_read = builder.select(
            builder.icmp_unsigned("!=", live, ir.Constant(live.type, 0)),
            ir.Constant(_WORD, size),
            ir.Constant(_WORD, 0),
        )
        text = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global [$0+$3], [$1+$4], {size}, $2;"
        offsets = [_bytes(context, builder, signature, args, at) for at in (6, 7)]
        constraints = ["r", "l", "r", "n", "n", "~{memory}"]
        _emit(builder, ir.VoidType(), text, constraints, [target, source, bytes_read, *offsets], stays=True)
        return context.get_dummy_value()

    def result(args: tuple[Any, ...]) -> Any:
        _constant(args[4])
        return types.none

    _replace(function, result, lower)


def group(commit: Function, wait: Function) -> None:
    """Replace ``commit()`` and ``wait(groups)`` by the two instructions that order asynchronous copies.

    Parameters
    ----------
    commit, wait : callables
        The twins.
    """

    def lower_commit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _emit(builder, ir.VoidType(), "cp.async.commit_group;", ["~{memory}"], [], stays=True)
        return context.get_dummy_value()

    def lower_wait(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        text = f"cp.async.wait_group {_constant(signature.args[0])};"
        _emit(builder, ir.VoidType(), text, ["~{memory}"], [], stays=True)
        return context.get_dummy_value()

    def result(args: tuple[Any, ...]) -> Any:
        _constant(args[0])
        return types.none

    _replace(commit, lambda args: types.none, lower_commit)
    _replace(wait, result, lower_wait)
