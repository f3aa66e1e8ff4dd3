"""The numbers of runs: a summary of each, as a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["Summary", "as_csv", "as_json", "as_table"]


@dataclass(frozen=True)
class Summary:
    """The numbers of one run.

    Attributes
    ----------
    policy : str
        How memory was given out.
    page_size, slots : int
        Geometry; the slots that are in use.
    eviction : str
        Where prefixes were shared; else empty.
    samples, beams : int
        Rows of a request.
    preemption : str
        What a victim loses.
    window, token_budget, max_running : int or None
        Sliding window, tokens and rows of a step at most; None for no limit.
    watermark : int
        Frames that an admission left free.
    requests, refused, completed : int
        That came; that could never fit; that ended.
    steps : int
        Steps that were counted.
    makespan : float
        Seconds until the last step ended.
    token_state_share, reserved_share, internal_share, external_share : float
        Parts of all slots, over all steps; they sum to 1.
    token_states, reserved, internal, external : int
        The same as sums over steps; they sum to slots times steps.
    mean_running, mean_rows : float
        Requests and rows in memory, over steps.
    most_running : int
        Requests at once.
    queue_mean, queue_p50, queue_p99 : float
        Seconds from arrival to the first admission.
    first_token_mean, first_token_p99, latency_mean, latency_p99 : float
        Seconds from arrival to the first and to the last output.
    requests_per_second, output_tokens_per_second : float
        Of completed requests, over the makespan.
    computed_tokens, recomputed_tokens : int
        Tokens that were computed, and those that were computed once more because of a preemption.
    page_hit_rate, token_hit_rate, request_mean_hit_rate : float or None
        Prompts: part of the pages and of the tokens that were found, and mean over requests of the part that was; None
        where nothing could be.
    evictions : int
        Cached pages that were given up.
    preemptions, swaps : int
        How often a request lost its memory, and how often of these to a slower tier.
    swapped_pages, copied_pages : int
        Pages that went to or came from a slower tier, and copies on write.
    shared_share : float
        Part of the pages that sharing saved, over steps.
    """

    policy: str = ""
    page_size: int = 0
    slots: int = 0
    eviction: str = ""
    samples: int = 1
    beams: int = 1
    preemption: str = ""
    window: int | None = None
    token_budget: int | None = None
    max_running: int | None = None
    watermark: int = 0
    requests: int = 0
    refused: int = 0
    completed: int = 0
    steps: int = 0
    makespan: float | None = None
    token_state_share: float | None = None
    reserved_share: float | None = None
    internal_share: float | None = None
    external_share: float | None = None
    token_states: int | None = None
    reserved: int | None = None
    internal: int | None = None
    external: int | None = None
    mean_running: float | None = None
    mean_rows: float | None = None
    most_running: int | None = None
    queue_mean: float | None = None
    queue_p50: float | None = None
    queue_p99: float | None = None
    first_token_mean: float | None = None
    first_token_p99: float | None = None
    latency_mean: float | None = None
    latency_p99: float | None = None
    requests_per_second: float | None = None
    output_tokens_per_second: float | None = None
    computed_tokens: int | None = None
    recomputed_tokens: int | None = None
    page_hit_rate: float | None = None
    token_hit_rate: float | None = None
    request_mean_hit_rate: float | None = None
    evictions: int | None = None
    preemptions: int | None = None
    swaps: int | None = None
    swapped_pages: int | None = None
    copied_pages: int | None = None
    shared_share: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


def as_json(summaries: Sequence[Summary]) -> str:
    """Return summaries as JSON: one flat object for one run, ``{"runs": [...]}`` for several.

    Parameters
    ----------
    summaries : sequence of Summary
        At least one.

    Returns
    -------
    str
    """
    runs = [summary.as_dict() for summary in summaries]
    return json.dumps(runs[0] if len(runs) == 1 else {"runs": runs}, indent=2)


def as_csv(summaries: Sequence[Summary]) -> str:
    """Return summaries as CSV, a line for each run; what does not apply is empty.

    Parameters
    ----------
    summaries : sequence of Summary
        Runs.

    Returns
    -------
    str
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Summary)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(summary.as_dict() for summary in summaries)
    return text.getvalue()


# What a run assumes is a column where runs differ in it.
ASSUMED = ("samples", "beams", "preemption", "window", "token_budget", "max_running", "watermark")
# Columns of the table: title, where the number is, how it is written; one that no run has is left out.
TABLE = (
    ("policy", "policy", "{}"), ("page", "page_size", "{:,}"), ("slots", "slots", "{:,}"),
    ("evicts", "eviction", "{}"), ("token states", "token_state_share", "{:.1%}"),
    ("reserved", "reserved_share", "{:.1%}"), ("internal", "internal_share", "{:.1%}"),
    ("external", "external_share", "{:.1%}"), ("running", "mean_running", "{:.1f}"),
    ("queued s", "queue_mean", "{:,.1f}"), ("latency s", "latency_mean", "{:,.1f}"),
    ("tokens/s", "output_tokens_per_second", "{:,.0f}"), ("page hits", "page_hit_rate", "{:.1%}"),
    ("token hits", "token_hit_rate", "{:.1%}"), ("per request", "request_mean_hit_rate", "{:.1%}"),
    ("evicted", "evictions", "{:,}"), ("preempted", "preemptions", "{:,}"), ("swapped", "swaps", "{:,}"),
    ("refused", "refused", "{:,}"), ("makespan s", "makespan", "{:,.0f}"),
)  # fmt: skip


def as_table(summaries: Sequence[Summary]) -> str:
    """Return summaries as a table for people, a line for each run.

    Parameters
    ----------
    summaries : sequence of Summary
        Runs.

    Returns
    -------
    str

    Examples
    --------
    >>> print(as_table([Summary(policy="paged", page_size=16, slots=64, mean_running=2.5)]))
    policy  page  slots  running
    paged     16     64      2.5
    """
    columns = []
    differ = [name for name in ASSUMED if len({getattr(summary, name) for summary in summaries}) > 1]
    table = [*TABLE[:4], *((name.replace("_", " "), name, "{}") for name in differ), *TABLE[4:]]
    for title, name, form in table:
        values = [getattr(summary, name) for summary in summaries]
        always = name in ("policy", "page_size", "slots")
        if always or any(value not in (None, "", 0) for value in values):
            cells = ["" if value in (None, "") else form.format(value) for value in values]
            width = max(map(len, [title, *cells]))
            left = name in ("policy", "eviction")
            columns.append([cell.ljust(width) if left else cell.rjust(width) for cell in (title, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))
