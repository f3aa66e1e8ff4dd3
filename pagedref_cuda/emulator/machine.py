"""The scheduler: which threads run next, and until where."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from pagedref_cuda.emulator.barriers import Barriers
from pagedref_cuda.emulator.errors import (
    BarrierError,
    EmulatorError,
    StepLimit,
)
from pagedref_cuda.emulator.program import INF
from pagedref_cuda.emulator.threads import DENSE, P_WARP


class Machine(Barriers):
    """Executes a program for a batch of blocks."""

    def run(self) -> None:
        """Run until all threads have exited.

        The group with the smallest program counter goes first, up to the next place where others wait to join it.
        A group that
        uses up its budget may be spinning: then the one furthest ahead gets a turn.
        """
        _code, rpc = self.code, self.rpc
        opt = self.opt
        turn = 0
        long = False  # the last group used up its budget: perhaps it spins
        while True:
            m = int(rpc.min())
            if m == INF:
                if self.nparked == 0:
                    break
                if not self.unblock():
                    self.deadlock()
                continue
            sel = np.flatnonzero(rpc == m)
            turn += 1
            limit = INF
            if len(sel) != np.count_nonzero(rpc != INF):
                if long or turn % 5000 == 0:  # fairness: let the group that is furthest ahead run
                    m = int(rpc[rpc != INF].max())
                    sel = np.flatnonzero(rpc == m)
                others = rpc[(rpc > m) & (rpc != INF)]
                if others.size:
                    limit = int(others.min())
            self.set_group(sel)
            self.others_live = self.live_elsewhere(m)
            long = self.run_group(m, limit)
            self.others_live = -1
            if self.steps > opt.max_steps:
                raise StepLimit(
                    f"more than max_steps={opt.max_steps} basic blocks executed in one batch; infinite loop?"
                )
        self.finish()

    def live_elsewhere(self, m: Any) -> Any:
        """Return the registers that threads outside the running group may still read."""
        if self.mode != DENSE:
            return -1
        live, lv = self.prog.live, 0
        r = self.rpc[(self.rpc != m) & (self.rpc != INF)]
        for pc in np.unique(np.concatenate([r, self.wpc[self.wpc >= 0]]) if self.nparked else r):
            lv |= live[pc]
        return lv

    def run_group(self, pc: int, limit: Any) -> Any:
        """Run the current group from `pc` to `limit`; True if it used up its budget."""
        code, rpc, end_of = self.code, self.rpc, self.opt.end_of
        kinds = self.opt.kinds
        cnt_t, cnt_w = self.cnt_t, self.cnt_w
        flats = self.prog.code
        budget = 4096
        while True:
            if pc >= limit:
                rpc[self.sel] = pc
                return
            self.steps += 1
            budget -= 1
            if budget <= 0:
                rpc[self.sel] = pc
                return True
            end = end_of[pc]
            if end > limit:
                end = limit
            if end > pc:
                for i in range(pc, end):
                    self.cpc = i
                    code[i](self)
                n, w = self.n, self.nw
                cnt_t[pc] += n
                cnt_t[end] -= n
                cnt_w[pc] += w
                cnt_w[end] -= w
                pc = end
                if pc >= limit:
                    continue
            k = kinds[pc]
            if k == "op":
                continue  # only a leader: go on
            self.cpc = pc
            n, w = self.n, self.nw
            cnt_t[pc] += n
            cnt_t[pc + 1] -= n
            cnt_w[pc] += w
            cnt_w[pc + 1] -= w
            f = flats[pc]
            sel = self.sel
            rest = None
            if f.guard is not None:
                p = self.R[f.guard[0].i]
                if p is None:
                    p = self.uninit(f.guard[0].i)
                if p.shape[0] == 1:
                    t = bool(p[0]) != f.guard[1]
                    if not t:
                        pc += 1
                        continue
                else:
                    p = p if self.esel is None else p[sel]
                    if f.guard[1]:
                        p = ~p
                    c = np.count_nonzero(p)
                    if c == 0:
                        pc += 1
                        continue
                    if c != n:
                        rest, sel = sel[~p], sel[p]
            if k == "bra":
                t = f.target
                if rest is None:
                    pc = t
                    continue
                self.stats.divergent_branches += 1
                if t < pc + 1:
                    low, lsel, high, hsel = t, sel, pc + 1, rest
                else:
                    low, lsel, high, hsel = pc + 1, rest, t, sel
                if low == high:
                    pc = low
                    continue
                rpc[hsel] = high
                rpc[lsel] = low
                if high < limit:
                    limit = high
                self.set_group(lsel)
                if self.others_live >= 0:
                    self.others_live |= self.prog.live[high]
                elif self.mode == DENSE:
                    self.others_live = self.live_elsewhere(low)
                pc = low
                continue
            if rest is not None:  # predicated sync / exit / brx: the others step over it
                rpc[rest] = pc + 1
                self.set_group(sel)
                rpc[sel] = INF
            if k == "sync":
                done = code[pc](self, pc)  # True: the whole group executed it and goes on together
                if done:
                    if rest is None:
                        pc += 1
                        continue
                    rpc[sel] = pc + 1
                return
            if k == "exit":
                self.exit(sel)
                return
            if k == "brx":
                idx = code[pc](self)
                if idx.shape[0] == 1:
                    idx = np.repeat(idx, self.n)
                if (idx >= len(f.target)).any():
                    raise EmulatorError("brx.idx index out of range")
                rpc[sel] = np.asarray(f.target, np.int32)[idx]
                return
            raise AssertionError(k)

    def exit(self, sel: Any) -> None:
        """Let threads exit."""
        self.alive[sel] = False
        self.rpc[sel] = INF
        self.live -= len(sel)
        self.live_pb -= np.bincount(self.blk[sel], minlength=self.B)
        self._lanes = None

    def finish(self) -> None:
        """Enter the counts into the statistics."""
        if self.async_recs and self.strict:
            self.stats.warn("cp.async copies were still pending when their threads exited (never waited for)")
        n = len(self.code)
        self.stats.add_counts(np.cumsum(self.cnt_t)[:n], np.cumsum(self.cnt_w)[:n])

    def unblock(self) -> Any:
        """Nothing is runnable: exits may have completed barriers or collectives."""
        before = self.nparked
        if self.release_barriers():
            return True
        pcs = np.unique(self.wpc[(self.wpc >= 0) & (self.wkind == P_WARP)])
        for pc in pcs:
            th = np.flatnonzero((self.wpc == pc) & (self.wkind == P_WARP))
            self.set_group(th)
            self.wpc[th] = -1
            self.nparked -= len(th)
            self.cpc = int(pc)
            if self.code[pc](self, int(pc)):
                self.rpc[th] = pc + 1
        return self.nparked != before

    def deadlock(self) -> NoReturn:
        """Report that nobody can run: who waits where."""
        th = np.flatnonzero(self.wpc >= 0)
        lines = []
        for pc in np.unique(self.wpc[th]):
            g = th[self.wpc[th] == pc]
            bl = np.unique(self.blk[g])
            g0 = g[self.blk[g] == bl[0]]
            lines.append(
                f"{len(g0)} of {self.tpb} threads of block {int(self.blocks[bl[0]])} (first: "
                f"{self.who(g0[0])}) wait at "
                f"{self.prog.code[pc].where()}"
            )
        exited = int(self.tpb - self.live_pb[self.blk[th[0]]])
        self.cpc = int(self.wpc[th[0]])
        raise BarrierError(
            "deadlock, nobody can run: " + "; ".join(lines[:4]) + f"; {exited} threads of that block have exited"
        )
