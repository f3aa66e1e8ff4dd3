"""Linking and flattening: parsed modules and a name to one list of instructions, calls inlined, symbols resolved."""

from __future__ import annotations

from typing import Any

from pagedref_cuda.emulator.errors import EmulatorError, Unsupported
from pagedref_cuda.emulator.syntax import TYPE_BYTES, Dual, Mem, Not, Paren, Reg, Sym, Vec

SHARED_FIRST = 0x400  # first usable byte of the shared window (as on sm_90, where 1 KiB is reserved)
RED_ZONE = 128  # unused bytes between shared variables (a multiple of the 32 banks x 4 bytes)
INF = 2**31 - 1


class RegOp:
    """A register operand, resolved to its number."""

    __slots__ = ("i", "name", "ty", "w")

    def __init__(self, i: Any, ty: str, name: Any) -> None:
        self.i, self.ty, self.name, self.w = i, ty, name, TYPE_BYTES[ty]


class SymOp:
    """A symbol, resolved to its space and its address in that space."""

    __slots__ = ("name", "off", "space")

    def __init__(self, space: Any, off: Any, name: Any) -> None:
        self.space, self.off, self.name = space, off, name


class Flat:
    """One instruction of the flat program."""

    op: str
    parts: list[str]
    args: list[Any]
    guard: Any
    line: int
    text: str
    loc: Any
    target: Any
    kind: str
    pc: int
    ext: Any

    __slots__ = ("args", "ext", "guard", "kind", "line", "loc", "op", "parts", "pc", "target", "text")

    def where(self) -> Any:
        """Say where the instruction stands: PTX line, text, line of the source."""
        s = f"PTX line {self.line}: {self.text}"
        if self.loc:
            s += f"   [{self.loc[0]}:{self.loc[1]}]"
        return s


def _align(x: Any, a: Any) -> Any:
    return (x + a - 1) // a * a


def link(mods: Any) -> Any:
    """Merge parsed modules. A definition beats a declaration."""
    vs: dict[str, Any] = {}
    fs: dict[str, Any] = {}
    for m in mods:
        for n, v in m.vars.items():
            if n not in vs or (vs[n].extern and not v.extern):
                vs[n] = v
        for n, f in m.funcs.items():
            if n in fs and fs[n].defined and f.defined:
                continue  # .weak / identical helper: first one wins
            if n not in fs or f.defined:
                fs[n] = f
    return vs, fs


