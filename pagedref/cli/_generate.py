"""The command ``pagedref generate``: answer prompts, and say what the memory did."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedref.kv_cache import MemoryReport
    from pagedref.models.generate import Generation, Token
    from pagedref.models.model import Model

__all__ = ["add_command", "memory_lines"]


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
    generate = commands.add_parser("generate", help="answer prompts, then report the memory")
    generate.add_argument("prompts", nargs="+", metavar="PROMPT", help="a message, or several at once")
    generate.add_argument(
        "--model", default="smollm2", metavar="NAME|PATH",
        help="smollm2 (default; fetched once, 93 MB), tiny (in the package), an HF directory or a GGUF file",
    )  # fmt: skip
    generate.add_argument("--backend", default="numpy", help="numpy (default), cuda, or another that is installed")
    generate.add_argument("--page-size", type=int, default=16, metavar="N", help="positions in a page (16)")
    generate.add_argument("--num-frames", type=int, metavar="N", help="frames in the pool (what the prompts need)")
    generate.add_argument("--kv-format", metavar="NAME", help="how keys and values are stored (float32), such as int8")
    generate.add_argument("--max-tokens", type=int, default=256, metavar="N", help="new tokens at most (256)")
    generate.add_argument("--no-chat", action="store_true", help="continue the text as it is, no chat template")
    generate.add_argument("--quiet", action="store_true", help="the answer alone, no report")
    generate.set_defaults(run=_generate)


def _generate(options: argparse.Namespace) -> int:
    """Answer the prompts."""
    from pagedref.models.model import load_model

    model = load_model(options.model, options.backend, progress=_progress())
    single = len(options.prompts) == 1
    watch = _Watch(echo=single)
    generations = model.generate(
        options.prompts,
        options.max_tokens,
        page_size=options.page_size,
        num_frames=options.num_frames,
        kv_format=options.kv_format,
        chat=False if options.no_chat else None,
        on_token=watch,
    )
    if single:
        print()
    else:
        for prompt, generation in zip(options.prompts, generations, strict=True):
            print(f"[{_shortened(prompt)}]\n{generation.text.strip()}\n")
    if not options.quiet:
        print("\n".join(["", *memory_lines(generations, model), watch.line(generations)]))
    return 0


def _progress() -> Callable[[int, int], None] | None:
    """Return a display of what is loaded, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        sys.stderr.write("\r\x1b[K" if done == total else f"\rreading weights, {100 * done // total} %")
        sys.stderr.flush()

    return show


class _Watch:
    """Listen to new tokens: print those of a single prompt, and take the time."""

    def __init__(self, *, echo: bool) -> None:
        self.echo = echo
        self.start = self.first = self.last = time.perf_counter()
        self.count = 0

    def __call__(self, token: Token) -> None:
        self.last = time.perf_counter()
        self.count += 1
        if self.count == 1:
            self.first = self.last
        if self.echo:
            sys.stdout.write(token.text)
            sys.stdout.flush()

    def line(self, generations: Sequence[Generation]) -> str:
        """Say how fast it went."""
        read = sum(len(generation.prompt_ids) for generation in generations)
        text = f"  speed             {self.first - self.start:.2f} s to the first token ({read:,} tokens read)"
        if self.count > 1 and self.last > self.first:
            text += f", then {(self.count - 1) / (self.last - self.first):.1f} tokens/s"
        return text


def memory_lines(generations: Sequence[Generation], model: Model) -> list[str]:
    """Describe the memory of a run, one fact a line.

    Parameters
    ----------
    generations : sequence of Generation
        All of one run, one or more.
    model : Model
        The model.

    Returns
    -------
    list of str
    """
    report: MemoryReport = generations[0].memory
    new = sum(len(generation.token_ids) for generation in generations)
    many = f" in {report.num_sequences} sequences" if report.num_sequences > 1 else ""
    lines = [
        "memory at its fullest",
        f"  tokens            {report.num_tokens:,}{many}; {new:,} new in all, the last of a text is never stored",
        f"  pages             {report.num_pages:,} of {report.page_size} tokens",
        f"  frames used       {report.frames_held:,} of {report.num_frames:,}",
        f"  bytes per token   {report.bytes_per_token:,}",
        f"  held              {_megabytes(report.bytes_held)}, of which {_megabytes(report.bytes_wasted)} "
        f"({report.waste:.1%}) are the unused ends of last pages",
    ]
    if report.bytes_contiguous and report.bytes_held:
        lines.append(
            f"  contiguous        {_megabytes(report.bytes_contiguous)}, reserved for {model.config.max_model_len:,} "
            f"tokens each: {report.bytes_contiguous / report.bytes_held:,.0f} times as much"
        )
    return lines


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"


def _shortened(prompt: str) -> str:
    """Return a prompt as one line of at most 60 characters."""
    line = " ".join(prompt.split())
    return line if len(line) <= 60 else line[:59] + "…"
