"""Atomic read-modify-write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator import rounding as fp
from pagedref_cuda.emulator.elements import (
    osum,
    packed,
)
from pagedref_cuda.emulator.operands import (
    F16,
    F64,
    PACKED,
    U16,
    U32,
    UN,
    Context,
    is_float,
    np_type,
)
from pagedref_cuda.emulator.syntax import TYPE_BYTES, Imm

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


def _integers(c: Context, op: Any, ty: str) -> tuple[Any, Any]:
    """Return the function of old and new bits, and that of running values, for integers."""
    t, ud = np_type(ty), UN[TYPE_BYTES[ty]]
    if op == "exch":
        return (lambda o, v: v), None
    if op == "cas":
        return (lambda o, cmp, v: np.where(o == cmp, v, o)), None
    if op in ("and", "or", "xor"):
        logic: Any = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
        return logic, lambda init, v: logic.accumulate(np.concatenate([init, v]))
    if op in ("inc", "dec"):
        if ty != "u32":
            c.refuse("atomic type")
        if op == "inc":
            return (lambda o, v: np.where(o >= v, U32(0), o + U32(1))), None
        return (lambda o, v: np.where((o == 0) | (o > v), v, o - U32(1))), None
    if op not in ("add", "min", "max") or ty[0] == "b":
        c.refuse("atomic operation")
    uf: Any = {"add": np.add, "min": np.minimum, "max": np.maximum}[op]
    return (
        lambda o, v: uf(o.view(t), v.view(t)).view(ud),
        lambda init, v: uf.accumulate(np.concatenate([init, v]).view(t), dtype=t).view(ud),
    )


def _float_add(ty: str, flush: bool) -> tuple[Any, Any]:
    """Return the same two functions for an addition of float32 or float64; `flush` treats subnormals as zero."""
    t, ud = np_type(ty), UN[TYPE_BYTES[ty]]

    def fn(o: Any, v: Any) -> Any:
        x, y = o.view(t), v.view(t)
        if flush:
            return fp.ftz32(fp.ftz32(x) + fp.ftz32(y)).view(ud)
        return (x + y).view(ud)

    def accum(init: Any, v: Any) -> Any:
        x = np.concatenate([init, v]).view(t)
        if flush and ((np.abs(x) < fp.TINY32) & (x != 0)).any():
            r = np.empty(len(x), t)
            r[0] = x[0]
            for k in range(1, len(x)):
                r[k : k + 1] = fn(r[k - 1 : k].view(ud), x[k : k + 1].view(ud)).view(t)
            return r.view(ud)
        r = np.add.accumulate(x)
        if flush:
            r = np.concatenate([r[:1], fp.ftz32(r[1:])])
        return r.view(ud)

    return fn, accum


def _half_add(ty: str) -> tuple[Any, Any]:
    """Return the function for an addition of one half or of a pair."""
    elem = PACKED.get(ty, ty)

    def one(x: Any, y: Any) -> Any:
        return fp.round_to(osum(x, y), elem)

    def wide(bits: Any) -> Any:
        return (bits.view(F16) if ty == "f16" else fp.bf16_to_f32(bits)).astype(F64)

    if ty in PACKED:
        return packed(one, elem), None
    return (lambda o, v: one(wide(o), wide(v)).view(U16)), None


def _atom(c: Context) -> Any:
    """Compile atom and red."""
    red = c.f.parts[0] == "red"
    ty = c.type()
    c.take("relaxed", "acquire", "release", "acq_rel")
    c.take("cta", "cluster", "gpu", "sys")
    given = c.take("global", "shared", "shared::cta")
    space = {None: "generic", "shared::cta": "shared"}.get(given, given)
    op = c.take("add", "cas", "exch", "min", "max", "and", "or", "xor", "inc", "dec")
    c.take("noftz")
    c.done()
    args = list(c.args)
    d = None if red else args.pop(0)
    m, srcs = args[0], args[1:]
    w = TYPE_BYTES[ty]
    if w not in (2, 4, 8) or len(srcs) != (2 if op == "cas" else 1):
        c.refuse("atomic type or operands")
    ga, _ = c.addr(m)
    gs = [c.get(x, ty if isinstance(x, Imm) else f"u{8 * w}", True) for x in srcs]
    ud = UN[w]
    if is_float(ty) and op == "add":
        # atom.add.f32 on global memory flushes subnormals
        fn, accum = _float_add(ty, ty == "f32" and space == "global") if ty in ("f32", "f64") else _half_add(ty)
    elif is_float(ty) and op in ("min", "max"):
        c.refuse("atomic operation")
    else:
        fn, accum = _integers(c, op, ty)
    p = None if red else c.put(d, f"u{8 * w}", True)

    def run(M: Machine) -> None:
        r = M.atomic(space, ga(M), w, fn, [g(M).view(ud) for g in gs], p is not None, accum)
        if p:
            p(M, r)

    return run


OPERATIONS = {"atom": _atom, "red": _atom}
