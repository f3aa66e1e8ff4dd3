"""A model whose next token depends on every token that it sees, read back from the pages: mistakes of memory show.

Keys hold token ids, values their positions. The logits of a row are made from a hash of the keys that each layer sees,
in order, and a row whose positions are not what they should be has NaN. Nothing is rounded, so outputs are equal to the
bit whatever the batch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from pagedref import backends
from pagedref.cache_spec import CacheSpec
from pagedref.kv_cache import PagedKVCache, Step
from pagedref.models.tokenizer import StreamDecoder

VOCAB = 23
EOS = 22


Windows = tuple[int | None, ...]


def next_logits(history: tuple[int, ...], windows: Windows = (None,)) -> Any:
    """Logits of the token after a history, of which each layer sees its window."""
    mixed = np.uint64(1469598103934665603)
    with np.errstate(over="ignore"):
        for window in windows:
            for token in history[max(0, len(history) - (window or len(history))) :]:
                mixed = (mixed ^ np.uint64(token + 1)) * np.uint64(1099511628211)
        words = mixed ^ (np.arange(VOCAB, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        words *= np.uint64(0xBF58476D1CE4E5B9)
    logits = ((words >> np.uint64(40)) % np.uint64(1000)).astype(np.float32) / 100
    logits[EOS] -= 4
    return logits


class FakeTransformer:
    """Keeps to the interface of the transformer: ``forward`` and ``cache_spec``."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.steps = self.tokens = 0
        self.fail_at = -1

    def cache_spec(self, page_size: int, kv_format: Any = None) -> CacheSpec:
        return CacheSpec(len(self.windows), 1, 1, page_size)

    def forward(self, cache: PagedKVCache, step: Step, token_ids: Any, rows: Any) -> Any:
        self.steps += 1
        if self.steps == self.fail_at:
            raise FloatingPointError("the model broke down")
        ids = np.asarray(token_ids)
        self.tokens += ids.size
        for layer in range(len(self.windows)):
            cache.append(step, *(x.astype(np.float32).reshape(-1, 1, 1) for x in (ids, step.positions)), layer=layer)
        owner = np.repeat(np.arange(len(step.num_tokens)), step.num_tokens)
        found = [self.row(cache, step, int(owner[row]), int(step.positions[row])) for row in np.asarray(rows, np.int64)]
        return np.array(found, np.float32).reshape(-1, VOCAB)

    def row(self, cache: PagedKVCache, step: Step, sequence: int, position: int) -> Any:
        """Logits of one row, from what each layer sees in its pages."""
        seen: list[int] = []
        for layer, window in enumerate(self.windows):
            tables, place = cache._at("forward", step, layer)
            k, v = (array.reshape(-1) for array in cache._pool.layer(place))
            frames = tables.kv_indices[tables.kv_indptr[sequence] : tables.kv_indptr[sequence + 1]].astype(np.int64)
            visible = np.arange(max(0, position + 1 - (window or position + 1)), position + 1)
            own = frames[visible // cache.spec.page_size]
            slots = own * cache.spec.page_size + visible % cache.spec.page_size
            if (own < 0).any() or not np.array_equal(v[slots], visible):
                return np.full(VOCAB, np.nan)
            seen += k[slots].astype(int).tolist()
        return next_logits(tuple(seen))


class FakeTokenizer:
    """Twenty letters, two halves of one character, and a control token."""

    def __init__(self) -> None:
        self.poisoned = -1

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: list[int]) -> str:
        if self.poisoned in ids:
            raise RuntimeError("the tokenizer broke down")
        pieces = [bytes([ord("a") + token]) if token < 20 else (b"\xc3", b"\xa9", b"")[token - 20] for token in ids]
        return b"".join(pieces).decode("utf-8", "replace")

    def stream(self) -> StreamDecoder:
        return StreamDecoder(self)  # type: ignore[arg-type]


class _Model:
    """What an engine asks of a model."""

    def __init__(self, max_model_len: int = 64, tokenizer: Any = None, windows: Windows = (None,)) -> None:
        self.config: Any = SimpleNamespace(
            vocab_size=VOCAB, max_model_len=max_model_len, eos_token_ids=frozenset({EOS}), windows=windows
        )
        self.tokenizer = tokenizer
        self.transformer = FakeTransformer(windows)
        self.backend = backends.get("numpy")

    def cache(self, num_frames: int, *, page_size: int, kv_format: Any, poison: bool) -> PagedKVCache:
        return PagedKVCache(self.transformer.cache_spec(page_size), num_frames, poison=poison)

    def encode(self, text: str, *, chat: bool | None = None) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text)
        return ids


FakeModel: Any = _Model  # it has what an engine needs, and is no Model


def alone(prompt: list[int], limit: int, *, ignore_eos: bool = False, windows: Windows = (None,)) -> list[int]:
    """Greedy tokens of a prompt without any engine or cache."""
    history = list(prompt)
    new: list[int] = []
    while len(new) < limit:
        token = int(next_logits(tuple(history), windows).argmax())
        new.append(token)
        history.append(token)
        if token == EOS and not ignore_eos:
            break
    return new
