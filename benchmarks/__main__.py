"""Run all measurements, print them, and keep them: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from benchmarks.measure import Row

RESULTS = Path(__file__).parent / "results"


def table(rows: list[Row]) -> list[str]:
    """Return a Markdown table: a line for each rival of each measurement."""
    lines = [
        "| measurement | ours | rival | theirs | their time / ours | target | |",
        "|---|---:|---|---:|---:|---:|---|",
    ]
    for row in rows:
        if len(row.seconds) == 1:
            lines.append(f"| {row.name} | {row.rate('ours'):,.1f} {row.unit} | | | | | |")
        for side in row.seconds:
            if side == "ours":
                continue
            ratio, target = row.ratio(side), row.targets.get(side)
            verdict = "" if target is None else "met" if (ratio if target > 0 else -ratio) >= target else "MISSED"
            wanted = "" if target is None else f"{target:.2f} x" if target > 0 else f"at most {-target:.2f} x its time"
            ours, theirs = (f"{row.rate(name):,.1f} {row.unit}" for name in ("ours", side))
            lines.append(f"| {row.name} | {ours} | {side} | {theirs} | {ratio:.2f} x | {wanted} | {verdict} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=("models", "attention", "variants", "serving"), help="a part of it")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each model measurement (5)")
    parser.add_argument("--model", default="smollm2", help="another Llama without biases and rope scaling")
    options = parser.parse_args()
    os.environ.pop("OPENBLAS_CORETYPE", None)  # before NumPy: the library shall choose for this processor

    from benchmarks import attention, measure, models, serving, variants

    found = measure.surroundings()
    print(", ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    rows: list[Row] = []
    if options.only in (None, "attention"):
        rows += attention.measure(4 * options.rounds)
    if options.only in (None, "variants"):
        rows += variants.measure(2 * options.rounds)
    if options.only in (None, "models"):
        rows += models.measure(options.rounds, options.model)
    if options.only in (None, "serving"):
        rows += serving.measure(max(1, options.rounds // 2), options.model)
    lines = table(rows)
    print("\n".join(lines))
    RESULTS.mkdir(exist_ok=True)
    data = {"surroundings": found, "rows": [row.as_dict() for row in rows]}
    (RESULTS / "latest.json").write_text(json.dumps(data, indent=1) + "\n")
    heading = "# Latest results\n\n" + "\n".join(f"- {name}: {value}" for name, value in found.items())
    note = "Medians over rounds in which all sides take turns; the ratio is the median of the ratios of each round."
    (RESULTS / "latest.md").write_text(f"{heading}\n\n{note}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
