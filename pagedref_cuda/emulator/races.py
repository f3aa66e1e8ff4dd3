"""The race detector of shared memory."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from pagedref_cuda.emulator.errors import (
    RaceError,
)
from pagedref_cuda.emulator.global_memory import GlobalMemory


class Races(GlobalMemory):
    """Per byte, the last writer and the readers of the current interval between barriers."""

    def near_shared(self, a: Any) -> Any:
        """Say which shared variable an address is near."""
        best = []
        for n, o, nb in self.prog.shared_vars + [
            (d, self.prog.dyn_off, self.dyn_shared) for d in self.prog.dyn_vars[:1]
        ]:
            best.append((abs(a - o - nb) if a >= o else o - a, f"({a - o} bytes into {n!r} of {nb} bytes)"))
        return min(best)[1] if best else "(the kernel has no shared memory)"

    def race_threads(self, ix: Any, th: Any = None) -> Any:
        """Bring addresses and threads to the same length."""
        if th is None:
            th = self.sel
        if len(ix) != len(th):
            ix = np.repeat(ix, len(th))
        return ix, th

    def _race(self, what: Any, t: Any, other: Any, pc: int, byte: Any) -> NoReturn:
        f = self.prog.code[pc]
        o = int(other)
        who = self.who(self.lanes * int(self.blk[t]) + o) if o >= 0 else "several threads"
        off = byte % self.S
        raise RaceError(
            f"{what} race on shared byte {off:#x} {self.near_shared(off)}: {self.who(t)} here and "
            f"{who} at {f.where()}, "
            "no barrier between them"
        )

    def race_read(self, ix: Any, total: int, strong: bool = False, th: Any = None) -> None:
        """Enter a read; a write by another thread in the same interval is a race."""
        ix, th = self.race_threads(ix, th)
        b = ix[:, None] + np.arange(total)
        me = (self.tid[th] | (1 << 20 if strong else 0)).astype(np.int32)[:, None]
        ep = self.epoch[self.blk[th]][:, None]
        we = self.wepoch[th >> 5][:, None]
        wt = self.w_tid[b]
        wi = wt & 0xFFFFF
        mi = me & 0xFFFFF
        bad = (self.w_ep[b] == ep) & (wt >= 0) & (wi != mi) & ~((wi >> 5 == mi >> 5) & (self.w_we[b] < we))
        if strong:
            bad &= (wt >> 20) == 0
        if bad.any():
            i, j = (int(x[0]) for x in np.nonzero(bad))
            self._race("read-after-write", int(th[i]), wi[i, j], int(self.w_pc[b[i, j]]), int(b[i, j]))
        if strong:
            return
        # record readers: -2 - 2 * warp for several threads of one warp, -3 for several warps
        cur = self.r_ep[b] == ep
        old = self.r_tid[b]
        new = np.where(~cur | (old == mi), mi, np.where((old >= 0) & (old >> 5 == mi >> 5), -2 - (mi >> 5) * 2, -3))
        new = np.where(cur & (old <= -2), np.where(old == -2 - (mi >> 5) * 2, old, -3), new)
        new = np.broadcast_to(new, b.shape)
        # several threads reading the same byte in this very instruction
        self.r_tid[b] = new
        self.r_ep[b] = np.broadcast_to(ep, b.shape)
        self.r_we[b] = np.broadcast_to(we, b.shape)
        self.r_pc[b] = self.cpc
        got = self.r_tid[b]
        multi = got != new
        if multi.any():
            # mark bytes with more than one distinct reader: warp-local if all are of one warp
            wm = np.full(b.shape, 0, np.int32) + (mi >> 5)
            gw = np.where(got >= 0, got >> 5, np.where(got == -3, -1, (-2 - got) // 2))
            same = multi & (gw == wm)
            self.r_tid[b[multi & ~same]] = -3
            rem = same & (self.r_tid[b] != -3)
            self.r_tid[b[rem]] = -2 - wm[rem] * 2

    def race_write(self, ix: Any, total: int, strong: bool = False, th: Any = None) -> None:
        """Enter a write; any access by another thread in the same interval is a race."""
        ix, th = self.race_threads(ix, th)
        b = ix[:, None] + np.arange(total)
        mi = self.tid[th].astype(np.int32)[:, None]
        me = mi | np.int32(1 << 20 if strong else 0)
        ep = self.epoch[self.blk[th]][:, None]
        we = self.wepoch[th >> 5][:, None]
        wt = self.w_tid[b]
        wi = wt & 0xFFFFF
        bad = (self.w_ep[b] == ep) & (wt >= 0) & (wi != mi) & ~((wi >> 5 == mi >> 5) & (self.w_we[b] < we))
        if strong:
            bad &= (wt >> 20) == 0
        if bad.any():
            i, j = (int(x[0]) for x in np.nonzero(bad))
            self._race("write-after-write", int(th[i]), wi[i, j], int(self.w_pc[b[i, j]]), int(b[i, j]))
        rt = self.r_tid[b]
        rw = np.where(rt >= 0, rt >> 5, np.where(rt == -3, -1, (-2 - rt) // 2))
        bad = (self.r_ep[b] == ep) & (rt != -1) & (rt != mi) & ~((rw == mi >> 5) & (self.r_we[b] < we))
        if bad.any():
            i, j = (int(x[0]) for x in np.nonzero(bad))
            self._race("write-after-read", int(th[i]), rt[i, j], int(self.r_pc[b[i, j]]), int(b[i, j]))
        self.w_tid[b] = np.broadcast_to(me, b.shape)
        self.w_ep[b] = np.broadcast_to(ep, b.shape)
        self.w_we[b] = np.broadcast_to(we, b.shape)
        self.w_pc[b] = self.cpc

    def race_same(self, ix: Any, total: int, vals: Any, v: Any, k: Any) -> None:
        """Find two threads that store different values to one place in the same instruction."""
        got = v[k]
        for j, x in enumerate(vals):
            g = got if got.ndim == 1 else got[:, j]
            bad = g != x
            if bad.any():
                i = int(np.flatnonzero(bad)[0])
                self._race(
                    "write-after-write", int(self.sel[i]), int(self.w_tid[int(ix[i])]) & 0xFFFFF, self.cpc, int(ix[i])
                )
