"""What PTX text is made of: operands, instructions, variables, functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reg:
    """A register by its name, unique in its function."""

    name: str  # function-unique name


@dataclass(frozen=True)
class Imm:
    """A number: kind 'i' integer, 'f' bits of float32, 'd' bits of float64."""

    kind: str  # 'i' integer, 'f' f32 bits, 'd' f64 bits
    value: int


@dataclass(frozen=True)
class Sym:
    """A symbol, with an offset."""

    name: str
    off: int = 0


@dataclass(frozen=True)
class Special:
    """A special register, such as ``%tid.x``."""

    name: str  # '%tid.x'


@dataclass(frozen=True)
class Mem:
    """An address: a register, symbol or number, with an offset."""

    base: object  # Reg | Sym | Imm
    off: int = 0


@dataclass(frozen=True)
class Vec:
    """Operands in braces."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Not:
    """A negated predicate."""

    op: object  # !%p


@dataclass(frozen=True)
class Dual:
    """Two destinations, ``%r|%p``."""

    a: object  # %r|%p
    b: object


@dataclass(frozen=True)
class Paren:
    """Arguments of a call."""

    items: tuple[Any, ...]  # call argument lists


SINK = Sym("_")


TYPE_BYTES = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "bf16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
    "pred": 1,
}


@dataclass
class Instr:
    """An instruction as it stands in the text."""

    op: str  # 'ld.global.nc.v4.u32'
    args: list[Any]
    guard: object = None  # None | (Reg, negated)
    line: int = 0
    text: str = ""
    loc: object = None  # (file, line) from .loc
    scope: object = None  # for label lookup


@dataclass
class Var:
    """A variable: space, type, size, alignment, initial value."""

    name: str
    space: str  # global const shared local param
    type: str
    nbytes: int  # 0 for extern []
    align: int
    init: list[Any] | None = None  # list of ints (element bit patterns) or Sym
    extern: bool = False
    line: int = 0
    is_array: bool = False
    is_ptr: bool = False


@dataclass
class Func:
    """A function or an entry."""

    name: str
    entry: bool
    params: list[Any] = field(default_factory=list)  # [Var]
    rets: list[Any] = field(default_factory=list)  # [Var]
    instrs: list[Any] = field(default_factory=list)
    regs: dict[str, Any] = field(default_factory=dict)  # unique name -> type
    vars: dict[str, Any] = field(default_factory=dict)  # unique name -> Var (local / shared / param in body)
    tables: dict[str, Any] = field(default_factory=dict)  # branchtargets
    defined: bool = False
    line: int = 0
    directives: dict[str, Any] = field(default_factory=dict)


@dataclass
class ParsedModule:
    """One text."""

    version: str = ""
    target: str = ""
    vars: dict[str, Any] = field(default_factory=dict)
    funcs: dict[str, Any] = field(default_factory=dict)
    files: dict[Any, Any] = field(default_factory=dict)
