"""What a kernel says: printf, traps, calls of functions that are nowhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator.errors import EmulatorError, Trap, Unsupported
from pagedref_cuda.emulator.operands import (
    F64,
    I32,
    I64,
    U32,
    Context,
)

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine


def _trap(c: Context) -> Any:
    """Compile trap and brkpt."""

    def run(M: Machine) -> None:
        raise Trap(f"{c.f.op} executed; {M.who(int(M.sel[0]))}")

    return run


def _call_undefined(c: Context) -> Any:
    """Compile a call of a function that no module defines: an error when reached."""

    def run(M: Machine) -> None:
        raise Unsupported(f"call of the undefined external function {c.f.ext}: {c.f.where()}")

    return run


def _vprintf(c: Context) -> Any:
    """Compile printf, which Numba's print uses, too."""
    fmt, arg, ret = c.args

    def at(o: Any) -> Any:
        return np.array([o.off], I64)

    def cstr(M: Machine, addr: Any) -> Any:
        al = M.mem.find(addr)
        if al is None or addr >= al.base + al.nbytes:
            raise EmulatorError(f"printf string at {addr:#x}: {M.mem.describe(addr)}")
        return bytes(al.u8[addr - al.base :]).split(b"\0")[0].decode(errors="replace")

    def run(M: Machine) -> None:
        f, a = (np.broadcast_to(M.load("local", at(o), 8, 1)[0].view(I64), (M.n,)) for o in (fmt, arg))
        sel = M.sel
        for k in range(len(sel)):
            text, pos = cstr(M, int(f[k])), 0
            M.set_group(sel[k : k + 1])

            def fetch(w: Any, k: int = k) -> Any:
                nonlocal pos
                pos = (pos + w - 1) // w * w
                v = M.load("generic", np.array([int(a[k]) + pos], I64), w, 1)[0]
                pos += w
                return v

            def sub(m: Any) -> Any:
                size, conv = m.group(2), m.group(3)
                if conv == "%":
                    return "%"
                if conv in "di":
                    return ("%" + m.group(1) + "d") % int(
                        fetch(8 if size in ("l", "ll") else 4).view(I64 if size in ("l", "ll") else I32)[0]
                    )
                if conv in "uxXoc":
                    return ("%" + m.group(1) + conv.replace("u", "d")) % int(fetch(8 if size in ("l", "ll") else 4)[0])
                if conv == "p":
                    return hex(int(fetch(8)[0]))
                if conv == "s":
                    return ("%" + m.group(1) + "s") % cstr(M, int(fetch(8)[0]))
                return ("%" + m.group(1) + conv) % float(fetch(8).view(F64)[0])

            M.stats.printed.append(re.sub(r"%([-+ #0]*\d*(?:\.\d+)?)(hh|h|ll|l|)([diuxXocpsfFeEgG%])", sub, text))
        M.set_group(sel)
        M.store("local", at(ret), 4, 1, [np.zeros(1, U32)])

    return run


OPERATIONS = {"vprintf": _vprintf, "trap": _trap, "brkpt": _trap, "call_undefined": _call_undefined}
