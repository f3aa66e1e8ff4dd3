"""Streamed text: whole characters only, no part of a stop string ever shown, the same however it is cut into tokens."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedref.models.text_stream import TextStream
from pagedref.models.tokenizer import StreamDecoder, Tokenizer


class Pieces:
    """A tokenizer whose tokens are given byte strings."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")

    def stream(self) -> StreamDecoder:
        return StreamDecoder(cast("Tokenizer", self))


def run(pieces: list[bytes], stop: list[str], include_stop: bool = False) -> tuple[list[str], str | None]:
    """Everything that is given out, token by token, and what stopped it."""
    stream = TextStream(cast("Tokenizer", Pieces(pieces)), stop, include_stop)
    shown = []
    for token in range(len(pieces)):
        shown.append(stream.push(token))
        if stream.stopped is not None:
            break
    return [*shown, stream.finish()], stream.stopped


def plain(text: str, stop: list[str], include_stop: bool) -> tuple[str, str | None]:
    """Character by character: the first stop string that is complete, of several the longest."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end if include_stop else end - len(longest)], longest
    return text, None


letters = st.text(alphabet="abé€", max_size=14)
stops = st.lists(st.text(alphabet="abé€", min_size=1, max_size=4), max_size=3)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A text, and its bytes cut anywhere, through characters too."""
    text = draw(letters)
    data = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    edges = [0, *cuts, len(data)]
    return text, [data[a:b] for a, b in pairwise(edges)]


@settings(max_examples=400)
@given(cut_texts(), stops, st.booleans())
def test_text_ends_at_the_first_complete_stop_string(
    cut: tuple[str, list[bytes]], stop: list[str], include_stop: bool
) -> None:
    text, pieces = cut
    shown, stopped = run(pieces, stop, include_stop)
    assert ("".join(shown), stopped) == plain(text, stop, include_stop)


@settings(max_examples=400)
@given(cut_texts(), stops)
def test_nothing_shown_is_taken_back(cut: tuple[str, list[bytes]], stop: list[str]) -> None:
    """Whatever still comes, what was shown is the beginning of the final text: also if a stop string comes next."""
    _, pieces = cut
    shown, stopped = run(pieces, stop)
    so_far = ""
    for at, piece in enumerate(shown[:-1]):
        so_far += piece
        assert "\ufffd" not in piece
        if stopped is not None and at == len(shown) - 2:
            break
        seen = b"".join(pieces[: at + 1]).decode("utf-8", errors="ignore")
        for following in stop:
            for overlap in range(len(following)):
                if seen.endswith(following[:overlap]):
                    assert plain(seen + following[overlap:], stop, False)[0].startswith(so_far)


@given(cut_texts())
def test_without_stop_strings_it_is_the_decoder(cut: tuple[str, list[bytes]]) -> None:
    text, pieces = cut
    shown, stopped = run(pieces, [])
    assert "".join(shown) == text
    assert stopped is None


def test_held_text_comes_out_when_it_can_no_longer_be_a_stop_string() -> None:
    assert run([b"E", b"N", b"x"], ["END"]) == (["", "", "ENx", ""], None)
    assert run([b"E", b"N"], ["END"]) == (["", "", "EN"], None)
    assert run([b"E", b"E", b"ND", b"x"], ["END"]) == (["", "E", "", ""], "END")


def test_of_two_that_end_together_the_longer_counts() -> None:
    assert run([b"xab"], ["b", "ab"]) == (["x", ""], "ab")
    assert run([b"xab"], ["b", "ab"], include_stop=True) == (["xab", ""], "ab")


def test_half_a_character_at_the_end_comes_out_as_such() -> None:
    assert run(["é".encode()[:1]], ["a"]) == (["", "\ufffd"], None)
    assert run(["é".encode()[:1]], ["\ufffd"]) == (["", ""], "\ufffd")  # the replacement, too, can stop


def test_nothing_comes_after_the_end() -> None:
    stream = TextStream(cast("Tokenizer", Pieces([b"ab", b"c"])), ["b"])
    assert [stream.push(0), stream.stopped, stream.push(1), stream.finish()] == ["a", "b", "", ""]


def test_without_a_tokenizer_there_is_no_text() -> None:
    stream = TextStream(None, ["x"])
    assert [stream.push(5), stream.finish(), stream.stopped] == ["", "", None]


@pytest.mark.parametrize("stop", [["\n"], ["fox", "jumps"], ["own fo"]])
def test_a_real_tokenizer(stop: list[str]) -> None:
    """Single bytes of a byte-level vocabulary."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = Tokenizer(backend)
    text = "the quick brown fox — größer, 𝄞 —\njumps"
    stream = TextStream(tokenizer, stop)
    shown = ""
    for token in tokenizer.encode(text):
        shown += stream.push(token)
        if stream.stopped:
            break
    assert (shown + stream.finish(), stream.stopped) == plain(text, stop, False)
