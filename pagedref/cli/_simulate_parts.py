"""From the options of ``pagedref simulate`` to traces and scenarios."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from pagedref.errors import ContractError
from pagedref.scheduling import Limits
from pagedref.simulate import (
    UNIT,
    HitCounts,
    Request,
    Scenario,
    Service,
    Summary,
    Synthetic,
    Trace,
    cache_cost,
    hit_rates,
    lru_curve,
    open_trace,
    page_uses,
)
from pagedref.simulate.size import parse_bytes

__all__ = ["hit_summaries", "scenarios_of", "trace_of"]

SWEPT = (
    *("beams", "eviction", "max_running", "page_size", "pool", "preemption", "samples", "token_budget", "watermark"),
    "window",
)


@dataclass(frozen=True)
class AtOnce:
    """A trace whose requests all come at time 0."""

    trace: Any

    def __iter__(self) -> Iterator[Request]:
        return (request._replace(arrival=0) for request in self.trace)


@dataclass(frozen=True)
class Counter:
    """Counts the tokens of a text; a name, so that it can be sent to another process."""

    tokenizer: str

    def __call__(self, text: str) -> int:
        return len(_tokenizer(self.tokenizer).encode(text))


_TOKENIZERS: dict[str, Any] = {}


def _tokenizer(name: str) -> Any:
    """Return a tokenizer, loaded once."""
    if name not in _TOKENIZERS:
        from pagedref.models.model import load_model

        _TOKENIZERS[name] = load_model(name).tokenizer
    return _TOKENIZERS[name]


def fail(option: str, what: str, got: Any, need: str) -> ContractError:
    """Return the error of an option."""
    return ContractError(f"simulate: {option} {what}, got {got!r:.60}, need {need}")


def numbers(option: str, text: str, low: int = 1) -> list[int]:
    """Return a list of whole numbers."""
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= low for part in parts):
        raise fail(option, "is no list of numbers", text, f"whole numbers >= {low}, with commas between them")
    return [int(part) for part in parts]


def settings(option: str, text: str, types: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Return ``a=1,b=2`` as a dictionary of known names and types."""
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in types:
            raise fail(option, "names nothing known", name, ", ".join(types))
        try:
            found[name] = types[name](value)
        except ValueError as error:
            raise fail(option, f"has no number for {name}", value, "a number") from error
    return found


def trace_of(options: argparse.Namespace) -> Any:
    """Return the trace that the options name.

    Parameters
    ----------
    options : Namespace
        Of the command.

    Returns
    -------
    Trace, Synthetic or AtOnce
    """
    kind, _, rest = options.trace.partition(":")
    if kind == "synthetic" and not Path(options.trace).exists():
        types: dict[str, Callable[[str], Any]] = {
            field.name: int if field.type == "int" else float for field in fields(Synthetic)
        }
        given = settings("TRACE", rest, types)
        given.setdefault("requests", 1000)
        if options.requests is not None:
            given["requests"] = options.requests
        if options.max_len is not None:
            given.setdefault("max_len", options.max_len)
        trace: Any = Synthetic(**given)
    else:
        page_size = options.page_size if options.cache_pages is not None else options.recorded_page_size
        counter = None if options.tokenizer is None else Counter(options.tokenizer)
        try:
            trace = open_trace(
                options.trace, format=options.format, page_size=page_size, count_tokens=counter,
                max_len=options.max_len, limit=options.requests,
            )  # fmt: skip
        except ContractError as error:
            option = {"page_size is missing": "--recorded-page-size", "count_tokens is missing": "--tokenizer"}
            for what, name in option.items():
                if what in str(error):
                    raise ContractError(f"{error}: {name}") from error
            raise
    return AtOnce(trace) if options.at_once else trace


def hit_summaries(trace: Any, options: argparse.Namespace) -> list[Summary]:
    """Replay prefix hits, LRU at all capacities in one pass.

    Parameters
    ----------
    trace : iterable of Request
        With names of pages.
    options : Namespace
        Of the command.

    Returns
    -------
    list of Summary
    """
    capacities = numbers("--cache-pages", options.cache_pages)
    page_size, order, warmup = options.page_size, options.order, options.warmup
    found: list[Summary] = []
    for policy in options.eviction.split(","):
        if policy == "lru":
            counts = lru_curve(page_uses(trace, page_size), capacities, order=order, warmup=warmup)
        else:
            counts = [hit_rates(trace, page_size, size, policy, order=order, warmup=warmup) for size in capacities]
        found += [_summary(one, policy, page_size) for one in counts]
    return found


