"""The command ``pagedref size``: what the cache of a model costs, and how many users fit."""

from __future__ import annotations

import argparse
import json
import sys
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
    parser = commands.add_parser("size", help="bytes of a model's cache, and how many users fit")
    add = parser.add_argument
    add("model", metavar="MODEL", help="a name, a config.json or its folder, or layers=40,heads=40,head_dim=128")
    add("--context", type=int, metavar="N", help="tokens of each user (the longest that the model was made for)")
    add("--users", type=int, default=1, metavar="M", help="users at once (1)")
    add("--pool", metavar="SIZE", help="memory for keys and values, such as 40GiB: how many users fit")
    add("--kv-format", default="float16", metavar="NAME", help="how keys and values are stored (float16)")
    add("--page-size", type=int, default=16, metavar="N", help="positions in a page (16)")
    add("--json", action="store_true", help="the numbers as JSON")
    parser.set_defaults(run=_size)


def _size(options: argparse.Namespace) -> int:
    """Compute and print."""
    from pagedref.errors import ContractError
    from pagedref.memory._numbers import whole_number
    from pagedref.simulate.size import cache_cost, parse_bytes

    cost = cache_cost(options.model, options.kv_format)
    context = options.context or cost.max_len
    if context is None:
        raise ContractError("size: --context is missing, got none, need tokens (the model names no longest context)")
    users = whole_number("size", "--users", options.users, low=1)
    page_size = whole_number("size", "--page-size", options.page_size, low=1)
    one = cost.bytes_for(context, page_size)
    numbers: dict[str, Any] = {
        "model": cost.name, "kv_format": cost.kv_format, "bytes_per_token": cost.bytes_per_token, "context": context,
        "page_size": page_size, "bytes_per_user": one, "users": users, "pool_bytes": one * users,
    }  # fmt: skip
    if options.pool is not None:
        pool = parse_bytes(options.pool)
        numbers |= {"pool_bytes": pool, "users_that_fit": pool // one, "fits": pool // one >= users}
        numbers["longest_context"] = _longest(cost, pool // users, page_size)
    if options.json:
        print(json.dumps(numbers, indent=2))
        return 0
    print(f"model             {cost.name}, stored as {cost.kv_format}")
    for layers, size in cost.layers:
        kind = "latent, " if layers.latent else ""
        seen = "all tokens" if layers.window is None else f"the last {layers.window:,}"
        print(f"  {layers.number:4,} layers     {size:,} bytes a token and layer, {kind}{seen}")
    print(f"bytes per token   {cost.bytes_per_token:,}")
    print(f"a user            {context:,} tokens, {human(one)} in pages of {page_size}")
    if options.pool is None:
        print(f"{users:,} users".ljust(18) + f"{human(one * users)}")
    else:
        print(f"pool              {human(numbers['pool_bytes'])}: {numbers['users_that_fit']:,} users fit")
        if not numbers["fits"]:
            print(f"{users:,} users".ljust(18) + f"do not; each could have {numbers['longest_context']:,} tokens")
    if cost.max_len is not None and context > cost.max_len:
        print(f"note: the model was made for {cost.max_len:,} tokens", file=sys.stderr)
    return 0


def _longest(cost: Any, share: int, page_size: int) -> int:
    """Return the longest context whose pages fit into a share of the pool."""
    low, high = 0, 1
    while high < 2**40 and cost.bytes_for(high, page_size) <= share:
        low, high = high, 2 * high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if cost.bytes_for(middle, page_size) <= share else (low, middle)
    return low


def human(count: int) -> str:
    """Return bytes with a unit of 1,024."""
    size, unit = float(count), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.2f} {unit}"
