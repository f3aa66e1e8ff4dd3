"""The command ``pagedref simulate``: replay a trace under several memory policies, side by side."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedref.simulate import Replay, Scenario, Summary

__all__ = ["add_command"]

POLICIES = "paged,contiguous-max,contiguous-pow2,contiguous-oracle"


def add_command(commands: Any) -> None:
    """Enter the command into the parser.

    Parameters
    ----------
    commands : argparse subparsers
        Of the command ``pagedref``.

    Notes
    -----
    Mutates: `commands`.
    """
    parser = commands.add_parser("simulate", help="replay a request trace under memory policies")
    add = parser.add_argument
    add("trace", metavar="TRACE", help="a file (Azure, BurstGPT or plain CSV, Mooncake JSONL, ShareGPT JSON), or "
        "synthetic[:requests=1000,rate=2,prompt_mean=161,...]")  # fmt: skip
    add("--format", help="format of the file (found from its first line)")
    add("--requests", type=int, metavar="N", help="keep the first N requests")
    add("--max-len", type=int, metavar="N", help="leave out requests of more tokens; room that contiguous-max reserves "
        "(the longest of the trace)")  # fmt: skip
    add("--at-once", action="store_true", help="let all requests arrive at time 0")
    add("--recorded-page-size", type=int, metavar="N", help="tokens for which one id of the trace stands")
    add("--tokenizer", metavar="NAME|PATH", help="counts the tokens of texts: tiny, smollm2, a folder, a GGUF")
    add("--policy", default=POLICIES, metavar="A,B,...", help=f"how memory is given out ({POLICIES}); also paged-N, "
        "and -firstfit, -bestfit or -buddy behind contiguous-max, -pow2, -oracle")  # fmt: skip
    add("--pool", default="12GiB", help="memory for keys and values (12GiB)")
    add("--model", default="opt-13b", metavar="NAME|PATH|SPEC", help="says the bytes of a token: a name, config.json, "
        "layers=40,heads=40,head_dim=128, or the bytes (opt-13b)")  # fmt: skip
    add("--kv-format", default="float16", metavar="NAME", help="how keys and values are stored (float16)")
    add("--page-size", type=int, default=16, metavar="N", help="positions in a page (16)")
    add("--eviction", default="lru", metavar="A,...", help="which cached page goes first: lru (default), fifo, "
        "lfu, clock, s3fifo, arc; with --cache-pages several of them, and belady")  # fmt: skip
    add("--sharing", action="store_true", help="share prompts: between samples or beams, and by the ids of the trace")
    add("--samples", type=int, default=1, metavar="N", help="outputs that each request decodes at once (1)")
    add("--beams", type=int, default=1, metavar="N", help="beams in place of samples (1)")
    add("--window", type=int, metavar="N", help="sliding window of all layers")
    add("--token-budget", type=int, default=2048, metavar="N", help="tokens of a step (2048; 0: no limit)")
    add("--max-running", type=int, metavar="N", help="rows at once (as many as the budget)")
    add("--preemption", default="recompute", help="recompute (default), swap or none")
    add("--watermark", type=int, default=0, metavar="N", help="frames that an admission leaves free (0)")
    add("--host", default="0", metavar="SIZE", help="host memory for swapped requests (0)")
    add("--disk", default="0", metavar="SIZE", help="disk for swapped requests (0)")
    add("--service", default="", metavar="step=..,token=..,cached=..", help="nanoseconds of a step, a computed and a "
        "stored token; host_bandwidth and disk_bandwidth in bytes/s; or unit: a step is a second")  # fmt: skip
    add("--until", default="drained", help="drained: the last request ends; saturated: nobody waits any more")
    add("--cache-pages", metavar="N,...", help="replay prefix hits alone, in caches of so many pages")
    add("--order", default="request", help="with --cache-pages: look up whole requests first, or access page by page")
    add("--warmup", type=int, default=0, metavar="N", help="with --cache-pages: requests that are not counted")
    add("--sweep", action="append", default=[], metavar="FIELD=A,B,...", help="vary page_size, pool, eviction, "
        "samples, beams, window, watermark, token_budget, max_running or preemption; may be given again")  # fmt: skip
    add("--jobs", type=int, metavar="N", help="processes (one for each processor; 1: none)")
    add("--json", metavar="FILE", help="write the numbers as JSON; - for standard output, and nothing else there")
    add("--csv", metavar="FILE", help="write the numbers as CSV; - as above")
    add("--plot", metavar="FOLDER", help="draw figures into a folder (needs matplotlib: pip install 'pagedref[plot]')")
    add("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=_simulate)


def _simulate(options: argparse.Namespace) -> int:
    """Replay and report."""
    from pagedref.cli._simulate_parts import hit_summaries, scenarios_of, trace_of
    from pagedref.errors import ContractError
    from pagedref.simulate import Job

    if options.plot is not None:
        from pagedref.plotting import simulation as plots  # says at once if matplotlib is missing
    show = _Progress(options.quiet)
    trace = trace_of(options)
    if options.cache_pages is not None:
        if options.sweep:
            text = "got both, need lists in --cache-pages and --eviction"
            raise ContractError(f"simulate: --sweep does not go with --cache-pages, {text}")
        summaries = hit_summaries(trace, options)
        if options.plot is not None:
            _drawn([plots.draw_hits(trace, options.page_size, summaries, options.order, options.plot)])
    else:
        scenarios = scenarios_of(trace, options)
        jobs = [Job(trace, scenario) for scenario in scenarios]
        if len(jobs) == 1:
            runs = [jobs[0](show.requests)]
        else:
            runs = _side_by_side(jobs, options.jobs, show)
        summaries = [run.summary for run in runs]
        show.end()
        if options.plot is not None:
            _drawn(plots.draw_runs(runs, options.plot) + _frames(trace, scenarios, options.plot))
    _write(summaries, options)
    return 0


def _side_by_side(jobs: Any, workers: int | None, show: _Progress) -> list[Replay]:
    """Run jobs in processes."""
    import os
    from concurrent.futures import ProcessPoolExecutor

    from pagedref.memory._numbers import whole_number
    from pagedref.simulate import sweep

    if workers is not None:
        whole_number("simulate", "--jobs", workers, low=1)
    workers = min(len(jobs), workers or os.cpu_count() or 1)
    if workers == 1:
        return sweep(jobs, progress=show.runs)
    with ProcessPoolExecutor(workers) as executor:
        return sweep(jobs, executor, progress=show.runs)


def _frames(trace: Any, scenarios: list[Scenario], folder: str) -> list[str]:
    """Draw who holds which frame, for the first scenario of each kind."""
    from dataclasses import replace

    from pagedref.plotting import simulation as plots
    from pagedref.simulate import replay

    first: dict[str, Scenario] = {}
    for scenario in scenarios:
        first.setdefault(scenario.policy.split("-")[0], scenario)
    runs = [replay(trace, replace(scenario, frame_map=True)) for scenario in first.values()]
    return [plots.draw_frames(runs, folder)]


def _drawn(paths: list[str]) -> None:
    """Say what was drawn."""
    for path in paths:
        print(f"drawn: {path}", file=sys.stderr)


def _write(summaries: list[Summary], options: argparse.Namespace) -> None:
    """Write the table, or what was asked for."""
    from pathlib import Path

    from pagedref.simulate import as_csv, as_json, as_table

    for target, text in ((options.json, as_json), (options.csv, as_csv)):
        if target == "-":
            sys.stdout.write(text(summaries).rstrip("\n") + "\n")
        elif target is not None:
            Path(target).write_text(text(summaries).rstrip("\n") + "\n", encoding="utf-8")
    if "-" not in (options.json, options.csv):
        print(as_table(summaries))


class _Progress:
    """Show on a terminal how far it is."""

    def __init__(self, quiet: bool) -> None:
        self.on = not quiet and sys.stderr.isatty()

    def requests(self, count: int) -> None:
        """Show requests that are through."""
        if self.on:
            sys.stderr.write(f"\r{count:,} requests")
            sys.stderr.flush()

    def runs(self, count: int, total: int) -> None:
        """Show runs that are through."""
        if self.on:
            full = 40 * count // total
            sys.stderr.write(f"\r[{'#' * full}{'.' * (40 - full)}] {count} of {total} runs")
            sys.stderr.flush()

    def end(self) -> None:
        """Clear the line."""
        if self.on:
            sys.stderr.write("\r\x1b[K")
