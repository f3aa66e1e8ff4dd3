"""``pagedref simulate`` and ``pagedref size``: what they print, write and refuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pagedref.cli import main
from pagedref.simulate import hit_rates, open_trace

SHARES = ("token_state_share", "reserved_share", "internal_share", "external_share")


@pytest.fixture
def chats(tmp_path: Path) -> str:
    """Write a trace with names: turns of four conversations."""
    lines = []
    for turn in range(1, 6):
        for chat in range(4):
            ids = [chat * 100 + page for page in range(turn)]
            lines.append({"timestamp": 10 * turn, "input_length": 16 * turn - 3, "output_length": 4, "hash_ids": ids})
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_len,output_len\n" + "\n".join(f"{20 + n % 7},{5 + n % 11}" for n in range(40)))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    try:
        code = main(["simulate", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    out, err = capsys.readouterr()
    assert code == status, err
    return out if status == 0 else err


def test_hits_as_json(capsys: pytest.CaptureFixture[str], chats: str) -> None:
    one = json.loads(run(capsys, chats, "--cache-pages", "7", "--page-size", "16", "--eviction", "lru", "--json", "-"))
    counts = hit_rates(open_trace(chats, page_size=16), 16, 7)
    assert (one["page_hit_rate"], one["token_hit_rate"]) == (counts.page_hit_rate, counts.token_hit_rate)
    assert round(one["request_mean_hit_rate"], 12) == round(counts.request_mean_hit_rate, 12)
    both = json.loads(
        run(capsys, chats, "--cache-pages", "7,9", "--page-size", "16", "--eviction", "fifo", "--json", "-")
    )
    assert [entry["slots"] for entry in both["runs"]] == [7 * 16, 9 * 16]


def test_policies_side_by_side(capsys: pytest.CaptureFixture[str], lengths: str, tmp_path: Path) -> None:
    options = ("--model", "1", "--pool", "256", "--policy", "paged,contiguous-max", "--jobs", "1")
    found = json.loads(run(capsys, lengths, *options, "--json", "-"))["runs"]
    assert [entry["policy"] for entry in found] == ["paged", "contiguous-max-firstfit"]
    assert all(round(sum(entry[share] for share in SHARES), 9) == 1 for entry in found)
    assert all(entry["completed"] == 40 and entry["makespan"] > 0 and entry["mean_running"] > 0 for entry in found)
    table = run(capsys, lengths, *options, "--csv", str(tmp_path / "runs.csv"))
    assert len(table.splitlines()) == 3 and "token states" in table
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [float(row["mean_running"]) for row in rows] == [entry["mean_running"] for entry in found]
    assert json.loads(run(capsys, lengths, *options, "--jobs", "2", "--json", "-"))["runs"] == found, "in processes"


def test_sweeps(capsys: pytest.CaptureFixture[str], lengths: str) -> None:
    options = ("--model", "1", "--sweep", "page_size=1,8", "--sweep", "pool=256,512", "--jobs", "1", "--json", "-")
    found = json.loads(run(capsys, lengths, "--policy", "paged,contiguous-oracle", *options))["runs"]
    assert [(entry["page_size"], entry["slots"]) for entry in found[:4]] == [(1, 256), (1, 512), (8, 256), (8, 512)]
    assert [entry["slots"] for entry in found[4:]] == [256, 512], "contiguous memory has no page size to vary"


def test_sharing_by_the_names_of_the_trace(capsys: pytest.CaptureFixture[str], chats: str) -> None:
    options = ("--recorded-page-size", "16", "--page-size", "16", "--policy", "paged", "--model", "1", "--pool", "4096")
    alone = json.loads(run(capsys, chats, *options, "--json", "-"))
    shared = json.loads(run(capsys, chats, *options, "--sharing", "--json", "-"))
    assert alone["page_hit_rate"] is None and shared["page_hit_rate"] > 0.2
    assert shared["computed_tokens"] < alone["computed_tokens"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nothing.csv"], "No such file"),
        (["{chats}"], "--recorded-page-size"),
        (["{lengths}", "--policy", "paged,worst"], "Scenario: policy is unknown, got 'worst'"),
        (["{lengths}", "--pool", "much"], "parse_bytes: text is no size, got 'much'"),
        (["{lengths}", "--pool", "1kB"], "--pool is smaller than a token"),
        (["{lengths}", "--sweep", "colour=1"], "--sweep names no field, got 'colour=1'"),
        (["{lengths}", "--sweep", "page_size=a"], "--sweep is no list of numbers, got 'a'"),
        (["{lengths}", "--service", "step=fast"], "--service has no number for step, got 'fast'"),
        (["{lengths}", "--service", "speed=1"], "--service names nothing known, got 'speed'"),
        (["{lengths}", "--cache-pages", "4"], "pages do not fit the prompt"),
        (
            ["{chats}", "--cache-pages", "4", "--page-size", "16", "--sweep", "pool=1,2"],
            "does not go with --cache-pages",
        ),
        (["{chats}", "--cache-pages", "0", "--page-size", "16"], "--cache-pages is no list of numbers"),
        (["{chats}", "--cache-pages", "4", "--page-size", "16", "--eviction", "mru"], "policy is unknown, got 'mru'"),
        (["synthetic:colour=3"], "TRACE names nothing known, got 'colour'"),
        (["synthetic:rate=-1"], "Synthetic: rate is wrong"),
    ],
)
def test_what_is_wrong_in_one_line(
    capsys: pytest.CaptureFixture[str], chats: str, lengths: str, options: list[str], message: str
) -> None:
    given = [option.format(chats=chats, lengths=lengths) for option in options]
    error = run(capsys, *given, "--jobs", "1", status=2)
    assert message in error and error.startswith("pagedref: error: ") and error.count("\n") == 1


def test_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "opt-13b", "--context", "2048", "--users", "7", "--pool", "12GiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bytes_per_token"], found["users_that_fit"], found["fits"]) == (819_200, 7, True)
    assert main(["size", "deepseek-v3", "--users", "10", "--pool", "80GiB"]) == 0
    out = capsys.readouterr().out
    assert "70,272" in out and "7 users fit" in out and "latent" in out
    assert main(["size", "layers=2,heads=2,head_dim=8"]) == 2
    assert "--context is missing" in capsys.readouterr().err


def test_the_longest_context_that_still_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "100", "--context", "1000", "--users", "10", "--pool", "500000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["longest_context"] == 496 and not found["fits"], "50,000 bytes: 31 pages of 16 tokens of 100 bytes"