class Program:
    """The flat code of one entry: calls are inlined, symbols resolved.

    ``address_of(name)`` gives the address of a global or constant variable of the module.
    """

    def __init__(self, entry: Any, vs: Any, fs: Any, address_of: Any) -> None:
        """address_of(name) -> generic address of a module .global/.const variable."""
        if entry not in fs or not fs[entry].entry or not fs[entry].defined:
            raise EmulatorError(f"no entry {entry!r}; entries: {[n for n, f in fs.items() if f.entry]}")
        self.entry, self.vs, self.fs, self.address_of = fs[entry], vs, fs, address_of
        self.code: list[Flat] = []
        self.regty: list[str] = []
        self.regnames: list[str] = []
        self.live: list[int] = []
        self.local_bytes = 0
        self.shared_vars: list[tuple[str, int, int]] = []  # (name, offset, nbytes)
        self._sh: dict[str, SymOp] = {}
        self._shv: dict[str, Any] = {}
        self.shared_end = SHARED_FIRST
        self.dyn_vars: list[str] = []
        self.params: list[tuple[Any, int]] = []  # (Var, offset)
        off = 0
        for p in self.entry.params:
            off = _align(off, p.align)
            self.params.append((p, off))
            off += p.nbytes
        self.param_bytes = off
        syms = {p.name: SymOp("kparam", o, p.name) for p, o in self.params}
        self._emit(self.entry, syms, (entry,), "")
        for k, ins in enumerate(self.code):
            ins.pc = k
        off = self.shared_end
        self.dyn_off = _align(off, 16)  # dynamic shared memory starts after the static variables
        for n, s in self._sh.items():
            if s.off is None:
                v = self._shv[n]
                self.dyn_off = _align(self.dyn_off, max(16, v.align))
        for s in self._sh.values():
            if s.off is None:
                s.off = self.dyn_off

    # -- symbols
    def shared_sym(self, key: Any, v: Any) -> Any:
        """Place a shared variable, with a red zone behind it."""
        if key not in self._sh:
            self._shv[key] = v
            if v.nbytes == 0:
                self._sh[key] = SymOp("shared", None, key)  # extern dynamic
                self.dyn_vars.append(key)
            else:
                o = _align(self.shared_end, max(v.align, 16))
                self._sh[key] = SymOp("shared", o, key)
                self.shared_vars.append((key, o, v.nbytes))
                self.shared_end = _align(o + v.nbytes, 16) + RED_ZONE
        return self._sh[key]

    def module_sym(self, name: Any, ins: Any) -> Any:
        """Resolve a variable of the module."""
        v = self.vs.get(name)
        if v is None:
            raise Unsupported(f"line {ins.line}: unknown symbol {name} in {ins.text}")
        if v.space == "shared":
            return self.shared_sym(name, v)
        return SymOp(v.space, self.address_of(name), name)

    # -- flattening
    def _emit(self, fn: Any, syms: Any, stack: Any, tag: Any) -> None:
        if not fn.defined:
            raise Unsupported(f"call of undefined function {fn.name}")
        syms = dict(syms)
        for u, v in fn.vars.items():
            if v.space == "shared":
                syms[u] = self.shared_sym(f"{fn.name}.{u}", v)
            else:  # .local and body .param: per-thread bytes
                self.local_bytes = _align(self.local_bytes, max(v.align, 8))
                syms[u] = SymOp("local" if v.space == "local" else "param", self.local_bytes, u)
                self.local_bytes += max(v.nbytes, 8)
        rmap = {}

        def reg(name: Any) -> Any:
            if name not in rmap:
                rmap[name] = RegOp(len(self.regty), fn.regs[name], name.split("#")[0])
                self.regty.append(fn.regs[name])
                self.regnames.append(tag + name)
            return rmap[name]

        def conv(o: Any, ins: Any) -> Any:
            if isinstance(o, Reg):
                return reg(o.name)
            if isinstance(o, Sym):
                if o.name == "_":
                    return None
                s = syms.get(o.name) or self.module_sym(o.name, ins)
                if o.off:
                    if s.off is None:
                        raise Unsupported(f"line {ins.line}: offset from extern shared symbol")
                    return SymOp(s.space, s.off + o.off, s.name)
                return s
            if isinstance(o, Mem):
                return Mem(conv(o.base, ins), o.off)
            if isinstance(o, Vec):
                return Vec(tuple(conv(x, ins) for x in o.items))
            if isinstance(o, Not):
                return Not(conv(o.op, ins))
            if isinstance(o, Dual):
                return Dual(conv(o.a, ins), conv(o.b, ins))
            return o

        start = {}  # function pc -> flat pc
        fix = []
        for k, ins in enumerate(fn.instrs):
            start[k] = len(self.code)
            parts = ins.op.split(".")
            f = Flat()
            f.op, f.parts, f.line, f.text, f.loc, f.target, f.ext = (
                ins.op,
                parts,
                ins.line,
                ins.text,
                ins.loc,
                None,
                None,
            )
            f.guard = (reg(ins.guard[0].name), ins.guard[1]) if ins.guard else None
            b = parts[0]
            f.kind = "op"
            if b in ("bra", "brx"):
                f.kind, f.args = b, [conv(ins.args[0], ins)] if b == "brx" else []
                f.target = ins.target
                fix.append(f)
                self.code.append(f)
            elif b == "call":
                self._call(f, ins, conv, syms, stack, tag)
            elif b == "ret" and len(stack) > 1:
                f.kind, f.args, f.target = "bra", [], len(fn.instrs)
                fix.append(f)
                self.code.append(f)
            elif b in ("ret", "exit"):
                f.kind, f.args = "exit", []
                self.code.append(f)
            else:
                f.args = [conv(a, ins) for a in ins.args]
                self.code.append(f)
        start[len(fn.instrs)] = len(self.code)
        if len(stack) == 1:  # falling off the end of a kernel is ret
            f = Flat()
            f.op, f.parts, f.line, f.text, f.loc, f.target, f.ext = (
                "ret",
                ["ret"],
                fn.line,
                "ret (end of body)",
                None,
                None,
                None,
            )
            f.guard, f.kind, f.args = None, "exit", []
            self.code.append(f)
        for f in fix:
            f.target = [start[t] for t in f.target] if isinstance(f.target, list) else start[f.target]

    def _call(self, f: Any, ins: Any, conv: Any, syms: Any, stack: Any, tag: Any) -> None:
        if f.guard:
            raise Unsupported(f"line {ins.line}: predicated call")
        args = list(ins.args)
        rets = args.pop(0).items if isinstance(args[0], Paren) else ()
        name = args.pop(0)
        acts = args.pop(0).items if args and isinstance(args[0], Paren) else ()
        if not isinstance(name, Sym):
            raise Unsupported(f"line {ins.line}: indirect call")
        g = self.fs.get(name.name)
        if name.name == "vprintf" and (g is None or not g.defined) and len(acts) == 2 and len(rets) == 1:
            f.kind, f.parts, f.args = "op", ["vprintf"], [conv(a, ins) for a in (*acts, *rets)]
            self.code.append(f)
            return
        if g is None or not g.defined:
            f.kind, f.args = "op", []
            f.parts = ["call_undefined"]
            f.ext = name.name
            self.code.append(f)
            return
        if name.name in stack:
            raise Unsupported(f"line {ins.line}: recursive call of {name.name}")
        if len(acts) != len(g.params) or len(rets) != len(g.rets):
            raise EmulatorError(
                f"line {ins.line}: call of {name.name} with {len(acts)} arguments, {len(g.params)} expected"
            )
        inner = {}
        for v, a in list(zip(g.params, acts)) + list(zip(g.rets, rets)):
            s = syms.get(a.name) if isinstance(a, Sym) else None
            if s is None or s.space != "param":
                raise Unsupported(f"line {ins.line}: call argument that is not a .param variable")
            inner[v.name] = s
        self._emit(g, inner, stack + (name.name,), f"{tag}{name.name[:24]}/")


