"""Launch statistics: instruction counts, global traffic and coalescing, shared-memory conflicts."""

from __future__ import annotations

from typing import Any


class Stats:
    """What a launch did: instructions, traffic of global memory, conflicts in shared memory.

    ``print(stats)`` gives a report.
    """

    def __init__(self) -> None:
        self.mem: dict[int, list[Any]] = {}  # by instruction: kind, width, requests, threads, sectors, bytes
        self.smem: dict[int, list[Any]] = {}  # kind, width, requests, threads, wavefronts, ideal, most ways
        self.mma: dict[str, int] = {}
        self.warnings: list[str] = []
        self.divergent_branches = self.barriers = self.local_bytes = 0
        self.batches = 0
        self.printed: list[str] = []  # output of printf / Numba's print
        self.seconds = 0.0
        self.cnt_t: Any = None
        self.cnt_w: Any = None
        self.code: Any = ()

    def add(self, other: Stats) -> None:
        """Add the counts of another launch of the same compilation.

        Parameters
        ----------
        other : Stats
            Its counts.
        """
        if self.code and [f.text for f in self.code] != [f.text for f in other.code]:
            raise ValueError("Stats.add: the launches are of different compilations")
        self.code = other.code
        self.add_counts(other.cnt_t, other.cnt_w)
        for mine, theirs in ((self.mem, other.mem), (self.smem, other.smem)):
            for pc, row in theirs.items():
                old = mine.get(pc)
                if old is None:
                    mine[pc] = list(row)
                    continue
                for k in range(2, len(row)):
                    old[k] = max(old[k], row[k]) if k == 6 else old[k] + row[k]
        for name, count in other.mma.items():
            self.mma[name] = self.mma.get(name, 0) + count
        self.divergent_branches += other.divergent_branches
        self.barriers += other.barriers
        self.local_bytes += other.local_bytes
        self.batches += other.batches
        self.seconds += other.seconds
        self.printed += other.printed
        for message in other.warnings:
            self.warn(message)

    def warn(self, msg: Any) -> None:
        """Enter a warning, once."""
        if msg not in self.warnings:
            self.warnings.append(msg)

    def add_counts(self, t: Any, w: Any) -> None:
        """Add counts of threads and warps per instruction."""
        self.cnt_t = t.copy() if self.cnt_t is None else self.cnt_t + t
        self.cnt_w = w.copy() if self.cnt_w is None else self.cnt_w + w

    # -- derived
    @property
    def thread_instructions(self) -> Any:
        """Instructions, counted per thread."""
        return int(self.cnt_t.sum())

    @property
    def warp_instructions(self) -> Any:
        """Instructions, counted per warp."""
        return int(self.cnt_w.sum())

    def by_opcode(self) -> Any:
        """Return {opcode: (warp instructions, thread instructions)}, most first."""
        out: dict[Any, Any] = {}
        for f, t, w in zip(self.code, self.cnt_t, self.cnt_w):
            if t:
                a, b = out.get(f.op, (0, 0))
                out[f.op] = (a + int(w), b + int(t))
        return dict(sorted(out.items(), key=lambda kv: -kv[1][0]))

    def global_bytes(self, kind: Any = None) -> Any:
        """Return the bytes that threads moved: loads "ld", stores "st", cp.async "cp", atomics "at", or all."""
        return sum(v[5] for v in self.mem.values() if kind in (None, v[0]))

    def global_by_width(self) -> Any:
        """Return {(kind, bytes per thread): {requests, threads, bytes, sectors}}."""
        out: dict[Any, Any] = {}
        for k, w, rq, th, sec, by in self.mem.values():
            d = out.setdefault((k, w), {"requests": 0, "threads": 0, "bytes": 0, "sectors": 0})
            d["requests"] += rq
            d["threads"] += th
            d["bytes"] += by
            d["sectors"] += sec
        return out

    @property
    def sectors(self) -> Any:
        """Sectors of 32 bytes that requests to global memory touched."""
        return sum(v[4] for v in self.mem.values())

    @property
    def shared_wavefronts(self) -> Any:
        """Wavefronts that accesses to shared memory took."""
        return sum(v[4] for v in self.smem.values())

    @property
    def shared_ideal(self) -> Any:
        """Wavefronts that they would have taken without conflicts of banks."""
        return sum(v[5] for v in self.smem.values())

    def accesses(self) -> Any:
        """Return one row for each instruction that reads or writes memory, for tables and tests."""
        rows = []
        for pc, (k, w, rq, _th, sec, by) in self.mem.items():
            f = self.code[pc]
            rows.append(
                {
                    "space": "global",
                    "kind": k,
                    "width": w,
                    "requests": rq,
                    "sectors": sec,
                    "per_request": sec / rq if rq else 0.0,
                    "efficiency": by / (32 * sec) if sec else 0.0,
                    "line": f.line,
                    "text": f.text,
                    "loc": f.loc,
                }
            )
        for pc, (k, w, rq, _th, wf, ideal, ways) in self.smem.items():
            f = self.code[pc]
            rows.append(
                {
                    "space": "shared",
                    "kind": k,
                    "width": w,
                    "requests": rq,
                    "wavefronts": wf,
                    "ideal": ideal,
                    "max_ways": ways,
                    "line": f.line,
                    "text": f.text,
                    "loc": f.loc,
                }
            )
        return rows

    def report(self, top: int = 12) -> Any:
        """Return the counts as text."""
        L = [
            f"{self.thread_instructions:,} thread instructions, {self.warp_instructions:,} warp instructions, "
            f"{self.divergent_branches} divergent branches, {self.barriers} barriers, {self.seconds:.3f} s "
            f"({self.thread_instructions / max(self.seconds, 1e-9) / 1e6:.1f} M thread-instr/s)"
        ]
        L.append(
            "opcodes by warp instructions: "
            + ", ".join(f"{k} {w:,}" for k, (w, _) in list(self.by_opcode().items())[:top])
        )
        for (k, w), d in sorted(self.global_by_width().items()):
            s = f"global {k} {w:2d} B: {d['requests']:,} requests, {d['bytes']:,} bytes"
            if d["sectors"]:
                s += (
                    f", {d['sectors']:,} sectors ({d['sectors'] / d['requests']:.2f} per request, "
                    f"{100 * d['bytes'] / (32 * d['sectors']):.0f}% used)"
                )
            L.append(s)
        if self.smem:
            worst = max(self.smem.items(), key=lambda kv: (kv[1][4] - kv[1][5], kv[1][6]))
            L.append(
                f"shared: {self.shared_wavefronts:,} wavefronts, {self.shared_ideal:,} without conflicts; "
                f"worst: {worst[1][6]}-way at "
                f"{self.code[worst[0]].where()}"
            )
        if self.local_bytes:
            L.append(f"local/param bytes: {self.local_bytes:,}")
        L += [f"mma: {k} x {v:,} warps" for k, v in self.mma.items()]
        L += [f"warning: {w}" for w in self.warnings]
        return "\n".join(L)

    __str__ = report
