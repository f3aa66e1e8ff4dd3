"""Reports: the same numbers as a table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json

from pagedref.simulate import Request, Scenario, Summary, as_csv, as_json, as_table, replay

KEYS = (
    *("page_hit_rate", "token_hit_rate", "request_mean_hit_rate", "token_state_share", "reserved_share"),
    *("internal_share", "external_share", "mean_running", "makespan"),
)


def runs() -> list[Summary]:
    trace = [Request(0, 20, 9)] * 5
    return [
        replay(trace, Scenario(slots=64, policy=policy, max_len=32)).summary for policy in ("paged", "contiguous-max")
    ]


def test_json_is_flat_for_one_and_a_list_for_several() -> None:
    one, two = runs()
    alone = json.loads(as_json([one]))
    assert all(key in alone for key in KEYS) and not any(isinstance(value, dict | list) for value in alone.values())
    both = json.loads(as_json([one, two]))
    assert list(both) == ["runs"] and both["runs"] == [one.as_dict(), two.as_dict()]


def test_csv_has_a_line_for_each() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(runs()))))
    assert [row["policy"] for row in rows] == ["paged", "contiguous-max-firstfit"]
    assert float(rows[0]["token_state_share"]) == runs()[0].token_state_share
    assert rows[0]["page_hit_rate"] == ""


def test_what_runs_differ_in_is_a_column() -> None:
    alike = [Summary(policy="paged", watermark=3), Summary(policy="paged", watermark=3)]
    assert "watermark" not in as_table(alike)
    lines = as_table([*alike, Summary(policy="paged", watermark=4, preemption="swap")]).splitlines()
    assert "watermark" in lines[0] and "preemption" in lines[0] and lines[3].split()[-2:] == ["swap", "4"]


def test_the_table_lines_up() -> None:
    lines = as_table(runs()).splitlines()
    assert len(lines) == 3 and "page hits" not in lines[0] and "token states" in lines[0]
    assert lines[1].index("64") == lines[2].index("64")
