"""The logs of public cache managers, replayed: accepted or refused, hits, free, held, shared, evicted.

Runs where ``PAGEDREF_GOLDEN`` names the folder of golden data; the README there defines the operations.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedref.errors import OutOfFrames
from pagedref.memory import KVManager
from pagedref.memory.radix import RadixTree

FOLDER = os.environ.get("PAGEDREF_GOLDEN")
pytestmark = pytest.mark.skipif(not FOLDER, reason="PAGEDREF_GOLDEN does not name the golden data")


def _logs(kind: str) -> list[dict[str, Any]]:
    folder = Path(str(FOLDER)) / "memory" / kind
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))] if FOLDER else []


def _tokens(runs: list[list[int]]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(np.arange(a, a + n) for a, n in runs)])


class PageLog:
    """Carries the operations of a page log out on a manager; a grant counts as written."""

    def __init__(self, log: dict[str, Any]) -> None:
        self.manager = KVManager(log["pages"], log["page_size"])
        self.watermark = log["watermark"]
        self.rest: dict[str, np.ndarray] = {}  # of the prompt, not granted yet
        self.all: dict[str, np.ndarray] = {}  # every token of a request
        self.keys: dict[str, dict[str, Any]] = {}
        self.ids: dict[str, int] = {}

    def admit(self, r: str, tokens: Any, n: int | None, keys: dict[str, Any], resumed: bool) -> dict[str, Any]:
        hit = self.manager.match_prefix(tokens, **keys).num_tokens
        try:
            made = self.manager.admit(tokens, n, watermark=self.watermark, resumed=resumed, **keys)
        except OutOfFrames:
            return {"ok": False, "hit": hit}
        assert made.hit.num_tokens == hit
        self.ids[r], self.all[r], self.keys[r] = made.seq_id, tokens, keys
        self.manager.commit(made.seq_id, self.manager.reserved(made.seq_id))
        self.rest[r] = tokens[self.manager.seq_len(made.seq_id) :]
        return {"ok": True, "hit": hit}

    def grow(self, r: str, tokens: Any, ahead: int) -> dict[str, Any]:
        seq_id = self.ids[r]
        wanted = max(len(tokens) + ahead - int(self.manager.reserved(seq_id)[0]), 0)
        try:
            self.manager.reserve(seq_id, wanted)
        except OutOfFrames:
            return {"ok": False}
        self.manager.commit(seq_id, len(tokens), tokens)
        return {"ok": True}

    def perform(self, op: dict[str, Any]) -> dict[str, Any]:
        keys = {ours: op[theirs] for ours, theirs in (("salt", "salt"), ("adapter", "lora")) if theirs in op}
        r = op.get("r", "")
        match op["op"]:
            case "admit":
                return self.admit(r, _tokens(op["tokens"]), op.get("n"), keys, False)
            case "resume":
                return self.admit(r, self.all[r], op.get("n"), self.keys[r], True)
            case "lookup":
                return {"ok": True, "hit": self.manager.match_prefix(_tokens(op["tokens"]), **keys).num_tokens}
            case "extend":
                part = self.rest[r][: op["n"]]
                done = self.grow(r, part, 0)
                self.rest[r] = self.rest[r][len(part) :] if done["ok"] else self.rest[r]
                return done
            case "append":
                tokens = _tokens(op["tokens"])
                done = self.grow(r, tokens, op.get("ahead", 0))
                self.all[r] = np.concatenate([self.all[r], tokens]) if done["ok"] else self.all[r]
                return done
            case "free" | "preempt":
                self.manager.free(self.ids.pop(r))
                return {"ok": True}
            case "reset":
                idle = self.manager.stats().held == 0
                if idle:
                    self.manager.clear_prefixes()
                return {"ok": idle}
        raise AssertionError(op["op"])

    def observe(self) -> dict[str, Any]:
        tables = {r: self.manager.table(seq_id).frames() for r, seq_id in self.ids.items()}
        names, shared = list(tables), []
        for at, a in enumerate(names):
            for b in names[at + 1 :]:
                n = min(tables[a].size, tables[b].size)
                if pages := np.flatnonzero(tables[a][:n] == tables[b][:n]).tolist():
                    shared.append([a, b, pages])
        held = {r: int(table.size) for r, table in tables.items()}
        return {"free": self.manager.num_available, "held": held, "shared": shared}


@pytest.mark.parametrize("log", _logs("pagelog"), ids=lambda log: log["id"])
def test_page_log(log: dict[str, Any]) -> None:
    replay = PageLog(log)
    for at, op in enumerate(log["ops"]):
        result = {**replay.perform(op), **replay.observe()}
        assert result == {name: op[name] for name in result}, f"operation {at}: {op}"
        replay.manager.audit()


@pytest.mark.parametrize("log", _logs("radixlog"), ids=lambda log: log["id"])
def test_radix_log(log: dict[str, Any]) -> None:
    policy = {"lfu": "lru"}.get(log["policy"], log["policy"])  # that cache never counts hits
    tree, pins = RadixTree(log["page_size"], policy), {}
    for at, op in enumerate(log["ops"]):
        tokens = _tokens(op.get("tokens", []))
        where = {"namespace": op["ns"]} if "ns" in op else {}
        result: dict[str, Any] = {}
        match op["op"]:
            case "insert":
                result["already"] = tree.insert(tokens, priority=op.get("priority", 0), **where)
            case "match":
                result["len"] = tree.match(tokens, **where)
            case "lock":
                size = log["page_size"]
                result["len"] = tree.longest_match(tokens[: tokens.size // size * size], **where) // size * size
                pins[op["h"]] = tree.pin(tokens, **where)
            case "unlock":
                tree.unpin(pins.pop(op["h"]))
            case "evict":
                result["evicted"] = tree.evict(op["n"])
        result |= {"evictable": tree.evictable, "protected": tree.protected}
        assert result == {name: op[name] for name in result}, f"operation {at}: {op}"
