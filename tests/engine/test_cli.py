"""The command: what it prints, and one clear line with exit status 2 for everything that is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagedref
from pagedref import cli
from pagedref.cli._pages import Screen, Tenant, fit, render
from pagedref.engine import Engine, FrameUse
from pagedref.models.hub import TINY
from tests.engine.small_models import make_config, make_weights, write_hf

QUESTION = "the food of owl is figs tea . what is the food of owl ?"


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pagedref", *arguments], capture_output=True, text=True, timeout=120, **options
    )


def test_generate_answers_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    assert cli.main(["generate", QUESTION, "--model", "tiny", "--page-size", "4", "--max-tokens", "9"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].strip() == "figs tea."
    report = {line[:19].strip(): line[19:].strip() for line in lines if line.startswith("  ")}
    assert set(report) == {"tokens", "pages", "frames used", "bytes per token", "held", "contiguous", "speed"}
    assert report["tokens"].startswith("19;")  # the start token, 15 of the prompt, 4 of the answer less the last
    assert report["pages"] == "5 of 4 tokens"
    assert report["frames used"] == "5 of 6"
    assert report["bytes per token"] == "2,048"
    assert "67.1 MB" in report["contiguous"]
    assert captured.err == ""


def test_several_prompts_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    other = "the home of bat is hut cave . what is the home of bat ?"
    assert cli.main(["generate", QUESTION, other, "--model", "tiny", "--max-tokens", "9", "--quiet"]) == 0
    assert capsys.readouterr().out == f"[{QUESTION}]\nfigs tea.\n\n[{other}]\nhut cave.\n\n"
    assert cli.main(["generate", QUESTION, other, "--model", "tiny", "--max-tokens", "9"]) == 0
    assert "in 2 sequences" in capsys.readouterr().out


def test_sampling_options_and_samples(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    arguments = ["generate", QUESTION, "--model", "tiny", "--max-tokens", "9", "--temperature", "3", "--samples", "3"]
    outputs = []
    for seed in ("1", "1", "2"):
        assert cli.main([*arguments, "--seed", seed, "--top-k", "40", "--quiet"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert [f"({number} of 3)" in outputs[0] for number in range(1, 5)] == [True, True, True, False]
    assert cli.main(arguments) == 0  # a seed that was drawn is told, so that the answer can be had again
    first = capsys.readouterr().out
    seed = next(line.split()[1] for line in first.splitlines() if line.startswith("  seed"))
    assert cli.main([*arguments, "--seed", seed]) == 0
    assert capsys.readouterr().out.split("memory")[0] == first.split("memory")[0]


def test_many_samples_run_together(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    arguments = ["generate", "hi", "--model", "tiny", "--max-tokens", "2", "--temperature", "1", "--samples", "40"]
    assert cli.main([*arguments, "--quiet"]) == 0
    assert "[hi] (40 of 40)" in capsys.readouterr().out


@pytest.mark.parametrize("narrow", [["--top-k", "1"], ["--top-p", "0"], ["--min-p", "1"]])
def test_narrow_sampling_is_greedy(capsys: pytest.CaptureFixture[str], narrow: list[str]) -> None:
    pytest.importorskip("tokenizers")
    arguments = ["generate", QUESTION, "--model", "tiny", "--max-tokens", "9", "--temperature", "2", "--quiet"]
    assert cli.main([*arguments, *narrow]) == 0
    assert capsys.readouterr().out.strip() == "figs tea."


def test_stop_strings_and_speculation(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    arguments = ["generate", QUESTION, "--model", "tiny", "--max-tokens", "9", "--speculate", "4"]
    assert cli.main([*arguments, "--stop", " tea", "--stop", "xyz"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].strip() == "figs"
    assert "guesses were right" in out


def test_show_pages_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    arguments = ["generate", QUESTION, "--model", "tiny", "--page-size", "4", "--max-tokens", "9", "--show-pages"]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "step 4: 6 frames: 5 held (0 shared), 0 cached, 1 free" in out
    assert "at the end: 6 frames: 0 held (0 shared), 4 cached, 2 free" in out
    assert cli.main([*arguments, "--samples", "2", "--temperature", "1"]) == 0
    assert "(4 shared)" in capsys.readouterr().out  # the whole pages of the prompt


# ---- the view of pages


def frame(*holders: tuple[int, int, int], cached: bool = False) -> FrameUse:
    return FrameUse(holders, cached)


POOL = [
    frame((0, 0, 0)),
    frame((0, 0, 1), (0, 1, 1)),
    frame((1, 0, 0), (0, 0, 2)),
    frame((1, 0, 1)),
    frame(cached=True),
]
POOL += [frame()] * 3


def test_every_frame_has_its_sign() -> None:
    lines = render(POOL, [Tenant("a", 9), Tenant("b", 5, "so far"), Tenant("c", 3), Tenant("d", ended=True)], width=70)
    assert lines == [
        "8 frames: 4 held (2 shared), 1 cached, 3 free",
        "0 A**B+...",
        "* shared, + cached, . free",
        "A 9 tokens in 3 frames, 2 shared: a",
        "B 5 tokens in 2 frames, 1 shared: b  so far",
        "C waits: c",
    ]


@pytest.mark.parametrize("width", [1, 2, 7, 20, 40, 80, 300])
@pytest.mark.parametrize("size", [1, 8, 100, 5000])
def test_no_line_is_longer_than_the_terminal(width: int, size: int) -> None:
    pool = (POOL * (size // 8 + 1))[:size]
    tenants = [
        Tenant("what is \u5bb6\u5bb6\u5bb6\u5bb6 ?\n\x1b[31m" * 9, 10**6, "an \u5bb6 answer " * 40) for _ in range(30)
    ]
    lines = render(pool, tenants, width=width, heading="step 1,234: ")
    wide = [sum(2 if letter == "\u5bb6" else 1 for letter in line) for line in lines]
    assert max(wide) <= width
    signs = "".join(line.split()[-1] for line in lines[1:-31])
    assert set(signs) <= set("AB*+.0123456789")
    assert len(lines) <= 2 + 16 + 30 or width < 16
    coloured = render(pool, tenants, width=width, heading="step 1,234: ", colour=True)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured]
    assert plain == lines


def test_a_large_pool_shows_what_most_frames_of_a_sign_are() -> None:
    pool = [frame((0, 0, page)) for page in range(3000)] + [frame()] * 3000
    lines = render(pool, [Tenant("a", 48_000)], width=80)
    rows = lines[1:-2]
    assert len(rows) <= 16
    signs = "".join(row.split()[1] for row in rows)
    assert signs == "A" * (len(signs) // 2) + "." * (len(signs) - len(signs) // 2)
    assert "one sign stands for 6 frames" in lines[-2]


@pytest.mark.parametrize("tail", [False, True])
def test_fit(tail: bool) -> None:
    assert fit("a\tb\n\x1bc", 9) == "a b c"
    for width in range(12):
        for text in ("", "abc", "abcdefghijkl", "\u5bb6" * 8, "e\u0301" * 9):
            line = fit(text, width, tail=tail)
            assert sum(0 if c == "\u0301" else 2 if c == "\u5bb6" else 1 for c in line) <= width
    assert fit("abcdef", 4, tail=tail) == ("…def" if tail else "abc…")


class Terminal(io.StringIO):
    """A stream that says it is a terminal; `shown` is what one would see."""

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> list[str]:
        lines: list[str] = [""]
        for piece in re.split(r"(\x1b\[\d+F\x1b\[J|\n)", self.getvalue()):
            if up := re.fullmatch(r"\x1b\[(\d+)F\x1b\[J", piece):
                lines = [*lines[: -1 - int(up[1])], ""]
            elif piece == "\n":
                lines.append("")
            else:
                lines[-1] += piece
        return lines[:-1]


def test_pictures_replace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "6")
    terminal = Terminal()
    screen = Screen(terminal)
    assert screen.live
    assert screen.width == 39
    assert screen.is_due
    terminal.write("before\n")
    screen.draw(["one", "two", "three"])
    assert not screen.is_due
    screen.draw(["four"])
    assert terminal.shown == ["before", "four"]
    screen.draw([str(number) for number in range(20)])  # what scrolls away could not be replaced
    assert terminal.shown == ["before", "0", "1", "2", "3", "4"]
    screen.clear()
    assert terminal.shown == ["before"]
    screen.clear()
    assert terminal.shown == ["before"]
    assert not Screen(io.StringIO()).live


def test_live_view_leaves_only_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the pictures are gone at the end, and the answer and the report stand there once."""
    pytest.importorskip("tokenizers")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert cli.main(["generate", QUESTION, "--model", "tiny", "--max-tokens", "9", "--show-pages"]) == 0
    assert "\x1b[J" in terminal.getvalue()
    shown = terminal.shown
    assert shown[0].strip() == "figs tea."
    assert sum(" shared), " in line for line in shown) == 2
    assert "memory at its fullest" in shown


