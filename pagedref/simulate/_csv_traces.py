"""Traces in CSV files: Azure, BurstGPT, and plain lengths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal, InvalidOperation

from pagedref.errors import ContractError
from pagedref.simulate._lines import check_length, complain, lines_of
from pagedref.simulate.trace import Request

__all__ = ["format_of", "read"]

NANO = 10**9
MAX_TIME = 2**62  # ns: 146 years
# Of each format, the columns: time (may be missing in lengths), prompt, output.
COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "azure": (("timestamp",), ("contexttokens",), ("generatedtokens",)),
    "burstgpt": (("timestamp",), ("request tokens",), ("response tokens",)),
    "lengths": (("arrival", "arrived_at"), ("prompt_len", "num_prefill_tokens"), ("output_len", "num_decode_tokens")),
}
WHOLE = re.compile(r"[+-]?\d{1,30}")
STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


def cells_of(line: str) -> list[str]:
    """Return the cells of a line; these files quote nothing, so a comma is a comma."""
    return [cell.strip().strip('"') for cell in line.split(",")]


def find(header: list[str], names: tuple[str, ...]) -> int:
    """Return the place of a column, -1 if there is none."""
    return next((header.index(name) for name in names if name in header), -1)


def format_of(path: str, line: str) -> str:
    """Return the format whose columns a first line names.

    Parameters
    ----------
    path : str
        The file, for the error text.
    line : str
        Its first line.

    Returns
    -------
    str
    """
    header = [cell.lower() for cell in cells_of(line)]
    for format, (_, prompt, output) in COLUMNS.items():
        if find(header, prompt) >= 0 and find(header, output) >= 0:
            return format
    complain(path, 1, "header", "names no known columns", line, "those of one of " + ", ".join(COLUMNS))


def read(path: str, format: str) -> Iterator[Request]:
    """Yield the requests of a CSV file.

    Parameters
    ----------
    path : str
        The file.
    format : {"azure", "burstgpt", "lengths"}
        Which columns to look for.

    Yields
    ------
    Request
        Arrivals as they stand there, in ns. Of BurstGPT, requests without a response (failures) are left out.
    """
    lines = lines_of(path)
    number, line = next(lines, (0, ""))
    if not number:
        raise ContractError(f"open_trace: {path} is empty, got no line, need at least one request")
    header = [cell.lower() for cell in cells_of(line)]
    times, prompts, outputs = COLUMNS[format]
    at_prompt, at_output, at_time = find(header, prompts), find(header, outputs), find(header, times)
    for at, names in ((at_prompt, prompts), (at_output, outputs), (at_time, times)):
        if at < 0 and (format != "lengths" or names is not times):
            complain(path, number, "header", "lacks a column", line, " or ".join(names))
    parse: Callable[[str, int, str], int] = _stamp if format == "azure" else _seconds
    last = arrival = 0
    for number, line in lines:
        cells = cells_of(line)
        if len(cells) != len(header):
            complain(path, number, "line", "has the wrong number of columns", line, f"{len(header)} (is it cut off?)")
        prompt = _tokens(path, number, prompts[0], cells[at_prompt])
        output = _tokens(path, number, outputs[0], cells[at_output], failed=format == "burstgpt")
        if at_time >= 0:
            arrival = parse(path, number, cells[at_time])
            if arrival < last:
                complain(path, number, times[0], "is out of order", cells[at_time], "arrivals in order")
            last = arrival
        if output:
            yield Request(arrival, prompt, output)


def _tokens(path: str, number: int, field: str, cell: str, *, failed: bool = False) -> int:
    """Return a number of tokens; 0 is allowed where it means a failed request."""
    if not WHOLE.fullmatch(cell):
        complain(path, number, field, "is no integer", cell, "a number of tokens")
    value = int(cell)
    return 0 if failed and value == 0 else check_length(path, number, field, value)


def _stamp(path: str, number: int, cell: str) -> int:
    """Return a date with time as ns."""
    found = STAMP.fullmatch(cell)
    try:
        if found:
            zone = (found[3] or "+00:00").replace("Z", "+00:00")
            moment = datetime.fromisoformat(found[1].replace(" ", "T") + zone)
            return round(moment.timestamp()) * NANO + int((found[2] or "0").ljust(9, "0"))
    except (ValueError, OverflowError):
        pass
    complain(path, number, "timestamp", "is no time", cell, "YYYY-MM-DD hh:mm:ss.fffffff")


def _seconds(path: str, number: int, cell: str) -> int:
    """Return seconds as ns."""
    try:
        exact = Decimal(cell) * NANO
        if exact.is_finite() and 0 <= exact < MAX_TIME:
            return round(exact)
    except InvalidOperation:
        pass
    complain(path, number, "arrival", "is no time", cell, "seconds, >= 0 and finite")
