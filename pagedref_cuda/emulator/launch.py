"""Modules and launches: what a user calls."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pagedref_cuda.emulator.errors import EmulatorError
from pagedref_cuda.emulator.instructions import compile_instr
from pagedref_cuda.emulator.machine import Machine
from pagedref_cuda.emulator.memory import MODULE_BASE, Memory
from pagedref_cuda.emulator.parser import parse
from pagedref_cuda.emulator.program import Flat, Program, link, liveness
from pagedref_cuda.emulator.stats import Stats
from pagedref_cuda.emulator.syntax import TYPE_BYTES, Sym

MOST_BLOCKS = (2**31 - 1, 65_535, 65_535)
"""Of a grid, in x, y and z."""

MOST_THREADS = (1024, 1024, 64)
"""Of a block, in x, y and z; 1024 in all."""


class Options:
    """What is checked and counted in one launch."""

    tb = TYPE_BYTES

    def __init__(
        self, strict: bool, races: Any, global_races: Any, traffic: Any, max_steps: Any, end_of: Any, kinds: Any
    ) -> None:
        self.global_races = global_races
        self.strict, self.races, self.traffic, self.max_steps = strict, races, traffic, max_steps
        self.end_of, self.kinds = end_of, kinds


def _dim(what: str, size: Any, most: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return launch dimensions as three numbers; refuse those that a GPU refuses."""
    given = (size,) if isinstance(size, int | np.integer) else tuple(size)
    full = tuple(int(x) for x in given) + (1,) * (3 - len(given))
    if len(full) != 3 or min(full) < 1 or any(x > limit for x, limit in zip(full, most)):
        raise EmulatorError(f"bad launch dimensions: {what} {size}, at least 1 and at most {most}")
    return full[0], full[1], full[2]


def _checked(fn: Any) -> Any:
    """Verify registers after the first executions of an instruction (PAGEDREF_EMULATOR_DEBUG=1)."""
    left = [4]

    def run(M: Machine) -> None:
        fn(M)
        if left[0]:
            left[0] -= 1
            M.check_alias()

    return run