# opcodes whose first operand is a pure destination (anything else counts all its registers as read: conservative)
DEST_FIRST = frozenset(
    [
        "add",
        "sub",
        "mul",
        "mad",
        "fma",
        "div",
        "rem",
        "ex2",
        "lg2",
        "rcp",
        "rsqrt",
        "sqrt",
        "sin",
        "cos",
        "tanh",
        "abs",
        "neg",
        "min",
        "max",
        "copysign",
        "testp",
        "mul24",
        "mad24",
        "sad",
        "dp4a",
        "dp2a",
        "and",
        "or",
        "xor",
        "not",
        "cnot",
        "shl",
        "shr",
        "shf",
        "popc",
        "clz",
        "bfind",
        "brev",
        "bfe",
        "bfi",
        "bmsk",
        "szext",
        "lop3",
        "prmt",
        "setp",
        "set",
        "selp",
        "slct",
        "mov",
        "cvt",
        "cvta",
        "isspacep",
        "ld",
        "ldu",
    ]
)


def _regs(o: Any, out: Any) -> Any:
    if isinstance(o, RegOp):
        out.append(o.i)
    elif isinstance(o, Mem):
        _regs(o.base, out)
    elif isinstance(o, (Vec, Paren)):
        for x in o.items:
            _regs(x, out)
    elif isinstance(o, Not):
        _regs(o.op, out)
    elif isinstance(o, Dual):
        _regs(o.a, out)
        _regs(o.b, out)
    return out


def liveness(code: Any) -> Any:
    """Return for each instruction a bit mask of the registers that a thread standing there may still read."""
    n = len(code)
    use, keep = [0] * n, [-1] * n
    succ: list[tuple[int, ...]] = [()] * n
    for k, f in enumerate(code):
        args = list(f.args)
        if args and f.parts[0] in DEST_FIRST:
            d = args.pop(0)
            if f.guard is None:
                for i in _regs(d, []):
                    keep[k] &= ~(1 << i)
        for i in _regs(Vec(tuple(args)), []) + ([f.guard[0].i] if f.guard else []):
            use[k] |= 1 << i
        nxt: tuple[int, ...] = (k + 1,) if k + 1 < n else ()
        if f.kind == "bra":
            succ[k] = (f.target,) + (nxt if f.guard else ())
        elif f.kind == "brx":
            succ[k] = tuple(f.target) + (nxt if f.guard else ())
        elif f.kind == "exit":
            succ[k] = nxt if f.guard else ()
        else:
            succ[k] = nxt
    live = [0] * n
    changed = True
    while changed:
        changed = False
        for k in range(n - 1, -1, -1):
            v = 0
            for s in succ[k]:
                v |= live[s]
            v = use[k] | (v & keep[k])
            if v != live[k]:
                live[k], changed = v, True
    return live
