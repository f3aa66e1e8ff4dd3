"""Any access to memory: local, parameters, generic addresses, atomics."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedref_cuda.emulator.errors import (
    MemoryFault,
)
from pagedref_cuda.emulator.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, UINT, WINDOW
from pagedref_cuda.emulator.shared_memory import SharedMemory
from pagedref_cuda.emulator.threads import ONES, U64


class Access(SharedMemory):
    """Sends an access to the space that its address lies in."""

    def _local(self, a: Any, total: int, what: Any) -> Any:
        if int(a.view(U64).max()) > self.L - total:
            j = int(np.flatnonzero((a < 0) | (a + total > self.L))[0])
            self.fault(j, a, total, what, f"outside the {self.L} bytes of local memory")
        if total > 1 and int(np.bitwise_or.reduce(a)) & (total - 1):
            self.misaligned(a, total, what)
        return a + (self.lbase if self.esel is None else self.lbase[self.sel])

    def lview(self, w: Any, vec: int) -> Any:
        """Return local memory of all threads as words of `w` bytes (rows of `vec` words)."""
        v = self.lviews.get((w, vec))
        if v is None:
            v = self.lmem.view(UINT[w])
            if vec > 1:
                v = v.reshape(-1, vec)
            self.lviews[w, vec] = v
        return v

    def ld_local(self, a: Any, w: Any, vec: int) -> Any:
        """Load from local memory: `vec` words of `w` bytes at thread addresses `a`."""
        total = w * vec
        k = self._local(a, total, "local load") >> (total.bit_length() - 1)
        self.stats.local_bytes += total * self.n
        r = self.lview(w, vec).take(k, axis=0)
        return [r] if vec == 1 else list(np.ascontiguousarray(r.T))

    def st_local(self, a: Any, w: Any, vec: int, vals: Any) -> None:
        """Store into local memory."""
        total = w * vec
        k = self._local(a, total, "local store") >> (total.bit_length() - 1)
        self.stats.local_bytes += total * self.n
        v = self.lview(w, vec)
        if vec == 1:
            v[k] = vals[0]
        else:
            for j in range(vec):
                v[k, j] = vals[j]

    def ld_param(self, a: Any, w: Any, vec: int) -> Any:
        """Load from the kernel parameters."""
        total = w * vec
        a = a - PARAM_WINDOW
        if int(a.min()) < 0 or int(a.max()) + total > self.params.size:
            self.fault(0, a, total, "param load", "outside the kernel parameters")
        r = self.params[a[:, None] + np.arange(total)].reshape(-1)
        r = r.view(UINT[w]).reshape(-1, vec)
        return [np.ascontiguousarray(r[:, j]) for j in range(vec)]

    def split_generic(self, a: Any) -> Any:
        """Return generic addresses as a list of (space, addresses in that space, positions or None for all)."""
        lo, hi = int(a.min()), int(a.max())
        for space, base in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("kparam", PARAM_WINDOW)):
            if base <= lo and hi < base + WINDOW:
                return [(space, a if space == "kparam" else a - base, None)]
        if lo >= PARAM_WINDOW + WINDOW or hi < SHARED_WINDOW or lo < 0:
            return [("global", a, None)]
        a = self.spread(a)
        out, rest = [], np.ones(len(a), bool)
        for space, base in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("kparam", PARAM_WINDOW)):
            m = (a >= base) & (a < base + WINDOW)
            if m.any():
                out.append((space, a[m] if space == "kparam" else a[m] - base, np.flatnonzero(m)))
                rest &= ~m
        if rest.any():
            out.append(("global", a[rest], np.flatnonzero(rest)))
        return out

    def load(self, space: Any, a: Any, w: Any, vec: int, strong: bool = False, nc: bool = False) -> Any:
        """Load `vec` words of `w` bytes at addresses of any space; one array of words for each of `vec`."""
        if space == "generic":
            parts = self.split_generic(a)
            if len(parts) == 1:
                space, a, _ = parts[0]
            else:
                res = [np.empty(self.n, UINT[w]) for _ in range(vec)]
                old = self.sel
                for sp, aa, pos in parts:
                    self.set_group(old[pos])
                    for r, x in zip(res, self.load(sp, aa, w, vec, strong)):
                        r[pos] = x
                self.set_group(old)
                return res
        if space == "global":
            return self.ld_global(a, w, vec, nc)
        if space == "shared":
            return self.ld_shared(a, w, vec, strong)
        if space == "local":
            return self.ld_local(a, w, vec)
        return self.ld_param(a, w, vec)

    def store(self, space: Any, a: Any, w: Any, vec: int, vals: Any, strong: bool = False) -> None:
        """Store `vec` words of `w` bytes at addresses of any space."""
        if space == "generic":
            parts = self.split_generic(a)
            if len(parts) == 1:
                space, a, _ = parts[0]
            else:
                old = self.sel
                for sp, aa, pos in parts:
                    self.set_group(old[pos])
                    self.store(sp, aa, w, vec, [x if x.shape[0] == 1 else x[pos] for x in vals], strong)
                self.set_group(old)
                return
        if space == "global":
            self.st_global(a, w, vec, vals)
        elif space == "shared":
            self.st_shared(a, w, vec, vals, strong)
        elif space == "local":
            self.st_local(a, w, vec, vals)
        else:
            raise MemoryFault("store to the kernel parameters")

    def atomic(self, space: Any, a: Any, w: Any, fn: Any, vals: Any, want_old: Any, accum: Any = None) -> Any:
        """Read, modify and write in the order of threads; return the old values.

        ``fn(old, *vals)`` gives the new bit patterns, for many threads at once. ``accum(first, vals)`` gives the
        running values
        of many threads at one address: a faster way where there is one.
        """
        if space == "generic":
            parts = self.split_generic(a)
            if len(parts) > 1:
                old = self.sel
                res = np.empty(self.n, UINT[w])
                for sp, aa, pos in parts:
                    self.set_group(old[pos])
                    res[pos] = self.atomic(
                        sp, aa, w, fn, [x if x.shape[0] == 1 else x[pos] for x in vals], want_old, accum
                    )
                self.set_group(old)
                return res
            space, a, _ = parts[0]
        a = self.spread(a)
        vals = [self.spread(v) for v in vals]
        sh = w.bit_length() - 1
        if space == "global":
            segs = self._global(a, w, "atomic", True)
            self.acct_global("at", a, w)
            if self.opt.global_races:
                self.grace(segs, w, True, True)
            segs = [(al.view(w, 1), off >> sh, pos, al) for al, off, pos in segs]
            for s in segs:
                s[3].stored = True
        elif space == "shared":
            ix = self._shared(a, w, "shared atomic")
            self.acct_shared("at", a, w)
            k = ix >> sh
            if self.strict and not (self.shview(w, 1)[k] == ONES[w]).all():
                self.bad_shared(ix, w)
            if self.races:
                self.race_read(ix, w, True)
                self.race_write(ix, w, True)
            segs = [(self.sview(w, 1), k, None, None)]
        else:
            raise MemoryFault(f"atomic on {space} memory")
        res = np.empty(self.n, UINT[w])
        for view, ix, pos, _ in segs:
            v = vals if pos is None else [x[pos] for x in vals]
            r = self._atomic1(view, ix, fn, v, accum)
            if pos is None:
                res = r
            else:
                res[pos] = r
        return res

    @staticmethod
    def _atomic1(view: Any, ix: Any, fn: Any, vals: Any, accum: Any) -> Any:
        n = len(ix)
        order = np.argsort(ix, kind="stable")
        s = ix[order]
        first = np.ones(n, bool)
        first[1:] = s[1:] != s[:-1]
        starts = np.flatnonzero(first)
        if len(starts) == n:  # all addresses differ
            old = view[ix]
            view[ix] = fn(old, *vals)
            return old
        counts = np.diff(np.append(starts, n))
        old = np.empty(n, view.dtype)
        if accum is not None and len(starts) < counts.max():
            for st, c in zip(starts, counts):
                th = order[st : st + c]
                run = accum(view[s[st] : s[st] + 1], vals[0][th])  # (c+1,) running values
                old[th] = run[:-1]
                view[s[st]] = run[-1]
            return old
        rank = np.arange(n) - np.repeat(starts, counts)
        byrank = np.argsort(rank, kind="stable")
        bounds = np.searchsorted(rank[byrank], np.arange(counts.max() + 1))
        for r in range(int(counts.max())):
            th = order[byrank[bounds[r] : bounds[r + 1]]]
            o = view[ix[th]]
            old[th] = o
            view[ix[th]] = fn(o, *[v[th] for v in vals])
        return old