class Module:
    """One or several PTX texts, linked.

    Parameters
    ----------
    *texts : str
        PTX; or one list of them.

    Attributes
    ----------
    globals : dict of str to array of uint8
        Variables of the module by name; they live as long as it does.
    """

    def __init__(self, *texts: Any) -> None:
        if len(texts) == 1 and isinstance(texts[0], list | tuple):
            texts = tuple(texts[0])
        self.texts = texts
        self.vars, self.funcs = link([parse(t) for t in texts])
        self.memory = Memory(MODULE_BASE)
        self.globals: dict[str, Any] = {}
        self._addr: dict[str, int] = {}
        self._progs: dict[str, Any] = {}
        self._contract: dict[str, int] = {}

    @property
    def entries(self) -> list[str]:
        """Names of the kernels."""
        return [n for n, f in self.funcs.items() if f.entry and f.defined]

    def entry(self, name: str | None) -> str:
        """Return the full name of an entry, from its name or a part that only one has."""
        if name is None and len(self.entries) == 1:
            return self.entries[0]
        if name in self.entries:
            return name
        hits = [n for n in self.entries if name and name in n]
        if len(hits) != 1:
            raise EmulatorError(f"entry {name!r}: {len(hits)} matches among {self.entries}")
        return hits[0]

    # -- module variables
    def address_of(self, name: str) -> int:
        """Return the device address of a variable of the module.

        Parameters
        ----------
        name : str
            As in the text.

        Returns
        -------
        int
            Its address.
        """
        if name not in self._addr:
            v = self.vars[name]
            if v.extern and v.nbytes == 0:
                raise EmulatorError(f"extern variable {name} is not defined in any of the linked modules")
            buf = np.zeros(max(v.nbytes, 1), np.uint8)
            self.globals[name] = buf
            self._addr[name] = self.memory.add(buf, name, readonly=(v.space == "const"))
            if v.init:
                w = TYPE_BYTES[v.type]
                out = bytearray()
                for x in v.init:
                    if isinstance(x, Sym):
                        x = (self.address_of(x.name) + x.off) & ((1 << 8 * w) - 1)
                    out += int(x).to_bytes(w, "little")
                buf[: len(out)] = np.frombuffer(bytes(out), np.uint8)
        return self._addr[name]

    def program(self, name: str) -> Any:
        """Return an entry compiled: program, functions, kinds, ends of basic blocks, what is not supported."""
        if name not in self._progs:
            p = Program(name, self.vars, self.funcs, self.address_of)
            code, kinds, bad = [], [], []
            for f in p.code:
                k, fn, msg = compile_instr(f, p)
                if os.environ.get("PAGEDREF_EMULATOR_DEBUG") and k == "op":
                    fn = _checked(fn)
                kinds.append(k)
                code.append(fn)
                if msg:
                    bad.append(msg)
            end = [0] * len(code)
            nxt = len(code) - 1
            for i in range(len(code) - 1, -1, -1):
                if kinds[i] != "op":
                    nxt = i
                end[i] = nxt
            p.live = liveness(p.code)
            self._progs[name] = (p, code, kinds, end, bad)
        return self._progs[name]

    def unsupported(self, name: str | None = None) -> list[str]:
        """Return what the emulator would refuse in an entry; empty: every instruction is covered.

        Parameters
        ----------
        name : str or None
            As for :meth:`launch`.

        Returns
        -------
        list of str
            One text for each instruction.
        """
        return list(self.program(self.entry(name))[4])

    def contractible(self, name: str | None = None) -> list[tuple[Flat, Flat]]:
        """Return pairs of a product and a sum that ptxas may fuse, which changes the last bit.

        They are those without a rounding modifier. The emulator rounds both; code compiled with ``fma=False`` has none.

        Parameters
        ----------
        name : str or None
            As for :meth:`launch`.

        Returns
        -------
        list of pairs
            Two instructions each.
        """
        prog = self.program(self.entry(name))[0]

        def plain(f: Any) -> Any:
            return f.parts[-1] in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2") and not {
                "rn",
                "rz",
                "rm",
                "rp",
            } & set(f.parts)

        muls: dict[int, list[Any]] = {}
        for f in prog.code:
            if f.parts[0] == "mul" and plain(f) and hasattr(f.args[0], "i"):
                muls.setdefault(f.args[0].i, []).append(f)
        return [
            (m, f)
            for f in prog.code
            if f.parts[0] in ("add", "sub") and plain(f)
            for a in f.args[1:]
            if hasattr(a, "i")
            for m in muls.get(a.i, ())
        ]

    # -- launching
    def pack(self, prog: Program, args: list[Any], memory: Memory) -> Any:
        """Return the parameters of a launch as bytes; arrays are registered in `memory`."""
        if len(args) != len(prog.params):
            raise EmulatorError(f"{len(args)} arguments for {len(prog.params)} kernel parameters")
        buf = bytearray(prog.param_bytes)
        for k, (a, (v, off)) in enumerate(zip(args, prog.params)):
            n = v.nbytes
            if isinstance(a, np.ndarray):
                if n != 8:
                    raise EmulatorError(f"argument {k}: array for a {n}-byte parameter")
                b = struct.pack("<Q", memory.add(a, f"arg{k}"))
            elif isinstance(a, (bytes, bytearray)):
                b = bytes(a)
            elif isinstance(a, (bool, np.bool_)):
                b = int(a).to_bytes(n, "little")
            elif isinstance(a, np.generic):
                b = a.tobytes()
            elif isinstance(a, float):
                if n not in (4, 8) or v.type[0] in "us":
                    raise EmulatorError(f"argument {k}: Python float for a .{v.type} parameter")
                b = struct.pack("<f" if n == 4 else "<d", a)
            elif isinstance(a, int):
                if v.type in ("f32", "f64"):
                    raise EmulatorError(f"argument {k}: int for a .{v.type} parameter")
                if not -(1 << (8 * n - 1)) <= a < 1 << 8 * n:
                    raise EmulatorError(f"argument {k}: {a} does not fit in {n} bytes")
                b = (a & ((1 << 8 * n) - 1)).to_bytes(n, "little")
            else:
                raise EmulatorError(f"argument {k}: cannot pass a {type(a).__name__}")
            if len(b) != n:
                raise EmulatorError(f"argument {k}: {len(b)} bytes for the {n}-byte parameter {v.name}")
            buf[off : off + n] = b
        return np.frombuffer(bytes(buf) + b"\0" * 16, np.uint8)[: max(prog.param_bytes, 1)].copy()

    def launch(
        self,
        name: str | None,
        grid: Any,
        block: Any,
        args: Sequence[Any],
        shared_bytes: int = 0,
        *,
        strict: bool = True,
        races: bool = False,
        global_races: bool = False,
        traffic: bool = True,
        batch_threads: int = 16384,
        cooperative: bool = False,
        max_steps: int = 50_000_000,
        memory: Memory | None = None,
        names: Sequence[str] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> Stats:
        """Execute a kernel; arrays are changed in place.

        Parameters
        ----------
        name : str or None
            Name of an entry, or a part of it that only one has; None if there is but one.
        grid, block : int or tuple of up to 3 int
            Blocks of the grid, threads of a block, x first.
        args : sequence
            NumPy arrays (passed as device pointers), numbers, bytes (structures by value).
        shared_bytes : int
            Dynamic shared memory of a block.
        strict : bool
            Report reads of shared bytes and registers that nothing has written, accesses between shared variables,
            threads that have exited at barriers, integer division by zero, shuffles from absent lanes, bytes of a
            copy that was not waited for.
        races : bool
            Report two threads at one shared byte with no barrier between, at least one writing.
        global_races : bool
            Report two blocks at one global byte, at least one writing, not both atomically. Order that flags, fences
            or atomics make between blocks is not understood.
        traffic : bool
            Count sectors and bank conflicts.
        batch_threads : int
            How many threads are computed together, in whole blocks.
        cooperative : bool
            All blocks in one batch: for blocks that wait for each other.
        max_steps : int
            Basic blocks that a batch may execute.
        memory : Memory, optional
            With more arrays, for tables of pointers.
        names : sequence of str, optional
            Names of the arguments, for messages.
        blocks : sequence of int, optional
            Run only these, by their linear number.

        Returns
        -------
        Stats
            What was counted.

        Raises
        ------
        EmulatorError
            The kernel did what it may not; the text names place, thread and line. Arrays hold what was stored before.

        Notes
        -----
        Mutates: the arrays that the kernel writes.
        """
        name = self.entry(name)
        grid, block = _dim("grid", grid, MOST_BLOCKS), _dim("block", block, MOST_THREADS)
        prog, code, kinds, end, _ = self.program(name)
        tpb = block[0] * block[1] * block[2]
        if tpb > 1024:
            raise EmulatorError(f"{tpb} threads per block (limit 1024)")
        d = prog.entry.directives
        if "reqntid" in d and tuple(d["reqntid"] + [1, 1])[:3] != block:
            raise EmulatorError(f".reqntid {d['reqntid']} but block {block}")
        if "maxntid" in d and tpb > int(np.prod(d["maxntid"])):
            raise EmulatorError(f".maxntid {d['maxntid']} but block {block}")
        if prog.dyn_off + shared_bytes - 0x400 > 232448 and shared_bytes:
            raise EmulatorError(f"{shared_bytes} bytes of dynamic shared memory exceed the 227 KiB a block can have")
        mem = memory or Memory()
        # module variables share the address space of the launch
        if mem is not self.memory:
            for address in self._addr.values():
                mem.adopt(self.memory.find(address))
        params = self.pack(prog, list(args), mem)
        if names:
            for a, nm in zip(args, names):
                if isinstance(a, np.ndarray) and a.size:
                    mem.find(mem.add(a)).name = nm
        for al in mem.allocs:
            al.stored, al.nc_read, al.gw = False, False, None
        st = Stats()
        st.code = prog.code
        opt = Options(strict, races, global_races, traffic, max_steps, end, kinds)
        lanes = (tpb + 31) // 32 * 32
        total = list(range(grid[0] * grid[1] * grid[2])) if blocks is None else list(blocks)
        per = len(total) if cooperative else max(1, batch_threads // lanes)
        t0 = time.perf_counter()
        old = np.seterr(all="ignore")
        M = None
        try:
            for k in range(0, len(total), per):
                M = Machine(prog, code, mem, grid, block, total[k : k + per], params, shared_bytes, opt, st)
                M.run()
                st.batches += 1
        except EmulatorError as e:
            if M is not None and e.line is None:
                f = prog.code[M.cpc]
                e.line, e.loc = f.line, f.loc
                if f.text not in str(e):
                    e.args = (f"{e.args[0]}; at {f.where()}",)
            raise
        except Exception as e:
            if M is not None:
                e.add_note(f"emulator: internal error at {prog.code[M.cpc].where()}")
            raise
        finally:
            np.seterr(**old)
        st.seconds = time.perf_counter() - t0
        if name not in self._contract:
            self._contract[name] = len(self.contractible(name))
        if self._contract[name]:
            st.warn(
                f"{self._contract[name]} mul/add pairs without .rn: ptxas may contract them to fma, "
                f"so GPU results can differ in the last bit"
            )
        for al in mem.allocs:
            if al.stored and al.nc_read:
                st.warn(f"{al.name!r} is read with ld.global.nc and written in the same launch")
        return st