# ---- bench


def test_bench_prints_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    arguments = ["bench", "--model", "tiny", "--requests", "5", "--prompt-tokens", "3-20", "--new-tokens", "4"]
    assert cli.main([*arguments, "--shared", "32", "--running", "2", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny on numpy: 5 requests, ")
    assert lines[0].endswith("20 new, at most 2 at once, pages of 16")
    names = [line[2:19].strip() for line in lines[1:]]
    expected = ["throughput", "first token", "of that waiting", "next token", "weights", "keys and values"]
    assert [name for name in names if name != "process"] == [*expected, "prefix cache"]
    found = json.loads(path.read_text())
    assert found["new_tokens"] == 20
    assert found["tokens_hit"] == 3 * 32  # the first two begin together
    assert found["bytes_per_token"] == 2048
    assert found["bytes_peak"] == found["frames_peak"] * 16 * 2048
    assert 0 < found["next_token"]["p50"] <= found["next_token"]["p90"] <= found["next_token"]["p99"]
    assert found["queued"]["p99"] <= found["first_token"]["p99"] <= found["seconds"]


def test_bench_as_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--model", "tiny", "--requests", "3", "--new-tokens", "20", "--speculate", "5", "--json", "-"]
    assert cli.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["new_tokens"] == 60
    assert found["drafted"] >= found["accepted"]


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    assert out.count("right") == 5
    assert "WRONG" not in out
    assert "cuda" in out


def test_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"pagedref {pagedref.__version__} (specification {pagedref.SPEC_VERSION})\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of models, each wrong in its own way."""
    folder = tmp_path_factory.mktemp("models")
    config = make_config()
    write_hf(folder / "no_tokenizer", config, make_weights(config))
    for name in ("truncated", "unknown", "heads"):
        shutil.copytree(TINY, folder / name)
    weights = folder / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    text = (TINY / "config.json").read_text()
    (folder / "unknown" / "config.json").write_text(text.replace("LlamaForCausalLM", "Mystery").replace("llama", "m"))
    (folder / "heads" / "config.json").write_text(text.replace('"num_key_value_heads": 2', '"num_key_value_heads": 3'))
    (folder / "empty").mkdir()
    (folder / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    return folder


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "COMMAND"),
        (["generate"], "PROMPT"),
        (["nonsense"], "invalid choice"),
        (["generate", "hi", "--model", "tiny", "--top-p", "2"], "top_p"),
        (["generate", "hi", "--model", "tiny", "--stop", ""], "stop"),
        (["generate", "hi", "--model", "tiny", "--samples", "0"], "n is out of range, got 0"),
        (["generate", "hi", "--model", "tiny", "--speculate", "0"], "tokens"),
        (["generate", "hi", "--model", "tiny", "--seed", "-1"], "seed"),
        (["bench", "--model", "tiny", "--new-tokens", "5-2"], "need 1 <= A <= B"),
        (["bench", "--model", "tiny", "--prompt-tokens", "x"], "need N or A-B"),
        (["bench", "--model", "tiny", "--requests", "0"], "requests"),
        (["bench", "--model", "tiny", "--page-size", "0"], "page_size"),
        (["bench", "--model", "tiny", "--running", "0"], "running"),
        (["bench", "--model", "tiny", "--num-frames", "1"], "frames"),
        (["bench", "--model", "tiny", "--shared", "40000"], "too long"),
        (["bench", "--model", "tiny", "--shared", "99999999999"], "too long"),
        (["bench", "--model", "tiny", "--shared", "-5"], "shared"),
        (["bench", "--model", "tiny", "--seed", "-1"], "seed"),
        (["bench", "--model", "tiny", "--prompt-tokens", "99999999999999999999"], "need 1 <= A <= B"),
        (["generate", "hi", "--page-size", "x"], "invalid int value: 'x'"),
        (["generate", "hi", "--model", "tiny", "--page-size", "0"], "page_size"),
        (["generate", "hi", "--model", "tiny", "--max-tokens", "0"], "max_tokens"),
        (["generate", "hi", "--model", "tiny", "--num-frames", "0"], "num_frames"),
        (["generate", "hi", "--model", "tiny", "--num-frames", "99999999999999999999"], "num_frames"),
        (["generate", "hi", "--model", "tiny", "--page-size", "99999999999999999999"], "page_size"),
        (["generate", "hi", "--model", "tiny", "--page-size", "9223372036854775807"], "page_size"),
        (["generate", "hi", "--model", "tiny", "--page-size", "2147483647", "--num-frames", "2147483647"], "pool"),
        (["generate", "hi", "--model", "tiny", "--num-frames", "9223372036854775807"], "num_frames"),
        (["generate", "hi", "--model", "~nosuchuser/x"], "home"),
        (["generate", QUESTION, "--model", "tiny", "--num-frames", "1"], "got 17 pages (16 + 256 tokens)"),
        (["generate", "hi", "--model", "tiny", "--backend", "nonsense"], "nonsense"),
        (["generate", "the " * 40_000, "--model", "tiny"], "too long"),
        (["generate", "hi", "--model", "{models}/absent"], "neither a name nor a path"),
        (["generate", "hi", "--model", "{models}/empty"], "config.json"),
        (["generate", "hi", "--model", "{models}/no_tokenizer"], "no tokenizer.json"),
        (["generate", "hi", "--model", "{models}/truncated"], "model.safetensors"),
        (["generate", "hi", "--model", "{models}/unknown"], "Mystery"),
        (["generate", "hi", "--model", "{models}/heads"], "num_qo_heads"),
        (["generate", "hi", "--model", "{models}/bad.gguf"], "gguf"),
    ],
)
def test_wrong_input(models: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str) -> None:
    if "generate" in arguments and "tiny" in arguments:
        pytest.importorskip("tokenizers")
    try:
        status = cli.main([argument.replace("{models}", str(models)) for argument in arguments])
    except SystemExit as leaving:
        status = int(str(leaving.code))
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith("pagedref: error: ")
    assert captured.err.count("\n") == 1
    assert part in captured.err


