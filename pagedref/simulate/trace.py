"""Request traces: when requests come, how long they are, and which prefixes they share.

`open_trace` finds the format of a file and returns a `Trace`, which can be read any number of times, one request at a
time: whoever replays it needs memory for what runs, not for the file. Every line is checked, and an error names file,
line, field and value.

=============  =============================================================================  =======================
format         fields                                                                         prefixes
=============  =============================================================================  =======================
``azure``      CSV: TIMESTAMP, ContextTokens, GeneratedTokens                                 none
``burstgpt``   CSV: Timestamp (s), Model, Request tokens, Response tokens, ...                none
``lengths``    CSV: prompt_len, output_len, and arrival (s) if there is one; the names        none
               num_prefill_tokens, num_decode_tokens and arrived_at are understood, too
``mooncake``   JSONL: timestamp (ms), input_length, output_length, hash_ids                   one id for each page of
                                                                                              the recording, 64 bits
``sharegpt``   JSON: a list of {"conversations": [{"from": ..., "value": text}, ...]}         none
=============  =============================================================================  =======================

Times are integers, in nanoseconds since the first request, so that sums of them are exact in any order. Where a file
has no times, all requests are there at time 0.

References
----------
Azure: P. Patel et al., *Splitwise*, ISCA 2024. Mooncake: R. Qin et al., FAST 2025. BurstGPT: Y. Wang et al., 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pagedref.errors import ContractError
from pagedref.memory._numbers import whole_number

__all__ = ["FORMATS", "Request", "Trace", "open_trace"]

MAX_LEN = 2**31 - 1
"""Tokens in a prompt or an output at most; more is taken for a damaged number."""

FORMATS = ("azure", "burstgpt", "lengths", "mooncake", "sharegpt")
"""What `open_trace` reads."""


class Request(NamedTuple):
    """One request of a trace.

    Attributes
    ----------
    arrival : int
        Nanoseconds since the first request of the trace.
    prompt_len, output_len : int
        Tokens, >= 1.
    pages : tuple of int
        Names of the pages of the prompt, each with all that is before it, in [0, 2**64); empty where unknown. The last
        page may be short.
    """

    arrival: int
    prompt_len: int
    output_len: int
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """A file of requests; iterating reads it from its beginning.

    Parameters
    ----------
    path : str
        The file.
    format : str
        One of `FORMATS`.
    page_size : int, optional
        Tokens for which one id of the recording stands; needed for ``mooncake``, refused elsewhere.
    count_tokens : callable, optional
        Text to number of tokens; needed for ``sharegpt``, refused elsewhere.
    max_len : int, optional
        Requests with more prompt and output tokens together are left out.
    limit : int, optional
        How many requests are kept at most.

    Examples
    --------
    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     name = os.path.join(folder, "t.jsonl")
    ...     with open(name, "w") as file:
    ...         _ = file.write('{"timestamp": 7, "input_length": 6, "output_length": 2, "hash_ids": [3, 9]}')
    ...     list(open_trace(name, page_size=4))
    [Request(arrival=0, prompt_len=6, output_len=2, pages=(3, 9))]
    """

    path: str
    format: str
    page_size: int | None = None
    count_tokens: Callable[[str], int] | None = None
    max_len: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            text = f"got {self.format!r}, need one of {', '.join(FORMATS)}"
            raise ContractError(f"open_trace: format is unknown, {text}")
        for name, wanted in (("page_size", "mooncake"), ("count_tokens", "sharegpt")):
            given = getattr(self, name) is not None
            if given != (self.format == wanted):
                what, got = ("is not used here", "one") if given else ("is missing", "none")
                need = f"it for the format {wanted} only"
                raise ContractError(f"open_trace: {name} {what}, got {got} for the format {self.format}, need {need}")
        for name in ("page_size", "max_len", "limit"):
            if getattr(self, name) is not None:
                whole_number("open_trace", name, getattr(self, name), low=1, high=MAX_LEN)

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.path).name

    def __iter__(self) -> Iterator[Request]:
        """Read the requests that are kept, checked, in order."""
        first = None
        kept = 0
        for request in self._read():
            if self.max_len is not None and request.prompt_len + request.output_len > self.max_len:
                continue
            if first is None:
                first = request.arrival
            yield request._replace(arrival=request.arrival - first) if first else request
            kept += 1
            if kept == self.limit:
                return
        if first is None:
            kind = "" if self.max_len is None else f" of at most {self.max_len} tokens"
            raise ContractError(f"open_trace: {self.name} is empty, got no request{kind}, need at least one")

    def _read(self) -> Iterator[Request]:
        from pagedref.simulate import _csv_traces, _json_traces

        if self.format == "mooncake":
            assert self.page_size is not None
            return _json_traces.mooncake(self.path, self.page_size)
        if self.format == "sharegpt":
            assert self.count_tokens is not None
            return _json_traces.sharegpt(self.path, self.count_tokens)
        return _csv_traces.read(self.path, self.format)


def open_trace(
    path: Any,
    *,
    format: str | None = None,
    page_size: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
    max_len: int | None = None,
    limit: int | None = None,
) -> Trace:
    """Return a trace; of the file only the first line is looked at.

    Parameters
    ----------
    path : str or path
        The file.
    format : str, optional
        One of `FORMATS`; by default found from the first line.
    page_size, count_tokens, max_len, limit
        See `Trace`. A `page_size` or a `count_tokens` that the format found does not use is left out.

    Returns
    -------
    Trace

    Raises
    ------
    ContractError
        The format is not known, or lacks what it needs. What is wrong inside is raised while the trace is read.
    OSError
        The file cannot be opened.
    """
    if format is None:
        format = _format_of(str(path))
        page_size = page_size if format == "mooncake" else None
        count_tokens = count_tokens if format == "sharegpt" else None
    return Trace(str(path), format, page_size, count_tokens, max_len, limit)


def _format_of(path: str) -> str:
    """Find the format of a file from its first line."""
    from pagedref.simulate import _csv_traces
    from pagedref.simulate._lines import lines_of

    number, line = next(iter(lines_of(path)), (0, ""))
    if not number:
        raise ContractError(f"open_trace: {Path(path).name} is empty, got no line, need at least one request")
    if line.lstrip().startswith("{"):
        return "mooncake"
    if line.lstrip().startswith("["):
        return "sharegpt"
    return _csv_traces.format_of(path, line)
