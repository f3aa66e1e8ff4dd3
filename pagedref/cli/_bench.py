"""The command ``pagedref bench``: how fast a model serves random requests on this machine, and in how much memory."""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pagedref.engine import Delta
    from pagedref.models.model import Model

__all__ = ["add_command"]

_SHARES = (50, 90, 99)
_MOST = 2**31  # tokens


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
    bench = commands.add_parser("bench", help="serve random requests: tokens/s, latency, memory")
    bench.add_argument("--model", default="smollm2", metavar="NAME|PATH", help="as in generate (smollm2)")
    bench.add_argument("--backend", default="numpy", help="as in generate (numpy)")
    load = bench.add_argument_group("the load; all requests come at once")
    load.add_argument("--requests", type=int, default=16, metavar="N", help="how many (16)")
    load.add_argument("--prompt-tokens", type=_span, default=(16, 128), metavar="N|A-B", help="of each (16-128)")
    load.add_argument("--new-tokens", type=_span, default=(16, 64), metavar="N|A-B", help="of each (16-64)")
    load.add_argument("--shared", type=int, default=0, metavar="N", help="tokens that all prompts begin with (0)")
    load.add_argument("--seed", type=int, default=0, metavar="N", help="of lengths and tokens (0)")
    memory = bench.add_argument_group("memory and steps")
    memory.add_argument("--running", type=int, default=8, metavar="N", help="requests at once at most (8)")
    memory.add_argument("--page-size", type=int, default=16, metavar="N", help="positions in a page (16)")
    memory.add_argument("--num-frames", type=int, metavar="N", help="frames in the pool (what runs at once at most)")
    memory.add_argument("--kv-format", metavar="NAME", help="how keys and values are stored (float32)")
    memory.add_argument("--speculate", type=int, metavar="N", help="guess so many tokens ahead")
    bench.add_argument("--json", metavar="PATH", help="write all figures there; - for standard output, and no table")
    bench.set_defaults(run=_bench)


def _span(text: str) -> tuple[int, int]:
    """Read ``N`` or ``A-B``, 1 <= A <= B < `_MOST`."""
    first, dash, last = text.partition("-")
    try:
        least = int(first)
        most = int(last) if dash else least
    except ValueError:
        raise argparse.ArgumentTypeError(f"is no length, got {text!r}, need N or A-B") from None
    if not 1 <= least <= most < _MOST:
        raise argparse.ArgumentTypeError(f"is out of range, got {text!r}, need 1 <= A <= B < {_MOST}")
    return least, most


def _bench(options: argparse.Namespace) -> int:
    """Measure and print."""
    from pagedref.memory._numbers import whole_number
    from pagedref.models.fields import count
    from pagedref.models.model import load_model

    for name in ("requests", "running", "page_size"):
        count("bench", name, getattr(options, name))
    whole_number("bench", "seed", options.seed)
    whole_number("bench", "shared", options.shared)
    found = measure(load_model(options.model, options.backend), options)
    text = json.dumps(found, indent=1)
    if options.json == "-":
        print(text)
        return 0
    print("\n".join(lines(found)))
    if options.json is not None:
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0