def test_wrong_input_of_the_process_has_no_traceback(models: Path) -> None:
    done = command("generate", "hi", "--model", str(models / "truncated"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_lack_of_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def exhausted(*arguments: Any, **keywords: Any) -> Any:
        return np.zeros(2**60, np.uint8)

    monkeypatch.setattr(Engine, "step", exhausted)
    assert cli.main(["generate", "hi", "--model", "tiny"]) == 2
    assert capsys.readouterr().err.startswith("pagedref: error: memory is exhausted")


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "step", interrupted)
    assert cli.main(["generate", "hi", "--model", "tiny"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no pipes that break on this system")
def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pagedref", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(timeout=120), errors) == (0, "")


def test_letters_that_the_terminal_lacks() -> None:
    done = command("demo", "--help", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="the shell of POSIX")
@pytest.mark.parametrize(
    ("line", "status", "errors"),
    [
        ("generate hi --model tiny --max-tokens 2 >&-", 0, 0),
        ("generate hi --model tiny --max-tokens 2 2>&-", 0, 0),
        ("generate hi --model tiny --max-tokens 0 >&-", 2, 1),
        ("generate hi --model tiny --max-tokens 0 2>&-", 2, 0),
        ("generate hi --model tiny --max-tokens 0 >&- 2>&- <&-", 2, 0),
        ("nonsense 2>&-", 2, 0),
        ("demo >&-", 0, 0),
        ("--version >&-", 0, 0),
        ("--version >/dev/full", 2, 1),
        ("--help >/dev/full", 2, 1),
        ("demo >/dev/full", 2, 1),
        ("generate hi --model tiny --max-tokens 2 >/dev/full", 2, 1),
        ("generate hi --model tiny --max-tokens 2 >/dev/full 2>/dev/full", 2, 0),
        ("generate hi --model tiny --max-tokens 0 2>/dev/full", 2, 0),
        ("nonsense 2>/dev/full", 2, 0),
    ],
)
def test_nobody_listens(line: str, status: int, errors: int) -> None:
    if "/dev/full" in line and not os.path.exists("/dev/full"):
        pytest.skip("no full device on this system")
    if "generate" in line:
        pytest.importorskip("tokenizers")
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m pagedref {line}', sys.executable], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr.count("\n")) == (status, errors), done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_cache_of_a_user_without_a_home() -> None:
    done = command("generate", "hi", env={**os.environ, "PAGEDREF_CACHE": "~nosuchuser/x"})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "PAGEDREF_CACHE" in done.stderr and "~nosuchuser" in done.stderr


@pytest.mark.parametrize("wanted", ["99999999999999999999", "99999", "0", "-1", "two", "9" * 4000, "\u00b2", ""])
def test_any_number_of_threads(wanted: str) -> None:
    pytest.importorskip("tokenizers")
    arguments = ("generate", QUESTION, "--model", "tiny", "--max-tokens", "9", "--quiet")
    done = command(*arguments, env={**os.environ, "PAGEDREF_THREADS": wanted})
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "figs tea.", "")
