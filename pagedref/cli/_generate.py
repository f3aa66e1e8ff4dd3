"""The command ``pagedref generate``: answer prompts, and say what the memory did."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pagedref.addressing import num_pages
from pagedref.errors import PagedRefError

if TYPE_CHECKING:
    from pagedref.engine import Completion, Delta
    from pagedref.kv_cache import MemoryReport
    from pagedref.models.model import Model
    from pagedref.models.sampling import SamplingParams

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
    generate.add_argument("--max-tokens", type=int, default=256, metavar="N", help="new tokens at most (256)")
    generate.add_argument("--no-chat", action="store_true", help="continue the text as it is, no chat template")
    generate.add_argument("--quiet", action="store_true", help="the answer alone, no report")
    choice = generate.add_argument_group("how tokens are chosen")
    choice.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default) takes the best one")
    choice.add_argument("--top-k", type=int, default=0, metavar="K", help="draw among so many (0: all)")
    choice.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw among this share of probability (1)"
    )
    choice.add_argument("--min-p", type=float, default=0.0, metavar="P", help="least probability, of the largest (0)")
    choice.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="1 (default) is none")
    choice.add_argument("--seed", type=int, metavar="N", help="the same seed draws the same tokens")
    choice.add_argument("--samples", type=int, default=1, metavar="N", help="answers to each prompt (1)")
    choice.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may repeat")
    memory = generate.add_argument_group("memory and steps")
    memory.add_argument("--page-size", type=int, default=16, metavar="N", help="positions in a page (16)")
    memory.add_argument("--num-frames", type=int, metavar="N", help="frames in the pool (what the prompts need)")
    memory.add_argument("--kv-format", metavar="NAME", help="how keys and values are stored (float32), such as int8")
    memory.add_argument("--speculate", type=int, metavar="N", help="guess so many tokens ahead; the text is the same")
    memory.add_argument("--show-pages", action="store_true", help="show who holds which frame, live on a terminal")
    generate.set_defaults(run=_generate)


def _generate(options: argparse.Namespace) -> int:
    """Answer the prompts."""
    from pagedref.models.model import load_model
    from pagedref.models.sampling import SamplingParams

    model = load_model(options.model, options.backend, progress=_progress())
    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        n=options.samples,
        stop=options.stop,
    )
    chat = False if options.no_chat else None
    run = _Run(model, [model.encode(prompt, chat=chat) for prompt in options.prompts], params, options)
    completions = run.finish()
    if run.echo:
        print()
    elif len(completions) == 1 and params.n == 1:
        print(completions[0].text)
    else:
        for prompt, completion in zip(options.prompts, completions, strict=True):
            for number, sample in enumerate(completion.samples, 1):
                which = f" ({number} of {params.n})" if params.n > 1 else ""
                print(f"[{_shortened(prompt)}]{which}\n{sample.text.strip()}\n")
    if options.show_pages:
        print("\n" + "\n".join(run.pages()))
    if not options.quiet:
        new = sum(completion.usage.output_tokens for completion in completions)
        print("\n".join(["", *memory_lines(run.report, new, model.config.max_model_len), *run.lines(completions)]))
        if callable(describe := getattr(model.backend, "device", None)):
            print(f"  ran on            {describe()}")
    return 0


class _Run:
    """One engine with all prompts in it: print the text of a single one as it comes, look at memory and clock."""

    def __init__(
        self, model: Model, prompts: list[list[int]], params: SamplingParams, options: argparse.Namespace
    ) -> None:
        from pagedref.cli._pages import Screen, Tenant
        from pagedref.engine import Engine, EngineConfig
        from pagedref.models.draft import Speculation
        from pagedref.models.fields import count
        from pagedref.models.prompts import checked_ids

        size, most = count("generate", "page_size", options.page_size), model.config.max_model_len
        for number, ids in enumerate(prompts):  # before their frames are counted
            checked_ids("generate", f"prompt {number}", ids, model.config.vocab_size, most)
        frames = sum(_largest(len(ids), params, size, most) for ids in prompts)
        config = EngineConfig(
            num_frames=max(1, frames) if options.num_frames is None else options.num_frames,
            page_size=size,
            token_budget=max(512, params.n),
            max_running=max(32, params.n),  # the samples of a prompt run together
            watermark=0,
            kv_format=options.kv_format,
            speculation=None if options.speculate is None else Speculation(tokens=options.speculate),
        )
        self.engine = Engine(model, config)
        self.engine.on_step = self._look
        self.report = self.engine.cache.memory_report()
        self.show, self.screen = options.show_pages, Screen()
        self.echo = len(prompts) == params.n == 1 and not (self.show and self.screen.live)
        self.tenants = [Tenant(_shortened(text), len(ids)) for text, ids in zip(options.prompts, prompts, strict=True)]
        self.fullest: list[str] = []
        self.start = self.first = self.last = time.perf_counter()
        self.count = 0
        self._numbers = [self.engine.add(ids, params, on_delta=self._hear) for ids in prompts]

    def finish(self) -> list[Completion]:
        """Run to the end."""
        done: dict[int, Completion] = {}
        while self.engine.num_unfinished:
            done.update((delta.request_id, delta.completion) for delta in self.engine.step() if delta.completion)
        self.screen.clear()
        for completion in done.values():
            if completion.error is not None:
                raise PagedRefError(completion.error)
        return [done[number] for number in self._numbers]

    def pages(self) -> list[str]:
        """Draw the pool when it was fullest, and now."""
        return [*self.fullest, "", *self._draw("at the end: ")]

    def lines(self, completions: Sequence[Completion]) -> list[str]:
        """Say how fast it went."""
        read = sum(len(completion.prompt_ids) for completion in completions)
        text = f"  speed             {self.first - self.start:.2f} s to the first token ({read:,} tokens read)"
        if self.count > 1 and self.last > self.first:
            text += f", then {(self.count - 1) / (self.last - self.first):.1f} tokens/s"
        metrics, lines = self.engine.metrics(), [text]
        if self.engine.config.speculation is not None:
            guessed = f"{metrics.accepted:,} of {metrics.drafted:,} guesses were right"
            lines.append(f"  speculation       {metrics.steps:,} steps for {self.count:,} tokens; {guessed}")
        if (seed := completions[0].seed) is not None:
            lines.append(f"  seed              {seed}")
        return lines

    def _hear(self, delta: Delta) -> None:
        """Take note of new tokens."""
        tenant = self.tenants[delta.request_id]
        tenant.tokens += len(delta.token_ids)
        if delta.sample == 0:
            tenant.text = (tenant.text + delta.text)[-400:]
        tenant.ended = delta.completion is not None
        if delta.token_ids:
            self.last = time.perf_counter()
            self.first = self.last if not self.count else self.first
            self.count += len(delta.token_ids)
        if self.echo:
            sys.stdout.write(delta.text)
            sys.stdout.flush()

    def _look(self) -> None:
        """Look at the memory within a step, and show it."""
        report = self.engine.cache.memory_report(max_model_len=self.engine.model.config.max_model_len)
        fuller = report.num_tokens >= self.report.num_tokens
        if fuller:
            self.report = report
        if self.show and (fuller or self.screen.is_due):
            lines = self._draw(f"step {self.engine.metrics().steps + 1}: ")
            self.fullest = lines if fuller else self.fullest
            if self.screen.is_due:
                self.screen.draw(lines)

    def _draw(self, heading: str) -> list[str]:
        from pagedref.cli._pages import render

        frames, screen = self.engine.frames(), self.screen
        return render(frames, self.tenants, width=screen.width, heading=heading, colour=screen.live)


def _largest(prompt: int, params: SamplingParams, page_size: int, max_model_len: int) -> int:
    """Return the frames that one prompt can need: its whole pages are shared by its samples."""
    limit = max(1, min(params.max_tokens, max_model_len - prompt + 1))
    pages = int(num_pages(prompt + limit - 1, page_size))
    shared = prompt // page_size if params.n > 1 else 0
    return shared + params.n * (pages - shared)


def _progress() -> Callable[[int, int], None] | None:
    """Return a display of what is loaded, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        sys.stderr.write("\r\x1b[K" if done == total else f"\rreading weights, {100 * done // total} %")
        sys.stderr.flush()

    return show


def memory_lines(report: MemoryReport, new: int, max_model_len: int) -> list[str]:
    """Describe the memory of a run, one fact a line.

    Parameters
    ----------
    report : MemoryReport
        At the moment when the run held most tokens.
    new : int
        New tokens in all.
    max_model_len : int
        Of the model.

    Returns
    -------
    list of str
    """
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
            f"  contiguous        {_megabytes(report.bytes_contiguous)}, reserved for {max_model_len:,} "
            f"tokens each: {report.bytes_contiguous / report.bytes_held:,.0f} times as much"
        )
    return lines


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"


def _shortened(prompt: str) -> str:
    """Return a prompt as one line of at most 60 characters."""
    line = " ".join(prompt.split())
    return line if len(line) <= 60 else line[:59] + "…"
