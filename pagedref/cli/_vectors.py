"""The command ``pagedref vectors``: write test vectors for any language, and check a backend or a manager by them."""

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
    parser = commands.add_parser("vectors", help="test vectors of paged attention and of cache managers")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    write = actions.add_parser("write", help="write manifest, schema and arrays; the same bits each time")
    write.add_argument("folder", metavar="DIR")
    write.set_defaults(run=_write)
    check = actions.add_parser("check", help="run a backend, or a cache manager, on vectors")
    check.add_argument("folder", metavar="DIR")
    check.add_argument("--backend", default="numpy", metavar="NAME", help="a name, or module:attribute (numpy)")
    check.add_argument("--manager", metavar="FACTORY", help="module:attribute that makes managers: runs the logs")
    check.set_defaults(run=_check)


def _write(options: argparse.Namespace) -> int:
    """Write a folder."""
    from pagedref.conformance.vectors import write_vectors

    print(f"{write_vectors(options.folder)} vectors in {options.folder}")
    return 0


def _check(options: argparse.Namespace) -> int:
    """Judge and print what is not well."""
    from pagedref import backends
    from pagedref.conformance.vectors import check_logs, check_vectors

    if options.manager:
        results = check_logs(options.folder, backends.load(options.manager))
    else:
        results = check_vectors(options.folder, backends.load(options.backend))
    counts = dict.fromkeys(("passed", "failed", "not offered"), 0)
    for result in results:
        counts[result.status] += 1
        if result.status != "passed":
            print(f"{result.status.upper():12}{result.name}: {result.detail}\n{'':12}({result.fault})")
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return int(counts["failed"] > 0 or not counts["passed"])  # what judged nothing is no success