def _summary(counts: HitCounts, policy: str, page_size: int) -> Summary:
    """Return hits as the numbers of a run."""
    return Summary(
        policy="prefix-cache", page_size=page_size, slots=counts.capacity * page_size, eviction=policy,
        requests=counts.requests, completed=counts.requests, page_hit_rate=counts.page_hit_rate,
        token_hit_rate=counts.token_hit_rate, request_mean_hit_rate=counts.request_mean_hit_rate,
    )  # fmt: skip


def scenarios_of(trace: Any, options: argparse.Namespace) -> list[Scenario]:
    """Return a scenario for each policy and combination of swept values.

    Parameters
    ----------
    trace : iterable of Request
        Read once more if the longest request is asked for.
    options : Namespace
        Of the command.

    Returns
    -------
    list of Scenario
    """
    swept: dict[str, list[str]] = {}
    for entry in options.sweep:
        name, _, values = entry.partition("=")
        name = name.strip().replace("-", "_")
        if name not in SWEPT or not values or name in swept:
            raise fail("--sweep", "names no field", entry, "FIELD=A,B,... with one of " + ", ".join(SWEPT))
        swept[name] = values.split(",")
    max_len = options.max_len
    if max_len is None and "contiguous" in options.policy:
        max_len = max(request.prompt_len + request.output_len for request in trace)
    found = []
    for policy in options.policy.split(","):
        for chosen in product(*swept.values()):
            scenario = _scenario(trace, options, policy.strip(), max_len, dict(zip(swept, chosen, strict=True)))
            if scenario not in found:  # a policy that has no pages is not varied with their size
                found.append(scenario)
    return found


def _scenario(
    trace: Any, options: argparse.Namespace, policy: str, max_len: int | None, values: dict[str, str]
) -> Scenario:
    """Return one scenario; values are texts as they stand in ``--sweep``."""
    given: dict[str, Any] = {name: getattr(options, name) for name in SWEPT}
    for name, text in values.items():
        given[name] = text if name in ("eviction", "pool", "preemption") else numbers("--sweep", text, 0)[0]
    cost = cache_cost(options.model, options.kv_format)
    sizes = {"pool": given["pool"], "host": options.host, "disk": options.disk}
    slots = {name: 0 if size == "0" else parse_bytes(size) // cost.bytes_per_token for name, size in sizes.items()}
    if not slots["pool"]:
        raise fail("--pool", "is smaller than a token", sizes["pool"], f"at least {cost.bytes_per_token} bytes")
    budget = given["token_budget"] or None
    paged = policy.startswith("paged")
    inner = trace.trace if isinstance(trace, AtOnce) else trace
    names_per = inner.page_size if isinstance(inner, Trace) or getattr(inner, "prefixes", False) else None
    scenario = Scenario(
        slots=slots["pool"], policy=policy, page_size=given["page_size"], max_len=max_len,
        eviction=given["eviction"], sharing=options.sharing and paged,
        names_per=names_per if options.sharing and paged and given["samples"] * given["beams"] == 1 else None,
        samples=given["samples"], beams=given["beams"] if paged else 1,
        window=given["window"] or None if paged else None, watermark=given["watermark"] if paged else 0,
        limits=Limits(budget, given["max_running"], given["preemption"]),
        host_slots=slots["host"], disk_slots=slots["disk"], bytes_per_token=cost.bytes_per_token,
        service=_service(options.service), until=options.until,
    )  # fmt: skip
    return scenario if paged else replace(scenario, page_size=options.page_size)


def _service(text: str) -> Service:
    """Return the service model."""
    if text == "unit":
        return UNIT
    whole, real = ("step", "token", "cached"), ("host_bandwidth", "disk_bandwidth")
    types: dict[str, Callable[[str], Any]] = {**dict.fromkeys(whole, int), **dict.fromkeys(real, float)}
    return Service(**settings("--service", text, types))