def measure(model: Model, options: argparse.Namespace) -> dict[str, Any]:
    """Serve the requests once; the figures, in tokens, seconds and bytes."""
    from pagedref.engine import Engine, EngineConfig
    from pagedref.models.draft import Speculation
    from pagedref.models.fields import refuse
    from pagedref.models.sampling import SamplingParams

    rng = np.random.default_rng(options.seed)
    config, size = model.config, options.page_size
    if (longest := options.shared + options.prompt_tokens[1]) > config.max_model_len:
        refuse("bench", "prompt_tokens", "are too long", longest, f"at most {config.max_model_len}, shared ones too")
    vocab = np.setdiff1d(np.arange(config.vocab_size), np.array(sorted(config.eos_token_ids)))
    shared = rng.choice(vocab, options.shared).tolist()
    lengths = rng.integers(options.prompt_tokens[0], options.prompt_tokens[1] + 1, options.requests)
    prompts = [shared + rng.choice(vocab, length).tolist() for length in lengths]
    new = rng.integers(options.new_tokens[0], options.new_tokens[1] + 1, options.requests).tolist()
    longest = min(longest + options.new_tokens[1], config.max_model_len)
    frames = min(options.running, options.requests) * -(-longest // size)
    engine = Engine(
        model,
        EngineConfig(
            num_frames=frames if options.num_frames is None else options.num_frames,
            page_size=size,
            token_budget=max(512, options.running),
            max_running=options.running,
            watermark=0,
            kv_format=options.kv_format,
            speculation=None if options.speculate is None else Speculation(tokens=options.speculate),
        ),
    )
    arrivals: dict[int, list[tuple[float, int]]] = {}  # of each request: when tokens came, and how many at once
    latest: dict[int, int] = {}  # of each request: the step in which they came

    def hear(delta: Delta) -> None:
        heard, step = arrivals.setdefault(delta.request_id, []), engine.metrics().steps
        if latest.get(delta.request_id) == step:  # guesses that came true
            heard[-1] = heard[-1][0], heard[-1][1] + len(delta.token_ids)
        else:
            heard.append((time.perf_counter(), len(delta.token_ids)))
        latest[delta.request_id] = step

    model.generate([prompts[0][:8]], 2)  # what is done once per process is done now
    params = [SamplingParams(max_tokens=tokens, ignore_eos=True) for tokens in new]
    start = time.perf_counter()
    done = engine.generate(prompts, params, on_delta=hear)
    seconds = time.perf_counter() - start
    metrics, spec = engine.metrics(), engine.cache.spec
    read, written = sum(map(len, prompts)), sum(one.usage.output_tokens for one in done)
    return {
        "model": options.model,
        "backend": options.backend,
        "requests": options.requests,
        "prompt_tokens": read,
        "new_tokens": written,
        "running": options.running,
        "page_size": size,
        "kv_format": options.kv_format or "float32",
        "seconds": seconds,
        "steps": metrics.steps,
        "new_tokens_per_second": written / seconds,
        "tokens_per_second": (read + written) / seconds,
        "first_token": _percentiles([one.usage.first_token for one in done]),
        "queued": _percentiles([one.usage.queued for one in done]),
        "next_token": _percentiles([gap for heard in arrivals.values() for gap in _gaps(heard)]),
        "weight_bytes": model.transformer.num_bytes,
        "bytes_per_token": spec.bytes_per_token,
        "num_frames": metrics.frames_free + metrics.frames_held + metrics.frames_cached,
        "frames_peak": metrics.frames_peak,
        "bytes_peak": metrics.frames_peak * spec.bytes_per_frame,
        "process_bytes": _process_bytes(),
        "tokens_hit": metrics.tokens_hit,
        "preemptions": metrics.recomputed + metrics.swapped,
        "drafted": metrics.drafted,
        "accepted": metrics.accepted,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """Describe the figures, one fact a line."""

    def spread(name: str, factor: float, unit: str) -> str:
        values = found[name]
        return ", ".join(f"p{share} {values[f'p{share}'] * factor:,.1f} {unit}" for share in _SHARES) if values else "-"

    text = [
        f"{found['model']} on {found['backend']}: {found['requests']} requests, {found['prompt_tokens']:,} tokens "
        f"read, {found['new_tokens']:,} new, at most {found['running']} at once, pages of {found['page_size']}",
        f"  throughput        {found['new_tokens_per_second']:,.1f} new tokens/s, {found['tokens_per_second']:,.1f} "
        f"with those read; {found['seconds']:.2f} s in {found['steps']:,} steps",
        f"  first token       {spread('first_token', 1e3, 'ms')}",
        f"  of that waiting   {spread('queued', 1e3, 'ms')}",
        f"  next token        {spread('next_token', 1e3, 'ms')}",
        f"  weights           {found['weight_bytes'] / 1e6:,.1f} MB",
        f"  keys and values   {found['bytes_per_token']:,} bytes per token ({found['kv_format']}); at most "
        f"{found['frames_peak']:,} of {found['num_frames']:,} frames held, {found['bytes_peak'] / 1e6:,.1f} MB",
    ]
    if found["process_bytes"] is not None:
        text.append(f"  process           {found['process_bytes'] / 1e6:,.1f} MB at its largest")
    text.append(f"  prefix cache      {found['tokens_hit']:,} of {found['prompt_tokens']:,} prompt tokens found")
    if found["preemptions"]:
        text.append(f"  preemptions       {found['preemptions']:,}")
    if found["drafted"]:
        text.append(f"  speculation       {found['accepted']:,} of {found['drafted']:,} guesses were right")
    return text


def _gaps(heard: list[tuple[float, int]]) -> list[float]:
    """Return the seconds that each token but the first took; those that came together share theirs."""
    gaps = []
    for (before, _), (now, count) in pairwise(heard):
        gaps += [(now - before) / count] * count
    return gaps


def _percentiles(values: list[float]) -> dict[str, float]:
    """Return the shares that are reported, and the mean; nothing of nothing."""
    if not values:
        return {}
    points = np.percentile(values, _SHARES).tolist()
    return {
        **{f"p{share}": point for share, point in zip(_SHARES, points, strict=True)},
        "mean": float(np.mean(values)),
    }


def _process_bytes() -> int | None:
    """Return the most memory that this process ever had, where the system says so."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
