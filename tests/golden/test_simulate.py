"""Hits and waste on public traces: equal integers with public cache managers and simulators.

Runs where ``PAGEDREF_GOLDEN`` names the folder of golden data. The traces are looked for in ``PAGEDREF_TRACES``, or in
``traces`` beside that folder; those that are not there are skipped.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagedref.simulate import UNIT, Request, Scenario, hit_rates, lru_curve, open_trace, page_uses, replay
from pagedref.simulate.hits import PageUses

FOLDER = os.environ.get("PAGEDREF_GOLDEN")
TRACES = Path(os.environ.get("PAGEDREF_TRACES") or Path(FOLDER or ".") / ".." / "traces")
pytestmark = pytest.mark.skipif(not FOLDER, reason="PAGEDREF_GOLDEN does not name the golden data")

MOONCAKE = "mooncake_conversation_trace.jsonl"
FILES = {
    "azure_conv": "azure_llm_2023_conv.csv",
    "sarathi_sharegpt": "sarathi_sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
}
NAMES = {
    "LRU": "lru", "FIFO": "fifo", "LFU": "lfu", "Clock": "clock", "S3FIFO": "s3fifo", "ARC": "arc", "optimal": "belady",
}  # fmt: skip
ORDERS: dict[str, Any] = {"P1": "access", "P2": "request"}


def golden(name: str) -> Any:
    return json.loads((Path(str(FOLDER)) / "memory" / "trace" / name).read_text())


def trace_file(name: str) -> Path:
    if not (TRACES / name).exists():
        pytest.skip(f"{name} is not in {TRACES.name}: PAGEDREF_TRACES names the folder of traces")
    return TRACES / name


@cache
def conversations(path: Path) -> list[Request]:
    return list(open_trace(path, page_size=512))


@cache
def uses(path: Path) -> PageUses:
    return page_uses(conversations(path), 512)


def stored(counts: Any) -> dict[str, Any]:
    """Return hits under the names and with the rounding of the golden file."""
    return {
        "object_hits": counts.object_hits,
        "object_hit_ratio": round(counts.object_hits / counts.pages, 6),
        "prefix_hit_blocks": counts.page_hits,
        "prefix_hit_tokens": counts.token_hits,
        "block_weighted": round(counts.page_hit_rate, 6),
        "token_weighted": round(counts.token_hit_rate, 6),
        "request_mean": round(counts.request_mean_hit_rate, 6),
    }


def differences(counts: Any, expected: dict[str, Any]) -> dict[str, Any]:
    got = stored(counts)
    return {name: (got[name], value) for name, value in expected.items() if got[name] != value}


@pytest.mark.parametrize("rule", ["P1", "P2"])
def test_lru_at_all_capacities_in_one_pass(rule: str) -> None:
    expected = golden("hits_mooncake_conversation.json")[rule]["LRU"]
    curve = lru_curve(uses(trace_file(MOONCAKE)), [int(size) for size in expected], order=ORDERS[rule])
    assert not [found for counts in curve if (found := differences(counts, expected[str(counts.capacity)]))]


CASES = [("P1", name) for name in ("LRU", "FIFO", "LFU", "Clock", "S3FIFO", "ARC")]
CASES += [("P2", name) for name in ("LRU", "FIFO", "optimal")]


@pytest.mark.parametrize(("rule", "name"), CASES)
def test_hits_at_every_capacity(rule: str, name: str) -> None:
    trace = conversations(trace_file(MOONCAKE))
    for size, expected in golden("hits_mooncake_conversation.json")[rule][name].items():
        counts = hit_rates(trace, 512, int(size), NAMES[name], order=ORDERS[rule])
        assert not differences(counts, expected), size


@pytest.mark.parametrize("name", ["lru", "fifo", "optimal"])
def test_hits_of_the_last_half(name: str) -> None:
    trace = conversations(trace_file(MOONCAKE))
    policy = {"optimal": "belady"}.get(name, name)
    for size, expected in golden("hits_mooncake_conversation.json")["P2_last_half"][name].items():
        if expected is not None:
            counts = hit_rates(trace, 512, int(size), policy, warmup=len(trace) // 2)
            assert [counts.token_hits, counts.tokens] == expected, size


def test_hits_after_so_many_requests() -> None:
    trace = conversations(trace_file(MOONCAKE))
    expected = golden("hits_mooncake_conversation.json")["P2_LRU_cumulative_prefix_hit_blocks"]
    for at, number in enumerate(expected["after_requests"]):
        curve = lru_curve(page_uses(trace[:number], 512), [int(size) for size in expected["by_capacity"]])
        assert [counts.page_hits for counts in curve] == [row[at] for row in expected["by_capacity"].values()], number


def test_belady_bounds_every_policy() -> None:
    trace = conversations(trace_file(MOONCAKE))
    file = golden("hits_mooncake_conversation.json")["P1"]
    for size in ("500", "2000", "10000"):
        bound = hit_rates(trace, 512, int(size), "belady", order="access").object_hits
        assert all(per_size[size]["object_hits"] <= bound for per_size in file.values()), size


def policy_of(name: str) -> str:
    kind, _, rest = name.partition("_")
    return f"paged-{rest}" if kind == "paged" else f"contiguous-{kind}-{rest}"


def scenario_of(config: dict[str, Any], name: str) -> Scenario:
    return Scenario(
        slots=config["slots"], policy=policy_of(name), max_len=config["max_len"], service=UNIT, until="saturated"
    )


@pytest.mark.parametrize("example", golden("waste_steps_small.json") if FOLDER else [])
def test_waste_step_by_step(example: dict[str, Any]) -> None:
    trace = [Request(0, prompt, output) for prompt, output in example["requests"]]
    for name, expected in example["results"].items():
        rows: list[list[int]] = []
        summary = replay(
            trace, scenario_of(example, name), by_step=lambda running, waste, rows=rows: rows.append([running, *waste])
        ).summary
        assert rows == expected["per_step"], name
        assert (summary.steps, summary.preemptions) == (expected["steps"], expected["preemptions"]), name


WASTE = golden("waste.json") if FOLDER else []


@pytest.mark.parametrize(
    ("config", "name"),
    [(config, name) for config in WASTE for name in config["results"]],
    ids=[f"{config['dataset']}-{name}" for config in WASTE for name in config["results"]],
)
def test_waste(config: dict[str, Any], name: str) -> None:
    longest = config["max_len"] if config["skipped_longer_than_max"] else None
    file = open_trace(trace_file(FILES[config["dataset"]]), max_len=longest, limit=config["requests"])
    trace = [request._replace(arrival=0) for request in file]
    assert sum(request.prompt_len for request in trace) == config["sum_prompt"]
    assert sum(request.output_len for request in trace) == config["sum_output"]
    expected = config["results"][name]
    summary = replay(trace, scenario_of(config, name)).summary
    kinds = ("token_states", "reserved", "internal", "external")
    got = {kind: getattr(summary, kind) for kind in (*kinds, "steps", "preemptions")}
    got |= {f"pct_{kind}": round(100 * got[kind] / (summary.slots * summary.steps), 4) for kind in kinds}
    assert got | {"mean_running": round(summary.mean_running, 4)} == expected
