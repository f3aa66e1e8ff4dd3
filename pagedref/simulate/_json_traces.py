"""Traces in JSON: Mooncake's lines, and lists of conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NoReturn

from pagedref.simulate._lines import LONGEST, check_length, complain, lines_of
from pagedref.simulate.trace import Request

__all__ = ["mooncake", "sharegpt"]

MILLI = 10**6
MAX_TIME = 2**62 // MILLI
MAX_ID = 2**64 - 1
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
SPEAKERS = {"human": 0, "user": 0, "gpt": 1, "assistant": 1, "chatgpt": 1, "bing": 1, "bard": 1}


def _no_number(text: str) -> NoReturn:
    """Refuse NaN and Infinity, which are no JSON."""
    raise ValueError(f"{text} is no JSON")


DECODER = json.JSONDecoder(parse_constant=_no_number)


def mooncake(path: str, page_size: int) -> Iterator[Request]:
    """Yield the requests of a file of JSON lines.

    Parameters
    ----------
    path : str
        The file.
    page_size : int
        Tokens for which an id stands.

    Yields
    ------
    Request
        Arrivals as they stand there, in ns.
    """
    last = 0
    for number, line in lines_of(path):
        try:
            item = DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            text = str(error)
            complain(path, number, "line", "is no JSON", line[-30:], f"a whole object (is it cut off? {text[:80]})")
        if not isinstance(item, dict) or any(field not in item for field in FIELDS):
            complain(path, number, "line", "lacks a field", line[:60], ", ".join(FIELDS))
        time, prompt, output, ids = (item[field] for field in FIELDS)
        if type(time) is not int or not 0 <= time <= MAX_TIME:
            complain(path, number, "timestamp", "is no time", time, "whole milliseconds, >= 0")
        if time < last:
            complain(path, number, "timestamp", "is out of order", time, f"at least {last}, that of the line before")
        last = time
        for field, value in (("input_length", prompt), ("output_length", output)):
            if type(value) is not int:
                complain(path, number, field, "is no integer", value, "a number of tokens")
            check_length(path, number, field, value)
        if type(ids) is not list:
            complain(path, number, "hash_ids", "is no list", ids, "a list of ids")
        count = -(-prompt // page_size)
        if len(ids) != count:
            what = "has too many ids" if len(ids) > count else "has too few ids"
            need = f"{count}, one for each {page_size} of {prompt} tokens"
            complain(path, number, "hash_ids", what, len(ids), need)
        if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > MAX_ID:
            wrong = next(page for page in ids if type(page) is not int or not 0 <= page <= MAX_ID)
            complain(path, number, "hash_ids", "holds no id", wrong, f"integers in [0, {MAX_ID}]")
        if len(set(ids)) < len(ids):
            complain(path, number, "hash_ids", "names a page twice", _twice(ids), "each page of a prompt once")
        yield Request(time * MILLI, prompt, output, tuple(ids))


def _twice(ids: list[int]) -> int:
    """Return the first id that was there before."""
    seen: set[int] = set()
    return next(page for page in ids if page in seen or seen.add(page))  # type: ignore[func-returns-value]


def sharegpt(path: str, count_tokens: Callable[[str], int]) -> Iterator[Request]:
    """Yield the first exchange of each conversation of a JSON list; those without one are left out.

    Parameters
    ----------
    path : str
        The file.
    count_tokens : callable
        Text to number of tokens.

    Yields
    ------
    Request
        All at time 0.
    """
    for number, item in _items(path):
        turns = item.get("conversations", item.get("conversation")) if isinstance(item, dict) else None
        if not isinstance(turns, list):
            complain(path, number, "conversations", "is no list", item, "a list of turns")
        texts: list[str | None] = [None, None]
        for turn in turns:
            who, text = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
            if not isinstance(who, str) or not isinstance(text, str):
                complain(path, number, "conversations", "holds no turn", turn, '{"from": ..., "value": text}')
            side = SPEAKERS.get(who)
            if side is not None and texts[side] is None and (side == 0 or texts[0] is not None):
                texts[side] = text
        if texts[0] and texts[1]:
            lengths = [count_tokens(text) for text in texts if text]
            prompt, output = (check_length(path, number, "value", length) for length in lengths)
            yield Request(0, prompt, output)


def _items(path: str) -> Iterator[tuple[int, Any]]:
    """Yield the items of a list that may be longer than memory, each with the line on which it begins."""
    text, first, opened = "", 1, False
    for number, line in chain(lines_of(path), [(0, "")]):
        if not opened:
            if not line.startswith("["):
                complain(path, max(number, 1), "file", "is no list", line[:30], "a list of conversations")
            opened, line = True, line[1:]
        first = first if text else number
        text += line + "\n"
        while text := text.lstrip(" \t\r\n,"):
            if text.startswith("]"):
                return
            try:
                item, end = DECODER.raw_decode(text)
            except (ValueError, RecursionError) as error:
                if not number or len(text) > LONGEST or not _may_go_on(text, error):
                    need = f"a whole item (is it cut off? {str(error)[:80]})"
                    complain(path, first, "list", "holds what is no JSON", text[:30], need)
                break  # the item goes on in the next line
            yield first, item
            first, text = number, text[end:]
    complain(path, first, "list", "has no end", "the end of the file", "a closing bracket (is it cut off?)")


def _may_go_on(text: str, error: Exception) -> bool:
    """Tell whether an item that does not decode may be one whose rest is still to come."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.pos >= len(text.rstrip()) - 1 or "nterminated" in error.msg
