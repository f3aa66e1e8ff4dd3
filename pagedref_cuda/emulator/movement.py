"""Movement of data: mov, address spaces, loads, stores, cp.async; what has no effect here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW
from pagedref_cuda.emulator.operands import (
    I64,
    U32,
    UN,
    Context,
    np_type,
)
from pagedref_cuda.emulator.program import RegOp
from pagedref_cuda.emulator.syntax import TYPE_BYTES, Imm, Not, Special, Vec

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


def _mov(c: Context) -> Any:
    """Compile mov, also of pieces into a register and back.

    Moving a register that was never written is allowed: what moves is that it was never written.
    """
    ty = c.type()
    c.done()
    c.nargs(2)
    d, a = c.args
    if ty == "pred":
        ga, p = c.get(a, "pred"), c.put(d, "pred")
        return lambda M: p(M, ga(M).copy())
    n = TYPE_BYTES[ty]
    if isinstance(a, Vec):  # pack
        k = len(a.items)
        w = n // k
        gs = [c.get(x, f"b{8 * w}") for x in a.items]
        p, ut = c.put(d, f"b{8 * n}"), UN[n]

        def pack(M: Machine) -> None:
            r = gs[0](M).astype(ut)
            for j in range(1, k):
                r = r | (gs[j](M).astype(ut) << ut(8 * w * j))
            p(M, r)

        return pack
    if isinstance(d, Vec):  # unpack
        k = len(d.items)
        w = n // k
        ga = c.get(a, f"b{8 * n}")
        ps = [c.put(x, f"b{8 * w}") for x in d.items]
        ut, wt = UN[n], UN[w]

        def unpack(M: Machine) -> None:
            v = ga(M)
            outs = [(v >> ut(8 * w * j)).astype(wt) for j in range(k)]
            for q, o in zip(ps, outs):
                q(M, o)

        return unpack
    ga, p = c.get(a, ty if isinstance(a, Imm) else f"b{8 * n}"), c.put(d, f"b{8 * n}")
    ud = UN[n]
    if isinstance(a, RegOp):  # a move of an undefined register is allowed: it moves nothing
        i = a.i

        def mov(M: Machine) -> None:
            if M.R[i] is None:
                if M.strict and isinstance(d, RegOp):
                    M.mat(d.i)
                    M.undef.setdefault(d.i, np.zeros(M.T, bool))[M.sel] = True
                return
            if i in M.undef:  # undefinedness moves along
                u, M.undef = M.undef, {}
                p(M, ga(M).copy())
                M.undef = u
                if isinstance(d, RegOp):
                    if d.i not in u:
                        u[d.i] = np.zeros(M.T, bool)
                    u[d.i][M.sel] = u[i][M.sel]
                return
            v = ga(M)
            p(M, v.copy() if v.base is not None or v is M.R[i] else v)

        return mov
    if isinstance(a, Special):

        def movs(M: Machine) -> None:
            v = ga(M)
            p(M, v.view(ud).copy())

        return movs
    return lambda M: p(M, ga(M).view(ud))


def _cvta(c: Context) -> Any:
    """Compile cvta between generic addresses and those of a space."""
    ty = c.type()
    to = c.take("to")
    space = c.take("global", "shared", "shared::cta", "local", "const", "param")
    c.done()
    if space is None:
        c.refuse("cvta without a state space")
    base = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
    if TYPE_BYTES[ty] != 8:
        c.refuse("32-bit cvta")
    ga, p = c.get(c.args[1], "s64"), c.put(c.args[0], "s64")
    k = I64(-base if to else base)
    return lambda M: p(M, ga(M) + k)


def _isspacep(c: Context) -> Any:
    """Compile isspacep."""
    space = c.take("global", "shared", "shared::cta", "local", "const", "param")
    c.done()
    d, a = c.args
    ga, p = c.get(a, "s64"), c.put(d, "pred")
    base = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}.get(
        space
    )
    if base:
        return lambda M: p(M, (ga(M) >= base) & (ga(M) < base + WINDOW))
    if space == "global":
        return lambda M: p(M, (ga(M) >= PARAM_WINDOW + WINDOW))
    c.refuse("isspacep.const")


LD_HINTS = (
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_normal",
    "L2::evict_first",
    "L2::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
)


SPACES = ("global", "shared", "shared::cta", "local", "const", "param", "param::entry", "param::func")


def mem_common(c: Context) -> Any:
    """Take the modifiers that loads and stores share: type, vector, space, and whether the access is strong."""
    ty = c.type()
    vec = int((c.take("v2", "v4") or "v1")[1:])
    space = c.take(*SPACES)
    space = {None: "generic", "shared::cta": "shared", "param::entry": "param", "param::func": "param"}.get(
        space, space
    )
    strong = c.take("volatile", "relaxed", "acquire", "release", "mmio")
    c.take("weak")
    if strong:
        c.take("cta", "cluster", "gpu", "sys")
    while c.take(*LD_HINTS):
        pass
    return ty, vec, space, bool(strong)


def _ld(c: Context) -> Any:
    """Compile ld and ldu."""
    nc = bool(c.take("nc")) if c.f.parts[0] == "ld" else True
    ty, vec, space, strong = mem_common(c)
    c.done()
    c.nargs(2)
    d, m = c.args
    w = TYPE_BYTES[ty]
    if ty in ("b128", "pred") or w * vec > 16:
        c.refuse("access width")
    ga, sym = c.addr(m)
    if space == "param":
        space = (
            "kparam"
            if sym is not None and sym.space == "kparam"
            else "local"
            if sym is not None and sym.space == "param"
            else "kparam"
        )
    if space == "const":
        space = "global"
    if (
        sym is not None
        and space in ("global", "shared", "local")
        and sym.space not in (space, "const" if space == "global" else space, "param" if space == "local" else space)
    ):
        c.refuse(f".{space} access to a .{sym.space} symbol")
    if sym is not None and space == "generic" and sym.space in ("shared", "local", "param"):
        c.refuse("generic access to a symbol address")
    ds = d.items if vec > 1 else (d,)
    if vec > 1 and (not isinstance(d, Vec) or len(ds) != vec):
        c.refuse("vector destination")
    mty = ty if ty[0] == "s" else f"u{8 * w}"
    ps = [c.put(x, mty, True, wide=True) for x in ds]
    dt = np_type(mty)
    if vec == 1:
        p0 = ps[0]
        return lambda M: p0(M, M.load(space, ga(M), w, 1, strong, nc)[0].view(dt))

    def run(M: Machine) -> None:
        for p, r in zip(ps, M.load(space, ga(M), w, vec, strong, nc)):
            p(M, r.view(dt))

    return run


def _st(c: Context) -> Any:
    """Compile st."""
    ty, vec, space, strong = mem_common(c)
    c.done()
    c.nargs(2)
    m, s = c.args
    w = TYPE_BYTES[ty]
    if ty in ("b128", "pred") or w * vec > 16:
        c.refuse("access width")
    if space == "const":
        c.refuse("store to .const")
    ga, sym = c.addr(m)
    if space == "param":
        if sym is None or sym.space != "param":
            c.refuse("st.param to something that is not a .param variable")
        space = "local"
    ss = s.items if vec > 1 else (s,)
    if vec > 1 and (not isinstance(s, Vec) or len(ss) != vec):
        c.refuse("vector source")
    gs = [c.get(x, ty if isinstance(x, Imm) else f"u{8 * w}", True, wide=True) for x in ss]
    ud = UN[w]
    return lambda M: M.store(space, ga(M), w, vec, [g(M).view(ud) for g in gs], strong)


def _nop(c: Context) -> Any:
    """Compile what has no effect here: prefetch, membar, fence, nanosleep, pmevent."""
    ok = {
        "prefetch": ("global", "local", "L1", "L2", "L2::evict_last", "L2::evict_normal"),
        "prefetchu": ("L1",),
        "membar": ("cta", "gl", "sys"),
        "fence": (
            "sc",
            "acq_rel",
            "acquire",
            "release",
            "cta",
            "cluster",
            "gpu",
            "sys",
            "proxy",
            "alias",
            "async",
            "generic",
            "global",
        ),
        "nanosleep": ("u32",),
        "pmevent": ("mask",),
    }[c.f.parts[0]]
    while c.take(*ok):
        pass
    c.done()
    return lambda M: None


def _cp(c: Context) -> Any:
    """Compile cp.async, its commit and its waits."""
    if c.take("async") is None:
        c.refuse("cp")
    if c.take("commit_group"):
        c.done()
        return lambda M: M.cp_commit()
    if c.take("wait_all"):
        c.done()
        return lambda M: M.cp_wait(None)
    if c.take("wait_group"):
        c.done()
        n = c.args[0].value
        return lambda M: M.cp_wait(n)
    if c.take("bulk", "mbarrier", "reduce"):
        c.refuse("cp.async.bulk / mbarrier")
    how = c.take("ca", "cg")
    sp = c.take("shared", "shared::cta")
    gl = c.take("global")
    while c.take("L2::64B", "L2::128B", "L2::256B"):
        pass
    c.done()
    if not how or not sp or not gl:
        c.refuse("cp.async form")
    c.nargs(3, 4)
    size = c.args[2].value
    if size not in ((16,) if how == "cg" else (4, 8, 16)):
        c.refuse("cp.async size")
    gd, _ = c.addr(c.args[0])
    gs, _ = c.addr(c.args[1])
    if len(c.args) == 3:
        return lambda M: M.cp_async(gd(M), gs(M), size, None)
    o = c.args[3]
    if (isinstance(o, RegOp) and o.ty == "pred") or isinstance(o, Not):  # ignore-src
        gp = c.get(o, "pred", True)
        return lambda M: M.cp_async(gd(M), gs(M), size, np.where(gp(M), U32(0), U32(size)))
    gz = c.get(o, "u32", True)
    return lambda M: M.cp_async(gd(M), gs(M), size, gz(M))


OPERATIONS = {
    "mov": _mov,
    "cvta": _cvta,
    "isspacep": _isspacep,
    "ld": _ld,
    "ldu": _ld,
    "st": _st,
    "prefetch": _nop,
    "prefetchu": _nop,
    "membar": _nop,
    "fence": _nop,
    "nanosleep": _nop,
    "pmevent": _nop,
    "cp": _cp,
}
