"""Threads of a batch of blocks and their registers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from pagedref_cuda.emulator.errors import (
    UninitialisedRead,
)
from pagedref_cuda.emulator.program import INF, SHARED_FIRST

FULL, DENSE, SPARSE = 0, 1, 2
P_BAR, P_WARP = 1, 2
I64, U64, U32 = np.int64, np.uint64, np.uint32
ONES = {1: np.uint8(1), 2: np.uint16(0x0101), 4: np.uint32(0x01010101), 8: np.uint64(0x0101010101010101)}
REG_DTYPE = {
    "pred": np.dtype(bool),
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}


class Threads:
    """Which threads run together, and their registers."""

    def __init__(
        self,
        prog: Any,
        code: Any,
        mem: Any,
        grid: Any,
        block: Any,
        blocks: Any,
        params: Any,
        dyn_shared: Any,
        opt: Any,
        stats: Any,
    ) -> None:
        self.prog, self.code, self.mem, self.grid, self.block, self.opt, self.stats = (
            prog,
            code,
            mem,
            grid,
            block,
            opt,
            stats,
        )
        self.strict = opt.strict
        self.blocks = np.asarray(blocks, I64)
        B = self.B = len(blocks)
        self.tpb = block[0] * block[1] * block[2]
        self.wpb = (self.tpb + 31) // 32
        lanes = self.lanes = self.wpb * 32
        T = self.T = B * lanes
        self.W = B * self.wpb
        self.all = np.arange(T, dtype=I64)
        self.blk = self.all // lanes  # block index inside the batch
        self.tid = self.all % lanes  # linear thread index in the block
        self.alive = self.tid < self.tpb
        self.live = int(self.alive.sum())
        self.live_pb = np.full(B, self.tpb, I64)
        self._lanes: Any = None
        self.rpc = np.where(self.alive, 0, INF).astype(np.int32)  # runnable PC
        self.wpc = np.full(T, -1, np.int32)  # PC of the instruction a parked thread waits at
        self.wkind = np.zeros(T, np.int8)
        self.wbar = np.zeros(T, np.int8)
        self.wcount = np.zeros(T, np.int32)
        self.wval = np.zeros(T, U32)  # operand of bar.red
        self.arrived = np.zeros(B * 16, I64)  # bar.arrive counts
        self.nparked = 0
        self.R: list[Any] = [None] * len(prog.regty)
        self.undef: dict[int, Any] = {}  # register -> threads that have not written it (only partly written registers)
        self.rdt = [
            REG_DTYPE["pred"] if t == "pred" else REG_DTYPE[{"b8": 1, "u8": 1, "s8": 1}.get(t) or opt.tb[t]]
            for t in prog.regty
        ]
        self.params = params  # uint8 array of the kernel parameters
        # shared memory
        self.sh_end = prog.dyn_off + dyn_shared if (dyn_shared or prog.dyn_vars) else prog.shared_end
        self.dyn_shared = dyn_shared
        S = self.S = (self.sh_end + 1023) // 1024 * 1024
        if self.sh_end > SHARED_FIRST:
            self.smem = np.full(B * S, 0xCD, np.uint8)
        else:
            self.smem = np.zeros(0, np.uint8)
        self.sviews: dict[tuple[int, int], Any] = {}
        self.sbase = self.blk * S
        self.shadow = np.zeros(
            self.smem.size if self.strict else 0, np.uint8
        )  # 0 never written, 1 valid, 2 cp.async pending
        self.shviews: dict[tuple[int, int], Any] = {}
        self.symok: Any = None
        if self.strict and self.smem.size:
            ok = np.zeros(S, np.uint8)
            for _, o, n in prog.shared_vars:
                ok[o : o + n] = 1
            ok[prog.dyn_off : prog.dyn_off + dyn_shared] = 1
            self.symok = ok
            self.symviews: dict[int, Any] = {}
        self.races = opt.races and self.smem.size > 0
        if self.races:
            n = self.smem.size
            self.w_tid, self.w_ep, self.w_we = np.full(n, -1, np.int32), np.full(n, -1, np.int32), np.zeros(n, np.int32)
            self.r_tid, self.r_ep, self.r_we = np.full(n, -1, np.int32), np.full(n, -1, np.int32), np.zeros(n, np.int32)
            self.w_pc, self.r_pc = np.zeros(n, np.int32), np.zeros(n, np.int32)
            self.epoch, self.wepoch = np.zeros(B, np.int32), np.zeros(self.W, np.int32)
        # local memory
        self.L = (prog.local_bytes + 15) // 16 * 16
        self.lmem = np.full(T * self.L, 0xCD, np.uint8)
        self.lviews: dict[tuple[int, int], Any] = {}
        self.lbase = self.all * self.L
        # cp.async
        self.async_recs: list[list[Any]] = []
        self.ngroups = np.zeros(T, I64)  # committed groups so far, per thread
        self.cpc = 0
        self.cc: Any = None  # carry flag
        self.steps = self.clock = 0
        n = len(code)
        self.cnt_t, self.cnt_w = np.zeros(n + 1, I64), np.zeros(n + 1, I64)
        self.others_live = -1  # registers that threads outside the running group may still read
        self.set_group(self.all[self.alive])

    def set_group(self, sel: Any) -> None:
        """Make these threads the current group."""
        n = self.n = len(sel)
        self.sel = sel
        self.esel = None if n == self.T else sel
        self._nw: Any = None
        self._mask: Any = None
        if n == self.live:
            self.mode, self.asel = FULL, None
        elif n * 3 >= self.T:
            self.mode, self.asel = DENSE, None
        else:
            self.mode, self.asel = SPARSE, sel

    @property
    def mask(self) -> Any:
        """The current group as bool for all threads."""
        if self._mask is None:
            m = self._mask = np.zeros(self.T, bool)
            m[self.sel] = True
        return self._mask

    @property
    def nw(self) -> Any:
        """Number of warps with a thread in the group."""
        if self._nw is None:
            if self.n == self.T:
                self._nw = self.W
            elif self.n == 0:
                self._nw = 0
            else:
                w = self.sel >> 5
                self._nw = 1 + int(np.count_nonzero(w[1:] != w[:-1]))
        return self._nw

    def uninit(self, i: Any) -> Any:
        """Report a read of a register that nothing has written; give zero if not strict."""
        if self.strict:
            raise UninitialisedRead(f"register {self.prog.regnames[i]} is read but was never written")
        return np.zeros(1, self.rdt[i])

    def mat(self, i: Any) -> Any:
        """Return a register as an array of its own with one element per thread."""
        r = self.R[i]
        if r is None:
            r = self.R[i] = np.zeros(self.T, self.rdt[i])
            if self.strict:
                self.undef[i] = np.ones(self.T, bool)
        elif r.shape[0] != self.T:
            r = self.R[i] = np.full(self.T, r[0], r.dtype)
        return r

    def put_alu(self, i: Any, v: Any) -> None:
        """Write a register: one element, or one for each thread (in a sparse group: for each of the group)."""
        m = self.mode
        if m == FULL:
            self.R[i] = v
            if self.undef:
                self.undef.pop(i, None)
            return
        if m == DENSE:
            if not self.others_live >> i & 1:  # nobody outside the group will read it: overwrite all lanes
                self.R[i] = v
                if self.undef:
                    self.undef.pop(i, None)
                return
            np.copyto(self.mat(i), v, where=self.mask)
        else:
            self.mat(i)[self.sel] = v
        if i in self.undef:
            self.undef[i][self.sel] = False

    def put_exact(self, i: Any, v: Any) -> None:
        """Write a register: one element, or one for each thread of the group."""
        if self.mode == FULL:
            if self.esel is None or v.shape[0] == 1:
                self.R[i] = v
            else:
                r = np.zeros(self.T, v.dtype)
                r[self.sel] = v
                self.R[i] = r
            if self.undef:
                self.undef.pop(i, None)
        else:
            self.mat(i)[self.sel] = v
            if i in self.undef:
                self.undef[i][self.sel] = False

    def check_defined(self, i: Any) -> None:
        """Refuse a read by threads that have not written this register."""
        bad = self.undef[i][self.sel]
        if bad.any():
            raise UninitialisedRead(
                f"register {self.prog.regnames[i]} is read but was never written by "
                f"{self.who(int(self.sel[np.flatnonzero(bad)[0]]))}"
            )

    def check_alias(self) -> None:
        """Verify that no two registers share memory (PAGEDREF_EMULATOR_DEBUG=1)."""
        spans: list[tuple[int, int, int]] = []
        for i, r in enumerate(self.R):
            if r is not None:
                assert r.shape in ((1,), (self.T,)) and r.dtype == self.rdt[i], (
                    self.prog.regnames[i],
                    r.shape,
                    r.dtype,
                    self.T,
                )
                if r.shape[0] > 1:
                    assert r.flags.writeable, self.prog.regnames[i]
                    lo = r.__array_interface__["data"][0]
                    spans.append((lo, lo + (r.shape[0] - 1) * abs(r.strides[0]) + r.itemsize, i))
        spans.sort()
        for (_, end, i), (begin, _, j) in pairwise(spans):
            assert end <= begin, (
                f"{self.prog.regnames[i]} and {self.prog.regnames[j]} share memory at "
                f"{self.prog.code[self.cpc].where()}"
            )

    def who(self, t: Any) -> Any:
        """Say ``block (x,y,z) thread (x,y,z)`` of a thread of the batch."""
        b = int(self.blocks[self.blk[t]])
        i = int(self.tid[t])
        gx, gy, _ = self.grid
        bx, by, _ = self.block
        return f"block ({b % gx},{b // gx % gy},{b // (gx * gy)}) thread ({i % bx},{i // bx % by},{i // (bx * by)})"

    def thread_of(self, k: Any) -> Any:
        """Return the thread at a position of an array over the group."""
        return int(self.sel[k]) if k < self.n else int(self.sel[0])

    def spread(self, a: Any) -> Any:
        """Repeat a value for each thread of the group."""
        return a if a.shape[0] == self.n else np.repeat(a, self.n)
