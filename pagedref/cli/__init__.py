"""The command ``pagedref``: ``generate`` answers and shows what the memory did, ``demo`` compares the backends,
``simulate`` replays traces under memory policies, ``size`` says what a model's cache costs,
``conform`` judges a kernel.

Exit status: 0, 1 for a verdict that something is wrong, 2 for wrong input (one line on standard error, no traceback),
130 when interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from pagedref.cli import _bench, _conform, _demo, _generate, _simulate, _size, _vectors
from pagedref.cli._generate import memory_lines
from pagedref.errors import PagedRefError

__all__ = ["main", "memory_lines"]

# One module per command; each enters itself.
COMMANDS = (
    _generate.add_command,
    _bench.add_command,
    _conform.add_command,
    _demo.add_command,
    _simulate.add_command,
    _size.add_command,
    _vectors.add_command,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Returns
    -------
    int
        Exit status.
    """
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it was closed: nobody listens
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a letter still gets the rest
    try:
        try:
            options = _parser().parse_args(arguments)
            status: int = options.run(options)
        finally:
            sys.stdout.flush()  # what cannot be written shows here, also on the way out
    except (PagedRefError, OSError) as error:
        _let_go(sys.stdout)
        if isinstance(error, BrokenPipeError):  # whoever read has gone; nothing is left to say
            return 0
        return _complain(f"pagedref: error: {' '.join(str(error).split())}", 2)
    except MemoryError as error:
        what = f"got {error or 'no more'}, need a smaller pool"
        return _complain(f"pagedref: error: memory is exhausted, {what}", 2)
    except KeyboardInterrupt:
        return _complain("", 130)
    finally:
        _let_go(sys.stderr)
    return status


def _complain(line: str, status: int) -> int:
    """Write a line to standard error, if that can be written, and return the exit status."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)
    return status


def _let_go(stream: Any) -> None:
    """Write out what a stream holds; if that fails, drop it, so that leaving does not fail again (status 120)."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Parser(argparse.ArgumentParser):
    """Say what is wrong in one line, like everything else here."""

    def error(self, message: str) -> NoReturn:
        hint = "" if "COMMAND" not in message else "; pagedref --help lists the commands"
        self.exit(2, f"pagedref: error: {message}{hint}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # the original hides that it could not be written


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(prog="pagedref", description="Attention over paged memory, to be read and run.")
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_command in COMMANDS:
        add_command(commands)
    return parser


class _Version(argparse.Action):
    """Print the versions and leave; read only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and leave")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import pagedref

        print(f"pagedref {pagedref.__version__} (specification {pagedref.SPEC_VERSION})")
        parser.exit()
