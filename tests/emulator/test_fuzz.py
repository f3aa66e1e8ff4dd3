"""Random structured programs (nested ifs, data-dependent loops, early exit, predication, calls through shared memory)
against a scalar
Python interpreter of the same program, over different batch sizes (so that the dense, sparse and uniform register
paths all run)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pagedref_cuda.emulator import Module
from tests.emulator.small_kernels import HEAD, assemble

M = 2**32 - 1
NR = 6


class Exit(Exception):
    pass


class Gen:
    def __init__(self, seed):
        self.r, self.lab, self.out = random.Random(seed), 0, []

    def label(self):
        self.lab += 1
        return f"L{self.lab}"

    def operand(self):
        return self.r.choice([f"%v{self.r.randrange(NR)}", str(self.r.randrange(0, 100))])

    def cond(self):
        return (
            self.r.choice(["lt", "ge", "eq", "ne", "hi", "ls"]),
            self.operand_reg(),
            self.r.choice([f"%v{self.r.randrange(NR)}", str(self.r.choice([0, 5, 50, 2**31]))]),
        )

    def operand_reg(self):
        return f"%v{self.r.randrange(NR)}"

    def block(self, depth):
        """-> tree; PTX text goes to self.out"""
        tree = []
        for _ in range(self.r.randrange(1, 5)):
            k = self.r.random()
            if depth == 0 or k < 0.5:
                op = self.r.choice(["add", "sub", "xor", "mul.lo", "min", "shl", "shr", "tid", "mov", "sel"])
                d, a, b = self.operand_reg(), self.operand_reg(), self.operand()
                t = {
                    "add": "add.u32",
                    "sub": "sub.u32",
                    "xor": "xor.b32",
                    "mul.lo": "mul.lo.u32",
                    "min": "min.u32",
                }.get(op)
                if op in ("shl", "shr"):
                    b = str(self.r.randrange(0, 40))
                    self.out.append(f"{op}.{'b32' if op == 'shl' else 'u32'} {d}, {a}, {b};")
                elif op == "tid":
                    self.out.append(f"mov.u32 {d}, %tid.x;")
                elif op == "mov":
                    self.out.append(f"mov.u32 {d}, {b};")
                elif op == "sel":
                    self.out.append(f"setp.gt.u32 %q, {a}, 40; selp.u32 {d}, {a}, {b}, %q;")
                else:
                    self.out.append(f"{t} {d}, {a}, {b};")
                tree.append(("op", op, d, a, b))
            elif k < 0.58:  # predicated instruction
                c, d, a = self.cond(), self.operand_reg(), self.operand_reg()
                neg = self.r.random() < 0.5
                self.out.append(f"setp.{c[0]}.u32 %q, {c[1]}, {c[2]}; @{'!' if neg else ''}%q add.u32 {d}, {a}, 7;")
                tree.append(("pred", c, neg, d, a))
            elif k < 0.8:
                c = self.cond()
                e, f = self.label(), self.label()
                self.out.append(f"setp.{c[0]}.u32 %q, {c[1]}, {c[2]}; @!%q bra {e};")
                t1 = self.block(depth - 1)
                t2 = []
                if self.r.random() < 0.6:
                    self.out.append(f"bra {f}; {e}:")
                    t2 = self.block(depth - 1)
                    self.out.append(f"{f}:")
                else:
                    self.out.append(f"{e}:")
                tree.append(("if", c, t1, t2))
            elif k < 0.95:
                cnt, n = f"%c{depth}", self.r.choice(["tid", "const", "reg"])
                if n == "tid":
                    self.out.append(f"mov.u32 %n{depth}, %tid.x; and.b32 %n{depth}, %n{depth}, 7;")
                    src = None
                elif n == "const":
                    src = self.r.randrange(0, 5)
                    self.out.append(f"mov.u32 %n{depth}, {src};")
                else:
                    src = self.operand_reg()
                    self.out.append(f"and.b32 %n{depth}, {src}, 3;")
                top, end = self.label(), self.label()
                self.out.append(f"mov.u32 {cnt}, 0; {top}: setp.ge.u32 %q, {cnt}, %n{depth}; @%q bra {end};")
                body = self.block(depth - 1)
                brk = None
                if self.r.random() < 0.3:
                    brk = self.cond()
                    self.out.append(f"setp.{brk[0]}.u32 %q, {brk[1]}, {brk[2]}; @%q bra {end};")
                self.out.append(f"add.u32 {cnt}, {cnt}, 1; bra {top}; {end}:")
                tree.append(("loop", n, src, body, brk))
            else:
                c = self.cond()
                self.out.append(f"setp.{c[0]}.u32 %q, {c[1]}, {c[2]}; setp.eq.and.u32 %q, {c[1]}, 13, %q; @%q exit;")
                tree.append(("exit", c))
        return tree


def val(x, v):
    return v[int(x[2:])] if x.startswith("%v") else int(x)


def test_cond(c, v):
    a, b = val(c[1], v), val(c[2], v)
    return {"lt": a < b, "ge": a >= b, "eq": a == b, "ne": a != b, "hi": a > b, "ls": a <= b}[c[0]]


test_cond.__test__ = False


def execute(tree, v, tid):
    for n in tree:
        if n[0] == "op":
            _, op, d, a, b = n
            x, y = val(a, v), val(b, v)
            r = {
                "add": x + y,
                "sub": x - y,
                "xor": x ^ y,
                "mul.lo": x * y,
                "min": min(x, y),
                "shl": x << min(y, 32),
                "shr": x >> y,
                "tid": tid,
                "mov": y,
                "sel": x if x > 40 else y,
            }[op]
            v[int(d[2:])] = r & M
        elif n[0] == "pred":
            if test_cond(n[1], v) != n[2]:
                v[int(n[3][2:])] = (val(n[4], v) + 7) & M
        elif n[0] == "if":
            execute(n[2] if test_cond(n[1], v) else n[3], v, tid)
        elif n[0] == "loop":
            k = tid & 7 if n[1] == "tid" else n[2] if n[1] == "const" else val(n[2], v) & 3
            i = 0
            while i < k:
                execute(n[3], v, tid)
                if n[4] and test_cond(n[4], v):
                    break
                i += 1
        elif n[0] == "exit" and test_cond(n[1], v) and val(n[1][1], v) == 13:
            raise Exit


@pytest.mark.parametrize("seed", range(60))
def test_random_program(seed):
    check(seed)


@pytest.mark.parametrize("part", range(4))
def test_more_random_programs(part):
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        check(seed)


def check(seed):
    g = Gen(seed)
    body = g.block(3)
    stores = "".join(f"st.global.u32 [%d2+{4 * k}], %v{k};" for k in range(NR))
    ptx = (
        HEAD
        + ".visible .entry k(.param .u64 A, .param .u64 O) {\n"
        + ".reg .pred %q; .reg .b64 %d<4>; .reg .b32 %v<6>, %c<4>, %n<4>, %t<4>;\n"
        + """mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ntid.x; mov.u32 %t2, %tid.x;
    mad.lo.u32 %t0, %t0, %t1, %t2; mul.wide.u32 %d0, %t0, 24; ld.param.u64 %d1, [A]; add.u64 %d1, %d1, %d0;
    ld.param.u64 %d2, [O]; add.u64 %d2, %d2, %d0;
    """
        + "".join(f"ld.global.u32 %v{k}, [%d1+{4 * k}];" if k < 4 else f"mov.u32 %v{k}, {k * 10};" for k in range(NR))
        + "\n"
        + "\n".join(g.out)
        + "\n"
        + stores
        + "\nret; }"
    )
    if seed < 12:
        assemble(ptx)
    blk, grid = (40, 5) if seed % 2 else (64, 3)
    n = blk * grid
    r = np.random.default_rng(seed)
    a = r.integers(0, 60, (n, NR)).astype(np.uint32)
    if seed % 3 == 0:
        a[:] = a[0]  # uniform inputs
    exp = np.zeros((n, NR), np.uint32)
    for i in range(n):
        v = [int(x) for x in a[i, :4]] + [k * 10 for k in range(4, NR)]
        try:
            execute(body, v, i % blk)
            exp[i] = v
        except Exit:
            pass
    m = Module(ptx)
    for bt in (1, 128, 10**6):
        o = np.zeros((n, NR), np.uint32)
        m.launch("k", grid, blk, [a, o], batch_threads=bt)
        bad = np.argwhere(o != exp)
        assert not bad.size, (seed, bt, bad[0], o[tuple(bad[0])], exp[tuple(bad[0])])
