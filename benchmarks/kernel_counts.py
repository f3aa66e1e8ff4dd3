"""What the decode kernels do, counted on the emulator: ``python -m benchmarks.kernel_counts``. No time is measured.

Counts are exact: bytes, sectors, bank conflicts, instructions of the compiled PTX. The last column is a prediction. A
multiprocessor of an H200 can issue about 124 warp instructions in the time in which its share of the measured
bandwidth brings 512 bytes (4.3 TB/s, 132 multiprocessors, four schedulers at 1.98 GHz). A kernel below that is bound
by memory, if enough bytes are on their way; the fraction of the bandwidth that serves K and V is then their share of
all that moves.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pagedref_cuda
from pagedref.conformance.cases import PagedCase, make_case
from pagedref_cuda._batch import batch, launch_rows
from pagedref_cuda.decode import paged_decode_1
from pagedref_cuda.fast import choose, steps

__all__ = ["BUDGET", "Counts", "count"]

RESULTS = Path(__file__).parent / "results"
H200 = (9, 0)
BUDGET = 124.0
"""Warp instructions in the time of 512 bytes."""
NEEDED = 4.3e12 / 132 * 0.8e-6
"""Bytes that a multiprocessor must have on their way to hide 0.8 microseconds at the measured bandwidth."""
HEAD_DIM = 128


@dataclass(frozen=True)
class Counts:
    """One decode step of one sequence and one kv head, counted.

    Attributes
    ----------
    kernel : str
        The first kernel of the step.
    group_size, length, page_size, launches : int
        Shape; kernels of the step.
    loaded : float
        Bytes that all loads ask for, over those of K and V.
    sectors : float
        Sectors of 32 bytes that all loads touch, over those of K and V.
    kv_loaded, kv_sectors : float
        The same for K and V alone: bytes over their bytes, sectors for each 512 bytes. 0 below rung 3, where loads of K
        and V are not told from others.
    ways : int
        Worst bank conflict; 1 is none.
    instructions : float
        Warp instructions of the step for each 512 bytes of K and V.
    share : float
        K and V in all bytes that the step moves.
    on_their_way : int
        Bytes that a multiprocessor full of blocks keeps on their way; 0 where loads are not asynchronous.
    """

    kernel: str
    group_size: int
    length: int
    page_size: int
    launches: int
    loaded: float
    sectors: float
    kv_loaded: float
    kv_sectors: float
    ways: int
    instructions: float
    share: float
    on_their_way: int

    @property
    def predicted(self) -> float:
        """Predicted fraction of the measured bandwidth of an H200 that serves K and V."""
        return self.share * min(1.0, BUDGET / self.instructions) * min(1.0, self.on_their_way / NEEDED)


def _run(case: PagedCase, rung: int) -> tuple[dict[str, list[Any]], int]:
    """Run a step; return what was counted of each kernel, and the bytes on their way in a full multiprocessor."""
    names = ("q", "k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len")
    given = batch("paged_decode", {name: getattr(case, name) for name in names}, {})
    call, kinds = given.call, choose.kinds_of(given.call, case.q.dtype)
    assert kinds is not None
    chosen = choose.choose_decode(HEAD_DIM, HEAD_DIM, call.group_size, *kinds, H200, rung) if rung > 1 else None
    with pagedref_cuda.counting() as counts:
        if chosen is None:
            launch_rows(paged_decode_1, given, case.q, case.k_cache, case.v_cache, None)
            return counts, 0
        steps.run_rows(call, case.q, case.k_cache, case.v_cache, chosen)
    return counts, chosen.shared_bytes // chosen.stages * (chosen.stages - 1) * chosen.blocks


def count(group_size: int, length: int, page_size: int = 16, rung: int = 5, dtype: str = "bfloat16") -> Counts:
    """Count one step.

    Parameters
    ----------
    group_size, length, page_size : int
        Shape.
    rung : int
        Of the ladder.
    dtype : str
        Of queries and cache.

    Returns
    -------
    Counts
        What its kernels did.
    """
    geometry: dict[str, Any] = {
        "page_size": page_size,
        "num_kv_heads": 1,
        "group_size": group_size,
        "head_dim": HEAD_DIM,
    }
    case = make_case(0, [1], [length], dtype=dtype, **geometry)
    counts, on_their_way = _run(case, rung)
    ideal = 2 * length * HEAD_DIM * case.k_cache.dtype.itemsize
    every = [stats for launches in counts.values() for stats in launches]
    rows = [row for stats in every for row in stats.accesses()]
    loads = [row for row in rows if row["space"] == "global" and row["kind"] != "st"]
    copies = [row for row in loads if row["kind"] == "cp" and row["width"] == 16]
    return Counts(
        kernel=next(iter(counts)),
        group_size=group_size,
        length=length,
        page_size=page_size,
        launches=len(every),
        loaded=sum(stats.global_bytes(kind) for stats in every for kind in ("ld", "cp")) / ideal,
        sectors=sum(row["sectors"] for row in loads) / (ideal / 32),
        kv_loaded=sum(stats.global_by_width().get(("cp", 16), {"bytes": 0})["bytes"] for stats in every) / ideal,
        kv_sectors=sum(row["sectors"] for row in copies) / max(sum(row["requests"] for row in copies), 1),
        ways=max((int(row["max_ways"]) for row in rows if row["space"] == "shared"), default=1),
        instructions=sum(stats.warp_instructions for stats in every) / (ideal / 512),
        share=ideal / sum(stats.global_bytes() for stats in every),
        on_their_way=on_their_way,
    )


def _lines(title: str, found: list[tuple[str, Counts]]) -> list[str]:
    lines = [
        f"## {title}",
        "",
        "| | launches | loaded / K and V | sectors / ideal | K and V loaded | sectors per 512 bytes of K and V "
        "| worst bank conflict | warp instructions per 512 bytes | bytes on their way | predicted |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in found:
        own = [f"{row.kv_loaded:.3f} x", f"{row.kv_sectors:.2f}"] if row.kv_loaded else ["", ""]
        tail = [f"{row.on_their_way // 1024} KiB", f"{row.predicted:.1%}"] if row.on_their_way else ["", ""]
        cells = [
            str(row.launches), f"{row.loaded:.2f} x", f"{row.sectors:.2f} x", *own, f"{row.ways}-way",
            f"{row.instructions:.1f}", *tail,
        ]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def main() -> None:
    ladder = [(f"rung {rung}", count(8, 1024, rung=rung)) for rung in (1, 2, 3, 4, 5)]
    groups = [
        (f"group {group_size}, {length:,} keys, page {page_size}", count(group_size, length, page_size))
        for group_size in (1, 4, 8, 16)
        for length, page_size in ((1024, 16), (1024, 1), (8192, 16))
    ]
    plain = [(f"float32, group {group}, 1,024 keys", count(group, 1024, dtype="float32")) for group in (1, 4)]
    lines = ["# Decode kernels, counted", "", *str(__doc__).split("\n\n")[1].splitlines(), ""]
    lines += _lines("The ladder: bfloat16, heads of 128, a group of 8, 1,024 keys, pages of 16", ladder)
    lines += _lines("Rung 5, bfloat16, heads of 128", groups) + _lines("Rung 5, float32, heads of 128", plain)
    print("\n".join(lines))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "kernel_counts.md").write_text("\n".join(lines))
    data = [{"what": name, **asdict(row), "predicted": row.predicted} for name, row in (*ladder, *groups, *plain)]
    (RESULTS / "kernel_counts.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
