"""Traces: every format, every way in which a line can be wrong, and the line and the reason."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedref.errors import ContractError
from pagedref.simulate import Request, Synthetic, open_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n290,905,1195,0.32\n"
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n5.5,GPT-4,30,0,30,API log\n45,ChatGPT,1087,230,1317,Conversation log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1500, "output_length": 50, "hash_ids": [46, 47, 18446744073709551615]}\n'
    '{"timestamp": 3000, "input_length": 512, "output_length": 1, "hash_ids": [46]}\n'
)
CHATS = [
    {"id": "a", "conversations": [{"from": "human", "value": "one two, ]\n three"},
                                  {"from": "gpt", "value": "x \u00e9"}]},
    {"id": "b", "conversations": []},
    {"id": "c", "conversations": [{"from": "system", "value": "s"}, {"from": "user", "value": "q"},
                                  {"from": "assistant", "value": "1 2 3"}]},
]  # fmt: skip


def words(text: str) -> int:
    return len(text.split())


def write(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, text: str | bytes, **options: Any) -> list[Request]:
    return list(open_trace(write(folder, text), **options))


def test_azure(tmp_path: Path) -> None:
    assert read(tmp_path, AZURE) == [Request(0, 374, 44), Request(4_314_579_000, 396, 109)]
    assert read(tmp_path, AZURE.replace("\n", "\r\n")) == read(tmp_path, AZURE)
    assert read(tmp_path, "\ufeff" + AZURE) == read(tmp_path, AZURE)
    zoned = AZURE.replace("46.6805900", "46.680590+00:00").replace("50.9951690", "50.995169+00:00")
    assert read(tmp_path, zoned) == read(tmp_path, AZURE)


def test_lengths_and_burstgpt(tmp_path: Path) -> None:
    assert read(tmp_path, LENGTHS) == [Request(0, 74, 918), Request(0, 290, 905)]
    own = "arrival,prompt_len,output_len\n1.5,3,4\n1.75,5,6"
    assert read(tmp_path, own) == [Request(0, 3, 4), Request(250_000_000, 5, 6)]
    assert read(tmp_path, BURST) == [Request(0, 472, 18), Request(40 * 10**9, 1087, 230)], (
        "a failed request is left out"
    )


def test_mooncake_keeps_64_bits(tmp_path: Path) -> None:
    first, second = read(tmp_path, MOONCAKE, page_size=512)
    assert first == Request(0, 1500, 50, (46, 47, 2**64 - 1)) and second == Request(3 * 10**9, 512, 1, (46,))


@pytest.mark.parametrize("indent", [None, 2])
def test_sharegpt(tmp_path: Path, indent: int | None) -> None:
    text = json.dumps(CHATS, indent=indent)
    assert read(tmp_path, text, count_tokens=words) == [Request(0, 4, 2), Request(0, 1, 3)]


def test_filters(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE)
    assert list(open_trace(path, limit=1)) == [Request(0, 374, 44)]
    assert list(open_trace(path, max_len=420)) == [Request(0, 374, 44)]
    trace = open_trace(path)
    assert list(trace) == list(trace) == list(pickle.loads(pickle.dumps(trace)))


WIDE = {"page_size": 512}
BAD = [
    # text, options, what the message must say
    ("", {}, "trace is empty, got no line"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n", {}, "trace is empty, got no request"),
    ("a,b,c\n1,2,3\n", {}, "line 1: header names no known columns"),
    (b"\x89PNG\x00\x00\r\n", {}, "line 1: line is binary"),
    (b"\xff\xfe1,2\n", {}, "line 1: line is no UTF-8"),
    (AZURE + "2023-11-16 18:16:00.0,5", {}, "line 4: line has the wrong number of columns"),
    (AZURE + "2023-11-16 18:15:47.0,5,6\n", {}, "line 4: timestamp is out of order"),
    (AZURE + "2023-11-16 18:16:00.0,-5,6\n", {}, "line 4: contexttokens is negative, got -5"),
    (AZURE + "2023-11-16 18:16:00.0,5,0\n", {}, "line 4: generatedtokens is zero"),
    (AZURE + "2023-11-16 18:16:00.0,99999999999,6\n", {}, "line 4: contexttokens is absurd, got 99999999999"),
    (AZURE + "2023-11-16 18:16:00.0,nan,6\n", {}, "line 4: contexttokens is no integer, got 'nan'"),
    (AZURE + "2023-11-16 18:16:00.0,5.5,6\n", {}, "line 4: contexttokens is no integer, got '5.5'"),
    (AZURE + "2023-13-16 18:16:00.0,5,6\n", {}, "line 4: timestamp is no time"),
    (AZURE + "yesterday,5,6\n", {}, "line 4: timestamp is no time, got 'yesterday'"),
    (BURST + "nan,m,1,1,2,x\n", {}, "line 5: arrival is no time, got 'nan'"),
    (BURST + "1e400,m,1,1,2,x\n", {}, "line 5: arrival is no time"),
    (BURST + "-1,m,1,1,2,x\n", {}, "line 5: arrival is no time"),
    (BURST + "44,m,1,1,2,x\n", {}, "line 5: timestamp is out of order"),
    (MOONCAKE, {}, "page_size is missing, got none for the format mooncake"),
    (MOONCAKE, {"page_size": 256}, "line 1: hash_ids has too few ids, got 3, need 6, one for each 256 of 1500 tokens"),
    (MOONCAKE, {"page_size": 1024}, "line 1: hash_ids has too many ids, got 3, need 2"),
    (MOONCAKE[:-20], WIDE, "line 2: line is no JSON"),
    (MOONCAKE.replace("18446744073709551615", "18446744073709551616"), WIDE, "line 1: hash_ids holds no id"),
    (MOONCAKE.replace("18446744073709551615", "9007199254740993.0"), WIDE, "line 1: hash_ids holds no id"),
    (MOONCAKE.replace("18446744073709551615", "-1"), WIDE, "line 1: hash_ids holds no id, got -1"),
    (MOONCAKE.replace("18446744073709551615", "true"), WIDE, "line 1: hash_ids holds no id, got True"),
    (MOONCAKE.replace("18446744073709551615", "46"), WIDE, "line 1: hash_ids names a page twice, got 46"),
    (MOONCAKE.replace("[46]", "46"), WIDE, "line 2: hash_ids is no list"),
    (MOONCAKE.replace("3000", "NaN"), WIDE, "line 2: line is no JSON"),
    (MOONCAKE.replace("3000", "-3"), WIDE, "line 2: timestamp is no time, got -3"),
    (MOONCAKE.replace('"timestamp": 0', '"timestamp": 9000'), WIDE, "line 2: timestamp is out of order, got 3000"),
    (MOONCAKE.replace("512,", "512.0,"), WIDE, "line 2: input_length is no integer, got 512.0"),
    (MOONCAKE.replace('"output_length": 1,', ""), WIDE, "line 2: line lacks a field"),
    (MOONCAKE + "[1]\n", WIDE, "line 3: line lacks a field"),
    (MOONCAKE + "[" * 100_000, WIDE, "line 3: line is no JSON"),
    (json.dumps(CHATS), {}, "count_tokens is missing"),
    (json.dumps(CHATS)[:-9], {"count_tokens": words}, "line 1: list "),
    (json.dumps(CHATS)[:-1], {"count_tokens": words}, "list has no end"),
    (json.dumps(CHATS, indent=1)[:-30], {"count_tokens": words}, "list "),
    ("[\n{},\n3]", {"count_tokens": words}, "line 2: conversations is no list"),
    ('[{"conversations": [{"from": "human"}]}]', {"count_tokens": words}, "line 1: conversations holds no turn"),
    ("[\n{broken},\n{}]", {"count_tokens": words}, "line 2: list holds what is no JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "message"), BAD, ids=[message for *_, message in BAD])
def test_what_is_wrong_and_where(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        read(tmp_path, text, **options)
    assert message in str(caught.value) and str(caught.value).startswith("open_trace: ")
    assert len(str(caught.value)) < 400


def test_formats_and_arguments(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE)
    with pytest.raises(ContractError, match="open_trace: format is unknown, got 'csv', need one of azure"):
        open_trace(path, format="csv")
    with pytest.raises(ContractError, match="page_size is not used here"):
        open_trace(path, format="azure", page_size=16)
    with pytest.raises(ContractError, match="header lacks a column"):
        list(open_trace(path, format="burstgpt"))
    with pytest.raises(ContractError, match="open_trace: limit is wrong, got 0"):
        open_trace(path, limit=0)
    with pytest.raises(FileNotFoundError):
        open_trace(tmp_path / "nothing")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("junk")
    for text in (junk, AZURE.encode() + junk, MOONCAKE.encode() + junk, b"[" + junk):
        try:
            found = read(folder, text, page_size=512, count_tokens=words)
        except ContractError as error:
            assert str(error).startswith("open_trace: ")
        else:
            assert all(request.prompt_len > 0 and request.output_len > 0 for request in found)


def test_reading_is_a_stream(tmp_path: Path) -> None:
    line = '{"timestamp": 5, "input_length": 64, "output_length": 3, "hash_ids": [1, 2, 3, 4]}\n'
    chat = json.dumps(CHATS[0])
    peaks = []
    for count in (3000, 12_000):
        many = write(tmp_path, line * count, "many")
        list_of = write(tmp_path, "[" + ",\n".join([chat] * count) + "]", "list")
        tracemalloc.start()
        assert sum(1 for _ in open_trace(many, page_size=16)) == count
        assert sum(1 for _ in open_trace(list_of, count_tokens=words)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks


def test_synthetic_has_what_was_asked_for() -> None:
    trace = Synthetic(
        requests=20_000, rate=5.0, prompt_mean=161, output_mean=338, prompt_sigma=0.5, output_sigma=0.5, seed=3
    )
    drawn = list(trace)
    assert drawn == list(trace) and drawn != list(Synthetic(requests=20_000, rate=5.0, seed=4))
    prompts, outputs = (np.array([request[at] for request in drawn]) for at in (1, 2))
    for lengths, mean in ((prompts, 161), (outputs, 338)):
        assert abs(lengths.mean() - mean) < 5 * lengths.std() / len(drawn) ** 0.5, "five standard errors"
    gaps = np.diff([request.arrival for request in drawn]) / 1e9
    assert abs(gaps.mean() - 0.2) < 5 * gaps.std() / len(drawn) ** 0.5
    assert abs(gaps.std() / gaps.mean() - 1) < 0.05
    bursts = np.diff([request.arrival for request in Synthetic(requests=20_000, rate=5.0, burstiness=3.0)])
    assert bursts.min() >= 0 and bursts.std() / bursts.mean() > 2
    assert max(request.prompt_len + request.output_len for request in drawn) <= 2048


def test_synthetic_prefixes_follow_zipf() -> None:
    trace = list(Synthetic(requests=4000, prompt_sigma=0.0, prompt_mean=100, prefixes=4, prefix_len=40, page_size=16))
    assert all(len(request.pages) == 7 and len(set(request.pages)) == 7 for request in trace)
    first = [request.pages[0] for request in trace]
    counts = sorted((first.count(name) for name in set(first)), reverse=True)
    assert len(counts) == 4 and counts[0] / counts[1] == pytest.approx(2, rel=0.2)
    for one, other in pairwise(trace):
        assert (one.pages[:2] == other.pages[:2]) == (one.pages[0] == other.pages[0])
        assert one.pages[2] != other.pages[2], "behind the prefix every request is its own"
    assert max(max(request.pages) for request in trace) < 2**64


@pytest.mark.parametrize(
    ("name", "value"),
    [("requests", 0), ("rate", 0.0), ("burstiness", float("nan")), ("prompt_sigma", -1.0), ("seed", -1)],
)
def test_synthetic_refusals(name: str, value: Any) -> None:
    with pytest.raises(ContractError, match=f"Synthetic: {name} is wrong"):
        Synthetic(**({"requests": 5} | {name: value}))
