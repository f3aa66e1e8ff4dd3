"""``python -m pagedref_cuda.emulator FILE.ptx ...``: what the files contain, and what would be refused."""

from __future__ import annotations

import sys
from pathlib import Path

from pagedref_cuda.emulator.launch import Module


def main(files: list[str]) -> None:
    """Print what files of PTX contain, and what the emulator would refuse."""
    m = Module([Path(f).read_text() for f in files])
    for e in m.entries:
        p = m.program(e)[0]
        print(
            f"{e}\n  {len(p.params)} parameters ({p.param_bytes} bytes), "
            f"{len(p.code)} instructions (calls inlined), {len(p.regty)} registers, "
            f"{p.shared_end - 0x400} bytes static shared (with red "
            f"zones){', dynamic shared' if p.dyn_vars else ''}, {p.local_bytes} bytes local"
        )
        for u in m.unsupported(e):
            print("  unsupported:", u)
        for a, b in m.contractible(e):
            print(f"  ptxas may contract: line {a.line} {a.text} / line {b.line} {b.text}")


if __name__ == "__main__":
    main(sys.argv[1:])
