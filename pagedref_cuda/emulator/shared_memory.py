"""Loads and stores of shared memory, and copies that arrive later."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from pagedref_cuda.emulator.errors import (
    AsyncHazard,
    MemoryFault,
    UninitialisedRead,
)
from pagedref_cuda.emulator.memory import UINT
from pagedref_cuda.emulator.program import SHARED_FIRST
from pagedref_cuda.emulator.races import Races
from pagedref_cuda.emulator.threads import I64, ONES, U64


class SharedMemory(Races):
    """Shared memory and cp.async."""

    def sview(self, w: Any, vec: int) -> Any:
        """Return shared memory of all blocks as words."""
        v = self.sviews.get((w, vec))
        if v is None:
            v = self.smem.view(UINT[w])
            if vec > 1:
                v = v.reshape(-1, vec)
            self.sviews[w, vec] = v
        return v

    def shview(self, w: Any, vec: int) -> Any:
        """Return the state of each byte (never written, valid, pending) as words."""
        v = self.shviews.get((w, vec))
        if v is None:
            v = self.shadow.view(UINT[w])
            if vec > 1:
                v = v.reshape(-1, vec)
            self.shviews[w, vec] = v
        return v

    def _shared(self, a: Any, total: int, what: Any) -> Any:
        """Check addresses; return flat indices of bytes."""
        if int((a - SHARED_FIRST).view(U64).max()) > self.sh_end - SHARED_FIRST - total:
            bad = np.flatnonzero((a < SHARED_FIRST) | (a + total > self.sh_end))
            j = int(bad[0])
            self.fault(
                j,
                a,
                total,
                what,
                f"outside shared memory [{SHARED_FIRST:#x}, {self.sh_end:#x}) {self.near_shared(int(a[j]))}",
                len(bad),
            )
        if total > 1 and int(np.bitwise_or.reduce(a)) & (total - 1):
            self.misaligned(a, total, what)
        if self.symok is not None:
            w = min(total, 8)
            v = self.symviews.get(total)
            if v is None:
                v = self.symok.view(UINT[w])
                v = v if total <= 8 else v.reshape(-1, 2)
                v = (v == ONES[w]) if total <= 8 else (v == ONES[8]).all(1)
                self.symviews[total] = v
            ok = v.take(a >> (total.bit_length() - 1))
            if not ok.all():
                j = int(np.flatnonzero(~ok)[0])
                self.fault(
                    j, a, total, what, "between shared variables " + self.near_shared(int(a[j])), int((~ok).sum())
                )
        if self.B == 1:
            return a
        return a + (self.sbase if self.esel is None else self.sbase[self.sel])

    def ld_shared(self, a: Any, w: Any, vec: int, strong: bool = False) -> Any:
        """Load from shared memory."""
        total = w * vec
        ix = self._shared(a, total, "shared load")
        self.acct_shared("ld", a, total)
        k = ix >> (total.bit_length() - 1)
        if self.strict:
            s = self.shview(w, vec).take(k, axis=0)
            if not (s == ONES[w]).all():
                self.bad_shared(ix, total)
        if self.races:
            self.race_read(ix, total, strong)
        r = self.sview(w, vec).take(k, axis=0)
        if vec == 1:
            return [r]
        return list(np.ascontiguousarray(r.T))

    def bad_shared(self, ix: Any, total: int) -> NoReturn:
        """Report a read of bytes that were never written, or that a copy has yet to bring."""
        st = self.shadow[ix[:, None] + np.arange(total)]
        j = int(np.flatnonzero((st != 1).any(1))[0])
        t = self.thread_of(j)
        off = int(ix[j]) % self.S
        if (st[j] == 2).any():
            raise AsyncHazard(
                f"shared load reads bytes of a cp.async that has not been waited for, "
                f"at {off:#x} {self.near_shared(off)}; {self.who(t)}"
            )
        raise UninitialisedRead(
            f"shared load of {total} bytes at {off:#x} {self.near_shared(off)}: never written in this "
            f"launch; {self.who(t)}"
        )

    def st_shared(self, a: Any, w: Any, vec: int, vals: Any, strong: bool = False) -> None:
        """Store into shared memory."""
        total = w * vec
        a = self.spread(a)
        ix = self._shared(a, total, "shared store")
        self.acct_shared("st", a, total)
        k = ix >> (total.bit_length() - 1)
        if self.strict:
            sh = self.shview(w, vec)
            if self.async_recs and (self.shadow[ix[:, None] + np.arange(total)] == 2).any():
                j = int(np.flatnonzero((self.shadow[ix[:, None] + np.arange(total)] == 2).any(1))[0])
                raise AsyncHazard(
                    f"shared store to bytes of a pending cp.async at {int(ix[j]) % self.S:#x}; "
                    f"{self.who(self.thread_of(j))}"
                )
            sh[k] = ONES[w]
        if self.races:
            self.race_write(ix, total, strong)
        v = self.sview(w, vec)
        if vec == 1:
            v[k] = vals[0]
        else:
            for j in range(vec):
                v[k, j] = vals[j]
        if self.races and not strong:
            self.race_same(ix, total, [x if x.shape[0] == len(k) else np.repeat(x, len(k)) for x in vals], v, k)

    def cp_async(self, dst: Any, src: Any, size: Any, src_size: Any) -> None:
        """Start a copy from global to shared memory; its bytes arrive at the wait, and until then nobody may use
        them.

        `src_size` is None, or the number of bytes that each thread really reads; the rest is filled with zeros.
        """
        dst, src = self.spread(dst), self.spread(src)
        ix = self._shared(dst, size, "cp.async destination")
        if self.B == 1:
            ix = ix.copy()
        if int(np.bitwise_or.reduce(src)) & (size - 1):
            self.misaligned(src, size, "cp.async source")
        min(size, 8)
        if src_size is None:
            segs = self._global(src, size, "cp.async load", False)
            if self.opt.global_races:
                self.grace(segs, size, False)
            data = np.empty((self.n, size), np.uint8)
            for al, off, pos in segs:
                rows = (
                    al.u8[off[:, None] + np.arange(size)]
                    if size > 8
                    else al.view(size, 1).take(off // size).view(np.uint8).reshape(-1, size)
                )
                data[slice(None) if pos is None else pos] = rows
            self.acct_global("cp", src, size)
        else:
            n = self.spread(src_size.astype(I64))
            if (n > size).any() or (n < 0).any():
                raise MemoryFault("cp.async src-size larger than cp-size")
            data = np.zeros((self.n, size), np.uint8)
            for m in np.unique(n):
                if m == 0:
                    continue
                p = np.flatnonzero(n == m)
                # only m bytes are read: bounds are checked for exactly these
                mem = self.mem
                bases = np.asarray(mem.bases, I64)
                kk = np.searchsorted(bases, src[p], "right") - 1
                for u in np.unique(kk):
                    q = p[kk == u]
                    al = mem.allocs[u] if u >= 0 else None
                    if al is None or (src[q] - al.base + int(m) > al.nbytes).any():
                        j = (
                            int(q[0])
                            if al is None
                            else int(q[np.flatnonzero(src[q] - al.base + int(m) > al.nbytes)[0]])
                        )
                        self.fault(j, src, int(m), "cp.async load", mem.describe(int(src[j])))
                    data[q, :m] = al.u8[(src[q] - al.base)[:, None] + np.arange(m)]
            if (n > 0).any():
                self.acct_global("cp", src, size, n)
        self.acct_shared("cp", dst, size)
        th = self.sel.copy()
        if self.races:
            self.race_write(ix, size, False, th)
        if self.strict:
            b = ix[:, None] + np.arange(size)
            if self.async_recs and (self.shadow[b] == 2).any():
                raise AsyncHazard("cp.async into bytes of another pending cp.async")
            self.shadow[b] = 2
        self.async_recs.append([th, ix, data, self.ngroups[th].copy(), size, self.cpc])

    def cp_commit(self) -> None:
        """Close the group of copies of the current threads."""
        self.ngroups[self.sel] += 1

    def cp_wait(self, keep: Any) -> None:
        """Complete the groups of the current threads except the last `keep`; None: everything, committed or not."""
        if not self.async_recs:
            return
        lim = np.full(self.T, -1, I64)  # groups < lim are completed
        if keep is None:
            lim[self.sel] = 1 << 60
            self.ngroups[self.sel] += 1
        else:
            lim[self.sel] = self.ngroups[self.sel] - keep
        left = []
        for th, ix, data, grp, size, pc in self.async_recs:
            go = grp < lim[th]
            if go.any():
                every = go.all()
                i, d = (ix, data) if every else (ix[go], data[go])
                self.smem[i[:, None] + np.arange(size)] = d
                if self.strict:
                    self.shadow[i[:, None] + np.arange(size)] = 1
                if self.races:
                    b = i[:, None] + np.arange(size)
                    t = th if every else th[go]
                    self.w_tid[b] = self.tid[t][:, None]
                    self.w_ep[b] = self.epoch[self.blk[t]][:, None]
                    self.w_we[b] = self.wepoch[t >> 5][:, None]
                    self.w_pc[b] = pc
                if every:
                    continue
                k = ~go
                left.append([th[k], ix[k], data[k], grp[k], size, pc])
            else:
                left.append([th, ix, data, grp, size, pc])
        self.async_recs = left
