"""Operands of one instruction: reading and writing registers, immediates and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pagedref_cuda.emulator.errors import Unsupported
from pagedref_cuda.emulator.memory import PARAM_WINDOW
from pagedref_cuda.emulator.program import RegOp, SymOp
from pagedref_cuda.emulator.special_registers import check_special, special
from pagedref_cuda.emulator.syntax import TYPE_BYTES, Imm, Mem, Not, Special

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


F16, F32, F64 = np.float16, np.float32, np.float64
U8, U16, U32, U64, I32, I64 = np.uint8, np.uint16, np.uint32, np.uint64, np.int32, np.int64
UN: dict[int, Any] = {1: U8, 2: U16, 4: U32, 8: U64}
SN: dict[int, Any] = {1: np.int8, 2: np.int16, 4: I32, 8: I64}
FLOATS: dict[str, Any] = {"f16": F16, "f32": F32, "f64": F64}
PACKED = {"f16x2": "f16", "bf16x2": "bf16"}


def np_type(ty: str) -> Any:
    """Return the NumPy type that values of a PTX type have."""
    if ty in FLOATS:
        return np.dtype(FLOATS[ty])
    if ty == "pred":
        return np.dtype(bool)
    n = TYPE_BYTES[ty]
    return np.dtype(SN[n] if ty[0] == "s" else UN[n])


def is_float(ty: str) -> Any:
    """Tell whether a PTX type is a float."""
    return ty in ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "tf32")


class Context:
    """One instruction while it is compiled.

    A compiler takes the modifiers that it understands; what is left over is refused, so nothing is ignored. Its
    operands
    become functions of the machine.
    """

    def __init__(self, f: Any, prog: Any) -> None:
        self.f, self.prog = f, prog
        self.mods = list(f.parts[1:])
        self.args = f.args

    def refuse(self, why: Any) -> NoReturn:
        """Raise Unsupported, with the instruction."""
        raise Unsupported(f"{why}: {self.f.where()}")

    def take(self, *names: Any) -> Any:
        """Take one of these modifiers; None if there is none."""
        for m in self.mods:
            if m in names:
                self.mods.remove(m)
                return m
        return None

    def type(self) -> Any:
        """Take the last modifier, which is a type."""
        if not self.mods or self.mods[-1] not in TYPE_BYTES:
            self.refuse("no type")
        return self.mods.pop()

    def done(self) -> None:
        """Refuse modifiers that nobody took."""
        if self.mods:
            self.refuse(f"modifier .{self.mods[0]} is not supported")

    def nargs(self, *n: Any) -> None:
        """Refuse any other number of operands."""
        if len(self.args) not in n:
            self.refuse(f"{len(self.args)} operands")

    # -- operands
    def imm(self, o: Any, ty: str) -> Any:
        """Return an immediate as an array of one element."""
        dt = np_type(ty)
        if o.kind == "i":
            if ty in ("f32", "f64", "f16") or ty == "bf16":
                self.refuse("integer immediate in a floating-point instruction")
            if ty == "pred":
                return np.array([bool(o.value)])
            n = dt.itemsize
            return np.array([o.value & ((1 << 8 * n) - 1)], UN[n]).view(dt)
        if o.kind == "f":
            v = np.array([o.value], U32)
            if ty in ("f32", "b32", "u32", "s32"):
                return v.view(dt)
            if ty == "f64":
                return v.view(F32).astype(F64)
        else:
            v = np.array([o.value], U64)
            if ty in ("f64", "b64", "u64", "s64"):
                return v.view(dt)
            if ty == "f32":
                return v.view(F64).astype(F32)
        self.refuse("immediate of the wrong type")

    def get(self, o: Any, ty: str, exact: bool = False, wide: bool = False) -> Any:
        """Return a function of the machine that reads an operand as this type.

        Its value has one element while all threads agree; else one for each thread, or, if `exact` or in a sparse
        group, for
        each of the group. With `wide` the register may be wider than the type (cvt, st).
        """
        dt = np_type(ty)
        if isinstance(o, Imm):
            v = self.imm(o, ty)
            return lambda M: v
        if isinstance(o, Special):
            name = o.name
            if ty == "pred":
                self.refuse("special register as predicate")
            check_special(name, self)

            def g(M: Machine) -> Any:
                v = special(M, name)
                if v.shape[0] != 1:
                    s = M.esel if exact else M.asel
                    if s is not None:
                        v = v[s]
                if v.dtype.itemsize != dt.itemsize:
                    v = v.astype(UN[dt.itemsize])
                return v.view(dt)

            return g
        if isinstance(o, SymOp):
            if dt.itemsize not in (4, 8):
                self.refuse("symbol operand of this type")
            v = np.array([self.sym_value(o)], U64).astype(UN[dt.itemsize]).view(dt)
            return lambda M: v
        if isinstance(o, Not):
            if ty != "pred":
                self.refuse("negated operand")
            g0 = self.get(o.op, ty, exact)
            return lambda M: ~g0(M)
        if not isinstance(o, RegOp):
            self.refuse("unsupported operand")
        i = o.i
        if (o.ty == "pred") != (ty == "pred"):
            self.refuse("predicate and non-predicate registers mixed")
        if o.w == dt.itemsize or ty == "pred":
            if exact:

                def g(M: Machine) -> Any:
                    v = M.R[i]
                    if v is None:
                        v = M.uninit(i)
                    elif i in M.undef:
                        M.check_defined(i)
                    if M.esel is not None and v.shape[0] != 1:
                        v = v[M.esel]
                    return v.view(dt)
            else:

                def g(M: Machine) -> Any:
                    v = M.R[i]
                    if v is None:
                        v = M.uninit(i)
                    elif i in M.undef:
                        M.check_defined(i)
                    if M.asel is not None and v.shape[0] != 1:
                        v = v[M.asel]
                    return v.view(dt)

            return g
        if o.w > dt.itemsize and wide:
            ud = UN[dt.itemsize]

            def g(M: Machine) -> Any:
                v = M.R[i]
                if v is None:
                    v = M.uninit(i)
                elif i in M.undef:
                    M.check_defined(i)
                s = M.esel if exact else M.asel
                if s is not None and v.shape[0] != 1:
                    v = v[s]
                return v.astype(ud).view(dt)

            return g
        self.refuse(f"register {o.name} (.{o.ty}) used as .{ty}")

    def sym_value(self, o: Any) -> Any:
        """Return the address of a symbol."""
        if o.space == "kparam":
            return PARAM_WINDOW + o.off
        return o.off

    def put(self, o: Any, ty: str, exact: bool = False, wide: bool = False) -> Any:
        """Return a function of the machine and of a value that writes a destination."""
        if o is None:  # sink _
            return lambda M, v: None
        if not isinstance(o, RegOp):
            self.refuse("destination is not a register")
        dt = np_type(ty)
        i = o.i
        if (o.ty == "pred") != (ty == "pred"):
            self.refuse("predicate and non-predicate registers mixed")
        if ty == "pred":
            if exact:
                return lambda M, v: M.put_exact(i, v)
            return lambda M, v: M.put_alu(i, v)
        if o.w == dt.itemsize:
            ud = UN[o.w]
            if exact:
                return lambda M, v: M.put_exact(i, v.view(ud))
            return lambda M, v: M.put_alu(i, v.view(ud))
        if o.w > dt.itemsize and wide:
            ud, sd = UN[o.w], (SN if ty[0] == "s" else UN)[o.w]

            def p(M: Machine, v: Any) -> None:
                v = v.astype(sd).view(ud)
                (M.put_exact if exact else M.put_alu)(i, v)

            return p
        self.refuse(f"register {o.name} (.{o.ty}) written as .{ty}")

    def full(self, o: Any, ty: str) -> Any:
        """Return a function that reads an operand for all threads of the batch; idle lanes hold anything."""
        g = self.get(o, ty)

        def h(M: Machine) -> Any:
            a, M.asel = M.asel, None
            v = g(M)
            M.asel = a
            return v if v.shape[0] == M.T else np.repeat(v, M.T)

        return h

    def addr(self, o: Any) -> Any:
        """Return a function that gives int64 addresses, one per thread of the group, and the symbol at the base, if
        any."""
        if not isinstance(o, Mem):
            self.refuse("address operand expected")
        b, off = o.base, o.off
        if isinstance(b, SymOp):
            v = np.array([self.sym_value(b) + off], I64)
            return (lambda M: v), b
        if isinstance(b, Imm):
            v = np.array([b.value + off], I64)
            return (lambda M: v), None
        if not isinstance(b, RegOp):
            self.refuse("address base")
        if b.w == 8:
            g = self.get(b, "s64", True)
            if off == 0:
                return g, None
            c = I64(off)
            return (lambda M: g(M) + c), None
        if b.w == 4:
            g = self.get(b, "u32", True)
            return (lambda M: g(M).astype(I64) + off), None
        self.refuse("address register width")
