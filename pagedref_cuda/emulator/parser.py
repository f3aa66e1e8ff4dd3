"""PTX text to a parsed module: no meaning here, only structure."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from pagedref_cuda.emulator.errors import PtxSyntaxError, Unsupported
from pagedref_cuda.emulator.syntax import (
    SINK,
    TYPE_BYTES,
    Dual,
    Func,
    Imm,
    Instr,
    Mem,
    Not,
    Paren,
    ParsedModule,
    Reg,
    Special,
    Sym,
    Var,
    Vec,
)


class _Scope:
    def __init__(self, parent: Any, uid: Any) -> None:
        self.parent, self.uid = parent, uid
        self.ranges: dict[str, Any] = {}
        self.names: dict[str, tuple[str, str]] = {}
        self.labels: dict[str, int] = {}

    def chain(self) -> Any:
        s = self
        while s is not None:
            yield s
            s = s.parent


_TOK = re.compile(
    r"""
    (?P<skip>(?:[ \t\r]+|//[^\n]*|/\*.*?\*/))
  | (?P<nl>\n)
  | (?P<str>"[^"\n]*")
  | (?P<hexf>0[fF][0-9a-fA-F]{8}(?![0-9a-zA-Z])|0[dD][0-9a-fA-F]{16}(?![0-9a-zA-Z]))
  | (?P<flt>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<spec>%(?:tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|clock|clock64|clock_hi
       |globaltimer|globaltimer_lo|globaltimer_hi|smid|nsmid|gridid|lanemask_\w+|dynamic_smem_size|total_smem_size
       |aggr_smem_size|envreg\d+|pm\d+|cluster_\w+|clusterid|nclusterid|is_explicit_cluster
       |reserved_smem_\w+)(?:\.[xyzw])?(?![\w$]))
  | (?P<opc>[a-z][a-z0-9_]*(?:\.(?:\w|::)+)+)
  | (?P<id>[%$_A-Za-z][\w$]*)
  | (?P<dir>\.[A-Za-z_][\w]*(?:::\w+)*)
  | (?P<p>[{}()\[\],;:@!|<>=+*&~-])
""",
    re.X | re.S,
)


def _lex(text: Any) -> Any:
    out, pos, line, n = [], 0, 1, len(text)
    m = _TOK.match
    while pos < n:
        t = m(text, pos)
        if not t:
            raise PtxSyntaxError(f"line {line}: cannot read {text[pos : pos + 30]!r}")
        k = t.lastgroup
        if k == "nl":
            line += 1
        elif k == "skip":
            line += text.count("\n", pos, t.end())
        else:
            out.append((k, t.group(), line, pos))
        pos = t.end()
    out.append(("eof", "", line, pos))
    return out


def _int(s: Any) -> Any:
    s = s.rstrip("U")
    if s[:2] in ("0x", "0X"):
        return int(s, 16)
    if s[:2] in ("0b", "0B"):
        return int(s, 2)
    if len(s) > 1 and s[0] == "0":
        return int(s, 8)
    return int(s)


class _Parser:
    """Reads one text by recursive descent."""

    LINKAGE = frozenset({".visible", ".extern", ".weak", ".common"})

    def __init__(self, text: Any) -> None:
        self.text, self.toks, self.i = text, _lex(text), 0
        self.lines = text.split("\n")
        self.mod = ParsedModule()
        self.loc: Any = None

    # -- token helpers
    def peek(self, k: int = 0) -> Any:
        return self.toks[self.i + k][1]

    def kind(self, k: int = 0) -> Any:
        return self.toks[self.i + k][0]

    def line(self) -> Any:
        return self.toks[self.i][2]

    def next(self) -> Any:
        t = self.toks[self.i]
        self.i += 1
        return t[1]

    def want(self, s: Any) -> None:
        if self.peek() != s:
            self.fail(f"expected {s!r}, found {self.peek()!r}")
        self.i += 1

    def accept(self, s: Any) -> Any:
        if self.peek() == s:
            self.i += 1
            return True
        return False

    def fail(self, msg: Any) -> NoReturn:
        ln = self.line()
        raise PtxSyntaxError(f"line {ln}: {msg}: {self.lines[min(ln, len(self.lines)) - 1].strip()[:120]}")

    # -- module level
    def parse(self) -> Any:
        while self.kind() != "eof":
            t = self.peek()
            if t == ".version":
                self.next()
                self.mod.version = self.next()
            elif t == ".target":
                self.next()
                self.mod.target = self.next()
                while self.accept(","):
                    self.next()
            elif t == ".address_size":
                self.next()
                if self.next() != "64":
                    raise Unsupported("only .address_size 64 is supported")
            elif t == ".file":
                self.file()
            elif t == ".section":
                while not self.accept("}"):
                    if self.kind() == "eof":
                        self.fail("unterminated .section")
                    self.next()
            elif t == ".pragma":
                while not self.accept(";"):
                    self.next()
            elif t == ".alias":
                raise Unsupported(f"line {self.line()}: .alias")
            elif t == ";":
                self.next()
            else:
                self.toplevel()
        for f in self.mod.funcs.values():  # .file directives may follow the code
            for ins in f.instrs:
                if ins.loc:
                    ins.loc = (self.mod.files.get(ins.loc[0], f"file {ins.loc[0]}"), ins.loc[1])
        return self.mod

    def file(self) -> None:
        self.next()
        n = int(self.next())
        self.mod.files[n] = self.next().strip('"')
        while self.accept(","):
            self.next()

    def toplevel(self) -> None:
        link = set()
        while self.peek() in self.LINKAGE:
            link.add(self.next())
        t = self.peek()
        if t in (".entry", ".func"):
            self.func(".extern" in link)
        elif t in (".global", ".const", ".shared"):
            for v in self.variables():
                v.extern = ".extern" in link
                old = self.mod.vars.get(v.name)
                if old is None or old.extern:
                    self.mod.vars[v.name] = v
        else:
            self.fail(f"unknown directive {t!r}")

    def variables(self, one: bool = False) -> Any:
        """Read ``.space [.align n] [.vN] .type name[n][m] [= init] {, ...};`` or, with `one`, a parameter."""
        line, space = self.line(), self.next()[1:]
        align = ty = None
        vec = 1
        isptr = False
        while self.kind() == "dir":
            d = self.next()[1:]
            if d == "align":
                align = int(self.next())
            elif d == "ptr":
                isptr = True
                if self.peek() in (".global", ".const", ".shared", ".local"):
                    self.next()
                if self.accept(".align"):
                    self.next()
            elif d in ("v2", "v4", "v8"):
                vec = int(d[1:])
            elif d in ("managed", "unified") or d.startswith("attribute"):
                raise Unsupported(f"line {line}: .{d} variable")
            elif d in TYPE_BYTES:
                ty = d
            else:
                raise Unsupported(f"line {line}: .{d} in a variable declaration")
        if ty is None:
            self.fail("no type in declaration")
        esz = TYPE_BYTES[ty] * vec
        res = []
        while True:
            if self.kind() != "id":
                self.fail("variable name expected")
            name = self.next()
            n, arr, unsized = 1, False, False
            while self.accept("["):
                arr = True
                if self.accept("]"):
                    unsized = True
                    continue
                n *= _int(self.next())
                self.want("]")
            init: list[Any] | None = None
            if self.accept("="):
                init = []
                self.initialiser(init, ty)
                if unsized:
                    n, unsized = len(init), False
            size = 0 if unsized else n * esz
            v = Var(name, space, ty, size, align or esz, init, line=line, is_array=bool(arr), is_ptr=bool(isptr))
            res.append(v)
            if one or not self.accept(","):
                break
        if not one:
            self.want(";")
        return res

    def initialiser(self, out: Any, ty: str) -> None:
        if self.accept("{"):
            while not self.accept("}"):
                self.initialiser(out, ty)
                self.accept(",")
            return
        neg = self.accept("-")
        k = self.kind()
        if k == "id":
            name, off = self.next(), 0
            if name == "generic" or name == "mask":
                if name == "mask":
                    raise Unsupported(f"line {self.line()}: mask() initialiser")
                self.want("(")
                name = self.next()
                self.want(")")
            if self.peek() in "+-":
                s = -1 if self.next() == "-" else 1
                off = s * _int(self.next())
            out.append(Sym(name, off))
            return
        out.append(self.const_bits(self.next(), k, ty, neg))

    def const_bits(self, tok: Any, k: Any, ty: str, neg: Any) -> Any:
        import struct

        nb = TYPE_BYTES[ty]
        if k == "int":
            v = -_int(tok) if neg else _int(tok)
            if ty in ("f32", "f64", "f16", "bf16"):
                self.fail("integer initialiser of a floating-point variable")
            return v & ((1 << 8 * nb) - 1)
        if k == "hexf":
            b = int(tok[2:], 16)
            f = (
                struct.unpack(">f", struct.pack(">I", b))[0]
                if tok[1] in "fF"
                else struct.unpack(">d", struct.pack(">Q", b))[0]
            )
            if not neg and ((tok[1] in "fF") == (nb == 4)):
                return b
        else:
            f = float(tok)
        if neg:
            f = -f
        if ty in ("f32", "b32"):
            return struct.unpack(">I", struct.pack(">f", f))[0]
        if ty in ("f64", "b64"):
            return struct.unpack(">Q", struct.pack(">d", f))[0]
        self.fail(f"cannot initialise .{ty} with {tok}")

    # -- functions
    def func(self, extern: Any) -> None:
        line = self.line()
        entry = self.next() == ".entry"
        f = Func("", entry, line=line)
        self.fn, self.uid = f, 0
        self.scope = _Scope(None, 0)
        if self.peek() == "(":
            f.rets = self.paramlist()
        f.name = self.next()
        if self.peek() == "(":
            f.params = self.paramlist()
        while self.kind() == "dir":
            d = self.next()
            if d in (
                ".maxntid",
                ".reqntid",
                ".minnctapersm",
                ".maxnctapersm",
                ".maxnreg",
                ".abi_preserve",
                ".abi_preserve_control",
            ):
                v = [_int(self.next())]
                while self.accept(","):
                    v.append(_int(self.next()))
                f.directives[d[1:]] = v
            elif d in (".noreturn", ".pragma"):
                if d == ".pragma":
                    while not self.accept(";"):
                        self.next()
            else:
                raise Unsupported(f"line {self.line()}: function directive {d}")
        if self.accept(";"):
            if f.name not in self.mod.funcs:
                self.mod.funcs[f.name] = f
            return
        self.want("{")
        f.defined = True
        self.loc = None
        self.body()
        self.resolve_labels()
        self.mod.funcs[f.name] = f

    def paramlist(self) -> Any:
        self.want("(")
        out = []
        while not self.accept(")"):
            if self.peek() == ".reg":
                raise Unsupported(f"line {self.line()}: .reg function parameters")
            if self.peek() != ".param":
                self.fail("parameter expected")
            out += self.variables(one=True)
            self.accept(",")
        return out

    def lookup_reg(self, name: Any) -> Any:
        for s in self.scope.chain():
            if name in s.names:
                return s.names[name]
            m = re.match(r"(.*?)(\d+)$", name)
            if m:
                # try every split prefix/number: '%r1' + '2' vs '%r' + '12'
                for p in range(len(m.group(1)), len(name)):
                    pre, num = name[:p], name[p:]
                    r = s.ranges.get(pre)
                    if r and (num == "0" or num[0] != "0") and int(num) < r[1]:
                        u = name if s.uid == 0 else f"{name}#{s.uid}"
                        s.names[name] = ("reg", u)
                        self.fn.regs[u] = r[0]
                        return s.names[name]
        return None

    def body(self) -> None:
        depth = 1
        f = self.fn
        while depth:
            k, t = self.kind(), self.peek()
            if k == "eof":
                self.fail("unterminated function body")
            if t == "{":
                self.next()
                self.uid += 1
                self.scope = _Scope(self.scope, self.uid)
                depth += 1
            elif t == "}":
                self.next()
                depth -= 1
                self.last_scope, self.scope = self.scope, self.scope.parent or self.scope
            elif t == ".reg":
                self.reg_decl()
            elif t in (".local", ".shared", ".param", ".global", ".const"):
                for v in self.variables():
                    if t in (".global", ".const") or v.init:
                        raise Unsupported(f"line {v.line}: {t} variable inside a function")
                    u = v.name if self.scope.uid == 0 else f"{v.name}#{self.scope.uid}"
                    self.scope.names[v.name] = ("var", u)
                    f.vars[u] = v
            elif t == ".loc":
                self.next()
                fno, ln = int(self.next()), int(self.next())
                self.next()
                self.loc = (fno, ln)
                if self.accept(","):  # function_name / inlined_at
                    line = self.line()
                    while self.line() == line:
                        self.next()
            elif t == ".pragma":
                while not self.accept(";"):
                    self.next()
            elif t == ".file":
                self.file()
            elif k == "dir" and t in (".branchtargets", ".calltargets", ".callprototype"):
                self.fail(f"{t} without a label")
            elif k == "id" and self.peek(1) == ":":
                name = self.next()
                self.next()
                if self.peek() == ".branchtargets":
                    self.next()
                    lst = []
                    while not self.accept(";"):
                        lst.append(self.next())
                        self.accept(",")
                    f.tables[name] = (lst, self.scope)
                elif self.peek() in (".calltargets", ".callprototype"):
                    while not self.accept(";"):
                        self.next()
                else:
                    self.scope.labels[name] = len(f.instrs)
            elif t == ";":
                self.next()
            else:
                self.instr()

    def reg_decl(self) -> None:
        self.next()
        ty = self.next()[1:]
        if ty in ("v2", "v4"):
            raise Unsupported(f"line {self.line()}: vector registers (.reg .{ty})")
        if ty not in TYPE_BYTES or ty == "b128":
            raise Unsupported(f"line {self.line()}: .reg .{ty}")
        while True:
            name = self.next()
            if self.accept("<"):
                n = int(self.next())
                self.want(">")
                self.scope.ranges[name] = (ty, n)
            else:
                u = name if self.scope.uid == 0 else f"{name}#{self.scope.uid}"
                self.scope.names[name] = ("reg", u)
                self.fn.regs[u] = ty
            if not self.accept(","):
                break
        self.want(";")

    def instr(self) -> None:
        line, start = self.line(), self.toks[self.i][3]
        guard = None
        if self.accept("@"):
            neg = self.accept("!")
            r = self.operand()
            if not isinstance(r, Reg):
                self.fail("guard must be a predicate register")
            guard = (r, neg)
        if self.kind() not in ("opc", "id"):
            self.fail(f"instruction expected, found {self.peek()!r}")
        op = self.next()
        args = []
        if self.peek() != ";":
            while True:
                args.append(self.operand())
                if not self.accept(","):
                    break
        end = self.toks[self.i][3]
        self.want(";")
        text = " ".join(re.sub(r"//[^\n]*", "", self.text[start:end]).split())
        self.fn.instrs.append(Instr(op, args, guard, line, text, self.loc, self.scope))

    def operand(self) -> Any:
        a = self.operand1()
        if self.accept("|"):
            return Dual(a, self.operand1())
        return a

    def operand1(self) -> Any:
        t, k = self.peek(), self.kind()
        if t == "{":
            self.next()
            items = []
            while not self.accept("}"):
                items.append(self.operand())
                self.accept(",")
            return Vec(tuple(items))
        if t == "(":
            self.next()
            items = []
            while not self.accept(")"):
                items.append(self.operand())
                self.accept(",")
            return Paren(tuple(items))
        if t == "[":
            self.next()
            base = self.operand1()
            off = 0
            if self.peek() == ",":
                raise Unsupported(f"line {self.line()}: tensor/texture address operand")
            while not self.accept("]"):
                s = self.next()
                if s == "+":
                    s = -1 if self.accept("-") else 1
                elif s == "-":
                    s = -1
                else:
                    self.fail("bad address")
                off += s * _int(self.next())
            if isinstance(base, Sym):
                off += base.off
                base = Sym(base.name)
            return Mem(base, off)
        if t == "!":
            self.next()
            return Not(self.operand1())
        neg = False
        if t == "-":
            self.next()
            neg, t, k = True, self.peek(), self.kind()
        if k == "int":
            self.next()
            v = _int(t)
            return Imm("i", -v if neg else v)
        if k == "hexf":
            self.next()
            b = int(t[2:], 16)
            kind = t[1].lower()
            if neg:
                b ^= 1 << (31 if kind == "f" else 63)
            return Imm(kind, b)
        if k == "flt":
            import struct

            self.next()
            f = -float(t) if neg else float(t)
            return Imm("d", struct.unpack(">Q", struct.pack(">d", f))[0])
        if k == "spec":
            self.next()
            # a user register may have the name of a special register's prefix only if declared; declared wins
            return Special(t)
        if k == "id":
            self.next()
            if t == "_":
                return SINK
            if t == "WARP_SZ":
                return Imm("i", 32)
            r = self.lookup_reg(t)
            if r and r[0] == "reg":
                return Reg(r[1])
            name = r[1] if r else t
            if t.startswith("%") and r is None:
                if t == "%p" or t[1:].isalpha():
                    raise Unsupported(f"line {self.line()}: unknown register {t}")
                self.fail(f"undeclared register {t}")
            off = 0
            if self.peek() in ("+", "-") and self.kind(1) == "int":
                s = 1 if self.next() == "+" else -1
                off = s * _int(self.next())
            return Sym(name, off)
        if k == "opc":
            raise Unsupported(f"line {self.line()}: vector element or qualified operand {t!r}")
        self.fail(f"bad operand {t!r}")

    def resolve_labels(self) -> None:
        f = self.fn

        def find(name: Any, scope: Any) -> Any:
            for s in scope.chain():
                if name in s.labels:
                    return s.labels[name]
            return None

        for ins in f.instrs:
            base = ins.op.split(".")[0]
            if base == "bra":
                t = ins.args[0]
                pc = find(t.name, ins.scope) if isinstance(t, Sym) else None
                if pc is None:
                    raise PtxSyntaxError(f"line {ins.line}: unknown label in {ins.text}")
                ins.target = pc
            elif base == "brx":
                tab = f.tables.get(ins.args[1].name)
                if tab is None:
                    raise PtxSyntaxError(f"line {ins.line}: unknown branch table in {ins.text}")
                ins.target = [find(n, tab[1]) for n in tab[0]]
                if None in ins.target:
                    raise PtxSyntaxError(f"line {ins.line}: unknown label in the table of {ins.text}")
            ins.scope = None


def parse(text: Any) -> Any:
    """Parse one PTX translation unit."""
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text).rstrip(b"\0").decode()
    return _Parser(text.rstrip("\0")).parse()
