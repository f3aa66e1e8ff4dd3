"""The command: what it prints, and one clear line with exit status 2 for everything that is wrong."""

from __future__ import annotations

import os
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
from pagedref.models.hub import TINY
from pagedref.models.model import Model
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
        (["generate", QUESTION, "--model", "tiny", "--num-frames", "1"], "need 17 = ceil((16 + 256 - 1) / 16) (S34)"),
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

    monkeypatch.setattr(Model, "generate", exhausted)
    assert cli.main(["generate", "hi", "--model", "tiny"]) == 2
    assert capsys.readouterr().err.startswith("pagedref: error: memory is exhausted")


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "generate", interrupted)
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
