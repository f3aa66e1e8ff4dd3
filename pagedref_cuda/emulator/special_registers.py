"""Special registers: where a thread stands in its block and grid, clocks, lane masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pagedref_cuda.emulator.machine import Machine
    from pagedref_cuda.emulator.operands import Context

U32, U64 = np.uint32, np.uint64


def check_special(name: Any, c: Context) -> None:
    """Refuse a special register that is not modelled."""
    base = name[1:].split(".")[0]
    if base in ("tid", "ntid", "ctaid", "nctaid"):
        if "." not in name:
            c.refuse(f"vector special register {name}")
    elif base not in (
        "laneid",
        "warpid",
        "nwarpid",
        "clock",
        "clock64",
        "clock_hi",
        "globaltimer",
        "globaltimer_lo",
        "smid",
        "nsmid",
        "gridid",
        "lanemask_eq",
        "lanemask_lt",
        "lanemask_le",
        "lanemask_gt",
        "lanemask_ge",
        "dynamic_smem_size",
        "total_smem_size",
    ):
        c.refuse(f"special register {name}")


def special(M: Machine, name: Any) -> Any:
    """Return a special register: one element if all threads agree."""
    cache = M.__dict__.setdefault("_special", {})
    v = cache.get(name)
    if v is not None:
        return v
    base, _, d = name[1:].partition(".")
    k = "xyzw".find(d) if d else 0

    def one(x: Any, dt: Any = U32) -> Any:
        return np.array([x], dt)

    if base == "ntid":
        v = one(M.block[k] if k < 3 else 0)
    elif base == "nctaid":
        v = one(M.grid[k] if k < 3 else 0)
    elif base == "tid":
        b = M.block
        if k == 3 or b[k] == 1:
            v = one(0)
        else:
            v = (M.tid // (1 if k == 0 else b[0] if k == 1 else b[0] * b[1]) % b[k]).astype(U32)
    elif base == "ctaid":
        g = M.grid
        if k == 3 or g[k] == 1:
            v = one(0)
        else:
            per = M.blocks // (1 if k == 0 else g[0] if k == 1 else g[0] * g[1]) % g[k]
            v = one(per[0]) if (per == per[0]).all() else per[M.blk].astype(U32)
    elif base == "laneid":
        v = (M.all & 31).astype(U32)
    elif base == "warpid":
        v = (M.tid >> 5).astype(U32)
    elif base == "nwarpid":
        v = one(M.wpb)
    elif base.startswith("lanemask"):
        lane = (M.all & 31).astype(U64)
        bit = U64(1) << lane
        m = {
            "eq": bit,
            "lt": bit - U64(1),
            "le": bit * U64(2) - U64(1),
            "gt": ~(bit * U64(2) - U64(1)),
            "ge": ~(bit - U64(1)),
        }[base[9:]]
        v = m.astype(U32)
    elif base in ("clock", "clock64", "globaltimer", "globaltimer_lo", "clock_hi"):
        M.clock = getattr(M, "clock", 0) + 1
        t = M.steps * 16 + M.clock
        return one(t, U64) if base in ("clock64", "globaltimer") else one(0 if base == "clock_hi" else t & 0xFFFFFFFF)
    elif base == "smid":
        v = (M.blocks % 132)[M.blk].astype(U32)
    elif base == "nsmid":
        v = one(132)
    elif base == "gridid":
        v = one(1, U64)
    elif base == "dynamic_smem_size":
        v = one(M.dyn_shared)
    elif base == "total_smem_size":
        v = one(M.sh_end)
    cache[name] = v
    return v
