"""From an instruction to a function of the machine: the table of all families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pagedref_cuda.emulator import (
    atomics,
    bits,
    comparison,
    conversion,
    float_arithmetic,
    integer_arithmetic,
    movement,
    printing,
    synchronisation,
    tensor_cores,
)
from pagedref_cuda.emulator.errors import Unsupported
from pagedref_cuda.emulator.operands import Context

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine

OPERATIONS = {
    **atomics.OPERATIONS,
    **bits.OPERATIONS,
    **comparison.OPERATIONS,
    **conversion.OPERATIONS,
    **float_arithmetic.OPERATIONS,
    **integer_arithmetic.OPERATIONS,
    **movement.OPERATIONS,
    **printing.OPERATIONS,
    **synchronisation.OPERATIONS,
    **tensor_cores.OPERATIONS,
}


def guarded(run: Any, g: Any, neg: Any) -> Any:
    """Execute an ordinary instruction for the lanes whose predicate holds."""
    i = g.i

    def r(M: Machine) -> None:
        p = M.R[i]
        if p is None:
            p = M.uninit(i)
        if p.shape[0] == 1:
            if bool(p[0]) != neg:
                run(M)
            return
        old = M.sel
        q = p if M.esel is None else p[old]
        if neg:
            q = ~q
        c = np.count_nonzero(q)
        if c == 0:
            return
        if c == M.n:
            run(M)
            return
        M.set_group(old[q])
        lv, M.others_live = M.others_live, -1  # the lanes that skip it keep everything
        run(M)
        M.others_live = lv
        M.set_group(old)

    return r


def compile_instr(f: Any, prog: Any) -> Any:
    """Compile an instruction: its kind, its function of the machine, and what is wrong with it, if anything.

    One that is not supported becomes a function that raises Unsupported when it is reached.
    """
    if f.kind in ("bra", "exit"):
        return f.kind, None, None
    c = Context(f, prog)
    try:
        if f.kind == "brx":
            return "brx", c.get(f.args[0], "u32", True), None
        fn = OPERATIONS.get(f.parts[0])
        if fn is None:
            c.refuse(f"unknown opcode {f.parts[0]!r}")
        r = fn(c)
    except (Unsupported, AttributeError, TypeError, ValueError, KeyError, IndexError) as e:
        msg = str(e) if isinstance(e, Unsupported) else f"cannot decode ({type(e).__name__}: {e}): {f.where()}"

        def bad(M: Machine, *_: Any) -> None:
            raise Unsupported(msg)

        return "op", (guarded(bad, *f.guard) if f.guard else bad), msg
    if isinstance(r, tuple):
        return r[0], r[1], None
    return "op", (guarded(r, *f.guard) if f.guard else r), None
