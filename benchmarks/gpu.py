"""One command for a machine with a GPU and no network: ``python -m benchmarks.gpu``.

It says what it runs on, measures each kernel against a device copy and against what else is installed, and a whole
model, then runs the conformance suite and compute-sanitizer, and ends within eight minutes. Results are kept in
``benchmarks/results/gpu_*.json`` and ``.md`` after each part. Without a GPU the same code runs tiny shapes on the
emulator: counts instead of times.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

Report = dict[str, Any]


def _section(name: str, seconds: float, quick: bool, out: Path | None) -> None:
    """Run one part in this process and keep what it finds."""
    from benchmarks.gpu_sections import SECTIONS, Timer

    def save(report: Report) -> None:
        if out is not None:
            scratch = out.with_suffix(".part")
            scratch.write_text(json.dumps(report))
            os.replace(scratch, out)

    SECTIONS[name][1](Timer(seconds), quick, save)


def _run_section(name: str, seconds: float, quick: bool, folder: Path) -> Report:
    """Run one part in a process of its own and return what it found, whatever became of it."""
    from benchmarks.gpu_sections import OVER, bounded

    out = folder / f".gpu_{os.getpid()}_{name}.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--section", name, "--keep", str(out)]
    command += ["--seconds", f"{seconds:.0f}", *(["--quick"] if quick else [])]
    start = time.monotonic()
    output, status = bounded(command, seconds + 5)
    wrong = "" if status == 0 else (output.strip().splitlines() or ["?"])[-1][:300] if status else OVER
    report: Report = json.loads(out.read_text()) if out.exists() else {}
    out.unlink(missing_ok=True)
    report["seconds"] = round(time.monotonic() - start, 1)
    if wrong:
        report["stopped"] = wrong
    return report


def _rows(rows: list[Report]) -> list[str]:
    """Return the lines of one table."""
    timed = any("time" in row for row in rows)
    if not timed:
        lines = ["| case | kernels | launches | warp instructions | bytes read | sectors |"]
        lines.append("|---|---|---:|---:|---:|---:|")
        for row in rows:
            found = row.get("counts")
            if found is None:
                lines.append(f"| {row['name']} | {row.get('error', '')} | | | | |")
                continue
            kernels = ", ".join(dict.fromkeys(row["kernels"]))
            numbers = (found[key] for key in ("launches", "warp_instructions", "bytes_read", "sectors"))
            lines.append(f"| {row['name']} | {kernels} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
        return lines
    lines = [
        "| case | kernels | time, µs | GB/s | of a copy | TFLOP/s | whole call, µs | the same by others, µs |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        if "time" not in row:
            lines.append(f"| {row['name']} | {row.get('error', '')} | | | | | | |")
            continue
        seconds = row["time"]["median"]
        others = "; ".join(
            f"{name}: {value['median'] * 1e6:,.1f}" if isinstance(value, dict) else f"{name}: {value.split(':')[0]}"
            for name, value in row["peers"].items()
        )
        kernels = ", ".join(dict.fromkeys(row["kernels"]))
        lines.append(
            f"| {row['name']} | {kernels} | {seconds * 1e6:,.1f} | {row['bytes'] / seconds / 1e9:,.0f} | "
            f"{row['share of copy']:.2f} | {row['flops'] / seconds / 1e12:.1f} | {row['call'] * 1e6:,.0f} | {others} |"
        )
    return lines


def _said(value: Any) -> str:
    """Return a value as readers want it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(found)}" for name, found in value.items())
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def markdown(report: Report) -> str:
    """Return the report for readers."""
    where = report.get("environment", {}).get("runs on", "?")
    timed = where.startswith("gpu")
    note = (
        "Times are medians of CUDA events around the launches of a call, L2 cold, queued behind a flush; a whole call "
        "includes the host's share."
        if timed
        else "**Emulated, not timed**: tiny shapes on the emulator, counts of what was executed."
    )
    lines = [f"# GPU results: {where}", "", note]
    for name, part in report.items():
        if not isinstance(part, dict):
            continue
        lines += ["", f"## {name}", ""]
        if "rows" in part:
            lines += _rows(part["rows"])
            lines.append("")
        for key, value in part.items():
            if isinstance(value, dict) and value:
                lines += [f"- {key}:", *(f"  - {name}: {_said(found)}" for name, found in value.items())]
            elif key != "rows" and value not in ("", {}, []):
                lines.append(f"- {key}: {_said(value)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="it ends within this time (8)")
    parser.add_argument("--quick", action="store_true", help="tiny shapes; always so on the emulator")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some parts: environment, decode, prefill, ...")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="where the results go")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        _section(options.section, options.seconds, options.quick, options.keep)
        return
    from benchmarks.gpu_sections import SECTIONS

    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes - 5
    report: Report = {"started": time.strftime("%Y-%m-%d %H:%M")}
    wanted = {name: share for name, (share, _) in SECTIONS.items() if options.only is None or name in options.only}
    target = options.out / "gpu_unknown"
    for name, share in wanted.items():
        rest = sum(other for key, other in wanted.items() if key not in report)
        seconds = max(10.0, (end - time.monotonic()) * share / rest)  # what a part leaves, the later ones have
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        report[name] = _run_section(name, seconds, options.quick, options.out)
        where = str(report.get("environment", {}).get("runs on", "unknown"))
        word = re.sub(r"[^a-z0-9]+", "_", where.removeprefix("gpu: ").lower()).strip("_")
        for suffix in (".json", ".md"):
            target.with_suffix(suffix).unlink(missing_ok=True)
        target = options.out / f"gpu_{word}"
        target.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        target.with_suffix(".md").write_text(markdown(report))
        if "stopped" in report[name]:
            print(f"  {report[name]['stopped']}", flush=True)
    print(markdown(report))
    print(f"kept in {target}.json and .md")


if __name__ == "__main__":
    main()
