"""Loads and stores of global memory, with their checks."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from pagedref_cuda.emulator.counting import Counting
from pagedref_cuda.emulator.errors import (
    MemoryFault,
    RaceError,
)
from pagedref_cuda.emulator.memory import UINT
from pagedref_cuda.emulator.threads import I64, U64


class GlobalMemory(Counting):
    """Global memory."""

    def _global(self, a: Any, total: int, what: Any, write: Any) -> Any:
        """Check addresses; return [(allocation, byte offsets, positions or None for all)]."""
        mem = self.mem
        al = mem.find(int(a[0]))
        if al is not None and al.nbytes >= total:
            off = a - al.base
            if int(off.view(U64).max()) <= al.nbytes - total:
                if total > 1 and int(np.bitwise_or.reduce(off)) & (total - 1):
                    self.misaligned(a, total, what, al)
                if write and al.readonly:
                    self.fault(0, a, total, what, f"array {al.name!r} is read-only")
                return ((al, off, None),)
        bases = np.asarray(mem.bases, I64)
        sizes = np.asarray([x.nbytes for x in mem.allocs], I64)
        if not bases.size:
            self.fault(0, a, total, what, "no array is registered")
        k = np.searchsorted(bases, a, "right") - 1
        kk = np.maximum(k, 0)
        bad = (k < 0) | (a - bases[kk] + total > sizes[kk])
        if bad.any():
            j = int(np.flatnonzero(bad)[0])
            self.fault(j, a, total, what, mem.describe(int(a[j])), int(bad.sum()))
        out = []
        for u in np.unique(kk):
            pos = np.flatnonzero(kk == u)
            al = mem.allocs[u]
            off = a[pos] - al.base
            if total > 1 and int(np.bitwise_or.reduce(off)) & (total - 1):
                self.misaligned(a[pos], total, what, al, pos)
            if write and al.readonly:
                self.fault(int(pos[0]), a, total, what, f"array {al.name!r} is read-only")
            out.append((al, off, pos))
        return out

    def fault(self, j: Any, a: Any, total: int, what: Any, msg: Any, count: int = 1) -> NoReturn:
        """Refuse an access: the text names the address, the array and the thread."""
        t = self.thread_of(j)
        raise MemoryFault(
            f"{what} of {total} bytes at {int(a[j]):#x}: {msg}; {self.who(t)}"
            + (f" and {count - 1} more threads" if count > 1 else "")
        )

    def misaligned(self, a: Any, total: int, what: Any, al: Any = None, pos: Any = None) -> NoReturn:
        """Refuse an access whose address is no multiple of its size."""
        j = int(np.flatnonzero(a & (total - 1))[0])
        t = self.thread_of(j if pos is None else int(pos[j]))
        where = f" (offset {int(a[j]) - al.base} in {al.name!r})" if al is not None else ""
        raise MemoryFault(
            f"misaligned {what}: address {int(a[j]):#x}{where} is not a multiple of {total}; {self.who(t)}"
        )

    def ld_global(self, a: Any, w: Any, vec: int, nc: bool = False) -> Any:
        """Load from global memory."""
        total = w * vec
        segs = self._global(a, total, "global load", False)
        self.acct_global("ld", a, total)
        if self.opt.global_races:
            self.grace(segs, total, False)
        sh = total.bit_length() - 1
        if nc:
            for s in segs:
                s[0].nc_read = True
        if len(segs) == 1:
            al, off, _ = segs[0]
            r = al.view(w, vec).take(off >> sh, axis=0)
        else:
            r = np.empty((len(a), vec) if vec > 1 else len(a), UINT[w])
            for al, off, pos in segs:
                r[pos] = al.view(w, vec).take(off >> sh, axis=0)
        if vec == 1:
            return [r]
        return list(np.ascontiguousarray(r.T))

    def st_global(self, a: Any, w: Any, vec: int, vals: Any) -> None:
        """Store into global memory."""
        total = w * vec
        a = self.spread(a)
        segs = self._global(a, total, "global store", True)
        self.acct_global("st", a, total)
        if self.opt.global_races:
            self.grace(segs, total, True)
        sh = total.bit_length() - 1
        for al, off, pos in segs:
            al.stored = True
            ix = off >> sh
            v = al.view(w, vec)
            if vec == 1:
                x = vals[0]
                v[ix] = x if pos is None or x.shape[0] == 1 else x[pos]
            else:
                for j in range(vec):
                    x = vals[j]
                    v[ix, j] = x if pos is None or x.shape[0] == 1 else x[pos]

    def grace(self, segs: Any, total: int, write: Any, atomic: bool = False) -> None:
        """Look for races between blocks: per byte, the block that wrote last and the blocks that read.

        Atomics do not race with each other. Flags and fences between blocks are not understood.
        """
        blk = self.blocks[self.blk[self.sel]].astype(np.int32) + 1
        for al, off, pos in segs:
            if len(off) != (self.n if pos is None else len(pos)):
                off = np.repeat(off, self.n)
            me = (blk if pos is None else blk[pos])[:, None]
            b = al.tracked(off)[:, None] + np.arange(total)
            w, r = al.gw[b], al.gr[b]
            bad = (w != 0) & (np.abs(w) != me)
            if atomic:
                bad &= w > 0
            if write:
                bad |= (r != 0) & (r != me)
            if bad.any():
                i, j = (int(x[0]) for x in np.nonzero(bad))
                t = int(self.sel[i if pos is None else pos[i]])
                o = abs(int(w[i, j])) or int(r[i, j])
                other = f"block {o - 1}" if o > 0 else "several blocks"
                raise RaceError(
                    f"global race on byte {int(off[i]) + j} of {al.name!r}: {'write' if write else 'read'} by "
                    f"{self.who(t)} here, "
                    f"{'written' if w[i, j] else 'read'} by {other} at {self.prog.code[int(al.gpc[b[i, j]])].where()}"
                )
            me = np.broadcast_to(me, b.shape)
            if write:
                al.gw[b] = -me if atomic else me
                lost = np.abs(al.gw[b]) != me
                if lost.any() and not atomic:
                    i = int(np.nonzero(lost)[0][0])
                    raise RaceError(
                        f"global race on {al.name!r}: two blocks write byte {int(off[i])} in the same instruction; "
                        f"{self.who(int(self.sel[i if pos is None else pos[i]]))}"
                    )
            else:
                al.gr[b] = np.where((r == 0) | (r == me), me, -1)
                al.gr[b[al.gr[b] != np.where((r == 0) | (r == me), me, -1)]] = -1
            al.gpc[b] = self.cpc
