"""The command ``pagedref demo``: the tiny model on both backends."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_command"]


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
    demo = commands.add_parser("demo", help="the tiny model on both backends, and how far they agree")
    demo.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    """Ask the tiny model on both backends."""
    from pagedref.models.demo import run_demo

    return run_demo(print)
