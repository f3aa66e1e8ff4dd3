"""Counts of memory traffic: requests, sectors, bytes; wavefronts and conflicts of banks."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedref_cuda.emulator.threads import Threads


class Counting(Threads):
    """Accounts for each access to memory."""

    def acct_global(self, kind: Any, a: Any, total: int, nbytes: Any = None) -> None:
        """Count an access to global memory.

        A sector has 32 bytes; a warp's request takes each sector that it touches once.
        """
        st = self.stats.mem.setdefault(
            self.cpc, [kind, total, 0, 0, 0, 0]
        )  # kind, width, requests, threads, sectors, bytes
        n = self.n
        st[3] += n
        st[5] += total * n if nbytes is None else int(nbytes.sum())
        if not self.opt.traffic:
            return
        if a.shape[0] == 1:
            st[2] += self.nw
            st[4] += self.nw
            return
        st[2] += self.nw
        w, s = self.sel >> 5, a >> 5
        dw = w[1:] != w[:-1]
        ds = s[1:] - s[:-1]
        if ((ds >= 0) | dw).all():
            st[4] += 1 + int(np.count_nonzero(dw | (ds != 0)))
        else:
            key = np.sort((w << 43) | s)
            st[4] += 1 + int(np.count_nonzero(key[1:] != key[:-1]))

    def acct_shared(self, kind: Any, a: Any, total: int) -> None:
        """Count an access to shared memory.

        There are 32 banks of 4 bytes. A wavefront serves one word of each bank; 8-byte accesses go by half warps,
        16-byte ones
        by quarters. The ideal is one wavefront for each of these.
        """
        st = self.stats.smem.setdefault(
            self.cpc, [kind, total, 0, 0, 0, 0, 0]
        )  # kind, width, requests, threads, wavefronts, ideal, max ways
        st[3] += self.n
        st[2] += self.nw
        if not self.opt.traffic:
            return
        lanes = 32 if total <= 4 else 128 // total
        ph = self.sel // lanes
        if a.shape[0] == 1:
            np_ = 1 + int(np.count_nonzero(ph[1:] != ph[:-1]))
            st[4] += np_
            st[5] += np_
            st[6] = max(st[6], 1)
            return
        word = a >> 2
        if total > 4:
            k = total // 4
            word = (word[:, None] + np.arange(k)).reshape(-1)
            ph = np.repeat(ph, k)
        key = (ph << 24) | word
        if not (key[1:] > key[:-1]).all():
            key = np.sort(key)
            key = key[np.concatenate([[True], key[1:] != key[:-1]])]
        pb = np.sort(((key >> 24) << 5) | (key & 31))
        starts = np.flatnonzero(np.concatenate([[True], pb[1:] != pb[:-1]]))
        c = np.diff(np.append(starts, len(pb)))  # distinct words per (phase, bank)
        p = pb[starts] >> 5
        starts = np.flatnonzero(np.concatenate([[True], p[1:] != p[:-1]]))
        ways = np.maximum.reduceat(c, starts)
        st[4] += int(ways.sum())
        st[5] += len(starts)
        st[6] = max(st[6], int(ways.max()))
