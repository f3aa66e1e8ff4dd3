"""The command ``pagedref conform``: judge a kernel or a cache manager, and say what kind of mistake it makes."""

from __future__ import annotations

import argparse
import faulthandler
import sys
from pathlib import Path
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
    parser = commands.add_parser("conform", help="judge a kernel or a cache manager, and name its mistakes")
    add = parser.add_argument
    add("backend", metavar="MODULE:NAME", help="an object with operations of the contract, or numpy, or cuda")
    add("--manager", action="store_true", help="it is a factory of cache managers, not a backend")
    add("--ops", metavar="NAMES", help="only these operations, with commas")
    add("--dtype", metavar="NAMES", help="only caches of these types, with commas")
    add("--profile", default="quick", metavar="NAME", help="quick, full or gpu (quick)")
    add("--json", metavar="FILE", help="the verdict for machines; - is standard output")
    add("--markdown", metavar="FILE", help="the verdict as Markdown; - is standard output")
    add("--html", metavar="FILE", help="the verdict as a page of HTML")
    add("--verbose", action="store_true", help="say what is asked, on standard error")
    parser.set_defaults(run=_conform)


def _conform(options: argparse.Namespace) -> int:
    """Judge, print and write."""
    from pagedref import backends

    _forms(options)
    subject = backends.load(options.backend)
    if not faulthandler.is_enabled() and sys.stderr is sys.__stderr__:
        faulthandler.enable()  # a kernel that writes outside its arrays ends the process: say where
    if options.manager:
        from pagedref.conformance.manager_model import run_manager

        verdict: Any = run_manager(subject, options.profile)
    else:
        verdict = _judge(options, subject)
    shown = True
    for form in ("json", "markdown", "html"):
        target = getattr(options, form)
        if target == "-":
            print(getattr(verdict, form)())
            shown = False
        elif target is not None:
            Path(target).write_text(getattr(verdict, form)(), encoding="utf-8")
    if shown:
        print(verdict.text())
    return 0 if verdict.ok else 1


def _forms(options: argparse.Namespace) -> None:
    """Refuse two forms on standard output."""
    from pagedref.errors import ContractError

    asked = [form for form in ("json", "markdown", "html") if getattr(options, form) == "-"]
    if len(asked) > 1:
        raise ContractError(f"conform: --{asked[1]} has standard output, got - twice, need a file for one of them")


def _judge(options: argparse.Namespace, backend: Any) -> Any:
    """Return the verdict on a backend."""
    import pagedref
    from pagedref.conformance.runner import run
    from pagedref.contract import OPERATIONS
    from pagedref.errors import ContractError

    if not any(callable(getattr(backend, name, None)) for name in OPERATIONS):
        kind = "a function" if callable(backend) else f"of type {type(backend).__name__}"
        raise ContractError(
            f"conform: {options.backend} offers no operation, got an object {kind}, need an attribute "
            f"{', '.join(OPERATIONS)} (one of them is enough)"
        )

    def tell(what: str) -> None:
        if options.verbose:
            print(what, file=sys.stderr, flush=True)

    names = {name: None if text is None else text.split(",") for name, text in
             (("operations", options.ops), ("dtypes", options.dtype))}  # fmt: skip
    verdict = run(backend, options.backend, profile=options.profile, progress=tell, **names)
    verdict.versions = {"pagedref": pagedref.__version__, "specification": pagedref.SPEC_VERSION}
    return verdict
