"""Barriers and operations of a whole warp: shuffles, votes, matches, reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator.errors import EmulatorError
from pagedref_cuda.emulator.operands import (
    I64,
    U32,
    Context,
    is_float,
    np_type,
)
from pagedref_cuda.emulator.syntax import TYPE_BYTES, Dual

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


def _bar(c: Context) -> Any:
    """Compile bar and barrier: sync, arrive, red; and bar.warp.sync."""
    if c.take("warp"):
        if c.take("sync") is None:
            c.refuse("bar.warp")
        c.done()
        g = c.get(c.args[0], "u32", True)

        def body(M: Machine) -> None:
            if M.races:
                M.wepoch[np.unique(M.sel >> 5)] += 1

        return "sync", lambda M, pc: M.collective(pc, g, body)
    ty = c.type() if c.mods and c.mods[-1] in ("pred", "u32") else None
    c.take("cta")
    c.take("aligned")
    op = c.take("sync", "arrive", "red")
    rop = c.take("popc", "and", "or") if op == "red" else None
    c.done()
    if op is None:
        c.refuse("barrier")
    args = list(c.args)
    if op != "red":
        gb = c.get(args[0], "u32", True)
        gn = c.get(args[1], "u32", True) if len(args) > 1 else None
        if op == "arrive" and gn is None:
            c.refuse("bar.arrive without a count")
        return "sync", lambda M, pc: M.barrier(
            pc, gb(M).astype(I64), gn(M).astype(I64) if gn else None, None, op == "arrive"
        )
    d = args.pop(0)
    pr = c.get(args.pop(), "pred", True)
    gb = c.get(args[0], "u32", True)
    gn = c.get(args[1], "u32", True) if len(args) > 1 else None
    if (rop == "popc") != (ty == "u32"):
        c.refuse("bar.red type")
    put0 = c.put(d, "u32" if rop == "popc" else "pred", True)

    def put(M: Machine, v: Any) -> Any:
        return put0(M, v.astype(U32) if rop == "popc" else v.astype(bool))

    c.f.ext = ("red", rop, put)
    return "sync", lambda M, pc: M.barrier(
        pc, gb(M).astype(I64), gn(M).astype(I64) if gn else None, np.broadcast_to(pr(M), (M.n,)).astype(U32)
    )


def _shfl(c: Context) -> Any:
    """Compile shfl.sync in its four modes."""
    ty = c.type()
    if c.take("sync") is None:
        c.refuse("shfl without .sync")
    mode = c.take("up", "down", "bfly", "idx")
    c.done()
    if TYPE_BYTES[ty] != 4:
        c.refuse("shfl type")
    d, a, b, cc, mk = c.args
    if isinstance(d, Dual):
        p, q = c.put(d.a, "b32", True), c.put(d.b, "pred", True)
    else:
        p, q = c.put(d, "b32", True), None
    fa = c.full(a, "b32")
    gb, gc, gm = c.get(b, "u32", True), c.get(cc, "u32", True), c.get(mk, "u32", True)

    def body(M: Machine) -> None:
        lane = M.sel & 31
        bv, cv = (gb(M) & U32(31)).astype(I64), gc(M).astype(I64)
        clamp, seg = cv & 31, (cv >> 8) & 31
        mx = (lane & seg) | (clamp & ~seg)
        mn = lane & seg
        if mode == "up":
            j = lane - bv
            ok = j >= mx
        elif mode == "down":
            j = lane + bv
            ok = j <= mx
        elif mode == "bfly":
            j = lane ^ bv
            ok = j <= mx
        else:
            j = mn | (bv & ~seg)
            ok = j <= mx
        j = np.where(ok, j, lane)
        src = (M.sel & ~31) + j
        if M.strict:
            m = gm(M).astype(I64)
            inm = (m >> j) & 1
            here = inm.astype(bool) & M.mask[src]
            if not here.all():
                k = int(np.flatnonzero(~here)[0])
                raise EmulatorError(
                    f"shfl.sync reads lane {int(j[k])}, "
                    f"which is not among the executing lanes of the member mask; {M.who(int(M.sel[k]))}"
                )
        v = fa(M)[src]
        p(M, v)
        if q:
            q(M, np.broadcast_to(ok, (M.n,)).copy())

    return "sync", lambda M, pc: M.collective(pc, gm, body)


def lane_matrix(M: Machine, v: Any, fill: Any) -> Any:
    """Return the values of the group as (warps, 32); lanes outside it hold `fill`."""
    m = np.full(M.T, fill, v.dtype)
    m[M.sel] = v
    return m.reshape(M.W, 32)


def member_matrix(M: Machine, gm: Any) -> Any:
    """Return for each thread which lanes of its mask are executing: (n, 32) of bool."""
    m = gm(M)
    m = np.broadcast_to(m, (M.n,))
    bits = ((m[:, None] >> np.arange(32, dtype=U32)) & U32(1)).astype(bool)
    return bits & M.mask.reshape(M.W, 32)[M.sel >> 5]


def _vote(c: Context) -> Any:
    """Compile vote.sync."""
    c.type()
    if c.take("sync") is None:
        c.refuse("vote without .sync")
    mode = c.take("all", "any", "uni", "ballot")
    c.done()
    d, a, mk = c.args
    ga, gm = c.get(a, "pred", True), c.get(mk, "u32", True)
    p = c.put(d, "u32" if mode == "ballot" else "pred", True)

    def body(M: Machine) -> None:
        v = np.broadcast_to(ga(M), (M.n,))
        lanes = lane_matrix(M, v, False)[M.sel >> 5]
        mem = member_matrix(M, gm)
        if mode == "ballot":
            p(M, ((lanes & mem) * (U32(1) << np.arange(32, dtype=U32))).sum(1, dtype=U32))
        elif mode == "all":
            p(M, (lanes | ~mem).all(1))
        elif mode == "any":
            p(M, (lanes & mem).any(1))
        else:
            p(M, (lanes | ~mem).all(1) | ~(lanes & mem).any(1))

    return "sync", lambda M, pc: M.collective(pc, gm, body)


def _match(c: Context) -> Any:
    """Compile match.sync."""
    ty = c.type()
    mode = c.take("any", "all")
    if c.take("sync") is None:
        c.refuse("match")
    c.done()
    d, a, mk = c.args
    ga, gm = c.get(a, f"u{8 * TYPE_BYTES[ty]}", True), c.get(mk, "u32", True)
    q = None
    if isinstance(d, Dual):
        q = c.put(d.b, "pred", True)
        d = d.a
    p = c.put(d, "u32", True)

    def body(M: Machine) -> None:
        v = np.broadcast_to(ga(M), (M.n,))
        lanes = lane_matrix(M, v, 0)[M.sel >> 5]
        mem = member_matrix(M, gm)
        eq = (lanes == v[:, None]) & mem
        w = U32(1) << np.arange(32, dtype=U32)
        if mode == "any":
            p(M, (eq * w).sum(1, dtype=U32))
        else:
            al = (eq | ~mem).all(1)
            p(M, np.where(al, (mem * w).sum(1, dtype=U32), U32(0)))
            if q:
                q(M, al)

    return "sync", lambda M, pc: M.collective(pc, gm, body)


def _redux(c: Context) -> Any:
    """Compile redux.sync of integers."""
    ty = c.type()
    if c.take("sync") is None:
        c.refuse("redux")
    op = c.take("add", "min", "max", "and", "or", "xor")
    c.done()
    d, a, mk = c.args
    ga, gm, p = c.get(a, ty, True), c.get(mk, "u32", True), c.put(d, ty, True)
    if is_float(ty):
        c.refuse("redux on floats")
    dt = np_type(ty)
    ident = {
        "add": 0,
        "or": 0,
        "xor": 0,
        "and": -1 if ty[0] == "s" else np.iinfo(dt).max,
        "min": np.iinfo(dt).max,
        "max": np.iinfo(dt).min,
    }[op]
    uf = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[op]

    def body(M: Machine) -> None:
        v = np.broadcast_to(ga(M), (M.n,))
        lanes = lane_matrix(M, v, ident)[M.sel >> 5]
        x = np.where(member_matrix(M, gm), lanes, dt.type(ident))
        p(M, uf.reduce(x, axis=1, dtype=dt))

    return "sync", lambda M, pc: M.collective(pc, gm, body)


def _elect(c: Context) -> Any:
    """Compile elect.sync."""
    if c.take("sync") is None:
        c.refuse("elect")
    c.done()
    d, mk = c.args
    gm = c.get(mk, "u32", True)
    p = c.put(d.a, "u32", True)
    q = c.put(d.b, "pred", True)

    def body(M: Machine) -> None:
        mem = member_matrix(M, gm)
        lead = mem.argmax(1)
        p(M, lead.astype(U32))
        q(M, lead == (M.sel & 31))

    return "sync", lambda M, pc: M.collective(pc, gm, body)


def _activemask(c: Context) -> Any:
    """Compile activemask."""
    c.type()
    c.done()
    p = c.put(c.args[0], "u32", True)
    return lambda M: p(M, M.lanes_of(M.sel)[M.sel >> 5])


OPERATIONS = {
    "bar": _bar,
    "barrier": _bar,
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "redux": _redux,
    "elect": _elect,
    "activemask": _activemask,
}
