"""Waiting: barriers of a block, and operations that a warp executes together."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedref_cuda.emulator.access import Access
from pagedref_cuda.emulator.errors import (
    BarrierError,
)
from pagedref_cuda.emulator.program import INF
from pagedref_cuda.emulator.threads import I64, P_BAR, P_WARP, U32


class Barriers(Access):
    """Parks threads until everybody needed has arrived."""

    def park(self, th: Any, pc: int, kind: Any) -> None:
        """Let threads wait at an instruction."""
        self.rpc[th] = INF
        self.wpc[th] = pc
        self.wkind[th] = kind
        self.nparked += len(th)

    def unpark(self, th: Any) -> None:
        """Let waiting threads go on behind their instruction."""
        self.rpc[th] = self.wpc[th] + 1
        self.wpc[th] = -1
        self.nparked -= len(th)

    def barrier(self, pc: int, bid: Any, count: Any, val: Any = None, arrive_only: bool = False) -> Any:
        """Let the current group arrive at a barrier; return whether all go on at once.

        `bid` and `count` are arrays of one or of n elements; without a count all threads of the block are meant.
        """
        sel = self.sel
        if (bid < 0).any() or (bid > 15).any():
            raise BarrierError("barrier number outside 0..15")
        if count is not None and ((count % 32 != 0).any() or (count <= 0).any()):
            raise BarrierError("barrier thread count must be a positive multiple of 32")
        full = count is None or (int(count.max()) == int(count.min()) == self.lanes)
        if (
            self.n == self.live
            and bid.shape[0] == 1
            and full
            and val is None
            and not arrive_only
            and self.nparked == 0
            and not self.arrived.any()
        ):
            self.check_exited(sel)
            self.new_epoch(slice(None))
            self.stats.barriers += self.B
            return True
        if arrive_only:
            key = self.blk[sel] * 16 + bid
            np.add.at(self.arrived, key, 1)
            self.rpc[sel] = pc + 1
            self.release_barriers()
            return False
        self.wbar[sel] = bid
        self.wcount[sel] = -1 if full else count
        if val is not None:
            self.wval[sel] = val
        self.park(sel, pc, P_BAR)
        self.release_barriers()
        return False

    def check_exited(self, waiting: Any) -> None:
        """Refuse a barrier in blocks some of whose threads have exited."""
        if not self.strict:
            return
        bad = np.flatnonzero(self.live_pb[self.blk[waiting]] != self.tpb)
        if bad.size:
            t = int(waiting[bad[0]])
            b = int(self.blk[t])
            if self.wpc[t] >= 0:
                self.cpc = int(self.wpc[t])
            raise BarrierError(
                f"barrier reached by only {int(self.live_pb[b])} of {self.tpb} threads of block {int(self.blocks[b])}: "
                f"the others have exited; {self.who(t)} waits (undefined behaviour; strict=False allows it)"
            )

    def new_epoch(self, bl: Any) -> None:
        """Begin a new interval for the race detector: what came before is ordered."""
        if self.races:
            self.epoch[bl] += 1

    def release_barriers(self) -> Any:
        """Let go whoever waits at a barrier that is complete; return whether anybody did."""
        th = np.flatnonzero((self.wpc >= 0) & (self.wkind == P_BAR))
        if not th.size:
            return False
        key = self.blk[th] * 16 + self.wbar[th]
        cnt = np.bincount(key, minlength=self.B * 16) + self.arrived
        need = np.where(self.wcount[th] < 0, self.live_pb[self.blk[th]], np.minimum(self.wcount[th], 1 << 30))
        # a partial last warp counts as a whole warp in a counted barrier
        pad = self.lanes - self.tpb
        ok = (cnt[key] >= need) | (
            (self.wcount[th] > 0) & (cnt[key] + pad >= need) & (cnt[key] >= self.live_pb[self.blk[th]])
        )
        if not ok.any():
            return False
        rel = th[ok]
        k = key[ok]
        bl = np.unique(self.blk[rel])
        if (self.wcount[rel] < 0).any():
            self.check_exited(rel[self.wcount[rel] < 0])
        # divergence: threads released together should stand at the same instruction
        lo = np.full(self.B * 16, INF)
        hi = np.full(self.B * 16, -1)
        np.minimum.at(lo, k, self.wpc[rel])
        np.maximum.at(hi, k, self.wpc[rel])
        div = np.flatnonzero((hi >= 0) & (lo != hi))
        if div.size:
            d = int(div[0])
            a, c = (rel[(k == d) & (self.wpc[rel] == p)] for p in (lo[d], hi[d]))
            same_warp = np.intersect1d(a >> 5, c >> 5).size > 0
            if same_warp or self.strict:
                self.cpc = int(lo[d])
                raise BarrierError(
                    f"divergent barrier: {self.who(a[0])} waits at {self.prog.code[lo[d]].where()} while "
                    f"{self.who(c[0])} "
                    f"waits at {self.prog.code[hi[d]].where()}"
                )
        reds = {}
        for p in np.unique(self.wpc[rel]):
            f = self.prog.code[p]
            if f.ext and f.ext[0] == "red":
                reds[int(p)] = rel[self.wpc[rel] == p]
        for p, g in reds.items():
            _, op, put = self.prog.code[p].ext
            kk = self.blk[g] * 16 + self.wbar[g]
            acc = np.bincount(kk, weights=(self.wval[g] != 0), minlength=self.B * 16).astype(I64)
            tot = np.bincount(kk, minlength=self.B * 16)
            v = acc if op == "popc" else (acc > 0) if op == "or" else (acc == tot)
            old = self.sel
            self.set_group(g)
            put(self, v[kk])
            self.set_group(old)
        self.arrived[np.unique(k)] = 0
        self.unpark(rel)
        self.new_epoch(bl)
        self.stats.barriers += len(bl)
        return True

    def live_lanes(self) -> Any:
        """Return a mask of the live lanes of each warp."""
        if self._lanes is None:
            self._lanes = (self.alive.reshape(self.W, 32) * (U32(1) << np.arange(32, dtype=U32))).sum(1, dtype=U32)
        return self._lanes

    def lanes_of(self, sel: Any) -> Any:
        """Return a mask, for each warp, of the lanes among these threads."""
        m = np.zeros(self.T, bool)
        m[sel] = True
        return (m.reshape(self.W, 32) * (U32(1) << np.arange(32, dtype=U32))).sum(1, dtype=U32)

    def collective(self, pc: int, member: Any, body: Any) -> Any:
        """Execute an instruction of whole warps; return whether the whole group went through.

        ``member(M)`` gives the mask of lanes that must take part; None stands for all live lanes (``.aligned``).
        ``body(M)`` is
        executed for the threads whose partners are all here; the others wait.
        """
        if self.n == self.live and self.nparked == 0:
            if member is None:
                if self.strict and self.live != self.B * self.tpb:
                    self.check_aligned()
                body(self)
                return True
            m = member(self)
            if m.shape[0] == 1 and m[0] == 0xFFFFFFFF:
                body(self)
                return True
        sel = self.sel
        if self.nparked:
            more = np.flatnonzero((self.wpc == pc) & (self.wkind == P_WARP))
            if more.size:
                self.wpc[more] = -1
                self.nparked -= len(more)
                sel = np.sort(np.concatenate([sel, more]))
                self.set_group(sel)
        warp = sel >> 5
        if member is None:
            if self.strict:
                self.check_aligned()
            req = np.full(len(sel), 0xFFFFFFFF, U32)
        else:
            req = member(self)
            if req.shape[0] == 1:
                req = np.repeat(req, len(sel))
            own = (req >> (sel & 31).astype(U32)) & U32(1)
            if not own.all():
                t = sel[np.flatnonzero(own == 0)[0]]
                raise BarrierError(
                    f"{self.who(t)} executes a warp operation whose member mask "
                    f"{int(req[np.flatnonzero(own == 0)[0]]):#x} "
                    "does not contain its own lane"
                )
        present = self.lanes_of(sel)
        need = req & self.live_lanes()[warp]
        ok = (need & ~present[warp]) == 0
        go = sel[ok]
        if ok.all():
            self.check_masks(go, req)
            body(self)
            # parked partners are part of the group now: everybody continues behind the instruction
            self.rpc[go] = pc + 1
            return False
        self.park(sel[~ok], pc, P_WARP)
        if go.size:
            self.check_masks(go, req[ok])
            self.set_group(go)
            body(self)
            self.rpc[go] = pc + 1
        return False

    def check_aligned(self) -> None:
        """Refuse an aligned instruction in a warp some of whose threads have exited."""
        w = np.unique(self.sel >> 5)
        full = self.live_lanes()[w]
        want = self.lanes_of(self.all[self.tid < self.tpb])[w]
        bad = np.flatnonzero(full != want)
        if bad.size:
            raise BarrierError(
                f".aligned warp instruction in a warp some of whose threads have exited: "
                f"{self.who(int(w[bad[0]]) * 32)}"
            )

    def check_masks(self, sel: Any, req: Any) -> None:
        """Refuse lanes that name each other and disagree on the mask."""
        m = np.zeros(self.T, U32)
        m[sel] = req
        m2 = m.reshape(self.W, 32)
        here = np.zeros(self.T, bool)
        here[sel] = True
        h2 = here.reshape(self.W, 32)
        mx = m2.max(1)
        if ((m2 == mx[:, None]) | ~h2).all():
            return
        for j in range(32):
            named = ((m2[:, j : j + 1] >> np.arange(32, dtype=U32)) & U32(1)).astype(bool) & h2[:, j : j + 1] & h2
            bad = named & (m2 != m2[:, j : j + 1])
            if bad.any():
                w, other = (int(x[0]) for x in np.nonzero(bad))
                raise BarrierError(
                    f"lanes {j} and {other} of one warp use different member masks ({int(m2[w, j]):#x}, "
                    f"{int(m2[w, other]):#x}) in the same warp operation: {self.who(w * 32 + other)}"
                )
